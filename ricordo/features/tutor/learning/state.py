"""Compute a student's state in a course from facts. The code has no side effects."""

from collections.abc import Sequence

from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses.skills import CourseSkill
from ricordo.features.tutor.learning.records import (
    SkillState,
    is_claim,
    is_level,
    is_observation,
    skill_of,
)
from ricordo.features.tutor.learning.reviews import due_at

_KNOWN = ("practised", "secure")


def skill_states(
    skills: Sequence[CourseSkill], course: str, facts: Sequence[UserFact], until: int
) -> list[SkillState]:
    """Return the state of each skill of a course, in the order of its file.

    Args:
        skills: The skills of the course.
        course: The course's name.
        facts: The student's current and proposed facts.
        until: Reviews before this time are due, in microseconds.
    """
    by_skill: dict[str, list[UserFact]] = {skill.name: [] for skill in skills}
    for fact in facts:
        name = skill_of(fact, course)
        if name in by_skill:
            by_skill[name].append(fact)
    known = {
        name
        for name, of_skill in by_skill.items()
        if any(is_level(fact) and _holds(fact) and fact.value in _KNOWN for fact in of_skill)
    }
    return [_state(skill, by_skill[skill.name], known, until) for skill in skills]


def _state(
    skill: CourseSkill, facts: Sequence[UserFact], known: set[str], until: int
) -> SkillState:
    current = [fact for fact in facts if _holds(fact)]
    observations = sorted(
        (fact for fact in current if is_observation(fact)), key=lambda fact: -fact.said_at
    )
    due = due_at(observations)
    level = next((fact for fact in current if is_level(fact)), None)
    # A level newer than the student's claim has answered it.
    answered_at = level.holds_from if level else 0
    claims = [fact for fact in current if is_claim(fact) and fact.said_at > answered_at]
    return SkillState(
        skill=skill,
        level=level,
        claim=claims[0] if claims else None,
        observations=observations,
        waiting=[fact for fact in facts if fact.state == "proposed"],
        due_at=due,
        is_due=due is not None and due < until,
        is_ready=known.issuperset(skill.prerequisites),
    )


def _holds(fact: UserFact) -> bool:
    return fact.state == "current"
