"""MCP: servers whose tools agents call over stdio, SSE or streamable HTTP."""

from typing import Any

from ricordo.plugins import PluginPage


class McpPlugin:
    """MCP servers in the API, and their tools for agents."""

    def tool_runners(self, settings: Any, sandbox: Any) -> list[Any]:
        from ricordo.features.mcp.client.tools import McpRunner

        return [McpRunner(settings, sandbox)]

    def tables(self) -> list[Any]:
        from ricordo.features.mcp.client.tables import mcp_servers, mcp_tools

        return [mcp_servers, mcp_tools]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.mcp.client.routes",
            "ricordo.features.mcp.client.named_routes",
            "ricordo.features.mcp.client.server_pages",
        ]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("MCP servers", "/ui/mcp")]


plugin = McpPlugin()
