"""Agents with their attachments.

Loading an agent for a turn takes three statements, and one more if the agent works on another
agent's memory. A user without a default conversation of their own takes one more, if no
conversation is named. Loading any number of agents for an answer takes three too. It takes one more
if calls wait for an answer, and one more if a list has long texts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Row,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
)

from ricordo.domain.agent import Agent, AgentState, Conversation
from ricordo.domain.block import Block
from ricordo.domain.message import Message
from ricordo.domain.model import ModelSettings
from ricordo.domain.passage import Archive
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool, ToolRule
from ricordo.errors import NotFound
from ricordo.storage import archives, blocks, conversations, messages, tools
from ricordo.storage.agent_access import MAY_USE, USERS, for_caller, may_use
from ricordo.storage.blocks_of_agents import of_agents
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    distinct_list,
    equal,
    one_of,
    plain,
    require_found,
    tagged_with,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    agents_archives,
    agents_tags,
    agents_tools,
    agents_users,
    passages,
    passages_tags,
)
from ricordo.storage.schema.core_tables import archives as archives_table
from ricordo.storage.schema.core_tables import conversations as conversations_table
from ricordo.storage.schema.memory_tables import agents_blocks

_ROWS = Repository(
    Agent,
    agents,
    forms={
        "model_settings": (plain, lambda settings: ModelSettings(**settings)),
        "tool_rules": (
            lambda rules: list(map(plain, rules)),
            lambda rules: tuple(ToolRule(**rule) for rule in rules),
        ),
    },
)
# The columns get short names, since psycopg parses a statement of more than 4,096 bytes at each
# use.
_PARTS = (("a", _ROWS), ("c", conversations.ROWS), ("archive", archives.ROWS))
_USER = func.coalesce(bindparam("user_id", type_=Text), conversations_table.c.user_id)
_USERS_TAGS = (
    select(distinct_list(passages_tags.c.tag))
    .where(passages_tags.c.archive_id == archives_table.c.id, passages_tags.c.user_id == _USER)
    .label("users_tags")
)
_USERS_PASSAGES = (
    select(func.count())
    .where(passages.c.archive_id == archives_table.c.id, passages.c.user_id == _USER)
    .correlate(archives_table, conversations_table)
    .label("users_passages")
)
_STATES = (
    select(
        *(
            column.label(f"{name}_{column.name}")
            for name, rows in _PARTS
            for column in rows.columns
        ),
        _USERS_TAGS,
        _USERS_PASSAGES,
    )
    .join(conversations_table, conversations_table.c.agent_id == agents.c.id)
    .outerjoin(agents_archives, agents_archives.c.agent_id == agents.c.id)
    .outerjoin(archives_table, archives_table.c.id == agents_archives.c.archive_id)
    .where(conversations_table.c.deleted_at.is_(None))
    .order_by(agents_archives.c.seq)
)
# If an agent has many users, only the newest conversations are checked.
_others = conversations_table.alias("others")
_newest = (
    select(_others.c.id, _others.c.message_count, _others.c.user_id)
    .where(
        _others.c.agent_id == bindparam("agent_id"),
        _others.c.id != bindparam("conversation_id"),
        _others.c.deleted_at.is_(None),
    )
    .order_by(_others.c.created_at.desc())
    .limit(50)
    .subquery()
)
_HAS_OTHERS = exists(
    # The first message of each conversation is the prompt.
    select(_newest.c.id).where(
        _newest.c.message_count > 1, or_(_newest.c.user_id.is_(None), _newest.c.user_id == _USER)
    )
).label("has_others")
_STATE = _STATES.add_columns(_HAS_OTHERS, agents.c.message_changes).where(
    equal(agents, "organization_id"),
    agents.c.id == bindparam("agent_id"),
    conversations_table.c.id == bindparam("conversation_id"),
)
_STATE_FOR_ONE = _STATE.where(MAY_USE)
_AGENTS_TAGS = select(distinct_list(agents_tags.c.tag)).where(agents_tags.c.agent_id == agents.c.id)
_AGENTS_USERS = select(distinct_list(agents_users.c.user_id)).where(
    agents_users.c.agent_id == agents.c.id
)
_STATES_BY_IDS = _STATES.add_columns(
    _AGENTS_TAGS.label("agents_tags"), _AGENTS_USERS.label("users")
).where(
    one_of(conversations_table.c.id, "conversation_ids"),
    # An expression instead of the bare column. Otherwise SQLite would prefer the column's index,
    # and read all agents of the organization.
    func.coalesce(agents.c.organization_id, "") == bindparam("organization_id"),
)
_STATES_BY_IDS_FOR_ONE = _STATES_BY_IDS.where(MAY_USE)
# The ranges of the three parts in such a row.
_AGENT = slice(len(_ROWS.columns))
_CONVERSATION = slice(_AGENT.stop, _AGENT.stop + len(conversations.ROWS.columns))
_ARCHIVE = slice(_CONVERSATION.stop, _CONVERSATION.stop + len(archives.ROWS.columns))
_ONE = equal(agents, "id", "organization_id")
_GET = _ROWS.select.where(_ONE)
_GET_FOR_ONE = _GET.where(MAY_USE)
_TIMEZONE = select(agents.c.timezone).where(_ONE)
_TIMEZONE_FOR_ONE = _TIMEZONE.where(MAY_USE)
AgentOrder = Literal["created_at", "updated_at", "last_run_completion"]
_MAX_NAMED = 1000  # the most agents that `with_rule_about` returns
_INSERT_TAG = insert(agents_tags)
_LOCK = select(agents.c.id).where(_ONE).with_for_update(key_share=True)
_update = _ROWS.updates(*_ROWS.changeable())
_DELETE_TAGS = delete(agents_tags).where(equal(agents_tags, "agent_id"))
_TAGS = select(agents_tags.c.tag).where(equal(agents_tags, "agent_id")).order_by(agents_tags.c.tag)


def insert_one(tx: Transaction, agent: Agent, tags: Sequence[str]) -> None:
    """Store a new agent with its tags.

    Args:
        tx: The transaction.
        agent: The agent, with its id and times.
        tags: Its tags, each once.
    """
    _ROWS.insert(tx, agent)
    tx.run(_INSERT_TAG, [{"agent_id": agent.id, "tag": tag} for tag in tags])


def load(
    tx: Transaction, scope: Scope, agent_id: str, conversation_id: str | None = None
) -> AgentState:
    """Return the agent with its blocks, tools, archives and a conversation.

    Args:
        tx: The transaction.
        scope: The caller. The blocks and archives are those for the caller's user, or else for the
            conversation's user.
        agent_id: The agent.
        conversation_id: A conversation of the agent. None or "" loads the caller's default
            conversation, which may be new and empty.

    Raises:
        NotFound: The agent or the conversation does not exist, or the caller may not use it.
    """
    agent, conversation, rows = _load_conversation(tx, scope, agent_id, conversation_id)
    user_id = scope.subject_id or conversation.user_id
    usable_archives = tuple(_visible_archive(row) for row in rows if row.archive_id)
    if agent.is_asleep_for:
        usable_archives = _with_shared_archives(tx, agent.is_asleep_for, usable_archives)
    return AgentState(
        agent,
        conversation,
        blocks=blocks.of_agent(tx, agent_id, user_id, agent.course, memory_id=agent.is_asleep_for),
        tools=tools.of_agent(tx, agent_id),
        archives=usable_archives,
        has_other_conversations=bool(rows[0].has_others),
        message_changes=rows[0].message_changes,
    )


def blocks_seen(tx: Transaction, scope: Scope, agent_id: str) -> tuple[Block, ...]:
    """Return the agent's blocks in the caller's default conversation.

    It takes two statements, or three for a user without a default conversation of their own.

    Args:
        tx: The transaction, or a read.
        scope: The caller. The blocks are those for the caller's user, or else for the
            conversation's user.
        agent_id: The agent.

    Raises:
        NotFound: The agent does not exist, or the caller may not use it.
    """
    agent, conversation, _ = _load_conversation(tx, scope, agent_id)
    return blocks.of_agent(
        tx,
        agent_id,
        scope.subject_id or conversation.user_id,
        agent.course,
        memory_id=agent.memory_id,
    )


def _load_conversation(
    tx: Transaction, scope: Scope, agent_id: str, conversation_id: str | None = None
) -> tuple[Agent, Conversation, Sequence[Row[Any]]]:
    """Return the agent, the conversation that `load` describes, and the rows of both.

    Raises NotFound.
    """
    if conversation_id:
        ids = [conversation_id]
    else:
        ids = _default_ids(scope, agent_id)
    parameters = {
        "agent_id": agent_id,
        "organization_id": scope.organization_id,
        "user_id": scope.subject,
    }
    statement = _STATE
    if not scope.uses_every_agent:
        statement, parameters = for_caller(scope, _STATE, _STATE_FOR_ONE, parameters)
    pages = (tx.all(statement, parameters | {"conversation_id": id}) for id in ids)
    rows = next((rows for rows in pages if rows), ())
    agent = None
    conversation = None
    if rows:
        agent, conversation = _conversation_of(scope, rows, is_default=not conversation_id)
    if (
        agent is None
        or conversation is None
        or (conversation_id and not scope.sees(conversation.user_id))
    ):
        missing = f"Agent with ID {agent_id}"
        if conversation_id:
            missing = f"Conversation with ID {conversation_id}"
        raise NotFound(f"{missing} not found")  # wire fact
    return agent, conversation, rows


def _default_ids(scope: Scope, agent_id: str) -> list[str]:
    """Return the possible ids of the caller's default conversation, the likeliest first."""
    if scope.subject:
        ids = [conversations.users_default_id(agent_id, scope.subject)]
    else:
        ids = []
    return [*ids, conversations.default_id(agent_id)]


