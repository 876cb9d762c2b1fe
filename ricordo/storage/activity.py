"""The users of agents, and the times of their last turns and messages."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Select, bindparam, func, select

from ricordo.storage.conversations import IS_OF_BACKGROUND_TASK
from ricordo.storage.engine.repository import equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations, users

_last_turn = func.max(conversations.c.last_run_ended_at)
_LAST_TURNS = (
    select(conversations.c.user_id, _last_turn.label("last_at"))
    .join(users, users.c.id == conversations.c.user_id)
    .where(one_of(conversations.c.agent_id, "agent_ids"), conversations.c.deleted_at.is_(None))
    .where(users.c.disabled_at.is_(None))
    .group_by(conversations.c.user_id)
    .having(_last_turn >= bindparam("since"), _last_turn <= bindparam("until"))
    .order_by(conversations.c.user_id)
)
_NEWEST_CONVERSATION = (
    select(conversations.c.id)
    .where(equal(conversations, "agent_id", "user_id"), conversations.c.deleted_at.is_(None))
    .where(conversations.c.last_run_ended_at.is_not(None))
    .order_by(conversations.c.last_run_ended_at.desc(), conversations.c.seq.desc())
    .limit(1)
)
_LAST_TURN_OF_USER = select(_last_turn.label("at")).where(
    equal(conversations, "user_id"), ~IS_OF_BACKGROUND_TASK
)


def last_turns(
    tx: Transaction,
    agent_ids: Iterable[str],
    *,
    since: int,
    until: int,
    ignored_conversations: Select[tuple[str]],
) -> dict[str, int]:
    """Return the end of each enabled user's last turn with these agents, by user id.

    Args:
        tx: The transaction.
        agent_ids: The agents.
        since: Users whose last turn ended before this time are left out. Times are in microseconds
            UTC.
        until: Users whose last turn ended after this time are left out.
        ignored_conversations: A select of conversation ids; turns in them do not count.
    """
    statement = _LAST_TURNS.where(conversations.c.id.not_in(ignored_conversations))
    parameters = {"agent_ids": list(agent_ids), "since": since, "until": until}
    return {row.user_id: row.last_at for row in tx.all(statement, parameters)}


def newest_conversation(
    tx: Transaction,
    agent_id: str,
    user_id: str,
    *,
    ignored_conversations: Select[tuple[str]] | None = None,
) -> str | None:
    """Return the id of the user's last used conversation with the agent.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent.
        user_id: The user.
        ignored_conversations: A select of conversation ids that are left out.

    Returns:
        The id of a conversation in which a turn has ended; None if there is none.
    """
    statement = _NEWEST_CONVERSATION
    if ignored_conversations is not None:
        statement = statement.where(conversations.c.id.not_in(ignored_conversations))
    row = tx.first(statement, {"agent_id": agent_id, "user_id": user_id})
    return row.id if row else None


def last_turn_at(tx: Transaction, user_id: str) -> int | None:
    """Return the end of the user's last turn, in microseconds UTC.

    Turns of background tasks, which run in hidden copies of conversations, do not count. Turns in
    deleted conversations count until these are purged.

    Args:
        tx: The transaction, or a read.
        user_id: The user. Turns with all agents count.

    Returns:
        The time; None if there was no turn.
    """
    row = tx.first(_LAST_TURN_OF_USER, {"user_id": user_id})
    return row.at if row else None


def users_of(agent_ids: Iterable[str]) -> Select[tuple[str]]:
    """Return a select of the ids of users who have a conversation with these agents.

    Args:
        agent_ids: The agents. A user is selected once for each conversation with them.
    """
    return select(conversations.c.user_id).where(
        conversations.c.agent_id.in_([*agent_ids]),
        conversations.c.user_id.is_not(None),
        conversations.c.deleted_at.is_(None),
    )


def has_talked_with(tx: Transaction, user_id: str, agent_ids: Iterable[str]) -> bool:
    """Return True if the user has a conversation with one of these agents.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
        agent_ids: The agents. A conversation without a message counts too.
    """
    statement = users_of(agent_ids).where(conversations.c.user_id == user_id).limit(1)
    return bool(tx.all(statement))


def talked_with(tx: Transaction, user_id: str, agent_ids: Iterable[str]) -> set[str]:
    """Return the agents among these with which the user has a conversation.

    Args:
        tx: The transaction, or a read.
        user_id: The user.
        agent_ids: The agents to choose from.
    """
    statement = (
        users_of(agent_ids)
        .with_only_columns(conversations.c.agent_id)
        .where(conversations.c.user_id == user_id)
        .distinct()
    )
    return {row.agent_id for row in tx.all(statement)}


def last_messages(
    tx: Transaction, agent_ids: Iterable[str], user_ids: Sequence[str]
) -> dict[str, int | None]:
    """Return the time of each user's last message with these agents, by user id.

    Args:
        tx: The transaction, or a read.
        agent_ids: The agents.
        user_ids: The users to choose from.

    Returns:
        Times in microseconds UTC; None for a user without a message. Users without a conversation
        are left out.
    """
    statement = (
        users_of(agent_ids)
        .where(conversations.c.user_id.in_(user_ids))
        .add_columns(func.max(conversations.c.last_message_at))
        .group_by(conversations.c.user_id)
    )
    return {row[0]: row[1] for row in tx.all(statement)}
