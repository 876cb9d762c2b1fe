"""The SQL of the audit log: append, read and expire rows of a chain."""

import secrets
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.operations.audit_log.tables import audit_chains, audit_log, audit_people
from ricordo.storage import users
from ricordo.storage.engine.repository import Missing, Page, equal, one_of, read_page, setter
from ricordo.storage.engine.store import Transaction

START = "0" * 64
AT_ONCE = 1000
# The columns that enter a row's hash, in this order.
HASHED = (
    "organization_id",
    "number",
    "created_at",
    "person",
    "on_behalf_of",
    "key_id",
    "role",
    "action",
    "objects",
    "status",
    "repeats",
    "previous",
)
_NEW_CHAIN = {"number": 0, "hash": START, "first": 1, "anchor": START}
_CHAIN = select(audit_chains).where(equal(audit_chains, "organization_id"))
_LOCKED_CHAIN = _CHAIN.with_for_update()
_INSERT = insert(audit_log)
_INSERT_PERSON = insert(audit_people)
_INSERT_CHAIN = Missing(audit_chains)
_MOVE = setter(
    audit_chains, "number", "hash", where=audit_chains.c.organization_id == bindparam("this")
)
_PEOPLE = select(audit_people).where(one_of(audit_people.c.id, "ids"))
_OF_USER = select(audit_people.c.id).where(equal(audit_people, "user_id"))
_by = audit_people.alias("by_whom")
_for = audit_people.alias("for_whom")
_ROWS = (
    select(
        audit_log,
        _by.c.user_id,
        _by.c.address,
        users.shown_name_of(_by.c.user_id).label("user"),
        _for.c.user_id.label("for_user_id"),
        users.shown_name_of(_for.c.user_id).label("for_user"),
    )
    .outerjoin(_by, _by.c.id == audit_log.c.person)
    .outerjoin(_for, _for.c.id == audit_log.c.on_behalf_of)
)
Person = tuple[str, str | None, str]
"""An organization, a user's id, and an address."""


@dataclass(slots=True)
class AuditDraft:
    """A row without its number and pseudonyms.

    `for_user` is an id or a name. `objects` are ids by parameter name. `repeats` is the number of
    requests that the row counts. `created_at` is in microseconds.
    """

    action: str
    status: int
    created_at: int
    organization_id: str = LOCAL_ORGANIZATION
    user_id: str | None = None
    address: str = ""
    for_user: str | None = None
    key_id: str | None = None
    role: str | None = None
    objects: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A selection of rows; None selects all.

    `user_id` selects the rows of requests by this user or on behalf of this user. `action` selects
    the rows whose action contains this text. `refused` selects only refused requests. `since` and
    `until` are in microseconds, and rows at these times are selected too.
    """

    user_id: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None
    refused: bool = False

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        rows = audit_log.c
        if self.user_id:
            pseudonyms = _OF_USER.params(user_id=self.user_id)
            yield rows.person.in_(pseudonyms) | rows.on_behalf_of.in_(pseudonyms)
        if self.action:
            yield func.lower(rows.action).contains(self.action.lower(), autoescape=True)
        if self.since is not None:
            yield rows.created_at >= self.since
        if self.until is not None:
            yield rows.created_at <= self.until
        if self.refused:
            yield rows.status.in_((401, 403))


def hash_of(row: Mapping[str, Any]) -> str:
    """Return the hash of a row, which the next row stores.

    Args:
        row: The row in its stored form, with at least the columns of `HASHED`.
    """
    content = orjson.dumps([row[name] for name in HASHED], option=orjson.OPT_SORT_KEYS)
    return sha256(content).hexdigest()


def pseudonym(salt: str, person: Person) -> str:
    """Return the pseudonym of a person in rows; without the salt it cannot be traced back.

    Args:
        salt: A random text that is stored with the person, and is deleted with it.
        person: The person.
    """
    return "person-" + sha256(orjson.dumps([salt, *person])).hexdigest()[:32]


def append(
    tx: Transaction, drafts: Sequence[AuditDraft], pseudonyms: Mapping[Person, str]
) -> dict[Person, str]:
    """Add rows to the ends of their chains, and return the new pseudonyms.

    Args:
        tx: The transaction.
        drafts: The rows, in the order in which they are numbered.
        pseudonyms: The pseudonyms that earlier calls returned. It is not changed.
    """
    by_organization: dict[str, list[AuditDraft]] = defaultdict(list)
    for draft in drafts:
        by_organization[draft.organization_id].append(draft)
    new_pseudonyms: dict[Person, str] = {}
    # Chains are locked in sorted order, so that two servers never wait for each other.
    for organization_id, organization_drafts in sorted(by_organization.items()):
        chain = _lock_chain(tx, organization_id)
        people = _people(
            tx,
            organization_id,
            organization_drafts,
            pseudonyms=pseudonyms,
            new_pseudonyms=new_pseudonyms,
        )
        number = chain.number
        previous = chain.hash
        rows = []
        for draft, (person, on_behalf_of) in zip(organization_drafts, people, strict=True):
            number += 1
            row = {
                "id": new_id("audit"),
                "organization_id": organization_id,
                "number": number,
                "created_at": draft.created_at,
                "person": person,
                "on_behalf_of": on_behalf_of,
                "key_id": draft.key_id,
                "role": draft.role,
                "action": draft.action,
                "objects": dict(draft.objects),
                "status": draft.status,
                "repeats": draft.repeats,
                "previous": previous,
            }
            previous = hash_of(row)
            rows.append(row)
        tx.run(_INSERT, rows)
        tx.run(_MOVE, {"this": organization_id, "new_number": number, "new_hash": previous})
    return new_pseudonyms


def _lock_chain(tx: Transaction, organization_id: str) -> Any:
    """Return the organization's chain and lock it; a missing one is created."""
    parameters = {"organization_id": organization_id}
    chain = tx.first(_LOCKED_CHAIN, parameters)
    if chain is None:
        tx.run(_INSERT_CHAIN, parameters | _NEW_CHAIN)
        chain = tx.first(_LOCKED_CHAIN, parameters)
    return chain


