"""The jobs that keep the search index, and what waits for an owner, in order. A job that may be another server's by now
writes nothing more.
"""

from ricordo.background import spending
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.memory.approval import EXPIRY
from ricordo.runtime import Runtime
from ricordo.search.partitions import EMBED, SWEEP
from ricordo.search.rebuild import REEMBED, REINDEX
from ricordo.search.rebuild_jobs import reembed, reindex
from ricordo.search.schedule import FLUSH

SWEPT_EVERY = 600.0


async def _flush(runtime: Runtime, job: Job, report: Report) -> None:
    await runtime.indexing.fenced(job).flush(job, report)


async def _embed(runtime: Runtime, job: Job, report: Report) -> None:
    if not await spending.waits(runtime, job):
        async with spending.noted(runtime, job):
            await runtime.indexing.fenced(job).embed(job, report)


async def _sweep(runtime: Runtime, job: Job, report: Report) -> None:
    await runtime.indexing.fenced(job).sweep(job, report)


async def _reindex(runtime: Runtime, job: Job, report: Report) -> None:
    async with spending.noted(runtime, job):
        await reindex(runtime.indexing.fenced(job), job, report)


async def _reembed(runtime: Runtime, job: Job, report: Report) -> None:
    async with spending.noted(runtime, job):
        await reembed(runtime.indexing.fenced(job), job, report)


HANDLERS = (
    JobHandler(FLUSH, _flush),
    JobHandler(EMBED, _embed),
    JobHandler(SWEEP, _sweep, every_seconds=SWEPT_EVERY),
    JobHandler(REINDEX, _reindex),
    JobHandler(REEMBED, _reembed),
    EXPIRY,
)
