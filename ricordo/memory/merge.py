"""Three-way merge of texts by lines: two edits of different places both stay, two of one place are a conflict."""

from collections.abc import Sequence
from difflib import SequenceMatcher

# Comparing takes time as the square of what differs, and a merge holds up every other writer.
_MOST_COMPARED = 250_000  # lines of the origin times lines of the change


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
    in_mine, in_others = _kept(origin, mine), _kept(origin, others)
    if in_mine is None or in_others is None:
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


def _kept(origin: Sequence[str], changed: Sequence[str]) -> dict[int, int] | None:
    """Which lines of the origin stand where in the changed text; None where to find that out would take too long."""
    shorter = min(len(origin), len(changed))
    head = next((line for line in range(shorter) if origin[line] != changed[line]), shorter)
    rest = shorter - head
    tail = next((line for line in range(rest) if origin[-1 - line] != changed[-1 - line]), rest)
    kept = {line: line for line in range(head)}
    kept |= {len(origin) - 1 - line: len(changed) - 1 - line for line in range(tail)}
    middle, other = origin[head : len(origin) - tail], changed[head : len(changed) - tail]
    if len(middle) * len(other) > _MOST_COMPARED:
        return None
    matcher = SequenceMatcher(None, middle, other, autojunk=False)
    for block in matcher.get_matching_blocks():
        kept |= {head + block.a + offset: head + block.b + offset for offset in range(block.size)}
    return kept
