"""Queries of chats that clients keep, and of agents by name.

A chat is known by the run that answered each of its states.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Index, UniqueConstraint, bindparam, delete, func, or_, select

from ricordo.agents.agent_types import traits_of
from ricordo.domain.agent import AgentType
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Missing, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import reference, seq, strings, table, timestamps
from ricordo.storage.schema.core_tables import agents, conversations, messages, runs

# `key` is a digest of a chat's state; its text cannot be recovered from it.
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
_ANSWERED = (
    select(
        openai_chats.c.key,
        openai_chats.c.run_id,
        conversations.c.id,
        conversations.c.window,
        conversations.c.last_run_ended_at,
        conversations.c.last_stop_reason,
        runs.c.ended_at,
        runs.c.status,
    )
    .outerjoin(runs, runs.c.id == openai_chats.c.run_id)
    .outerjoin(
        conversations,
        (conversations.c.id == runs.c.conversation_id) & conversations.c.deleted_at.is_(None),
    )
    .where(one_of(openai_chats.c.key, "keys"))
)
# Runs of a chat whose answers an edited chat is compared with.
_MOST_RUNS = 2_000
_RUNS_OF_CHAT = (
    select(messages.c.run_id)
    .join(conversations, conversations.c.id == messages.c.conversation_id)
    .where(
        equal(conversations, "agent_id", "summary"),
        conversations.c.user_id.is_not_distinct_from(bindparam("user_id")),
        conversations.c.deleted_at.is_(None),
        messages.c.step_id.is_not(None),
    )
    .group_by(messages.c.run_id)
    .order_by(func.max(messages.c.seq).desc())
    .limit(_MOST_RUNS)
)
_FORGET = delete(openai_chats).where(one_of(openai_chats.c.key, "keys"))
_NOTE = Missing(openai_chats)
_AGENTS = (
    select(agents.c.id, agents.c.name, agents.c.created_at, agents.c.agent_type)
    .where(equal(agents, "organization_id"), agents.c.hidden.is_(False))
    .order_by(agents.c.seq)
)
_NAMED = select(agents.c.id, agents.c.name, agents.c.created_at, agents.c.agent_type).where(
    equal(agents, "organization_id"),
    or_(agents.c.id == bindparam("model"), agents.c.name == bindparam("model")),
)


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
        return traits_of(self.agent_type).speaks_aloud


class UnknownModel(NotFound):
    """No agent has this name."""


@dataclass(frozen=True, slots=True)
class AnsweredState:
    """The run that answered a state of a chat.

    `open_conversation_id` is its conversation, if the run is the conversation's last. `is_whole` is
    true if the run ended by itself, so that everything shown is stored.
    """

    run_id: str
    open_conversation_id: str | None
    is_whole: bool = True


def answered_states(tx: Transaction, keys: Sequence[str]) -> Mapping[str, AnsweredState]:
    """Return the runs that answered these states of chats, by key."""
    states = {}
    for row in tx.all(_ANSWERED, {"keys": list(keys)}):
        is_last = row.ended_at is not None and row.ended_at == row.last_run_ended_at
        is_plain = row.last_stop_reason != "requires_approval" and len(row.window or ()) > 1
        states[row.key] = AnsweredState(
            row.run_id,
            open_conversation_id=row.id if is_last and is_plain else None,
            is_whole=row.status == "completed",
        )
    return states


def chat_summary(name: str) -> str:
    """Return the name of the conversation that keeps a client's chat."""
    return f"chat_{name}"


def runs_of_chat(tx: Transaction, agent_id: str, user_id: str | None, name: str) -> list[str]:
    """Return the newest runs that answered in a user's chat of this name."""
    chat = {"agent_id": agent_id, "user_id": user_id, "summary": chat_summary(name)}
    return [row.run_id for row in tx.all(_RUNS_OF_CHAT, chat) if row.run_id]


def note_run(tx: Transaction, keys: Sequence[str], run: Run) -> None:
    """Store that this run answered these states of a chat; it replaces earlier runs."""
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
    """Return the agents that the caller may use, the oldest first, without hidden ones."""
    rows = tx.all(_AGENTS.where(*may_use(scope)), {"organization_id": scope.organization_id})
    counts = Counter(row.name for row in rows)
    return [
        NamedAgent(
            row.id, row.name if counts[row.name] == 1 else row.id, row.created_at, row.agent_type
        )
        for row in rows
    ]


def agent_of(tx: Transaction, scope: Scope, model: str) -> NamedAgent:
    """Return the agent with this id or name.

    Raises UnknownModel, or Invalid if several agents have the name.
    """
    rows = tx.all(
        _NAMED.where(*may_use(scope)), {"organization_id": scope.organization_id, "model": model}
    )
    rows = [row for row in rows if row.id == model] or rows
    if not rows:
        raise UnknownModel(
            f'There is no agent "{model[:80]}". GET /v1/models lists those that your key may use.'
        )
    if len(rows) > 1:
        raise Invalid(
            f'{len(rows)} agents have the name "{model[:80]}". Name one by its id: {rows[0].id}, '
            "for example."
        )
    return NamedAgent(rows[0].id, model, rows[0].created_at, rows[0].agent_type)
