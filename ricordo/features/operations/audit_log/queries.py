"""The SQL of the audit log: rows appended to their chain, read by filters, and deleted when they are old."""

import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.operations.audit_log.tables import audit_chains, audit_log, audit_people
from ricordo.storage import users
from ricordo.storage.engine.repository import Missing, Page, equal, one_of, read_page, setter
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import users as users_table

START = "0" * 64
AT_ONCE = 1000
# What a row's hash is made of, in this order.
HASHED = (
    *(
        "organization_id",
        "number",
        "created_at",
        "person",
        "on_behalf_of",
        "key_id",
        "role",
        "action",
        "objects",
    ),
    *("status", "repeats", "previous"),
)
_NEW_CHAIN = {"number": 0, "hash": START, "first": 1, "anchor": START}
_CHAIN = select(audit_chains).where(equal(audit_chains, "organization_id"))
_LOCKED_CHAIN = _CHAIN.with_for_update()
_INSERT, _INSERT_PERSON, _INSERT_CHAIN = (
    insert(audit_log),
    insert(audit_people),
    Missing(audit_chains),
)
_MOVE = setter(
    audit_chains, "number", "hash", where=audit_chains.c.organization_id == bindparam("this")
)
_EXISTING = select(users_table.c.id).where(
    one_of(users_table.c.id, "ids"), equal(users_table, "organization_id")
)
_PEOPLE = select(audit_people).where(one_of(audit_people.c.id, "ids"))
_OF_USER = select(audit_people.c.id).where(equal(audit_people, "user_id"))
_by, _for = audit_people.alias("by_whom"), audit_people.alias("for_whom")
_by_user, _for_user = users_table.alias("by_user"), users_table.alias("for_user")
_ROWS = (
    select(
        audit_log,
        _by.c.user_id,
        _by.c.address,
        func.coalesce(_by_user.c.identifier, _by_user.c.name).label("user"),
        _for.c.user_id.label("for_user_id"),
        func.coalesce(_for_user.c.identifier, _for_user.c.name).label("for_user"),
    )
    .outerjoin(_by, _by.c.id == audit_log.c.person)
    .outerjoin(_for, _for.c.id == audit_log.c.on_behalf_of)
    .outerjoin(_by_user, _by_user.c.id == _by.c.user_id)
    .outerjoin(_for_user, _for_user.c.id == _for.c.user_id)
)
Person = tuple[str, str | None, str]
"""An organization, a user's id, and an address."""


@dataclass(slots=True)
class AuditDraft:
    """What is to be recorded. `for_user` is an id or a name."""

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
    """Which rows are wanted: by a user or for them, of an action that has these words, of a time, and refused ones alone."""

    user_id: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None
    refused: bool = False

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        rows = audit_log.c
        if self.user_id:
            theirs = _OF_USER.params(user_id=self.user_id)
            yield rows.person.in_(theirs) | rows.on_behalf_of.in_(theirs)
        if self.action:
            yield func.lower(rows.action).contains(self.action.lower(), autoescape=True)
        if self.since is not None:
            yield rows.created_at >= self.since
        if self.until is not None:
            yield rows.created_at <= self.until
        if self.refused:
            yield rows.status.in_((401, 403))


def hash_of(row: Mapping[str, Any]) -> str:
    """Return the hash of a row, which the next one holds."""
    content = orjson.dumps([row[name] for name in HASHED], option=orjson.OPT_SORT_KEYS)
    return sha256(content).hexdigest()


def pseudonym(salt: str, person: Person) -> str:
    """Return the name of this person in rows: nobody can find the person by it without the salt."""
    return "person-" + sha256(orjson.dumps([salt, *person])).hexdigest()[:32]


def append(
    tx: Transaction, drafts: Sequence[AuditDraft], known: Mapping[Person, str]
) -> dict[Person, str]:
    """Add rows to the ends of their chains; returns the pseudonyms that are new, where `known` has those of before."""
    by_organization: dict[str, list[AuditDraft]] = defaultdict(list)
    for draft in drafts:
        by_organization[draft.organization_id].append(draft)
    made: dict[Person, str] = {}
    for organization_id, own in sorted(
        by_organization.items()
    ):  # in one order, so that two servers never wait for each other
        values = {"organization_id": organization_id}
        chain = tx.first(_LOCKED_CHAIN, values)
        if chain is None:
            tx.run(_INSERT_CHAIN, values | _NEW_CHAIN)
            chain = tx.first(_LOCKED_CHAIN, values)
        people = _people(tx, organization_id, own, known, made)
        number, previous, rows = chain.number, chain.hash, []
        for draft, (person, on_behalf_of) in zip(own, people, strict=True):
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
    return made


