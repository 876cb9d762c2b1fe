"""The page at `/`: waiting decisions, recent conversations, and agents.

A caller who lacks a required key gets the login.
"""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from ricordo import __version__
from ricordo.api.routing import needs
from ricordo.domain.ids import new_id
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import ADMIN, REQUEST_SCOPE, Scope
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.chat import own_conversation
from ricordo.features.web.pages.login import login_form
from ricordo.features.web.pages.memory_rules import put_off_of
from ricordo.features.web.pages.suggestions import divided, joined
from ricordo.pages.inside import Api
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.navigation import first_page
from ricordo.pages.shell import Pages, address_of, base_of, done, form_of, render, require_id
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.storage import conversation_overviews, proposals, versions
from ricordo.storage.conversation_overviews import RecentConversation
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Pages()
# People copy commands with this address into a shell, so it may only contain characters of a host
# and port.
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_MOST_SHOWN = 20
_MOST_LINES = 6  # lines of the caller's memory
FIRST_AGENT = {
    "name": "Companion",
    "memory_blocks": [
        {"label": "persona", "value": "I am a helpful companion. I remember what people tell me."},
        {"label": "human", "value": ""},
    ],
}


@router.get("/")
@needs()
async def show_home(request: Request) -> Response:
    """Show the caller's open decisions, memory and conversations, or the login."""
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    if me is None:
        return await render(
            request,
            "login.html",
            **login_form(request, "/") | {"version": __version__, "is_first": True},
        )
    runtime: Runtime = request.app.state.runtime
    if first := first_page(me, runtime.plugins.pages()):
        return done(request, first)
    lists = await runtime.store.read(lambda tx: _lists(tx, me, runtime.plugins))
    suggestions = joined(lists.pop("waiting"), {}, is_self=True)
    now, later = divided(suggestions, put_off_of(request))
    api = Api(request)
    model = runtime.models.default_handle()
    failed = None
    if me.may(ADMIN):
        failed = await api.find("/v1/jobs/", statuses="failed", limit=5)
    return await render(
        request,
        "home.html",
        version=__version__,
        agents=await api.find("/v1/agents/", limit=12) or [],
        failed=failed or [],
        model=model,
        is_librarian=model == LIBRARIAN,
        address=address_of_server(request),
        needs_key=me.key_id is not None,
        suggestions=now,
        later=later,
        may_decide=me.may("memory:approve", "memory:override"),
        may_say=me.may("messages:write"),
        otid=new_id("otid"),
        **lists,
    )


def _lists(tx: Transaction, me: Scope, plugins: Plugins) -> dict[str, Any]:
    """Read the lists of the page.

    They are the caller's memory and proposals, the numbers of changes that wait for other owners of
    memory, and the recent and the waiting conversations. Texts of proposals are read only for the
    caller's memory.
    """
    lists: dict[str, Any] = {
        "owner": None,
        "waiting": [],
        "own_total": 0,
        "also_waiting": [],
        "sources": {},
        "lines": [],
        "counts": [],
        "approvals": [],
        "conversations": [],
        "last": None,
        "partner": None,
    }
    if me.may("memory:read"):
        lists |= _own_memory(tx, me)
        user_id = me.subject or me.user_id
        lists["also_waiting"] = plugins.waiting(tx, me.organization_id, user_id)
        if me.subject_id is None:
            lists["counts"] = queries.waiting_by_owner(tx, me, _MOST_SHOWN, without=me.user_id)
    if me.may("messages:read", "messages:write") and me.may("agents:read"):
        recent = conversation_overviews.recent_conversations(tx, me, 10)
        lists["last"] = _last_own(tx, me, recent)
        lists["partner"] = _partner(me, lists["last"], recent)
        lists["conversations"] = [one for one in recent if one is not lists["last"]]
        lists["approvals"] = conversation_overviews.recent_conversations(
            tx, me, _MOST_SHOWN, waits=True
        )
    lists["own_shown"] = len(lists["waiting"])
    return lists


