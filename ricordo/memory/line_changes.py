"""Comparison of two changes of one text, line by line: conflicts and merging.

One of the changes may have waited long, so more is combined than in a merge of texts
(`memory.merge`): neighbouring lines, and additions at the same position.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ricordo.domain.block import Block
from ricordo.domain.redaction import redact
from ricordo.memory.merge import common_ends, same_lines, unchanged_lines

# A shorter line may legitimately occur twice: an empty line, an item of a list.
_SHORTEST_UNIQUE = 24
# Longest excerpt of a line in a summary, in characters.
_EXCERPT_LENGTH = 72
# Limit of compared pairs of lines that changed in both texts; so many take about a second.
_PAIR_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class LineChange:
    """New lines for a text's lines from `start` up to, not including, `end`.

    It is an insertion where `start` equals `end`.
    """

    start: int
    end: int
    lines: tuple[str, ...]


def same_text(first: str, second: str) -> bool:
    """Return whether two texts are the same for people.

    A final newline, line ends and the stored form of accents make no difference.
    """
    first = first.removesuffix("\n")
    second = second.removesuffix("\n")
    if first == second:
        return True
    # Most of two long texts is alike and need not be split.
    head, tail = ends_alike(first, second)
    return same_lines(*(text[head : len(text) - tail].split("\n") for text in (first, second)))


def change_summary(label: str, old: str, new: str, otherwise: str) -> str:
    """Return a short message with the first added line, else the first removed one.

    `otherwise` is the message where no line can be shown.
    """
    before = _lines_within(old)
    after = _lines_within(new)
    head, tail = common_ends(before, after)
    for sign, lines in (("+", after), ("-", before)):
        changed = lines[head : len(lines) - tail]
        if not (line := next((line.strip() for line in changed if line.strip()), "")):
            continue
        # Redact before cutting, since half a secret is not recognized, and compare with the
        # redacted neighbourhood, since the lines around may show that this one is a secret.
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

    `before` is None where the block is created, `after` is None where it is deleted.
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
    """Return the changes that turn the old text into the new one, in order.

    None where the texts are too large to be compared.
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

    None where they replace or remove the same lines differently, or are too large to be compared.

    Unlike in `merge_lines`, neighbouring lines may change on both sides. Additions of both sides at
    one position stay, those of `first` above; equal additions stay once.

    >>> merge_changes("a", "a\nb", "a\nc\n")
    'a\nb\nc\n'
    """
    if same_text(base, first):
        return second
    if same_text(base, second):
        return first
    first_changes = line_changes(base, first)
    second_changes = line_changes(base, second)
    if first_changes is None or second_changes is None:
        return None
    replaced_by_first = _by_lines(first_changes)
    replaced_by_second = _by_lines(second_changes)
    # Compare each pair once: a change of all lines would else be compared for each line.
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


def _lines_within(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        return lines
    return lines[:-1]


def touch_same_lines(base: str, first: str, base_since: str, second: str) -> bool:
    """Return whether both changes replace or remove one line differently.

    True also where that cannot be computed. `base_since` is the base of `second`.
    """
    first_changes = line_changes(base, first)
    since = line_changes(base, base_since)
    second_changes = line_changes(base_since, second)
    if first_changes is None or since is None or second_changes is None:
        return True
    replaced_by_second = _by_lines(second_changes)
    replaced_lines = sorted(replaced_by_second)
    positions = _positions_after(since, len(_lines_within(base)))
    pairs_left = _PAIR_LIMIT
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


def _with_last_newline(text: str) -> str:
    if not text or text.endswith("\n"):
        return text
    return f"{text}\n"


def overlapping_parts(
    base: str, first: str, base_since: str, second: str
) -> tuple[str, str, str, str] | None:
    """Return the parts of the texts where both changes may overlap.

    `first` was made from `base`, `second` from `base_since`. Only equal ends of the whole texts are
    cut off. None: the changes lie apart.
    """
    texts = tuple(_with_last_newline(text) for text in (base, first, base_since, second))
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
        # Later changes outside both edits do not matter; those between them do.
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

    It counts the lines between their equal ends, and the pairs of equal lines among these.
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

    They are counted in characters of whole lines, and do not overlap.
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
    """Return the largest number up to `most` that is alike, by binary search.

    Comparing slices is quicker than comparing characters.
    """
    return bisect_left(range(1, limit + 1), True, key=lambda size: not is_alike(size))


def removes_lines(old: str, new: str) -> bool:
    """Return whether the new text replaces or removes lines.

    True also where that cannot be computed.
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

    Of `second` only lines that `first` lacks are used, as far as lines can be told apart.
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
    """Return whether `lines` contains `some` lines in their order."""
    rest = iter(lines)
    return all(line in rest for line in some)
