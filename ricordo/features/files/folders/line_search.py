"""Line-by-line search of files with RE2.

RE2's time is linear in the text, but a costly pattern can still take seconds. So searches run one
at a time in a separate thread. They check the clock between pieces and lines, and limit the length
of a line.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.files.folders.records import File, FilePiece

PAGE = 20
MOST_MATCHES = 1000
_SECONDS = 30.0
_SEARCHED_CHARACTERS = 1_000_000  # of each line
_LONGEST_PATTERN = 1000
_PATTERN_MEMORY = 8 << 20  # bytes
_THREAD = ThreadPoolExecutor(1, "files: search")


@dataclass(frozen=True, slots=True)
class LineMatch:
    """A matching line, counted from 0, with the lines around it."""

    file: File
    line: int
    lines: Sequence[tuple[int, str]]


@dataclass(slots=True)
class LineSearch:
    """One search and its matches so far.

    `matches` are the matches after the first `skip`, at most `PAGE` of them, each with `around`
    lines before and after it. To save time, the whole pieces of a file are searched first, and its
    lines only if they may contain a match.
    """

    pattern: str
    skip: int = 0
    around: int = 0
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    files: dict[str, File] = field(default_factory=dict)
    matches: list[LineMatch] = field(default_factory=list)
    _line: Any = None
    _text: Any = None
    _until: float = 0.0

    def __post_init__(self) -> None:
        """Compile the pattern.

        Raises Invalid if RE2 does not accept it, and Unavailable if RE2 is not installed.
        """
        self._line = compiled_pattern(self.pattern)
        if not _needs_single_lines(self.pattern):
            self._text = compiled_pattern(f"(?m){self.pattern}")
        self._until = time.monotonic() + _SECONDS

    @property
    def is_full(self) -> bool:
        return self.total >= MOST_MATCHES

    async def search_files(self, files: Sequence[File], pieces: Sequence[FilePiece]) -> None:
        """Search these files line by line, and add to the matches.

        Args:
            files: The next files, in the order of the matches.
            pieces: All pieces of their texts, in order within each file.

        Raises:
            Unavailable: The whole search takes too long.
        """
        await asyncio.get_running_loop().run_in_executor(_THREAD, self._search_files, files, pieces)

    def _search_files(self, files: Sequence[File], pieces: Sequence[FilePiece]) -> None:
        texts: dict[str, list[str]] = {file.id: [] for file in files}
        for piece in pieces:
            texts[piece.file_id].append(piece.text)
        for file in files:
            if not self.is_full and self._may_match(texts[file.id]):
                self._search_lines(file, "".join(texts[file.id]).removesuffix("\n").split("\n"))

    def _may_match(self, texts: Sequence[str]) -> bool:
        """Return False if no line of these pieces matches."""
        # A match in a line that was cut into pieces may be in none of the pieces.
        has_cut_line = any(not text.endswith("\n") for text in texts[:-1])
        if self._text is None or has_cut_line:
            return True
        return any(self._matches(self._text, text) for text in texts)

    def _search_lines(self, file: File, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            if self._matches(self._line, line[:_SEARCHED_CHARACTERS]):
                self.files[file.id] = file
                self.counts[file.id] += 1
                self.total += 1
                if self.skip < self.total <= self.skip + PAGE:
                    near = range(
                        max(0, number - self.around), min(len(lines), number + self.around + 1)
                    )
                    self.matches.append(
                        LineMatch(file, number, [(index, lines[index]) for index in near])
                    )
                if self.is_full:
                    return

    def _matches(self, pattern: Any, text: str) -> bool:
        if time.monotonic() > self._until:
            raise Unavailable(
                f"The search took more than {_SECONDS:g} seconds. Search fewer files with include, "
                "or use a simpler pattern."
            )
        return pattern.search(text) is not None


def _needs_single_lines(pattern: str) -> bool:
    r"""Return whether the pattern may match a line, but not a text with this line.

    \A and \z are the ends of the whole text, and (?-m) makes ^ and $ the same.
    """
    return "\\A" in pattern or "\\z" in pattern or ("(?" in pattern and "-" in pattern)


def compiled_pattern(pattern: str) -> Any:
    """Compile a pattern that ignores case.

    Args:
        pattern: A regular expression in the syntax of RE2, of 1 to 1,000 characters and maybe
            `(?m)`.

    Returns:
        The pattern, an object of the library `re2`.

    Raises:
        Invalid: The pattern is empty or too long, or RE2 does not accept it.
        Unavailable: The extra `files` is not installed.
    """
    try:
        import re2
    except ImportError as error:
        raise Unavailable("grep_files needs the extra `files`: install ricordo[files].") from error
    if not 0 < len(pattern) <= _LONGEST_PATTERN + len("(?m)"):
        raise Invalid(f"The pattern must have 1 to {_LONGEST_PATTERN} characters.")
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise Invalid(
            f"The pattern is not a regular expression that RE2 reads: {reason}"
        ) from error
