"""The Model Context Protocol: tools of its servers for agents, and memory for its clients."""

from ricordo.features.mcp.server import HAS_SDK
from ricordo.plugins import Commands, Feature, PluginPage

# Without the extra `mcp`, agents can call no MCP servers, and programs find no MCP server here.
_SERVER_ROUTES = ("ricordo.features.mcp.oauth.routes", "ricordo.features.mcp.server.routes")

feature = Feature(
    settings=("ricordo.features.mcp.client.options:McpSettings",),
    tables=("ricordo.features.mcp.client.tables:TABLES",),
    routes=(
        "ricordo.features.mcp.client.routes",
        "ricordo.features.mcp.client.named_routes",
        "ricordo.features.mcp.client.server_pages",
        *(_SERVER_ROUTES if HAS_SDK else ()),
    ),
    tool_runners=("ricordo.features.mcp.client.tools:McpRunner",),
    pages=(PluginPage("MCP servers", "/ui/mcp"),),
    commands=(
        Commands(
            "",
            "ricordo.features.mcp.server.cli",
            commands={"mcp": "Give your memory to Claude, Cursor and others, by MCP."},
        ),
    ),
    findings=("ricordo.features.mcp.server:findings",),
)
