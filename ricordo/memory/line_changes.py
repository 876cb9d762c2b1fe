"""What two changes of one text have to do with each other, line by line: whether they collide, and both of them together.

A change here is one that may have waited long, so more goes together than in a merge of texts (`memory.merge`): neighbouring
lines, and additions at one place.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ricordo.domain.block import Block
from ricordo.domain.redaction import redact
from ricordo.memory.merge import common_ends, kept_lines, same_lines

# A shorter line may well stand twice: an empty one, an item of a list.
_LEAST_UNIQUE = 24
# As much of a line is shown in a summary, in characters.
_SHOWN = 72
# As many pairs of lines that changed in both texts are looked at; it takes about a second.
_MOST_COMPARED = 1_000_000


@dataclass(frozen=True, slots=True)
class LineChange:
    """What stands in place of a text's lines from `start` to `end` (not included); an insertion where the two are equal."""

    start: int
    end: int
    lines: tuple[str, ...]


def same_text(one: str, other: str) -> bool:
    """Whether two texts say the same: a final newline makes no difference, nor do line ends and forms of accents."""
    one, other = one.removesuffix("\n"), other.removesuffix("\n")
    if one == other:
        return True
    head, tail = ends_alike(one, other)  # most of two long texts is alike, and need not be split
    return same_lines(*(text[head : len(text) - tail].split("\n") for text in (one, other)))


def change_summary(label: str, old: str, new: str, otherwise: str) -> str:
    """A short message made of the first line that was added, or removed where none was; `otherwise` where no line tells of it."""
    before, after = _lines_within(old), _lines_within(new)
    head, tail = common_ends(before, after)
    for sign, lines in (("+", after), ("-", before)):
        changed = lines[head : len(lines) - tail]
        if not (line := next((line.strip() for line in changed if line.strip()), "")):
            continue
        # Before it is cut, since half a secret is not known for one, and with the lines around, which may tell that it is one.
        told, around = (
            redact(line).text,
            redact("\n".join([*lines[max(0, head - 2) : head], *changed])).text,
        )
        if told not in around:
            break
        return f'{label}: {sign} "{told if len(told) <= _SHOWN else told[: _SHOWN - 1].rstrip() + "…"}"'
    return otherwise


def edit_summary(before: Block | None, after: Block | None) -> str:
    """A short message for a change of a block: from None where it is made, to None where it goes."""
    if after is None or before is None:
        block = before or after
        label = block.shown_label if block else ""
        return (
            f"Delete {label}"
            if after is None
            else change_summary(label, "", after.value, f"Make {label}")
        )
    old_label, label = before.shown_label, after.shown_label
    if before.value != after.value:
        return change_summary(label, before.value, after.value, f"Edit {label}")
    return f"Rename {old_label} to {label}" if label != old_label else f"Describe {label}"


def line_changes(old: str, new: str) -> list[LineChange] | None:
    """What turns the old text into the new one, from top to bottom; None where they are too large to be compared."""
    before, after = _lines_within(old), _lines_within(new)
    kept, is_whole = kept_lines(before, after)
    changes: list[LineChange] = []
    place = place_new = 0
    for line, line_new in [*kept.items(), (len(before), len(after))]:
        if (place, place_new) != (line, line_new):
            changes.append(LineChange(place, line, tuple(after[place_new:line_new])))
        place, place_new = line + 1, line_new + 1
    return changes if is_whole else None


def merge_changes(base: str, first: str, second: str) -> str | None:
    """The text with both changes, or None where they replace or remove the same lines (or are too large to be compared).

    Unlike in `merge_lines`, neighbouring lines may change on both sides, and what both add at one place stays: that of `first`
    above, and once what they add alike.

    >>> merge_changes("a", "a\\nb", "a\\nc\\n")
    'a\\nb\\nc\\n'
    """
    if same_text(base, first) or same_text(base, second):
        return second if same_text(base, first) else first
    changes, changes_too = line_changes(base, first), line_changes(base, second)
    if changes is None or changes_too is None:
        return None
    replaced, replaced_too = _by_lines(changes), _by_lines(changes_too)
    # Each pair once: a change of all lines would else be compared for each of them.
    met = {
        (id(one), id(replaced_too[line])): (one, replaced_too[line])
        for line, one in replaced.items()
        if line in replaced_too
    }
    if any(
        (one.start, one.end) != (other.start, other.end) or not same_lines(one.lines, other.lines)
        for one, other in met.values()
    ):
        return None
    replaced |= replaced_too
    added, added_too = (_insertions(each, replaced) for each in (changes, changes_too))
    lines, merged, place = _lines_within(base), list[str](), 0
    while place <= len(lines):
        merged += _added_by_both(added.get(place, []), added_too.get(place, []))
        merged += replaced[place].lines if place in replaced else lines[place : place + 1]
        place = replaced[place].end if place in replaced else place + 1
    ends, ends_first, ends_second = (text.endswith("\n") for text in (base, first, second))
    is_ended = ends_second if ends_first == ends else ends_first
    return "\n".join(merged) + ("\n" if merged and is_ended else "")