def _last_own(
    tx: Transaction, me: Scope, recent: Sequence[RecentConversation]
) -> RecentConversation | None:
    """Return the caller's conversation with the newest message."""
    user_id = me.subject or me.user_id
    newest = next((one for one in recent if one.user_id == user_id), None)
    if newest or me.subject_id is not None:
        return newest
    # The newest conversations may all belong to others, so read the caller's last one separately.
    return next(iter(conversation_overviews.recent_conversations(tx, me, 1, is_own=True)), None)


def _partner(
    me: Scope, last: RecentConversation | None, recent: Sequence[RecentConversation]
) -> RecentConversation | None:
    """Return the conversation with the agent that the caller last talked with.

    On a server without keys, conversations without a user belong to the local user too, since this
    user's programs begin them.
    """
    if not me.is_local_user:
        return last
    talks = [one for one in recent if one.user_id is None]
    candidates = [*talks[:1], *([last] if last else [])]
    return max(candidates, key=lambda talk: talk.last_message_at or 0, default=None)


def _own_memory(tx: Transaction, me: Scope) -> dict[str, Any]:
    """Read the caller's memory in a few lines, and its proposals."""
    user_id = me.subject or me.user_id
    chain = versions.of_owner(tx, me, "user", user_id)
    if chain is None:
        return {}
    page = Page(limit=_MOST_SHOWN, is_bounded=True)
    waiting = queries.waiting(tx, me, page, ProposalFilter(chain_id=chain.id, waits=True))
    return {
        "owner": MemoryOwner("user", user_id, me.user_name),
        "waiting": waiting,
        "own_total": sum(proposals.waiting_counts(tx, chain.id).values()),
        "sources": queries.messages_of_runs(tx, me, [member.proposal.run_id for member in waiting]),
        "lines": queries.first_lines(tx, chain.id, _MOST_LINES),
    }


@router.post("/ui/say")
@needs("messages:write")
async def say(request: Request) -> Response:
    """Send a message from the home page, and show the chat.

    It continues the conversation in the form, or else the caller's own with the agent, which is
    created if it is missing.
    """
    form = await form_of(request)
    api = Api(request)
    agent_id = require_id(form.get("agent", ""), "agent")
    conversation_id = form.get("conversation", "")
    if conversation_id:
        conversation_id = require_id(conversation_id, "conv")
    else:
        conversation_id = await own_conversation(request, agent_id)
    page = address_of(f"/ui/agents/{agent_id}/chat", conversation=conversation_id)
    if text := form.get("message", "").strip():
        message = {"role": "user", "content": text, "otid": form.get("otid") or new_id("otid")}
        sent = {"messages": [message], "streaming": False, "agent_id": agent_id}
        await api.ask("POST", f"/v1/conversations/{conversation_id}/messages", sent)
        return done(request, f"{page}#end")
    return done(request, page, "Write something first.")


@router.post("/ui/first")
@needs("agents:write")
async def say_first(request: Request) -> Response:
    """Create the first agent, send it this message, and show the chat."""
    form = await form_of(request)
    api = Api(request)
    agent = await api.ask("POST", "/v1/agents/", FIRST_AGENT)
    if text := form.get("message", "").strip():
        conversation_id = await own_conversation(request, agent["id"])
        await api.ask(
            "POST",
            f"/v1/conversations/{conversation_id}/messages",
            {"messages": [{"role": "user", "content": text}], "streaming": False},
        )
    return done(request, f"/ui/agents/{agent['id']}/chat")


def address_of_server(request: Request) -> str:
    """Return this server's address as the browser knows it, safe for use in a shell."""
    host = request.headers.get("host", "")
    settings = request.app.state.runtime.settings
    if not _HOST.fullmatch(host):
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        host = f"{name}:{settings.port}"
    return f"{request.url.scheme}://{host}{base_of(request)}"