def _conversation_of(
    scope: Scope, rows: Sequence[Row[Any]], *, is_default: bool
) -> tuple[Agent, Conversation]:
    """Return the agent and the conversation from these rows; each row has one archive."""
    agent = _ROWS.of(rows[0][_AGENT])
    conversation = conversations.ROWS.of(rows[0][_CONVERSATION])
    if is_default and scope.subject_id is not None and conversation.user_id != scope.subject:
        id = _default_ids(scope, agent.id)[0]
        conversation = Conversation(id, agent.organization_id, agent.id, user_id=scope.subject)
    return agent, conversation


def _with_shared_archives(
    tx: Transaction, main_id: str, agents_own: tuple[Archive, ...]
) -> tuple[Archive, ...]:
    """Return the archives of the agent that owns the memory, then those of the agent itself."""
    shared = archives.of_agent(tx, main_id)
    shared_ids = {archive.id for archive in shared}
    return (*shared, *(archive for archive in agents_own if archive.id not in shared_ids))


def _visible_archive(row: Row[Any]) -> Archive:
    """Return the archive with the count and tags of passages visible to the conversation's user."""
    archive = archives.ROWS.of(row[_ARCHIVE])
    if not row.users_passages:
        return archive
    tags = tuple(sorted({*archive.tags, *(row.users_tags or ())}))
    return replace(archive, passage_count=archive.passage_count + row.users_passages, tags=tags)