def _without_pseudonym(
    pairs: Iterable[tuple[Person, Person]], pseudonyms: Container[Person]
) -> set[Person]:
    return {
        person
        for pair in pairs
        for person in pair
        if (person[1] or person[2]) and person not in pseudonyms
    }


def _people(
    tx: Transaction,
    organization_id: str,
    drafts: Sequence[AuditDraft],
    *,
    pseudonyms: Mapping[Person, str],
    new_pseudonyms: dict[Person, str],
) -> list[tuple[str | None, str | None]]:
    """Return the pseudonyms of each draft's caller, and of the user for whom the caller acted.

    New pseudonyms are stored, and added to `new_pseudonyms`.
    """
    pairs: list[tuple[Person, Person]] = []
    for draft in drafts:
        user = draft.for_user and users.named(tx, organization_id, draft.for_user)
        if user and user.id != draft.user_id:
            for_user_id = user.id
        else:
            for_user_id = None
        caller: Person = (organization_id, draft.user_id, draft.address)
        pairs.append((caller, (organization_id, for_user_id, "")))
    new_people = _without_pseudonym(pairs, pseudonyms)
    # A user who was erased meanwhile gets no pseudonym, since it would lead back to the user.
    user_ids = sorted({user_id for _, user_id, _ in new_people if user_id})
    existing_ids = users.existing_ids(tx, organization_id, user_ids)
    for person in sorted(new_people, key=repr):
        if person[1] is None or person[1] in existing_ids:
            new_pseudonyms[person] = _insert_person(tx, person)
    all_pseudonyms = {**pseudonyms, **new_pseudonyms}
    return [
        (all_pseudonyms.get(caller), all_pseudonyms.get(for_user)) for caller, for_user in pairs
    ]


def _insert_person(tx: Transaction, person: Person) -> str:
    organization_id, user_id, address = person
    salt = secrets.token_hex(16)
    person_id = pseudonym(salt, person)
    columns = {
        "id": person_id,
        "organization_id": organization_id,
        "user_id": user_id,
        "address": address,
        "salt": salt,
        "created_at": tx.clock.now(),
    }
    tx.run(_INSERT_PERSON, columns)
    return person_id


def page(
    tx: Transaction, organization_id: str, page: Page, row_filter: AuditFilter
) -> list[dict[str, Any]]:
    """Return one page of rows, with the people behind the pseudonyms.

    The fields of an erased person are None.

    Args:
        tx: The transaction.
        organization_id: The organization whose chain is read.
        page: The requested part of the list, ordered by number.
        row_filter: The selection of rows.

    Returns:
        Rows of the log as dicts by column, with `user_id`, `address`, `user`, `for_user_id` and
        `for_user` added.
    """
    statement = _ROWS.where(
        audit_log.c.organization_id == organization_id, *row_filter.conditions()
    )
    return [_read(row) for row in read_page(tx, statement, audit_log, page, by=("number",))]


def rows_after(tx: Transaction, organization_id: str, number: int) -> list[dict[str, Any]]:
    """Return the next rows of the chain in their stored form, at most 1,000.

    Args:
        tx: The transaction.
        organization_id: The organization whose chain is read.
        number: The rows after the row with this number are returned.
    """
    next_rows = (
        select(audit_log)
        .where(audit_log.c.organization_id == organization_id, audit_log.c.number > number)
        .order_by(audit_log.c.number)
        .limit(AT_ONCE)
    )
    return [_read(row) for row in tx.all(next_rows)]


def people(tx: Transaction, ids: Sequence[str]) -> Sequence[Row[Any]]:
    return tx.all(_PEOPLE, {"ids": list(ids)})


def chains(tx: Transaction) -> Sequence[Row[Any]]:
    return tx.all(select(audit_chains).order_by(audit_chains.c.seq))


def expire(tx: Transaction, organization_id: str, before: int) -> bool:
    """Delete some rows older than this time; return True if there may be more.

    The hash of the last deleted row is stored as the chain's anchor.

    Args:
        tx: The transaction.
        organization_id: The organization, which must have a chain.
        before: A time in microseconds.
    """
    chain = tx.first(_LOCKED_CHAIN, {"organization_id": organization_id})
    rows = rows_after(tx, organization_id, chain.first - 1)
    old_rows = list(takewhile(lambda row: row["created_at"] < before, rows))
    if not old_rows:
        return False
    last = old_rows[-1]
    first = last["number"] + 1
    tx.run(
        delete(audit_log).where(
            audit_log.c.organization_id == organization_id, audit_log.c.number < first
        )
    )
    tx.run(
        update(audit_chains)
        .where(audit_chains.c.seq == chain.seq)
        .values(first=first, anchor=hash_of(last))
    )
    if len(old_rows) == AT_ONCE:
        return True
    is_unused = [
        audit_people.c.id.not_in(select(column).where(column.is_not(None)))
        for column in (audit_log.c.person, audit_log.c.on_behalf_of)
    ]
    # Delete only old pseudonyms, since a server may have cached a newer one that is in no row yet.
    is_old = (audit_people.c.organization_id == organization_id) & (
        audit_people.c.created_at < before
    )
    tx.run(delete(audit_people).where(is_old, *is_unused))
    return False


def _read(row: Row[Any]) -> dict[str, Any]:
    return {str(name): column for name, column in row._mapping.items()}
