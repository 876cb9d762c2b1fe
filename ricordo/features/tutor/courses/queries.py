"""The table of courses: the file as applied, and the fault of the present file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import UniqueConstraint, delete

from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.storage.engine.repository import Page, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    json_value,
    names,
    root,
    strings,
    table,
    texts,
    timestamps,
)

courses = table(
    "courses",
    *root(),
    *names("name", null=False),
    *names("title"),
    *texts("description"),
    # The file as last applied, its digest, and the fault of the present file.
    *strings("source", "digest", "fault", erasure="keep"),
    # The ids of its agents, by their names in the file.
    json_value("agents"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="keep",
)


@dataclass(frozen=True, slots=True)
class StoredCourse:
    """A course in the database, with the ids of its agents by name.

    `fault` is the reason why the present file is not in use.
    """

    id: str
    organization_id: str
    name: str
    title: str | None = None
    description: str | None = None
    source: str | None = field(default=None, repr=False)
    digest: str | None = None
    fault: str | None = None
    agents: Mapping[str, str] = field(default_factory=dict)
    created_at: int = 0
    updated_at: int = 0


_ROWS = Repository(StoredCourse, courses)
_NAMED = _ROWS.select.where(equal(courses, "organization_id", "name"))
_LOCK = _NAMED.with_for_update()
_update = _ROWS.updates("title", "description", "source", "digest", "fault", "agents", "updated_at")


def find(tx: Transaction, scope: Scope, name: str) -> StoredCourse | None:
    """Return the course with this name, or None.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The exact name.
    """
    return _ROWS.first(tx, _NAMED, {"organization_id": scope.organization_id, "name": name})


def get(tx: Transaction, scope: Scope, name: str, *, locks: bool = False) -> StoredCourse:
    """Return the course.

    Args:
        tx: The transaction.
        scope: The caller, whose organization has the course.
        name: The course's name.
        locks: Lock its row until the transaction ends.

    Raises:
        NotFound: if there is no such course.
    """
    named = {"organization_id": scope.organization_id, "name": name}
    if locks:
        course = _ROWS.first_locked(tx, _LOCK, named)
    else:
        course = _ROWS.first(tx, _NAMED, named)
    if course is None:
        raise NotFound(f'There is no course "{name[:80]}". Create it with: ricordo course new NAME')
    return course


def page(tx: Transaction, scope: Scope, page: Page) -> Sequence[StoredCourse]:
    """Return one page of the organization's courses.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page: The part of the list, by creation.
    """
    return _ROWS.page(tx, scope, page)


def all_courses(tx: Transaction, scope: Scope) -> Sequence[StoredCourse]:
    """Return all courses of the organization, sorted by name.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    listed = _ROWS.select.where(equal(courses, "organization_id")).order_by(courses.c.name)
    return _ROWS.all(tx, listed, {"organization_id": scope.organization_id})


def insert(tx: Transaction, course: StoredCourse) -> None:
    """Store a new course; its times are set here.

    Args:
        tx: The transaction.
        course: The course with its id.

    Raises:
        Collision: The organization has a course of this name.
    """
    now = tx.clock.now()
    _ROWS.insert(tx, replace(course, created_at=now, updated_at=now))


def change(tx: Transaction, course: StoredCourse) -> None:
    """Store a changed course.

    Args:
        tx: The transaction, which has locked the course with `get`.
        course: The course; all columns that may change are written.
    """
    _update(tx, replace(course, updated_at=tx.clock.now()))


def remove(tx: Transaction, course: StoredCourse) -> None:
    """Delete the course's record; its agents remain.

    Args:
        tx: The transaction.
        course: The course.
    """
    tx.run(delete(courses).where(courses.c.id == course.id))
