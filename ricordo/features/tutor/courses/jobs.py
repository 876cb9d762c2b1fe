"""Courses are applied as the server starts, and within a minute of a change of a file."""

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.features.tutor.courses.service import apply_all
from ricordo.runtime import Runtime


async def run(runtime: Runtime, _job: Job, _report: Report) -> None:
    await apply_all(runtime)


HANDLERS = (JobHandler("courses.apply", run, every_seconds=60),)
