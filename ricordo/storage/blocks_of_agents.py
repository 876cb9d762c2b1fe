"""The blocks that many agents see, in one statement: for lists of agents."""

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import null, select

from ricordo.domain.block import Block
from ricordo.storage.blocks import ROWS, add_seen
from ricordo.storage.engine.repository import distinct_list, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, blocks_tags, chains

_WITH_OWNER = (
    *(*ROWS.columns, chains.c.owner_kind, chains.c.owner_id),
    select(distinct_list(blocks_tags.c.tag)).where(blocks_tags.c.block_id == blocks.c.id).label("tags"),
)
_OF_AGENTS = (
    select(*_WITH_OWNER, agents_blocks.c.agent_id.label("attached_to"), agents_blocks.c.seq.label("place"))
    .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
    .join(chains, chains.c.id == blocks.c.chain_id)
    .where(one_of(agents_blocks.c.agent_id, "agent_ids"))
    .union_all(
        select(*_WITH_OWNER, null(), blocks.c.seq)
        .join(chains, chains.c.id == blocks.c.chain_id)
        .where(chains.c.owner_kind == "user", one_of(chains.c.owner_id, "user_ids"))
    )
    .order_by("place")
)


def of_agents(tx: Transaction, talks: Mapping[str, tuple[str | None, str | None]]) -> dict[str, tuple[Block, ...]]:
    """Return what `of_agent` does for each of these agents, by its id, with tags. `talks` tells the user and the course of each."""
    users = sorted({user for user, _ in talks.values() if user})
    rows = tx.all(_OF_AGENTS, {"agent_ids": list(talks), "user_ids": users})
    found: dict[str, dict[str, Block]] = {id: {} for id in talks}
    for row in sorted(rows, key=lambda row: row.attached_to is None):
        block = ROWS.of(row[: len(ROWS.columns)])
        if row.tags:
            block = replace(block, tags=tuple(sorted(row.tags)))
        for id in [row.attached_to] if row.attached_to else talks:
            user, course = talks[id]
            is_users = row.owner_kind == "user"
            is_meant = block.agent_id in (None, id) and block.course in (None, course)
            if not is_users or (row.owner_id == user and (row.attached_to or is_meant)):
                add_seen(found[id], replace(block, is_users=True) if is_users else block)
    return {id: tuple(seen.values()) for id, seen in found.items()}
