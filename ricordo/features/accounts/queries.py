"""Queries of the blocks that are attached to identities."""

from sqlalchemy import delete, select

from ricordo.storage.engine.repository import Missing, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import blocks_users

_ATTACH = Missing(blocks_users)
_DETACH = delete(blocks_users).where(equal(blocks_users, "block_id", "user_id"))
_OF_USER = select(blocks_users.c.block_id).where(equal(blocks_users, "user_id")).order_by(blocks_users.c.seq)


def attach_block(tx: Transaction, block_id: str, user_id: str) -> None:
    tx.run(_ATTACH, {"block_id": block_id, "user_id": user_id})


def detach_block(tx: Transaction, block_id: str, user_id: str) -> None:
    tx.run(_DETACH, {"block_id": block_id, "user_id": user_id})


def blocks_of(tx: Transaction, user_id: str) -> list[str]:
    """Return the ids of the blocks that are attached to the user."""
    return [row.block_id for row in tx.all(_OF_USER, {"user_id": user_id})]
