"""Courses over HTTP, for callers that may write agents."""

from collections.abc import Sequence

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.routing import Routes
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.features.tutor.courses import queries, service
from ricordo.features.tutor.courses.applying import shown
from ricordo.features.tutor.courses.models import (
    CourseAgentResponse,
    CourseBlockResponse,
    CourseCheckResponse,
    CourseFaultResponse,
    CourseRequest,
    CourseResponse,
    CourseTaskResponse,
    CourseTextResponse,
)
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/courses", tags=["courses"], scope="agents")


def _require_home(context: RequestContext) -> None:
    """Raise NotFound for all organizations except the first, which owns the files."""
    if context.scope.organization_id != LOCAL_ORGANIZATION:
        raise NotFound(
            "Only the first organization of the server may have courses. Use agents and templates "
            "instead."
        )


@router.get("/", response_model=list[CourseResponse])
def list_courses(tx: Transaction, context: RequestContext, paging: Paged) -> Sequence[StoredCourse]:
    """List the courses, by default the newest first."""
    return [shown(course) for course in queries.page(tx, context.scope, paging.page())]


@router.get("/{course_name}", response_model=CourseTextResponse)
def retrieve(tx: Transaction, context: RequestContext, course_name: str) -> StoredCourse:
    """Return a course with its file."""
    return shown(queries.get(tx, context.scope, course_name))


@router.post("/apply", response_model=list[CourseResponse])
async def apply(context: RequestContext) -> Sequence[StoredCourse]:
    """Apply the files of all courses.

    A course with a fault stays as last applied.
    """
    _require_home(context)
    return [shown(course) for course in await service.apply_all(context.runtime)]


@router.post("/check", response_model=list[CourseFaultResponse])
async def check_all(context: RequestContext) -> list[Json]:
    """Check the files of all courses as they would be applied, and store nothing."""
    _require_home(context)
    review = await service.review_courses(context.runtime)
    return service.review_lines(review)


@router.post("/{course_name}/check", response_model=CourseCheckResponse)
async def check(context: RequestContext, course_name: str, body: CourseRequest) -> Json:
    """Check the text of a course, and store nothing.

    Returns its agents, blocks and tasks, or 400 with all faults by line.
    """
    _require_home(context)
    course = await service.check(context.runtime, course_name, body.source)
    blocks = [
        CourseBlockResponse.of(block, fields=[field.name for field in block.fields or ()])
        for block in course.blocks
        if not block.is_view
    ]
    agents = [
        CourseAgentResponse.of(agent, tools=None if agent.tools is None else list(agent.tools))
        for agent in course.agents
    ]
    tasks = [CourseTaskResponse.of(task) for task in course.tasks]
    return CourseCheckResponse.of(
        None,
        name=course_name,
        title=course.title,
        agents=agents,
        blocks=blocks,
        tasks=tasks,
        skills=[skill.name for skill in course.skills],
    )


@router.put("/{course_name}", response_model=CourseTextResponse)
async def put(context: RequestContext, course_name: str, body: CourseRequest) -> StoredCourse:
    """Write the file of a course, and apply it.

    A course that cannot be used is not written.
    """
    _require_home(context)
    return shown(await service.put(context.runtime, course_name, body.source))


@router.delete("/{course_name}")
async def delete(context: RequestContext, course_name: str) -> Json:
    """Delete a course with its agents and their conversations.

    Students' memory stays.
    """
    _require_home(context)
    await service.remove(context.runtime, course_name)
    return note(f'Course "{course_name}" deleted.')
