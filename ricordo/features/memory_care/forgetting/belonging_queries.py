"""The rows that belong to one user alone.

These are the user's rows, and rows of agents, archives and chains that only this user uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, LargeBinary, String, Table, false, or_, select
from sqlalchemy.sql.sqltypes import JSON

from ricordo.features.memory_care.erasure.service import agents_of, archives_of, is_chain_of
from ricordo.storage.deletion import is_in
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    NormalName,
    PackedId,
    as_stored,
    erasure_of,
    metadata,
)
from ricordo.storage.schema.core_tables import agents, conversations, passages, runs, steps
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, chains

_OF_USER = ("user_id", "sender_id", "owner_id")
# Columns that name a row's owner. They count even if they are no foreign keys.
_NAMED = {"run_id": "runs", "conversation_id": "conversations", "agent_id": "agents"}
# Tables that are skipped: those of accounts, notifications, tools and chains. Chains have a
# separate source.
_LEFT_OUT = frozenset(
    "agents_blocks api_keys audit_people blobs blocks blocks_log chains commits decision_links"
    " git_objects memory_remotes notices notification_preferences oauth_grants organizations"
    " proposals tools users".split()
)
_NO_WORDS = ("id", "hash", "key", "digest", "otid", "address", "email", "created_by", "updated_by")


@dataclass(frozen=True, slots=True)
class Belongings:
    """A user, with the agents, archives and chains that only this user has.

    Attributes:
        user_id: The user; "" for the rows that a conversation without a user can reach.
        shared_agents: Agents that the user talks with, and that others use too.
        fixed_agents: Agents that only this user has, but whose instructions the user may not
            change.
        fixed_blocks: Blocks that agents can only read, and that the user may not change. Each is a
            pair of a chain and a label.
        fixed_archives: Archives that only fixed agents have. Of their passages, only those that
            agents noted or the user stored belong to the user.
        conversations: Conversations without a user, of agents that the user created but others use
            too. Their messages belong to the user; the memory of these agents does not.
    """

    user_id: str
    organization_id: str
    agents: tuple[str, ...]
    archives: tuple[str, ...]
    chains: tuple[str, ...]
    shared_agents: tuple[str, ...] = ()
    fixed_agents: tuple[str, ...] = ()
    fixed_blocks: frozenset[tuple[str, str]] = frozenset()
    fixed_archives: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()


def belongings_of(
    tx: Transaction, organization_id: str, user_id: str, *, changes_agents: bool = True
) -> Belongings:
    """Return the agents, archives and chains that only this user has.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user.
        changes_agents: The caller may change every agent, so that none of the belongings is fixed.
    """
    own_agents, kept_agents = agents_of(tx, organization_id, user_id)
    is_users = (chains.c.owner_kind == "user") & (chains.c.owner_id == user_id)
    is_own = is_users | is_chain_of(tx, own_agents)
    statement = select(chains.c.id).where(is_own, chains.c.organization_id == organization_id)
    fixed_agents: Sequence[str] = ()
    if not changes_agents:
        fixed_agents = _made_by_others(tx, own_agents, user_id)
    return Belongings(
        user_id,
        organization_id,
        agents=tuple(own_agents),
        archives=tuple(archives_of(tx, own_agents)),
        chains=tuple(row.id for row in tx.all(statement.order_by(chains.c.seq))),
        shared_agents=tuple(kept_agents),
        fixed_agents=tuple(fixed_agents),
        fixed_blocks=_read_only_blocks(tx, fixed_agents),
        fixed_archives=tuple(archives_of(tx, list(fixed_agents))),
        conversations=_without_user(tx, tuple(kept_agents), user_id),
    )


def reach_of(
    tx: Transaction, organization_id: str, conversation_id: str, local_user_id: str = ""
) -> Belongings:
    """Return the rows that a conversation without a user can reach.

    They are the conversation, passages that the agent noted in it, and the agent's blocks if the
    agent has no other conversation with messages. Instructions and read-only blocks are not
    included.

    Args:
        tx: The transaction.
        organization_id: The conversation's organization.
        conversation_id: The conversation; for one with a user, the result is empty.
        local_user_id: The local user, whose memory is included, since facts from such conversations
            are proposed to it; "" leaves it out.
    """
    row = tx.first(
        select(conversations.c.agent_id).where(
            conversations.c.id == conversation_id,
            conversations.c.organization_id == organization_id,
            conversations.c.user_id.is_(None),
        )
    )
    if row is None:
        return Belongings("", organization_id, (), (), ())
    agent_id = row.agent_id
    others = select(conversations.c.id).where(
        conversations.c.agent_id == agent_id,
        conversations.c.id != conversation_id,
        conversations.c.message_count > 0,
    )
    own_agents = [] if tx.first(others.limit(1)) else [agent_id]
    is_reached = is_chain_of(tx, own_agents)
    if local_user_id:
        is_reached |= (chains.c.owner_kind == "user") & (chains.c.owner_id == local_user_id)
    statement = select(chains.c.id).where(is_reached, chains.c.organization_id == organization_id)
    return Belongings(
        "",
        organization_id,
        agents=(),
        archives=(),
        chains=tuple(row.id for row in tx.all(statement.order_by(chains.c.seq))),
        shared_agents=() if own_agents else (agent_id,),
        fixed_agents=tuple(own_agents),
        fixed_blocks=_read_only_blocks(tx, own_agents),
        conversations=(conversation_id,),
    )


def _without_user(tx: Transaction, agent_ids: Sequence[str], user_id: str) -> tuple[str, ...]:
    """Return the conversations without a user of those of these agents that the user created."""
    statement = (
        select(conversations.c.id)
        .join(agents, agents.c.id == conversations.c.agent_id)
        .where(
            is_in(agents.c.id, agent_ids),
            agents.c.created_by == user_id,
            conversations.c.user_id.is_(None),
        )
    )
    return tuple(row.id for row in tx.all(statement.order_by(conversations.c.id)))


def _made_by_others(tx: Transaction, agent_ids: Sequence[str], user_id: str) -> list[str]:
    is_theirs = agents.c.created_by.is_(None) | (agents.c.created_by != user_id)
    statement = select(agents.c.id).where(is_in(agents.c.id, agent_ids), is_theirs)
    return [row.id for row in tx.all(statement.order_by(agents.c.id))]


def _read_only_blocks(tx: Transaction, agent_ids: Sequence[str]) -> frozenset[tuple[str, str]]:
    if not agent_ids:
        return frozenset()
    statement = (
        select(blocks.c.chain_id, blocks.c.label)
        .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
        .join(chains, chains.c.id == blocks.c.chain_id)
        .where(
            is_in(agents_blocks.c.agent_id, agent_ids),
            blocks.c.read_only,
            chains.c.owner_kind != "user",
        )
    )
    return frozenset((row.chain_id, row.label) for row in tx.all(statement))


def tables_with_words() -> list[Table]:
    """Return the tables with texts whose rows can belong to a user."""
    return [
        table
        for table in metadata.sorted_tables
        if "seq" in table.c
        and not table.name.startswith("search_")
        and table.name not in _LEFT_OUT
        and word_columns(table)
        and (table.name == "agents" or _references(table))
    ]


def word_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that may contain text of a user.

    Columns with names are left out, since forgetting changes no names.
    """
    return [
        column
        for column in table.c
        if isinstance(as_stored(column), String | JSON | LargeBinary)
        and not isinstance(column.type, NormalName | PackedId)
        and erasure_of(column) in ("delete", "blank")
        and not column.foreign_keys
        and column.name not in _NO_WORDS
        and not column.name.endswith(("_id", "_hash", "_ids"))
    ]


