"""Students of a course over HTTP, for teachers: figures and visible blocks."""

from typing import Annotated

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import From, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.text import Json
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import blocks_of
from ricordo.features.tutor.teachers import queries
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/courses", tags=["courses"], scope="agents")


class StudentResponse(ResponseModel):
    """A student of a course with its open proposals and recently failed tasks.

    `last_active_at` is the time of the last message in the course.
    """

    user_id: Annotated[str, From("user.id")]
    name: Annotated[str, From("user.name")]
    identifier: Annotated[str | None, From("user.identifier")]
    last_active_at: Timestamp | None
    open_proposals: int
    failed_tasks: int


class SeenBlockResponse(ResponseModel):
    """A student's block that teachers may see."""

    label: Annotated[str, From("shown_label")]
    title: str | None
    description: str | None
    value: str
    updated_at: Timestamp


class StudentMemoryResponse(StudentResponse):
    """A student with the blocks that teachers see.

    `hidden` are the labels of the course's other blocks.
    """

    blocks: list[SeenBlockResponse]
    hidden: list[str]


@router.get("/{course_name}/students", response_model=list[StudentResponse])
@needs("agents:write")
def list_students(
    tx: Transaction, context: RequestContext, course_name: str, paging: Paged
) -> list[queries.Student]:
    """List the course's students, by default the newest users first."""
    teacher = queries.require_teacher(context.scope)
    return queries.students(tx, teacher, courses.get(tx, teacher, course_name), paging.page())


@router.get("/{course_name}/students/{user_id}", response_model=StudentMemoryResponse)
@needs("agents:write")
def retrieve_student(
    tx: Transaction, context: RequestContext, course_name: str, user_id: str
) -> Json:
    """Return a student with the blocks that teachers see.

    Both the course and the student's block must allow it.
    """
    teacher = queries.require_teacher(context.scope)
    course = courses.get(tx, teacher, course_name)
    student = queries.student(tx, teacher, course, user_id)
    course_blocks = [block for block in blocks_of(course) if not (block.shared or block.is_view)]
    visible_blocks = queries.seen_blocks(tx, teacher, course, course_blocks, student.user.id)
    visible_labels = {block.shown_label for block in visible_blocks}
    return StudentMemoryResponse.of(
        student,
        blocks=[SeenBlockResponse.of(block) for block in visible_blocks],
        hidden=sorted({block.label for block in course_blocks} - visible_labels),
    )
