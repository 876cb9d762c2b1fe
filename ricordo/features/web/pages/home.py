"""The page at `/`: what waits for the caller, what was said last, and the agents; without a key where one is needed, the way in."""

import re
from typing import Any

from fastapi import Request, Response

from ricordo import __version__
from ricordo.api.routing import needs
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import ADMIN, REQUEST_SCOPE, Scope
from ricordo.features.web.pages import queries
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, base_of, done, form_of, render
from ricordo.runtime import Runtime
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Pages()
# The address is part of commands that people paste into a shell, so only what can be in a host and port may be repeated.
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
    """What needs the caller, or what this server is."""
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    if me is None:
        return await render(request, "welcome.html", version=__version__)
    runtime: Runtime = request.app.state.runtime

    def read(tx: Transaction) -> dict[str, Any]:
        may_read = me.may("messages:read", "messages:write")
        return {
            "proposals": queries.waiting(tx, me, Page(limit=_MOST_SHOWN, is_bounded=True))
            if me.may("memory:read")
            else [],
            "approvals": queries.recent_conversations(tx, me, _MOST_SHOWN, waits=True)
            if may_read
            else [],
            "conversations": queries.recent_conversations(tx, me, 10) if may_read else [],
        }

    found = await runtime.store.read(read)
    api = Api(request)
    model = runtime.models.default_handle()
    failed = await api.find("/v1/jobs/", statuses="failed", limit=5) if me.may(ADMIN) else None
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
        **found,
    )


@router.post("/ui/first")
@needs("agents:write")
async def say_first(request: Request) -> Response:
    """Make the first agent, say this to it, and go on in the chat."""
    form, api = await form_of(request), Api(request)
    agent = await api.ask("POST", "/v1/agents/", FIRST_AGENT)
    if words := form.get("message", "").strip():
        await api.ask(
            "POST",
            f"/v1/agents/{agent['id']}/messages",
            {"messages": [{"role": "user", "content": words}]},
        )
    return done(request, f"/ui/agents/{agent['id']}/chat")


def address_of_server(request: Request) -> str:
    """Return the address by which the browser knows this server, fit to be pasted into a shell."""
    host, settings = request.headers.get("host", ""), request.app.state.runtime.settings
    if not _HOST.fullmatch(host):
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        host = f"{name}:{settings.port}"
    return f"{request.url.scheme}://{host}{base_of(request)}"
