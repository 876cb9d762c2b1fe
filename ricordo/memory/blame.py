"""Blame: which version brought each line of a block."""

from collections.abc import Iterator
from dataclasses import dataclass

from ricordo.domain.version import BlockVersion
from ricordo.errors import NotFound
from ricordo.memory.merge import kept_lines
from ricordo.storage import history, versions
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line, its number from 1, and the version that brought it, `or_earlier` where that is the oldest that was read."""

    number: int
    text: str
    version: BlockVersion
    or_earlier: bool = False


_PAGE = 200
# Blame goes so far back: ten thousand versions of 2 kB, and fewer of a longer text. That takes about a second.
_MOST_READ = 20_000_000  # characters


def blame(tx: Transaction, chain_id: str, label: str, at: str | None = None) -> list[BlamedLine]:
    """Each line of the block's text, now or at a version, with the version that brought it. Raises NotFound, Conflict."""
    older = _backwards(tx, chain_id, label, at)
    newest, text = next(older, (None, None))
    if newest is None or text is None:
        raise NotFound(f'There is no memory block "{label}"' + (f" at version {at[:12]}." if at else "."))
    lines = text.split("\n")
    brought = [newest] * len(lines)
    # By its number in the text before: which line of the last text it still is.
    open_lines = dict(enumerate(range(len(lines))))
    seen, since, read = lines, newest, 0
    for version, before in older:
        read += len(before or "")
        if read > _MOST_READ:
            break
        before_lines = [] if before is None else before.split("\n")
        kept = {line: earlier for earlier, line in kept_lines(before_lines, seen)[0].items()}
        for number in open_lines.keys() - kept.keys():
            brought[open_lines[number]] = since
        open_lines = {kept[number]: line for number, line in open_lines.items() if number in kept}
        if not open_lines:
            break
        seen, since = before_lines, version
    for line in open_lines.values():
        brought[line] = since
    unsure = set(open_lines.values()) if read > _MOST_READ else set()
    return [
        BlamedLine(number + 1, line, brought[number], or_earlier=number in unsure) for number, line in enumerate(lines)
    ]


def _backwards(tx: Transaction, chain_id: str, label: str, at: str | None) -> Iterator[tuple[BlockVersion, str | None]]:
    """The block's versions with their texts, from the newest, or the one at `at`, to the oldest."""
    before = None
    if at is not None:
        there = history.block_at(tx, chain_id, label, history.get(tx, chain_id, at))
        if there is None:
            return
        before = there.number + 1
        label = there.label if not history.page(tx, chain_id, label=label, limit=1, before=before) else label
    while found := history.page(tx, chain_id, label=label, limit=_PAGE, before=before):
        texts = versions.read_texts(tx, chain_id, [version.blob for version in found if version.blob])
        for version in found:
            yield version, texts[version.blob] if version.blob else None
        before = found[-1].number
