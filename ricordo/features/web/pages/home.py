"""The page at `/`: waiting decisions, recent conversations, and agents.

A caller without a needed key gets the way in.
"""

import re
from typing import Any

from fastapi import Request, Response

from ricordo import __version__
from ricordo.api.routing import needs
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import ADMIN, REQUEST_SCOPE, Scope
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.chat import own_conversation
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, base_of, done, form_of, render
from ricordo.runtime import Runtime
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Pages()
# People paste the address into a shell as part of commands, so only the characters of a host and
# port are repeated.
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_MOST_SHOWN = 20
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
    """Show the caller's open decisions, or a description of this server."""
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    if me is None:
        return await render(request, "welcome.html", version=__version__)
    runtime: Runtime = request.app.state.runtime

    def read(tx: Transaction) -> dict[str, Any]:
        lists: dict[str, Any] = {"proposals": [], "approvals": [], "conversations": []}
        if me.may("memory:read"):
            page = Page(limit=_MOST_SHOWN, is_bounded=True)
            lists["proposals"] = queries.waiting(tx, me, page)
        if me.may("messages:read", "messages:write"):
            lists["approvals"] = queries.recent_conversations(tx, me, _MOST_SHOWN, waits=True)
            lists["conversations"] = queries.recent_conversations(tx, me, 10)
        return lists

    lists = await runtime.store.read(read)
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
        **lists,
    )


@router.post("/ui/first")
@needs("agents:write")
async def say_first(request: Request) -> Response:
    """Make the first agent, send it this message, and show the chat."""
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
    """Return the browser's address of this server, safe in a shell."""
    host = request.headers.get("host", "")
    settings = request.app.state.runtime.settings
    if not _HOST.fullmatch(host):
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        host = f"{name}:{settings.port}"
    return f"{request.url.scheme}://{host}{base_of(request)}"
