"""Queries of facts, of the marks of read messages, and of policies."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, delete, func, select
from sqlalchemy import insert as insert_row
from sqlalchemy import update as update_rows

from ricordo.domain.egress import join
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts.options import FactPolicy, FactSettings
from ricordo.features.knowledge.facts.records import Evidence, FactKind, FactState, UserFact
from ricordo.features.knowledge.facts.tables import (
    fact_egress,
    fact_marks,
    fact_policies,
    user_facts,
)
from ricordo.plugins import Waiting
from ricordo.storage import unread_conversations
from ricordo.storage.engine.repository import Page, Replacing, Repository, equal, one_of
from ricordo.storage.engine.store import Transaction

# The organization's choice is stored under this user.
EVERYBODY = ""
# A new fact is compared with at most this many of the user's newest facts.
_MOST_COMPARED = 2_000
MOST_AT_ONCE = 2_000  # the most conversations for which one statement looks for unread messages


def _evidence_to_json(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [asdict(piece) for piece in evidence]


def _evidence_from_json(rows: Sequence[dict[str, Any]]) -> tuple[Evidence, ...]:
    return tuple(Evidence(**row) for row in rows)


FACTS = Repository(
    UserFact, user_facts, name="Fact", forms={"evidence": (_evidence_to_json, _evidence_from_json)}
)
get = FACTS.get
by_ids = FACTS.by_ids
update = FACTS.updates(
    "state",
    "evidence",
    "holds_from",
    "holds_until",
    "relation",
    "replaces_id",
    "replacement_id",
    "resolved_at",
    "resolved_by",
    locked="user_id",
)
_OF_STATES = (
    FACTS.select.where(equal(user_facts, "user_id"), one_of(user_facts.c.state, "states"))
    .order_by(user_facts.c.seq.desc())
    .limit(bindparam("limit"))
)
_COUNTS = (
    select(user_facts.c.state, func.count().label("facts"))
    .where(equal(user_facts, "user_id"))
    .group_by(user_facts.c.state)
)
_REPLACED_BY = FACTS.select.where(equal(user_facts, "user_id", "replacement_id"))
_REMOVE = delete(user_facts).where(equal(user_facts, "id"))
_MARK = select(fact_marks.c.read_to).where(equal(fact_marks, "conversation_id", "user_id"))
_SET_MARK = Replacing(fact_marks, "read_to")
_POLICIES = select(fact_policies.c.user_id, fact_policies.c.policy).where(
    equal(fact_policies, "organization_id"), one_of(fact_policies.c.user_id, "user_ids")
)
_SET_POLICY = Replacing(fact_policies, "policy")
_IS_ANY_ON = select(fact_policies.c.seq).where(fact_policies.c.policy != "off").limit(1)
_UNREAD = unread_conversations.idle_conversations(fact_marks, fact_marks.c.read_to)
_UNREAD_OF = _UNREAD.where(unread_conversations.is_of_user_and_agent())


@dataclass(frozen=True, slots=True)
class Unread:
    """An idle conversation with messages of its user that were not read for facts.

    `turns` counts these messages. `read_to` is the seq of the last message that was read, `newest`
    the seq of the user's last message.
    """

    organization_id: str
    conversation_id: str
    agent_id: str
    user_id: str
    model: str
    newest: int
    read_to: int
    turns: int


@dataclass(frozen=True, slots=True)
class FactFilter:
    """A filter of a user's facts; None matches any."""

    state: FactState | None = None
    as_of: int | None = None
    kind: str | None = None


def page(
    tx: Transaction, scope: Scope, user_id: str, page: Page, filters: FactFilter
) -> list[UserFact]:
    """Return one page of the user's facts.

    Args:
        tx: The transaction.
        scope: The caller; only facts that the caller sees are returned.
        user_id: The user.
        page: The part of the list.
        filters: The filter. With `as_of` (microseconds), only facts that held at that time.
    """
    conditions = []
    if filters.as_of is not None:
        columns = user_facts.c
        conditions = [
            columns.state.in_(("current", "ended")),
            columns.holds_from <= filters.as_of,
            columns.holds_until.is_(None) | (columns.holds_until > filters.as_of),
        ]
    return FACTS.page(
        tx, scope, page, *conditions, user_id=user_id, state=filters.state, kind=filters.kind
    )


def of_states(
    tx: Transaction, user_id: str, *states: FactState, limit: int = _MOST_COMPARED
) -> list[UserFact]:
    """Return the user's newest facts in these states, newest first.

    Args:
        tx: The transaction.
        user_id: The user.
        *states: The states, at least one.
        limit: The most facts.
    """
    return FACTS.all(tx, _OF_STATES, {"user_id": user_id, "states": list(states), "limit": limit})


