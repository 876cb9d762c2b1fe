"""Changes of one text: those that can be combined, those that collide, and equal ones."""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ricordo.memory.text import (
    change_summary,
    edit_summary,
    line_changes,
    merge_changes,
    overlapping_parts,
    removes_lines,
    same_text,
    touch_same_lines,
)
from tests.seams import make
from tests.seams.growth import FACTOR, require_linear

texts = st.lists(st.sampled_from(["", "a", "b", "c", "tea ☕"]), max_size=7).map("\n".join)


def test_only_changes_of_the_same_line_collide() -> None:
    for base, first, second, expected in (
        ("a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"),
        ("a\nb", "A\nb", "a\nB", "A\nB"),  # neighbouring lines
        ("a\nz", "a\nx\nz", "a\ny\nz", "a\nx\ny\nz"),  # two texts for one gap
        ("a", "a\nx", "a\ny", "a\nx\ny"),  # both added at the end
        ("", "x", "y", "x\ny"),  # both were added to an empty text
        ("a\nb\nc", "X\nc", "a\nn\nb\nc", "X\nn\nc"),  # added between lines that are replaced
        ("a", "A", "a\nn", "A\nn"),  # added below a line that is replaced
        ("a", "a\nx", "a\nx\ny", "a\nx\ny"),  # the second repeats the first
        ("a", "a\nx\ny", "a\nx", "a\nx\ny"),
        ("a", "a\nx\ny", "a\nx\nz", "a\nx\ny\nz"),  # both begin with the same line
        ("a", "a\n\nx", "a\n\ny", "a\n\nx\n\ny"),
        ("a\nb", "a", "X", None),
        ("a\nb\nc", "A\nb\nc", "A\nb\nC", "A\nb\nC"),
        ("a\n", "a\nx", "a\ny\n", "a\nx\ny"),  # a final newline is not a line
        ("a", "a\n", "a\nx", "a\nx"),
        ("a\nb\nc", "a\nB\nc", "a\nβ\nc", None),  # one line, two texts
        ("a\nb\nc", "a\nc", "a\nB\nc", None),  # deleted here, changed there
    ):
        assert merge_changes(base, first, second) == expected, (base, first, second)


@given(texts, texts, texts)
def test_collisions_do_not_depend_on_the_order_of_the_changes(
    base: str, first: str, second: str
) -> None:
    assert touch_same_lines(base, first, base, second) == touch_same_lines(
        base, second, base, first
    )
    merged, other = merge_changes(base, first, second), merge_changes(base, second, first)
    assert (merged is None) == (other is None)
    assert touch_same_lines(base, first, base, second) or merged is not None
    if not removes_lines(base, first):
        assert not touch_same_lines(base, first, base, second)
        assert merged is not None
        # Empty lines are ignored: a final newline adds one to these lists, but is no change for a
        # merge.
        assert {line for line in first.split("\n") if line not in base.split("\n")} <= {
            "",
            *merged.split("\n"),
        }
    assert same_text(merge_changes(base, first, base) or "", first)
    assert same_text(merge_changes(base, base, first) or "", first)


@given(texts, texts)
def test_line_changes_turn_the_old_text_into_the_new_one(old: str, new: str) -> None:
    lines = f"{old}\n".split("\n")[:-1]
    for change in reversed(line_changes(f"{old}\n", f"{new}\n") or []):
        lines[change.start : change.end] = change.lines
    assert "\n".join(lines) == new


def test_lines_are_followed_through_the_versions_in_between() -> None:
    for base, first, since, second, touches in (
        ("a\nb", "a\nB", "n\na\nb", "n\na\nX", True),
        ("a\nb", "a\nB", "n\na\nb", "n\nX\nb", False),
        ("a\nb", "a\nB", "a\no", "a\nX", True),  # the owner replaced the line
        ("a\nb", "a\nB", "a\no", "X\no", False),
        ("a\nb", "a\nB", "n\na\nb", "n\na\nB", False),  # the same change
        ("a\nb", "a\nB", "a", "X", False),  # the line was deleted
    ):
        assert touch_same_lines(base, first, since, second) == touches, (base, first, since, second)


def test_texts_that_differ_only_in_line_ends_or_unicode_form_are_equal() -> None:
    text = "Café\nmiddle\nEnd\n"
    for other in (
        text.replace("\n", "\r\n"),
        unicodedata.normalize("NFD", text),
        f"\ufeff{text.removesuffix(chr(10))}",
    ):
        assert same_text(text, other), repr(other)
        assert line_changes(text, other) == []
        assert not removes_lines(text, other)
        changed = text.replace("middle", "new")
        assert merge_changes(text, changed, other.replace("middle", "new")) is not None
        assert not touch_same_lines(text, changed, text, other)
        assert not touch_same_lines(text, changed, text, other.replace("middle", "new"))
        assert touch_same_lines(text, changed, text, other.replace("middle", "old"))
    assert not same_text(text, text.replace("é", "e"))
    assert not same_text("a\r\rb", "a\nb")


