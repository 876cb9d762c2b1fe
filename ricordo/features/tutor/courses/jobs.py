"""The jobs that apply courses when their files change, and let users' blocks follow.

The first job runs at the start of the server and each minute. Unchanged files are skipped
if all agents of courses exist. But files with a fault are tried again every ten minutes, since a
missing tool or folder may exist now.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.features.tutor.courses.applying import (
    FOLLOW,
    Position,
    applied_course,
    follow_some,
)
from ricordo.features.tutor.courses.course_file import state_of
from ricordo.features.tutor.courses.service import apply_all, are_complete, folder_of
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

log = logging.getLogger(__name__)
_RETRY = 600 * SECOND


@dataclass(frozen=True, slots=True)
class _Look:
    """The state of the files when they were last applied, the logged faults, and the time."""

    runtime: Runtime
    files: tuple[tuple[str, int, int], ...]
    faults: frozenset[tuple[str, str]]
    at: int


class CourseWatch:
    """Applies courses when a file changed, and logs new faults."""

    def __init__(self) -> None:
        self._last: _Look | None = None

    async def run(self, runtime: Runtime, _job: Job, _report: Report) -> None:
        last = self._last if self._last and self._last.runtime is runtime else None
        files = await offload(lambda: state_of(folder_of(runtime)), SMALL + 1)
        now = runtime.store.clock.now()
        is_current = last is not None and last.files == files
        if last and last.faults and now >= last.at + _RETRY:
            is_current = False
        if is_current and await runtime.store.read(are_complete):
            return
        courses = await apply_all(runtime)
        faults = frozenset((course.name, course.fault) for course in courses if course.fault)
        for name, fault in sorted(faults - (last.faults if last else frozenset())):
            log.warning("a course file has errors: %s", fault, extra={"course": name})
        self._last = _Look(runtime, files, faults, now)


async def follow(runtime: Runtime, job: Job, report: Report) -> None:
    """Let the remaining users' blocks follow a change of a course, in portions.

    The position is saved with each portion, so a killed job continues there.

    Args:
        runtime: The running server.
        job: The job, with the course in its new and its former form.
        report: Gets the number of portions.
    """
    name = job.payload["name"]
    course = applied_course(job.payload["source"], name)
    old_course = applied_course(job.payload["old_source"], name)
    if course is None or old_course is None:
        return  # this version of Ricordo has other rules for courses
    store = FencedStore(runtime.store, job)
    position = job.payload["position"]
    count = 0
    while position is not None:

        def work(tx: Transaction, begins: Sequence[int] = position) -> Position | None:
            following = follow_some(tx, course, old_course, (begins[0], begins[1]))
            payload = {**job.payload, "position": following}
            jobs.save_payload(tx, replace(job, payload=payload))
            return following

        position = await store.write(work)
        count += 1
        report(count, count)


HANDLERS = (
    JobHandler("courses.apply", CourseWatch().run, every_seconds=60),
    JobHandler(FOLLOW, follow),
)
