"""Users: people with memory, each named by an id or by an identifier from another system."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, bindparam, func, or_, select, update

from ricordo.domain.hidden_text import without_hidden_text
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.look_alikes import are_alike, look_of
from ricordo.domain.scope import LOCAL_USER, Scope, User
from ricordo.errors import Collision, Conflict, Forbidden, Invalid, NotFound
from ricordo.storage.engine.repository import Missing, Page, Repository, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import users

_LONGEST = 255
# A name appears in addresses, in a commit's author line, and in one line of a list.
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\<>]|^\.{1,2}$|^\s|\s$")
_UNFIT_IN_NAME = re.compile(r"[\x00-\x1f\x7f/\\<>]")
ROWS = Repository(User, users)
_IS_NAMED = or_(users.c.id == bindparam("name"), users.c.identifier == bindparam("name"))
_NAMED = ROWS.select.where(equal(users, "organization_id"), _IS_NAMED).limit(2)
_WITH_EMAIL = ROWS.select.where(
    equal(users, "organization_id"), func.lower(users.c.email) == bindparam("address")
).limit(2)
_MOST_NAMESAKES = 5  # users of all organizations with one e-mail address
_ENABLED_WITH_EMAIL = (
    ROWS.select.where(
        func.lower(users.c.email) == bindparam("address"), users.c.disabled_at.is_(None)
    )
    .order_by(users.c.seq)
    .limit(_MOST_NAMESAKES)
)
_EXISTING = select(users.c.id).where(one_of(users.c.id, "ids"), equal(users, "organization_id"))
_ALIKE = ROWS.select.where(equal(users, "organization_id", "look")).limit(100)
_LOCK = select(users.c.id).where(equal(users, "id")).with_for_update(key_share=True)
_INSERT = Missing(users)
_change = ROWS.updates(
    "name", "identifier", "email", "disabled_at", "identity_type", "properties", "former"
)
_set_look = update(users).where(equal(users, "id")).values(look=bindparam("new_look"))
_EMAIL = re.compile(r"[^\s@<>\x00-\x1f\ud800-\udfff]{1,120}@[^\s@<>\x00-\x1f\ud800-\udfff]{1,120}")


@dataclass(frozen=True, slots=True)
class UserDraft:
    """A user to create.

    Attributes:
        name: The name that people see.
        identifier: The name in other systems, unique in the organization; None: none.
        identity_type: The kind of identity for older clients, such as "user".
        properties: Properties of the identity, as older clients send them.
        id: The id of an imported user; None: a new one.
    """

    name: str
    identifier: str | None = None
    email: str | None = None
    identity_type: str | None = None
    properties: tuple[Mapping[str, Any], ...] = ()
    id: str | None = None


def find(tx: Transaction, scope: Scope, name: str) -> User | None:
    """Return the user with this id or identifier, if the caller may know of the user.

    Args:
        tx: The transaction.
        scope: The caller. One who is limited to a user's data knows only of this user.
        name: An id or an identifier, not a user's shown name.
    """
    user = named(tx, scope.organization_id, name)
    if user and scope.subject_id in (None, user.id):
        return user
    return None


def named(tx: Transaction, organization_id: str, name: str) -> User | None:
    """Return the user with this id or identifier, for any caller.

    Args:
        tx: The transaction.
        organization_id: The organization.
        name: An id or an identifier. If it matches two users, the user with this id is returned.
    """
    if "\0" in name:
        return None  # PostgreSQL would refuse the parameter
    matches = ROWS.all(tx, _NAMED, {"organization_id": organization_id, "name": name})
    return min(matches, key=lambda user: user.id != name, default=None)


def require(tx: Transaction, scope: Scope, name: str) -> User:
    """Return the user with this id or identifier.

    Args:
        tx: The transaction.
        scope: The caller.
        name: An id or an identifier, not a user's shown name.

    Raises:
        NotFound: There is no such user, or the caller may not know of the user.
    """
    user = find(tx, scope, name)
    if user is None:
        raise unknown(name)
    return user


def unknown(name: str) -> NotFound:
    """Return the error for a user who does not exist, or whom the caller may not know of.

    Args:
        name: The name that the caller sent. It is shown, cut to 255 characters.
    """
    return NotFound(f'There is no user "{name[:_LONGEST]}". Check the name.')


def user_id_of(identity_id: str) -> str:
    """Return the id of the user whom older clients name by this identity.

    Args:
        identity_id: An id such as `identity-<uuid>`.
    """
    return f"user-{identity_id.removeprefix('identity-')}"


def ids_of(
    tx: Transaction, scope: Scope, identity_id: str | None, keys: Sequence[str]
) -> list[str] | None:
    """Return the ids of users with this identity or these identifiers.

    Users who do not exist, or whom the caller may not know of, are left out.

    Args:
        tx: The transaction.
        scope: The caller.
        identity_id: A user's id in the form of older clients; None or "": none.
        keys: Ids or identifiers of users.

    Returns:
        The ids; None if neither an identity nor a key is given, so nothing is filtered.
    """
    names = [*keys, *([user_id_of(identity_id)] if identity_id else ())]
    if names:
        return [user.id for name in names if (user := find(tx, scope, name))]
    return None


def find_or_make(tx: Transaction, scope: Scope, name: str, *, is_subject: bool = False) -> User:
    """Return the user with this id or identifier, or create one with this identifier.

    Args:
        tx: The transaction.
        scope: The caller.
        name: An id or an identifier. An unknown id creates no user.
        is_subject: The name comes from a login provider. It may look like another user's name,
            since the provider distinguishes them.

    Raises:
        Invalid: No user can have this name.
        NotFound: There is no such user, and the caller may not create it.
        Collision: The name looks like another user's.
    """
    if user := find(tx, scope, name):
        return user
    if scope.subject_id is not None or is_id(name, "user"):
        # Only this server makes ids, so an unknown id belongs to a deleted user or is guessed.
        return require(tx, scope, name)
    require_fit_name(name)
    if not is_subject:
        _require_distinct_name(tx, scope.organization_id, name)
    now = tx.clock.now()
    user = User(new_id("user"), scope.organization_id, name, name, now)
    # If another transaction inserts the same user, this insert waits for it and then finds the
    # user.
    if _insert(tx, user):
        return user
    return require(tx, scope, name)


def is_email(address: str) -> bool:
    """Return True if a user can have this e-mail address.

    Args:
        address: A text from anywhere.
    """
    return _EMAIL.fullmatch(address) is not None


def require_fit_name(name: str, subject: str = "A user") -> None:
    """Raise Invalid for a name that does not fit into an address or a line.

    Args:
        name: The name to check.
        subject: The beginning of the error message, such as "A user".
    """
    if not name or len(name) > _LONGEST or _UNFIT.search(name):
        raise Invalid(
            f'{subject} cannot be called "{name[:80]}". Use at most {_LONGEST} characters, no "/", '
            '"\\", "<", ">", and no spaces at the ends.'
        )


def lock(tx: Transaction, user_id: str) -> None:
    """Lock a user until the transaction ends. Does nothing on SQLite.

    Args:
        tx: The transaction.
        user_id: The user. If there is none, nothing is locked.
    """
    tx.lock(_LOCK, {"id": user_id})


def with_email(tx: Transaction, scope: Scope, address: str) -> User | None:
    """Return the only user with this e-mail address; None if there is none, or several.

    Args:
        tx: The transaction.
        scope: The organization; the caller's user does not matter.
        address: The address in upper or lower case; "" matches no user.
    """
    if not address or "\0" in address:
        return None
    parameters = {"organization_id": scope.organization_id, "address": address.lower()}
    matches = ROWS.all(tx, _WITH_EMAIL, parameters)
    if len(matches) == 1:
        return matches[0]
    return None


def enabled_with_email(tx: Transaction, address: str) -> list[User]:
    """Return the enabled users of all organizations with this e-mail address.

    There are at most five, the oldest first.

    Args:
        tx: The transaction.
        address: The address in upper or lower case.
    """
    if "\0" in address:
        return []  # PostgreSQL would refuse the parameter
    return ROWS.all(tx, _ENABLED_WITH_EMAIL, {"address": address.lower()})


def existing_ids(tx: Transaction, organization_id: str, ids: Sequence[str]) -> set[str]:
    """Return the ids among these that belong to users of the organization.

    Args:
        tx: The transaction.
        organization_id: The organization.
        ids: Ids of users.
    """
    if not ids:
        return set()
    rows = tx.all(_EXISTING, {"ids": list(ids), "organization_id": organization_id})
    return {row.id for row in rows}


def shown_name_of(user_id: ColumnElement[str]) -> ScalarSelect[Any]:
    """Return a select of the name by which people know the user with the id in this column.

    Args:
        user_id: A column of another table that the select is used with.

    Returns:
        A select of the identifier, or else of the name; NULL if there is no such user.
    """
    name = func.coalesce(users.c.identifier, users.c.name)
    return select(name).where(users.c.id == user_id).correlate(user_id.table).scalar_subquery()


def is_among(user_ids: Select[Any]) -> ColumnElement[bool]:
    """Return the condition that a user is one of those selected.

    Args:
        user_ids: A select of user ids.
    """
    return users.c.id.in_(user_ids)


def page(tx: Transaction, scope: Scope, page: Page, **equal: Any) -> list[User]:
    """Return one page of the users that the caller may know of, filtered by columns.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        **equal: Values by column; None is ignored.
    """
    return ROWS.page(tx, scope, page, id=scope.subject_id, **equal)


def page_named_like(tx: Transaction, scope: Scope, page: Page, text: str) -> list[User]:
    """Return one page of the users with this text in their names.

    Args:
        tx: The transaction.
        scope: The caller; users that the caller may not know of are left out.
        page: The part of the list.
        text: A part of the name or of the identifier, in upper or lower case; "" returns all users.
    """
    columns = (users.c.name, users.c.identifier)
    is_named = None
    if text:
        is_named = or_(*(column.icontains(text, autoescape=True) for column in columns))
    return ROWS.page(tx, scope, page, is_named, id=scope.subject_id)


def count(tx: Transaction, scope: Scope) -> int:
    """Return the number of users that the caller may know of.

    Args:
        tx: The transaction.
        scope: The caller.
    """
    return ROWS.count(tx, scope, *([users.c.id == scope.subject_id] if scope.subject_id else []))


def create(tx: Transaction, scope: Scope, user: UserDraft) -> User:
    """Create a user.

    Args:
        tx: The transaction.
        scope: The caller, who must see the whole organization.
        user: The user to create.

    Raises:
        Collision: The identifier is used, looks like another user's, or has the form of an id; or
            the id is used.
        Invalid: The name, the identifier or the e-mail address is wrong.
        Forbidden: The caller does not see the whole organization.
    """
    require_all_users(scope)
    new_user = replace(
        User(
            user.id or new_id("user"),
            scope.organization_id,
            user.name,
            user.identifier,
            tx.clock.now(),
        ),
        email=user.email,
        identity_type=user.identity_type,
        properties=user.properties,
    )
    _require_sound(tx, new_user)
    _require_distinct_name(tx, new_user.organization_id, new_user.identifier)
    if not _insert(tx, new_user):
        raise Collision(_name_in_use(new_user.identifier))
    return new_user


def change(tx: Transaction, scope: Scope, user_id: str, edit: Callable[[User], User]) -> User:
    """Change a user, locked against other changes. The memory stays, even under a new identifier.

    A user who had no other name than the identifier is shown under the new one.

    Args:
        tx: The transaction.
        scope: The caller, who must see the whole organization.
        user_id: The user's id.
        edit: Returns the changed user. It gets the user as it is stored when the lock is taken. So
            a change of one field keeps another request's change of a different field.

    Raises:
        NotFound: There is no such user.
        Collision: The identifier is used, looks like another user's, or has the form of an id.
        Conflict: The user runs the server and would be disabled.
        Invalid: The name, the identifier or the e-mail address is wrong.
        Forbidden: The caller does not see the whole organization.
    """
    require_all_users(scope)
    lock(tx, user_id)
    stored = require(tx, scope, user_id)
    changed = _with_shown_name(stored, edit(stored))
    if changed.id == LOCAL_USER and changed.disabled_at is not None:
        raise Conflict("This user runs the server and cannot be disabled.")
    _require_sound(tx, changed)
    if changed.identifier != stored.identifier:
        _require_distinct_name(tx, stored.organization_id, changed.identifier, user_id)
    changed = replace(changed, former=_former_names(stored, changed))
    _change(tx, changed)
    tx.run(_set_look, {"id": user_id, "new_look": _look(changed)})
    return changed


def _with_shown_name(stored: User, changed: User) -> User:
    """Return the changed user; a name that only repeats the identifier follows it."""
    repeats = stored.name == changed.name == stored.identifier
    return replace(changed, name=changed.identifier or changed.name) if repeats else changed


def give_name(tx: Transaction, scope: Scope, identifier: str, person_name: str) -> User:
    """Give a name to a user who has only an identifier; return the user.

    Args:
        tx: The transaction.
        scope: The caller, who must see the whole organization to change a user.
        identifier: The user's identifier or id.
        person_name: The new name. It is put on one line, and cut to 255 characters. An empty one
            changes nothing.

    Raises:
        NotFound: There is no such user.
        Forbidden: The caller does not see the whole organization.
    """
    user = require(tx, scope, identifier)
    one_line = " ".join(_UNFIT_IN_NAME.sub(" ", without_hidden_text(person_name)).split())[
        :_LONGEST
    ].strip()
    if not one_line or user.name != user.identifier or one_line == user.name:
        return user

    def with_name(stored: User) -> User:
        return replace(stored, name=one_line) if stored.name == stored.identifier else stored

    return change(tx, scope, user.id, with_name)


def _former_names(stored: User, changed: User) -> tuple[str, ...]:
    """Return the user's former names, without the current ones."""
    names = dict.fromkeys(
        (*stored.former, stored.name, *([stored.identifier] if stored.identifier else []))
    )
    return tuple(name for name in names if name and name not in (changed.name, changed.identifier))


