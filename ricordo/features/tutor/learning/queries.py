"""Facts of learner state by course, and the table of students' choices for a course."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Index,
    UniqueConstraint,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
)

from ricordo.features.knowledge.facts.queries import FACTS
from ricordo.features.knowledge.facts.records import OBSERVATION, UserFact
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.features.tutor.learning.records import (
    CLAIM,
    LEVEL,
    PREFIXES,
    claim_slot,
    level_slot,
    observation_slot,
)
from ricordo.storage.engine.repository import Replacing, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import flag, numbers, reference, seq, strings, table

# One row for a student's choices for one course. Levels and their evidence are facts.
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
_CHOICES = select(learner_choices).where(equal(learner_choices, "organization_id"))
_OF_COURSE = _CHOICES.where(equal(learner_choices, "course"))
_OF_USER = _CHOICES.where(equal(learner_choices, "user_id"))
_CHOICE = _OF_COURSE.where(equal(learner_choices, "user_id"))
# The most facts of a student in a course that a prompt or a page reads: levels, claims, and the
# newest observations.
MOST_READ = 2_000
EVERY_FACT = 1_000_000
_STATES = ("current", "proposed")
_OF_SLOT = FACTS.select.where(equal(user_facts, "user_id", "slot")).order_by(user_facts.c.seq)
_LIVE = one_of(user_facts.c.state, "states")


@dataclass(frozen=True, slots=True)
class LearnerChoice:
    """A student's choices for a course. The defaults apply to a student who chose nothing.

    With `is_off` nothing is noted or shown. With `shares` the course's teachers see the levels.
    Evidence older than `retention_days` is deleted; None uses the course's setting.
    """

    is_off: bool = False
    shares: bool = False
    retention_days: int | None = None


def choice_of(tx: Transaction, organization_id: str, user_id: str, course: str) -> LearnerChoice:
    """Return the student's choice for a course.

    Args:
        tx: The transaction.
        organization_id: The student's organization.
        user_id: The student.
        course: The course's name.

    Returns:
        The stored choice, or the defaults.
    """
    parameters = {"organization_id": organization_id, "user_id": user_id, "course": course}
    row = tx.first(_CHOICE, parameters)
    return _choice(row) if row else LearnerChoice()


def choices_of_course(
    tx: Transaction, organization_id: str, course: str
) -> dict[str, LearnerChoice]:
    """Return the students' stored choices for a course, by user id.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization of the course.
        course: The course's name.
    """
    rows = tx.all(_OF_COURSE, {"organization_id": organization_id, "course": course})
    return {row.user_id: _choice(row) for row in rows}


def choices_of_user(
    tx: Transaction, organization_id: str, user_id: str
) -> dict[str, LearnerChoice]:
    """Return a student's stored choices by the name of the course.

    Args:
        tx: The transaction, or a read.
        organization_id: The student's organization.
        user_id: The student.
    """
    rows = tx.all(_OF_USER, {"organization_id": organization_id, "user_id": user_id})
    return {row.course: _choice(row) for row in rows}


def _choice(row: Any) -> LearnerChoice:
    return LearnerChoice(bool(row.is_off), bool(row.shares), row.retention_days)


def set_choice(
    tx: Transaction, organization_id: str, user_id: str, course: str, choice: LearnerChoice
) -> None:
    """Store the student's choice for a course.

    Args:
        tx: The transaction.
        organization_id: The student's organization.
        user_id: The student.
        course: The course's name.
        choice: The choice, which replaces an earlier one.
    """
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
    tx: Transaction,
    user_id: str,
    course: str,
    states: Iterable[str] = _STATES,
    limit: int = MOST_READ,
) -> list[UserFact]:
    """Return a student's facts of a course in these states, the newest first.

    Args:
        tx: The transaction.
        user_id: The student.
        course: The course's name.
        states: States of facts; by default the current and proposed ones.
        limit: The most facts that are returned, among which all levels and claims are.
    """
    parameters = {"user_id": user_id, "states": list(states), "limit": limit}
    return FACTS.all(tx, _newest(_of_course(course)), parameters)


def facts_of_skill(
    tx: Transaction, user_id: str, course: str, skill: str, limit: int = MOST_READ
) -> list[UserFact]:
    """Return a student's current and proposed facts of one skill, the newest first.

    Args:
        tx: The transaction, or a read.
        user_id: The student.
        course: The course's name.
        skill: The skill's name.
        limit: The most facts, among which all levels and claims are.
    """
    slot = user_facts.c.slot
    is_of_skill = or_(
        slot.in_([level_slot(course, skill), claim_slot(course, skill)]),
        slot.startswith(observation_slot(course, skill, ""), autoescape=True),
    )
    parameters = {"user_id": user_id, "states": list(_STATES), "limit": limit}
    return FACTS.all(tx, _newest(is_of_skill), parameters)


def _newest(condition: ColumnElement[bool]) -> Any:
    """Return the query of a student's newest facts; observations give way to levels and claims."""
    is_observation = case((user_facts.c.slot.startswith(OBSERVATION, autoescape=True), 1), else_=0)
    ids = (
        select(user_facts.c.id)
        .where(equal(user_facts, "user_id"), _LIVE, condition)
        .order_by(is_observation, user_facts.c.seq.desc())
        .limit(bindparam("limit"))
    )
    return FACTS.select.where(user_facts.c.id.in_(ids)).order_by(user_facts.c.seq.desc())


