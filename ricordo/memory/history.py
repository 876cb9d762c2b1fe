"""What became of a block's text: whose each line is and why, and what changed between two versions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from ricordo.domain.version import BlockVersion
from ricordo.errors import NotFound
from ricordo.memory.word_diff import Piece, by_words, unified
from ricordo.storage import blobs, history
from ricordo.storage.store import Transaction


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line of a text, its number from 1, and the version that brought it.

    With `or_earlier` that is the oldest version that was looked at, and an earlier one may have brought it.
    """

    number: int
    text: str
    version: BlockVersion
    or_earlier: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """What two versions of a block have in common and what not: as a unified diff, and as pieces of words."""

    old: BlockVersion
    new: BlockVersion
    unified: str
    pieces: Sequence[Piece]


_PAGE = 200
# Blame goes so far back: ten thousand versions of 2 kB, and fewer of a longer text. That takes about a second.
_MOST_READ = 20_000_000  # characters
_MOST_COMPARED = 250_000  # lines of one text times lines of the other: comparing takes as long


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
        kept = _kept(before_lines, seen)
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


def diff(tx: Transaction, chain_id: str, label: str, old_id: str, new_id: str | None = None) -> Difference:
    """What changed in the block from one version to another, or to the newest. Raises NotFound, Conflict."""
    old = history.get(tx, chain_id, old_id)
    new = (
        history.get(tx, chain_id, new_id)
        if new_id
        else next(iter(history.page(tx, chain_id, label=label, limit=1)), None)
    )
    if new is None:
        raise NotFound(f'There is no memory block "{label}".')
    before = history.text_at(tx, chain_id, label, old) or ""
    after = history.text_at(tx, chain_id, label, new) or ""
    names = (f"{label}@{version.id.hex()[:12]}" for version in (old, new))
    return Difference(old, new, unified(before, after, *names), by_words(before, after))


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
        texts = blobs.read_all(tx, chain_id, [version.blob for version in found if version.blob])
        for version in found:
            yield version, texts[version.blob] if version.blob else None
        before = found[-1].number


def _kept(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """Which lines of the new text stood where in the old one; where both are too long to be compared, only at their ends."""
    shorter = min(len(old), len(new))
    head = next((line for line in range(shorter) if old[line] != new[line]), shorter)
    rest = shorter - head
    tail = next((line for line in range(rest) if old[-1 - line] != new[-1 - line]), rest)
    kept = {line: line for line in range(head)}
    kept |= {len(new) - 1 - line: len(old) - 1 - line for line in range(tail)}
    middle, other = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(middle) * len(other) <= _MOST_COMPARED:
        for block in SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks():
            kept |= {head + block.b + offset: head + block.a + offset for offset in range(block.size)}
    return kept
