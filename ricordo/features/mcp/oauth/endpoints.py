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
    """Tell a program its client id (RFC 7591).

    Args:
        request: The program's POST request with its metadata as JSON.
    """
    options = ClientRegistrationOptions(enabled=True)
    return await RegistrationHandler(GrantProvider(request), options).handle(request)


async def authorize(request: Request) -> Response:
    """Check a program's request, and redirect to the page of consent.

    Args:
        request: The browser's request, whose caller is the person.

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
    """Give tokens for a code or a refresh token.

    Args:
        request: The program's POST request with a form (RFC 6749). A refused one gets a response
            with its error.
    """
    provider = GrantProvider(request)
    response: Response = await TokenHandler(provider, ClientAuthenticator(provider)).handle(request)
    return response


async def revoke(request: Request) -> Response:
    """End a grant with all its tokens (RFC 7009).

    Args:
        request: The program's POST request with a form, which has one of the tokens.
    """
    provider = GrantProvider(request)
    return await RevocationHandler(provider, ClientAuthenticator(provider)).handle(request)


def redirect_uri(address: str, state: str | None, **parameters: str) -> str:
    """Return the program's address with the outcome in its query.

    Args:
        address: The redirect address that the program registered.
        state: The `state` that the program sent; None for none.
        **parameters: Further parameters, such as `code` or `error`.
    """
    return construct_redirect_uri(address, **parameters, state=state)
