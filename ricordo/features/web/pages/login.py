"""Login with a key, and logout.

The browser gets a session in a cookie, from which the key cannot be read.
"""

from typing import Any

from fastapi import Request, Response

from ricordo.api.guard import COOKIE
from ricordo.api.routing import needs
from ricordo.domain.scope import RECORDED_SCOPE, REQUEST_SCOPE
from ricordo.errors import NotFound
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.pages.sessions import STAYS, session_seconds, set_session
from ricordo.pages.shell import Pages, base_of, done, form_of, local_path, render
from ricordo.storage import keys

router = Pages(open_paths=("/ui/login",), login_page="/ui/login")


@router.get("/ui/login")
@needs()
async def show_login(request: Request) -> Response:
    """Show the form for a key, and a link to the login provider."""
    next = local_path(request.query_params.get("next", "")) or "/"
    return await render(request, "login.html", **login_form(request, next))


def login_form(request: Request, next: str) -> dict[str, Any]:
    """Return the variables of the form: the next page, and the ways to log in.

    Args:
        request: The request for the page.
        next: The path of this server to open after the login, from `local_path`.
    """
    settings = NotificationSettings.current()
    has_links = any(
        page.path == "/ui/invitations" for page in request.app.state.runtime.plugins.pages()
    )
    return {
        "next": next,
        "words": "",
        "version": "",
        "is_first": False,
        "has_mail": has_links and bool(settings.smtp_host and settings.public_url),
    }


@router.post("/ui/login")
@needs()
async def log_in(request: Request) -> Response:
    form = await form_of(request)
    key = form.get("key", "").strip()
    next = local_path(form.get("next", "")) or "/"
    authentication = request.app.state.authentication
    runtime = request.app.state.runtime
    address = request.client.host if request.client else ""
    caller = await authentication.scope_of(runtime, key, address)
    # Refuse a browser token: it is for web pages of other servers.
    if caller is None or caller.reach:
        authentication.note_failure(address)
        problem = (
            "This key is unknown, expired or revoked. Check it, or ask an administrator for a new "
            "one."
        )
        form_variables = login_form(request, next) | {"words": problem}
        return await render(request, "login.html", status=401, **form_variables)
    await _end_session(request)
    request.scope[RECORDED_SCOPE] = caller
    response = done(request, next)
    seconds = session_seconds(form.get(STAYS))
    set_session(request, response, authentication.open_session(key, seconds), seconds)
    return response


@router.get("/ui/{rest:path}")
@needs()
async def find_no_page(request: Request, rest: str) -> Response:
    """Answer an unknown address with a page; redirect an address that ends with a slash."""
    if rest.endswith("/") or not rest:
        return done(request, f"/ui/{rest.rstrip('/')}" if rest.strip("/") else "/")
    raise NotFound(f"There is no page /ui/{rest[:80]}. Check the address.")


@router.post("/ui/logout")
@needs()
async def log_out(request: Request) -> Response:
    await _end_session(request)
    response = done(request, "/ui/login" if request.scope.get(REQUEST_SCOPE) else "/")
    response.delete_cookie(COOKIE, path=f"{base_of(request)}/", httponly=True, samesite="lax")
    return response


async def _end_session(request: Request) -> None:
    """If the browser has a session of the login provider, revoke it.

    The cookie may have been copied.
    """
    scope = request.scope.get(REQUEST_SCOPE)
    runtime = request.app.state.runtime
    if scope and scope.key_id and await runtime.store.write(lambda tx: keys.end_session(tx, scope)):
        request.app.state.authentication.forget()
