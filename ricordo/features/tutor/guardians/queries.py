"""The table of guardianships: pairs of a guardian and a student, with the student's permission."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from sqlalchemy import Index, UniqueConstraint, delete, select

from ricordo.domain.scope import User
from ricordo.storage import users
from ricordo.storage.engine.repository import Missing, equal, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import reference, seq, strings, table, timestamps

Sight = Literal["nothing", "levels", "words"]

# `user_id` is the student. A row is deleted with either of the two people.
guardianships = table(
    "guardianships",
    seq(),
    reference("organization_id", "organizations"),
    *strings("user_id", null=False),
    reference("guardian_id", "users"),
    *strings("sees", null=False, erasure="keep"),
    *timestamps("created_at"),
    UniqueConstraint("user_id", "guardian_id"),
    Index("guardianships_by_guardian", "guardian_id"),
    erasure="delete",
)
_INSERT = Missing(guardianships)
_IS_PAIR = equal(guardianships, "user_id", "guardian_id")
_DELETE = delete(guardianships).where(_IS_PAIR)
_SET_SEES = setter(guardianships, "sees", where=_IS_PAIR)
_OF_STUDENT = (
    select(
        guardianships.c.guardian_id.label("person_id"),
        guardianships.c.sees,
        guardianships.c.created_at,
    )
    .where(equal(guardianships, "user_id"))
    .order_by(guardianships.c.seq)
)
_OF_GUARDIAN = (
    select(
        guardianships.c.user_id.label("person_id"), guardianships.c.sees, guardianships.c.created_at
    )
    .where(equal(guardianships, "guardian_id"))
    .order_by(guardianships.c.seq)
)


@dataclass(frozen=True, slots=True)
class Guardianship:
    """One end of a guardianship, with the person at the other end.

    `sees` is the student's permission: `nothing`, the `levels` of skills, or `words` for levels
    with the quotes that support them. `created_at` is in microseconds.
    """

    person: User
    sees: Sight
    created_at: int


def add(tx: Transaction, student: User, guardian: User) -> None:
    """Make this user a guardian of the student, who allows nothing yet.

    A second call changes nothing.

    Args:
        tx: The transaction.
        student: The student.
        guardian: Another user of the same organization; the caller has checked that.
    """
    tx.run(
        _INSERT,
        {
            "organization_id": student.organization_id,
            "user_id": student.id,
            "guardian_id": guardian.id,
            "sees": "nothing",
            "created_at": tx.clock.now(),
        },
    )


def remove(tx: Transaction, student_id: str, guardian_id: str) -> int:
    """End a guardianship; return the number of deleted rows.

    Args:
        tx: The transaction.
        student_id: The student.
        guardian_id: The guardian. If there is no such pair, the number is 0.
    """
    return tx.run(_DELETE, {"user_id": student_id, "guardian_id": guardian_id})


def set_sees(tx: Transaction, student_id: str, guardian_id: str, sees: Sight) -> None:
    """Store what the student allows a guardian to see.

    Args:
        tx: The transaction.
        student_id: The student.
        guardian_id: A user who is a guardian of the student; for others nothing happens.
        sees: The permission.
    """
    pair = {"user_id": student_id, "guardian_id": guardian_id}
    tx.run(_SET_SEES, {**pair, "new_sees": sees})


def of_student(tx: Transaction, student_id: str) -> list[Guardianship]:
    """Return the guardians of a student, the first one first.

    Args:
        tx: The transaction, or a read.
        student_id: The student.
    """
    return _with_people(tx, tx.all(_OF_STUDENT, {"user_id": student_id}))


def of_guardian(tx: Transaction, guardian_id: str) -> list[Guardianship]:
    """Return the students of a guardian, the first one first.

    Args:
        tx: The transaction, or a read.
        guardian_id: The guardian.
    """
    return _with_people(tx, tx.all(_OF_GUARDIAN, {"guardian_id": guardian_id}))


def _with_people(tx: Transaction, rows: Sequence[Any]) -> list[Guardianship]:
    ids = [row.person_id for row in rows]
    people = {person.id: person for person in users.ROWS.by_ids(tx, ids)} if ids else {}
    return [
        Guardianship(people[row.person_id], cast(Sight, row.sees), row.created_at)
        for row in rows
        if row.person_id in people
    ]
