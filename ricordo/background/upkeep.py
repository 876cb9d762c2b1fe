"""The jobs that keep the search index, what waits for an owner, and stored streams in order.

What is embedded with a provider's model is noted among the expenses, and a budget postpones it. A job that may be another server's
by now writes nothing more.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ricordo.agents.budgets import put_off
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.usage import Expense, Usage
from ricordo.llm.embedding.remote import RemoteEmbedder, metered
from ricordo.memory.approval import EXPIRY
from ricordo.runtime import Runtime
from ricordo.search import partitions
from ricordo.search.indexer import Indexer
from ricordo.search.partitions import EMBED, SWEEP
from ricordo.search.rebuild import REEMBED, REINDEX, reembed, reindex
from ricordo.search.write_buffer import FLUSH
from ricordo.storage import runs

SWEPT_EVERY = 600.0
IndexWork = Callable[[Indexer, Job, Report], Awaitable[None]]


async def postponed(runtime: Runtime, job: Job) -> bool:
    """Postpone the job to the next day where it would spend tokens of a budget that is nearly used up; return whether it was."""
    owner_id = job.payload["owner_id"]
    home = await runtime.store.read(lambda tx: partitions.owner_of(tx, owner_id))
    handle = runtime.indexing.wanted_model(home.embedding) if home else None
    if handle is None or not isinstance(runtime.models.embedders.get(handle), RemoteEmbedder):
        return False
    return await put_off(runtime, job, _agent_of(job))


@asynccontextmanager
async def expenses_noted(runtime: Runtime, job: Job) -> AsyncIterator[None]:
    """Note among the expenses what is embedded inside of the `with`, also where it fails."""
    with metered() as tokens:
        try:
            yield
        finally:
            spent = [
                Expense(
                    job.organization_id,
                    "embedding",
                    handle,
                    Usage(count),
                    _agent_of(job),
                    job.user_id,
                )
                for handle, count in tokens.items()
            ]
            if spent:
                await runtime.store.write(lambda tx: runs.add_expense(tx, *spent))


def _agent_of(job: Job) -> str | None:
    owner_id: str = job.payload["owner_id"]
    return owner_id if owner_id.startswith("agent-") else None


def _indexing(kind: str, work: IndexWork, every_seconds: float | None = None) -> JobHandler:
    """Return the handler of jobs that do this work on the index, whose expenses are noted."""

    async def run(runtime: Runtime, job: Job, report: Report) -> None:
        if kind != EMBED or not await postponed(runtime, job):
            async with expenses_noted(runtime, job):
                await work(runtime.indexing.fenced(job), job, report)

    return JobHandler(kind, run, every_seconds)


async def prune_streams(runtime: Runtime, _job: Job, _report: Report) -> None:
    before = runtime.store.clock.now() - round(runtime.settings.stream_hours * 3600 * SECOND)
    while await runtime.store.write(lambda tx: runs.prune_events(tx, before)):
        pass


HANDLERS = (
    _indexing(FLUSH, Indexer.flush),
    _indexing(EMBED, Indexer.embed),
    _indexing(SWEEP, Indexer.sweep, SWEPT_EVERY),
    _indexing(REINDEX, reindex),
    _indexing(REEMBED, reembed),
    JobHandler("run_events", prune_streams, every_seconds=SWEPT_EVERY),
    EXPIRY,
)
