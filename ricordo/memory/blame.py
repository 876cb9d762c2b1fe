"""Blame: the version that brought each line of a block.

The work is limited. It is done in portions, between reads of the database.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ricordo.domain.version import BlockVersion
from ricordo.errors import NotFound
from ricordo.memory.text import ends_alike, matched_lines
from ricordo.offload import few_at_once, offload
from ricordo.storage import history, versions
from ricordo.storage.engine.store import Store, Transaction


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line, its number from 1, and the version that brought it.

    With `or_earlier`, an older version may have brought the line; `version` is the oldest one that
    was compared.
    """

    number: int
    text: str
    version: BlockVersion
    or_earlier: bool = False


# Versions and bytes of texts in one read.
_PAGE = 200
_READ_BYTES = 4_000_000
# The work limit of one blame. The work is the sum of the changed lines, the pairs of equal lines
# among them, one for each version, and one for each 200 characters. The limit takes a second. It
# allows about 75,000 small edits of a text of 2 kB, or 2,000 of a text of 100 kB.
_WORK_LIMIT = 1_000_000
_CHARACTERS = 200
_Text = tuple[BlockVersion, str | None]
Place = tuple[str, str]
"""The chain and the label of a block."""


class Blame:
    """The versions that brought the lines of one text: `read` and `compare` until `is_done`."""

    def __init__(self, chain_id: str, label: str, before_number: int | None) -> None:
        self._chain_id = chain_id
        self._label = label
        self._before = before_number
        self._portion: list[_Text] = []
        self._rest: list[BlockVersion] = []
        self._has_more = True
        self._work_left = _WORK_LIMIT
        self._lines: list[str] | None = None
        self._brought: list[BlockVersion | None] = []
        # The last compared text. `_open` maps each of its lines to the same line of the first text,
        # or to None if there is no such line.
        self._last_text: _Text | None = None
        self._open: list[int | None] = []
        self._unknown_count = 0  # lines whose version is still unknown

    @classmethod
    def begin(cls, tx: Transaction, chain_id: str, label: str, at: str | None = None) -> "Blame":
        """Start a blame of the text now or at a version.

        Its first portion is read.

        Args:
            tx: The transaction.
            chain_id: The block's chain.
            label: A label that the block has or had. If several had it, the last one is meant.
            at: The version's id in hex digits (at least 7); None for the text now.

        Raises:
            NotFound: if there is no such block or version.
            Conflict: if the id is not unique.
        """
        before = None
        if at is not None:
            block_then = history.known_block_at(tx, chain_id, label, history.get(tx, chain_id, at))
            if block_then is not None:
                before = block_then.number + 1
                # If the block was renamed or deleted since that version, its label of that time is
                # used.
                versions_before = history.page(tx, chain_id, label=label, limit=1, before=before)
                label = label if versions_before else block_then.label
        blame = cls(chain_id, label, before)
        if at is None or before is not None:
            blame.read(tx)
        if not blame._portion or blame._portion[0][1] is None:
            raise NotFound(
                f'There is no memory block "{label}"' + (f" at version {at[:12]}." if at else ".")
            )
        return blame

    @property
    def is_done(self) -> bool:
        return not self._portion

    @property
    def has_more(self) -> bool:
        """True if older versions remain to be read."""
        return bool(self._rest) or self._has_more

    @property
    def size(self) -> int:
        """The number of characters that the next comparison reads."""
        return sum(len(text or "") for _, text in self._portion)

    def read(self, tx: Transaction) -> None:
        """Read the next portion of older versions with their texts.

        After the last portion the blame is done.
        """
        page = self._rest
        has_more = self._has_more
        if not page and has_more:
            page = history.page(
                tx, self._chain_id, label=self._label, limit=_PAGE, before=self._before
            )
            has_more = len(page) == _PAGE
        blobs = [version.blob for version in page if version.blob]
        texts = versions.read_texts(tx, self._chain_id, blobs, _READ_BYTES)
        end = next(
            (
                index
                for index, version in enumerate(page)
                if version.blob and version.blob not in texts
            ),
            len(page),
        )
        # Assign everything at the end, since a read may be repeated.
        self._portion = [
            (version, texts[version.blob] if version.blob else None) for version in page[:end]
        ]
        self._rest = page[end:]
        self._has_more = has_more
        if page:
            self._before = page[-1].number

    def compare(self) -> None:
        """Compare the portion that was read.

        The blame is done once each line's version is known, or once the work limit is reached.
        """
        portion = self._portion
        self._portion = []
        for version, text in portion:
            if self._last_text is None:
                self._lines = (text or "").split("\n")
                self._open = list(range(len(self._lines)))
                self._brought = [None] * len(self._lines)
                self._unknown_count = len(self._lines)
            else:
                self._look_back(self._last_text[0], self._last_text[1] or "", text)
            if self._work_left <= 0 or not self._unknown_count:
                self._rest = []
                self._has_more = False
                return
            self._last_text = version, text

    @property
    def count(self) -> int:
        """The number of lines as git counts them: no empty line follows the last line break."""
        lines = self._lines or [""]
        if lines[-1]:
            return len(lines)
        return len(lines) - 1

    def lines(self, after: int = 0, end: int | None = None) -> list[BlamedLine]:
        """Return the lines after a number, up to another, with their versions.

        Call it when the blame is done. If the text ends with a line break, the last line is empty;
        `count` leaves it out.

        Args:
            after: The number of the last line that is left out; 0 leaves none out.
            end: The number of the last line that is returned; None returns all.
        """
        oldest = self._last_text[0] if self._last_text else None
        is_cut = self._work_left <= 0
        pairs = zip((self._lines or [])[after:end], self._brought[after:end], strict=True)
        return [
            BlamedLine(number, line, version or oldest, or_earlier=version is None and is_cut)  # type: ignore[arg-type]
            for number, (line, version) in enumerate(pairs, after + 1)
        ]

    def _look_back(self, since: BlockVersion, text: str, before: str | None) -> None:
        """Attribute the open lines that the earlier text lacks to the version `since`."""
        self._work_left -= 1 + len(before or "") // _CHARACTERS
        if self._work_left <= 0:
            return
        if before is None:
            self._credit(since, self._open)
            self._open = []
            return
        head, tail = ends_alike(text, before)
        above = text.count("\n", 0, head)
        if tail:
            below = text.count("\n", len(text) - tail) + 1
        else:
            below = 0
        lines = _middle(text, head, tail)
        lines_before = _middle(before, head, tail)
        end = len(self._open) - below
        middle = self._open[above:end]
        unchanged: dict[int, int] = {}
        if any(line is not None for line in middle):
            self._work_left -= len(lines) + len(lines_before)
            unchanged, self._work_left = matched_lines(lines_before, lines, max(self._work_left, 0))
        unchanged_lines = set(unchanged.values())
        self._credit(
            since, [line for index, line in enumerate(middle) if index not in unchanged_lines]
        )
        lines_open_before = [
            middle[unchanged[index]] if index in unchanged else None
            for index in range(len(lines_before))
        ]
        self._open = [*self._open[:above], *lines_open_before, *self._open[end:]]

    def _credit(self, version: BlockVersion, lines: list[int | None]) -> None:
        for line in lines:
            if line is not None:
                self._brought[line] = version
                self._unknown_count -= 1


