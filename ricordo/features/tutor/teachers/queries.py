"""Students of a course, in numbers, and those of their blocks that the course's teachers see.

These are the only queries that a teacher's key reads of other people with. They return names, times and counts, and of texts what
`seen_blocks` lets through.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Select, func, literal, select, union_all

from ricordo.domain.block import Block
from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Scope, User
from ricordo.errors import Forbidden
from ricordo.features.tutor.courses.course_file import CourseBlock
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.features.tutor.courses.service import TEACHERS_SEE
from ricordo.features.tutor.tasks.queries import task_runs, tasks
from ricordo.storage import blocks, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations
from ricordo.storage.schema.core_tables import users as users_table
from ricordo.storage.schema.memory_tables import chains, proposals

# How long a task that failed is counted.
_COUNTED = 30 * 86_400 * SECOND
_WAITS = proposals.c.status.in_(("open", "conflicted"))


@dataclass(frozen=True, slots=True)
class Student:
    """A user who talked with an agent of the course, with what waits for them: what the course's agents proposed, and tasks that
    failed in the last thirty days.
    """

    user: User
    last_active_at: int | None
    open_proposals: int
    failed_tasks: int


def require_teacher(scope: Scope) -> Scope:
    """Return the scope in which students of the organization are read. Raises Forbidden for all but developers and administrators.

    Who acts for one user sees what this user sees, whatever the key.
    """
    if (
        scope.role not in ("developer", "admin")
        or scope.subject is not None
        or not scope.may("agents:write")
    ):
        raise Forbidden(
            "Only teachers see students: with the key of a developer or an administrator."
        )
    return replace(scope, subject_id=None)


def students(tx: Transaction, teacher: Scope, course: StoredCourse, wanted: Page) -> list[Student]:
    """Return one page of the students of the course, the newest users first unless asked otherwise."""
    is_taught = users_table.c.id.in_(_taught(course))
    return _with_numbers(tx, course, users.ROWS.page(tx, teacher, wanted, is_taught))


def student(tx: Transaction, teacher: Scope, course: StoredCourse, name: str) -> Student:
    """Return the student with this id or identifier; raises NotFound for who is none of this course."""
    user = users.require(tx, teacher, name)
    if not tx.all(_taught(course).where(conversations.c.user_id == user.id).limit(1)):
        raise users.unknown(name)  # as of one who is not there
    return _with_numbers(tx, course, [user])[0]


def seen_blocks(
    tx: Transaction,
    teacher: Scope,
    course: StoredCourse,
    wanted: Collection[CourseBlock],
    user_id: str,
) -> list[Block]:
    """Return the student's blocks that teachers of the course see: both the course and the student's own block say so."""
    labels = {block.label for block in wanted if block.teachers_see and not block.shared}
    held = blocks.of_user(tx, teacher, user_id) if labels else ()
    return [
        one
        for one in held
        if one.shown_label in labels and one.metadata.get(TEACHERS_SEE) == course.name
    ]


def _taught(course: StoredCourse) -> Select[tuple[str]]:
    is_theirs = conversations.c.agent_id.in_([*course.agents.values()])
    return select(conversations.c.user_id).where(
        is_theirs, conversations.c.user_id.is_not(None), conversations.c.deleted_at.is_(None)
    )


def _with_numbers(tx: Transaction, course: StoredCourse, found: Sequence[User]) -> list[Student]:
    ids, agents = [user.id for user in found], [*course.agents.values()]
    talks = (
        _taught(course)
        .add_columns(func.max(conversations.c.last_message_at))
        .group_by(conversations.c.user_id)
    )
    active = {row[0]: row[1] for row in tx.all(talks.where(conversations.c.user_id.in_(ids)))}
    asked = (
        select(literal("proposals"), chains.c.owner_id, func.count())
        .join(chains, chains.c.id == proposals.c.chain_id)
        .where(chains.c.owner_kind == "user", chains.c.owner_id.in_(ids), _WAITS)
        .where(proposals.c.author_kind == "agent", proposals.c.author_id.in_(agents))
        .group_by(chains.c.owner_id)
    )
    bad = (
        select(literal("tasks"), task_runs.c.user_id, func.count())
        .join(tasks, tasks.c.id == task_runs.c.task_id)
        .where(
            tasks.c.course == course.name,
            task_runs.c.user_id.in_(ids),
            task_runs.c.status == "failed",
        )
        .where(task_runs.c.organization_id == course.organization_id)
        .where(task_runs.c.created_at > tx.clock.now() - _COUNTED)
        .group_by(task_runs.c.user_id)
    )
    counts = {(row[0], row[1]): row[2] for row in tx.all(union_all(asked, bad))}
    return [
        Student(
            user,
            active.get(user.id),
            counts.get(("proposals", user.id), 0),
            counts.get(("tasks", user.id), 0),
        )
        for user in found
    ]
