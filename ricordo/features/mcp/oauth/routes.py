"""The authorization server of `/mcp`: its metadata, the SDK's endpoints below `/oauth`, and the page where a person consents.

The SDK is imported when a program first asks: it takes 25 MB and a quarter of the start, and few servers let programs in.
"""

import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from ricordo.api.answers import answer
from ricordo.api.routing import needs
from ricordo.domain.scope import RECORDED_SCOPE, REQUEST_SCOPE, Scope
from ricordo.errors import Invalid
from ricordo.features.mcp.oauth import METADATA, RESOURCE
from ricordo.features.mcp.oauth.grants import CODE_SECONDS, SCOPES, ProgramConsent
from ricordo.features.mcp.oauth.requests import derive, public_address
from ricordo.offload import import_in_thread
from ricordo.pages.shell import HEADERS, Pages, form_of, render

router = Pages(
    # What programs ask before they have a token.
    open_paths=(
        METADATA,
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        "/oauth/register",
        "/oauth/token",
        "/oauth/revoke",
    ),
    resources={RESOURCE: METADATA},
)
_ENDPOINTS = "ricordo.features.mcp.oauth.endpoints"
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
    endpoints = await import_in_thread(_ENDPOINTS)
    request.scope[RECORDED_SCOPE] = None
    response: Response = await endpoints.register(request)
    return response


@router.get("/oauth/authorize")
@needs(*SCOPES)
async def authorize(request: Request) -> Response:
    """Check what a program asks for, and send the browser to the page where its person is asked."""
    endpoints = await import_in_thread(_ENDPOINTS)
    _person(request)
    response: Response = await endpoints.authorize(request)
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
        request, "mcp.oauth/consent.html", asked=asked, wants=wants, goes_to=goes_to, question=text
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
    endpoints = await import_in_thread(_ENDPOINTS)
    form = await form_of(request)
    asked = _read(request, form.get("question", ""))
    given = {"error": "access_denied"}
    if form.get("decision") == "allow":
        consent = replace(asked, until=time.time() + CODE_SECONDS)
        given = {"code": consent.sign(derive(request, "code"))}
    address = endpoints.redirect_uri(asked.redirect_uri, asked.state, **given)
    return RedirectResponse(
        address, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    )


@router.post("/oauth/token", max_body_size=_MOST_BYTES)
@needs()
async def give_tokens(request: Request) -> Response:
    """Give tokens for a code or a refresh token."""
    endpoints = await import_in_thread(_ENDPOINTS)
    response: Response = await endpoints.give_tokens(request)
    return response


@router.post("/oauth/revoke", max_body_size=_MOST_BYTES)
@needs()
async def revoke(request: Request) -> Response:
    """End a grant with all its tokens (RFC 7009)."""
    endpoints = await import_in_thread(_ENDPOINTS)
    request.scope[RECORDED_SCOPE] = None
    response: Response = await endpoints.revoke(request)
    return response


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
    asked = ProgramConsent.read(derive(request, "question"), text)
    if asked is None or asked.asked_by != caller.key_id or asked.until < time.time():
        raise Invalid(
            "This question is over, or was asked of somebody else. Connect again from the program."
        )
    return asked
