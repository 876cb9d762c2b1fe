"""Conditions on messages and lookups of their ids, for features that refer to messages."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, bindparam, func, select

from ricordo.domain.scope import Scope
from ricordo.storage.engine.repository import equal, in_scope, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations, messages

# Messages that a step of an agent stored: texts, calls and results.
IS_OF_STEP = messages.c.step_id.is_not(None)
# The most runs of a client's chat that are returned.
_MOST_RUNS = 2_000
_IDS = select(messages.c.seq, messages.c.id).where(one_of(messages.c.seq, "numbers"))
_RUNS_NAMED = (
    select(messages.c.run_id)
    .join(conversations, conversations.c.id == messages.c.conversation_id)
    .where(
        equal(conversations, "agent_id", "summary"),
        conversations.c.user_id.is_not_distinct_from(bindparam("user_id")),
        conversations.c.deleted_at.is_(None),
        IS_OF_STEP,
    )
    .group_by(messages.c.run_id)
    .order_by(func.max(messages.c.seq).desc())
    .limit(_MOST_RUNS)
)


def is_of_runs(run_ids: Select[Any]) -> ColumnElement[bool]:
    """Return the condition that a message belongs to one of the selected runs.

    Args:
        run_ids: A select of run ids.
    """
    return messages.c.run_id.in_(run_ids)


def is_in_conversations(conversation_ids: Select[Any]) -> ColumnElement[bool]:
    """Return the condition that a message is in one of the selected conversations.

    Args:
        conversation_ids: A select of conversation ids.
    """
    return messages.c.conversation_id.in_(conversation_ids)


def ends_of_run() -> tuple[ScalarSelect[Any], ScalarSelect[Any]]:
    """Return selects of the first and the last seq of a run's messages; its parameter is `run_id`.

    Select by the run alone. With a condition on the conversation, SQLite would use that index and
    read the whole conversation.
    """
    of_run = equal(messages, "run_id")
    first = select(func.min(messages.c.seq)).where(of_run).scalar_subquery()
    last = select(func.max(messages.c.seq)).where(of_run).scalar_subquery()
    return first, last


def ids_by_seq(tx: Transaction, numbers: Sequence[int]) -> dict[int, str]:
    """Return the ids of the messages with these seqs; deleted ones are left out.

    Args:
        tx: The transaction.
        numbers: The seqs. The caller's access to the messages is checked before.
    """
    return {row.seq: row.id for row in tx.all(_IDS, {"numbers": list(numbers)})}


def conversations_of_group(tx: Transaction, scope: Scope, group_id: str) -> list[str]:
    """Return the ids of the conversations that hold messages of the group.

    Args:
        tx: The transaction.
        scope: The caller.
        group_id: The group of agents.
    """
    statement = select(messages.c.conversation_id).where(
        messages.c.group_id == group_id, *in_scope(messages, scope)
    )
    return sorted(row.conversation_id for row in tx.all(statement.distinct()))


def ids_of_group(tx: Transaction, group_id: str, conversation_id: str) -> list[str]:
    """Return the ids of the group's messages in one conversation, oldest first.

    Args:
        tx: The transaction.
        group_id: The group of agents.
        conversation_id: The conversation; the caller's access to it is checked before.
    """
    statement = select(messages.c.id).where(
        messages.c.group_id == group_id, messages.c.conversation_id == conversation_id
    )
    return [row.id for row in tx.all(statement.order_by(messages.c.seq))]


def runs_of_named(tx: Transaction, agent_id: str, user_id: str | None, summary: str) -> list[str]:
    """Return the newest runs with answers in the conversations that have this summary.

    Args:
        tx: The transaction.
        agent_id: The agent.
        user_id: The user of the conversations; None: conversations without a user.
        summary: The whole summary.
    """
    parameters = {"agent_id": agent_id, "user_id": user_id, "summary": summary}
    return [row.run_id for row in tx.all(_RUNS_NAMED, parameters) if row.run_id]
