"""Merges of texts by lines, and comparisons of two changes of one text.

The time of a merge is bounded for all texts. `merge_lines` merges edits; `merge_changes` merges a
proposal that has waited, and is more permissive. It also combines changes of neighbouring lines,
and additions at one position.
"""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

from ricordo.domain.block import Block
from ricordo.domain.redaction import redact

PieceKind = Literal["same", "added", "removed"]

# The limit of pairs of equal lines or words in one comparison; a pair takes a microsecond. With
# more pairs, unique lines are matched first. Then the ranges between them are compared, up to the
# limit.
_PAIR_LIMIT = 200_000
# The limit of characters of changed lines that are compared word by word. Further changes are shown
# in whole lines.
_WORD_DIFF_LIMIT = 800_000
# Lines around each change of a unified diff.
_CONTEXT = 3
_TEXT = itemgetter(1)
# A word, a letter of a script without spaces, or another sign; each includes the spaces after it.
_WORD = re.compile(
    r"(?:[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|\W)\s*"
)


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """A piece of text that is in both texts, added, or removed."""

    kind: PieceKind
    text: str


class _Comparison:
    """The longest common subsequence of two sequences, within a limit of pairs.

    `pairs` are its positions in both. `room` is the number of pairs that may still be compared.
    `is_whole` is set if the limit was enough.
    """

    def __init__(self, old: Sequence[str], new: Sequence[str], room: int = _PAIR_LIMIT) -> None:
        self.room = room
        self.is_whole = True
        self.pairs = self._matches(old, new)
        self._sizes = (len(old), len(new))

    def matcher(self) -> SequenceMatcher[str]:
        """Return the standard matcher with these pairs as its matches."""
        blocks = [Match(0, 0, 0)]
        for old_index, new_index in self.pairs:
            last = blocks[-1]
            if (old_index, new_index) == (last.a + last.size, last.b + last.size):
                blocks[-1] = Match(last.a, last.b, last.size + 1)
            else:
                blocks.append(Match(old_index, new_index, 1))
        matcher = SequenceMatcher[str]()
        matcher.matching_blocks = [*blocks, Match(*self._sizes, 0)]  # type: ignore[attr-defined]
        return matcher

    def _matches(
        self, old: Sequence[str], new: Sequence[str], *, splits: bool = True
    ) -> list[tuple[int, int]]:
        head, tail = common_ends(old, new)
        end = len(old) - tail
        end_new = len(new) - tail
        pairs = list(zip(range(head), range(head), strict=True))
        if head < end and head < end_new:
            middle = self._middle(old[head:end], new[head:end_new], splits)
            pairs += [(head + old_index, head + new_index) for old_index, new_index in middle]
        return pairs + list(zip(range(end, len(old)), range(end_new, len(new)), strict=True))

    def _middle(
        self, old: Sequence[str], new: Sequence[str], splits: bool
    ) -> Iterator[tuple[int, int]]:
        counts = Counter(old)
        counts_new = Counter(new)
        pairs = sum(count * counts_new[part] for part, count in counts.items())
        if pairs <= self.room:
            self.room -= pairs
            yield from _longest(old, new, counts.keys())
            return
        self.is_whole = self.is_whole and splits
        if not splits:
            return
        position = new_position = 0
        unique_parts = {part for part, count in counts.items() if count == 1 == counts_new[part]}
        for old_index, new_index in [*_longest(old, new, unique_parts), (len(old), len(new))]:
            between = self._matches(
                old[position:old_index], new[new_position:new_index], splits=False
            )
            yield from (
                (position + old_offset, new_position + new_offset)
                for old_offset, new_offset in between
            )
            if old_index < len(old):
                yield old_index, new_index
            position = old_index + 1
            new_position = new_index + 1