def load_whole(tx: Transaction, scope: Scope, agent_id: str) -> AgentState:
    """Return the agent with its default conversation and all tags, as the API shows it.

    The result includes the tags of the blocks, and the calls that wait for an answer.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose default conversation is returned.
        agent_id: The agent.

    Raises:
        NotFound: The agent does not exist, or the caller may not use it.
    """
    return require_found(next(iter(_load_all(tx, scope, [agent_id])), None), "Agent", agent_id)


def _rows_by_agent(
    tx: Transaction, scope: Scope, agent_ids: Sequence[str]
) -> dict[str, list[Row[Any]]]:
    """Return the rows of each agent's default conversation, in the order of the agents."""
    ids = [id for agent_id in agent_ids for id in _default_ids(scope, agent_id)]
    parameters = {
        "conversation_ids": ids,
        "organization_id": scope.organization_id,
        "user_id": scope.subject,
    }
    by_conversation: dict[str, list[Row[Any]]] = {}
    for row in tx.all(*for_caller(scope, _STATES_BY_IDS, _STATES_BY_IDS_FOR_ONE, parameters)):
        by_conversation.setdefault(row.c_id, []).append(row)
    rows_of: dict[str, list[Row[Any]]] = {}
    for rows in (by_conversation[id] for id in ids if id in by_conversation):
        rows_of.setdefault(rows[0].a_id, rows)
    return rows_of


def _waiting_messages(
    tx: Transaction, conversations_of_agents: Sequence[Conversation]
) -> dict[str, Message]:
    """Return the last messages whose calls wait for an answer, by id."""
    last_ids = [
        conversation.window[-1] for conversation in conversations_of_agents if conversation.waits
    ]
    if not last_ids:
        return {}
    last_messages = messages.by_ids(tx, last_ids)
    return {message.id: message for message in last_messages if message.is_waiting}


