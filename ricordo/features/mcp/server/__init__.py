"""An MCP server for a person's memory: read, search, add, propose changes.

Its clients are Claude, Cursor and other programs.
"""

from importlib.util import find_spec
from typing import Any

from ricordo.plugins import Commands


class McpServerPlugin:
    """`/mcp` in the API, and `ricordo mcp` for programs that start a server themselves."""

    def routes(self) -> list[Any]:
        if find_spec("mcp") is None:
            return []
        return ["ricordo.features.mcp.server.routes"]

    def findings(self, settings: Any) -> list[str]:  # noqa: ARG002 - the hook's
        if find_spec("mcp"):
            return []
        return ['!no MCP server: install it with pip install "ricordo[mcp]"']

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.mcp.server.cli")]


plugin = McpServerPlugin()
