"""The jobs of remotes: one syncs a remote, a sweep finds those that no write of memory has woken.

The transaction that changes a memory adds the job of its remotes (`storage/versions.py`). The sweep is for what changes without
that: what the owner commits at the remote, titles, proposals that expire, and remotes that could not be reached for long.
"""

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import SYNC
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, LeaseLost, NotFound
from ricordo.features.remotes import queries
from ricordo.features.remotes.service import note_error, sync
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

SWEEP = "memory_remotes_sweep"
EVERY = 60.0  # seconds between sweeps
_SYNC_AFTER = 600 * SECOND


async def _sync(runtime: Runtime, job: Job, _report: Report) -> None:
    scope, remote_id = Scope(job.organization_id), job.payload["remote_id"]
    try:
        remote = await runtime.store.read(lambda tx: queries.get(tx, scope, remote_id))
    except NotFound:
        return  # it was removed, or its user was erased
    kind = runtime.remotes.get(remote.kind)
    if kind is None:
        missing = Invalid(f'There are no remotes of the kind "{remote.kind}" here. Install its plugin, or remove it.')
        await runtime.store.write(lambda tx: note_error(tx, remote, str(missing), tx.clock.now()))
        raise missing
    try:
        await sync(FencedStore(runtime.store, job), runtime.settings, kind, remote)
    except LeaseLost:
        # A server that froze in the middle may have written something older there since: the next job syncs once more.
        await runtime.store.write(lambda tx: jobs.add(tx, remote.job()))
        raise


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in queries.due(tx, list(runtime.remotes), tx.clock.now() - _SYNC_AFTER):
            jobs.add(tx, remote.job())

    await runtime.store.write(work)


HANDLERS = (JobHandler(SYNC, _sync), JobHandler(SWEEP, _sweep, every_seconds=EVERY))