def long_changes(size: int) -> dict[str, tuple[Callable[[], object], object]]:
    """Return changes of texts of some thousand lines, by name, with their outcome.

    The outcome is None if it does not matter.
    """

    def lines(sign: str, end: str = "") -> str:
        return "".join(f"{sign}{number:05}\n" for number in range(size)) + end

    long = [f"{number:030}\n" for number in range(size // 2)]
    base, since = lines("a", "kept\n"), lines("b", "kept\n")
    all_new, no_end = lines("c", "kept\n"), lines("c")
    more = since + "more\n"
    one, other = "".join(long), "".join([*long[1:], "x\n"])
    short = "".join(f"{number % 7}\n" for number in range(size * 3))
    return {
        "all new since": (lambda: touch_same_lines(base, all_new, since, more), False),
        "all new, one line again": (lambda: touch_same_lines(base, no_end, since, more), False),
        "the same change": (lambda: touch_same_lines(base, since, base, more), False),
        "the same change merged": (lambda: merge_changes(base, since, more), more),
        "two texts added": (lambda: merge_changes("", one, other), None),
        "short lines": (
            lambda: touch_same_lines(short, short[::-1], short[2:], short + "8\n"),
            None,
        ),
    }


def test_long_changes_are_combined_in_linear_time() -> None:
    changes = {size: long_changes(size) for size in (800, 800 * FACTOR)}
    for name, (work, expected) in changes[800 * FACTOR].items():
        assert expected in (None, work()), name
        require_linear(lambda size, name=name: changes[size][name][0](), 800, name)


def test_a_change_summary_shows_the_first_changed_line_short_and_without_secrets() -> None:
    secret = "sk-" + "a1B2c3D4" * 6
    for old, new, told in (
        ("Ada", "Ada\n\nLives in Turin.\nReads.", 'human: + "Lives in Turin."'),
        ("Ada\ntea", "Ada\n  rum", 'human: + "rum"'),
        ("Ada\ntea", "Ada", 'human: - "tea"'),
        ("Ada", "", 'human: - "Ada"'),
        ("Ada", "Ada\n\n", "Edit human"),
        ("Ada", "Ada\n", "Edit human"),
        ("", "x" * 200, f'human: + "{"x" * 71}…"'),
        ("", f"{'Key: ':>40}{secret}", 'human: + "Key: [secret removed: api key]"'),
        ("Her password:", "Her password:\nhunter2xyz77", "Edit human"),
        (
            "Ada",
            "Ada\n-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----",
            'human: + "[secret removed: private key]"',
        ),
        ("", f"{'word ' * 13}{secret}", f'human: + "{"word " * 13}[secre…"'),
    ):
        assert change_summary("human", old, new, "Edit human") == told, (old, new)


def test_an_edit_summary_says_what_happened_to_a_block() -> None:
    block = make.block("human", "Ada")
    for before, after, told in (
        (None, replace(block, value="Ada\nTea"), 'human: + "Ada"'),
        (None, replace(block, value=""), "Make human"),
        (block, None, "Delete human"),
        (block, replace(block, label="you"), "Rename human to you"),
        (block, replace(block, label="you", value="Ada\nTea"), 'you: + "Tea"'),
        (block, replace(block, description="Who"), "Describe human"),
        (replace(block, seen_as="me"), None, "Delete me"),
    ):
        assert edit_summary(before, after) == told


@given(texts, texts, texts, texts)
def test_comparing_only_the_overlapping_parts_gives_the_same_answer(
    base: str, first: str, since: str, second: str
) -> None:
    parts = overlapping_parts(base, first, since, second)
    if parts is None:
        assert not touch_same_lines(base, first, since, second)
        assert (
            merge_changes(since, base, second) is None
            or merge_changes(base, first, since) is not None
        )
    else:
        assert touch_same_lines(*parts) == touch_same_lines(base, first, since, second)


def test_only_the_lines_around_two_changes_overlap_also_after_other_changes() -> None:
    lines = [f"line {number}" for number in range(100)]

    def text(*changed: tuple[int, str]) -> str:
        return "\n".join(dict(changed).get(number, line) for number, line in enumerate(lines))

    def meet(first: int, second: int, since: int | None = None) -> tuple[str, str, str, str] | None:
        now = () if since is None else ((since, "S"),)
        return overlapping_parts(text(), text((first, "A")), text(*now), text(*now, (second, "B")))

    assert meet(3, 9) is None
    assert meet(3, 3) == ("line 3\n", "A\n", "line 3\n", "B\n")
    assert meet(99, 98) == (
        "line 98\nline 99\n",
        "line 98\nA\n",
        "line 98\nline 99\n",
        "B\nline 99\n",
    )
    for since in (1, 9):
        assert meet(5, 5, since) == ("line 5\n", "A\n", "line 5\n", "B\n")
        assert meet(5, 7, since) is None
    assert meet(5, 9, 7) is None
    assert meet(5, 7, 7) == (
        "line 5\nline 6\nline 7\n",
        "A\nline 6\nline 7\n",
        "line 5\nline 6\nS\n",
        "line 5\nline 6\nB\n",
    )
