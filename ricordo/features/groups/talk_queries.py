"""Queries of group talks: their conversations, and their messages without copies."""

from typing import Any

from sqlalchemy import bindparam, select

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.features.groups.queries import talks
from ricordo.storage import messages
from ricordo.storage.engine.repository import Missing, Page, in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations
from ricordo.storage.schema.core_tables import messages as messages_table

_ADD = Missing(talks)
# Stop reasons of a talk that waits for an approval, or was cut off.
_OPEN_ENDS = ("requires_approval", "error")
_UNFINISHED = (
    select(conversations.c.organization_id, conversations.c.id)
    .join(talks, talks.c.conversation_id == conversations.c.id)
    .where(
        conversations.c.last_stop_reason.in_(_OPEN_ENDS),
        conversations.c.last_run_ended_at >= bindparam("since"),
    )
    .order_by(conversations.c.last_run_ended_at)
)


def add_talks(tx: Transaction, group_id: str, conversation_id: str) -> None:
    """Record that talks with the group are kept in this conversation."""
    tx.run(_ADD, {"group_id": group_id, "conversation_id": conversation_id})


def unfinished(tx: Transaction, since: int) -> list[tuple[str, str]]:
    """Return organization and id of conversations whose last talk is unfinished.

    The talk's last run ended after `since`.
    """
    return [(row.organization_id, row.id) for row in tx.all(_UNFINISHED, {"since": since})]


def page_of_group_messages(
    tx: Transaction, scope: Scope, page: Page, group_id: str
) -> list[Message]:
    """Return one page of a group's messages, without the members' copies.

    Copies have no step, and are in no conversation of talks.
    """
    of_talks = select(talks.c.conversation_id).where(talks.c.group_id == group_id)
    is_original = messages_table.c.step_id.is_not(None) | messages_table.c.conversation_id.in_(
        of_talks
    )
    return messages.page(tx, scope, page, is_original, group_id=group_id)


def conversations_of(tx: Transaction, scope: Scope, group_id: str) -> list[str]:
    """Return the ids of the conversations that hold messages of the group."""
    statement = select(messages_table.c.conversation_id).where(
        messages_table.c.group_id == group_id, *in_scope(messages_table, scope)
    )
    return sorted(row.conversation_id for row in tx.all(statement.distinct()))


def ids_in(tx: Transaction, group_id: str, conversation_id: str) -> list[str]:
    """Return the ids of the group's messages in one conversation, oldest first."""
    statement: Any = select(messages_table.c.id).where(
        messages_table.c.group_id == group_id, messages_table.c.conversation_id == conversation_id
    )
    return [row.id for row in tx.all(statement.order_by(messages_table.c.seq))]
