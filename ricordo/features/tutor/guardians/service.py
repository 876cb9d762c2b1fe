"""Link guardians with students, and decide what a guardian may see.

A guardian sees the skills of a course if the student allows it, or if the course does. The student
may allow only the levels, or also the quotes that support them. A course can allow only the levels.
A course for which the student switched learning off is never shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ricordo.domain.scope import LOCAL_USER, Scope, User
from ricordo.errors import Invalid, NotFound
from ricordo.features.tutor.guardians import queries
from ricordo.features.tutor.guardians.queries import Guardianship, Sight
from ricordo.features.tutor.learning import service as learning
from ricordo.features.tutor.learning.records import SkillState
from ricordo.features.tutor.learning.service import Learner
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

MOST_GUARDIANS = 20


@dataclass(frozen=True, slots=True)
class WatchedCourse:
    """A student's course as a guardian sees it. `sees` is `levels` or `words`."""

    learner: Learner
    states: Sequence[SkillState]
    sees: Sight


def link(tx: Transaction, scope: Scope, student_name: str, guardian_name: str) -> Guardianship:
    """Make a user a guardian of a student, and return the guardianship.

    Called again, it changes nothing.

    Args:
        tx: The transaction.
        scope: The caller.
        student_name: The student's id or identifier.
        guardian_name: The guardian's id or identifier.

    Raises:
        Forbidden: the caller may not change the organization's users.
        Invalid: the two are one person, one of them runs the server, or the student has too many
            guardians.
        NotFound: one of the two is unknown.
    """
    student, guardian = _both(tx, scope, student_name, guardian_name)
    if student.id == guardian.id:
        raise Invalid("A student cannot be their own guardian. Name two users.")
    if LOCAL_USER in (student.id, guardian.id):
        raise Invalid("This is the user who runs the server. Name another user.")
    users.lock(tx, student.id)
    guardianships = queries.of_student(tx, student.id)
    if stored := _find(guardianships, guardian.id):
        return stored
    if len(guardianships) >= MOST_GUARDIANS:
        raise Invalid(f"A student has at most {MOST_GUARDIANS} guardians. Remove one first.")
    queries.add(tx, student, guardian)
    return _require(tx, student, guardian.id)


def unlink(tx: Transaction, scope: Scope, student_name: str, guardian_name: str) -> None:
    """End a guardianship.

    Args:
        tx: The transaction.
        scope: The caller.
        student_name: The student's id or identifier.
        guardian_name: The guardian's id or identifier.

    Raises:
        Forbidden: the caller may not change the organization's users.
        NotFound: one of the two is unknown, or they are not linked.
    """
    student, guardian = _both(tx, scope, student_name, guardian_name)
    if not queries.remove(tx, student.id, guardian.id):
        raise _not_linked(guardian_name)


def _both(
    tx: Transaction, scope: Scope, student_name: str, guardian_name: str
) -> tuple[User, User]:
    users.require_all_users(scope)
    return users.require(tx, scope, student_name), users.require(tx, scope, guardian_name)


def allow(tx: Transaction, student: User, guardian_name: str, sees: Sight) -> Guardianship:
    """Store what the student lets this guardian see.

    Args:
        tx: The transaction.
        student: The student.
        guardian_name: The guardian's id or identifier.
        sees: The new permission.

    Raises:
        NotFound: the student has no such guardian.
    """
    guardianship = _require(tx, student, guardian_name)
    queries.set_sees(tx, student.id, guardianship.person.id, sees)
    return replace(guardianship, sees=sees)


def students_of(tx: Transaction, scope: Scope) -> list[Guardianship]:
    """Return the caller's students who are not disabled; [] for a caller without a user."""
    if scope.subject is None:
        return []
    found = queries.of_guardian(tx, scope.subject)
    return [guardianship for guardianship in found if guardianship.person.disabled_at is None]


def watched_courses(
    tx: Transaction, scope: Scope, student_name: str
) -> tuple[User, Sequence[WatchedCourse]]:
    """Return a student of the caller, and the courses that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller, who must act as a user.
        student_name: The student's id or identifier.

    Raises:
        NotFound: the caller is not a guardian of such a student.
    """
    guardianship = _of_caller(tx, scope, student_name)
    watched = [
        WatchedCourse(learner, states, sees)
        for learner, states in learning.learning_of(tx, guardianship.person)
        if (sees := _sight_in(learner, guardianship)) != "nothing"
    ]
    return guardianship.person, watched


def watched_course(
    tx: Transaction, scope: Scope, student_name: str, course_name: str
) -> tuple[User, WatchedCourse]:
    """Return a student of the caller, and one of the courses that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller, who must act as a user.
        student_name: The student's id or identifier.
        course_name: The course's name.

    Raises:
        NotFound: there is no such student or course, or the caller may not see it.
    """
    guardianship = _of_caller(tx, scope, student_name)
    if found := learning.learning_in(tx, guardianship.person, course_name):
        learner, states = found
        if (sees := _sight_in(learner, guardianship)) != "nothing":
            return guardianship.person, WatchedCourse(learner, states, sees)
    raise NotFound("You see no such course of this student. Ask the student to let you see it.")


def _of_caller(tx: Transaction, scope: Scope, student_name: str) -> Guardianship:
    """Return the caller's guardianship of a student. Raises NotFound."""
    guardianship = _find(students_of(tx, scope), student_name)
    if guardianship is None:
        raise NotFound("You are not a guardian of such a student.")
    return guardianship


def _sight_in(learner: Learner, guardianship: Guardianship) -> Sight:
    if learner.choice.is_off:
        return "nothing"
    if guardianship.sees == "nothing" and learner.course.guardians_see:
        return "levels"
    return guardianship.sees


def _find(guardianships: Sequence[Guardianship], name: str) -> Guardianship | None:
    """Return the guardianship whose other person has this id or identifier."""
    return next((g for g in guardianships if name in (g.person.id, g.person.identifier)), None)


def _require(tx: Transaction, student: User, guardian_name: str) -> Guardianship:
    guardianship = _find(queries.of_student(tx, student.id), guardian_name)
    if guardianship is None:
        raise _not_linked(guardian_name)
    return guardianship


def _not_linked(name: str) -> NotFound:
    return NotFound(f'"{name[:80]}" is not a guardian of this student.')
