"""What changed between two texts: as a unified diff, and word by word. Bounded in time for any two texts.

The standard library's matcher can take minutes for texts of many repeated lines, and a diff is asked for by anybody who looks.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

PieceKind = Literal["same", "added", "removed"]

_CONTEXT = 3
# How many pairs of equal lines, or equal words, are looked at in one comparison. Where there are more, only what is unique is
# matched first, and then what lies between, as far as this goes. A pair takes about a microsecond.
_MOST_PAIRS = 200_000
# A word with the spaces behind it, a sign of a script without spaces, or a sign with the spaces behind it.
_WORD = re.compile(r"(?:[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|\W)\s*")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that both texts have, or only the new one, or only the old one."""

    kind: PieceKind
    text: str


class _Link(NamedTuple):
    """A match, and the one before it in its chain."""

    at: int
    at_new: int
    before: "_Link | None"


# Where a stretch begins and ends in the old text and in the new one.
_Change = tuple[int, int, int, int]


def unified(old: str, new: str, old_name: str, new_name: str) -> str:
    """The unified diff that turns one text into the other, with three lines around each change; empty where they are equal."""
    before, after = _lines(old), _lines(new)
    changes, _ = _changes(before, after, _MOST_PAIRS)
    if not changes:
        return ""
    told = [f"--- {old_name}\n", f"+++ {new_name}\n"]
    for hunk in _hunks(changes):
        told += _hunk(hunk, before, after)
    return "".join(told)


def by_words(old: str, new: str) -> list[Piece]:
    """The texts as pieces: all but the added ones join to the old text, all but the removed ones to the new one."""
    before, after = _lines(old), _lines(new)
    changes, _ = _changes(before, after, _MOST_PAIRS)
    pieces: list[tuple[PieceKind, str]] = []
    room, place = _MOST_PAIRS, 0
    for start, end, start_new, end_new in changes:
        pieces.append(("same", "".join(before[place:start])))
        words, words_new = _words(before[start:end]), _words(after[start_new:end_new])
        matches, room = _matches([word.rstrip() for word in words], [word.rstrip() for word in words_new], room)
        pieces += _word_pieces(words, words_new, matches)
        place = end
    pieces.append(("same", "".join(before[place:])))
    return _joined(pieces)


def _lines(text: str) -> list[str]:
    """The lines with their breaks. Only a line feed breaks a line, as in git."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _words(lines: Sequence[str]) -> list[str]:
    text = "".join(lines)
    indent = len(text) - len(text.lstrip())
    return ([text[:indent]] if indent else []) + _WORD.findall(text, indent)


def _word_pieces(
    old: Sequence[str], new: Sequence[str], matches: Sequence[tuple[int, int]]
) -> Iterator[tuple[PieceKind, str]]:
    """Words match without the spaces behind them; where only those differ, they alone are removed and added."""
    place = place_new = 0
    for at, at_new in matches:
        yield "removed", "".join(old[place:at])
        yield "added", "".join(new[place_new:at_new])
        word = old[at].rstrip()
        yield "same", word
        yield from _spaces(old[at][len(word) :], new[at_new][len(word) :])
        place, place_new = at + 1, at_new + 1
    yield "removed", "".join(old[place:])
    yield "added", "".join(new[place_new:])


def _spaces(old: str, new: str) -> list[tuple[PieceKind, str]]:
    return [("same", old)] if old == new else [("removed", old), ("added", new)]


def _joined(pieces: Iterable[tuple[PieceKind, str]]) -> list[Piece]:
    """Neighbours of one kind as one piece, removed before added, and nothing empty.

    Spaces that both sides of a change begin or end with are the same.
    """
    joined: list[tuple[PieceKind, list[str]]] = []
    stretches = groupby((piece for piece in pieces if piece[1]), key=lambda piece: piece[0] == "same")
    for is_same, group in stretches:
        parts: dict[PieceKind, list[str]] = {"same": [], "removed": [], "added": []}
        for kind, text in group:
            parts[kind].append(text)
        same, removed, added = ("".join(texts) for texts in parts.values())
        told: list[tuple[PieceKind, str]] = [("same", same)] if is_same else _change(removed, added)
        for kind, text in told:
            if text and joined and joined[-1][0] == kind:
                joined[-1][1].append(text)
            elif text:
                joined.append((kind, [text]))
    return [Piece(kind, "".join(texts)) for kind, texts in joined]


def _change(old: str, new: str) -> list[tuple[PieceKind, str]]:
    head = _shared_spaces(old, new)
    tail = _shared_spaces(old[head:][::-1], new[head:][::-1])
    end, end_new = len(old) - tail, len(new) - tail
    return [("same", old[:head]), ("removed", old[head:end]), ("added", new[head:end_new]), ("same", old[end:])]


def _shared_spaces(old: str, new: str) -> int:
    """How many spaces both texts begin with."""
    pairs = zip(old, new, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other or not one.isspace()), min(len(old), len(new))
    )


def _changes(old: Sequence[str], new: Sequence[str], room: int) -> tuple[list[_Change], int]:
    """The stretches that differ, in order, with something the same between any two, and what is left of `room`."""
    changes: list[_Change] = []
    place = place_new = 0
    matches, room = _matches(old, new, room)
    for at, at_new in [*matches, (len(old), len(new))]:
        if place < at or place_new < at_new:
            changes.append((place, at, place_new, at_new))
        place, place_new = at + 1, at_new + 1
    return changes, room


def _matches(old: Sequence[str], new: Sequence[str], room: int) -> tuple[list[tuple[int, int]], int]:
    """Which parts of the old sequence stay, where they stand in the new one, and what is left of `room` pairs."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - head
    tail = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    middle, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    found, room = _core(middle, middle_new, room)
    matches = [(at, at) for at in range(head)]
    matches += [(head + at, head + at_new) for at, at_new in found]
    matches += [(len(old) - at, len(new) - at) for at in range(tail, 0, -1)]
    return matches, room


