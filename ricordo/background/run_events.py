"""Streams that nobody can read again any more are deleted, some hours after their run ended."""

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.runtime import Runtime
from ricordo.storage import run_events

EVERY = 600.0


async def prune_events(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Delete the events of runs that ended longer ago than the settings say, in portions."""
    before = runtime.store.clock.now() - round(runtime.settings.stream_hours * 3600 * SECOND)
    while await runtime.store.write(lambda tx: run_events.prune(tx, before)):
        pass


HANDLER = JobHandler("run_events", prune_events, every_seconds=EVERY)
