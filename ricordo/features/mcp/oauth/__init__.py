"""OAuth for the MCP server: a person's consent in a browser admits a program.

It is for programs that cannot send a key.
"""

from importlib.util import find_spec
from typing import Any

RESOURCE = "/mcp"
METADATA = "/.well-known/oauth-protected-resource/mcp"


class McpOAuthPlugin:
    """The authorization server (RFC 8414, 7591, 9728) and its page of consent.

    Its tokens are rows among the API keys.
    """

    def routes(self) -> list[Any]:
        if find_spec("mcp") is None:
            return []
        return ["ricordo.features.mcp.oauth.routes"]


plugin = McpOAuthPlugin()
