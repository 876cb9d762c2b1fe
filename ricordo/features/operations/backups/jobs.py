"""The job that makes a backup in the data folder. It may be killed anywhere and run again."""

import asyncio
from threading import Event
from typing import Any

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Unavailable
from ricordo.features.operations.backups import service
from ricordo.runtime import Runtime

MAKE = "backups.make"
# How often a backup that failed is tried: a full disk does not empty itself.
ATTEMPTS = 2


async def make(runtime: Runtime, job: Job, report: Report) -> None:
    """Write the backup that the job names, whole or not at all, in a thread of its own."""
    target, is_cancelled = service.folder_of(runtime.settings) / job.payload["name"], Event()

    def tell(_phase: str, _table: str, done: int, total: int) -> None:
        if is_cancelled.is_set():
            raise Unavailable("The backup was cancelled. Begin another one.")
        report(done, total)

    def work() -> Any:
        return service.back_up(runtime.settings, target, tell)

    if target.exists():  # the server was killed behind the last step
        return
    try:
        await asyncio.to_thread(work)
    except asyncio.CancelledError:
        is_cancelled.set()
        raise


HANDLERS = (JobHandler(MAKE, make),)