def _people(
    tx: Transaction,
    organization_id: str,
    drafts: Sequence[AuditDraft],
    known: Mapping[Person, str],
    made: dict[Person, str],
) -> list[tuple[str | None, str | None]]:
    """Return the pseudonyms of who asked and for whom, which are stored where they are new."""
    wanted: list[tuple[Person, Person]] = []
    for draft in drafts:
        named = draft.for_user and users.named(tx, organization_id, draft.for_user)
        for_user = named.id if named and named.id != draft.user_id else None
        by: Person = (organization_id, draft.user_id, draft.address)
        wanted.append((by, (organization_id, for_user, "")))
    fresh = {one for pair in wanted for one in pair if (one[1] or one[2]) and one not in known}
    if fresh:
        # Whoever was forgotten meanwhile gets no pseudonym that leads back to them.
        ids = sorted({user_id for _, user_id, _ in fresh if user_id})
        found = (
            {row.id for row in tx.all(_EXISTING, {"ids": ids, "organization_id": organization_id})}
            if ids
            else set()
        )
        for one in sorted(fresh, key=repr):
            if one[1] is None or one[1] in found:
                made[one] = _insert_person(tx, one)
    names = {**known, **made}
    return [(names.get(by), names.get(for_whom)) for by, for_whom in wanted]


def _insert_person(tx: Transaction, person: Person) -> str:
    salt = secrets.token_hex(16)
    id, (organization_id, user_id, address) = pseudonym(salt, person), person
    values = {
        "id": id,
        "organization_id": organization_id,
        "user_id": user_id,
        "address": address,
        "salt": salt,
    }
    tx.run(_INSERT_PERSON, values | {"created_at": tx.clock.now()})
    return id


def page(
    tx: Transaction, organization_id: str, wanted: Page, asked: AuditFilter
) -> list[dict[str, Any]]:
    """Return the rows of a page, with who is behind their pseudonyms; erased people are None."""
    statement = _ROWS.where(audit_log.c.organization_id == organization_id, *asked.conditions())
    return [_read(row) for row in read_page(tx, statement, audit_log, wanted, by=("number",))]


def rows_after(tx: Transaction, organization_id: str, number: int) -> list[dict[str, Any]]:
    """Return the next rows of the chain as they are stored."""
    its = (audit_log.c.organization_id == organization_id, audit_log.c.number > number)
    return [
        _read(row)
        for row in tx.all(select(audit_log).where(*its).order_by(audit_log.c.number).limit(AT_ONCE))
    ]


def people(tx: Transaction, ids: Sequence[str]) -> Sequence[Row[Any]]:
    return tx.all(_PEOPLE, {"ids": list(ids)})


def chains(tx: Transaction) -> Sequence[Row[Any]]:
    return tx.all(select(audit_chains).order_by(audit_chains.c.seq))


def expire(tx: Transaction, organization_id: str, before: int) -> bool:
    """Delete some rows older than this, and keep the hash of the last of them as the anchor; whether there may be more."""
    chain = tx.first(_LOCKED_CHAIN, {"organization_id": organization_id})
    rows = rows_after(tx, organization_id, chain.first - 1)
    count = next(
        (place for place, row in enumerate(rows) if row["created_at"] >= before), len(rows)
    )
    if count == 0:
        return False
    anchor, first = hash_of(rows[count - 1]), rows[count - 1]["number"] + 1
    tx.run(
        delete(audit_log).where(
            audit_log.c.organization_id == organization_id, audit_log.c.number < first
        )
    )
    tx.run(
        update(audit_chains)
        .where(audit_chains.c.seq == chain.seq)
        .values(first=first, anchor=anchor)
    )
    if count == AT_ONCE:
        return True
    used = (
        select(column).where(column.is_not(None))
        for column in (audit_log.c.person, audit_log.c.on_behalf_of)
    )
    # A newer one may be in use by a server that has not written with it yet.
    is_old = (audit_people.c.organization_id == organization_id) & (
        audit_people.c.created_at < before
    )
    tx.run(delete(audit_people).where(is_old, *(audit_people.c.id.not_in(one) for one in used)))
    return False


def _read(row: Row[Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row._mapping.items()}
