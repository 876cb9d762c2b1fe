"""Guardians over HTTP: links between people, the student's choice, and the guardian's view."""

from typing import Annotated

from pydantic import Field

from ricordo.api.call import RequestContext, note
from ricordo.api.models.base import From, NoteResponse, RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.text import Json
from ricordo.features.knowledge.facts import decisions
from ricordo.features.tutor.guardians import queries, service
from ricordo.features.tutor.guardians.queries import Guardianship, Sight
from ricordo.features.tutor.guardians.service import WatchedCourse
from ricordo.features.tutor.learning.models import SkillResponse
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/users/{user_id}/guardians", tags=["guardians"], scope="memory")
_of_guardian = Routes(prefix="/v1/guardian/students", tags=["guardians"])


class GuardianResponse(ResponseModel):
    """A guardian of a student.

    `sees` is the student's permission: `nothing`, the `levels` of skills, or `words` for levels
    with the quotes that support them.
    """

    user_id: Annotated[str, From("person.id")]
    name: Annotated[str, From("person.name")]
    identifier: Annotated[str | None, From("person.identifier")]
    sees: str
    created_at: Timestamp


class GuardianChoiceRequest(RequestModel):
    """What the student lets a guardian see."""

    sees: Sight = Field(
        description="nothing; levels; or words: the levels and the quotes that support them."
    )


class WatchedCourseResponse(ResponseModel):
    """A student's course in numbers, as a guardian sees it. `sees` is `levels` or `words`."""

    name: Annotated[str, From("learner.course.name")]
    title: Annotated[str, From("learner.course.title")]
    sees: str
    skills: int
    levels: int
    due: int

    @classmethod
    def from_course(cls, watched: WatchedCourse) -> Json:
        """Return the course as JSON."""
        return cls.of(
            watched,
            skills=len(watched.states),
            levels=sum(state.level is not None for state in watched.states),
            due=sum(state.is_due for state in watched.states),
        )


class WatchedStudentResponse(ResponseModel):
    """A student of a guardian."""

    user_id: Annotated[str, From("person.id")]
    name: Annotated[str, From("person.name")]


class WatchedCoursesResponse(ResponseModel):
    """A student of a guardian, with the courses that the guardian may see."""

    user_id: Annotated[str, From("id")]
    name: str
    courses: list[WatchedCourseResponse]


class WatchedSkillsResponse(ResponseModel):
    """A student's skills in a course, as a guardian sees them."""

    user_id: str
    name: str
    course: str
    title: str
    sees: str
    skills: list[Json]


@router.get("", response_model=list[GuardianResponse])
def list_guardians(tx: Transaction, context: RequestContext, user_id: str) -> list[Guardianship]:
    """List the student's guardians, and what the student lets each of them see."""
    return queries.of_student(tx, users.require(tx, context.scope, user_id).id)


@router.put("/{guardian_id}", response_model=GuardianResponse)
@needs("users:write")
def link_guardian(
    tx: Transaction, context: RequestContext, user_id: str, guardian_id: str
) -> Guardianship:
    """Make a user a guardian of the student.

    The guardian sees nothing until the student or the course allows it.
    """
    return service.link(tx, context.scope, user_id, guardian_id)


@router.patch("/{guardian_id}", response_model=GuardianResponse)
@needs("memory:approve", "memory:override")
def choose_guardian(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    guardian_id: str,
    body: GuardianChoiceRequest,
) -> Guardianship:
    """Set what the student lets a guardian see. Only the student may."""
    student = users.require(tx, context.scope, user_id)
    decisions.require_owner(context.scope, student)
    return service.allow(tx, student, guardian_id, body.sees)


@router.delete("/{guardian_id}", response_model=NoteResponse)
@needs("users:write")
def unlink_guardian(
    tx: Transaction, context: RequestContext, user_id: str, guardian_id: str
) -> Json:
    """End a guardianship."""
    service.unlink(tx, context.scope, user_id, guardian_id)
    return note("The guardianship ended.")


@_of_guardian.get("", response_model=list[WatchedStudentResponse])
@needs("students:read")
def list_watched_students(tx: Transaction, context: RequestContext) -> list[Guardianship]:
    """List the caller's students."""
    return service.students_of(tx, context.scope)


@_of_guardian.get("/{student_id}", response_model=WatchedCoursesResponse)
@needs("students:read")
def retrieve_watched_student(tx: Transaction, context: RequestContext, student_id: str) -> Json:
    """Return a student of the caller, with the courses that the caller may see."""
    student, courses = service.watched_courses(tx, context.scope, student_id)
    return WatchedCoursesResponse.of(
        student, courses=[WatchedCourseResponse.from_course(watched) for watched in courses]
    )


@_of_guardian.get("/{student_id}/courses/{course_name}", response_model=WatchedSkillsResponse)
@needs("students:read")
def retrieve_watched_skills(
    tx: Transaction, context: RequestContext, student_id: str, course_name: str
) -> Json:
    """Return a student's skills in a course, as far as the caller may see them."""
    student, watched = service.watched_course(tx, context.scope, student_id, course_name)
    has_words = watched.sees == "words"
    return WatchedSkillsResponse.of(
        None,
        user_id=student.id,
        name=student.name,
        course=watched.learner.course.name,
        title=watched.learner.course.title,
        sees=watched.sees,
        skills=[SkillResponse.shared(state, has_words=has_words) for state in watched.states],
    )


router.routes += _of_guardian.routes
