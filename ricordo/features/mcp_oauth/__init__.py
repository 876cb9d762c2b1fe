"""OAuth for the MCP server: programs that can send no key are let in by their person's consent in a browser."""

from importlib.util import find_spec
from typing import Any

RESOURCE, METADATA = "/mcp", "/.well-known/oauth-protected-resource/mcp"


class McpOAuthPlugin:
    """Adds the authorization server (RFC 8414, 7591, 9728) and its page of consent. Its tokens are rows among the API keys."""

    requires = ("mcp_server", "web")

    def routes(self) -> list[Any]:
        if find_spec("mcp") is None:
            return []
        return ["ricordo.features.mcp_oauth.routes"]


plugin = McpOAuthPlugin()
