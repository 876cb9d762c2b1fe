"""Comparison of texts: three-way merge by lines, unified diff, and what changed word by word. Bounded in time for any texts.

The standard library's matcher can take minutes for texts of many repeated lines, and a merge holds up every other writer.
"""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

PieceKind = Literal["same", "added", "removed"]

# How many pairs of equal lines, or equal words, are looked at in one comparison. Where there are more, only what is unique is
# matched first, and then what lies between, as far as this goes. A pair takes about a microsecond.
_MOST_PAIRS = 200_000
# Characters of lines that changed which are compared word by word; what changed beyond is shown in whole lines.
_MOST_BY_WORDS = 800_000
# Lines around each change of a unified diff.
_CONTEXT = 3
_TEXT = itemgetter(1)
# A word with the spaces behind it, a sign of a script without spaces, or a sign with the spaces behind it.
_WORD = re.compile(
    r"(?:[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|\W)\s*"
)


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """A stretch of text that both texts have, or only the new one, or only the old one."""

    kind: PieceKind
    text: str


class _Comparison:
    """The longest common subsequence as `pairs` of places, as far as `room` pairs go; `is_whole` if it was enough."""

    def __init__(self, old: Sequence[str], new: Sequence[str], room: int = _MOST_PAIRS) -> None:
        self.room = room
        self.is_whole = True
        self.pairs = self._matches(old, new)
        self._sizes = (len(old), len(new))

    def matcher(self) -> SequenceMatcher[str]:
        """The standard matcher with these pairs for its matches."""
        blocks = [Match(0, 0, 0)]
        for at, at_new in self.pairs:
            last = blocks[-1]
            if (at, at_new) == (last.a + last.size, last.b + last.size):
                blocks[-1] = Match(last.a, last.b, last.size + 1)
            else:
                blocks.append(Match(at, at_new, 1))
        matcher = SequenceMatcher[str]()
        matcher.matching_blocks = [*blocks, Match(*self._sizes, 0)]  # type: ignore[attr-defined]
        return matcher

    def _matches(
        self, old: Sequence[str], new: Sequence[str], *, splits: bool = True
    ) -> list[tuple[int, int]]:
        head, tail = common_ends(old, new)
        end, end_new = len(old) - tail, len(new) - tail
        pairs = list(zip(range(head), range(head), strict=True))
        if head < end and head < end_new:
            middle = self._middle(old[head:end], new[head:end_new], splits)
            pairs += [(head + at, head + at_new) for at, at_new in middle]
        return pairs + list(zip(range(end, len(old)), range(end_new, len(new)), strict=True))

    def _middle(
        self, old: Sequence[str], new: Sequence[str], splits: bool
    ) -> Iterator[tuple[int, int]]:
        counts, counts_new = Counter(old), Counter(new)
        pairs = sum(count * counts_new[part] for part, count in counts.items())
        if pairs <= self.room:
            self.room -= pairs
            yield from _longest(old, new, counts.keys())
            return
        self.is_whole = self.is_whole and splits
        if not splits:
            return
        place = place_new = 0
        once = {part for part, count in counts.items() if count == 1 == counts_new[part]}
        for at, at_new in [*_longest(old, new, once), (len(old), len(new))]:
            between = self._matches(old[place:at], new[place_new:at_new], splits=False)
            yield from ((place + one, place_new + other) for one, other in between)
            if at < len(old):
                yield at, at_new
            place, place_new = at + 1, at_new + 1


def merge_lines(base: str, ours: str, theirs: str) -> str | None:
    """The text with both changes in it, or None where they touch the same lines (or are too large to be compared).

    Lines that are only written differently (see `line_key`) are the same, and stand as in the base.

    >>> merge_lines("a\\nb\\nc", "A\\nb\\nc", "a\\nb\\nC")
    'A\\nb\\nC'
    """
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    origin, mine, others = base.split("\n"), ours.split("\n"), theirs.split("\n")
    (in_mine, is_all_of_mine), (in_others, is_all_of_others) = (
        kept_lines(origin, mine),
        kept_lines(origin, others),
    )
    if not (is_all_of_mine and is_all_of_others):
        return None
    # Lines of the base that both texts keep are the fixed points; between two of them at most one side may differ.
    fixed = [
        (line, in_mine[line], in_others[line]) for line in sorted(in_mine.keys() & in_others.keys())
    ]
    merged: list[str] = []
    place = place_mine = place_others = 0
    for line, line_mine, line_others in [*fixed, (len(origin), len(mine), len(others))]:
        was, my, their = (
            origin[place:line],
            mine[place_mine:line_mine],
            others[place_others:line_others],
        )
        takes_theirs = any(same_lines(my, other) for other in (was, their))
        if not takes_theirs and not same_lines(their, was):
            return None
        merged += [*(their if takes_theirs else my), *origin[line : line + 1]]
        place, place_mine, place_others = line + 1, line_mine + 1, line_others + 1
    return "\n".join(merged)


