"""The job that applies courses when their files change.

The job runs at the start of the server and each minute. Unchanged files are skipped, except files
with a fault, since a missing tool or folder may exist now.
"""

import logging
from dataclasses import dataclass

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.features.tutor.courses.course_file import state_of
from ricordo.features.tutor.courses.service import apply_all, are_complete, folder_of
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime

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


HANDLERS = (JobHandler("courses.apply", CourseWatch().run, every_seconds=60),)
