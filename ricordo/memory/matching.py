"""Places of a piece in a text: word for word, else as people read it.

A model that copies text from its prompt often changes what it does not see as different: typographic quotes, dashes and the
ellipsis, no-break and doubled spaces, blanks at the end of a line, or a line break, which it escapes twice. Where a piece does
not stand in the text word for word, it is looked for without regard to these.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from difflib import SequenceMatcher

from ricordo.domain.text import normal_text

# A longer text is looked through word for word alone.
_LONGEST = 400_000
_MOST_LINES = 2_000
_LONGEST_LINE = 400
_NEAR = 0.6
_SHOWN = 200
_SIGNS = re.compile(
    r"(?P<quote>[“”„‟«»″＂])"
    r"|(?P<single>[‘’‚‛′ʼ＇`´])"
    r"|(?P<dash>[-‐‑‒–—―−﹘﹣－]{2,}|[‐‑‒–—―−﹘﹣－])"
    r"|(?P<dots>\.{3})"
    r"|(?P<nothing>[^\S\n]+(?=\n|\Z)|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064]+)"
    r"|(?P<blank>[^\S\n]{2,}|[^\S\n ])"
)
_PLAIN = {"quote": '"', "single": "'", "dash": "-", "dots": "…", "nothing": "", "blank": " "}
_ESCAPE = re.compile(r'\\([nt"])')
_ESCAPED = {"n": "\n", "t": "\t", '"': '"'}
_ITEM = re.compile(r"(?:[-*+•>|]|\d{1,3}[.)]|#{1,6})\s")


@dataclass(frozen=True, slots=True)
class Replacement:
    """One place of a text, and what is to stand there."""

    start: int
    end: int
    text: str

    def apply(self, value: str) -> str:
        return value[: self.start] + self.text + value[self.end :]


@dataclass(frozen=True, slots=True)
class Search:
    """Where a piece fits: the one `replacement`, or how many places fit, and at which lines they begin (counted from 1)."""

    replacement: Replacement | None = None
    count: int = 0
    lines: tuple[int, ...] = ()


class _Folded:
    """A text without regard to its signs, with the place of each of its letters in the text itself."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        # Where a piece begins here and there, and how long it is there where it is one letter here; else 0.
        self._here: list[int] = []
        self._there: list[int] = []
        self._sizes: list[int] = []
        length = done = 0
        for found in _SIGNS.finditer(text):
            plain = _PLAIN[found.lastgroup or "nothing"]
            for piece, at, size in (
                (text[done : found.start()], done, 0),
                (plain, found.start(), len(found[0])),
            ):
                if piece:
                    self._note(length, at, size)
                    pieces.append(piece)
                    length += len(piece)
            done = found.end()
        self._note(length, done, 0)
        self.text = "".join((*pieces, text[done:]))

    def _note(self, here: int, there: int, size: int) -> None:
        self._here.append(here)
        self._there.append(there)
        self._sizes.append(size)

    def begin_of(self, place: int) -> int:
        """The place in the text itself of a letter of the folded one."""
        number = bisect_right(self._here, place) - 1
        return self._there[number] + (0 if self._sizes[number] else place - self._here[number])

    def end_of(self, place: int) -> int:
        """The place in the text itself behind the letter before this one."""
        if place == 0:
            return self.begin_of(0)
        number = bisect_right(self._here, place - 1) - 1
        return self._there[number] + (self._sizes[number] or place - self._here[number])


def search(value: str, piece: str, new: str = "") -> Search:
    """Find the one place of the text where the piece fits, and what the new text is there.

    >>> search("It’s fine", "It's fine", "It's great").replacement.apply("It’s fine")
    'It’s great'
    """
    piece, new = normal_text(piece), with_line_breaks(normal_text(new))
    if not piece:
        return Search()
    if count := value.count(piece):
        start = value.index(piece)
        one = Replacement(start, start + len(piece), new) if count == 1 else None
        return Search(one, count, _lines(value, _places(value, piece)))
    unescaped = _unescaped(piece)
    if unescaped != piece:
        if count := value.count(unescaped):
            start = value.index(unescaped)
            one = (
                Replacement(start, start + len(unescaped), _unescaped(new)) if count == 1 else None
            )
            return Search(one, count, _lines(value, _places(value, unescaped)))
        new = _unescaped(new)
    return _search_folded(value, unescaped, new) if len(value) <= _LONGEST else Search()


