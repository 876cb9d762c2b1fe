"""Syncing a user's workspace and memory with Open WebUI at once, and how the last sync went."""

import asyncio
from typing import Literal

from ricordo.api.call import RequestContext, for_user
from ricordo.api.models.base import Json, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.clock import SECOND
from ricordo.domain.remote import Access, Remote
from ricordo.errors import Conflict, Invalid
from ricordo.features.openwebui.mirror import queries, sync
from ricordo.features.openwebui.mirror.options import OpenWebUISettings
from ricordo.features.sync.remotes import queries as remotes
from ricordo.features.sync.remotes import service
from ricordo.memory.user_memory import open_memory
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/workspace/sync", tags=["workspaces"], scope="memory")
_WAITS = 30 * SECOND
_PAUSE = 0.1


class OpenWebUISyncResponse(ResponseModel):
    """How a sync went: how many files and notes are the same on both sides, and what could not be brought together."""

    status: Literal["synced", "waiting"]
    files: int
    notes: int
    problem: str | None
    last_at: Timestamp | None


@router.get("", response_model=OpenWebUISyncResponse)
async def show(context: RequestContext, user_id: str) -> Json:
    """How the last sync of the user's workspace and memory with Open WebUI went."""
    context = await for_user(context, user_id, reads=True)
    return await context.store.read(lambda tx: _shown(tx, _remote(tx, context), 0))


@router.post("", response_model=OpenWebUISyncResponse)
async def sync_now(context: RequestContext, user_id: str) -> Json:
    """Sync the user's workspace and memory with Open WebUI now; where it takes long, it goes on in the background."""
    context = await for_user(context, user_id)
    begun = context.store.clock.now()
    if await context.store.read(lambda tx: _remote(tx, context)) is None:
        await _add(context)

    def ask(tx: Transaction) -> None:
        if (remote := _remote(tx, context)) and jobs.add(tx, job := remote.job()) is None:
            jobs.make_due(tx, job.kind, job.key or "")

    await context.store.write(ask)
    while True:
        shown = await context.store.read(lambda tx: _shown(tx, _remote(tx, context), begun))
        if shown["status"] == "synced" or context.store.clock.now() > begun + _WAITS:
            return shown
        await asyncio.sleep(_PAUSE)


async def _add(context: RequestContext) -> None:
    """Make Open WebUI a remote of the user's memory. Raises Invalid where it cannot be."""
    url, kind, user = (
        OpenWebUISettings().openwebui_url,
        context.runtime.remotes[sync.KIND],
        context.scope.subject or "",
    )
    if url is None:
        raise Invalid(
            "This server does not know Open WebUI. Set RICORDO_OPENWEBUI_URL and RICORDO_OPENWEBUI_API_KEY."
        )
    found = await context.store.read(lambda tx: open_memory(tx, context.scope, user).user)
    sync.id_there(found)
    try:
        await service.add(
            context.store, context.runtime.settings, context.scope, user, kind, Access(url)
        )
    except Conflict:
        if (
            await context.store.read(lambda tx: _remote(tx, context)) is None
        ):  # else it was added by itself a moment ago
            raise


def _remote(tx: Transaction, context: RequestContext) -> Remote | None:
    chain = open_memory(tx, context.scope, context.scope.subject or "").chain
    return next((one for one in remotes.of_chain(tx, chain.id) if one.kind == sync.KIND), None)


def _shown(tx: Transaction, remote: Remote | None, since: int) -> Json:
    if remote is None:
        return OpenWebUISyncResponse.of(
            None, status="waiting", files=0, notes=0, problem=None, last_at=None
        )
    files, notes = (queries.of_remote(tx, remote.id, kind) for kind in ("file", "note"))
    is_done = remote.last_at is not None and remote.last_at >= since
    return OpenWebUISyncResponse.of(
        remote,
        status="synced" if is_done else "waiting",
        files=sum(1 for item in files if item.there_id),
        notes=len(notes),
        problem=remote.last_error,
    )
