"""The authorization server of `/mcp`: its metadata, the SDK's endpoints below `/oauth`, and the page where a person consents."""

import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.revoke import RevocationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import construct_redirect_uri
from mcp.server.auth.settings import ClientRegistrationOptions

from ricordo.api.answers import answer
from ricordo.api.routing import needs
from ricordo.domain.scope import RECORDED_SCOPE, REQUEST_SCOPE, Scope
from ricordo.errors import Invalid
from ricordo.features.mcp_oauth import METADATA, RESOURCE
from ricordo.features.mcp_oauth.grants import CODE_SECONDS, SCOPES, ProgramConsent
from ricordo.features.mcp_oauth.provider import GrantProvider, public_address
from ricordo.features.web.shell import HEADERS, Pages, form_of, render

router = Pages()
_MOST_BYTES = 16 * 1024
_METHODS = ["none", "client_secret_post", "client_secret_basic"]


@router.get(METADATA)
@needs()
async def describe_resource(request: Request) -> Response:
    """What `/mcp` is, and who gives tokens for it (RFC 9728)."""
    address = public_address(request)
    about = {
        "resource": f"{address}{RESOURCE}",
        "resource_name": "Ricordo",
        "authorization_servers": [address],
    }
    return answer({**about, "scopes_supported": [*SCOPES], "bearer_methods_supported": ["header"]})


@router.get("/.well-known/oauth-authorization-server")
@router.get("/.well-known/openid-configuration")  # where programs look on a server below a path
@needs()
async def describe_server(request: Request) -> Response:
    """Where its endpoints are, and what it can do (RFC 8414)."""
    address = public_address(request)
    about: dict[str, Any] = {"issuer": address}
    for name, path in (
        ("authorization", "authorize"),
        ("token",) * 2,
        ("registration", "register"),
    ):
        about[f"{name}_endpoint"] = f"{address}/oauth/{path}"
    about |= {"revocation_endpoint": f"{address}/oauth/revoke", "scopes_supported": [*SCOPES]}
    about |= {
        "response_types_supported": ["code"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
    }
    about |= {
        f"{name}_endpoint_auth_methods_supported": _METHODS for name in ("token", "revocation")
    }
    return answer({**about, "code_challenge_methods_supported": ["S256"]})


@router.post("/oauth/register", max_body_size=_MOST_BYTES)
@needs()
async def register(request: Request) -> Response:
    """Tell a program its client id (RFC 7591). Nothing is stored, so nothing is recorded."""
    request.scope[RECORDED_SCOPE] = None
    return await RegistrationHandler(
        GrantProvider(request), ClientRegistrationOptions(enabled=True)
    ).handle(request)


@router.get("/oauth/authorize")
@needs(*SCOPES)
async def authorize(request: Request) -> Response:
    """Check what a program asks for, and send the browser to the page where its person is asked."""
    _person(request)
    provider = GrantProvider(request)
    response = await AuthorizationHandler(provider).handle(request)
    if (
        not provider.question
    ):  # anybody can register an address, so nobody is sent there before a person consents
        raise Invalid(
            "The program asks for what is not given: check its address, its scopes, and that it sends an S256 challenge."
        )
    return response


@router.get("/oauth/consent")
@needs(*SCOPES)
async def ask(request: Request) -> Response:
    text = request.query_params.get("question", "")
    asked = _read(request, text)
    parts = urlsplit(asked.redirect_uri)
    goes_to = (
        f"{parts.scheme}://{parts.netloc}"
        if parts.scheme in ("http", "https")
        else f"{parts.scheme}:"
    )
    wants = [(scope, SCOPES[scope]) for scope in asked.scopes]
    response = await render(
        request, "mcp_oauth/consent.html", asked=asked, wants=wants, goes_to=goes_to, question=text
    )
    # Browsers take a redirect after a form for where the form goes.
    policy = HEADERS["Content-Security-Policy"].replace(
        "form-action 'self'", f"form-action 'self' {goes_to}"
    )
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/oauth/consent")
@needs(*SCOPES)
async def decide(request: Request) -> Response:
    """Send the browser back to the program with a code, or with a no."""
    form = await form_of(request)
    asked = _read(request, form.get("question", ""))
    given = {"error": "access_denied"}
    if form.get("decision") == "allow":
        consent = replace(asked, until=time.time() + CODE_SECONDS)
        given = {"code": consent.sign(GrantProvider(request).derive("code"))}
    address = construct_redirect_uri(asked.redirect_uri, **given, state=asked.state)
    return RedirectResponse(
        address, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    )


@router.post("/oauth/token", max_body_size=_MOST_BYTES)
@needs()
async def give_tokens(request: Request) -> Response:
    """Give tokens for a code or a refresh token."""
    provider = GrantProvider(request)
    answered: Response = await TokenHandler(provider, ClientAuthenticator(provider)).handle(request)
    return answered


@router.post("/oauth/revoke", max_body_size=_MOST_BYTES)
@needs()
async def revoke(request: Request) -> Response:
    """End a grant with all its tokens (RFC 7009)."""
    request.scope[RECORDED_SCOPE] = None
    provider = GrantProvider(request)
    return await RevocationHandler(provider, ClientAuthenticator(provider)).handle(request)


def _person(request: Request) -> Scope:
    """Return the caller, where they are a person. Raises Invalid."""
    caller: Scope = request.scope[REQUEST_SCOPE]
    if caller.key_id is None and not caller.caller:
        raise Invalid(
            "This server needs no key. Connect the program without OAuth: docs/develop/mcp-server.md shows how."
        )
    if caller.key_id is None or caller.role == "service":
        raise Invalid(
            "Only a person can let a program in. Log out, then log in with a key of your own."
        )
    return caller


def _read(request: Request, text: str) -> ProgramConsent:
    """Return what the caller is asked, by this server and not by a page that was forged. Raises Invalid."""
    caller = _person(request)
    asked = ProgramConsent.read(GrantProvider(request).derive("question"), text)
    if asked is None or asked.asked_by != caller.key_id or asked.until < time.time():
        raise Invalid(
            "This question is over, or was asked of somebody else. Connect again from the program."
        )
    return asked
