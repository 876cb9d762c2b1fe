"""Lists of conversations, agents and runs with their names, in one or two statements each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Table, and_, func, or_, select

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.storage import messages as stored_messages
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, conversations, messages, runs, users

# The most names that one statement reads.
MOST_NAMES = 500
_MOST_RUNS = 1000  # newest runs whose agents count as recently used
_MOST_SCANNED = 5000  # newest messages of a conversation that are searched for summaries


@dataclass(frozen=True, slots=True)
class RecentConversation:
    """A conversation in the list of the home page. Times are in microseconds."""

    id: str
    agent_id: str
    agent_name: str
    title: str | None
    user_id: str | None
    user_name: str | None
    last_message_at: int | None
    waits: bool


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its stop reason, and the message of a failure ("" without one)."""

    reason: str | None
    error: str


def names_of_agents(tx: Transaction, scope: Scope, ids: Iterable[str]) -> Mapping[str, str]:
    """Return the names of existing agents by their ids.

    Agents that the caller may not use are left out.

    Args:
        tx: The transaction.
        scope: The caller.
        ids: The agents, in any order. Only the first 500 by id are read.
    """
    return _names(tx, scope, agents, ids, *may_use(scope))


def names_of_users(tx: Transaction, scope: Scope, ids: Iterable[str | None]) -> Mapping[str, str]:
    """Return the names of existing users by their ids.

    Args:
        tx: The transaction.
        scope: The organization; the caller's user does not matter.
        ids: The users; None and "" are ignored. Only the first 500 by id are read.
    """
    return _names(tx, scope, users, ids)


def _names(
    tx: Transaction, scope: Scope, table: Table, ids: Iterable[str | None], *conditions: Any
) -> dict[str, str]:
    first_ids = sorted({id for id in ids if id})[:MOST_NAMES]
    if not first_ids:
        return {}
    columns = (table.c.id, table.c.name, table.c.organization_id)
    rows = tx.all(select(*columns).where(table.c.id.in_(first_ids), *conditions))
    # Check the organization here. If the statement checked it, SQLite would use the index of the
    # organization and read all of its rows.
    return {row.id: row.name for row in rows if row.organization_id == scope.organization_id}


def ends_of_runs(tx: Transaction, scope: Scope, ids: Iterable[str]) -> Mapping[str, RunEnd]:
    """Return the ends of these runs by their ids, without runs that have not ended.

    Args:
        tx: The transaction.
        scope: The organization. The caller may read the conversation of the runs.
        ids: The runs. Only the first 500 by id are read.
    """
    run_ids = sorted(set(ids))[:MOST_NAMES]
    statement = select(runs.c.id, runs.c.organization_id, runs.c.stop_reason, runs.c.error).where(
        runs.c.id.in_(run_ids), runs.c.ended_at.is_not(None)
    )
    if not run_ids:
        return {}
    rows = tx.all(statement)
    return {
        row.id: RunEnd(row.stop_reason, str((row.error or {}).get("message") or ""))
        for row in rows
        if row.organization_id == scope.organization_id
    }


def agents_used_last(tx: Transaction, scope: Scope, limit: int) -> list[str]:
    """Return the ids of recently used agents, then of the newest agents.

    Only agents that the caller may use are returned, and only they count for the limit.

    Args:
        tx: The transaction.
        scope: The caller.
        limit: The most ids.
    """
    runs_read = (
        select(runs.c.agent_id, runs.c.created_at, runs.c.seq)
        .where(runs.c.organization_id == scope.organization_id)
        .order_by(runs.c.created_at.desc(), runs.c.seq.desc())
        .limit(_MOST_RUNS)
        .subquery()
    )
    used_agents = (
        select(agents.c.id, agents.c.organization_id)
        .join(runs_read, runs_read.c.agent_id == agents.c.id)
        .where(*may_use(scope))
        .order_by(runs_read.c.created_at.desc(), runs_read.c.seq.desc())
    )
    newest_agents = (
        select(agents.c.id)
        .where(agents.c.organization_id == scope.organization_id, *may_use(scope))
        .order_by(agents.c.created_at.desc(), agents.c.seq.desc())
        .limit(limit)
    )
    # As in `names_of_agents`, the organization is checked here: a deleted agent has another one.
    used_ids = [
        row.id for row in tx.all(used_agents) if row.organization_id == scope.organization_id
    ]
    newest_ids = [row.id for row in tx.all(newest_agents)]
    return list(dict.fromkeys([*used_ids, *newest_ids]))[:limit]