def kept_lines(old: Sequence[str], new: Sequence[str]) -> tuple[dict[int, int], bool]:
    """Map the lines of the old text that stay to their numbers in the new one, and say whether all were compared."""
    compared = _Comparison([*map(line_key, old)], [*map(line_key, new)])
    return dict(compared.pairs), compared.is_whole


def matched_lines(old: Sequence[str], new: Sequence[str], room: int) -> tuple[dict[int, int], int]:
    """Map the lines of the old text that stay as `kept_lines` does, looking at `room` pairs at most; also the room left."""
    compared = _Comparison([*map(line_key, old)], [*map(line_key, new)], min(room, _MOST_PAIRS))
    return dict(compared.pairs), room - (min(room, _MOST_PAIRS) - compared.room)


def line_key(line: str) -> str:
    """The line as people compare it: no matter how it ends, whether a byte order mark precedes it, and how accents are stored."""
    line = line.removesuffix("\r")
    return line if line.isascii() else unicodedata.normalize("NFC", line.removeprefix("\ufeff"))


def same_lines(some: Sequence[str], others: Sequence[str]) -> bool:
    return some == others or (len(some) == len(others) and all(map(_same_line, some, others)))


def _same_line(one: str, other: str) -> bool:
    return one == other or line_key(one) == line_key(other)


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many items both begin with, and how many of the rest both end with."""
    shorter = min(len(old), len(new))
    head = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    rest = shorter - head
    tail = next((place for place in range(rest) if old[-1 - place] != new[-1 - place]), rest)
    return head, tail


def unified(old: str, new: str, old_name: str, new_name: str) -> str:
    """The unified diff that turns one text into the other, with three lines around each change; empty where they are equal."""
    if old == new:
        return ""
    begin, end, end_new = _changed_region(old, new)
    before, after = _lines(old[begin:end]), _lines(new[begin:end_new])
    skipped = old.count("\n", 0, begin)
    shown = [f"--- {old_name}\n", f"+++ {new_name}\n"]
    for group in _Comparison(before, after).matcher().get_grouped_opcodes(_CONTEXT):
        (_, start, _, start_new, _), (_, _, stop, _, stop_new) = group[0], group[-1]
        places = (
            _range(skipped + start, skipped + stop),
            _range(skipped + start_new, skipped + stop_new),
        )
        shown.append(f"@@ -{places[0]} +{places[1]} @@\n")
        for tag, start, stop, start_new, stop_new in group:
            shown += [_marked(" " if tag == "equal" else "-", line) for line in before[start:stop]]
            shown += [_marked("+", line) for line in after[start_new:stop_new] if tag != "equal"]
    return "".join(shown)


def _changed_region(old: str, new: str) -> tuple[int, int, int]:
    """Return where the first change begins, and where the last one ends in both texts, with whole lines around them.

    Most changes of a long text are small: its equal ends are found a thousand times quicker than they are split into lines.
    """
    most = min(len(old), len(new))
    head = _equal_length(most, lambda low, high: old.startswith(new[low:high], low))
    begin = old.rfind("\n", 0, head) + 1
    tail = _equal_length(
        most - begin,
        lambda low, high: old.endswith(new[len(new) - high : len(new) - low], 0, len(old) - low),
    )
    end = old.find("\n", len(old) - tail) + 1 or len(old)
    for _ in range(_CONTEXT):
        begin = old.rfind("\n", 0, max(0, begin - 1)) + 1
        end = old.find("\n", end) + 1 or len(old)
    return begin, end, len(new) - (len(old) - end)


def _equal_length(most: int, is_equal: Callable[[int, int], bool]) -> int:
    """Return how much is equal, of at most so much, by halves."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if is_equal(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def by_words(old: str, new: str) -> list[DiffPiece]:
    """The texts as pieces: all but the added ones join to the old text, all but the removed ones to the new one."""
    before, after = _lines(old), _lines(new)
    pieces: list[tuple[PieceKind, str]] = []
    room, room_by_words = _MOST_PAIRS, _MOST_BY_WORDS
    for tag, start, stop, start_new, stop_new in _Comparison(before, after).matcher().get_opcodes():
        if tag == "equal":
            pieces.append(("same", "".join(before[start:stop])))
            continue
        removed, added = "".join(before[start:stop]), "".join(after[start_new:stop_new])
        room_by_words -= len(removed) + len(added)
        if room_by_words < 0:
            pieces += (("removed", removed), ("added", added))
            continue
        words, words_new = _words(removed), _words(added)
        compared = _Comparison(
            [word.rstrip() for word in words], [word.rstrip() for word in words_new], room
        )
        room = compared.room
        pieces += _word_pieces(words, words_new, compared.matcher())
    return list(_joined(pieces))


