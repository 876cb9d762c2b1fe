"""Facts of learner state by course, and the table of students' choices for a course."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Index, UniqueConstraint, delete, or_, select

from ricordo.features.knowledge.facts.queries import FACTS
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.features.tutor.learning.records import PREFIXES
from ricordo.storage.engine.repository import Replacing, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import flag, numbers, reference, seq, strings, table

# What a student chose for one course. The levels and their evidence are facts.
learner_choices = table(
    "learner_choices",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id", null=False),
    *strings("course", null=False, erasure="keep"),
    flag("is_off"),
    flag("shares"),
    *numbers("retention_days", null=True),
    UniqueConstraint("organization_id", "user_id", "course"),
    Index("learner_choices_by_user", "user_id"),
    erasure="delete",
)
_SET_CHOICE = Replacing(learner_choices, "is_off", "shares", "retention_days")
_CHOICES = select(
    learner_choices.c.user_id,
    learner_choices.c.is_off,
    learner_choices.c.shares,
    learner_choices.c.retention_days,
).where(equal(learner_choices, "organization_id", "course"))
_CHOICE = _CHOICES.where(equal(learner_choices, "user_id"))
_STATES = ("current", "proposed")
_LIVE = one_of(user_facts.c.state, "states")


@dataclass(frozen=True, slots=True)
class LearnerChoice:
    """What a student chose for a course; the default is the choice of a student who chose nothing.

    `is_off`: nothing is noted and shown. `shares`: the course's teachers see the levels.
    `retention_days`: evidence that is older is deleted; None leaves it to the course.
    """

    is_off: bool = False
    shares: bool = False
    retention_days: int | None = None


def choice_of(tx: Transaction, organization_id: str, user_id: str, course: str) -> LearnerChoice:
    """Return the student's choice for a course."""
    parameters = {"organization_id": organization_id, "user_id": user_id, "course": course}
    row = tx.first(_CHOICE, parameters)
    if row is None:
        return LearnerChoice()
    return LearnerChoice(bool(row.is_off), bool(row.shares), row.retention_days)


def choices_of_course(
    tx: Transaction, organization_id: str, course: str
) -> dict[str, LearnerChoice]:
    """Return the choices of all students that chose something for a course, by user id."""
    rows = tx.all(_CHOICES, {"organization_id": organization_id, "course": course})
    return {
        row.user_id: LearnerChoice(bool(row.is_off), bool(row.shares), row.retention_days)
        for row in rows
    }


def set_choice(
    tx: Transaction, organization_id: str, user_id: str, course: str, choice: LearnerChoice
) -> None:
    """Store the student's choice for a course."""
    tx.run(
        _SET_CHOICE,
        {
            "organization_id": organization_id,
            "user_id": user_id,
            "course": course,
            "is_off": choice.is_off,
            "shares": choice.shares,
            "retention_days": choice.retention_days,
        },
    )


def facts_of(
    tx: Transaction, user_id: str, course: str, states: Iterable[str] = _STATES
) -> list[UserFact]:
    """Return a student's facts of a course in these states, the newest first."""
    statement = FACTS.select.where(
        equal(user_facts, "user_id"), _LIVE, _of_course(course)
    ).order_by(user_facts.c.seq.desc())
    return FACTS.all(tx, statement, {"user_id": user_id, "states": list(states)})


def facts_of_students(
    tx: Transaction, organization_id: str, course: str, states: Iterable[str]
) -> list[UserFact]:
    """Return the facts of a course of all students of an organization."""
    statement = FACTS.select.where(
        equal(user_facts, "organization_id"), _LIVE, _of_course(course)
    ).order_by(user_facts.c.seq)
    parameters = {"organization_id": organization_id, "states": list(states)}
    return FACTS.all(tx, statement, parameters)


def remove(tx: Transaction, facts: Sequence[UserFact]) -> None:
    """Delete these facts."""
    ids = [fact.id for fact in facts]
    if ids:
        tx.run(delete(user_facts).where(one_of(user_facts.c.id, "ids")), {"ids": ids})


def _of_course(course: str) -> ColumnElement[bool]:
    return or_(
        *(
            user_facts.c.slot.startswith(f"{prefix}{course}/", autoescape=True)
            for prefix in PREFIXES
        )
    )
