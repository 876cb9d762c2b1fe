"""Deleting agents, archives, threads and messages, however many rows they have: gone at once for everyone, removed in portions.

Between two portions other writers have their turn. What a kill interrupts is finished by the job that began with it.
"""

import logging

from ricordo.agents.run_end import close_run
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError
from ricordo.runtime import Runtime
from ricordo.search import partitions
from ricordo.search.dropping import models_of
from ricordo.storage import conversations, gone, runs
from ricordo.storage.store import Transaction

log = logging.getLogger(__name__)


async def remove_archive(runtime: Runtime, scope: Scope, archive_id: str) -> None:
    """Delete the archive with its passages; agents lose it at once. Raises NotFound."""
    await runtime.store.write(lambda tx: gone.hide_archive(tx, scope, archive_id))
    await _try_to_remove(runtime, "archive", archive_id)


async def remove_agent(runtime: Runtime, scope: Scope, agent_id: str) -> None:
    """Delete the agent with its threads, messages, runs and steps; it is found no more at once. Raises NotFound."""
    await runtime.store.write(lambda tx: gone.hide_agent(tx, scope, agent_id))
    await _try_to_remove(runtime, "agent", agent_id)


async def remove_thread(runtime: Runtime, scope: Scope, conversation_id: str) -> None:
    """Delete the thread; what its forks share of it stays with them. Raises NotFound, Conflict for an agent's own thread.

    A turn that still runs in it is closed, and its task finds its lease gone: whoever can stop it should do so before.
    """

    def hide(tx: Transaction) -> None:
        conversations.lock(tx, conversation_id)
        conversations.require(tx, scope, conversation_id)
        for run in runs.open_runs(tx, conversation_id=conversation_id):
            close_run(tx, run, "cancelled")
        gone.hide_thread(tx, scope, conversation_id)

    await runtime.store.write(hide)
    await _try_to_remove(runtime, "thread", conversation_id)


async def remove(runtime: Runtime, kind: gone.Kind, owner_id: str, newest: int = 0) -> None:
    """Remove what belongs to a hidden owner, or a conversation's messages with a seq up to `newest`, to the last row."""
    if kind in ("agent", "archive"):
        await drop_outside(runtime, owner_id)
    while await runtime.store.write(lambda tx: gone.remove_portion(tx, kind, owner_id, newest)):
        pass


async def _try_to_remove(runtime: Runtime, kind: gone.Kind, owner_id: str) -> None:
    try:
        await remove(runtime, kind, owner_id)
    except RicordoError as error:
        # It is gone for everyone, which is what was asked for; the job removes the rest once that is possible again.
        log.warning("removal will go on later", extra={"owner": owner_id, "reason": str(error)})


async def drop_outside(runtime: Runtime, owner_id: str) -> None:
    """Delete the vectors of an agent or archive from an outside index, where they are in one."""
    models = await runtime.store.read(lambda tx: models_of(tx, owner_id)) if runtime.indexes else []
    if not models:
        return
    home = await runtime.store.read(lambda tx: partitions.home_of(tx, owner_id))
    index = runtime.indexes.get((home.vector_db if home else None) or runtime.indexing.messages_index or "")
    if index is not None:
        for model in models:
            await index.drop(owner_id, model)


async def _finish(runtime: Runtime, job: Job, _report: Report) -> None:
    await remove(runtime, job.payload["kind"], job.payload["id"], job.payload["newest"])


HANDLER = JobHandler(gone.REMOVAL, _finish)
