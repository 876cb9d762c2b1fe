"""Blame: which version brought each line of a block. Bounded in work, which is done in portions between reads."""

from collections.abc import Callable
from dataclasses import dataclass

from ricordo.domain.version import BlockVersion
from ricordo.errors import NotFound
from ricordo.memory.line_changes import ends_alike
from ricordo.memory.merge import matched_lines
from ricordo.offload import few_at_once, offload
from ricordo.storage import history, versions
from ricordo.storage.engine.store import Store, Transaction


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line, its number from 1, and the version that brought it, `or_earlier` where that is the oldest that was read."""

    number: int
    text: str
    version: BlockVersion
    or_earlier: bool = False


# Versions, and bytes of texts, that are read at once.
_PAGE, _MOST_AT_ONCE = 200, 4_000_000
# How far back blame goes, in lines that changed and in pairs of equal ones among these; a version counts one more, and one for
# each so many characters. That takes a second: some hundred thousand small edits of 2 kB, or two thousand of 100 kB.
_ROOM, _CHARACTERS = 1_000_000, 200
_Text = tuple[BlockVersion, str | None]
Place = tuple[str, str]
"""The chain and the label of a block."""


class Blame:
    """Who wrote the lines of one text, as far as that is known: `read` and `compare` by turns until it `is_done`."""

    def __init__(self, chain_id: str, label: str, before: int | None) -> None:
        self._chain_id, self._label = chain_id, label
        self._before = before
        self._portion: list[_Text] = []
        self._rest: list[BlockVersion] = []
        self._has_more = True
        self._room = _ROOM
        self._lines: list[str] | None = None
        self._brought: list[BlockVersion | None] = []
        # The last text that was looked at, and for each of its lines, which line of the first text it still is; else None.
        self._seen: _Text | None = None
        self._open: list[int | None] = []
        self._left = 0  # lines whose version is not known yet

    @classmethod
    def begin(cls, tx: Transaction, chain_id: str, label: str, at: str | None = None) -> "Blame":
        """Return the blame of the text now or at a version, its first portion read. Raises NotFound, Conflict."""
        before = None
        if at is not None:
            there = history.block_at(tx, chain_id, label, history.get(tx, chain_id, at))
            if there is not None:
                before = there.number + 1
                # One that was renamed or deleted since is followed by the label that it had then.
                known = history.page(tx, chain_id, label=label, limit=1, before=before)
                label = label if known else there.label
        begun = cls(chain_id, label, before)
        if at is None or before is not None:
            begun.read(tx)
        if not begun._portion or begun._portion[0][1] is None:
            raise NotFound(
                f'There is no memory block "{label}"' + (f" at version {at[:12]}." if at else ".")
            )
        return begun

    @property
    def is_done(self) -> bool:
        return not self._portion

    @property
    def has_more(self) -> bool:
        """Whether there are older versions, and they are of interest."""
        return bool(self._rest) or self._has_more

    @property
    def size(self) -> int:
        """How many characters the portion has that is compared next."""
        return sum(len(text or "") for _, text in self._portion)

    def read(self, tx: Transaction) -> None:
        """Read the next portion of older versions with their texts; after the last one it is done."""
        found, has_more = self._rest, self._has_more
        if not found and has_more:
            found = history.page(
                tx, self._chain_id, label=self._label, limit=_PAGE, before=self._before
            )
            has_more = len(found) == _PAGE
        blobs = [version.blob for version in found if version.blob]
        texts = versions.read_texts(tx, self._chain_id, blobs, _MOST_AT_ONCE)
        end = next(
            (at for at, version in enumerate(found) if version.blob and version.blob not in texts),
            len(found),
        )
        # All at the end, since a read may be repeated.
        self._portion = [
            (version, texts[version.blob] if version.blob else None) for version in found[:end]
        ]
        self._rest, self._has_more = found[end:], has_more
        if found:
            self._before = found[-1].number

    def compare(self) -> None:
        """Look at what was read. Nothing is left to read where each line is known, or the work was enough."""
        portion, self._portion = self._portion, []
        for version, text in portion:
            if self._seen is None:
                self._lines = (text or "").split("\n")
                self._open = list(range(len(self._lines)))
                self._brought = [None] * len(self._lines)
                self._left = len(self._lines)
            else:
                self._look_back(self._seen[0], self._seen[1] or "", text)
            if self._room <= 0 or not self._left:
                self._rest, self._has_more = [], False
                return
            self._seen = version, text

    @property
    def count(self) -> int:
        """The number of lines. As in git, a line break ends a line: after the last one there is none."""
        lines = self._lines or [""]
        return len(lines) if lines[-1] else len(lines) - 1

    def lines(self, after: int = 0, end: int | None = None) -> list[BlamedLine]:
        """Return lines with the versions that brought them, once it is done: those after a number, up to another."""
        oldest = self._seen[0] if self._seen else None
        is_cut = self._room <= 0
        some = zip((self._lines or [])[after:end], self._brought[after:end], strict=True)
        return [
            BlamedLine(number, line, version or oldest, or_earlier=version is None and is_cut)  # type: ignore[arg-type]
            for number, (line, version) in enumerate(some, after + 1)
        ]

    def _look_back(self, since: BlockVersion, text: str, before: str | None) -> None:
        """Credit `since` with the lines that the text before it did not have, and go on with that one."""
        self._room -= 1 + len(before or "") // _CHARACTERS
        if self._room <= 0:
            return
        if before is None:
            self._credit(since, self._open)
            self._open = []
            return
        head, tail = ends_alike(text, before)
        above, below = (
            text.count("\n", 0, head),
            text.count("\n", len(text) - tail) + 1 if tail else 0,
        )
        lines, lines_before = _middle(text, head, tail), _middle(before, head, tail)
        end = len(self._open) - below
        middle = self._open[above:end]
        kept: dict[int, int] = {}
        if any(line is not None for line in middle):
            self._room -= len(lines) + len(lines_before)
            kept, self._room = matched_lines(lines_before, lines, max(self._room, 0))
        stays = set(kept.values())
        self._credit(since, [line for at, line in enumerate(middle) if at not in stays])
        earlier = [middle[kept[at]] if at in kept else None for at in range(len(lines_before))]
        self._open = [*self._open[:above], *earlier, *self._open[end:]]

    def _credit(self, version: BlockVersion, lines: list[int | None]) -> None:
        for line in lines:
            if line is not None:
                self._brought[line] = version
                self._left -= 1


def blame(tx: Transaction, chain_id: str, label: str, at: str | None = None) -> list[BlamedLine]:
    """Each line of the block's text, now or at a version, with the version that brought it. Raises NotFound, Conflict."""
    done = Blame.begin(tx, chain_id, label, at)
    while not done.is_done:
        done.compare()
        if done.has_more:
            done.read(tx)
    return done.lines()


async def blame_beside(
    store: Store, find: Callable[[Transaction], Place], at: str | None = None
) -> Blame:
    """Return the finished blame of the block that `find` finds; compared away from the event loop, and read in portions."""
    async with few_at_once():
        done = await store.read(lambda tx: Blame.begin(tx, *find(tx), at))
        while not done.is_done:
            await offload(done.compare, done.size)
            if done.has_more:
                await store.read(done.read)
    return done


def _middle(text: str, head: int, tail: int) -> list[str]:
    """The lines between the ends that two texts share; the last one is within unless the end that is shared begins a line."""
    lines = text[head : len(text) - tail].split("\n")
    return lines[:-1] if tail else lines
