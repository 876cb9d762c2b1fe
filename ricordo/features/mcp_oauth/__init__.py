"""OAuth for the MCP server: a person's consent in a browser admits a program.

It is for programs that cannot send a key.
"""

from importlib.util import find_spec
from typing import Any

RESOURCE = "/mcp"
METADATA = "/.well-known/oauth-protected-resource/mcp"
# Paths that programs request before they have a token.
_OPEN = (
    METADATA,
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
    "/oauth/register",
    "/oauth/token",
    "/oauth/revoke",
)


class McpOAuthPlugin:
    """The authorization server (RFC 8414, 7591, 9728) and its page of consent.

    Its tokens are rows among the API keys.
    """

    requires = ("mcp_server", "web")

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        if find_spec("mcp") is None:
            return []
        paths = ("/oauth", "/.well-known")
        resources = {RESOURCE: METADATA}
        module = "ricordo.features.mcp_oauth.routes"
        return [LazyRouter(module, paths, open=_OPEN, resources=resources)]


plugin = McpOAuthPlugin()
