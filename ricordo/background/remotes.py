"""The jobs of remotes: one brings a remote and its memory together, one finds those that nobody woke.

A remote's job is added by the transaction that changes its memory (see storage/remotes.py). The sweep is for what changes without
that: what the owner commits at the remote, titles, proposals whose time is over, and remotes that could not be reached for long.
"""

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import FOLLOW
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, LeaseLost, NotFound
from ricordo.memory.remotes import follow, note_error
from ricordo.runtime import Runtime
from ricordo.storage import jobs, remotes
from ricordo.storage.fenced import FencedStore
from ricordo.storage.store import Transaction

SWEEP = "memory_remotes_sweep"
EVERY = 60.0  # seconds between sweeps
_LOOK_AFTER = 600 * SECOND


async def _follow(runtime: Runtime, job: Job, _report: Report) -> None:
    try:
        remote = await runtime.store.read(
            lambda tx: remotes.get(tx, Scope(job.organization_id), job.payload["remote_id"])
        )
    except NotFound:
        return  # it was taken away, or its user was forgotten
    kind = runtime.remotes.get(remote.kind)
    if kind is None:
        missing = Invalid(
            f'Nothing here follows remotes of the kind "{remote.kind}". Install its plugin, or remove it.'
        )
        await runtime.store.write(lambda tx: note_error(tx, remote, str(missing), tx.clock.now()))
        raise missing
    try:
        await follow(FencedStore(runtime.store, job), runtime.settings, kind, remote)
    except LeaseLost:
        # Frozen in the middle, it may have written something older there since: whoever is next looks once more.
        await runtime.store.write(lambda tx: jobs.add(tx, remote.job()))
        raise


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in remotes.due(tx, list(runtime.remotes), tx.clock.now() - _LOOK_AFTER):
            jobs.add(tx, remote.job())

    await runtime.store.write(work)


HANDLERS = (JobHandler(FOLLOW, _follow), JobHandler(SWEEP, _sweep, every_seconds=EVERY))