def _lines_within(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def touch_same_lines(base: str, first: str, base_since: str, second: str) -> bool:
    """Whether both replace or remove one line differently, or cannot be told; `base_since` is the base of the second."""
    changes, since, changes_too = (
        line_changes(base, first),
        line_changes(base, base_since),
        line_changes(base_since, second),
    )
    if changes is None or since is None or changes_too is None:
        return True
    replaced = _by_lines(changes_too)
    ordered = sorted(replaced)
    places = _places_since(since, len(_lines_within(base)))
    room = _MOST_COMPARED
    alike: dict[tuple[int, int], bool] = {}
    for line, one in _by_lines(changes).items():
        start, end = (
            bisect_left(ordered, place) for place in (places[line].start, places[line].stop)
        )
        room -= end - start
        if room < 0:
            return True
        for place in ordered[start:end]:
            other = replaced[place]
            # What both do alike, wherever the lines stand by now, collides with nothing.
            if (other.start - place, other.end - place) != (one.start - line, one.end - line):
                return True
            if (pair := (id(one), id(other))) not in alike:
                alike[pair] = same_lines(one.lines, other.lines)
            if not alike[pair]:
                return True
    return False


def where_they_meet(
    base: str, first: str, base_since: str, second: str
) -> tuple[str, str, str, str] | None:
    """The lines where `first` and `second`, each made of its base, may meet, by the ends of whole texts; None: they are apart."""
    texts = tuple(
        text if not text or text.endswith("\n") else f"{text}\n"
        for text in (base, first, base_since, second)
    )
    base, first, base_since, second = texts
    (head, tail), (head_too, tail_too) = ends_alike(base, first), ends_alike(base_since, second)
    ends = [(head, tail), (head_too, tail_too)]
    if base == base_since:
        if len(base) - tail < head_too or len(base) - tail_too < head:
            return None
    else:
        above, below = ends_alike(base, base_since)
        are_above = (len(base) - tail <= above, len(base_since) - tail_too <= above)
        are_below = (len(base) - head <= below, len(base_since) - head_too <= below)
        # What changed since is beside both, and so no matter; or between them.
        if all(are_above):
            parts = (
                text[: above + len(text) - len(its)]
                for text, its in ((first, base), (second, base_since))
            )
            return where_they_meet(base[:above], next(parts), base[:above], next(parts))
        if all(are_below):
            start, start_since = len(base) - below, len(base_since) - below
            return where_they_meet(base[start:], first[start:], base[start:], second[start_since:])
        if (are_above[0] and are_below[1]) or (are_below[0] and are_above[1]):
            return None
        ends.append((above, below))
    start, end = (min(sizes) for sizes in zip(*ends, strict=True))
    base, first, base_since, second = (text[start : len(text) - end] for text in texts)
    return base, first, base_since, second


def effort(old: str, new: str) -> int:
    """What a comparison of two texts takes: the lines between their ends that are alike, and the pairs of equal ones of these."""
    head, tail = ends_alike(old, new)
    counts, counts_new = (Counter(text[head : len(text) - tail].split("\n")) for text in (old, new))
    return (
        counts.total()
        + counts_new.total()
        + sum(count * counts_new[line] for line, count in counts.items())
    )


def ends_alike(one: str, other: str) -> tuple[int, int]:
    """How many characters of whole lines both texts begin with, and how many of the rest both end with."""
    head = _alike(min(len(one), len(other)), lambda size: one.startswith(other[:size]))
    head = one.rfind("\n", 0, head) + 1
    shorter = min(len(one), len(other)) - head
    tail = _alike(shorter, lambda size: one.endswith(other[len(other) - size :]))
    starts = (len(one) - tail, len(other) - tail)
    if any(
        start > head and text[start - 1] != "\n"
        for text, start in zip((one, other), starts, strict=True)
    ):
        line_end = one.find("\n", starts[0])
        tail = len(one) - line_end - 1 if line_end >= 0 else 0
    return head, tail


def _alike(most: int, is_alike: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is alike, by halves: to compare pieces is quicker than to compare characters."""
    return bisect_left(range(1, most + 1), True, key=lambda size: not is_alike(size))


def removes_lines(old: str, new: str) -> bool:
    """Whether the new text replaces or removes lines, and does not only add some; also where that cannot be told."""
    changes = line_changes(old, new)
    return changes is None or any(one.start < one.end for one in changes)


def _places_since(since: Iterable[LineChange], count: int) -> dict[int, range]:
    """Where each line of a text stands since these changes; one that was replaced, in all that replaced it."""
    places: dict[int, range] = {}
    line = moved = 0
    for one in [*since, LineChange(count, count, ())]:
        places |= {kept: range(kept + moved, kept + moved + 1) for kept in range(line, one.start)}
        new = range(one.start + moved, one.start + moved + len(one.lines))
        places |= dict.fromkeys(range(one.start, one.end), new)
        line, moved = one.end, moved + len(one.lines) - (one.end - one.start)
    return places


def _by_lines(changes: Iterable[LineChange]) -> dict[int, LineChange]:
    """The changes by each line that they replace or remove."""
    return {line: one for one in changes for line in range(one.start, one.end)}


def _insertions(
    changes: Iterable[LineChange], replaced: Mapping[int, LineChange]
) -> dict[int, list[str]]:
    """The added lines by their places; those within lines that the other side replaces stand behind these."""
    added: dict[int, list[str]] = {}
    for one in changes:
        if one.start == one.end:
            around = replaced.get(one.start)
            is_within = around is not None and around.start < one.start
            added.setdefault(around.end if around and is_within else one.start, []).extend(
                one.lines
            )
    return added


def _added_by_both(first: Sequence[str], second: Sequence[str]) -> Sequence[str]:
    """What two sides added at one place: of `second` only what `first` does not have, as far as that is told apart."""
    if _holds(second, first):
        return second
    if _holds(first, second):
        return first
    head, _ = common_ends(first, second)
    while head and not first[head - 1].strip():
        head -= 1
    there = set(first)
    return [
        *first,
        *(line for line in second[head:] if len(line) < _LEAST_UNIQUE or line not in there),
    ]


def _holds(lines: Sequence[str], some: Sequence[str]) -> bool:
    """Whether these lines hold those, in their order."""
    rest = iter(lines)
    return all(line in rest for line in some)
