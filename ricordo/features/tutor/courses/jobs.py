"""The job that applies courses.

It runs when the server starts and each minute, so a changed file is applied within a minute.
"""

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.features.tutor.courses.service import apply_all
from ricordo.runtime import Runtime


async def run(runtime: Runtime, _job: Job, _report: Report) -> None:
    await apply_all(runtime)


HANDLERS = (JobHandler("courses.apply", run, every_seconds=60),)
