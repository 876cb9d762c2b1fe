"""Learner state over HTTP: the student's view and decisions, and the teacher's counts."""

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query, Response

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import DAY
from ricordo.domain.text import Json
from ricordo.features.knowledge.facts import decisions
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.learning import digest, export, queries, service
from ricordo.features.tutor.learning.models import (
    ApprovedResponse,
    DigestResponse,
    DisputeRequest,
    LearnerChoiceRequest,
    LearnerResponse,
    LearningCourseResponse,
    LearningRecordResponse,
    NotedResponse,
    RemovedResponse,
    SkillResponse,
)
from ricordo.features.tutor.learning.service import Learner
from ricordo.features.tutor.teachers import queries as teachers
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/users/{user_id}/learning", tags=["learning"], scope="memory")
_of_teachers = Routes(prefix="/v1/courses/{course_name}", tags=["learning"], scope="agents")


@router.get("", response_model=list[LearningCourseResponse])
def list_learning(tx: Transaction, context: RequestContext, user_id: str) -> list[Json]:
    """List the courses with skills in which the user takes part."""
    user = users.require(tx, context.scope, user_id)
    return [
        LearningCourseResponse.of(None, **export.course_summary(learner, states))
        for learner, states in service.learning_of(tx, user)
    ]


@router.get("/{course_name}", response_model=LearnerResponse)
def retrieve_learning(
    tx: Transaction, context: RequestContext, user_id: str, course_name: str
) -> Json:
    """Return the user's skills in a course: levels, evidence and due reviews."""
    return _response(tx, _learner(tx, context, user_id, course_name))


@router.patch("/{course_name}", response_model=LearnerResponse)
@needs("memory:approve", "memory:override")
def choose_learning(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    course_name: str,
    body: LearnerChoiceRequest,
) -> Json:
    """Set the user's choices for a course: noting, sharing, and days of retention."""
    users.lock(tx, users.require(tx, context.scope, user_id).id)
    learner = _owned(tx, context, user_id, course_name)
    chosen = {
        name: field
        for name, field in body.model_dump(exclude_unset=True).items()
        if field is not None or name == "retention_days"
    }
    choice = replace(learner.choice, **chosen)
    user = learner.user
    queries.set_choice(tx, user.organization_id, user.id, learner.course.name, choice)
    return _response(tx, replace(learner, choice=choice))


@router.delete("/{course_name}", response_model=RemovedResponse)
@needs("memory:approve", "memory:override")
def delete_learning(
    tx: Transaction, context: RequestContext, user_id: str, course_name: str
) -> Json:
    """Delete all observations, levels and disputes of the user in a course. Messages stay."""
    learner = _owned(tx, context, user_id, course_name)
    return RemovedResponse.of(None, removed=service.remove_all(tx, learner))


@router.post("/{course_name}/approve", response_model=ApprovedResponse)
@needs("memory:approve", "memory:override")
def approve_learning(
    tx: Transaction, context: RequestContext, user_id: str, course_name: str
) -> Json:
    """Approve all waiting observations and levels of a course."""
    learner = _owned(tx, context, user_id, course_name)
    approved = service.approve_all(tx, learner, context.scope.user_id)
    return ApprovedResponse.of(None, approved=approved)


@router.post("/{course_name}/skills/{skill_name}/dispute", response_model=NotedResponse)
@needs("memory:approve", "memory:override")
def dispute_skill(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    course_name: str,
    skill_name: str,
    body: DisputeRequest,
) -> Json:
    """Dispute the level of a skill. The level stays, and the prompt asks the tutor to check it."""
    learner = _owned(tx, context, user_id, course_name)
    fact = service.claim(tx, learner, learner.skill(skill_name), body.words)
    return NotedResponse.from_fact(fact)


@router.delete("/{course_name}/facts/{noted_id}", response_model=RemovedResponse)
@needs("memory:approve", "memory:override")
def delete_noted(
    tx: Transaction, context: RequestContext, user_id: str, course_name: str, noted_id: str
) -> Json:
    """Delete an observation, a level or a dispute.

    Deleting the last observation of a level deletes the level too.
    """
    learner = _owned(tx, context, user_id, course_name)
    return RemovedResponse.of(None, removed=service.remove_fact(tx, learner, noted_id))


@router.get("/{course_name}/record", response_model=LearningRecordResponse)
def export_learning(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    course_name: str,
    format: Literal["markdown", "json"] = "json",
) -> Json | Response:
    """Return the user's skills in a course as one file, JSON or Markdown."""
    learner = _learner(tx, context, user_id, course_name)
    if format == "markdown":
        return Response(export.to_markdown(tx, learner), media_type="text/markdown")
    return LearningRecordResponse.of(None, **export.record_of(tx, learner))


@_of_teachers.get("/skills", response_model=DigestResponse)
@needs("agents:write")
def retrieve_digest(
    tx: Transaction,
    context: RequestContext,
    course_name: str,
    weeks: Annotated[int, Query(ge=1, le=60, description="The number of past weeks.")] = 10,
) -> Json:
    """Return the numbers of students who are stuck, by week and skill, and of each level."""
    teacher = teachers.require_teacher(context.scope)
    course = service.course_with_skills(tx, teacher, course_name)
    organization_id = teacher.organization_id
    choices = queries.choices_of_course(tx, organization_id, course.name)
    since = tx.clock.now() - weeks * 7 * DAY
    noted = queries.observations_of_students(tx, organization_id, course.name, since)
    levels = queries.levels_of_students(tx, organization_id, course.name)
    hidden = {user_id for user_id, choice in choices.items() if choice.is_off}
    return DigestResponse.of(
        None,
        course=course.name,
        levels=digest.levels_of(course, [fact for fact in levels if fact.user_id not in hidden]),
        weeks=digest.weeks_of(course, [fact for fact in noted if fact.user_id not in hidden]),
    )


@_of_teachers.get("/students/{user_id}/skills", response_model=LearnerResponse)
@needs("agents:write")
def retrieve_shared_skills(
    tx: Transaction, context: RequestContext, course_name: str, user_id: str
) -> Json:
    """Return the skills of a student who shares them with the course's teachers."""
    teacher = teachers.require_teacher(context.scope)
    stored = courses.get(tx, teacher, course_name)
    student = teachers.student(tx, teacher, stored, user_id)
    course = service.course_with_skills(tx, teacher, course_name)
    learner = service.learner_of(tx, student.user, course)
    service.require_shared(learner)
    return _response(tx, learner, is_shared=True)


def _learner(tx: Transaction, context: RequestContext, user_id: str, course_name: str) -> Learner:
    user = users.require(tx, context.scope, user_id)
    course = service.course_with_skills(tx, context.scope, course_name)
    return service.learner_of(tx, user, course)


def _owned(tx: Transaction, context: RequestContext, user_id: str, course_name: str) -> Learner:
    learner = _learner(tx, context, user_id, course_name)
    decisions.require_owner(context.scope, learner.user)
    return learner


def _response(tx: Transaction, learner: Learner, *, is_shared: bool = False) -> Json:
    """Return the learner as JSON. With `is_shared`, quotes and waiting facts are left out."""
    show = SkillResponse.shared if is_shared else SkillResponse.from_state
    skills = [show(state) for state in service.states_of(tx, learner)]
    return LearnerResponse.of(
        learner.choice,
        user_id=learner.user.id,
        course=learner.course.name,
        title=learner.course.title,
        policy=service.policy_for(tx, learner),
        kept_days=service.kept_days(learner),
        skills=skills,
    )


router.routes += _of_teachers.routes
