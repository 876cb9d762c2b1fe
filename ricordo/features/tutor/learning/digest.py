"""Count the students of a course who are stuck, by week and skill. The code has no side effects.

Counts of one to four students are hidden, since they could reveal a single student.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ricordo.domain.clock import to_datetime, zone
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses.course_file import Course
from ricordo.features.tutor.learning.records import (
    LEVELS,
    STUCK,
    misconception_of,
    result_of,
    skill_of,
)

# Smaller groups of students are not shown.
LEAST_GROUP = 5


@dataclass(frozen=True, slots=True)
class MisconceptionCount:
    """A misconception that at least LEAST_GROUP students showed."""

    misconception: str
    students: int


@dataclass(frozen=True, slots=True)
class SkillWeek:
    """Counts of the students who worked on a skill in a week, and who were stuck at its end.

    `week` is the ISO week, such as 2026-W07. A count between 1 and 4 is None. A student is stuck if
    the newest result of the week is failed or hard.
    """

    week: str
    skill: str
    students: int | None
    stuck: int | None
    misconceptions: Sequence[MisconceptionCount]


@dataclass(frozen=True, slots=True)
class SkillLevels:
    """The current number of students at each level of a skill. A count from 1 to 4 is None."""

    skill: str
    levels: dict[str, int | None]


def shown_count(count: int) -> int | None:
    """Return the count, or None if its group is too small to be shown."""
    return count if count == 0 or count >= LEAST_GROUP else None


def weeks_of(course: Course, observations: Iterable[UserFact]) -> list[SkillWeek]:
    """Return a row for each week and each skill practised in it, the newest week first.

    Args:
        course: The course whose skills are counted.
        observations: Observations of all students, the oldest first.
    """
    timezone = zone(course.timezone or "UTC")
    cells: dict[tuple[str, str], list[UserFact]] = {}
    for fact in observations:
        local = to_datetime(fact.said_at).astimezone(timezone)
        year, week, _ = local.isocalendar()
        name = skill_of(fact, course.name) or ""
        cells.setdefault((f"{year}-W{week:02}", name), []).append(fact)
    weeks = sorted({week for week, _ in cells}, reverse=True)
    return [
        _row(week, skill.name, cells[week, skill.name])
        for week in weeks
        for skill in course.skills
        if (week, skill.name) in cells
    ]


def _row(week: str, skill: str, observations: Sequence[UserFact]) -> SkillWeek:
    newest = {fact.user_id: result_of(fact) for fact in observations}
    showed: dict[str, set[str]] = {}
    for fact in observations:
        if misconception := misconception_of(fact):
            showed.setdefault(misconception, set()).add(fact.user_id)
    students = shown_count(len(newest))
    stuck = shown_count(sum(result in STUCK for result in newest.values()))
    return SkillWeek(
        week=week,
        skill=skill,
        students=students,
        stuck=None if students is None else stuck,
        misconceptions=[
            MisconceptionCount(misconception, len(users))
            for misconception, users in sorted(showed.items())
            if len(users) >= LEAST_GROUP
        ],
    )


def levels_of(course: Course, levels: Iterable[UserFact]) -> list[SkillLevels]:
    """Count the students at each level, for each skill of the course."""
    counts = {skill.name: dict.fromkeys(LEVELS, 0) for skill in course.skills}
    for fact in levels:
        of_skill = counts.get(skill_of(fact, course.name) or "", {})
        for level in LEVELS:
            if level == fact.value and of_skill:
                of_skill[level] += 1
    return [
        SkillLevels(name, {level: shown_count(count) for level, count in of_skill.items()})
        for name, of_skill in counts.items()
    ]
