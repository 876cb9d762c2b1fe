"""Sync a user's workspace and memory with Open WebUI at once, over HTTP."""

import asyncio
from typing import Literal

from ricordo.api.call import RequestContext, for_user
from ricordo.api.models.base import ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.clock import SECOND
from ricordo.domain.remote import Access, Remote
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid
from ricordo.features.openwebui.mirror import queries, sync
from ricordo.features.openwebui.mirror.options import OpenWebUISettings
from ricordo.features.sync.remotes import service
from ricordo.memory.user_memory import open_memory
from ricordo.storage import jobs, remotes
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/workspace/sync", tags=["workspaces"], scope="memory")
_WAITS = 30 * SECOND
_PAUSE = 0.1


class OpenWebUISyncResponse(ResponseModel):
    """The outcome of a sync: counts of synced files and notes, and a problem."""

    status: Literal["synced", "waiting"]
    files: int
    notes: int
    problem: str | None
    last_at: Timestamp | None


@router.get("", response_model=OpenWebUISyncResponse)
async def show(context: RequestContext, user_id: str) -> Json:
    """Return the outcome of the user's last sync with Open WebUI."""
    context = await for_user(context, user_id, reads=True)
    return await context.store.read(lambda tx: _outcome(tx, _remote(tx, context), 0))


@router.post("", response_model=OpenWebUISyncResponse)
async def sync_now(context: RequestContext, user_id: str) -> Json:
    """Sync the user's workspace and memory with Open WebUI now.

    A long sync continues in the background.
    """
    context = await for_user(context, user_id)
    started_at = context.store.clock.now()
    if await context.store.read(lambda tx: _remote(tx, context)) is None:
        await _add(context)

    def add_job(tx: Transaction) -> None:
        remote = _remote(tx, context)
        if remote is None:
            return
        job = remote.job()
        if jobs.add(tx, job) is None:
            jobs.make_due(tx, job.kind, job.key or "")

    await context.store.write(add_job)
    while True:
        outcome = await context.store.read(
            lambda tx: _outcome(tx, _remote(tx, context), started_at)
        )
        is_late = context.store.clock.now() > started_at + _WAITS
        if outcome["status"] == "synced" or is_late:
            return outcome
        await asyncio.sleep(_PAUSE)


async def _add(context: RequestContext) -> None:
    """Add Open WebUI as a remote of the user's memory.

    Raises Invalid without settings, or for a user that Open WebUI does not have.
    """
    url = OpenWebUISettings().openwebui_url
    kind = context.runtime.remotes[sync.KIND]
    user_id = context.scope.subject or ""
    if url is None:
        raise Invalid(
            "This server is not connected to Open WebUI. Set RICORDO_OPENWEBUI_URL and "
            "RICORDO_OPENWEBUI_API_KEY."
        )
    user = await context.store.read(lambda tx: open_memory(tx, context.scope, user_id).user)
    sync.id_there(user)
    try:
        await service.add(
            context.store,
            context.runtime.settings,
            scope=context.scope,
            user_name=user_id,
            kind=kind,
            requested=Access(url),
        )
    except Conflict:
        # The periodic job may have just added it.
        if await context.store.read(lambda tx: _remote(tx, context)) is None:
            raise


def _remote(tx: Transaction, context: RequestContext) -> Remote | None:
    chain = open_memory(tx, context.scope, context.scope.subject or "").chain
    for remote in remotes.of_chain(tx, chain.id):
        if remote.kind == sync.KIND:
            return remote
    return None


def _outcome(tx: Transaction, remote: Remote | None, since: int) -> Json:
    if remote is None:
        return OpenWebUISyncResponse.of(
            None, status="waiting", files=0, notes=0, problem=None, last_at=None
        )
    files = queries.of_remote(tx, remote.id, "file")
    notes = queries.of_remote(tx, remote.id, "note")
    is_done = remote.last_at is not None and remote.last_at >= since
    return OpenWebUISyncResponse.of(
        remote,
        status="synced" if is_done else "waiting",
        files=sum(1 for item in files if item.there_id),
        notes=len(notes),
        problem=remote.last_error,
    )