def merge_lines(base: str, our_text: str, their_text: str) -> str | None:
    r"""Return the text with both changes; None if they touch the same or neighbouring lines.

    Returns None also if the texts are too large to be compared. Lines that differ only in notation
    (see `line_key`) count as equal, and keep the form of the base.

    >>> merge_lines("a\nb\nc", "A\nb\nc", "a\nb\nC")
    'A\nb\nC'

    Args:
        base: The text from which both changes were made.
        our_text: The base with one change.
        their_text: The base with the other change.
    """
    if our_text in (base, their_text):
        return their_text
    if their_text == base:
        return our_text
    base_lines = base.split("\n")
    our_lines = our_text.split("\n")
    their_lines = their_text.split("\n")
    (our_numbers, is_ours_whole) = unchanged_lines(base_lines, our_lines)
    (their_numbers, is_theirs_whole) = unchanged_lines(base_lines, their_lines)
    if not (is_ours_whole and is_theirs_whole):
        return None
    # Base lines that both texts keep are fixed points. Between two of them, only one side may
    # differ.
    fixed = [
        (line, our_numbers[line], their_numbers[line])
        for line in sorted(our_numbers.keys() & their_numbers.keys())
    ]
    merged: list[str] = []
    position = our_position = their_position = 0
    for line, our_line, their_line in [*fixed, (len(base_lines), len(our_lines), len(their_lines))]:
        base_part = base_lines[position:line]
        our_part = our_lines[our_position:our_line]
        their_part = their_lines[their_position:their_line]
        uses_theirs = any(same_lines(our_part, other) for other in (base_part, their_part))
        if not uses_theirs and not same_lines(their_part, base_part):
            return None
        merged += [*(their_part if uses_theirs else our_part), *base_lines[line : line + 1]]
        position = line + 1
        our_position = our_line + 1
        their_position = their_line + 1
    return "\n".join(merged)


def unchanged_lines(old: Sequence[str], new: Sequence[str]) -> tuple[dict[int, int], bool]:
    """Map the old text's unchanged lines to their numbers in the new text.

    Numbers count from 0. The flag tells whether all lines were compared.

    Args:
        old: The lines of the old text.
        new: The lines of the new text.
    """
    compared = _Comparison([*map(line_key, old)], [*map(line_key, new)])
    return dict(compared.pairs), compared.is_whole


def matched_lines(old: Sequence[str], new: Sequence[str], room: int) -> tuple[dict[int, int], int]:
    """Map unchanged lines as `unchanged_lines` does, within a limit of work.

    Args:
        old: The lines of the old text.
        new: The lines of the new text.
        room: The most pairs of equal lines that may be compared.

    Returns:
        The mapping and the pairs left.
    """
    compared = _Comparison([*map(line_key, old)], [*map(line_key, new)], min(room, _PAIR_LIMIT))
    return dict(compared.pairs), room - (min(room, _PAIR_LIMIT) - compared.room)


def line_key(line: str) -> str:
    """Return the line in a form for comparisons.

    The line ending, a byte order mark in front, and the stored form of accents make no difference.

    Args:
        line: A line without its line feed.
    """
    line = line.removesuffix("\r")
    if line.isascii():
        return line
    return unicodedata.normalize("NFC", line.removeprefix("\ufeff"))


