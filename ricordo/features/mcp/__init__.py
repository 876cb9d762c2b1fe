"""MCP: servers whose tools agents call over stdio, SSE or streamable HTTP."""

from typing import Any

from ricordo.plugins import PluginPage


class McpPlugin:
    """MCP servers in the API, and their tools for agents."""

    requires = ("sandbox", "web")

    def tool_runners(self, settings: Any) -> list[Any]:
        from ricordo.features.mcp.tools import McpRunner

        return [McpRunner(settings)]

    def tables(self) -> list[Any]:
        from ricordo.features.mcp.tables import mcp_servers, mcp_tools

        return [mcp_servers, mcp_tools]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter(
                "ricordo.features.mcp.routes",
                ("/v1/mcp-servers",),
                open=("/v1/mcp-servers/oauth/callback",),
            ),
            LazyRouter("ricordo.features.mcp.named_routes", ("/v1/tools/mcp",)),
            LazyRouter("ricordo.features.mcp.server_pages", ("/ui/mcp",)),
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("MCP servers", "/ui/mcp")]


plugin = McpPlugin()