def _load_all(
    tx: Transaction, scope: Scope, agent_ids: Sequence[str], *, is_list: bool = False
) -> list[AgentState]:
    """Return these agents whole, in order.

    It takes three statements for all, one more if calls wait for an answer, and one more if a list
    has long texts.
    """
    if not agent_ids:
        return []
    rows_of = _rows_by_agent(tx, scope, agent_ids)
    talks = {id: _conversation_of(scope, rows, is_default=True) for id, rows in rows_of.items()}
    owners = {
        id: (scope.subject_id or conversation.user_id, agent.course, agent.memory_id)
        for id, (agent, conversation) in talks.items()
    }
    visible_blocks = of_agents(tx, owners, is_list=is_list)
    attached_tools = tools.of_agents(tx, list(talks))
    waiting = _waiting_messages(tx, [conversation for _, conversation in talks.values()])
    return [
        AgentState(
            agent,
            conversation,
            blocks=visible_blocks[id],
            tools=attached_tools[id],
            archives=tuple(_visible_archive(row) for row in rows_of[id] if row.archive_id),
            tags=tuple(sorted(rows_of[id][0].agents_tags or ())),
            user_ids=tuple(sorted(user for user in rows_of[id][0].users or () if scope.sees(user))),
            waiting=waiting.get(conversation.window[-1]) if conversation.waits else None,
        )
        for id, (agent, conversation) in talks.items()
    ]


def get(tx: Transaction, scope: Scope, agent_id: str) -> Agent:
    """Return the agent without its attachments.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The agent does not exist, or the caller may not use it.
    """
    parameters = {"id": agent_id, "organization_id": scope.organization_id}
    return require_found(
        _ROWS.first(tx, *for_caller(scope, _GET, _GET_FOR_ONE, parameters)), "Agent", agent_id
    )


def require(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Refuse an agent that the caller may not use.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The agent does not exist, or the caller may not use it.
    """
    timezone(tx, scope, agent_id)


def timezone(tx: Transaction, scope: Scope, agent_id: str) -> str:
    """Return the name of the agent's time zone, such as "Europe/Rome".

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The agent does not exist, or the caller may not use it.
    """
    parameters = {"id": agent_id, "organization_id": scope.organization_id}
    row = tx.first(*for_caller(scope, _TIMEZONE, _TIMEZONE_FOR_ONE, parameters))
    return str(require_found(row, "Agent", agent_id).timezone)


def lock(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Lock the agent with its attachments until this transaction ends.

    Call it before you read an agent that you will change. Running turns are not blocked.

    Args:
        tx: The transaction.
        scope: The caller, for the organization. Rights are not checked.
        agent_id: The agent. If there is none, nothing is locked.
    """
    tx.lock(_LOCK, {"id": agent_id, "organization_id": scope.organization_id})


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *conditions: ColumnElement[bool] | None,
    tags: Sequence[str] = (),
    all_tags: bool = False,
    position: ColumnElement[Any] | None = None,
    **equal: Any,
) -> list[AgentState]:
    """Return one page of agents with their attachments, ordered by creation or `position`.

    Long texts of blocks are cut.

    Args:
        tx: The transaction.
        scope: The caller; agents that the caller may not use are left out.
        page: The part of the list.
        *conditions: Further conditions, such as `has_block`; None is ignored.
        tags: Only agents with one of these tags; without tags, all agents.
        all_tags: Only agents with all of the tags.
        position: The expression by which agents are ordered, as `place_of` returns it; None: by
            creation.
        **equal: Values by column; None is ignored.
    """
    listed = _ROWS.page_of_ids(
        tx,
        scope,
        page,
        *conditions,
        *may_use(scope),
        tagged_with(agents_tags, agents.c.id, tags, all_tags=all_tags) if tags else None,
        position=position,
        marked=lambda agent: may_use(scope, agent.c.id),
        **equal,
    )
    return _load_all(tx, scope, listed, is_list=True)


def with_rule_about(tx: Transaction, scope: Scope, tool: Tool) -> list[Agent]:
    """Return the agents that have the tool and a rule about it, at most the newest 1,000.

    Args:
        tx: The transaction, or a read.
        scope: The caller. All agents of the organization count, also restricted ones.
        tool: A stored tool of the organization. Rules name it by its name.
    """
    has_tool = agents.c.id.in_(
        select(agents_tools.c.agent_id).where(agents_tools.c.tool_id == tool.id)
    )
    # Without the quotation marks, rules about tools with longer names would fill the page.
    names_it = cast(agents.c.tool_rules, Text).contains(f'"{tool.name}"', autoescape=True)
    rows = _ROWS.page(tx, Scope(scope.organization_id), Page(_MAX_NAMED), has_tool, names_it)
    return [
        agent for agent in rows if any(rule.tool_name == tool.name for rule in agent.tool_rules)
    ]


def is_named_like(piece: str) -> ColumnElement[bool]:
    """Return the condition that the agent's name contains this text.

    Args:
        piece: The text. Its case does not matter.
    """
    return agents.c.name.icontains(piece, autoescape=True)


