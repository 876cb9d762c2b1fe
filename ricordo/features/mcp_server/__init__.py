"""An MCP server: Claude, Cursor and other programs read a person's memory, search it, add to it and propose changes."""

from importlib.util import find_spec
from typing import Any

from ricordo.plugins import Commands


class McpServerPlugin:
    """Adds `/mcp` to the API, and `ricordo mcp` for programs that start a server themselves."""

    requires = ("web",)

    def routes(self) -> list[Any]:
        if find_spec("mcp") is None:
            return []
        return ["ricordo.features.mcp_server.routes"]

    def findings(self, settings: Any) -> list[str]:  # noqa: ARG002 - the hook's
        return (
            []
            if find_spec("mcp")
            else ['!no MCP server: install it with pip install "ricordo[mcp]"']
        )

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.mcp_server.cli")]


plugin = McpServerPlugin()
