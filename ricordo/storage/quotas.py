"""Quota checks for the blocks of a user or an agent, before a write to a locked chain."""

from collections.abc import Sequence

from sqlalchemy import Text, bindparam, cast, func, select

from ricordo.domain.block import Block, Chain
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import require_history
from ricordo.storage.schema.functions import byte_length
from ricordo.storage.schema.memory_tables import agents_blocks, blocks

# An agent's block below this size is written without summing up its other blocks.
_SMALL = 64 * 1024
# When a shared block grows, the memory of at most this many of its agents is checked.
_MOST_AGENTS = 20


# About `Block.size`: stored metadata may have fewer bytes, since JSON is stored without spaces and
# escapes.
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
    .limit(bindparam("limit"))
)


def require_room(
    tx: Transaction,
    chain: Chain,
    changed: Sequence[tuple[Block | None, Block | None]],
    *,
    is_revival: bool = False,
) -> None:
    """Raise TooLong if these changes of a locked chain exceed its quotas.

    Args:
        tx: The transaction.
        chain: The chain as it was read under the lock.
        changed: Each block before and after its change; None if it is created or deleted.
        is_revival: The blocks have their former texts and settings.

    Raises:
        TooLong: A block, the owner's blocks together, their number or the history would be too
            large.
    """
    quotas = tx.quotas
    growth = 0
    new_blocks = 0
    for before, after in changed:
        size = after.size if after else 0
        size_before = before.size if before else 0
        if after:
            quotas.require_block(after.shown_label, size, size_before)
        growth += size - size_before
        new_blocks += (before is None) - (after is None)
    # The size at the start of the transaction counts, so that no transaction is refused half-way.
    if tx.history_bytes.setdefault(chain.id, chain.history_bytes) >= quotas.history_bytes:
        require_history(tx, chain, changed, is_revival=is_revival)
    if new_blocks > 0:
        quotas.require_count(len(chain.files) + new_blocks, len(chain.files))
    if growth <= 0:
        return
    # The sizes are summed up only if blocks of the largest allowed size would not fit together.
    if (len(chain.files) + new_blocks) * quotas.block_bytes > quotas.memory_bytes:
        total = int(tx.first(_OF_CHAIN, {"chain_id": chain.id}).size)
        quotas.require_memory(total + growth, total)
    if chain.owner_kind != "user":
        for before, after in changed:
            if before and after and after.size > max(_SMALL, before.size):
                _require_room_of_agents(tx, after.id, after.size - before.size)


def require_room_to_attach(
    tx: Transaction, agent_id: str | None, attached: Sequence[Block]
) -> None:
    """Raise TooLong if an agent's memory with these blocks would exceed its quotas.

    Args:
        tx: The transaction.
        agent_id: The agent; None for a new agent.
        attached: The blocks to attach.
    """
    count = size = 0
    if agent_id is not None:
        row = tx.first(_OF_AGENT, {"agent_id": agent_id})
        count = int(row.count)
        size = int(row.size)
    tx.quotas.require_count(count + len(attached), count)
    tx.quotas.require_memory(size + sum(block.size for block in attached), size)


def _require_room_of_agents(tx: Transaction, block_id: str, growth: int) -> None:
    for row in tx.all(_AGENTS_OF, {"block_id": block_id, "limit": _MOST_AGENTS}):
        size = int(tx.first(_OF_AGENT, {"agent_id": row.agent_id}).size)
        tx.quotas.require_memory(size + growth, size)
