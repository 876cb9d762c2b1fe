"""Agents with what is attached to them. Loading one for a turn costs three statements, for the wire four."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, select

from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.model import ModelSettings
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.errors import NotFound
from ricordo.storage import archives, blocks, conversations, messages, tools
from ricordo.storage.memory_tables import agents_blocks
from ricordo.storage.paging import Page, read_page
from ricordo.storage.repository import new_values, plain, setter
from ricordo.storage.store import Transaction
from ricordo.storage.tables import agents, agents_archives, agents_tags
from ricordo.storage.tables import archives as archives_table
from ricordo.storage.tables import conversations as conversations_table

_COLUMNS = [column for column in agents.c if column.name != "seq"]
_WITH_THREAD = (
    select(
        *(column.label(f"agent_{column.name}") for column in _COLUMNS),
        *(column.label(f"conversation_{column.name}") for column in conversations.COLUMNS),
        *(column.label(f"archive_{column.name}") for column in archives.COLUMNS),
    )
    .join(conversations_table, conversations_table.c.agent_id == agents.c.id)
    .outerjoin(agents_archives, agents_archives.c.agent_id == agents.c.id)
    .outerjoin(archives_table, archives_table.c.id == agents_archives.c.archive_id)
    .where(
        agents.c.id == bindparam("agent_id"),
        agents.c.organization_id == bindparam("organization_id"),
        conversations_table.c.id == bindparam("conversation_id"),
        conversations_table.c.deleted_at.is_(None),
    )
    .order_by(agents_archives.c.seq)
)
# Where the three parts of such a row begin and end.
_NAMES = [column.name for column in _COLUMNS]
_THREAD_NAMES = [column.name for column in conversations.COLUMNS]
_ARCHIVE_NAMES = [column.name for column in archives.COLUMNS]
_THREAD = slice(len(_NAMES), len(_NAMES) + len(_THREAD_NAMES))
_ARCHIVE = slice(_THREAD.stop, None)
_ZONE = select(agents.c.timezone).where(
    agents.c.id == bindparam("agent_id"), agents.c.organization_id == bindparam("organization_id")
)
_TAGS = select(agents_tags.c.tag).where(agents_tags.c.agent_id == bindparam("agent_id")).order_by(agents_tags.c.tag)
_INSERT, _INSERT_TAG = insert(agents), insert(agents_tags)
_CHANGED = [
    column.name for column in _COLUMNS if column.name not in ("id", "organization_id", "created_by", "created_at")
]
_LOCK = (
    select(agents.c.id)
    .where(agents.c.id == bindparam("agent_id"), agents.c.organization_id == bindparam("organization_id"))
    .with_for_update(key_share=True)
)
_UPDATE = setter(agents, *_CHANGED, where=agents.c.id == bindparam("agent_id"))
_DELETE_TAGS = delete(agents_tags).where(agents_tags.c.agent_id == bindparam("agent_id"))


def insert_one(tx: Transaction, agent: Agent, tags: Sequence[str]) -> None:
    """Store a new agent and its tags."""
    tx.run(_INSERT, _values(agent))
    tx.run(_INSERT_TAG, [{"agent_id": agent.id, "tag": tag} for tag in tags])


def load(tx: Transaction, scope: Scope, agent_id: str, conversation_id: str | None = None) -> AgentState:
    """The agent with one thread (its default, unless told), its blocks, tools and archives; no tags. Raises NotFound."""
    thread = conversation_id or conversations.default_id(agent_id)
    rows = tx.all(
        _WITH_THREAD,
        {"agent_id": agent_id, "organization_id": scope.organization_id, "conversation_id": thread},
    )
    if not rows:
        what = f"Agent with ID {agent_id}" if conversation_id is None else f"Conversation with ID {conversation_id}"
        raise NotFound(f"{what} not found")
    agent = _agent(dict(zip(_NAMES, rows[0], strict=False)))
    conversation = conversations.from_values(dict(zip(_THREAD_NAMES, rows[0][_THREAD], strict=True)))
    return AgentState(
        agent,
        conversation,
        blocks=blocks.of_agent(tx, agent_id, scope.subject_id or conversation.user_id, agent.course),
        tools=tools.of_agent(tx, agent_id),
        archives=tuple(_archive(row) for row in rows if row.archive_id),
    )


def load_whole(tx: Transaction, scope: Scope, agent_id: str) -> AgentState:
    """`load` with the agent's tags, and with the calls that wait for an answer."""
    state = load(tx, scope, agent_id)
    thread = state.conversation
    last = messages.by_ids(tx, thread.window[-1:]) if thread.last_stop_reason == "requires_approval" else []
    waiting = last[0] if last and last[0].is_waiting else None
    return replace(state, tags=tuple(row.tag for row in tx.all(_TAGS, {"agent_id": agent_id})), waiting=waiting)