def blame(tx: Transaction, chain_id: str, label: str, at: str | None = None) -> list[BlamedLine]:
    """Return the block's lines, now or at a version, with their versions.

    Args:
        tx: The transaction.
        chain_id: The block's chain.
        label: The block's label now, or at that version.
        at: The version's id in hex digits (at least 7); None for the text now.

    Raises:
        NotFound: if there is no such block or version.
        Conflict: if the id is not unique.
    """
    block_blame = Blame.begin(tx, chain_id, label, at)
    while not block_blame.is_done:
        block_blame.compare()
        if block_blame.has_more:
            block_blame.read(tx)
    return block_blame.lines()


async def blame_beside(
    store: Store, find: Callable[[Transaction], Place], at: str | None = None
) -> Blame:
    """Return the finished blame of the block that `find` selects.

    Comparisons run outside the event loop; versions are read in portions.

    Args:
        store: The store.
        find: Returns the chain and the label of the block.
        at: The version's id in hex digits (at least 7); None for the text now.

    Raises:
        NotFound: if there is no such block or version.
        Conflict: if the id is not unique.
    """
    async with few_at_once():
        block_blame = await store.read(lambda tx: Blame.begin(tx, *find(tx), at))
        while not block_blame.is_done:
            await offload(block_blame.compare, block_blame.size)
            if block_blame.has_more:
                await store.read(block_blame.read)
    return block_blame


def _middle(text: str, head: int, tail: int) -> list[str]:
    """Return the lines between the ends that two texts share.

    If the shared end begins within a line, that line belongs to the middle.
    """
    lines = text[head : len(text) - tail].split("\n")
    if tail:
        return lines[:-1]
    return lines
