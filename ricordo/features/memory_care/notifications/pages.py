"""The page of a one-time link. Opening the page changes nothing; its form decides.

So programs that fetch links for a preview do not decide anything.
"""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope, User
from ricordo.domain.version import Proposal
from ricordo.errors import Forbidden, Invalid
from ricordo.features.memory_care.notifications import service
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.memory.approval import Conflicted
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, done, form_of, render, render_secret, typed_number
from ricordo.storage.engine.store import Transaction

router = Pages(scope="memory", open_paths=("/decide",))
_TEMPLATE = "memory_care.notifications/decide.html"
_CHOICES = "memory_care.notifications/notifications.html"
_FIELDS = ("email", "webhook", "webhook_url", "hour")
_LONGEST_REASON = 2_000


@router.get("/decide")
@needs()
async def show_decision(request: Request, token: str = "") -> Response:
    """Show the proposal of a link, with a form for the decision."""

    def read(tx: Transaction) -> tuple[User, Proposal]:
        _, user, proposal = service.open_link(tx, token)
        _require_owner(request, user)
        return user, proposal

    user, proposal = await request.app.state.runtime.store.read(read)
    return await _page(request, user=user, proposal=proposal, token=token)


@router.post("/decide")
@needs()
async def decide(request: Request) -> Response:
    """Approve or reject the link's proposal, once."""
    form = await form_of(request)
    token, decision = form.get("token", ""), form.get("decision", "")
    if decision not in ("approve", "reject"):
        raise Invalid("Choose whether to approve or to reject.")
    reason = form.get("reason", "").strip()[:_LONGEST_REASON] or None

    def write(tx: Transaction) -> tuple[User, Proposal, str | None]:
        _, user, proposal = service.open_link(tx, token)
        _require_owner(request, user)
        outcome = service.decide(tx, token, decision, reason)
        if isinstance(outcome, Conflicted):
            return user, outcome.proposal, outcome.proposal.note
        return user, proposal, None

    user, proposal, conflict = await request.app.state.runtime.store.write(write)
    if conflict:
        return await _page(
            request, status=409, user=user, proposal=proposal, token=token, conflict=conflict
        )
    decided = "Approved" if decision == "approve" else "Rejected"
    return await _page(request, user=user, proposal=proposal, token="", decided=decided)


@router.get("/ui/notifications")
async def show_choices(request: Request) -> Response:
    """Show the caller's choices for notifications of waiting proposals."""
    choice = None
    if not _is_program(request):
        choice = await Api(request).get(_address(request))
    return await render(request, _CHOICES, choice=choice, has_mail=_has_mail())


@router.post("/ui/notifications")
@needs("memory:approve", "memory:override")
async def save_choices(request: Request) -> Response:
    """Save the caller's choices for notifications of waiting proposals."""
    if _is_program(request):
        raise Forbidden(
            "This key belongs to a program, and programs get no notifications. Log in as a user."
        )
    form = await form_of(request)
    choice = {name: typed_number(form[name]) for name in _FIELDS if name in form}
    await Api(request).ask("PATCH", _address(request), choice)
    return done(request, "/ui/notifications", "Saved.")


def _is_program(request: Request) -> bool:
    me: Scope = request.scope[REQUEST_SCOPE]
    return me.role == "service"


def _address(request: Request) -> str:
    me: Scope = request.scope[REQUEST_SCOPE]
    if not me.may("memory:read"):
        raise Forbidden("This key lacks the scope memory:read, which this page needs.")
    return f"/users/{me.user_id}/notifications"


def _has_mail() -> bool:
    return NotificationSettings.current().smtp_host is not None


def _require_owner(request: Request, user: User) -> None:
    """Raise Forbidden if another user is logged in, since the link is bound to its owner."""
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    if me is not None and me.key_id is not None and me.subject_id not in (None, user.id):
        raise Forbidden("This link is for another user. Log out, then open it again.")


async def _page(request: Request, *, status: int = 200, **variables: Any) -> Response:
    defaults = {"decided": "", "conflict": ""}
    return await render_secret(request, _TEMPLATE, status=status, **(defaults | variables))
