"""The visible blocks of many agents in one statement, or two if a list has long texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import CompoundSelect, null, select

from ricordo.domain.block import Block
from ricordo.storage.blocks import IS_IN_PROMPTS, ROWS, add_seen
from ricordo.storage.engine.repository import distinct_list, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.listed_texts import LENGTH, LISTED_COLUMNS, block_of, listed_texts
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, blocks_tags, chains

_TAGS = (
    select(distinct_list(blocks_tags.c.tag))
    .where(blocks_tags.c.block_id == blocks.c.id)
    .label("tags")
)
_OWNER = (chains.c.owner_kind, chains.c.owner_id, _TAGS, LENGTH)


def _of_agents(columns: Sequence[Any]) -> CompoundSelect[Any]:
    """Return the statement for blocks of agents and users, with owner and these columns."""
    return (
        select(
            *columns,
            *_OWNER,
            agents_blocks.c.agent_id.label("attached_to"),
            agents_blocks.c.seq.label("place"),
        )
        .select_from(blocks)
        .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
        .join(chains, chains.c.id == blocks.c.chain_id)
        .where(one_of(agents_blocks.c.agent_id, "agent_ids"))
        .union_all(
            select(*columns, *_OWNER, null(), blocks.c.seq)
            .select_from(blocks)
            .join(chains, chains.c.id == blocks.c.chain_id)
            .where(
                chains.c.owner_kind == "user",
                one_of(chains.c.owner_id, "user_ids"),
                IS_IN_PROMPTS,
            )
        )
        .order_by("place")
    )


_WHOLE = _of_agents(ROWS.columns)
_LISTED = _of_agents(LISTED_COLUMNS)


def of_agents(
    tx: Transaction,
    talks: Mapping[str, tuple[str | None, str | None, str]],
    *,
    is_list: bool = False,
) -> dict[str, tuple[Block, ...]]:
    """Return the blocks of each of these agents by id, with tags, as `blocks.of_agent` does.

    `talks` maps each agent to the user of its conversation, the course, and the agent that owns the
    user's copies. With `is_list` long texts are cut.
    """
    users = sorted({user for user, _, _ in talks.values() if user})
    rows = tx.all(_LISTED if is_list else _WHOLE, {"agent_ids": list(talks), "user_ids": users})
    visible: dict[str, dict[str, Block]] = {id: {} for id in talks}
    for row in sorted(rows, key=lambda row: row.attached_to is None):
        block = block_of(row)
        if row.tags:
            block = replace(block, tags=tuple(sorted(row.tags)))
        for id in [row.attached_to] if row.attached_to else talks:
            if row.owner_kind != "user":
                add_seen(visible[id], block)
            elif _is_seen(row, block, talks[id]):
                add_seen(visible[id], replace(block, is_users=True))
    blocks_by_agent = {id: tuple(blocks.values()) for id, blocks in visible.items()}
    if is_list:
        return _with_listed_texts(tx, blocks_by_agent, {row.id: row.length for row in rows})
    return blocks_by_agent


def _is_seen(row: Any, block: Block, talk: tuple[str | None, str | None, str]) -> bool:
    """Return whether an agent sees this user's block in its conversation with the user."""
    user, course, memory_id = talk
    is_meant = block.agent_id in (None, memory_id) and block.course in (None, course)
    return row.owner_id == user and bool(row.attached_to or is_meant)


def _with_listed_texts(
    tx: Transaction,
    blocks_by_agent: Mapping[str, tuple[Block, ...]],
    lengths: Mapping[str, int],
) -> dict[str, tuple[Block, ...]]:
    """Return the blocks with their texts as lists show them: long ones are cut."""
    all_blocks = [block for blocks in blocks_by_agent.values() for block in blocks]
    cut_blocks = listed_texts(tx, all_blocks, lengths)
    return {
        id: tuple(
            replace(block, value=cut_blocks[block.id].value, is_cut=cut_blocks[block.id].is_cut)
            for block in blocks
        )
        for id, blocks in blocks_by_agent.items()
    }
