"""Users: the people memory is about. One is named by her id, or by the identifier she has where she comes from."""

import re
from typing import Any

from sqlalchemy import Row, bindparam, or_, select

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import Scope, User
from ricordo.errors import Invalid, NotFound
from ricordo.storage.repository import Missing
from ricordo.storage.store import Transaction
from ricordo.storage.tables import users

_LONGEST = 255
# A name is a part of addresses, of the author's line of commits, and of one line in every list.
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\<>]|^\.{1,2}$|^\s|\s$")
_COLUMNS = [column for column in users.c if column.name != "seq"]
_NAMED = (
    select(*_COLUMNS)
    .where(
        users.c.organization_id == bindparam("organization_id"),
        or_(users.c.id == bindparam("name"), users.c.identifier == bindparam("name")),
    )
    .limit(2)
)
_LOCK = select(users.c.id).where(users.c.id == bindparam("id")).with_for_update(key_share=True)
_INSERT = Missing(users)


def find(tx: Transaction, scope: Scope, name: str) -> User | None:
    """The user with this id or identifier, if there is one that the caller may know of; an id stands above an identifier."""
    if "\0" in name:
        return None  # PostgreSQL would not even look
    rows = tx.all(_NAMED, {"organization_id": scope.organization_id, "name": name})
    found = sorted((_user(row) for row in rows), key=lambda user: user.id != name)
    return found[0] if found and scope.subject_id in (None, found[0].id) else None


def require(tx: Transaction, scope: Scope, name: str) -> User:
    """The user with this id or identifier; raises NotFound."""
    user = find(tx, scope, name)
    if user is None:
        raise NotFound(f'There is no user "{name[:_LONGEST]}". Check the name.')
    return user


def find_or_make(tx: Transaction, scope: Scope, name: str) -> User:
    """The user with this id or identifier, or a new one with this identifier.

    Raises Invalid for a name that nobody can have, NotFound where the caller may make nobody.
    """
    if user := find(tx, scope, name):
        return user
    if scope.subject_id is not None or is_id(name, "user"):
        # An id is given by us: whoever names one that is not there has lost her, or guesses.
        return require(tx, scope, name)
    _require_fit(name)
    now = tx.clock.now()
    user = User(new_id("user"), scope.organization_id, name, name, now)
    values = {column.name: getattr(user, column.name) for column in _COLUMNS}
    # Where another transaction makes her at the same time, this waits for it and finds her then.
    return user if tx.run(_INSERT, values) else require(tx, scope, name)


def lock(tx: Transaction, user_id: str) -> None:
    """Let nobody else hold this user until this transaction ends."""
    tx.lock(_LOCK, {"id": user_id})


def _require_fit(name: str) -> None:
    if not name or len(name) > _LONGEST or _UNFIT.search(name):
        raise Invalid(
            f'A user cannot be called "{name[:80]}". Use at most {_LONGEST} characters, no "/", "\\", "<", ">", '
            "and no spaces at the ends."
        )


def _user(row: Row[Any]) -> User:
    return User(**row._asdict())
