"""Figures about students of a course, and the blocks that teachers may see.

These queries give a teacher's key names, times and counts of other people. The only texts are
blocks that `seen_blocks` returns. Skills that students share are read by `learning.service`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select

from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Scope, User
from ricordo.errors import Forbidden
from ricordo.features.tutor.courses.applying import TEACHERS_SEE
from ricordo.features.tutor.courses.course_file import CourseBlock
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.features.tutor.tasks.queries import task_runs, tasks
from ricordo.storage import activity, blocks, proposals, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

# Failed tasks within this period are counted.
_FAILURE_PERIOD = 30 * 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class Student:
    """A user who talked with an agent of the course.

    `open_proposals` counts the proposals of the course's agents, `failed_tasks` the tasks that
    failed in the last thirty days.
    """

    user: User
    last_active_at: int | None
    open_proposals: int
    failed_tasks: int


def require_teacher(scope: Scope) -> Scope:
    """Return the scope in which an organization's students are read.

    A call on behalf of one user is refused for any key, since it may see only that user's data.

    Args:
        scope: The caller. The returned scope has the same rights, and no user.

    Raises:
        Forbidden: the caller is neither a developer nor an administrator, acts for one user, or
            lacks the scope `agents:write`. Routes check this scope too, but tools do not.
    """
    is_teacher = scope.role in ("developer", "admin") and scope.may("agents:write")
    if not is_teacher or scope.subject is not None:
        raise Forbidden(
            "Only teachers may see students. Use the key of a developer or an administrator."
        )
    return replace(scope, subject_id=None)


def students(tx: Transaction, teacher: Scope, course: StoredCourse, page: Page) -> list[Student]:
    """Return one page of the course's students, by default the newest users first.

    Args:
        tx: The transaction.
        teacher: The scope that `require_teacher` returned.
        course: The course.
        page: The requested part of the list.
    """
    is_taught = users.is_among(activity.users_of(course.agents.values()))
    return _with_numbers(tx, course, users.ROWS.page(tx, teacher, page, is_taught))


def student(tx: Transaction, teacher: Scope, course: StoredCourse, name: str) -> Student:
    """Return the student with this id or identifier.

    Args:
        tx: The transaction.
        teacher: The scope that `require_teacher` returned.
        course: The course.
        name: The user's id or identifier.

    Raises:
        NotFound: the user does not exist, or never talked with this course.
    """
    user = users.require(tx, teacher, name)
    if not activity.has_talked_with(tx, user.id, course.agents.values()):
        raise users.unknown(name)  # the same error as for a user that does not exist
    return _with_numbers(tx, course, [user])[0]


def seen_blocks(
    tx: Transaction,
    teacher: Scope,
    course: StoredCourse,
    course_blocks: Collection[CourseBlock],
    user_id: str,
) -> list[Block]:
    """Return the student's blocks that teachers of the course see.

    Both the course and the student's block must allow it.

    Args:
        tx: The transaction.
        teacher: The scope that `require_teacher` returned.
        course: The course.
        course_blocks: The blocks in the course's file, without shared ones.
        user_id: The student, whose part in the course the caller has checked.
    """
    labels = {block.label for block in course_blocks if block.teachers_see}
    user_blocks = blocks.of_user(tx, teacher, user_id) if labels else ()
    return [
        block
        for block in user_blocks
        if block.shown_label in labels and block.metadata.get(TEACHERS_SEE) == course.name
    ]


def _with_numbers(
    tx: Transaction, course: StoredCourse, taught_users: Sequence[User]
) -> list[Student]:
    user_ids = [user.id for user in taught_users]
    agent_ids = [*course.agents.values()]
    active_at = activity.last_messages(tx, agent_ids, user_ids)
    open_proposals = proposals.waiting_counts_by_owner(tx, user_ids, agent_ids)
    failure_counts = (
        select(task_runs.c.user_id, func.count())
        .join(tasks, tasks.c.id == task_runs.c.task_id)
        .where(
            tasks.c.course == course.name,
            task_runs.c.user_id.in_(user_ids),
            task_runs.c.status == "failed",
        )
        .where(task_runs.c.organization_id == course.organization_id)
        .where(task_runs.c.created_at > tx.clock.now() - _FAILURE_PERIOD)
        .group_by(task_runs.c.user_id)
    )
    failed_tasks = {row[0]: row[1] for row in tx.all(failure_counts)}
    return [
        Student(
            user=user,
            last_active_at=active_at.get(user.id),
            open_proposals=open_proposals.get(user.id, 0),
            failed_tasks=failed_tasks.get(user.id, 0),
        )
        for user in taught_users
    ]
