"""Whether there is room for blocks in the memory of a user or an agent. Called with the chain locked, before a write."""

from collections.abc import Sequence

from sqlalchemy import Text, bindparam, cast, func, select

from ricordo.domain.block import Block, Chain
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import require_history
from ricordo.storage.schema.functions import byte_length
from ricordo.storage.schema.memory_tables import agents_blocks, blocks

# A block of an agent that is smaller than this is not summed up with the agent's others when it is written.
_SMALL = 64 * 1024
# Agents of a shared block whose memory is summed up when it grows.
_MOST_AGENTS = 20


# As `Block.size` counts them.
_SIZE = (
    byte_length(blocks.c.value)
    + func.coalesce(byte_length(blocks.c.description), 0)
    + byte_length(cast(blocks.c.metadata, Text))
)
_TOTAL = func.coalesce(func.sum(_SIZE), 0)
_OF_CHAIN = select(_TOTAL.label("size")).where(equal(blocks, "chain_id"))
_OF_AGENT = (
    select(_TOTAL.label("size"), func.count().label("count"))
    .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
    .where(equal(agents_blocks, "agent_id"))
)
_AGENTS_OF = (
    select(agents_blocks.c.agent_id)
    .where(equal(agents_blocks, "block_id"))
    .limit(bindparam("most"))
)


def require_room(
    tx: Transaction,
    chain: Chain,
    changed: Sequence[tuple[Block | None, Block | None]],
    *,
    is_revival: bool = False,
) -> None:
    """Raise TooLong where these changes of a locked chain leave it, or its history, larger than it may be.

    Each is a block before and after, None where it is made or deleted. In a revival, blocks come back as they were.
    """
    quotas, grown, made = tx.quotas, 0, 0
    for before, after in changed:
        size, size_before = after.size if after else 0, before.size if before else 0
        if after:
            quotas.require_block(after.shown_label, size, size_before)
        grown += size - size_before
        made += (before is None) - (after is None)
    require_history(tx, chain, changed, is_revival=is_revival)
    quotas.require_count(len(chain.files) + made, len(chain.files))
    if grown <= 0:
        return
    # So few blocks cannot be too many bytes, unless some are larger than they may be.
    if (len(chain.files) + made) * quotas.block_bytes > quotas.memory_bytes:
        total = int(tx.first(_OF_CHAIN, {"chain_id": chain.id}).size)
        quotas.require_memory(total + grown, total)
    if chain.owner_kind != "user":
        for before, after in changed:
            if before and after and after.size > max(_SMALL, before.size):
                _require_room_of_agents(tx, after.id, after.size - before.size)


def require_room_to_attach(
    tx: Transaction, agent_id: str | None, attached: Sequence[Block]
) -> None:
    """Raise TooLong where an agent, None for a new one, would see more than one memory may hold with these blocks too."""
    count = size = 0
    if agent_id is not None:
        row = tx.first(_OF_AGENT, {"agent_id": agent_id})
        count, size = int(row.count), int(row.size)
    tx.quotas.require_count(count + len(attached), count)
    tx.quotas.require_memory(size + sum(block.size for block in attached), size)


def _require_room_of_agents(tx: Transaction, block_id: str, grown: int) -> None:
    for row in tx.all(_AGENTS_OF, {"block_id": block_id, "most": _MOST_AGENTS}):
        size = int(tx.first(_OF_AGENT, {"agent_id": row.agent_id}).size)
        tx.quotas.require_memory(size + grown, size)
