"""Queries of the blocks that are attached to identities."""

from collections.abc import Sequence

from sqlalchemy import delete, select

from ricordo.storage.engine.repository import Missing, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import blocks_users

_ATTACH = Missing(blocks_users)
_DETACH = delete(blocks_users).where(equal(blocks_users, "block_id", "user_id"))
_OF_USERS = (
    select(blocks_users.c.user_id, blocks_users.c.block_id)
    .where(one_of(blocks_users.c.user_id, "user_ids"))
    .order_by(blocks_users.c.seq)
)


def attach_block(tx: Transaction, block_id: str, user_id: str) -> None:
    """Attach the block to the user, unless it is attached already.

    Args:
        tx: The transaction.
        block_id: A stored block.
        user_id: A stored user.
    """
    tx.run(_ATTACH, {"block_id": block_id, "user_id": user_id})


def detach_block(tx: Transaction, block_id: str, user_id: str) -> None:
    """Detach the block from the user, if it is attached.

    Args:
        tx: The transaction.
        block_id: The block, which stays.
        user_id: The user.
    """
    tx.run(_DETACH, {"block_id": block_id, "user_id": user_id})


def blocks_of(tx: Transaction, user_id: str) -> list[str]:
    """Return the ids of the blocks that are attached to the user.

    Args:
        tx: The transaction.
        user_id: The user.
    """
    return blocks_of_users(tx, [user_id]).get(user_id, [])


def blocks_of_users(tx: Transaction, user_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the attached blocks by user.

    A user without blocks is missing.

    Args:
        tx: The transaction.
        user_ids: The users.

    Returns:
        The ids of each user's blocks, in order of attachment.
    """
    block_ids: dict[str, list[str]] = {}
    for row in tx.all(_OF_USERS, {"user_ids": list(user_ids)}):
        block_ids.setdefault(row.user_id, []).append(row.block_id)
    return block_ids