def ids_of_user(user_id: str) -> Select[Any]:
    """Return a statement for the ids of all facts of a user.

    Args:
        user_id: The user whom the facts are about.
    """
    return select(user_facts.c.seq, user_facts.c.id).where(user_facts.c.user_id == user_id)


def counts(tx: Transaction, user_id: str) -> dict[str, int]:
    """Return the number of the user's facts by state.

    Args:
        tx: The transaction.
        user_id: The user. States without facts are missing.
    """
    return {row.state: row.facts for row in tx.all(_COUNTS, {"user_id": user_id})}


def waiting(tx: Transaction, _organization_id: str, user_id: str) -> Waiting | None:
    """Return the number of facts that wait for the user's approval, for digests.

    Args:
        tx: The transaction.
        _organization_id: Not used.
        user_id: The user who decides.

    Returns:
        The number with the page of facts; None if no fact waits.
    """
    number = counts(tx, user_id).get("proposed", 0)
    if not number:
        return None
    return Waiting(f"{number} fact{'' if number == 1 else 's'}", f"/ui/people/{user_id}/facts")


def remove(tx: Transaction, fact: UserFact) -> int:
    """Delete a fact with the older wordings that it replaced; return the number of deleted rows.

    Args:
        tx: The transaction.
        fact: The fact, whose user is locked by the caller.
    """
    wordings = [fact]
    # The list grows in the loop: each older wording may have replaced others.
    for wording in wordings:
        parameters = {"user_id": wording.user_id, "replacement_id": wording.id}
        older = FACTS.all(tx, _REPLACED_BY, parameters)
        wordings += [earlier for earlier in older if earlier.state == "replaced"]
    return sum(tx.run(_REMOVE, {"id": wording.id}) for wording in reversed(wordings))


def read_to(tx: Transaction, conversation_id: str, user_id: str) -> int:
    """Return the seq of the conversation's last message that was read for facts, or 0.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        user_id: The user whose messages were read.
    """
    row = tx.first(_MARK, {"conversation_id": conversation_id, "user_id": user_id})
    return row.read_to if row else 0


def set_mark(tx: Transaction, conversation_id: str, user_id: str, read_to: int) -> None:
    """Store the seq of the conversation's last message that was read for facts.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        user_id: The user whose messages were read.
        read_to: The seq of the message.
    """
    tx.run(_SET_MARK, {"conversation_id": conversation_id, "user_id": user_id, "read_to": read_to})


def unread(tx: Transaction, since: int, idle_since: int) -> list[Unread]:
    """Return idle conversations with unread messages, the longest waiting first.

    Args:
        tx: The transaction.
        since: Only messages after this time count, in microseconds.
        idle_since: A conversation is idle if its user wrote no message after this time, in
            microseconds.
    """
    unread_rows: list[Unread] = []
    parameters = {"since": since, "idle_since": idle_since, "after": 0, "limit": MOST_AT_ONCE}
    # Read all portions. Conversations with too few messages, or of users who chose "off", could
    # fill the first portion for weeks.
    while rows := tx.all(_UNREAD, parameters):
        unread_rows += [Unread(*row) for row in rows]
        if len(rows) < MOST_AT_ONCE:
            break
        parameters["after"] = unread_rows[-1].newest
    return unread_rows


def unread_of(
    tx: Transaction, user_id: str, agent_id: str, since: int, idle_since: int
) -> list[Unread]:
    """Return a user's idle conversations with one agent that have unread messages.

    Args:
        tx: The transaction.
        user_id: The user.
        agent_id: The agent.
        since: As in `unread`.
        idle_since: As in `unread`.
    """
    parameters = {
        "since": since,
        "idle_since": idle_since,
        "user_id": user_id,
        "agent_id": agent_id,
        "after": 0,
        "limit": MOST_AT_ONCE,
    }
    rows = tx.all(_UNREAD_OF, parameters)
    return [Unread(*row) for row in rows]


def insert(tx: Transaction, *facts: UserFact) -> None:
    """Store facts of one user, with the egress labels of their kinds.

    Args:
        tx: The transaction.
        *facts: New facts, all of one user; without any, nothing happens.
    """
    if not facts:
        return
    labels = kind_labels(tx, facts[0].organization_id, facts[0].user_id)
    labelled = [replace(fact, egress=join(fact.egress, labels.get(fact.kind))) for fact in facts]
    FACTS.insert(tx, *labelled)