def _words(text: str) -> list[str]:
    # Not `findall`, which would hold the interpreter's lock for all of a long text.
    return [found[0] for found in _WORD.finditer(text)]


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _word_pieces(
    old: Sequence[str], new: Sequence[str], matcher: SequenceMatcher[str]
) -> Iterator[tuple[PieceKind, str]]:
    """Words match without the spaces behind them; where only those differ, they alone are removed and added."""
    for tag, start, stop, start_new, stop_new in matcher.get_opcodes():
        if tag != "equal":
            yield "removed", "".join(old[start:stop])
            yield "added", "".join(new[start_new:stop_new])
            continue
        for word, word_new in zip(old[start:stop], new[start_new:stop_new], strict=True):
            length = len(word.rstrip())
            if word == word_new:
                yield "same", word
            else:
                yield from (
                    ("same", word[:length]),
                    ("removed", word[length:]),
                    ("added", word_new[length:]),
                )


def _joined(pieces: Iterable[tuple[PieceKind, str]]) -> Iterator[DiffPiece]:
    """Neighbours of one kind as one piece, removed before added, and nothing empty."""
    told: list[tuple[PieceKind, str]] = []
    for is_same, group in groupby(filter(_TEXT, pieces), key=lambda piece: piece[0] == "same"):
        stretch = list(group)
        told += (
            stretch
            if is_same
            else _change(*(_text_of(stretch, kind) for kind in ("removed", "added")))
        )
    for kind, group in groupby(filter(_TEXT, told), key=itemgetter(0)):
        yield DiffPiece(kind, "".join(map(_TEXT, group)))


def _text_of(pieces: Iterable[tuple[PieceKind, str]], kind: str) -> str:
    return "".join(text for its_kind, text in pieces if its_kind == kind)


def _change(old: str, new: str) -> list[tuple[PieceKind, str]]:
    """What was removed and added, without the spaces that both begin or end with."""
    head = _shared_spaces(old, new)
    tail = _shared_spaces(old[head:][::-1], new[head:][::-1])
    end, end_new = len(old) - tail, len(new) - tail
    return [
        ("same", old[:head]),
        ("removed", old[head:end]),
        ("added", new[head:end_new]),
        ("same", old[end:]),
    ]


def _shared_spaces(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    return next(
        (at for at in range(shorter) if old[at] != new[at] or not old[at].isspace()), shorter
    )


def _longest(
    old: Sequence[str], new: Sequence[str], parts: Collection[str]
) -> list[tuple[int, int]]:
    """The longest common subsequence of those `parts`, by Hunt and Szymanski: time grows with the pairs of equal parts."""
    where: dict[str, list[int]] = {}
    for at in range(len(new) - 1, -1, -1):
        if new[at] in parts:
            where.setdefault(new[at], []).append(at)
    # `ends[k]` is the first place in the new sequence where k + 1 matches can end; `chains[k]` leads back along them.
    ends: list[int] = []
    chains: list[Any] = []
    for at, part in enumerate(old):
        for at_new in where.get(part, ()):
            length = bisect_left(ends, at_new)
            ends[length : length + 1] = [at_new]
            chains[length : length + 1] = [(at, at_new, chains[length - 1] if length else None)]
    matches: list[tuple[int, int]] = []
    last = chains[-1] if chains else None
    while last:
        matches.append(last[:2])
        last = last[2]
    return matches[::-1]


def _range(begin: int, end: int) -> str:
    length = end - begin
    first = begin + 1 if length else begin
    return str(first) if length == 1 else f"{first},{length}"


def _marked(sign: str, line: str) -> str:
    return (
        f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
    )
