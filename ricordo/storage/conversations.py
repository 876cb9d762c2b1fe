"""Conversations: each agent has a default one, whose id follows from the agent's."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, case, func, insert, select, update

from ricordo.domain.conversation import Conversation
from ricordo.storage.rows import setter
from ricordo.storage.store import Transaction
from ricordo.storage.tables import conversations

COLUMNS = [column for column in conversations.c if column.name != "seq"]
_BY_ID = select(*COLUMNS).where(conversations.c.id == bindparam("id"))
_HELD = select(conversations.c.id).where(conversations.c.id == bindparam("id")).with_for_update()
_IDS_OF_AGENT = select(conversations.c.id).where(conversations.c.agent_id == bindparam("agent_id"))
_INSERT = insert(conversations)
_WINDOW = setter(
    conversations, "window", "prompt_key", "updated_at", where=conversations.c.id == bindparam("conversation_id")
).values(
    message_count=conversations.c.message_count + bindparam("added"),
    last_message_at=bindparam("new_updated_at"),
    # Only the save that ends a run knows these; the others leave them as they are.
    last_run_ended_at=func.coalesce(bindparam("ended_at"), conversations.c.last_run_ended_at),
    last_run_ms=func.coalesce(bindparam("run_ms"), conversations.c.last_run_ms),
    last_stop_reason=func.coalesce(bindparam("stop_reason"), conversations.c.last_stop_reason),
)
_BEGIN_ANEW = setter(
    conversations, "window", "prompt_key", "updated_at", where=conversations.c.id == bindparam("conversation_id")
).values(message_count=conversations.c.message_count + bindparam("added"))
_ADD_PAST = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation_id"))
    .values(
        message_count=conversations.c.message_count + bindparam("added"),
        last_message_at=case(
            (conversations.c.last_message_at > bindparam("newest"), conversations.c.last_message_at),
            else_=bindparam("newest"),
        ),
    )
)


def default_id(agent_id: str) -> str:
    """The id of the agent's default thread. It follows from the agent's, so a lease can be taken before anything is read."""
    return "conv-" + agent_id.removeprefix("agent-")


def hold(tx: Transaction, id: str) -> None:
    """Let no run begin in the thread, and nobody change it, until this transaction ends."""
    # A run refers to its thread, and PostgreSQL lets no row refer to one that is held in this way.
    tx.hold(_HELD, {"id": id})


def insert_one(tx: Transaction, conversation: Conversation) -> None:
    """Store a new conversation."""
    tx.run(_INSERT, {column.name: getattr(conversation, column.name) for column in COLUMNS})


def get(tx: Transaction, id: str) -> Conversation | None:
    """One conversation, if it is there."""
    row = tx.first(_BY_ID, {"id": id})
    return from_values(row._asdict()) if row else None


def ids_of_agent(tx: Transaction, agent_id: str) -> list[str]:
    """The ids of all threads of the agent."""
    return [row.id for row in tx.all(_IDS_OF_AGENT, {"agent_id": agent_id})]


def save_window(
    tx: Transaction,
    conversation_id: str,
    window: Sequence[str],
    prompt_key: str,
    *,
    added: int,
    ended_at: int | None = None,
    run_ms: int | None = None,
    stop_reason: str | None = None,
) -> None:
    """Store the window after a step; `added` messages were stored with it. The last three are set when a run ends."""
    tx.run(
        _WINDOW,
        {
            "conversation_id": conversation_id,
            "new_window": list(window),
            "new_prompt_key": prompt_key,
            "new_updated_at": tx.clock.now(),
            "added": added,
            "ended_at": ended_at,
            "run_ms": run_ms,
            "stop_reason": stop_reason,
        },
    )


def begin_anew(tx: Transaction, conversation_id: str, window: Sequence[str], prompt_key: str) -> None:
    """Store a window of new messages in place of the one there was."""
    tx.run(
        _BEGIN_ANEW,
        {
            "conversation_id": conversation_id,
            "new_window": list(window),
            "new_prompt_key": prompt_key,
            "added": len(window),
            "new_updated_at": tx.clock.now(),
        },
    )


def add_past(tx: Transaction, conversation_id: str, added: int, newest: int) -> None:
    """Count messages that were stored outside the window, the newest of them made at `newest`."""
    tx.run(_ADD_PAST, {"conversation_id": conversation_id, "added": added, "newest": newest})


def from_values(values: dict[str, Any]) -> Conversation:
    """A conversation from the columns of its row."""
    values["window"] = tuple(values["window"])
    return Conversation(**values)
