"""Access to agents.

By default everybody in an agent's organization may use it. If users are attached to the agent, only
they, administrators, developers and callers who see all data may use it. Statements that find
agents and their conversations contain this condition, so every request checks it.
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
_ATTACH = Missing(agents_users)
_PAIRED = select(agents_pairs.c.other_id).where(equal(agents_pairs, "agent_id"))
# Agents that share one memory show it to the same users.
_IS_ONE = or_(equal(agents_users, "agent_id"), agents_users.c.agent_id.in_(_PAIRED))
_DETACH = delete(agents_users).where(_IS_ONE, equal(agents_users, "user_id"))
_DETACH_ALL = delete(agents_users).where(_IS_ONE)
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
    scope: Scope, free: Any, restricted: Any, parameters: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the statement that fits this caller, with its parameters.

    Args:
        scope: The caller.
        free: The statement for callers that may use every agent.
        restricted: The same statement with `MAY_USE`, for all others.
        parameters: The parameters of `free`. Those of `restricted` also name the user.
    """
    if scope.uses_every_agent:
        return free, parameters
    return restricted, parameters | {"asking_user": scope.subject}


def may_use(scope: Scope, agent_id: ColumnElement[str] = agents.c.id) -> list[ColumnElement[bool]]:
    """Return the conditions that the caller may use an agent.

    The result is empty for a caller that may use all agents.

    Args:
        scope: The caller.
        agent_id: The column with the agent's id.
    """
    if scope.uses_every_agent:
        return []
    users = (
        select(agents_users.c.agent_id)
        .where(agents_users.c.agent_id == agent_id)
        .correlate(agent_id.table)
    )
    return [or_(~users.exists(), users.where(agents_users.c.user_id == scope.subject).exists())]


def attach_user(tx: Transaction, agent_id: str, user_id: str) -> None:
    """Attach the user to the agent, and to all agents that share its memory.

    From then on only attached users, administrators, developers and callers who see all data may
    use these agents.

    Args:
        tx: The transaction.
        agent_id: The agent. The first attached user ends the access of all others in the
            organization.
        user_id: The user. A user who is attached already stays so.
    """
    tx.run(_ATTACH, {"agent_id": agent_id, "user_id": user_id})
    tx.run(_ATTACH_TO_PAIRED, {"to_agent": agent_id, "new_user": user_id})


def keep_to(tx: Transaction, scope: Scope, agent_id: str, user_ids: Sequence[str]) -> None:
    """Restrict the agent to exactly these users.

    Args:
        tx: The transaction.
        scope: The caller, who must see the whole organization.
        agent_id: The agent. Agents that share its memory get the same users.
        user_ids: The users' ids. Without any, everybody in the organization may use the agent.

    Raises:
        NotFound: One of the users does not exist.
        Forbidden: The caller does not see the whole organization.
    """
    users.require_all_users(scope)
    attached_users = [users.require(tx, scope, id) for id in user_ids]
    tx.run(_DETACH_ALL, {"agent_id": agent_id})
    for user in attached_users:
        attach_user(tx, agent_id, user.id)


def detach_user(tx: Transaction, agent_id: str, user_id: str) -> None:
    """Detach the user from the agent.

    An agent without attached users is open to everybody in the organization.

    Args:
        tx: The transaction.
        agent_id: The agent. Agents that share its memory lose the user too.
        user_id: The user.
    """
    tx.run(_DETACH, {"agent_id": agent_id, "user_id": user_id})


def agents_of(tx: Transaction, user_id: str) -> list[str]:
    """Return the ids of the agents to which this user is attached.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
    """
    return agents_of_users(tx, [user_id]).get(user_id, [])


def agents_of_users(tx: Transaction, user_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the agents to which each of these users is attached, by user.

    Args:
        tx: The transaction, or a read.
        user_ids: The users. One who is attached to no agent is left out.
    """
    agent_ids: dict[str, list[str]] = {}
    for row in tx.all(_OF_USERS, {"user_ids": list(user_ids)}):
        agent_ids.setdefault(row.user_id, []).append(row.agent_id)
    return agent_ids