def kind_labels(tx: Transaction, organization_id: str, user_id: str) -> dict[str, str]:
    """Return the egress labels of a user's facts by kind.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user. Kinds without a label are left out.
    """
    statement = select(fact_egress.c.kind, fact_egress.c.egress).where(
        fact_egress.c.organization_id == organization_id, fact_egress.c.user_id == user_id
    )
    return {row.kind: row.egress for row in tx.all(statement)}


def set_kind_label(
    tx: Transaction, organization_id: str, user_id: str, kind: FactKind, label: str | None
) -> None:
    """Set the egress label of a kind of facts, for facts that are stored later.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user.
        kind: The kind of facts.
        label: The label; None for no limit.
    """
    is_kind = (
        (fact_egress.c.organization_id == organization_id)
        & (fact_egress.c.user_id == user_id)
        & (fact_egress.c.kind == kind)
    )
    tx.run(delete(fact_egress).where(is_kind))
    if label is not None:
        values = {
            "organization_id": organization_id,
            "user_id": user_id,
            "kind": kind,
            "egress": label,
        }
        tx.run(insert_row(fact_egress), values)


def fact_labels(tx: Transaction, user_id: str, kind: FactKind) -> list[str | None]:
    """Return the different egress labels of the user's stored facts of a kind.

    Args:
        tx: The transaction.
        user_id: The user whom the facts are about.
        kind: The kind of facts.

    Returns:
        The labels in no fixed order; None is for facts without a label.
    """
    statement = select(user_facts.c.egress).where(_is_of_kind(user_id, kind)).distinct()
    return [row.egress for row in tx.all(statement)]


def relabel(
    tx: Transaction, user_id: str, kind: FactKind, new_label: Callable[[str | None], str | None]
) -> None:
    """Change the egress labels of the user's stored facts of a kind.

    Args:
        tx: The transaction.
        user_id: The user.
        kind: The kind of facts.
        new_label: Returns the new label for an old one.
    """
    # There are few different labels, so each takes one statement.
    new_labels = {label: new_label(label) for label in fact_labels(tx, user_id, kind)}
    column = user_facts.c.egress
    cases = [(column.is_not_distinct_from(old), new) for old, new in new_labels.items()]
    if cases:
        changed = case(*cases)
        tx.run(update_rows(user_facts).where(_is_of_kind(user_id, kind)).values(egress=changed))


def _is_of_kind(user_id: str, kind: FactKind) -> ColumnElement[bool]:
    return (user_facts.c.user_id == user_id) & (user_facts.c.kind == kind)


def policy_of(tx: Transaction, organization_id: str, user_id: str) -> FactPolicy:
    """Return the user's choice of a policy, or else the organization's, or else the server's.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user.
    """
    choices = policies(tx, organization_id, user_id)
    choice = choices.get(user_id) or choices.get(EVERYBODY)
    return choice or FactSettings.current().facts


def policies(tx: Transaction, organization_id: str, user_id: str) -> dict[str, FactPolicy]:
    """Return the choices of the organization (EVERYBODY) and of this user.

    Args:
        tx: The transaction.
        organization_id: The organization.
        user_id: The user. A choice that was not made is left out of the result.
    """
    parameters = {"organization_id": organization_id, "user_ids": [EVERYBODY, user_id]}
    return {row.user_id: row.policy for row in tx.all(_POLICIES, parameters)}


def set_policy(
    tx: Transaction, organization_id: str, user_id: str, policy: FactPolicy | None
) -> None:
    """Store the choice of a user or of the organization.

    Args:
        tx: The transaction.
        organization_id: The organization.
        user_id: The user, or `EVERYBODY` for the organization's choice.
        policy: The choice; None removes it.
    """
    if policy is None:
        is_choice = (fact_policies.c.organization_id == organization_id) & (
            fact_policies.c.user_id == user_id
        )
        tx.run(delete(fact_policies).where(is_choice))
        return
    tx.run(_SET_POLICY, {"organization_id": organization_id, "user_id": user_id, "policy": policy})


def is_any_on(tx: Transaction) -> bool:
    """Return whether facts are read for anyone on this server.

    Args:
        tx: The transaction.
    """
    return FactSettings.current().facts != "off" or tx.first(_IS_ANY_ON, {}) is not None


def users_with_facts(tx: Transaction, organization_id: str) -> list[str]:
    """Return the ids of the users with facts in the state `current`.

    Args:
        tx: The transaction.
        organization_id: The users' organization.
    """
    statement = (
        select(user_facts.c.user_id)
        .where(user_facts.c.organization_id == organization_id, user_facts.c.state == "current")
        .distinct()
        .order_by(user_facts.c.user_id)
    )
    return [row.user_id for row in tx.all(statement)]
