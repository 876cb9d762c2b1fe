"""The job that deletes old evidence of skills. The student and the course set the age."""

from functools import partial

from ricordo.domain.clock import DAY
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import SCOPE, applied_course
from ricordo.features.tutor.courses.course_file import Course
from ricordo.features.tutor.learning import queries, service
from ricordo.runtime import Runtime
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

_EVERY_SECONDS = 3600


async def retain(runtime: Runtime, _job: Job, report: Report) -> None:
    """Delete old evidence of each student of each course with skills.

    Args:
        runtime: The running server.
        _job: The periodic job; it is not used.
        report: Counts the pairs of course and student that are done.
    """
    aged = await runtime.store.read(students_with_old_evidence)
    for number, (course, user_id) in enumerate(aged, 1):
        await runtime.store.write(partial(_retain, course=course, user_id=user_id))
        report(number, len(aged))


def students_with_old_evidence(tx: Transaction) -> list[tuple[Course, str]]:
    """Return pairs of course and student where some evidence is too old.

    Args:
        tx: The transaction, or a read.
    """
    aged = []
    for stored in courses.all_courses(tx, SCOPE):
        course = applied_course(stored.source, stored.name)
        if course is None or not course.skills:
            continue
        choices = queries.choices_of_course(tx, SCOPE.organization_id, course.name)
        oldest = queries.oldest_by_student(tx, SCOPE.organization_id, course.name)
        for user_id, said_at in oldest.items():
            choice = choices.get(user_id)
            bounds = (choice.retention_days if choice else None, course.retention_days)
            days = min((bound for bound in bounds if bound is not None), default=None)
            if days is not None and said_at < tx.clock.now() - days * DAY:
                aged.append((course, user_id))
    return aged


def _retain(tx: Transaction, course: Course, user_id: str) -> int:
    user = users.find(tx, Scope(SCOPE.organization_id), user_id)
    if user is None:  # erased meanwhile
        return 0
    learner = service.learner_of(tx, user, course)
    days = service.kept_days(learner)
    return service.remove_older(tx, learner, tx.clock.now() - days * DAY) if days else 0


HANDLERS = (JobHandler("learning.retain", retain, every_seconds=_EVERY_SECONDS),)
