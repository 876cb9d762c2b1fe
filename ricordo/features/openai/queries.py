"""Queries of chats that clients keep, and of agents by name.

For each state of a chat, the run that answered it is stored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Index, UniqueConstraint, delete, select

from ricordo.agents.agent_types import TRAITS
from ricordo.domain.agent import AgentType
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.storage import agent_lookup, message_lookup, runs
from ricordo.storage.engine.repository import Missing, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import reference, seq, strings, table, timestamps

# `key` is a digest of a chat's state, from which the text cannot be recovered.
openai_chats = table(
    "openai_chats",
    seq(),
    reference("conversation_id", "conversations"),
    *strings("user_id"),
    *strings("key", null=False),
    *strings("run_id", null=False, erasure="keep"),
    *timestamps("created_at"),
    UniqueConstraint("key"),
    Index("openai_chats_by_conversation", "conversation_id"),
    erasure="delete",
)
_OF_KEYS = select(openai_chats.c.key, openai_chats.c.run_id).where(
    one_of(openai_chats.c.key, "keys")
)
_ANSWERED = runs.joined(_OF_KEYS, openai_chats.c.run_id)
_FORGET = delete(openai_chats).where(one_of(openai_chats.c.key, "keys"))
_NOTE = Missing(openai_chats)


@dataclass(frozen=True, slots=True)
class NamedAgent:
    """An agent as a model.

    `model` is its name if that is unique, else its id. `created_at` is in microseconds.
    """

    id: str
    model: str
    created_at: int
    agent_type: AgentType = "letta_v1_agent"

    @property
    def speaks_aloud(self) -> bool:
        return TRAITS[self.agent_type].speaks_aloud


class UnknownModel(NotFound):
    """No agent has this name."""


@dataclass(frozen=True, slots=True)
class AnsweredState:
    """The run that answered a state of a chat.

    `open_conversation_id` is the run's conversation if the chat can simply continue in it: no later
    run ended there, no call waits for approval, and its window has messages. `is_whole` is true if
    the run ended by itself, so that every shown text is stored.
    """

    run_id: str
    open_conversation_id: str | None
    is_whole: bool = True


def answered_states(tx: Transaction, keys: Sequence[str]) -> Mapping[str, AnsweredState]:
    """Return the runs that answered these states of chats, by key.

    Args:
        tx: The transaction.
        keys: Digests of chats' states, as `note_run` stored them. Unknown ones are left out.
    """
    states = {}
    for row in tx.all(_ANSWERED, {"keys": list(keys)}):
        is_last = row.ended_at is not None and row.ended_at == row.last_run_ended_at
        is_plain = row.last_stop_reason != "requires_approval" and len(row.window or ()) > 1
        states[row.key] = AnsweredState(
            row.run_id,
            open_conversation_id=row.conversation_id if is_last and is_plain else None,
            is_whole=row.status == "completed",
        )
    return states


def chat_summary(name: str) -> str:
    """Return the name of the conversation that keeps a client's chat.

    Args:
        name: The client's id of the chat.
    """
    return f"chat_{name}"


def runs_of_chat(tx: Transaction, agent_id: str, user_id: str | None, name: str) -> list[str]:
    """Return the newest runs that answered in a user's chat of this name.

    The newest run is first. At most 2,000 are returned.

    Args:
        tx: The transaction.
        agent_id: The agent that answered.
        user_id: The chat's user; None for chats without a user.
        name: The chat's id in the client.

    Returns:
        The ids of the runs.
    """
    return message_lookup.runs_of_named(tx, agent_id, user_id, chat_summary(name))


def note_run(tx: Transaction, keys: Sequence[str], run: Run) -> None:
    """Store that this run answered these states of chats; it replaces earlier runs.

    Args:
        tx: The transaction.
        keys: Digests of the chats' states.
        run: The run, of which ids alone are stored.
    """
    row: dict[str, Any] = {
        "conversation_id": run.conversation_id,
        "user_id": run.user_id,
        "run_id": run.id,
        "created_at": tx.clock.now(),
    }
    rows = [{**row, "key": key} for key in keys]
    if tx.run(_NOTE, rows) < len(rows):
        tx.run(_FORGET, {"keys": list(keys)})
        tx.run(_NOTE, rows)


def usable_agents(tx: Transaction, scope: Scope) -> list[NamedAgent]:
    """Return the agents that the caller may use, the oldest first; hidden ones are left out.

    Args:
        tx: The transaction.
        scope: The caller. Two agents with one name are named by their ids.
    """
    rows = agent_lookup.shown(tx, scope)
    counts = Counter(row.name for row in rows)
    return [
        NamedAgent(
            row.id, row.name if counts[row.name] == 1 else row.id, row.created_at, row.agent_type
        )
        for row in rows
    ]


def agent_of(tx: Transaction, scope: Scope, model: str) -> NamedAgent:
    """Return the agent with this id or name.

    Args:
        tx: The transaction.
        scope: The caller.
        model: An agent's id or name, as the client sent it. An id takes precedence.

    Raises:
        UnknownModel: if the caller may use no such agent.
        Invalid: if several agents have the name.
    """
    rows = agent_lookup.named(tx, scope, model)
    rows = [row for row in rows if row.id == model] or rows
    if not rows:
        raise UnknownModel(
            f'There is no agent "{model[:80]}". GET /v1/models lists the agents that your key '
            "may use."
        )
    if len(rows) > 1:
        raise Invalid(
            f'{len(rows)} agents have the name "{model[:80]}". Name one by its id: {rows[0].id}, '
            "for example."
        )
    return NamedAgent(rows[0].id, model, rows[0].created_at, rows[0].agent_type)
