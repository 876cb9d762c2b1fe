"""Three-way merge by lines: what two writers did in different places both stays."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.memory.merge import merge_lines

# Few different lines, so that texts repeat themselves and matching is hard.
texts = st.lists(st.sampled_from(["", "a", "b", "c", "tea ☕"]), max_size=7).map("\n".join)


@given(texts, texts)
def test_an_unchanged_side_gives_way_to_the_other(base: str, changed: str) -> None:
    assert merge_lines(base, base, changed) == changed
    assert merge_lines(base, changed, base) == changed


@given(texts, texts)
def test_two_equal_changes_are_one(base: str, changed: str) -> None:
    assert merge_lines(base, changed, changed) == changed


@given(texts, texts, texts)
def test_it_does_not_matter_who_came_first(base: str, ours: str, theirs: str) -> None:
    assert merge_lines(base, ours, theirs) == merge_lines(base, theirs, ours)


@given(texts, texts, texts)
def test_a_merge_loses_and_invents_nothing(base: str, ours: str, theirs: str) -> None:
    merged = merge_lines(base, ours, theirs)
    if merged is None:
        return
    origin, mine, others, result = (Counter(text.split("\n")) for text in (base, ours, theirs, merged))
    for line in origin | mine | others | result:
        changes = (mine[line] - origin[line], others[line] - origin[line])
        # Both sides may have made the same change in the same place, which then counts once.
        possible = {origin[line] + sum(changes)} | {
            origin[line] + sum(changes) - shared for shared in range(min(0, *changes), max(0, *changes) + 1)
        }
        assert result[line] in possible


edits = st.sampled_from(["keep", "change", "delete", "insert"])


def edited(lines: list[str], places: dict[int, str], who: str) -> list[str]:
    result = []
    for number, line in enumerate(lines):
        match places.get(number, "keep"):
            case "keep":
                result.append(line)
            case "change":
                result.append(f"{line}, says {who}")
            case "insert":
                result += [line, f"after {line}, {who}"]
    return result


@given(st.lists(st.tuples(st.sampled_from(["ours", "theirs"]), edits), min_size=1, max_size=8))
def test_edits_with_an_untouched_line_between_them_both_survive(plan: list[tuple[str, str]]) -> None:
    lines = [f"line {number}" for number in range(2 * len(plan) + 1)]
    ours = {2 * place + 1: edit for place, (who, edit) in enumerate(plan) if who == "ours"}
    theirs = {2 * place + 1: edit for place, (who, edit) in enumerate(plan) if who == "theirs"}
    merged = merge_lines(
        "\n".join(lines), "\n".join(edited(lines, ours, "me")), "\n".join(edited(lines, theirs, "you"))
    )
    mine_first = edited(lines, ours, "me")
    expected = []
    for number, line in enumerate(lines):
        expected += edited([line], {0: (ours | theirs).get(number, "keep")}, "me" if number in ours else "you")
    assert set(mine_first) - set(lines) <= set(expected)
    assert merged == "\n".join(expected)


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ("a\nb\nc", "a\nB\nc", "a\nβ\nc"),  # one line, two texts
        ("a\nb\nc", "a\nc", "a\nB\nc"),  # deleted here, changed there
        ("a\nb", "A\nb", "a\nB"),  # neighbours, with nothing that both kept between them
        ("a\nz", "a\nx\nz", "a\ny\nz"),  # two texts for one gap
        ("a", "a\nx", "a\ny"),  # both added at the end
        ("", "x", "y"),  # both began an empty text
    ],
)
def test_two_changes_of_one_place_are_a_conflict(base: str, ours: str, theirs: str) -> None:
    assert merge_lines(base, ours, theirs) is None


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        ("a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"),
        ("a\nb\nc", "x\na\nb\nc", "a\nb\nc\ny", "x\na\nb\nc\ny"),  # one added before, one after
        ("a\nb\nc\nd", "b\nc\nd", "a\nb\nc", "b\nc"),  # both deleted
        ("a\nb\nc\nd\ne", "A\nb\nX\nd\ne", "a\nb\nX\nd\nE", "A\nb\nX\nd\nE"),  # the same change in the middle
        ("\ttab\nb\nc ", "\ttab!\nb\nc ", "\ttab\nb\nc  ", "\ttab!\nb\nc  "),  # white space is text
        ("a\r\nb\r\nc", "A\r\nb\r\nc", "a\r\nb\r\nC", "A\r\nb\r\nC"),
    ],
)
def test_changes_of_different_places_both_stay(base: str, ours: str, theirs: str, expected: str) -> None:
    assert merge_lines(base, ours, theirs) == expected


def test_a_block_of_blank_lines_is_a_conflict_and_not_a_minute_of_work() -> None:
    """Comparing repeated lines takes time as the square of them, and a merge holds up every other writer."""
    base = "\n" * 20_000
    began = time.process_time()
    assert merge_lines(base, "mine" + "\n" * 10_000 + "mine", "\n" * 9_000 + "theirs" + "\n" * 9_000) is None
    assert time.process_time() - began < 1


def test_edits_at_both_ends_of_a_long_block_are_merged() -> None:
    lines = [f"line {number}" for number in range(5_000)]
    base = "\n".join(lines)
    ours, theirs = "\n".join(["mine", *lines[1:]]), "\n".join([*lines[:-1], "theirs"])
    assert merge_lines(base, ours, theirs) == "\n".join(["mine", *lines[1:-1], "theirs"])