def summaries(tx: Transaction, scope: Scope, conversation_id: str, limit: int) -> Sequence[Message]:
    """Return summaries of messages that left the window, newest first.

    Args:
        tx: The transaction.
        scope: The caller.
        conversation_id: The conversation; messages that it shares as a fork are not searched.
        limit: The most summaries. Only the newest 5,000 messages are searched for them.
    """
    by_time = (messages.c.created_at.desc(), messages.c.seq.desc())
    own_messages = select(messages.c.id, messages.c.role).where(
        messages.c.conversation_id == conversation_id, *in_scope(messages, scope)
    )
    newest = own_messages.order_by(*by_time).limit(_MOST_SCANNED).subquery()
    ids = [
        row.id for row in tx.all(select(newest.c.id).where(newest.c.role == "summary").limit(limit))
    ]
    return sorted(
        stored_messages.by_ids(tx, ids),
        key=lambda message: (message.created_at, message.seq),
        reverse=True,
    )


def recent_conversations(
    tx: Transaction, scope: Scope, limit: int, *, waits: bool = False, is_own: bool = False
) -> list[RecentConversation]:
    """Return the conversations with the newest messages.

    Args:
        tx: The transaction.
        scope: The caller; conversations that the caller may not see are left out.
        limit: The most conversations.
        waits: Only conversations in which a tool call waits for approval.
        is_own: Only conversations of the caller's user.
    """
    own_id = scope.subject or scope.user_id
    newest = (
        select(conversations.c.seq)
        .where(
            *in_scope(conversations, scope),
            *may_use(scope, conversations.c.agent_id),
            conversations.c.deleted_at.is_(None),
            # A user's first conversation with an agent has the flag `hidden`, since clients reach
            # it through the agent and not through lists of conversations.
            or_(
                conversations.c.hidden.is_(False),
                and_(
                    conversations.c.user_id == own_id,
                    conversations.c.forked_from.is_(None),
                ),
            ),
            conversations.c.last_message_at.is_not(None),
            *([conversations.c.last_stop_reason == "requires_approval"] if waits else []),
            *([conversations.c.user_id == own_id] if is_own else []),
        )
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
        .limit(limit)
    )
    # Filter conversations first, and join only the shown ones with their agents and users.
    statement = (
        select(conversations, agents.c.name.label("agent_name"), users.c.name.label("user_name"))
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(users, users.c.id == conversations.c.user_id)
        .where(conversations.c.seq.in_(newest))
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
    )
    return [
        RecentConversation(
            id=row.id,
            agent_id=row.agent_id,
            agent_name=row.agent_name,
            title=row.summary,
            user_id=row.user_id,
            user_name=row.user_name,
            last_message_at=row.last_message_at,
            waits=row.last_stop_reason == "requires_approval",
        )
        for row in tx.all(statement)
    ]


def first_messages(
    tx: Transaction, scope: Scope, run_ids: Iterable[str | None]
) -> Sequence[Row[tuple[str, str, str, str]]]:
    """Return, for each run, the first message that a user wrote.

    Runs without such a message are left out.

    Args:
        tx: The transaction.
        scope: The caller.
        run_ids: The runs; None and "" are ignored. Only the first 500 by id are read.

    Returns:
        Rows of run_id, agent_id, conversation_id and the message's id.
    """
    ids = sorted({id for id in run_ids if id})[:MOST_NAMES]
    if not ids:
        return []
    is_first = select(func.min(messages.c.seq)).where(
        messages.c.run_id.in_(ids), stored_messages.IS_SAID
    )
    columns = (messages.c[name] for name in ("run_id", "agent_id", "conversation_id", "id"))
    statement = select(*columns).where(messages.c.seq.in_(is_first.group_by(messages.c.run_id)))
    return tx.all(statement.where(*in_scope(messages, scope)))


def users_of_conversations(
    tx: Transaction, scope: Scope, ids: Iterable[str | None]
) -> Mapping[str, tuple[str | None, str]]:
    """Return the id and name of each conversation's user; no id for a shared conversation.

    Args:
        tx: The transaction.
        scope: The caller.
        ids: The conversations; None and "" are ignored. Only the first 500 by id are read.

    Returns:
        The user's id and name by the conversation's id; (None, "") for a shared conversation.
    """
    conversation_ids = sorted({id for id in ids if id})[:MOST_NAMES]
    if not conversation_ids:
        return {}
    statement = select(conversations.c.id, conversations.c.user_id)
    is_one = conversations.c.id.in_(conversation_ids)
    rows = tx.all(statement.where(*in_scope(conversations, scope), is_one))
    names = names_of_users(tx, scope, [row.user_id for row in rows])
    return {row.id: (row.user_id, names.get(row.user_id, "")) for row in rows}
