"""Find a piece of text: first word for word, then without differences that people hardly see.

A model that copies text from its prompt often changes details. Examples are typographic quotes,
dashes, the ellipsis, no-break and doubled spaces, and spaces at a line's end. Line breaks may be
escaped twice. If a piece does not occur word for word, the search ignores these differences.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from difflib import SequenceMatcher
from heapq import nlargest
from operator import itemgetter

from ricordo.domain.hidden_text import UNSEEN_CLASS, without_marks
from ricordo.domain.text import normal_text
from ricordo.memory.text import common_ends

# Look-alike signs are found only in shorter texts.
_TEXT_LIMIT = 400_000
_LINE_LIMIT = 2_000
_LINE_LENGTH = 200
_PIECE = 3
_SAMPLE = 24
_MOST_COMPARED = 5
_LEAST_LIKENESS = 0.6
_EXCERPT_LENGTH = 200
_SIGNS = re.compile(
    r"(?P<quote>[“”„‟«»″＂])"
    r"|(?P<single>[‘’‚‛′ʼ＇`´])"
    r"|(?P<dash>[-‐‑‒–—―−﹘﹣－]{2,}|[‐‑‒–—―−﹘﹣－])"
    r"|(?P<dots>\.{3})"
    rf"|(?P<nothing>[^\S\n]+(?=\n|\Z)|[{UNSEEN_CLASS}]+)"
    r"|(?P<blank>[^\S\n]{2,}|[^\S\n ])"
)
_PLAIN = {"quote": '"', "single": "'", "dash": "-", "dots": "…", "nothing": "", "blank": " "}
_ESCAPE = re.compile(r'\\([nt"])')
_ESCAPED = {"n": "\n", "t": "\t", '"': '"'}
_ITEM = re.compile(r"(?:[-*+•>|]|\d{1,3}[.)]|#{1,6})\s")


@dataclass(frozen=True, slots=True)
class Replacement:
    """One range of a text and its new text."""

    start: int
    end: int
    text: str

    def apply(self, text: str) -> str:
        """Return the text after the replacement.

        Args:
            text: The text that was matched; `start` and `end` count its characters.
        """
        return text[: self.start] + self.text + text[self.end :]


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search: the matches, and the `replacement` if there is exactly one.

    `count` is the number of matches. `lines` are the lines where the first 20 begin, from 1.
    """

    replacement: Replacement | None = None
    count: int = 0
    lines: tuple[int, ...] = ()


