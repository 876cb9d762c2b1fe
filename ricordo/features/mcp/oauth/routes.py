"""The authorization server of `/mcp`: metadata, endpoints, and consent page.

The SDK's endpoints are below `/oauth`. The SDK is imported at the first request of an MCP client.
It takes 25 MB and a quarter of the time of a server's start, and most servers have no such clients.
"""

import time
from dataclasses import replace
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
    # Requests of programs that have no token yet.
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
    """Describe `/mcp` and its authorization server (RFC 9728)."""
    address = public_address(request)
    return answer(
        {
            "resource": f"{address}{RESOURCE}",
            "resource_name": "Ricordo",
            "authorization_servers": [address],
            "scopes_supported": [*SCOPES],
            "bearer_methods_supported": ["header"],
        }
    )


@router.get("/.well-known/oauth-authorization-server")
# programs look here if a server has a path prefix
@router.get("/.well-known/openid-configuration")
@needs()
async def describe_server(request: Request) -> Response:
    """Describe the authorization server's endpoints and abilities (RFC 8414)."""
    address = public_address(request)
    return answer(
        {
            "issuer": address,
            "authorization_endpoint": f"{address}/oauth/authorize",
            "token_endpoint": f"{address}/oauth/token",
            "registration_endpoint": f"{address}/oauth/register",
            "revocation_endpoint": f"{address}/oauth/revoke",
            "scopes_supported": [*SCOPES],
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": _METHODS,
            "revocation_endpoint_auth_methods_supported": _METHODS,
            "code_challenge_methods_supported": ["S256"],
        }
    )


@router.post("/oauth/register", max_body_size=_MOST_BYTES)
@needs()
async def register(request: Request) -> Response:
    """Return a client id for a program (RFC 7591).

    Nothing is stored, so nothing is recorded.
    """
    endpoints = await import_in_thread(_ENDPOINTS)
    request.scope[RECORDED_SCOPE] = None
    response: Response = await endpoints.register(request)
    return response


@router.get("/oauth/authorize")
@needs(*SCOPES)
async def authorize(request: Request) -> Response:
    """Check a program's request, and redirect to the page of consent."""
    endpoints = await import_in_thread(_ENDPOINTS)
    _person(request)
    response: Response = await endpoints.authorize(request)
    return response


@router.get("/oauth/consent")
@needs(*SCOPES)
async def ask(request: Request) -> Response:
    """Show the page on which a person consents."""
    question = request.query_params.get("question", "")
    consent = _read(request, question)
    parts = urlsplit(consent.redirect_uri)
    origin = f"{parts.scheme}:"
    if parts.scheme in ("http", "https"):
        origin = f"{parts.scheme}://{parts.netloc}"
    response = await render(
        request,
        "mcp.oauth/consent.html",
        asked=consent,
        wants=[(scope, SCOPES[scope]) for scope in consent.scopes],
        goes_to=origin,
        question=question,
    )
    # Allow the program's address in the policy for forms, since browsers apply it to the redirect
    # after the form.
    policy = HEADERS["Content-Security-Policy"].replace(
        "form-action 'self'", f"form-action 'self' {origin}"
    )
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/oauth/consent")
@needs(*SCOPES)
async def decide(request: Request) -> Response:
    """Redirect the browser to the program with a code, or with a refusal."""
    endpoints = await import_in_thread(_ENDPOINTS)
    form = await form_of(request)
    consent = _read(request, form.get("question", ""))
    outcome = {"error": "access_denied"}
    if form.get("decision") == "allow":
        code = replace(consent, until=time.time() + CODE_SECONDS)
        outcome = {"code": code.sign(derive(request, "code"))}
    address = endpoints.redirect_uri(consent.redirect_uri, consent.state, **outcome)
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
    """Return the caller. Raises Invalid unless the caller is a person."""
    caller: Scope = request.scope[REQUEST_SCOPE]
    if caller.key_id is None and not caller.caller:
        raise Invalid(
            "This server needs no key. Connect the program without OAuth: "
            "docs/develop/mcp-server.md shows how."
        )
    if caller.key_id is None or caller.role == "service":
        raise Invalid(
            "Only a person can give a program access. Log out, then log in with your personal key."
        )
    return caller


def _read(request: Request, text: str) -> ProgramConsent:
    """Return the question for the caller, if this server signed it.

    Raises Invalid for other texts, since a page could forge the question.
    """
    caller = _person(request)
    consent = ProgramConsent.read(derive(request, "question"), text)
    if consent is None or consent.asked_by != caller.key_id or consent.until < time.time():
        raise Invalid(
            "This request has expired, or another user got it. Connect again from the program."
        )
    return consent
