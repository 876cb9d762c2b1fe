"""Login and logout for browsers, with the login provider and a session cookie."""

import re
from html import escape

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ricordo.api.guard import COOKIE, refuse
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import RECORDED_SCOPE, REQUEST_SCOPE, Scope
from ricordo.errors import Forbidden, Invalid, NotFound, Unavailable, require_others_failure
from ricordo.features.identity.login.service import (
    ATTEMPT_SECONDS,
    LoginProvider,
    begin,
    open_session,
    read_attempt,
)
from ricordo.pages.sessions import session_seconds, set_session
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import keys, users

# A login begins without a key; a logout needs one.
router = Routes(tags=["login"], include_in_schema=False, open_paths=("/login", "/login/callback"))
ATTEMPT_COOKIE = "ricordo_login"
_CALLBACK = "/login/callback"
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
# A safe path on this server. Browsers read "//host" and "/\host" as another server, and ignore tabs
# and line breaks.
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
_ERROR = re.compile(r"[a-z_]{1,60}")
_SEE_OTHER = 303
_STATUS = ((Unavailable, 502), (Forbidden, 403), (Invalid, 400))


@router.get("/login")
@needs()
async def log_in(request: Request, next: str = "/", stays: str = "") -> Response:
    """Send the browser to the provider.

    The browser returns to `next`, a path of this server. With `stays` the session lasts 30 days.
    """
    provider = _provider(request)
    if not _LOCAL.fullmatch(next):
        raise Invalid(
            "`next` must be a path of this server, such as /users/ada. Change it, or leave it out."
        )
    attempt = begin(next, stays=bool(stays))
    try:
        address = await provider.address(attempt, _redirect_uri(request))
    except Unavailable as error:
        return _refuse(request, 502, str(error))
    response = RedirectResponse(address, _SEE_OTHER, _HEADERS)
    _set_cookie(
        request,
        response,
        ATTEMPT_COOKIE,
        cookie=attempt.sign(_secret(request)),
        seconds=ATTEMPT_SECONDS,
        path=_CALLBACK,
    )
    return response


@router.get(_CALLBACK)
@needs()
async def come_back(request: Request, state: str = "", code: str = "", error: str = "") -> Response:
    """Open the session of a person after the provider's login.

    A failure creates no session and no user, and changes none.
    """
    provider = _provider(request)
    runtime = _runtime(request)
    secret = request.app.state.authentication.secret
    response: Response
    identifier = ""
    try:
        attempt = read_attempt(_secret(request), request.cookies.get(ATTEMPT_COOKIE, ""), state)
        _require_code(code, error)
        claims = await provider.claims(attempt, code, _redirect_uri(request))
        identifier = provider.identifier(claims)
        seconds = session_seconds("yes" if attempt.stays else None)
        key, scope = await runtime.store.write(
            lambda tx: open_session(tx, secret, identifier, claims, seconds)
        )
    except (Unavailable, Forbidden, Invalid) as fault:
        require_others_failure(fault)
        user = await runtime.store.read(
            lambda tx: users.named(tx, Scope().organization_id, identifier)
        )
        if user:
            request.scope[RECORDED_SCOPE] = Scope(user_id=user.id, role="user")
        status = next(status for kind, status in _STATUS if isinstance(fault, kind))
        response = _refuse(request, status, str(fault))
    else:
        request.scope[RECORDED_SCOPE] = scope
        response = RedirectResponse(_below_base(request, attempt.next), _SEE_OTHER, _HEADERS)
        set_session(request, response, key, seconds)
    # An attempt can be used only once.
    response.delete_cookie(
        ATTEMPT_COOKIE, _below_base(request, _CALLBACK), httponly=True, samesite="lax"
    )
    return response


@router.post("/logout")
@needs()
async def log_out(request: Request) -> Response:
    """End this session permanently."""
    _provider(request)
    scope: Scope = request.scope[REQUEST_SCOPE]
    if not await _runtime(request).store.write(lambda tx: keys.end_session(tx, scope)):
        raise Invalid(
            "This is not a session of a login. A key is revoked with DELETE /v1/keys/{key_id}."
        )
    request.app.state.authentication.forget()
    response = RedirectResponse(_below_base(request, "/"), _SEE_OTHER, _HEADERS)
    response.delete_cookie(COOKIE, _below_base(request, "/"), httponly=True, samesite="lax")
    return response


def _refuse(request: Request, status: int, reason: str) -> Response:
    """Return a refusal: in JSON for programs, as a page for a browser."""
    if "text/html" not in request.headers.get("accept", ""):
        return refuse(status, reason, _HEADERS)
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'><title>Login</title>"
        f"<main><h1>You are not logged in</h1><p>{escape(reason)}</p>"
        f"<p><a href='{_below_base(request, '/login')}'>Log in</a></p></main>"
    )
    return HTMLResponse(
        page,
        status,
        {**_HEADERS, "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"},
    )


def _require_code(code: str, error: str) -> None:
    if error or not code:
        reason = f" ({error})" if _ERROR.fullmatch(error) else ""
        raise Forbidden(f"The login provider refused the login{reason}. Start again at /login.")


def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


def _provider(request: Request) -> LoginProvider:
    """Return the login provider of this server; it is created once.

    Raises NotFound if none is configured.
    """
    state = request.app.state
    settings = _runtime(request).settings
    if settings.oidc_issuer is None:
        raise NotFound("Login is not set up on this server. Set RICORDO_OIDC_ISSUER, or use a key.")
    if not hasattr(state, "login_provider"):
        state.login_provider = LoginProvider(settings)
    provider: LoginProvider = state.login_provider
    return provider


def _secret(request: Request) -> bytes:
    return Secret(_runtime(request).settings.data_dir).derive("login")


def _below_base(request: Request, path: str) -> str:
    """Return the path as browsers request it: below RICORDO_ROOT_PATH."""
    return f"{request.scope.get('root_path', '')}{path}"


def _redirect_uri(request: Request) -> str:
    return f"{str(request.base_url).rstrip('/')}{_CALLBACK}"


def _set_cookie(
    request: Request, response: Response, name: str, *, cookie: str, seconds: int, path: str
) -> None:
    response.set_cookie(
        name,
        cookie,
        max_age=seconds,
        path=_below_base(request, path),
        secure=request.url.scheme == "https",  # a trusted proxy may set the scheme
        httponly=True,
        samesite="lax",
    )