class _Folded:
    """A text with look-alike signs made equal, and each letter's original position."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        # A segment is unchanged text, or a match of `_SIGNS`, which the folded text has as one
        # letter. Each segment has its start in the folded text and in the original. Its size is the
        # length of the match, and 0 for unchanged text.
        self._folded_starts: list[int] = []
        self._original_starts: list[int] = []
        self._sizes: list[int] = []
        length = position = 0
        for match in _SIGNS.finditer(text):
            plain = _PLAIN[match.lastgroup or "nothing"]
            for piece, start, size in (
                (text[position : match.start()], position, 0),
                (plain, match.start(), len(match[0])),
            ):
                if piece:
                    self._add_segment(length, start, size)
                    pieces.append(piece)
                    length += len(piece)
            position = match.end()
        self._add_segment(length, position, 0)
        self.text = "".join((*pieces, text[position:]))

    def _add_segment(self, folded_start: int, original_start: int, size: int) -> None:
        self._folded_starts.append(folded_start)
        self._original_starts.append(original_start)
        self._sizes.append(size)

    def begin_of(self, position: int) -> int:
        """Return the original position of a letter of the folded text.

        Args:
            position: The index of the letter in the folded text, or the length of that text.
        """
        segment = bisect_right(self._folded_starts, position) - 1
        return self._original_starts[segment] + (
            0 if self._sizes[segment] else position - self._folded_starts[segment]
        )

    def end_of(self, position: int) -> int:
        """Return where the folded text before this position ends in the original."""
        if position == 0:
            return self.begin_of(0)
        segment = bisect_right(self._folded_starts, position - 1) - 1
        return self._original_starts[segment] + (
            self._sizes[segment] or position - self._folded_starts[segment]
        )


def search(text: str, piece: str, new: str = "") -> Search:
    """Find the only match of the piece, and its replacement by the new text.

    >>> search("It’s fine", "It's fine", "It's great").replacement.apply("It’s fine")
    'It’s great'

    Args:
        text: The text to search. Above 400,000 characters, look-alike signs are not found, only the
            exact piece, also without doubled escapes.
        piece: The piece as a model copied it.
        new: The new text for the piece.
    """
    piece = normal_text(piece)
    new = with_line_breaks(without_marks(normal_text(new)))
    if piece not in text:
        # The model may copy marks that show hidden text in its prompt. The stored text has no such
        # marks.
        piece = without_marks(piece)
    if not piece:
        return Search()
    if count := text.count(piece):
        start = text.index(piece)
        if count == 1:
            replacement = Replacement(start, start + len(piece), new)
        else:
            replacement = None
        return Search(replacement, count, _lines(text, _match_starts(text, piece)))
    unescaped = _unescaped(piece)
    if unescaped != piece:
        if count := text.count(unescaped):
            start = text.index(unescaped)
            if count == 1:
                replacement = Replacement(start, start + len(unescaped), _unescaped(new))
            else:
                replacement = None
            return Search(replacement, count, _lines(text, _match_starts(text, unescaped)))
        new = _unescaped(new)
    if len(text) <= _TEXT_LIMIT:
        return _search_folded(text, unescaped, new)
    return Search()


def with_line_breaks(text: str) -> str:
    r"""Return the text with real line breaks for `\n` that was written out.

    Only a text without line breaks is changed, and only if each part after the first is empty or
    reads as a line. That is a list item, a heading, or a sentence with a capital letter. A text
    with a backtick or any other backslash counts as code or a formula, and is not changed.

    >>> with_line_breaks(r"- jam\n- bread"), with_line_breaks(r"$\nu$")
    ('- jam\n- bread', '$\\nu$')

    Args:
        text: A text as a model wrote it.
    """
    if "\\n" not in text or "\n" in text or "`" in text or text.count("\\") != text.count("\\n"):
        return text
    _, *lines = text.split("\\n")
    if all(map(_reads_as_line, lines)):
        return text.replace("\\n", "\n")
    return text


def _reads_as_line(line: str) -> bool:
    """Return whether this is a line of text rather than code.

    It is an item of a list, a heading, a sentence, or empty.
    """
    start = line.lstrip()
    if not start or _ITEM.match(start):
        return True
    is_sentence = line[0].isalpha() and not line[0].islower()
    return is_sentence and (":" in line or len(line.split(None, 1)) > 1 or line[-1].isspace())


def nearest_line(text: str, piece: str) -> tuple[int, str] | None:
    """Return the number and text of the line most like the piece's first line.

    Returns None if no line is similar.

    Args:
        text: The text, of which the first 2,000 lines are compared.
        piece: The piece that does not occur in the text.
    """
    lines = (line.strip() for line in _unescaped(piece).split("\n"))
    target = next(filter(None, lines), "")[:_LINE_LENGTH].casefold()
    if not target:
        return None
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    best_line = None
    best_likeness = _LEAST_LIKENESS
    for number, line in _candidates(text, target):
        matcher.set_seq1(line.strip()[:_LINE_LENGTH].casefold())
        if matcher.quick_ratio() < best_likeness:
            continue
        likeness = matcher.ratio()
        if target in line.casefold() or likeness >= best_likeness:
            best_line = (number, line)
            best_likeness = max(best_likeness, likeness)
    return best_line


def _candidates(text: str, target: str) -> list[tuple[int, str]]:
    """Return the few lines that share most with the target, in the order of the text.

    A full comparison takes milliseconds for a long line, so it is made for these lines only. They
    are found by a sample of short pieces of the target.
    """
    pieces = [target[start : start + _PIECE] for start in range(len(target) - _PIECE + 1)]
    sample = (pieces or [target])[:: max(1, len(pieces) // _SAMPLE)]
    shared = []
    for number, line in enumerate(text.split("\n")[:_LINE_LIMIT], 1):
        folded = line[: 2 * _LINE_LENGTH].casefold()
        if count := sum(piece in folded for piece in sample):
            shared.append((count, number, line))
    most = nlargest(_MOST_COMPARED, shared, key=itemgetter(0))
    return sorted((number, line) for _, number, line in most)


def hint(text: str, piece: str) -> str:
    """Return a sentence that quotes the most similar line, or "" if no line is similar.

    It starts with a space.

    Args:
        text: The text, of which the first 2,000 lines are compared.
        piece: The piece that does not occur in the text.
    """
    nearest = nearest_line(text, piece)
    if nearest is None:
        return ""
    number, line = nearest
    if len(line) <= _EXCERPT_LENGTH:
        excerpt = line
    else:
        excerpt = line[: _EXCERPT_LENGTH - 1] + "…"
    return f" The nearest line is {number}: `{excerpt}`. Copy the text to replace from it."


def folded_line(line: str) -> str:
    """Return the line as it is compared.

    Look-alike signs are equal, and spaces at the end do not count.

    Args:
        line: One line, without its line break.
    """
    return _Folded(line).text


def _search_folded(text: str, piece: str, new: str) -> Search:
    folded = _Folded(text)
    folded_piece = _Folded(piece)
    if not folded_piece.text.strip():
        return Search()
    matches = _match_starts(folded.text, folded_piece.text)
    if len(matches) != 1:
        return Search(
            None, len(matches), _lines(text, [folded.begin_of(position) for position in matches])
        )
    folded_new = _Folded(new)
    # The equal beginning and end are not replaced, so they keep their signs.
    head, tail = common_ends(folded_piece.text, folded_new.text)
    start = matches[0] + head
    end = matches[0] + len(folded_piece.text) - tail
    new_end = len(folded_new.text) - tail
    if head < new_end:
        new_text = new[folded_new.begin_of(head) : folded_new.end_of(new_end)]
    else:
        new_text = ""
    if start < end:
        begin = folded.begin_of(start)
    else:
        begin = folded.end_of(start)
    return Search(
        Replacement(begin, max(begin, folded.end_of(end)), new_text), 1, _lines(text, [begin])
    )


def _unescaped(text: str) -> str:
    if "\\" in text and "\n" not in text:
        return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], text)
    return text


def _match_starts(text: str, piece: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(piece), text)]


def _lines(text: str, starts: list[int]) -> tuple[int, ...]:
    numbers = dict.fromkeys(text.count("\n", 0, start) + 1 for start in starts[:20])
    return tuple(numbers)
