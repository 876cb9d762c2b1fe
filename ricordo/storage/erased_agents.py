"""The agents that are a forgotten user's alone: which those are, and deleting them with what no other agent has, in portions.

An agent is hers alone where she, or nobody in particular, made it, every thread of it is about her, and no other agent has a block
that is its own. Blocks and archives go with it that are attached to such agents and to no other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Table, bindparam, delete, func, not_, or_, select, update

from ricordo.domain.erasure import Erasure
from ricordo.domain.scope import LOCAL_USER, Scope
from ricordo.search.dropping import drop_portion
from ricordo.storage import erasing, usage
from ricordo.storage.deletion import DELETED
from ricordo.storage.erased_rows import PORTION
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import (
    agents,
    agents_archives,
    agents_blocks,
    archives,
    blocks,
    chains,
    conversations,
    messages,
    passages,
    runs,
    steps,
)

OTHERS_TALK = "others talk with it"
OTHERS_MADE = "somebody else made it"
OTHERS_SHARE = "another agent has a block of its own"

_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
_HERS = (
    select(agents.c.id, agents.c.created_by)
    .where(
        agents.c.organization_id == bindparam("organization_id"),
        or_(
            agents.c.created_by == bindparam("user_id"),
            agents.c.id.in_(select(conversations.c.agent_id).where(conversations.c.user_id == bindparam("user_id"))),
        ),
    )
    .order_by(agents.c.id)
)
_WITH_WHOM = (
    select(conversations.c.user_id)
    .where(conversations.c.agent_id == bindparam("agent_id"), conversations.c.deleted_at.is_(None))
    .distinct()
)
_OWN_BLOCKS = select(blocks.c.id).join(chains, chains.c.id == blocks.c.chain_id)
_SHARED = (
    select(func.count().label("others"))
    .select_from(agents_blocks)
    .where(
        agents_blocks.c.agent_id != bindparam("agent_id"),
        agents_blocks.c.block_id.in_(
            _OWN_BLOCKS.where(chains.c.owner_kind == "agent", chains.c.owner_id == bindparam("agent_id"))
        ),
    )
)
_HIDE = update(agents).where(agents.c.id.op("IN")(_IDS)).values(organization_id=DELETED)
_HIDE_ARCHIVES = update(archives).where(archives.c.id.op("IN")(_IDS)).values(organization_id=DELETED)
# What is these agents' own, and what is nobody's and attached to none but them.
_MEMORY = select(chains.c.id, chains.c.head, chains.c.versions).where(
    or_(
        (chains.c.owner_kind == "agent") & chains.c.owner_id.op("IN")(_IDS),
        (chains.c.owner_kind == "block")
        & chains.c.id.in_(
            select(blocks.c.chain_id)
            .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
            .where(agents_blocks.c.agent_id.op("IN")(_IDS))
        )
        & chains.c.id.not_in(
            select(blocks.c.chain_id)
            .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
            .where(not_(agents_blocks.c.agent_id.op("IN", is_comparison=True)(_IDS)))
        ),
    )
)
_OWN_ARCHIVES = (
    select(archives.c.id)
    .where(
        archives.c.id.in_(select(agents_archives.c.archive_id).where(agents_archives.c.agent_id.op("IN")(_IDS))),
        archives.c.id.not_in(
            select(agents_archives.c.archive_id).where(
                not_(agents_archives.c.agent_id.op("IN", is_comparison=True)(_IDS))
            )
        ),
    )
    .order_by(archives.c.id)
)


def _some(table: Table, column: str) -> tuple[Any, Any]:
    found = select(table.c.id).where(table.c[column] == bindparam("owner_id")).limit(PORTION)
    return found, delete(table).where(table.c.id.op("IN")(_IDS))


_OF_AGENT = {table.name: _some(table, "agent_id") for table in (messages, steps, runs, conversations)}
_PASSAGES = _some(passages, "archive_id")
_DELETE_ARCHIVE = delete(archives).where(archives.c.id == bindparam("archive_id"))
_DELETE_AGENT = delete(agents).where(agents.c.id == bindparam("agent_id"))


def judge(tx: Transaction, scope: Scope, user_id: str) -> tuple[list[str], dict[str, str]]:
    """The agents that are the user's alone, and of the others that are about her or made by her, why each is not."""
    hers: list[str] = []
    others: dict[str, str] = {}
    for row in tx.all(_HERS, {"organization_id": scope.organization_id, "user_id": user_id}):
        reason = _reason(tx, row.id, row.created_by, user_id)
        if reason is None:
            hers.append(row.id)
        else:
            others[row.id] = reason
    return hers, others


def hide(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> Erasure:
    """Let nobody find these agents, their archives and their memory any more, and no turn of them begin; their memory goes with
    the user's.
    """
    if not ids:
        return erasure
    tx.run(_HIDE, {"ids": list(ids)})
    tx.run(_HIDE_ARCHIVES, {"ids": archives_of(tx, ids)})
    known = dict(erasure.chains)
    for row in tx.all(_MEMORY, {"ids": list(ids)}):
        known[row.id] = {"head": row.head.hex() if row.head else None, "versions": row.versions}
        erasing.hide_memory(tx, row.id)
    return replace(erasure, own_agents=tuple(ids), chains=known)


def archives_of(tx: Transaction, agent_ids: Sequence[str]) -> list[str]:
    """The archives that these agents have and no other."""
    return [row.id for row in tx.all(_OWN_ARCHIVES, {"ids": list(agent_ids)})]


def remove(tx: Transaction, erasure: Erasure, agent_id: str) -> tuple[Erasure, bool]:
    """Delete some of what belongs to a hidden agent, at last itself; tells whether there is more. What was spent stays."""
    if drop_portion(tx, agent_id):
        return erasure, True
    for name, (found, remove) in _OF_AGENT.items():
        if ids := [row.id for row in tx.all(found, {"owner_id": agent_id})]:
            if name == "steps":
                usage.keep_spent(tx, ids)
            return erasure.counted(name, tx.run(remove, {"ids": ids})), True
    for archive_id in archives_of(tx, [agent_id]):
        return _remove_archive(tx, erasure, archive_id), True
    erasure = erasure.counted("agents", tx.run(_DELETE_AGENT, {"agent_id": agent_id}))
    return erasure.without_space(agent_id), False


def _reason(tx: Transaction, agent_id: str, made_by: str | None, user_id: str) -> str | None:
    """Why an agent is not the user's alone; None where it is."""
    if made_by not in (user_id, LOCAL_USER, None):
        return OTHERS_MADE
    # A thread that is about nobody is hers in an agent that she made herself.
    about = {user_id, None} if made_by == user_id else {user_id}
    if not {row.user_id for row in tx.all(_WITH_WHOM, {"agent_id": agent_id})} <= about:
        return OTHERS_TALK
    return OTHERS_SHARE if tx.all(_SHARED, {"agent_id": agent_id})[0].others else None


def _remove_archive(tx: Transaction, erasure: Erasure, archive_id: str) -> Erasure:
    if drop_portion(tx, archive_id):
        return erasure
    found, remove = _PASSAGES
    if ids := [row.id for row in tx.all(found, {"owner_id": archive_id})]:
        return erasure.counted("passages", tx.run(remove, {"ids": ids}))
    count = tx.run(_DELETE_ARCHIVE, {"archive_id": archive_id})
    return erasure.counted("archives", count).without_space(archive_id)