def with_line_breaks(text: str) -> str:
    r"""Return the text with line breaks for `\n` written out, where it has no line break and what follows reads as lines.

    That is an item of a list, a heading, or a sentence that begins with a capital letter. A text with a backtick or any other
    backslash is code or a formula, and stays.

    >>> with_line_breaks(r"- jam\n- bread"), with_line_breaks(r"$\nu$")
    ('- jam\n- bread', '$\\nu$')
    """
    if "\\n" not in text or "\n" in text or "`" in text or text.count("\\") != text.count("\\n"):
        return text
    _, *lines = text.split("\\n")
    return text.replace("\\n", "\n") if all(map(_reads_as_line, lines)) else text


def _reads_as_line(line: str) -> bool:
    """Return whether this begins a line that can be told from code: an item of a list, a heading, a sentence, or nothing."""
    start = line.lstrip()
    if not start or _ITEM.match(start):
        return True
    is_sentence = line[0].isalpha() and not line[0].islower()
    return is_sentence and (":" in line or len(line.split(None, 1)) > 1 or line[-1].isspace())


def nearest_line(value: str, piece: str) -> tuple[int, str] | None:
    """Return the line of the text that is most like the piece's first one, with its number; None where none is near."""
    wanted = next((line.strip() for line in _unescaped(piece).split("\n") if line.strip()), "")[
        :_LONGEST_LINE
    ]
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted.casefold())
    best, near = None, _NEAR
    for number, line in enumerate(value.split("\n")[:_MOST_LINES], 1):
        matcher.set_seq1(line.strip()[:_LONGEST_LINE].casefold())
        if (
            wanted
            and line.strip()
            and matcher.real_quick_ratio() >= near
            and matcher.quick_ratio() >= near
        ):
            likeness = matcher.ratio()
            is_within = wanted.casefold() in line.casefold()
            if is_within or likeness >= near:
                best, near = (number, line), max(near, likeness)
    return best


def hint(value: str, piece: str) -> str:
    """Return a sentence that quotes the nearest line as it stands, with a blank before it; empty where none is near."""
    found = nearest_line(value, piece)
    if found is None:
        return ""
    number, line = found
    shown = line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
    return f" The nearest line is {number}: `{shown}`. Copy from it what is to be replaced."


def folded_line(line: str) -> str:
    """Return the line as it is compared: without regard to signs that look alike, and to blanks at its end."""
    return _Folded(line).text


def _search_folded(value: str, piece: str, new: str) -> Search:
    folded, wanted = _Folded(value), _Folded(piece)
    if not wanted.text.strip():
        return Search()
    places = _places(folded.text, wanted.text)
    if len(places) != 1:
        return Search(
            None, len(places), _lines(value, [folded.begin_of(place) for place in places])
        )
    replaced = _Folded(new)
    head, tail = _shared_ends(wanted.text, replaced.text)
    start, end = places[0] + head, places[0] + len(wanted.text) - tail
    new_end = len(replaced.text) - tail
    text = new[replaced.begin_of(head) : replaced.end_of(new_end)] if head < new_end else ""
    begin = folded.begin_of(start) if start < end else folded.end_of(start)
    return Search(
        Replacement(begin, max(begin, folded.end_of(end)), text), 1, _lines(value, [begin])
    )


def _shared_ends(one: str, other: str) -> tuple[int, int]:
    """How many letters both begin with, and how many of the rest both end with: what is not replaced keeps its signs."""
    shorter = min(len(one), len(other))
    head = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    rest = shorter - head
    tail = next((place for place in range(rest) if one[-1 - place] != other[-1 - place]), rest)
    return head, tail


def _unescaped(text: str) -> str:
    return (
        _ESCAPE.sub(lambda found: _ESCAPED[found[1]], text)
        if "\\" in text and "\n" not in text
        else text
    )


def _places(value: str, piece: str) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(piece), value)]


def _lines(value: str, places: list[int]) -> tuple[int, ...]:
    numbers = dict.fromkeys(value.count("\n", 0, place) + 1 for place in places[:20])
    return tuple(numbers)
