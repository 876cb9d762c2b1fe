"""Request and response models of learner state."""

from typing import Annotated

from pydantic import Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp
from ricordo.domain.text import Json
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.learning.records import (
    SkillState,
    is_level,
    is_observation,
    misconception_of,
    result_of,
)


class LearnerChoiceRequest(RequestModel):
    """A student's choices for a course. Missing fields keep their values."""

    is_off: bool | None = Field(None, description="If true, nothing is noted or shown.")
    shares: bool | None = Field(None, description="If true, the course's teachers see the skills.")
    retention_days: int | None = Field(
        None,
        ge=1,
        le=3650,
        description="Number of days after which evidence is deleted. Null uses the course's setting.",
    )


class DisputeRequest(RequestModel):
    """The student's own view of a skill."""

    words: str = Field("I can do this.", min_length=1, max_length=200)


class NotedResponse(ResponseModel):
    """An observation, a level or a dispute, with the student's words as evidence.

    `what` is `observation`, `level` or `dispute`.
    """

    id: str
    what: str
    sentence: str
    value: str
    result: str | None
    misconception: str | None
    state: str
    said_at: Timestamp
    agent_id: str | None
    conversation_id: str | None
    evidence: list[Json]

    @classmethod
    def from_fact(cls, fact: UserFact) -> Json:
        """Return the fact as JSON."""
        what = "level" if is_level(fact) else "dispute"
        if is_observation(fact):
            what = "observation"
        return cls.of(
            fact,
            what=what,
            result=result_of(fact) if is_observation(fact) else None,
            misconception=(misconception_of(fact) or None) if is_observation(fact) else None,
            evidence=[
                {"message_id": piece.message_id, "quote": piece.quote} for piece in fact.evidence
            ],
        )


class SkillResponse(ResponseModel):
    """A student's state in one skill.

    `due_at` is the time of the next review. `is_ready` is set if all prerequisites are practised or
    secure.
    """

    name: Annotated[str, From("skill.name")]
    title: Annotated[str, From("skill.shown_name")]
    prerequisites: list[str]
    level: Json | None
    dispute: Json | None
    observations: list[Json]
    waiting: list[Json]
    due_at: Timestamp | None
    is_due: bool
    is_ready: bool

    @classmethod
    def from_state(cls, state: SkillState) -> Json:
        """Return the state as JSON."""
        noted = NotedResponse.from_fact
        return cls.of(
            state,
            prerequisites=list(state.skill.prerequisites),
            level=noted(state.level) if state.level else None,
            dispute=noted(state.claim) if state.claim else None,
            observations=[noted(fact) for fact in state.observations],
            waiting=[noted(fact) for fact in state.waiting],
        )

    @classmethod
    def shared(cls, state: SkillState, *, has_words: bool = False) -> Json:
        """Return the state for people with whom the student shares it, without waiting facts.

        Without `has_words`, quotes, tutors' sentences, results, misconceptions and the text of a
        dispute are left out. Links to the student's conversations are always left out.
        """
        skill = cls.from_state(state)
        shared = _with_words if has_words else _without_words
        level, dispute = skill["level"], skill["dispute"]
        return {
            **skill,
            "waiting": [],
            "level": {**shared(level), "value": level["value"]} if level else None,
            "dispute": shared(dispute) if dispute else None,
            "observations": [shared(noted) for noted in skill["observations"]],
        }


def _with_words(noted: Json) -> Json:
    """Return a noted fact without links to the student's conversations."""
    quotes = [{"quote": piece["quote"]} for piece in noted["evidence"]]
    return {**noted, "agent_id": None, "conversation_id": None, "evidence": quotes}


def _without_words(noted: Json) -> Json:
    """Return a noted fact with nothing that shows what the student said."""
    unsaid: Json = {
        "sentence": "",
        "value": "",
        "result": None,
        "misconception": None,
        "evidence": [],
    }
    return {**_with_words(noted), **unsaid}


class LearningCourseResponse(ResponseModel):
    """A course with skills in which the student takes part.

    `guardians_see` is set if the course lets the guardians of its students see the levels.
    """

    name: str
    title: str
    skills: int
    levels: int
    due: int
    waiting: int
    is_off: bool
    guardians_see: bool


class LearnerResponse(ResponseModel):
    """A student's state in a course.

    `policy` decides on agents' notes: `off` refuses them, `propose` lets them wait for the student,
    `direct` applies them at once. `kept_days` is the number of days for which evidence is kept: the
    smaller one of the student's choice and the course's number.
    """

    user_id: str
    course: str
    title: str
    policy: str
    is_off: bool
    shares: bool
    retention_days: int | None
    kept_days: int | None
    skills: list[Json]


LearnerChoiceRequest.take_back(LearnerResponse)


class LearningRecordResponse(ResponseModel):
    """The export of a student's skills in a course: choices, levels and their evidence."""

    user_id: str
    course: str
    title: str
    is_off: bool
    shares: bool
    retention_days: int | None
    skills: list[Json]


class RemovedResponse(ResponseModel):
    """The number of deleted observations, levels and disputes."""

    removed: int


class ApprovedResponse(ResponseModel):
    """The number of approved observations and levels."""

    approved: int


class MisconceptionResponse(ResponseModel):
    """A misconception, and the number of students who showed it."""

    misconception: str
    students: int


class SkillWeekResponse(ResponseModel):
    """Counts of the students who worked on a skill in a week, and of those who were stuck.

    Counts of one to four students are null.
    """

    week: str
    skill: str
    students: int | None
    stuck: int | None
    misconceptions: list[MisconceptionResponse]


class SkillLevelsResponse(ResponseModel):
    """The number of students at each level of a skill; null for one to four students."""

    skill: str
    levels: dict[str, int | None]


class DigestResponse(ResponseModel):
    """Counts of a course: students by current level, and students by week and skill.

    Counts of one to four students are null.
    """

    course: str
    levels: list[SkillLevelsResponse]
    weeks: list[SkillWeekResponse]
