"""Courses over HTTP, for who may write agents: listed, checked, written and applied."""

from collections.abc import Sequence

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import NotFound
from ricordo.features.tutor.courses import queries, service
from ricordo.features.tutor.courses.models import (
    CourseAgentResponse,
    CourseBlockResponse,
    CourseCheckResponse,
    CourseRequest,
    CourseResponse,
    CourseTaskResponse,
    CourseTextResponse,
)
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/courses", tags=["courses"], scope="agents")


def _require_home(context: RequestContext) -> None:
    """Raise NotFound for other organizations: files are the server's, and so its first organization's."""
    if context.scope.organization_id != LOCAL_ORGANIZATION:
        raise NotFound(
            "Courses belong to the first organization of the server. Make agents and templates instead."
        )


@router.get("/", response_model=list[CourseResponse])
def list_courses(tx: Transaction, context: RequestContext, paging: Paged) -> Sequence[StoredCourse]:
    """The courses, by default the newest first."""
    return queries.page(tx, context.scope, paging.page())


@router.get("/{course_name}", response_model=CourseTextResponse)
def retrieve(tx: Transaction, context: RequestContext, course_name: str) -> StoredCourse:
    """One course with its file."""
    return queries.get(tx, context.scope, course_name)


@router.post("/apply", response_model=list[CourseResponse])
async def apply(context: RequestContext) -> Sequence[StoredCourse]:
    """Read the files of all courses and bring them into use. A course with a fault keeps what was applied before."""
    _require_home(context)
    return await service.apply_all(context.runtime)


@router.post("/{course_name}/check", response_model=CourseCheckResponse)
async def check(context: RequestContext, course_name: str, body: CourseRequest) -> Json:
    """Say what a text would make, or with 400 everything that is wrong with it, line by line. Nothing is stored."""
    _require_home(context)
    course = await service.check(context.runtime, course_name, body.source)
    blocks = [
        CourseBlockResponse.of(
            one, fields=[field.name for field in one.schema.fields] if one.schema else []
        )
        for one in course.blocks
    ]
    agents = [
        CourseAgentResponse.of(one, tools=None if one.tools is None else list(one.tools))
        for one in course.agents
    ]
    tasks = [CourseTaskResponse.of(one) for one in course.tasks]
    return CourseCheckResponse.of(
        None, name=course_name, title=course.title, agents=agents, blocks=blocks, tasks=tasks
    )


@router.put("/{course_name}", response_model=CourseTextResponse)
async def put(context: RequestContext, course_name: str, body: CourseRequest) -> StoredCourse:
    """Write the file of a course, and bring it into use. Nothing is written where it cannot be used."""
    _require_home(context)
    return await service.put(context.runtime, course_name, body.source)


@router.delete("/{course_name}")
async def delete(context: RequestContext, course_name: str) -> Json:
    """Delete a course, its agents and what was said to them. What is remembered of students stays theirs."""
    _require_home(context)
    await service.remove(context.runtime, course_name)
    return note(f'Course "{course_name}" deleted.')