def facts_of_students(
    tx: Transaction, user_ids: Sequence[str], course: str
) -> dict[str, list[UserFact]]:
    """Return the current and proposed facts of several students, as `facts_of` returns them.

    Args:
        tx: The transaction, or a read.
        user_ids: The students. All their facts are read at once, so there should be few.
        course: The course's name.

    Returns:
        The facts by the student's id; a student without facts is missing.
    """
    statement = FACTS.select.where(
        one_of(user_facts.c.user_id, "user_ids"), _LIVE, _of_course(course)
    ).order_by(user_facts.c.seq.desc())
    facts_by_user: dict[str, list[UserFact]] = {}
    for fact in FACTS.all(tx, statement, {"user_ids": [*user_ids], "states": list(_STATES)}):
        facts = facts_by_user.setdefault(fact.user_id, [])
        if len(facts) < MOST_READ or not fact.slot.startswith(OBSERVATION):
            facts.append(fact)
    return facts_by_user


def facts_of_user(tx: Transaction, user_id: str, limit: int = MOST_READ) -> list[UserFact]:
    """Return a student's current and proposed facts of all courses, the newest first.

    Args:
        tx: The transaction, or a read.
        user_id: The student.
        limit: The most facts that are returned, among which all levels and claims are.
    """
    slot = user_facts.c.slot
    is_of_skill = or_(*(slot.startswith(prefix, autoescape=True) for prefix in PREFIXES))
    parameters = {"user_id": user_id, "states": list(_STATES), "limit": limit}
    return FACTS.all(tx, _newest(is_of_skill), parameters)


def facts_of_slot(tx: Transaction, user_id: str, slot: str) -> list[UserFact]:
    """Return a student's facts of one slot in any state, the oldest first.

    Args:
        tx: The transaction, or a read.
        user_id: The student.
        slot: The slot, such as `level_slot` returns it.
    """
    return FACTS.all(tx, _OF_SLOT, {"user_id": user_id, "slot": slot})


def levels_of_students(tx: Transaction, organization_id: str, course: str) -> list[UserFact]:
    """Return the current levels of all students of an organization in a course.

    Args:
        tx: The transaction, or a read.
        organization_id: The students' organization.
        course: The course's name.
    """
    of_course = _of_course(course, LEVEL)
    statement = FACTS.select.where(equal(user_facts, "organization_id"), _LIVE, of_course)
    return FACTS.all(tx, statement, {"organization_id": organization_id, "states": ["current"]})


def observations_of_students(
    tx: Transaction, organization_id: str, course: str, since: int
) -> list[UserFact]:
    """Return the current observations of all students from messages since this time.

    The oldest comes first.

    Args:
        tx: The transaction.
        organization_id: The students' organization.
        course: The course's name.
        since: The time in microseconds of the first message that counts.
    """
    statement = FACTS.select.where(
        equal(user_facts, "organization_id"),
        _LIVE,
        _of_course(course, OBSERVATION),
        user_facts.c.said_at >= since,
    ).order_by(user_facts.c.said_at, user_facts.c.seq)
    return FACTS.all(tx, statement, {"organization_id": organization_id, "states": ["current"]})


def oldest_by_student(tx: Transaction, organization_id: str, course: str) -> dict[str, int]:
    """Return the time of each student's oldest observation or claim in a course, by user id.

    Facts in all states count. Times are in microseconds.

    Args:
        tx: The transaction, or a read.
        organization_id: The students' organization.
        course: The course's name.
    """
    statement = (
        select(user_facts.c.user_id, func.min(user_facts.c.said_at).label("said_at"))
        .where(equal(user_facts, "organization_id"), _of_course(course, OBSERVATION, CLAIM))
        .group_by(user_facts.c.user_id)
    )
    rows = tx.all(statement, {"organization_id": organization_id})
    return {row.user_id: row.said_at for row in rows}


def remove(tx: Transaction, facts: Sequence[UserFact]) -> None:
    """Delete these facts.

    Args:
        tx: The transaction.
        facts: The facts; may be empty.
    """
    ids = [fact.id for fact in facts]
    if ids:
        tx.run(delete(user_facts).where(one_of(user_facts.c.id, "ids")), {"ids": ids})


def _of_course(course: str, *prefixes: str) -> ColumnElement[bool]:
    """Return the condition that a fact is of this course and its slot has one of the prefixes."""
    slot = user_facts.c.slot
    return or_(
        *(slot.startswith(f"{prefix}{course}/", autoescape=True) for prefix in prefixes or PREFIXES)
    )
