"""Read and repair conversations, without any assumption about their rows.

Elsewhere an unreadable row is an error; here it is a finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, Text, bindparam, cast, func, select, update

from ricordo.domain.message import Message, Part, TextPart, parts_from_json, parts_to_json
from ricordo.errors import NotFound
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.repository import Repository, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, conversations, messages, runs

_PORTION = 200
_ROWS = Repository(Message, messages)
_SELECT = select(
    *(
        cast(column, Text).label("parts") if column is messages.c.parts else column
        for column in _ROWS.columns
    )
)
_BY_IDS = _SELECT.where(one_of(messages.c.id, "ids"))
_WINDOW = select(cast(conversations.c.window, Text).label("window")).where(
    conversations.c.id == bindparam("id")
)
_COUNT = select(func.count()).where(messages.c.conversation_id == bindparam("id"))
_FIRST = (
    _SELECT.where(messages.c.conversation_id == bindparam("id")).order_by(messages.c.seq).limit(1)
)
_CONVERSATIONS = (
    select(conversations.c.id, conversations.c.seq)
    .where(conversations.c.seq > bindparam("after"), conversations.c.deleted_at.is_(None))
    .order_by(conversations.c.seq)
    .limit(_PORTION)
)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored message.

    `is_readable` is False if its parts could be read only as plain text.
    """

    message: Message
    is_readable: bool


def some_conversations(tx: Transaction, after: int) -> Sequence[tuple[int, str]]:
    """Return the next conversations of all organizations as pairs of seq and id.

    Args:
        tx: The transaction.
        after: The seq of the last conversation of the portion before; 0 for the first portion.
    """
    return [(row.seq, row.id) for row in tx.all(_CONVERSATIONS, {"after": after})]


def agents_without_conversation(tx: Transaction) -> list[str]:
    """Return the ids of agents without a default conversation, of all organizations.

    Agents that wait for their purge are left out, since it deletes their conversations first.

    Args:
        tx: The transaction.
    """
    with_default = select(conversations.c.agent_id).where(conversations.c.is_default)
    return [
        row.id
        for row in tx.all(
            select(agents.c.id)
            .where(agents.c.id.not_in(with_default), agents.c.organization_id != DELETED)
            .order_by(agents.c.seq)
        )
    ]


def agent_of(tx: Transaction, agent_id: str) -> tuple[str, str]:
    """Return the organization and the stored system prompt of an agent.

    Args:
        tx: The transaction.
        agent_id: The agent.

    Raises:
        NotFound: There is no such agent.
    """
    statement = select(agents.c.organization_id, agents.c.system).where(agents.c.id == agent_id)
    row = tx.first(statement)
    if row is None:
        raise NotFound(f"There is no agent {agent_id}.")
    return row.organization_id, row.system


def window_of(tx: Transaction, conversation_id: str) -> list[Any] | None:
    """Return the window's content, which may be wrong; None if it is not a list.

    Args:
        tx: The transaction.
        conversation_id: The conversation.

    Raises:
        NotFound: There is no such conversation.
    """
    row = tx.first(_WINDOW, {"id": conversation_id})
    if row is None:
        raise NotFound(f"There is no conversation {conversation_id}.")
    window = _decoded(row.window)
    if isinstance(window, list):
        return window
    return None


def newest_of(tx: Transaction, conversation_id: str) -> list[str]:
    """Return the ids of the newest messages, oldest first.

    A lost window is rebuilt from them.

    Args:
        tx: The transaction.
        conversation_id: The conversation.

    Returns:
        At most 200 ids.
    """
    statement = select(messages.c.id).where(messages.c.conversation_id == conversation_id)
    rows = tx.all(statement.order_by(messages.c.seq.desc()).limit(_PORTION))
    return [row.id for row in reversed(rows)]


def unreadable_of_runs(tx: Transaction, run_ids: Sequence[str]) -> list[Message]:
    """Return the messages of these runs that could be read only as plain text.

    Args:
        tx: The transaction.
        run_ids: The runs.
    """
    if run_ids:
        rows = tx.all(_SELECT.where(messages.c.run_id.in_(run_ids)))
    else:
        rows = []
    return [stored.message for stored in map(_stored, rows) if not stored.is_readable]


def by_ids(tx: Transaction, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """Return the messages by id, also unreadable ones; missing ones are left out.

    Args:
        tx: The transaction.
        ids: The messages.
    """
    if ids:
        return {row.id: _stored(row) for row in tx.all(_BY_IDS, {"ids": list(ids)})}
    return {}


def prompt_of(tx: Transaction, conversation_id: str) -> Message | None:
    """Return the conversation's first message if it is a system message, else None.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
    """
    row = tx.first(_FIRST, {"id": conversation_id})
    if row and row.role == "system":
        return _stored(row).message
    return None


def count_rows(tx: Transaction, conversation_id: str) -> int:
    """Return the number of the conversation's stored messages, without those that a fork shares.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
    """
    return int(tx.first(_COUNT, {"id": conversation_id})[0])


def count_half_ended(tx: Transaction, conversation_id: str) -> int:
    """Return the number of runs that have ended but whose status is still created or running.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
    """
    return int(tx.first(select(func.count()).where(*_half_ended(conversation_id)))[0])


def write_parts(tx: Transaction, message: Message) -> None:
    """Store the message's parts in place of the stored ones.

    The text for search and the message's other columns stay unchanged.

    Args:
        tx: The transaction.
        message: The stored message with readable parts.
    """
    tx.run(
        update(messages)
        .where(messages.c.id == message.id)
        .values(parts=parts_to_json(message.parts))
    )


def fail_half_ended(tx: Transaction, conversation_id: str) -> None:
    """Mark runs as failed that have ended but whose status is still created or running.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
    """
    failed = update(runs).where(*_half_ended(conversation_id))
    tx.run(failed.values(status="failed", stop_reason="error"))


def _half_ended(conversation_id: str) -> tuple[ColumnElement[bool], ...]:
    is_open = runs.c.status.in_(("created", "running"))
    return runs.c.conversation_id == conversation_id, runs.c.ended_at.is_not(None), is_open


def _stored(row: Row[Any]) -> StoredMessage:
    parts, is_readable = _parts(row.parts)
    return StoredMessage(replace(_ROWS.of(row), parts=parts), is_readable)


def _parts(text: str) -> tuple[tuple[Part, ...], bool]:
    content = _decoded(text)
    if not isinstance(content, list):
        if isinstance(content, str):
            plain_text = content
        else:
            plain_text = text
        return ((TextPart(plain_text),) if content else ()), False
    parts = [_part(element) for element in content]
    readable = [
        part or TextPart(_text_of(element)) for part, element in zip(parts, content, strict=True)
    ]
    return tuple(readable), all(parts)


def _text_of(stored: Any) -> str:
    if isinstance(stored, str):
        return stored
    try:
        return orjson.dumps(stored).decode()
    except TypeError:  # orjson reads deeper JSON than it writes
        return str(stored)


_TEXTS = ("text", "call_id", "name", "arguments", "content")


def _part(stored: Any) -> Part | None:
    try:
        (part,) = parts_from_json([stored])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    texts = (getattr(part, name) for name in _TEXTS if hasattr(part, name))
    if all(isinstance(text, str) for text in texts):
        return part
    return None


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return text
