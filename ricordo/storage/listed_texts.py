"""Texts of blocks in lists.

Each is whole up to a limit, which is smaller in lists of many long texts.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Row, bindparam, func, select

from ricordo.domain.block import Block
from ricordo.errors import Invalid
from ricordo.storage.engine.repository import Repository, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import blocks

# Characters of each text that the first statement of a list reads: most texts are not longer.
_BEGINNING = 4096
# Characters of each text that are shown in lists of any length.
_MIN_SHOWN = 200
_MARK_END = " has them all]"
_MARK = "\n[cut: {:,} of {:,} characters are shown; GET /v1/blocks/{}" + _MARK_END

_ROWS = Repository(Block, blocks)
# The columns of a block, with the beginning of its text instead of the text.
LISTED_COLUMNS = [
    func.substr(column, 1, _BEGINNING).label("value") if column.name == "value" else column
    for column in _ROWS.columns
]
LENGTH = func.length(blocks.c.value).label("length")
_TEXTS = select(
    blocks.c.id, func.substr(blocks.c.value, 1, bindparam("limit")).label("value")
).where(one_of(blocks.c.id, "ids"))


def block_of(row: Row[object]) -> Block:
    """Return the block of a row that begins with LISTED_COLUMNS and has LENGTH.

    Its text may be only the beginning.

    Args:
        row: A row of a select that begins with LISTED_COLUMNS.
    """
    return _ROWS.of(row[: len(LISTED_COLUMNS)])


def listed_texts(
    tx: Transaction, listed: Collection[Block], lengths: Mapping[str, int]
) -> dict[str, Block]:
    """Return the blocks of a list by id, with as much of their texts as fits.

    A block may be listed several times.

    Args:
        tx: The transaction.
        listed: The blocks with the beginnings of their texts.
        lengths: The whole length of each block's text in characters, by id.
    """
    times = Counter(block.id for block in listed)
    blocks_by_id = {block.id: block for block in listed}
    limit = tx.quotas.listed_characters
    while limit > _MIN_SHOWN and _total_length(lengths, times, limit) > tx.quotas.list_characters:
        limit = max(_MIN_SHOWN, limit * 3 // 4)
    long: list[str] = []
    if limit > _BEGINNING:
        long = [id for id in blocks_by_id if lengths[id] > _BEGINNING]
    if long:
        for row in tx.all(_TEXTS, {"ids": long, "limit": limit}):
            blocks_by_id[row.id] = replace(blocks_by_id[row.id], value=row.value)
    return {id: _cut(block, limit, lengths[id]) for id, block in blocks_by_id.items()}


def _total_length(lengths: Mapping[str, int], times: Mapping[str, int], limit: int) -> int:
    return sum(min(lengths[id], limit) * count for id, count in times.items())


def _cut(block: Block, limit: int, length: int) -> Block:
    if length <= limit:
        return block
    text = block.value[:limit]
    return replace(block, value=text + _MARK.format(len(text), length, block.id), is_cut=True)


def require_whole(block: Block, text: str) -> None:
    """Raise Invalid if the text is the shortened text of a list.

    Writing it back would lose the rest of the text.

    Args:
        block: The stored block.
        text: The new text of the block.

    Raises:
        Invalid: The text ends like the shortened one, and the stored text does not.
    """
    if text.rstrip().endswith(f"{block.id}{_MARK_END}") and not block.value.rstrip().endswith(
        f"{block.id}{_MARK_END}"
    ):
        raise Invalid(
            f'This is the text of block "{block.label[:80]}" as a list shortened it. Writing it '
            f"would lose the rest. Read GET /v1/blocks/{block.id} first, and change that text."
        )
