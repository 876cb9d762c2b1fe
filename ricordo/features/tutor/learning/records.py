"""The nouns of learner state, and their form as facts.

An observation is a fact with one slot for each skill and message: a message shows one thing about a
skill. A level is a fact with one slot for each skill, so a new level ends the old one. A claim is
the student's view of a skill. It also has one slot for each skill.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from ricordo.features.knowledge.facts.records import OBSERVATION, UserFact
from ricordo.features.tutor.courses.skills import CourseSkill

Level = Literal["seen", "practised", "secure", "forgotten"]
Result = Literal["seen", "failed", "hard", "good", "easy"]
LEVELS: tuple[Level, ...] = get_args(Level)
RESULTS: tuple[Result, ...] = get_args(Result)
LEVEL = "level:"
CLAIM = "claim:"
PREFIXES = (OBSERVATION, LEVEL, CLAIM)
# TRIED: the student did an exercise. MANAGED: the student solved it. STUCK: it went badly.
TRIED = frozenset({"failed", "hard", "good", "easy"})
MANAGED = frozenset({"good", "easy"})
STUCK = frozenset({"failed", "hard"})


def observation_slot(course: str, skill: str, message_id: str) -> str:
    """Return the slot of an observation.

    Args:
        course: The course's name.
        skill: The skill's name.
        message_id: The student's message that shows it.
    """
    return f"{OBSERVATION}{course}/{skill}#{message_id}"


def level_slot(course: str, skill: str) -> str:
    """Return the slot of a student's level in a skill.

    Args:
        course: The course's name.
        skill: The skill's name.
    """
    return f"{LEVEL}{course}/{skill}"


def claim_slot(course: str, skill: str) -> str:
    """Return the slot of a student's claim about a skill.

    Args:
        course: The course's name.
        skill: The skill's name.
    """
    return f"{CLAIM}{course}/{skill}"


def course_of(fact: UserFact) -> str:
    """Return the name of the course that a fact is about.

    Args:
        fact: An observation, a level or a claim.
    """
    return fact.slot.partition(":")[2].partition("/")[0]


def skill_of(fact: UserFact, course: str) -> str | None:
    """Return the name of the skill that a fact is about; None if it is of another course.

    Args:
        fact: Any fact of a student.
        course: The course's name.
    """
    _, _, place = fact.slot.partition(":")
    owner, slash, rest = place.partition("/")
    if not slash or owner != course:
        return None
    return rest.partition("#")[0]


def is_observation(fact: UserFact) -> bool:
    """Return True for an observation.

    Args:
        fact: Any fact of a student.
    """
    return fact.slot.startswith(OBSERVATION)


def is_level(fact: UserFact) -> bool:
    """Return True for a level.

    Args:
        fact: Any fact of a student.
    """
    return fact.slot.startswith(LEVEL)


def is_claim(fact: UserFact) -> bool:
    """Return True for a claim.

    Args:
        fact: Any fact of a student.
    """
    return fact.slot.startswith(CLAIM)


def observed_value(result: Result, misconception: str) -> str:
    """Return the value of a fact that stores this result and this misconception.

    Args:
        result: The result of the student's attempt.
        misconception: A misconception of the skill; "" for none.
    """
    return f"{result} {misconception}".strip()


def result_of(fact: UserFact) -> Result:
    """Return the result that an observation shows.

    Args:
        fact: An observation; an unknown result counts as "seen".
    """
    stored = fact.value.partition(" ")[0]
    return next((result for result in RESULTS if result == stored), "seen")


def misconception_of(fact: UserFact) -> str:
    """Return the misconception that an observation shows; empty for none.

    Args:
        fact: An observation.
    """
    return fact.value.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class SkillState:
    """A student's state in one skill.

    `level`, `claim` and `observations` are current facts; `waiting` are proposed facts. The
    newest observation is first. `due_at` is the time of the next review in microseconds; None if
    the student has not tried the skill yet.
    """

    skill: CourseSkill
    level: UserFact | None
    claim: UserFact | None
    observations: Sequence[UserFact]
    waiting: Sequence[UserFact]
    due_at: int | None
    is_due: bool
    is_ready: bool

    @property
    def level_name(self) -> Level | None:
        return cast(Level, self.level.value) if self.level else None

    @property
    def misconceptions(self) -> dict[str, int]:
        """The number of observations of each misconception."""
        counts: dict[str, int] = {}
        for fact in self.observations:
            if name := misconception_of(fact):
                counts[name] = counts.get(name, 0) + 1
        return counts
