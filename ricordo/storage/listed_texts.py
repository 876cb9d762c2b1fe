"""Texts of blocks in lists: whole up to a cap, and to a smaller one where a list has many long ones."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Row, bindparam, func, select

from ricordo.domain.block import Block
from ricordo.errors import Invalid
from ricordo.storage.engine.repository import Repository, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import blocks

# What the first statement of a list reads of each text: most are no longer.
_BEGINNING = 4096
# So much of each is shown, however many there are.
_LEAST = 200
_MARK_END = " has them all]"
_MARK = "\n[cut: {:,} of {:,} characters are shown; GET /v1/blocks/{}" + _MARK_END

_ROWS = Repository(Block, blocks)
# The columns of a block, with the beginning of its text in place of the text, and behind them the length of the text.
LISTED_COLUMNS = [
    func.substr(column, 1, _BEGINNING).label("value") if column.name == "value" else column
    for column in _ROWS.columns
]
LENGTH = func.length(blocks.c.value).label("length")
_TEXTS = select(
    blocks.c.id, func.substr(blocks.c.value, 1, bindparam("most")).label("value")
).where(one_of(blocks.c.id, "ids"))


def block_of(row: Row[object]) -> Block:
    """Return the block of a row that begins with LISTED_COLUMNS and has LENGTH; its text may be the beginning alone."""
    return _ROWS.of(row[: len(LISTED_COLUMNS)])


def listed_texts(
    tx: Transaction, listed: Collection[Block], lengths: Mapping[str, int]
) -> dict[str, Block]:
    """Return the blocks of a list by id, each with as much of its text as there is room for; it may be listed several times."""
    times = Counter(block.id for block in listed)
    found = {block.id: block for block in listed}
    most = tx.quotas.listed_characters
    while most > _LEAST and _taken(lengths, times, most) > tx.quotas.list_characters:
        most = max(_LEAST, most * 3 // 4)
    long = [id for id in found if lengths[id] > _BEGINNING] if most > _BEGINNING else []
    if long:
        for row in tx.all(_TEXTS, {"ids": long, "most": most}):
            found[row.id] = replace(found[row.id], value=row.value)
    return {id: _cut(block, most, lengths[id]) for id, block in found.items()}


def _taken(lengths: Mapping[str, int], times: Mapping[str, int], most: int) -> int:
    return sum(min(lengths[id], most) * count for id, count in times.items())


def _cut(block: Block, most: int, length: int) -> Block:
    if length <= most:
        return block
    text = block.value[:most]
    return replace(block, value=text + _MARK.format(len(text), length, block.id), is_cut=True)


def require_whole(block: Block, text: str) -> None:
    """Raise Invalid for a text of the block as a list cut it: written back, the rest would be lost."""
    if text.rstrip().endswith(f"{block.id}{_MARK_END}") and not block.value.rstrip().endswith(
        f"{block.id}{_MARK_END}"
    ):
        raise Invalid(
            f'This is the text of block "{block.label[:80]}" as a list cut it, and writing it would lose the rest. Read '
            f"GET /v1/blocks/{block.id} first, and change that text."
        )
