"""Pages of sign-in links: invitations for administrators, and the links themselves.

Opening a link changes nothing; only its form starts a session, once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request, Response
from starlette.datastructures import UploadFile

from ricordo.api.authentication import RequestLimits, network_of
from ricordo.api.routing import needs
from ricordo.domain.job import Job
from ricordo.domain.scope import (
    ADMIN,
    LOCAL_ORGANIZATION,
    RECORDED_SCOPE,
    REQUEST_SCOPE,
    Limits,
    Scope,
    User,
)
from ricordo.domain.text import decoded
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.identity.sign_in_links import service
from ricordo.features.identity.sign_in_links.queries import Kind
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.sessions import STAYS, session_seconds, set_session
from ricordo.pages.shell import Pages, done, form_of, render, render_secret
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

router = Pages(
    open_paths=(service.INVITATION_PAGE, service.LOGIN_PAGE, "/login/mail"),
)
_LINK = "identity.sign_in_links/link.html"
_SENT = "identity.sign_in_links/mail_sent.html"
_INVITATIONS = "identity.sign_in_links/invitations.html"
_KINDS: Mapping[str, Kind] = {service.INVITATION_PAGE: "invitation", service.LOGIN_PAGE: "login"}
_ASKED_PER_MINUTE = 30  # of one network, such as a school's
_LONGEST_ADDRESS = 254
_MOST_SHOWN = 100
_PERSON = ("name", "email", "role", "course", "user")


@asynccontextmanager
async def open_limits(runtime: Runtime) -> AsyncIterator[RequestLimits]:
    """Yield the limits of requests for login links, by network."""
    yield RequestLimits(runtime.settings)


@router.get(service.INVITATION_PAGE)
@needs()
async def show_invitation(request: Request, token: str = "") -> Response:
    """Show the person of an invitation, with a form that accepts it."""
    return await _show(request, service.INVITATION_PAGE, token)


@router.post(service.INVITATION_PAGE)
@needs()
async def accept_invitation(request: Request) -> Response:
    """Open a session by an invitation, once."""
    return await _accept(request, service.INVITATION_PAGE)


@router.get(service.LOGIN_PAGE)
@needs()
async def show_login_link(request: Request, token: str = "") -> Response:
    """Show the user of a login link, with a form that logs in."""
    return await _show(request, service.LOGIN_PAGE, token)


@router.post(service.LOGIN_PAGE)
@needs()
async def accept_login_link(request: Request) -> Response:
    """Open a session by the link of an e-mail, once."""
    return await _accept(request, service.LOGIN_PAGE)


@router.post("/login/mail")
@needs()
async def ask_for_link(request: Request) -> Response:
    """If a user has this address, send a login link to it. The answer is the same in any case."""
    if not service.can_mail(NotificationSettings.current()):
        raise NotFound("This server sends no e-mails. Log in with a key.")
    form = await form_of(request)
    address = form.get("email", "").strip()
    runtime: Runtime = request.app.state.runtime
    limits: RequestLimits = runtime.features["identity"]
    network = network_of(request.client.host if request.client else "")
    if seconds := limits.count(Limits(f"login {network}", _ASKED_PER_MINUTE)):
        response = await render(
            request, _SENT, status=429, problem=f"Too many at once. Wait {seconds} seconds."
        )
        response.headers["retry-after"] = str(seconds)
        return response
    if "@" not in address or len(address) > _LONGEST_ADDRESS:
        raise Invalid("Write your e-mail address, such as ada@example.org.")
    secret = Secret(runtime.settings.data_dir)
    sealed = await asyncio.to_thread(secret.encrypt, address)
    job = Job(service.BEGIN_LOGIN, LOCAL_ORGANIZATION, {"address": sealed}, most_attempts=3)
    await runtime.store.write(lambda tx: jobs.add(tx, job))
    return await render(request, _SENT, problem="")


@router.get("/ui/invitations")
@needs(ADMIN)
async def show_invitations(request: Request) -> Response:
    """Show a form for one person and one for many, and the invitations so far."""
    return await _list(request)


@router.post("/ui/invitations")
@needs(ADMIN)
async def invite(request: Request) -> Response:
    """Invite one person, or all people in a CSV file; the links are shown only this once."""
    async with request.form(max_files=1, max_fields=10) as form:
        file = form.get("file")
        content = await file.read() if isinstance(file, UploadFile) else b""
        fields = {name: text for name, text in form.items() if isinstance(text, str)}
    body: dict[str, Any] = {"mail": bool(fields.get("mail")), "csv": fields.get("csv", "").strip()}
    if content:
        body["csv"] = decoded(content)
    if not body["csv"]:
        body["people"] = [{name: fields.get(name, "").strip() for name in _PERSON}]
    try:
        invitations = await Api(request).ask("POST", "/v1/invitations", body)
    except RefusedByApi as error:
        return await _list(request, problem=str(error), fields=fields, status=error.status)
    return await _list(request, invitations=invitations)


@router.post("/ui/invitations/{invitation_id}/revoke")
@needs(ADMIN)
async def revoke(request: Request, invitation_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/invitations/{invitation_id}")
    return done(request, "/ui/invitations", "Revoked.")


async def _list(request: Request, *, status: int = 200, **variables: Any) -> Response:
    rows = await Api(request).get("/v1/invitations", limit=_MOST_SHOWN)
    defaults = {"problem": "", "fields": {}, "invitations": []}
    return await render(
        request,
        _INVITATIONS,
        status=status,
        rows=rows,
        can_mail=service.can_mail(NotificationSettings.current()),
        server=str(request.base_url).rstrip("/"),
        **(defaults | variables),
    )


async def _show(request: Request, page: str, token: str) -> Response:
    def read(tx: Transaction) -> User:
        return service.open_link(tx, token, _KINDS[page])[1]

    try:
        user = await request.app.state.runtime.store.read(read)
        _require_same_user(request, user)
    except (NotFound, Conflict) as error:
        return await _page(request, status=410, problem=str(error))
    except Forbidden as error:
        return await _page(request, status=403, problem=str(error), may_log_out=True)
    return await _page(request, user=user, token=token, action=page, kind=_KINDS[page])


async def _accept(request: Request, page: str) -> Response:
    form = await form_of(request)
    token = form.get("token", "")
    seconds = session_seconds(form.get(STAYS))
    authentication = request.app.state.authentication
    kind = _KINDS[page]

    def write(tx: Transaction) -> tuple[str, Scope, str]:
        _, user = service.open_link(tx, token, kind)
        _require_same_user(request, user)
        key, scope, link = service.accept(tx, token, kind, authentication.secret, seconds=seconds)
        return key, scope, service.landing_page(tx, link)

    try:
        key, scope, landing = await request.app.state.runtime.store.write(write)
    except (NotFound, Conflict) as error:
        return await _page(request, status=410, problem=str(error))
    request.scope[RECORDED_SCOPE] = scope
    response = done(request, landing)
    set_session(request, response, key, seconds)
    return response


def _require_same_user(request: Request, user: User) -> None:
    """Raise Forbidden if another user is logged in, since a link belongs to one user."""
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    if me is not None and me.key_id is not None and me.user_id != user.id:
        raise Forbidden("You are logged in as another user. Log out, and open the link again.")


async def _page(request: Request, *, status: int = 200, **variables: Any) -> Response:
    defaults = {
        "problem": "",
        "may_log_out": False,
        "user": None,
        "token": "",
        "action": "",
        "kind": "",
    }
    return await render_secret(request, _LINK, status=status, **(defaults | variables))
