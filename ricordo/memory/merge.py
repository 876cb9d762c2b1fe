"""Three-way merge of texts by lines: two edits of different places both stay, two of one place are a conflict."""

from collections.abc import Sequence
from difflib import SequenceMatcher

# Comparing takes time as the square of what differs, and a merge holds up every other writer.
_MOST_COMPARED = 250_000  # lines of one text times lines of the other


def merge_lines(base: str, ours: str, theirs: str) -> str | None:
    """The text with both changes in it, or None where they touch the same lines (or are too large to be compared).

    >>> merge_lines("a\\nb\\nc", "A\\nb\\nc", "a\\nb\\nC")
    'A\\nb\\nC'
    """
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    origin, mine, others = base.split("\n"), ours.split("\n"), theirs.split("\n")
    fixed = _kept_by_both(origin, mine, others)
    if fixed is None:
        return None
    merged: list[str] = []
    place = place_mine = place_others = 0
    # Stretches of the base that both texts keep are the fixed points; between two of them at most one side may differ.
    for start, start_mine, start_others, length in fixed:
        chunk = _choose(origin[place:start], mine[place_mine:start_mine], others[place_others:start_others])
        if chunk is None:
            return None
        merged += chunk
        merged += origin[start : start + length]
        place, place_mine, place_others = start + length, start_mine + length, start_others + length
    return "\n".join(merged)


def _choose(origin: list[str], mine: list[str], others: list[str]) -> list[str] | None:
    if mine in (origin, others):
        return others
    return mine if others == origin else None


def _kept_by_both(
    origin: Sequence[str], mine: Sequence[str], others: Sequence[str]
) -> list[tuple[int, int, int, int]] | None:
    (in_mine, is_all_of_mine), (in_others, is_all_of_others) = kept_lines(origin, mine), kept_lines(origin, others)
    if not (is_all_of_mine and is_all_of_others):
        return None
    stretches: list[tuple[int, int, int, int]] = []
    for line in range(len(origin)):
        if line not in in_mine or line not in in_others:
            continue
        here = (line, in_mine[line], in_others[line])
        if stretches:
            start, start_mine, start_others, length = stretches[-1]
            if here == (start + length, start_mine + length, start_others + length):
                stretches[-1] = (start, start_mine, start_others, length + 1)
                continue
        stretches.append((*here, 1))
    return [*stretches, (len(origin), len(mine), len(others), 0)]


def kept_lines(old: Sequence[str], new: Sequence[str]) -> tuple[dict[int, int], bool]:
    """Map the lines of the old text that stay to their numbers in the new one, and say whether all were compared.

    Where that would take too long, only what both begin and end with is compared.
    """
    head, tail = common_ends(old, new)
    kept = {line: line for line in range(head)}
    kept |= {len(old) - 1 - line: len(new) - 1 - line for line in range(tail)}
    middle, other = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(middle) * len(other) > _MOST_COMPARED:
        return kept, False
    for block in SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks():
        kept |= {head + block.a + offset: head + block.b + offset for offset in range(block.size)}
    return kept, True


def common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many items both begin with, and how many of the rest both end with."""
    shorter = min(len(old), len(new))
    head = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    rest = shorter - head
    tail = next((place for place in range(rest) if old[-1 - place] != new[-1 - place]), rest)
    return head, tail
