"""SQL of git: versions, pushed objects, and the blocks that a push changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import LargeBinary, bindparam, delete, func, select

from ricordo.domain.block import Block
from ricordo.domain.git_objects import GitObject
from ricordo.errors import NotFound
from ricordo.storage import proposals
from ricordo.storage.engine.repository import Missing, Repository, setter
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.schema.history_sum import ROW_BYTES
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    blobs,
    blocks,
    chains,
    commits,
    git_objects,
    is_in_chain,
    number_of_chain,
)
from ricordo.storage.versions import PARENT

_ID = bindparam("id", type_=LargeBinary)
_IN_CHAIN = is_in_chain(commits)
_CHAIN = select(chains.c.head, chains.c.versions).where(chains.c.id == bindparam("chain_id"))
_VERSIONS = (
    select(*(column for column in commits.c if column.name != "parent"), PARENT)
    .where(_IN_CHAIN, commits.c.number > bindparam("after"))
    .order_by(commits.c.number)
)
_NEXT = _VERSIONS.limit(bindparam("limit"))
_REST = _VERSIONS.where(commits.c.id == _ID)
CHANGES = (
    select(commits.c.id, commits.c.label, commits.c.old_label, commits.c.blob)
    .where(_IN_CHAIN, commits.c.number <= bindparam("until"))
    .order_by(commits.c.number)
)
_NUMBER = select(func.max(commits.c.number).label("number")).where(_IN_CHAIN, commits.c.id == _ID)
_HEAD_AT = (
    select(commits.c.id)
    .where(_IN_CHAIN, commits.c.created_at <= bindparam("until"))
    .order_by(commits.c.number.desc())
    .limit(1)
)
_PUSHED = select(git_objects.c.kind, git_objects.c.data).where(
    is_in_chain(git_objects), git_objects.c.id == _ID
)
_IN_RANGE = (
    _IN_CHAIN,
    commits.c.number >= bindparam("first"),
    commits.c.number <= bindparam("last"),
)
_PUSHED_IDS = select(git_objects.c.id).where(
    is_in_chain(git_objects), git_objects.c.id.in_(select(commits.c.id).where(*_IN_RANGE))
)
_TEXTS = select(blobs.c.id, blobs.c.base, blobs.c.data).where(
    is_in_chain(blobs), blobs.c.id.in_(select(commits.c.blob).where(*_IN_RANGE))
)
_AT_ONCE = 500
_STORED_IDS = select(git_objects.c.id).where(is_in_chain(git_objects))
_INSERT_PUSHED = Missing(git_objects).values(chain=number_of_chain())
_BLOCKS = Repository(Block, blocks)
_WRITTEN = ("label", "value", "version", "head", "is_untrusted", "updated_by", "updated_at")
_AS_EXPECTED = blocks.c.version == bindparam("expected")
_write_block = _BLOCKS.updates(*_WRITTEN, where=_AS_EXPECTED)
_DELETE_BLOCK = delete(blocks).where(blocks.c.id == bindparam("block_id"), _AS_EXPECTED)
_RELABEL = setter(blocks, "label", where=blocks.c.id == bindparam("relabelled"))
_RELABEL_ATTACHED = setter(
    agents_blocks, "label", where=agents_blocks.c.block_id == bindparam("relabelled")
)


def chain_of(tx: Transaction, chain_id: str) -> Any:
    """Return the chain's head and number of versions.

    Args:
        tx: The transaction.
        chain_id: The chain; the caller's access to it is checked before.

    Returns:
        A row with `head`, the last commit's id or None, and `versions`.

    Raises:
        NotFound: The chain was erased.
    """
    row = tx.first(_CHAIN, {"chain_id": chain_id})
    if row is None:
        raise NotFound("This memory was erased.")
    return row


def versions_after(tx: Transaction, chain_id: str, number: int, limit: int) -> list[Any]:
    """Return the rows of the chain's next versions, in order.

    Args:
        tx: The transaction.
        chain_id: The chain.
        number: The versions have greater numbers than this.
        limit: The most rows. There may be more, since all rows of the last commit are returned.
    """
    rows = list(tx.all(_NEXT, {"chain_id": chain_id, "after": number, "limit": limit}))
    if len(rows) == limit:
        rows += tx.all(_REST, {"chain_id": chain_id, "id": rows[-1].id, "after": rows[-1].number})
    return rows


def number_of(tx: Transaction, chain_id: str, id: bytes) -> int | None:
    """Return the number of the commit's last version, or None if it has none.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: The 20 bytes of the commit's id.
    """
    number: int | None = tx.first(_NUMBER, {"chain_id": chain_id, "id": id}).number
    return number


def head_at(tx: Transaction, chain_id: str, at: int) -> bytes | None:
    """Return the id of the last version made up to a time, or None.

    Args:
        tx: The transaction.
        chain_id: The chain.
        at: A time in microseconds UTC.
    """
    row = tx.first(_HEAD_AT, {"chain_id": chain_id, "until": at})
    return row.id if row else None


def pushed(tx: Transaction, chain_id: str, id: bytes) -> GitObject | None:
    """Return an object that came by git; None if the chain has no such object.

    Args:
        tx: The transaction.
        chain_id: The chain.
        id: The 20 bytes of the object's id.
    """
    row = tx.first(_PUSHED, {"chain_id": chain_id, "id": id})
    if row:
        return GitObject(row.kind, id, row.data)
    return None


def stored_between(
    tx: Transaction, chain_id: str, first: int, last: int
) -> tuple[dict[bytes, Any], set[bytes]]:
    """Return the stored texts of a range of versions, and the ids of its pushed commits.

    Args:
        tx: The transaction.
        chain_id: The chain.
        first: The number of the first version.
        last: The number of the last version, which belongs to the range.

    Returns:
        The rows of texts by blob id (with `base` and `data`), and the set of commit ids.
    """
    numbers = {"chain_id": chain_id, "first": first, "last": last}
    return {row.id: row for row in tx.all(_TEXTS, numbers)}, {
        row.id for row in tx.all(_PUSHED_IDS, numbers)
    }


def insert_pushed(tx: Transaction, chain_id: str, objects: Sequence[GitObject]) -> int:
    """Store the objects that the chain lacks.

    Args:
        tx: The transaction.
        chain_id: The chain.
        objects: The objects; one may occur several times.

    Returns:
        The bytes that they add to its history.
    """
    ids = list(dict.fromkeys(pushed_object.id for pushed_object in objects))
    stored_ids = set[bytes]()
    for first in range(0, len(ids), _AT_ONCE):
        statement = _STORED_IDS.where(git_objects.c.id.in_(ids[first : first + _AT_ONCE]))
        stored_ids |= {row.id for row in tx.all(statement, {"chain_id": chain_id})}
    new_objects = {
        pushed_object.id: pushed_object
        for pushed_object in objects
        if pushed_object.id not in stored_ids
    }
    rows = [
        {"chain_id": chain_id, "id": id, "kind": new_object.kind, "data": new_object.body}
        for id, new_object in new_objects.items()
    ]
    tx.run(_INSERT_PUSHED, rows)
    return sum(ROW_BYTES + len(new_object.body) for new_object in new_objects.values())


def insert_block(tx: Transaction, block: Block) -> None:
    """Store a block that a push created, and reopen proposals that expired with its deletion.

    Args:
        tx: The transaction.
        block: The new block. It is stored with the version 1.
    """
    proposals.reopen(tx, block.chain_id, block.label)
    _BLOCKS.insert(tx, replace(block, version=1))


def write_block(tx: Transaction, block: Block, before: Block) -> None:
    """Store a block that a push changed.

    Args:
        tx: The transaction.
        block: The block with its new fields.
        before: The block as it was read.

    Raises:
        Overtaken: Another transaction wrote the block meanwhile.
    """
    _require(_write_block(tx, block, expected=before.version), before)


def delete_block(tx: Transaction, block: Block) -> None:
    """Delete a block that a push removed, and let its open proposals expire.

    Args:
        tx: The transaction.
        block: The block as it was read.

    Raises:
        Overtaken: Another transaction wrote the block meanwhile.
    """
    _require(tx.run(_DELETE_BLOCK, {"block_id": block.id, "expected": block.version}), block)
    proposals.end_of_deleted(tx, block.chain_id, block.label)


def relabel(tx: Transaction, renamed: Sequence[Block], now: Mapping[str, Block]) -> None:
    """Give attachments and proposals of blocks the blocks' new labels.

    The blocks' rows get temporary labels, until `write_block` stores the new ones.

    Args:
        tx: The transaction.
        renamed: The blocks with their new labels; two may have swapped their labels.
        now: The stored blocks by id, with their old labels.
    """
    for statement in (_RELABEL, _RELABEL_ATTACHED):
        # First give temporary labels that no block has, since two blocks may have swapped their
        # labels.
        tx.run(statement, [{"new_label": block.id, "relabelled": block.id} for block in renamed])
    tx.run(
        _RELABEL_ATTACHED, [{"new_label": block.label, "relabelled": block.id} for block in renamed]
    )
    for block in renamed:
        proposals.follow(tx, block.chain_id, now[block.id].label, block.id)
    for block in renamed:
        proposals.follow(tx, block.chain_id, block.id, block.label)


def _require(rows: int, block: Block) -> None:
    if not rows:
        raise Overtaken(
            f'Block "{block.label}" changed a moment ago. Fetch and merge, then push again.'
        )