def is_owned(table: Table, owned: Belongings, depth: int = 0) -> ColumnElement[bool]:
    """Return the condition that a row of the table belongs to the user.

    Args:
        table: One of `tables_with_words`, or a table that one of these refers to.
        owned: The user's belongings.
        depth: The number of references from the first table to this one. Callers leave it out.
    """
    conditions: list[ColumnElement[bool]] = []
    if table.name == "agents":
        return is_in(table.c.id, sorted(set(owned.agents) - set(owned.fixed_agents)))
    if table.name == "archives":
        return is_in(table.c.id, owned.archives)
    if table.name == "users":
        return table.c.id == owned.user_id
    for column, parent in _references(table):
        conditions += _owned_by(column, parent, owned, depth)
    if table.name == "conversations":
        conditions.append(is_in(table.c.id, owned.conversations))
    if table.name == "passages":
        conditions = [_is_owned_passage(owned, or_(false(), *conditions))]
    condition = or_(false(), *conditions)
    if "user_id" in table.c:
        # Another user may have written in this user's conversation too.
        column = table.c.user_id
        condition &= column.is_(None) | (column == owned.user_id)
    return condition


def _owned_by(
    column: Column[Any], parent: Table | None, owned: Belongings, depth: int
) -> list[ColumnElement[bool]]:
    """Return the conditions that the row named by a column is the user's, or is the user."""
    if parent is None:
        return [column == owned.user_id] if owned.user_id else []
    if parent.name == "agents":
        return [is_in(column, owned.agents)]
    if parent.name == "archives":
        return [is_in(column, owned.archives)]
    conditions: list[ColumnElement[bool]] = []
    if depth < _DEEPEST:
        conditions.append(column.in_(select(parent.c.id).where(is_owned(parent, owned, depth + 1))))
    if parent.name == "conversations":
        conditions.append(is_in(column, owned.conversations))
    return conditions


def _is_owned_passage(owned: Belongings, is_in_archive: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition for passages.

    Passages that an agent noted in the user's conversations belong to the user in any archive.
    Passages that other people stored are kept, if the archive belongs to an agent that other people
    set up.
    """
    noted = select(steps.c.id).join(runs, runs.c.id == steps.c.run_id)
    noted = noted.where(is_in(runs.c.conversation_id, owned.conversations))
    is_others = (
        is_in(passages.c.archive_id, owned.fixed_archives)
        & passages.c.step_id.is_(None)
        & passages.c.user_id.is_(None)
        & (passages.c.created_by.is_(None) | (passages.c.created_by != owned.user_id))
    )
    return (is_in_archive & ~is_others) | passages.c.step_id.in_(noted)


_DEEPEST = 4


def _references(table: Table) -> Sequence[tuple[Column[Any], Table | None]]:
    """Return the columns that name an owner, each with the owner's table; None for a user."""
    references: list[tuple[Column[Any], Table | None]] = []
    for column in table.c:
        if isinstance(column.type, PackedId):
            continue
        parents = [key.column.table for key in column.foreign_keys]
        if column.name in _OF_USER:
            references.append((column, None))
        elif parents and parents[0].name != "organizations" and "id" in parents[0].c:
            if parents[0].name not in _LEFT_OUT or parents[0].name == "users":
                references.append((column, parents[0]))
        elif column.name in _NAMED:
            references.append((column, metadata.tables[_NAMED[column.name]]))
    return references