def same_lines(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if the lines are the same for people.

    Args:
        some: The lines of one text.
        others: The lines of the other text.
    """
    return some == others or (len(some) == len(others) and all(map(_same_line, some, others)))


def _same_line(first: str, second: str) -> bool:
    return first == second or line_key(first) == line_key(second)


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of equal items at the start and at the end.

    They do not overlap.

    Args:
        old: The items of one list, such as lines.
        new: The items of the other list.
    """
    shorter = min(len(old), len(new))
    head = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    rest = shorter - head
    tail = next((index for index in range(rest) if old[-1 - index] != new[-1 - index]), rest)
    return head, tail


def unified(old: str, new: str, old_name: str, new_name: str) -> str:
    """Return the unified diff of two texts; empty if they are equal.

    It has three lines around each change.

    Args:
        old: The old text.
        new: The new text.
        old_name: The name of the old text in the diff's head, without a line break.
        new_name: The name of the new text in the diff's head, without a line break.
    """
    if old == new:
        return ""
    begin, end, end_new = _changed_region(old, new)
    before = _lines(old[begin:end])
    after = _lines(new[begin:end_new])
    skipped = old.count("\n", 0, begin)
    diff_lines = [f"--- {old_name}\n", f"+++ {new_name}\n"]
    for group in _Comparison(before, after).matcher().get_grouped_opcodes(_CONTEXT):
        (_, start, _, start_new, _) = group[0]
        (_, _, stop, _, stop_new) = group[-1]
        ranges = (
            _range(skipped + start, skipped + stop),
            _range(skipped + start_new, skipped + stop_new),
        )
        diff_lines.append(f"@@ -{ranges[0]} +{ranges[1]} @@\n")
        for tag, start, stop, start_new, stop_new in group:
            diff_lines += [
                _marked(" " if tag == "equal" else "-", line) for line in before[start:stop]
            ]
            diff_lines += [
                _marked("+", line) for line in after[start_new:stop_new] if tag != "equal"
            ]
    return "".join(diff_lines)


def _changed_region(old: str, new: str) -> tuple[int, int, int]:
    """Return the start of the changed region, and its end in the old and in the new text.

    The region goes from the first to the last change, with three whole lines around them. Most
    changes of a long text are small. Finding the equal ends is a thousand times faster than
    splitting the text into lines.
    """
    shorter = min(len(old), len(new))
    head = _equal_length(shorter, lambda low, high: old.startswith(new[low:high], low))
    begin = old.rfind("\n", 0, head) + 1
    tail = _equal_length(
        shorter - begin,
        lambda low, high: old.endswith(new[len(new) - high : len(new) - low], 0, len(old) - low),
    )
    end = old.find("\n", len(old) - tail) + 1 or len(old)
    for _ in range(_CONTEXT):
        begin = old.rfind("\n", 0, max(0, begin - 1)) + 1
        end = old.find("\n", end) + 1 or len(old)
    return begin, end, len(new) - (len(old) - end)


def _equal_length(limit: int, is_equal: Callable[[int, int], bool]) -> int:
    """Return the largest equal length up to `limit`, by binary search."""
    low = 0
    high = limit
    while low < high:
        middle = (low + high + 1) // 2
        if is_equal(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def by_words(old: str, new: str) -> list[DiffPiece]:
    """Return the texts as pieces that are the same, added or removed.

    Joined without the added pieces they give the old text; joined without the removed pieces, the
    new one.

    Args:
        old: The earlier text.
        new: The later text. Beyond a limit of size, lines are compared as a whole.
    """
    before = _lines(old)
    after = _lines(new)
    pieces: list[tuple[PieceKind, str]] = []
    room = _PAIR_LIMIT
    room_by_words = _WORD_DIFF_LIMIT
    for tag, start, stop, start_new, stop_new in _Comparison(before, after).matcher().get_opcodes():
        if tag == "equal":
            pieces.append(("same", "".join(before[start:stop])))
            continue
        removed = "".join(before[start:stop])
        added = "".join(after[start_new:stop_new])
        room_by_words -= len(removed) + len(added)
        if room_by_words < 0:
            pieces += (("removed", removed), ("added", added))
            continue
        old_words = _words(removed)
        new_words = _words(added)
        compared = _Comparison(
            [word.rstrip() for word in old_words], [word.rstrip() for word in new_words], room
        )
        room = compared.room
        pieces += _word_pieces(old_words, new_words, compared.matcher())
    return list(_joined(pieces))


def _words(text: str) -> list[str]:
    # `findall` would hold the interpreter's lock while it reads a long text.
    return [match[0] for match in _WORD.finditer(text)]


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _word_pieces(
    old: Sequence[str], new: Sequence[str], matcher: SequenceMatcher[str]
) -> Iterator[tuple[PieceKind, str]]:
    """Return the pieces of two matched sequences of words.

    Words are matched without the spaces after them. If only the spaces differ, the pieces show a
    change of the spaces alone.
    """
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
    """Join neighbouring pieces of one kind, drop empty ones, and put removed before added ones."""
    ordered: list[tuple[PieceKind, str]] = []
    for is_same, group in groupby(filter(_TEXT, pieces), key=lambda piece: piece[0] == "same"):
        stretch = list(group)
        ordered += (
            stretch
            if is_same
            else _change(*(_text_of(stretch, kind) for kind in ("removed", "added")))
        )
    for kind, group in groupby(filter(_TEXT, ordered), key=itemgetter(0)):
        yield DiffPiece(kind, "".join(map(_TEXT, group)))


def _text_of(pieces: Iterable[tuple[PieceKind, str]], kind: str) -> str:
    return "".join(text for its_kind, text in pieces if its_kind == kind)


def _change(old: str, new: str) -> list[tuple[PieceKind, str]]:
    """Return the removed and the added text, without shared spaces at their ends."""
    head = _shared_spaces(old, new)
    tail = _shared_spaces(old[head:][::-1], new[head:][::-1])
    end = len(old) - tail
    end_new = len(new) - tail
    return [
        ("same", old[:head]),
        ("removed", old[head:end]),
        ("added", new[head:end_new]),
        ("same", old[end:]),
    ]


def _shared_spaces(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    return next(
        (index for index in range(shorter) if old[index] != new[index] or not old[index].isspace()),
        shorter,
    )


def _longest(
    old: Sequence[str], new: Sequence[str], parts: Collection[str]
) -> list[tuple[int, int]]:
    """Return the longest common subsequence of the `parts`, by Hunt and Szymanski.

    Its time grows with the number of pairs of equal parts.
    """
    positions: dict[str, list[int]] = {}
    for index in range(len(new) - 1, -1, -1):
        if new[index] in parts:
            positions.setdefault(new[index], []).append(index)
    # `ends[k]` is the first index in the new sequence where k + 1 matches can end.
    # `chains[k]` leads back along them.
    ends: list[int] = []
    chains: list[Any] = []
    for index, part in enumerate(old):
        for new_index in positions.get(part, ()):
            length = bisect_left(ends, new_index)
            ends[length : length + 1] = [new_index]
            chains[length : length + 1] = [
                (index, new_index, chains[length - 1] if length else None)
            ]
    matches: list[tuple[int, int]] = []
    last = chains[-1] if chains else None
    while last:
        matches.append(last[:2])
        last = last[2]
    return matches[::-1]


def _range(begin: int, end: int) -> str:
    length = end - begin
    first = begin + 1 if length else begin
    if length == 1:
        return str(first)
    return f"{first},{length}"


def _marked(sign: str, line: str) -> str:
    if line.endswith("\n"):
        return f"{sign}{line}"
    return f"{sign}{line}\n\\ No newline at end of file\n"


# A shorter line may occur twice on purpose, such as an empty line or an item of a list.
_SHORTEST_UNIQUE = 24
# The longest excerpt of a line in a summary, in characters.
_EXCERPT_LENGTH = 72
# The limit of compared pairs of lines that changed in both texts: about a second of work.
_COMPARED_PAIR_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class LineChange:
    """New lines for a text's lines from `start` up to, not including, `end`.

    It is an insertion if `start` equals `end`.
    """

    start: int
    end: int
    lines: tuple[str, ...]


def same_text(first: str, second: str) -> bool:
    """Return whether two texts are the same for people.

    A final newline, line ends and the Unicode form of accents make no difference.

    Args:
        first: One text.
        second: The other text.
    """
    first = first.removesuffix("\n")
    second = second.removesuffix("\n")
    if first == second:
        return True
    # Two long texts are usually equal for the most part, which need not be split.
    head, tail = ends_alike(first, second)
    return same_lines(*(text[head : len(text) - tail].split("\n") for text in (first, second)))


def change_summary(label: str, old: str, new: str, otherwise: str) -> str:
    """Return a short message with the first added line, else the first removed one.

    Secrets in the line are not shown.

    Args:
        label: The block's label, with which the message begins.
        old: The text before the change.
        new: The text after the change.
        otherwise: The message if no line can be shown.
    """
    before = _lines_within(old)
    after = _lines_within(new)
    head, tail = common_ends(before, after)
    for sign, lines in (("+", after), ("-", before)):
        changed = lines[head : len(lines) - tail]
        if not (line := next((line.strip() for line in changed if line.strip()), "")):
            continue
        # Redact before cutting, since half a secret is not recognized. Compare with the redacted
        # neighbouring lines, since they may show that this line is a secret.
        excerpt = redact(line).text
        around = redact("\n".join([*lines[max(0, head - 2) : head], *changed])).text
        if excerpt not in around:
            break
        if len(excerpt) > _EXCERPT_LENGTH:
            excerpt = excerpt[: _EXCERPT_LENGTH - 1].rstrip() + "…"
        return f'{label}: {sign} "{excerpt}"'
    return otherwise


def edit_summary(before: Block | None, after: Block | None) -> str:
    """Return a short message for a change of a block.

    Args:
        before: The block before the change; None for a new block.
        after: The block after the change; None for a deleted one.
    """
    if after is None:
        return f"Delete {before.shown_label if before else ''}"
    if before is None:
        return change_summary(after.shown_label, "", after.value, f"Make {after.shown_label}")
    old_label = before.shown_label
    label = after.shown_label
    if before.value != after.value:
        return change_summary(label, before.value, after.value, f"Edit {label}")
    if label != old_label:
        return f"Rename {old_label} to {label}"
    return f"Describe {label}"


def line_changes(old: str, new: str) -> list[LineChange] | None:
    """Return the changes that turn the old text into the new text, in order.

    Args:
        old: The earlier text.
        new: The later text.

    Returns:
        The changes; None if the texts are too large to be compared.
    """
    before = _lines_within(old)
    after = _lines_within(new)
    unchanged, is_whole = unchanged_lines(before, after)
    changes: list[LineChange] = []
    position = 0
    new_position = 0
    for line, new_line in [*unchanged.items(), (len(before), len(after))]:
        if (position, new_position) != (line, new_line):
            changes.append(LineChange(position, line, tuple(after[new_position:new_line])))
        position = line + 1
        new_position = new_line + 1
    if is_whole:
        return changes
    return None


def merge_changes(base: str, first: str, second: str) -> str | None:
    r"""Return the text with both changes.

    Returns None if they change the same lines differently, or if they are too large to be compared.

    Unlike in `merge_lines`, neighbouring lines may change on both sides. If both sides add lines at
    one position, all stay; a long line that both add is added once.

    >>> merge_changes("a", "a\nb", "a\nc\n")
    'a\nb\nc\n'

    Args:
        base: The text from which both changes were made.
        first: The base with one change, whose added lines come first.
        second: The base with the other change.
    """
    if same_text(base, first) or same_text(base, second):
        if same_text(base, first):
            return second
        return first
    first_changes = line_changes(base, first)
    second_changes = line_changes(base, second)
    if first_changes is None or second_changes is None:
        return None
    replaced_by_first = _by_lines(first_changes)
    replaced_by_second = _by_lines(second_changes)
    # Compare each pair once. Otherwise a change of all lines would be compared again for each line.
    overlaps = {
        (id(change), id(replaced_by_second[line])): (change, replaced_by_second[line])
        for line, change in replaced_by_first.items()
        if line in replaced_by_second
    }
    if any(
        (change.start, change.end) != (other.start, other.end)
        or not same_lines(change.lines, other.lines)
        for change, other in overlaps.values()
    ):
        return None
    replaced = replaced_by_first | replaced_by_second
    added_by_first = _insertions(first_changes, replaced)
    added_by_second = _insertions(second_changes, replaced)
    lines = _lines_within(base)
    merged: list[str] = []
    position = 0
    while position <= len(lines):
        merged += _added_by_both(
            added_by_first.get(position, []), added_by_second.get(position, [])
        )
        if change := replaced.get(position):
            merged += change.lines
            position = change.end
        else:
            merged += lines[position : position + 1]
            position += 1
    ends_with_newline = first.endswith("\n")
    if ends_with_newline == base.endswith("\n"):
        ends_with_newline = second.endswith("\n")
    return "\n".join(merged) + ("\n" if merged and ends_with_newline else "")


def carry_over(base: str, changed: str, text: str) -> str | None:
    r"""Return `text` with the changes from `base` to `changed`.

    Returns None where the texts are too large to be compared.

    >>> carry_over("name\ncity\njob", "name\ncity\nhobby", "name\npet")
    'name\npet\nhobby'

    Args:
        base: The text before the changes.
        changed: The text after the changes.
        text: The text that gets the changes. Unlike in `merge_changes`, it may lack lines that are
            replaced or removed, or have lines in another order. If it lacks a changed line, the new
            lines go behind all earlier lines of `base`.
    """
    changes = line_changes(base, changed)
    base_lines = _lines_within(base)
    lines = _lines_within(text)
    positions, is_whole = unchanged_lines(base_lines, lines)
    if changes is None or not is_whole:
        return None
    moved = _other_lines(lines, positions.values())
    removed: set[int] = set()
    inserted: dict[int, list[str]] = {}
    base_end = len(base_lines)
    for change in changes:
        replaced: list[int] = []
        for number in range(change.start, change.end):
            if number in positions:
                replaced.append(positions[number])
            elif found := moved.get(line_key(base_lines[number])):
                replaced.append(found.pop(0))
        removed.update(replaced)
        if replaced:
            position = replaced[0]
        elif change.end == base_end:
            position = len(lines)
        else:
            lines_before = (at for number, at in positions.items() if number < change.start)
            position = max(lines_before, default=-1) + 1
        inserted.setdefault(position, []).extend(change.lines)
    result: list[str] = []
    for position in range(len(lines) + 1):
        result += inserted.get(position, [])
        if position < len(lines) and position not in removed:
            result.append(lines[position])
    return "\n".join(result) + ("\n" if result and text.endswith("\n") else "")


def _other_lines(lines: Sequence[str], known: Collection[int]) -> dict[str, list[int]]:
    """Map the keys of all lines whose number is not known to the numbers of these lines."""
    known = set(known)
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if number not in known:
            numbers.setdefault(line_key(line), []).append(number)
    return numbers


def _lines_within(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        return lines
    return lines[:-1]


def touch_same_lines(base: str, first: str, base_since: str, second: str) -> bool:
    """Return whether both changes replace or remove one line differently.

    Returns True if it cannot be computed.

    Args:
        base: The base of `first`.
        first: The text after the first change.
        base_since: The base of `second`, a later state of `base`.
        second: The text after the second change.
    """
    first_changes = line_changes(base, first)
    since = line_changes(base, base_since)
    second_changes = line_changes(base_since, second)
    if first_changes is None or since is None or second_changes is None:
        return True
    replaced_by_second = _by_lines(second_changes)
    replaced_lines = sorted(replaced_by_second)
    positions = _positions_after(since, len(_lines_within(base)))
    pairs_left = _COMPARED_PAIR_LIMIT
    is_same_by_pair: dict[tuple[int, int], bool] = {}
    for line, change in _by_lines(first_changes).items():
        start, end = (
            bisect_left(replaced_lines, position)
            for position in (positions[line].start, positions[line].stop)
        )
        pairs_left -= end - start
        if pairs_left < 0:
            return True
        for other_line in replaced_lines[start:end]:
            other = replaced_by_second[other_line]
            # Equal changes do not collide, even if the lines have moved since.
            if (other.start - other_line, other.end - other_line) != (
                change.start - line,
                change.end - line,
            ):
                return True
            if (pair := (id(change), id(other))) not in is_same_by_pair:
                is_same_by_pair[pair] = same_lines(change.lines, other.lines)
            if not is_same_by_pair[pair]:
                return True
    return False


def overlapping_parts(
    base: str, first: str, base_since: str, second: str
) -> tuple[str, str, str, str] | None:
    """Return the parts of the texts in which both changes may overlap.

    The parts are the texts without the ends that they have in common.

    Args:
        base: The base of `first`.
        first: The text after the first change.
        base_since: The base of `second`, a later state of `base`.
        second: The text after the second change.

    Returns:
        The four parts in this order; None if the changes lie apart.
    """
    texts = tuple(
        text if not text or text.endswith("\n") else f"{text}\n"
        for text in (base, first, base_since, second)
    )
    base, first, base_since, second = texts
    head, tail = ends_alike(base, first)
    head_too, tail_too = ends_alike(base_since, second)
    ends = [(head, tail), (head_too, tail_too)]
    if base == base_since:
        if len(base) - tail < head_too or len(base) - tail_too < head:
            return None
    else:
        above, below = ends_alike(base, base_since)
        are_above = (len(base) - tail <= above, len(base_since) - tail_too <= above)
        are_below = (len(base) - head <= below, len(base_since) - head_too <= below)
        # Later changes matter only if they lie between the two edits, and not outside both.
        if all(are_above):
            parts = (
                text[: above + len(text) - len(its)]
                for text, its in ((first, base), (second, base_since))
            )
            return overlapping_parts(base[:above], next(parts), base[:above], next(parts))
        if all(are_below):
            start = len(base) - below
            start_since = len(base_since) - below
            return overlapping_parts(
                base[start:], first[start:], base[start:], second[start_since:]
            )
        if (are_above[0] and are_below[1]) or (are_below[0] and are_above[1]):
            return None
        ends.append((above, below))
    start, end = (min(sizes) for sizes in zip(*ends, strict=True))
    base, first, base_since, second = (text[start : len(text) - end] for text in texts)
    return base, first, base_since, second


def effort(old: str, new: str) -> int:
    """Return the cost of comparing two texts.

    It counts the lines between the equal ends, and the pairs of equal lines among them.

    Args:
        old: One text.
        new: The other text.
    """
    head, tail = ends_alike(old, new)
    old_counts, new_counts = (
        Counter(text[head : len(text) - tail].split("\n")) for text in (old, new)
    )
    return (
        old_counts.total()
        + new_counts.total()
        + sum(count * new_counts[line] for line, count in old_counts.items())
    )


def ends_alike(first: str, second: str) -> tuple[int, int]:
    """Return the lengths of the equal beginning and end of two texts.

    They are counted in characters of whole lines and do not overlap.

    Args:
        first: A text.
        second: The text that it is compared with.
    """
    head = _longest_alike(
        min(len(first), len(second)), lambda size: first.startswith(second[:size])
    )
    head = first.rfind("\n", 0, head) + 1
    shorter = min(len(first), len(second)) - head
    tail = _longest_alike(shorter, lambda size: first.endswith(second[len(second) - size :]))
    starts = (len(first) - tail, len(second) - tail)
    if any(
        start > head and text[start - 1] != "\n"
        for text, start in zip((first, second), starts, strict=True)
    ):
        line_end = first.find("\n", starts[0])
        tail = len(first) - line_end - 1 if line_end >= 0 else 0
    return head, tail


def _longest_alike(limit: int, is_alike: Callable[[int], bool]) -> int:
    """Return the largest equal length up to `limit`, by binary search.

    Comparing slices is quicker than comparing characters.
    """
    return bisect_left(range(1, limit + 1), True, key=lambda size: not is_alike(size))


def removes_lines(old: str, new: str) -> bool:
    """Return whether the new text replaces or removes lines.

    Returns True also if that cannot be computed.

    Args:
        old: The earlier text.
        new: The later text.
    """
    changes = line_changes(old, new)
    return changes is None or any(change.start < change.end for change in changes)


def _positions_after(since: Iterable[LineChange], count: int) -> dict[int, range]:
    """Map each line of a text to its positions after these changes.

    A replaced line maps to all the lines that replaced it.
    """
    positions: dict[int, range] = {}
    line = 0
    shift = 0
    for change in [*since, LineChange(count, count, ())]:
        positions |= {
            number: range(number + shift, number + shift + 1)
            for number in range(line, change.start)
        }
        new_lines = range(change.start + shift, change.start + shift + len(change.lines))
        positions |= dict.fromkeys(range(change.start, change.end), new_lines)
        line = change.end
        shift += len(change.lines) - (change.end - change.start)
    return positions


def _by_lines(changes: Iterable[LineChange]) -> dict[int, LineChange]:
    """Map each replaced or removed line to its change."""
    return {line: change for change in changes for line in range(change.start, change.end)}


def _insertions(
    changes: Iterable[LineChange], replaced: Mapping[int, LineChange]
) -> dict[int, list[str]]:
    """Map positions to the lines added there.

    Lines added inside a region that the other side replaces go behind that region.
    """
    added: dict[int, list[str]] = {}
    for change in changes:
        if change.start == change.end:
            around = replaced.get(change.start)
            is_within = around is not None and around.start < change.start
            added.setdefault(around.end if around and is_within else change.start, []).extend(
                change.lines
            )
    return added


def _added_by_both(first: Sequence[str], second: Sequence[str]) -> Sequence[str]:
    """Combine the lines that two sides added at one position.

    Lines of `second` that are also in `first` are skipped. Short lines are not, since a text may
    repeat them on purpose.
    """
    if _contains_in_order(second, first):
        return second
    if _contains_in_order(first, second):
        return first
    head, _ = common_ends(first, second)
    while head and not first[head - 1].strip():
        head -= 1
    first_lines = set(first)
    return [
        *first,
        *(
            line
            for line in second[head:]
            if len(line) < _SHORTEST_UNIQUE or line not in first_lines
        ),
    ]


def _contains_in_order(lines: Sequence[str], some: Sequence[str]) -> bool:
    """Return whether `lines` contains the lines of `some`, in their order."""
    rest = iter(lines)
    return all(line in rest for line in some)
