"""Searching the texts of files line by line, with RE2: its time grows with the text alone, yet a cunning pattern takes seconds.

So searches wait for one another in a thread of their own, look at the clock between pieces and lines, and bound a line's length.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.files.records import File, FilePiece

PAGE, MOST_MATCHES = 20, 1000
_SECONDS = 30.0
_READ = 1_000_000  # characters of a line
_LONGEST_PATTERN = 1000
_PATTERN_MEMORY = 8 << 20  # bytes
_THREAD = ThreadPoolExecutor(1, "files: search")


@dataclass(frozen=True, slots=True)
class LineMatch:
    """A line that matches, counted from 0, among the lines around it."""

    file: File
    line: int
    lines: Sequence[tuple[int, str]]


@dataclass(slots=True)
class LineSearch:
    """One search: what it found so far. `shown` are the matches behind the first `skip`, with so many lines `around` each."""

    pattern: str
    skip: int = 0
    around: int = 0
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    files: dict[str, File] = field(default_factory=dict)
    shown: list[LineMatch] = field(default_factory=list)
    _line: Any = None
    _text: Any = None
    _until: float = 0.0

    def __post_init__(self) -> None:
        """Raise Invalid for a pattern that RE2 does not read."""
        self._line, self._text = (
            compiled_pattern(self.pattern),
            compiled_pattern(f"(?m){self.pattern}"),
        )
        self._until = time.monotonic() + _SECONDS

    @property
    def is_full(self) -> bool:
        return self.total >= MOST_MATCHES

    async def through(self, files: Sequence[File], pieces: Sequence[FilePiece]) -> None:
        """Search these files, whose texts are the pieces. Raises Unavailable where it takes too long."""
        await asyncio.get_running_loop().run_in_executor(_THREAD, self._through, files, pieces)

    def _through(self, files: Sequence[File], pieces: Sequence[FilePiece]) -> None:
        texts: dict[str, list[str]] = {file.id: [] for file in files}
        for piece in pieces:
            texts[piece.file_id].append(piece.text)
        for file in files:
            if not self.is_full and any(self._found(self._text, text) for text in texts[file.id]):
                self._search(file, "".join(texts[file.id]).removesuffix("\n").split("\n"))

    def _search(self, file: File, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            if self._found(self._line, line[:_READ]):
                self.files[file.id] = file
                self.counts[file.id] += 1
                self.total += 1
                if self.skip < self.total <= self.skip + PAGE:
                    near = range(
                        max(0, number - self.around), min(len(lines), number + self.around + 1)
                    )
                    self.shown.append(
                        LineMatch(file, number, [(each, lines[each]) for each in near])
                    )
                if self.is_full:
                    return

    def _found(self, pattern: Any, text: str) -> bool:
        if time.monotonic() > self._until:
            raise Unavailable(
                f"The search took more than {_SECONDS:g} seconds. Narrow it with include, or a simpler pattern."
            )
        return pattern.search(text) is not None


def compiled_pattern(pattern: str) -> Any:
    """Return the pattern for searches without regard to capitals. Raises Invalid where RE2 does not read it, Unavailable."""
    try:
        import re2
    except ImportError as error:
        raise Unavailable("grep_files needs the extra `files`: install ricordo[files].") from error
    if not 0 < len(pattern) <= _LONGEST_PATTERN + len("(?m)"):
        raise Invalid(f"The pattern must have 1 to {_LONGEST_PATTERN} characters.")
    options = re2.Options()
    options.case_sensitive, options.log_errors, options.max_mem = False, False, _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        words = error.args[0] if error.args else error
        why = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
        raise Invalid(f"The pattern is no regular expression that RE2 reads: {why}") from error