def has_block(block_id: str) -> ColumnElement[bool]:
    """Return the condition that a block is attached to the agent.

    Args:
        block_id: The block. Whether the caller sees it is not checked.
    """
    return agents.c.id.in_(
        select(agents_blocks.c.agent_id).where(agents_blocks.c.block_id == block_id)
    )


def uses_archive(archive_id: str) -> ColumnElement[bool]:
    """Return the condition that an archive is attached to the agent.

    Args:
        archive_id: The archive. Whether the caller sees it is not checked.
    """
    return agents.c.id.in_(
        select(agents_archives.c.agent_id).where(agents_archives.c.archive_id == archive_id)
    )


def is_kept_to(user_ids: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that one of these users is attached to the agent.

    Args:
        user_ids: The users.
    """
    return USERS.where(agents_users.c.user_id.in_(user_ids)).exists()


def last_ended_for(tx: Transaction, scope: Scope, reason: str) -> ColumnElement[bool]:
    """Return the condition that an agent's last turn ended with this stop reason.

    "Last" refers to the conversation that `load_whole` shows.

    Args:
        tx: The transaction, in which a user's default conversations are looked up.
        scope: The caller.
        reason: The stop reason of a run, such as "end_turn".
    """
    conversation = select(conversations_table.c.id).where(_is_shown(tx, scope))
    return (
        conversation.where(conversations_table.c.last_stop_reason == reason)
        .correlate(agents)
        .exists()
    )


def place_of(tx: Transaction, scope: Scope, order_by: AgentOrder) -> ColumnElement[Any] | None:
    """Return the expression by which agents are ordered; None if they are ordered by creation.

    Args:
        tx: The transaction, in which a user's default conversations are looked up.
        scope: The caller, whose default conversations count for "last_run_completion".
        order_by: The requested order. An agent whose conversation never ran is ordered as if it had
            run before all others.
    """
    if order_by == "last_run_completion":
        # A user may have two default conversations: a personal one, and the agent's, which the user
        # got later. An aggregate returns one row for both.
        last = func.coalesce(func.max(conversations_table.c.last_run_ended_at), 0)
        return select(last).where(_is_shown(tx, scope)).correlate(agents).scalar_subquery()
    if order_by == "updated_at":
        return agents.c.updated_at
    return None


def _is_shown(tx: Transaction, scope: Scope) -> ColumnElement[bool]:
    """Return the condition that a conversation is the caller's default one with the agent.

    For a user it takes a statement.
    """
    table = conversations_table.c
    is_stored = (table.agent_id == agents.c.id) & table.deleted_at.is_(None)
    if scope.subject_id is None:
        return is_stored & table.is_default
    is_shown = table.is_default & (
        table.user_id.is_(None) if scope.subject is None else table.user_id == scope.subject
    )
    if scope.subject is not None:
        statement = select(table.id, table.agent_id).where(
            table.user_id == scope.subject, table.deleted_at.is_(None)
        )
        rows = tx.all(statement.where(table.organization_id == scope.organization_id))
        own_ids = [
            row.id
            for row in rows
            if row.id == conversations.users_default_id(row.agent_id, scope.subject)
        ]
        is_shown |= table.id.in_(own_ids)
    return is_stored & is_shown


def is_made_from(**ids: str) -> ColumnElement[bool]:
    """Return the condition that the agent was made from the template with these ids.

    Args:
        **ids: `template_id`, `base_template_id` or both.
    """
    return and_(
        *(agents.c.settings[("template", name)].as_string() == id for name, id in ids.items())
    )


def count(tx: Transaction, scope: Scope) -> int:
    """Return the number of agents that the caller may use.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _ROWS.count(tx, scope, *may_use(scope))


def ids(tx: Transaction, scope: Scope) -> list[str]:
    """Return the ids of the agents that the caller may use, the oldest first.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _ROWS.ids(tx, scope, *may_use(scope))


find = _ROWS.find


def tags_of(tx: Transaction, agent_id: str) -> list[str]:
    """Return the agent's tags in alphabetical order.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent. Rights are not checked.
    """
    return [row.tag for row in tx.all(_TAGS, {"agent_id": agent_id})]


def update(tx: Transaction, agent: Agent, tags: Sequence[str] | None = None) -> None:
    """Store the changed fields of an agent.

    Args:
        tx: The transaction.
        agent: The agent with its new fields. Its organization and its creation never change.
        tags: All tags that the agent is to have; None leaves them as they are.
    """
    _update(tx, agent)
    if tags is not None:
        tx.run(_DELETE_TAGS, {"agent_id": agent.id})
        tx.run(_INSERT_TAG, [{"agent_id": agent.id, "tag": tag} for tag in tags])