def _core(old: Sequence[str], new: Sequence[str], room: int) -> tuple[list[tuple[int, int]], int]:
    """The matches of two sequences that begin and end with a difference."""
    pairs = _pairs(old, new)
    if pairs <= room:
        return _longest(old, new, frozenset(new)), room - pairs
    counts, counts_new = Counter(old), Counter(new)
    once = frozenset(part for part, count in counts.items() if count == 1 == counts_new[part])
    matches: list[tuple[int, int]] = []
    place = place_new = 0
    for at, at_new in [*_longest(old, new, once), (len(old), len(new))]:
        between, between_new = old[place:at], new[place_new:at_new]
        if (pairs := _pairs(between, between_new)) <= room:
            room -= pairs
            found = _longest(between, between_new, frozenset(between_new))
            matches += [(place + one, place_new + other) for one, other in found]
        if at < len(old):
            matches.append((at, at_new))
        place, place_new = at + 1, at_new + 1
    return matches, room


def _pairs(old: Sequence[str], new: Sequence[str]) -> int:
    counts = Counter(new)
    return sum(counts[part] * count for part, count in Counter(old).items())


def _longest(old: Sequence[str], new: Sequence[str], parts: frozenset[str]) -> list[tuple[int, int]]:
    """The longest common subsequence of those `parts`, by Hunt and Szymanski: time grows with the pairs of equal parts."""
    where: dict[str, list[int]] = {}
    for at in range(len(new) - 1, -1, -1):
        if new[at] in parts:
            where.setdefault(new[at], []).append(at)
    # `ends[k]` is the first place in the new sequence where a chain of k + 1 matches can end; `chains[k]` leads back along it.
    ends: list[int] = []
    chains: list[_Link] = []
    for at, part in enumerate(old):
        for at_new in where.get(part, ()):
            length = bisect_left(ends, at_new)
            link = _Link(at, at_new, chains[length - 1] if length else None)
            if length == len(ends):
                ends.append(at_new)
                chains.append(link)
            else:
                ends[length], chains[length] = at_new, link
    matches: list[tuple[int, int]] = []
    last = chains[-1] if chains else None
    while last:
        matches.append((last.at, last.at_new))
        last = last.before
    return matches[::-1]


def _hunks(changes: Sequence[_Change]) -> list[list[_Change]]:
    """Changes so near to each other that the lines around them touch stand together."""
    hunks: list[list[_Change]] = []
    for change in changes:
        if hunks and change[0] - hunks[-1][-1][1] <= 2 * _CONTEXT:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _hunk(changes: Sequence[_Change], old: Sequence[str], new: Sequence[str]) -> list[str]:
    begin = max(0, changes[0][0] - _CONTEXT)
    begin_new = changes[0][2] - (changes[0][0] - begin)
    end = min(len(old), changes[-1][1] + _CONTEXT)
    end_new = changes[-1][3] + end - changes[-1][1]
    told = [f"@@ -{_range(begin, end)} +{_range(begin_new, end_new)} @@\n"]
    place = begin
    for start, stop, start_new, stop_new in changes:
        told += [_marked(" ", line) for line in old[place:start]]
        told += [_marked("-", line) for line in old[start:stop]]
        told += [_marked("+", line) for line in new[start_new:stop_new]]
        place = stop
    return told + [_marked(" ", line) for line in old[place:end]]


def _range(begin: int, end: int) -> str:
    length = end - begin
    first = begin + 1 if length else begin
    return str(first) if length == 1 else f"{first},{length}"


def _marked(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
