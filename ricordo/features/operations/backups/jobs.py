"""The job that writes a backup into the data folder.

It may be killed at any time and run again.
"""

import asyncio
from threading import Event
from typing import Any

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Unavailable
from ricordo.features.operations.backups import service
from ricordo.runtime import Runtime

MAKE = "backups.make"
# Attempts of a backup. More would not help, for example if the disk is full.
ATTEMPTS = 2


async def make(runtime: Runtime, job: Job, report: Report) -> None:
    """Write the backup that the job names, in a separate thread.

    The file appears only when it is complete. An existing file is left as it is.

    Args:
        runtime: The running server.
        job: The job. `name` in its payload is the file's name in the folder of backups.
        report: Gets the number of copied or compared rows of one table, and the number of all rows
            of that table.

    Raises:
        Conflict, NotFound, Unavailable: as `service.back_up` does. Unavailable also if the job was
            cancelled.
    """
    target = service.folder_of(runtime.settings) / job.payload["name"]
    is_cancelled = Event()

    def report_rows(_phase: str, _table: str, count: int, total: int) -> None:
        if is_cancelled.is_set():
            raise Unavailable("The backup was cancelled. Start another one.")
        report(count, total)

    def work() -> Any:
        return service.back_up(runtime.settings, target, report_rows)

    if target.exists():  # the server was killed after the last step
        return
    try:
        await asyncio.to_thread(work)
    except asyncio.CancelledError:
        is_cancelled.set()
        raise


HANDLERS = (JobHandler(MAKE, make),)
