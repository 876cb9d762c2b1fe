"""OAuth endpoints, which the MCP SDK answers."""

from fastapi import Request, Response
from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.revoke import RevocationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import construct_redirect_uri
from mcp.server.auth.settings import ClientRegistrationOptions

from ricordo.errors import Invalid
from ricordo.features.mcp.oauth.provider import GrantProvider


async def register(request: Request) -> Response:
    """Tell a program its client id (RFC 7591)."""
    options = ClientRegistrationOptions(enabled=True)
    return await RegistrationHandler(GrantProvider(request), options).handle(request)


async def authorize(request: Request) -> Response:
    """Check a program's request, and redirect to the page of consent.

    Raises:
        Invalid: if the program asks for access that it may not get.
    """
    provider = GrantProvider(request)
    response = await AuthorizationHandler(provider).handle(request)
    # Anybody can register an address. So the browser is not redirected to it before a person's
    # consent.
    if not provider.question:
        raise Invalid(
            "The program's request is not allowed. Check its address, its scopes, and that it "
            "sends an S256 challenge."
        )
    return response


async def give_tokens(request: Request) -> Response:
    """Give tokens for a code or a refresh token."""
    provider = GrantProvider(request)
    response: Response = await TokenHandler(provider, ClientAuthenticator(provider)).handle(request)
    return response


async def revoke(request: Request) -> Response:
    """End a grant with all its tokens (RFC 7009)."""
    provider = GrantProvider(request)
    return await RevocationHandler(provider, ClientAuthenticator(provider)).handle(request)


def redirect_uri(address: str, state: str | None, **parameters: str) -> str:
    """Return the program's address with the outcome in its query."""
    return construct_redirect_uri(address, **parameters, state=state)