def require(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Raise NotFound unless the agent is in the scope."""
    statement = select(agents.c.id).where(agents.c.id == agent_id, agents.c.organization_id == scope.organization_id)
    if tx.first(statement) is None:
        raise NotFound(f"Agent with ID {agent_id} not found")


def timezone(tx: Transaction, scope: Scope, agent_id: str) -> str:
    """The name of the agent's time zone; raises NotFound."""
    row = tx.first(_ZONE, {"agent_id": agent_id, "organization_id": scope.organization_id})
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return str(row.timezone)


def lock(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Let nobody else change the agent or what is attached to it until this transaction ends.

    Whoever reads an agent to change it holds it first; turns go on meanwhile.
    """
    tx.lock(_LOCK, {"agent_id": agent_id, "organization_id": scope.organization_id})


def page(
    tx: Transaction,
    scope: Scope,
    wanted: Page,
    *,
    tags: Sequence[str] = (),
    all_tags: bool = False,
    search: str | None = None,
    block_id: str | None = None,
    **equal: str | bool,
) -> list[AgentState]:
    """One page of agents with all that is attached, filtered by tags, a piece of the name, an attached block, and columns."""
    statement = select(agents.c.id, agents.c.created_at, agents.c.seq).where(
        agents.c.organization_id == scope.organization_id
    )
    for name, value in equal.items():
        statement = statement.where(agents.c[name] == value)
    if search:
        statement = statement.where(agents.c.name.icontains(search, autoescape=True))
    if block_id:
        attached = select(agents_blocks.c.agent_id).where(agents_blocks.c.block_id == block_id)
        statement = statement.where(agents.c.id.in_(attached))
    if tags:
        tagged = select(agents_tags.c.agent_id).where(agents_tags.c.tag.in_(tags))
        if all_tags:
            tagged = tagged.group_by(agents_tags.c.agent_id).having(func.count() == len(set(tags)))
        statement = statement.where(agents.c.id.in_(tagged))
    return [load_whole(tx, scope, row.id) for row in read_page(tx, statement, agents, wanted)]


def count(tx: Transaction, scope: Scope) -> int:
    """How many agents there are."""
    statement = select(func.count()).select_from(agents).where(agents.c.organization_id == scope.organization_id)
    return int(tx.all(statement)[0][0])


def update(tx: Transaction, agent: Agent, tags: Sequence[str] | None = None) -> None:
    """Store the changed fields of an agent, and its tags where they are given."""
    values = {name: value for name, value in _values(agent).items() if name in _CHANGED}
    tx.run(_UPDATE, {**new_values(values), "agent_id": agent.id})
    if tags is not None:
        tx.run(_DELETE_TAGS, {"agent_id": agent.id})
        tx.run(_INSERT_TAG, [{"agent_id": agent.id, "tag": tag} for tag in tags])


def ids(tx: Transaction, scope: Scope) -> list[str]:
    """The ids of all agents."""
    statement = select(agents.c.id).where(agents.c.organization_id == scope.organization_id)
    return [row.id for row in tx.all(statement.order_by(agents.c.seq))]


def tags_in_use(tx: Transaction, scope: Scope) -> list[str]:
    """Every tag that some agent carries, sorted."""
    statement = (
        select(agents_tags.c.tag)
        .join(agents, agents.c.id == agents_tags.c.agent_id)
        .where(agents.c.organization_id == scope.organization_id)
        .distinct()
        .order_by(agents_tags.c.tag)
    )
    return [row.tag for row in tx.all(statement)]


def _archive(row: Row[Any]) -> Archive:
    return archives.from_values(dict(zip(_ARCHIVE_NAMES, row[_ARCHIVE], strict=True)))


def _values(agent: Agent) -> dict[str, Any]:
    values = {column.name: getattr(agent, column.name) for column in _COLUMNS}
    values["model_settings"] = plain(agent.model_settings)
    values["tool_rules"] = [plain(rule) for rule in agent.tool_rules]
    return values


def _agent(values: dict[str, Any]) -> Agent:
    values["model_settings"] = ModelSettings(**values["model_settings"])
    values["tool_rules"] = tuple(ToolRule(**rule) for rule in values["tool_rules"])
    return Agent(**values)
