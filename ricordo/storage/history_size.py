"""The size of a chain's history: a sum in the chain's row, updated by every write, and its limit.

The size counts versions with their reasons, texts as they are stored, and objects that came by git.
It also counts proposals with their descriptions and reasons, and logged settings. Code that stores
one of these things adds its size in the same transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, bindparam, func, select, update

from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import blob_id
from ricordo.domain.quotas import KILOBYTE, size_of
from ricordo.domain.text import normal_text
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction, to_json
from ricordo.storage.schema.history_sum import COUNTED, ROW_BYTES
from ricordo.storage.schema.memory_tables import blobs, chains, is_in_chain

# A full history still accepts this many bytes of description and metadata of a block, for a new
# policy or a restored block.
_SMALL = KILOBYTE

_GROW = (
    update(chains)
    .where(chains.c.id == bindparam("this_id"))
    .values(history_bytes=chains.c.history_bytes + bindparam("grown", type_=BigInteger))
)
_HAS_TEXT = select(blobs.c.seq).where(is_in_chain(blobs), blobs.c.id == bindparam("blob"))


_RECOUNT = update(chains).values(history_bytes=COUNTED)
_RECOUNT_ONE = _RECOUNT.where(equal(chains, "id"))
_WRONG = select(chains.c.id).where(chains.c.history_bytes != COUNTED)
_NEARLY_FULL = select(func.count()).where(chains.c.history_bytes >= bindparam("size"))


def grow(tx: Transaction, chain_id: str, size: int) -> None:
    """Add the size of rows that were stored without a version.

    Args:
        tx: The transaction that stored them.
        chain_id: The chain.
        size: Their bytes.
    """
    tx.run(_GROW, {"this_id": chain_id, "grown": size})


def recount(tx: Transaction, chain_id: str) -> None:
    """Count a history again, after rows of it were deleted or changed.

    Args:
        tx: The transaction.
        chain_id: The chain.
    """
    tx.run(_RECOUNT_ONE, {"id": chain_id})


def recount_all(tx: Transaction) -> int:
    """Count again every history whose size is wrong; return how many were wrong.

    Args:
        tx: The transaction.
    """
    wrong = wrong_ids(tx)
    for chain_id in wrong:
        recount(tx, chain_id)
    return len(wrong)


def wrong_ids(tx: Transaction) -> list[str]:
    """Return the chains whose size is not the sum of their rows.

    Args:
        tx: The transaction.
    """
    return [row.id for row in tx.all(_WRONG)]


def count_nearly_full(tx: Transaction, size: int) -> int:
    """Return the number of histories with at least this size.

    Args:
        tx: The transaction.
        size: A number of bytes.
    """
    return int(tx.first(_NEARLY_FULL, {"size": size})[0])


def size_of_log(changed: Mapping[str, Any]) -> int:
    """Return the bytes that a logged change of settings adds to its history.

    Args:
        changed: The changed settings, as the log stores them.
    """
    return ROW_BYTES + size_of(to_json(changed))


def is_full(tx: Transaction, chain: Chain) -> bool:
    """Return True if the history was full when this transaction began to write it.

    Once a write has begun, it may finish. So the size of the first call counts for the transaction.

    Args:
        tx: The transaction.
        chain: The chain as it was read under the lock.
    """
    size = tx.history_bytes.setdefault(chain.id, chain.history_bytes)
    return size >= tx.quotas.history_bytes


def require_history(
    tx: Transaction,
    chain: Chain,
    changed: Sequence[tuple[Block | None, Block | None]],
    *,
    is_revival: bool = False,
) -> None:
    """Raise TooLong if these changes bring new text to a locked chain with a full history.

    Args:
        tx: The transaction.
        chain: The chain as it was read under the lock.
        changed: Each block before and after its change; None if it is created or deleted.
        is_revival: The blocks have their former settings, so large settings are accepted too.

    Raises:
        TooLong: The history is full, and a change has a text that the chain lacks, or large new
            settings.
    """
    for before, after in changed:
        is_large = not is_revival and _has_large_settings(before, after)
        if is_large or not _has_text(tx, chain.id, _new_text(before, after)):
            tx.quotas.require_history(chain.history_bytes)


def require_history_for_proposal(tx: Transaction, chain: Chain) -> None:
    """Raise TooLong if a locked chain's history is full: a proposal is always new.

    Args:
        tx: The transaction.
        chain: The chain as it was read under the lock.

    Raises:
        TooLong: The history is full.
    """
    if is_full(tx, chain):
        tx.quotas.require_history(chain.history_bytes)


def _new_text(before: Block | None, after: Block | None) -> str | None:
    if after is None or (before and before.value == after.value):
        return None
    return normal_text(after.value)


def _has_large_settings(before: Block | None, after: Block | None) -> bool:
    """Return whether a change adds more description and metadata than a full history accepts."""
    if after is None:
        return False
    if before and (before.description, before.metadata) == (after.description, after.metadata):
        return False
    return after.size - size_of(after.value) > _SMALL


def _has_text(tx: Transaction, chain_id: str, text: str | None) -> bool:
    if text is None:
        return True
    return tx.first(_HAS_TEXT, {"chain_id": chain_id, "blob": blob_id(text)}) is not None