def _insert(tx: Transaction, user: User) -> int:
    return tx.run(_INSERT, {**ROWS.values(user), "look": _look(user)})


def _look(user: User) -> str | None:
    if user.identifier:
        return look_of(user.identifier)
    return None


def require_all_users(scope: Scope) -> None:
    """Raise Forbidden unless the caller sees the whole organization.

    Args:
        scope: The caller.

    Raises:
        Forbidden: The caller is limited to one user's data or to shared data.
    """
    if scope.subject_id is not None:
        raise Forbidden(
            "Only callers who see the whole organization may change its users. Use an "
            "administrator's key."
        )


def _require_sound(tx: Transaction, user: User) -> None:
    require_fit_name(user.name)
    if user.identifier is not None:
        require_fit_name(user.identifier)
        if is_id(user.identifier, "user"):
            raise Collision("No user can be named by the form of an id. Choose another identifier.")
        other = named(tx, user.organization_id, user.identifier)
        if other and other.id != user.id:
            raise Collision(_name_in_use(user.identifier))
    if user.email and not is_email(user.email):
        raise Invalid(
            f'"{user.email[:80]}" is not an e-mail address. Write it as name@example.org.'
        )


def _require_distinct_name(
    tx: Transaction, organization_id: str, identifier: str | None, id: str | None = None
) -> None:
    """Raise Collision if people would take the identifier for another user's."""
    if not identifier:
        return
    for other in ROWS.all(
        tx, _ALIKE, {"organization_id": organization_id, "look": look_of(identifier)}
    ):
        if (
            other.id != id
            and other.identifier not in (None, identifier)
            and are_alike(identifier, other.identifier)
        ):
            raise Collision(
                f'There is a user "{other.identifier[:_LONGEST]}", whose name looks the same: the '
                "two differ only in case, width, hidden or similar characters. Use that name, or "
                "choose another one."
            )


def _name_in_use(identifier: str | None) -> str:
    return f'A user "{(identifier or "")[:_LONGEST]}" already exists. Choose another identifier.'
