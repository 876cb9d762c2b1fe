"""Who may use an agent: everybody in its organization, or, where users are attached, these, administrators and developers.

It is a condition of the statements that find agents and their conversations, so that every way to an agent asks it.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, String, Text, bindparam, delete, or_, select

from ricordo.domain.scope import Scope
from ricordo.storage import users
from ricordo.storage.engine.repository import Missing, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, agents_users
from ricordo.storage.schema.memory_tables import agents_pairs

USERS = (
    select(agents_users.c.agent_id).where(agents_users.c.agent_id == agents.c.id).correlate(agents)
)
MAY_USE = or_(
    ~USERS.exists(),
    USERS.where(agents_users.c.user_id == bindparam("asking_user", type_=Text)).exists(),
)
_ATTACH, _PAIRED = (
    Missing(agents_users),
    select(agents_pairs.c.other_id).where(equal(agents_pairs, "agent_id")),
)
# Agents that work on one memory show it to the same users.
_IS_ONE = or_(equal(agents_users, "agent_id"), agents_users.c.agent_id.in_(_PAIRED))
_DETACH, _DETACH_ALL = (
    delete(agents_users).where(_IS_ONE, equal(agents_users, "user_id")),
    delete(agents_users).where(_IS_ONE),
)
_ATTACH_TO_PAIRED = Missing(agents_users).from_select(
    ["agent_id", "user_id"],
    select(agents_pairs.c.other_id, bindparam("new_user", type_=String)).where(
        agents_pairs.c.agent_id == bindparam("to_agent")
    ),
)
_OF_USERS = (
    select(agents_users.c.user_id, agents_users.c.agent_id)
    .where(one_of(agents_users.c.user_id, "user_ids"))
    .order_by(agents_users.c.seq)
)


def for_caller(
    scope: Scope, free: Any, kept: Any, values: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the statement for this caller with its values: `free` where they may use every agent, else `kept`."""
    return (
        (free, values)
        if scope.uses_every_agent
        else (kept, values | {"asking_user": scope.subject})
    )


def may_use(scope: Scope, agent_id: ColumnElement[str] = agents.c.id) -> list[ColumnElement[bool]]:
    """Return the conditions that the caller may use an agent, or that with the id in this column; none where they may use all."""
    if scope.uses_every_agent:
        return []
    users = (
        select(agents_users.c.agent_id)
        .where(agents_users.c.agent_id == agent_id)
        .correlate(agent_id.table)
    )
    return [or_(~users.exists(), users.where(agents_users.c.user_id == scope.subject).exists())]


def attach_user(tx: Transaction, agent_id: str, user_id: str) -> None:
    """Keep the agent, and agents on its memory, to this user, and to those who are attached already."""
    tx.run(_ATTACH, {"agent_id": agent_id, "user_id": user_id})
    tx.run(_ATTACH_TO_PAIRED, {"to_agent": agent_id, "new_user": user_id})


def keep_to(tx: Transaction, scope: Scope, agent_id: str, identity_ids: Sequence[str]) -> None:
    """Keep the agent to these users, whom older clients name as identities, and to no others. Raises NotFound, Forbidden."""
    users.require_all_users(scope)
    known = [users.require(tx, scope, users.user_id_of(id)) for id in identity_ids]
    tx.run(_DETACH_ALL, {"agent_id": agent_id})
    for user in known:
        attach_user(tx, agent_id, user.id)


def detach_user(tx: Transaction, agent_id: str, user_id: str) -> None:
    """Take the agent from this user; without any, everybody in the organization may use it."""
    tx.run(_DETACH, {"agent_id": agent_id, "user_id": user_id})


def agents_of(tx: Transaction, user_id: str) -> list[str]:
    """Return the ids of the agents that are kept to this user, among others."""
    return agents_of_users(tx, [user_id]).get(user_id, [])


def agents_of_users(tx: Transaction, user_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return by user the ids of the agents that are kept to each of them; none for one without any."""
    found: dict[str, list[str]] = {}
    for row in tx.all(_OF_USERS, {"user_ids": list(user_ids)}):
        found.setdefault(row.user_id, []).append(row.agent_id)
    return found
