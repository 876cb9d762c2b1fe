"""Comparison of texts.

A merge loses nothing and agrees with git, a diff reproduces both texts, and all of it is fast.
"""

import random
import re
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.memory import text as merging
from ricordo.memory.text import DiffPiece, by_words, merge_lines, unified
from tests.seams.growth import FACTOR, require_linear

# Few different lines, so that texts repeat themselves and matching is hard.
bases = st.lists(st.sampled_from(["", "a", "b", "c", "tea ☕"]), max_size=7).map("\n".join)
PARTS = "tea|Tea| |  |\n|\r\n|\t|.|-|é|茶|の|🫖|a_b|\u2028|1|\\|+|@@".split("|")
texts = st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=40).map("".join))


@given(bases, bases, bases)
def test_a_merge_loses_and_invents_no_line_in_either_order(
    base: str, ours: str, theirs: str
) -> None:
    assert (
        merge_lines(base, base, ours)
        == merge_lines(base, ours, base)
        == merge_lines(base, ours, ours)
        == ours
    )
    merged = merge_lines(base, ours, theirs)
    assert merged == merge_lines(base, theirs, ours)
    if merged is None:
        return
    origin, mine, others, result = (
        Counter(text.split("\n")) for text in (base, ours, theirs, merged)
    )
    for line in origin | mine | others | result:
        changes = (mine[line] - origin[line], others[line] - origin[line])
        # Both sides may have made the same change at the same position, which then counts once.
        possible = {origin[line] + sum(changes)} | {
            origin[line] + sum(changes) - shared
            for shared in range(min(0, *changes), max(0, *changes) + 1)
        }
        assert result[line] in possible


def test_changes_at_one_place_conflict_and_changes_at_different_places_are_kept() -> None:
    for base, ours, theirs, expected in (
        ("a\nb\nc", "a\nB\nc", "a\nβ\nc", None),  # one line, two texts
        ("a\nb\nc", "a\nc", "a\nB\nc", None),  # deleted here, changed there
        ("a\nb", "A\nb", "a\nB", None),  # neighbouring lines, with no unchanged line between them
        ("a\nz", "a\nx\nz", "a\ny\nz", None),  # two texts for one gap
        ("a", "a\nx", "a\ny", None),  # both added at the end
        ("", "x", "y", None),  # both were added to an empty text
        ("a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"),
        ("a\nb\nc", "x\na\nb\nc", "a\nb\nc\ny", "x\na\nb\nc\ny"),  # one added before, one after
        ("a\nb\nc\nd", "b\nc\nd", "a\nb\nc", "b\nc"),  # both deleted
        (
            "a\nb\nc\nd\ne",
            "A\nb\nX\nd\ne",
            "a\nb\nX\nd\nE",
            "A\nb\nX\nd\nE",
        ),  # the same change in the middle
        ("\ttab\nb\nc ", "\ttab!\nb\nc ", "\ttab\nb\nc  ", "\ttab!\nb\nc  "),  # white space is text
        ("a\r\nb\r\nc", "A\r\nb\r\nc", "a\r\nb\r\nC", "A\r\nb\r\nC"),
    ):
        assert merge_lines(base, ours, theirs) == expected, (base, ours, theirs)


def test_long_texts_are_merged_or_refused_in_linear_time() -> None:
    """Comparing repeated lines takes quadratic time, and a merge blocks other writers."""

    def refused(size: int) -> None:
        blank = "\n" * size
        assert (
            merge_lines(blank * 10, f"mine{blank * 5}mine", f"{blank * 4}theirs{blank * 4}") is None
        )

    def merged(size: int) -> None:
        lines = [f"line {number}" for number in range(size)]
        ours, theirs = "\n".join(["mine", *lines[1:]]), "\n".join([*lines[:-1], "theirs"])
        assert merge_lines("\n".join(lines), ours, theirs) == "\n".join(
            ["mine", *lines[1:-1], "theirs"]
        )

    require_linear(refused, 250)
    require_linear(merged, 625)


def test_line_ends_byte_order_marks_and_unicode_forms_are_no_changes() -> None:
    base = "Café\nmiddle\nkept\nEnd"
    theirs = base.replace("End", "The end")
    for ours in (
        base.replace("\n", "\r\n"),
        f"\ufeff{base}",
        unicodedata.normalize("NFD", base),
        unicodedata.normalize("NFD", f"\ufeff{base}").replace("\n", "\r\n") + "\r",
    ):
        assert merge_lines(base, ours, theirs) == merge_lines(base, theirs, ours) == theirs, repr(
            ours
        )
        both = merge_lines(base, ours.replace("middle", "new"), theirs) or ""
        assert both.replace("\r", "") == theirs.replace("middle", "new"), repr(ours)
    assert merge_lines(base, theirs, theirs.replace("\n", "\r\n") + "\r") == theirs + "\r"
    assert merge_lines(base, base.replace("Café", "Cafe"), base.replace("Café", "Tea")) is None


def test_a_merge_conflicts_where_git_merge_file_does(tmp_path: Path) -> None:
    """If lines repeat, either of two equal lines may count as kept.

    Then one program may see a conflict and the other none.
    """
    for seed, repeats in ((3, False), (9, True)):
        chance = random.Random(seed)  # noqa: S311 - repeatable
        outcomes = set()
        for _ in range(60):
            count = chance.randrange(1, 14)
            base = [
                chance.choice(("", "a", "b", "- tea")) if repeats else f"line {number}"
                for number in range(count)
            ]
            ours, theirs = (_edited(base, chance, who) for who in ("ours", "theirs"))
            merged = merge_lines(
                *("".join(f"{line}\n" for line in lines) for lines in (base, ours, theirs))
            )
            expected = merge_file(tmp_path, base, ours, theirs)
            assert merged == expected or (repeats and None in (merged, expected)), (
                base,
                ours,
                theirs,
            )
            outcomes.add(merged is None)
        assert outcomes == {True, False}


def merge_file(
    folder: Path, base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> str | None:
    """Merge three texts with stock git; return None for a conflict."""
    names = [str(folder / name) for name in ("ours", "base", "theirs")]
    for name, lines in zip(names, (ours, base, theirs), strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    done = subprocess.run(
        ["git", "merge-file", "-p", "-q", *names], capture_output=True, text=True, check=False
    )
    assert done.returncode >= 0
    return done.stdout if done.returncode == 0 else None


def _edited(base: Sequence[str], chance: random.Random, who: str) -> list[str]:
    lines = list(base)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(lines) + 1)
        match chance.randrange(4):
            case 0:
                lines.insert(place, f"{chance.choice((who, 'both'))} {chance.randrange(3)}")
            case 1:
                del lines[place : place + chance.randrange(1, 3)]
            case _:
                lines[place : place + 1] = [f"{chance.choice((who, 'both'))} {chance.randrange(3)}"]
    return lines


def joined(pieces: list[DiffPiece], *kinds: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind in kinds)


def patched(old: str, diff: str) -> str:
    """Apply the diff to the old text, strictly.

    Every line that the diff names must be at its position.
    """
    before = [line for line in re.split(r"(?<=\n)", old) if line]
    after: list[str] = []
    place = 0
    lines = diff.split("\n")[2:-1]
    for number, line in enumerate(lines):
        if hunk := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            start = int(hunk[1]) - (hunk[2] != "0")
            after += before[place:start]
            place = start
            assert int(hunk[3]) - (hunk[4] != "0") == len(after)
        elif line.startswith("\\ "):
            continue
        else:
            is_last = number + 1 < len(lines) and lines[number + 1].startswith("\\ ")
            text = line[1:] + ("" if is_last else "\n")
            if line[0] in " -":
                assert before[place] == text
                place += 1
            if line[0] in " +":
                after.append(text)
    return "".join(after + before[place:])


@given(texts, texts)
def test_the_pieces_of_a_word_diff_join_to_both_texts(old: str, new: str) -> None:
    pieces = by_words(old, new)
    assert joined(pieces, "same", "removed") == old
    assert joined(pieces, "same", "added") == new
    assert all(piece.text for piece in pieces)
    assert all(one.kind != next_one.kind for one, next_one in pairwise(pieces))


@given(texts, texts)
def test_a_unified_diff_turns_the_old_text_into_the_new_one(old: str, new: str) -> None:
    diff = unified(old, new, "a", "b")
    assert patched(old, diff) == new
    assert (diff == "") == (old == new)


_LINES = st.lists(st.sampled_from(["", "a", "b", "ab", "a b", "\u00e9", "\r"]), max_size=30).map(
    "\n".join
)


@given(_LINES, _LINES, _LINES, _LINES)
def test_a_diff_does_not_depend_on_skipping_the_equal_ends(
    head: str, old: str, new: str, tail: str
) -> None:
    for before, after in (
        (head + old + tail, head + new + tail),
        (head + "\n" + old, head),
        (tail, old + "\n" + tail),
    ):
        quick = unified(before, after, "a", "b")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "_changed_region", lambda old, new: (0, len(old), len(new)))
            assert quick == unified(before, after, "a", "b")


def test_a_small_change_of_a_long_text_is_compared_without_splitting_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = "".join(f"Line {number} about tea.\n" for number in range(20_000))
    split: list[int] = []
    lines = merging._lines
    monkeypatch.setattr(merging, "_lines", lambda text: split.append(len(text)) or lines(text))
    for place in (0, 1, 9_999, 19_999):
        assert "+Line of milk." in unified(
            old, old.replace(f"Line {place} about tea.", "Line of milk."), "a", "b"
        )
    assert max(split) < 500


def test_only_changed_words_are_marked() -> None:
    assert by_words(
        "- likes black tea\n- lives in Rome\n", "- likes green tea, too\n- lives in Rome\n"
    ) == [
        DiffPiece("same", "- likes "),
        DiffPiece("removed", "black"),
        DiffPiece("added", "green"),
        DiffPiece("same", " tea"),
        DiffPiece("added", ", too"),
        DiffPiece("same", "\n- lives in Rome\n"),
    ]
    assert by_words("彼は茶が好き", "彼は水が好き") == [
        DiffPiece("same", "彼は"),
        DiffPiece("removed", "茶"),
        DiffPiece("added", "水"),
        DiffPiece("same", "が好き"),
    ]
    assert by_words("", "") == []
    assert by_words("", "a b") == [DiffPiece("added", "a b")]


def test_a_unified_diff_names_both_sides_and_shows_three_lines_of_context() -> None:
    old = "".join(f"{number}\n" for number in range(1, 21))
    assert unified(old, old.replace("\n10\n", "\nten\n") + "end", "v1", "v2") == (
        "--- v1\n+++ v2\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
        "@@ -18,3 +18,4 @@\n 18\n 19\n 20\n+end\n\\ No newline at end of file\n"
    )


LONG = 40_000


def hard_texts(size: int) -> dict[str, tuple[str, str]]:
    """Return pairs of texts of about this length.

    The standard library's matcher takes minutes for some long ones.
    """
    source = random.Random(1)  # noqa: S311

    def drawn(parts: list[str], length: int) -> str:
        return "".join(source.choice(parts) for _ in range(length))

    common = [f"w{number} " for number in range(300)]
    lines = [f"{word}\n" for word in common]
    short = [f"{number} {drawn(common, 6)}\n" for number in range(size // 33)]
    changed = [f"{line[:-1]} x\n" if number % 2 else line for number, line in enumerate(short)]
    return {
        "one letter a line": (drawn(["a\n", "b\n"], size // 2), drawn(["a\n", "b\n"], size // 2)),
        "empty lines": ("\n" * size + "x", "y" + "\n" * (size - 1)),
        "three hundred lines": (drawn(lines, size // 5), drawn(lines, size // 5)),
        "one line of three hundred words": (drawn(common, size // 5), drawn(common, size // 5)),
        "one line of signs": (drawn([".", ","], size), drawn([".", ","], size)),
        "one word": ("a" * size, "b" * size),
        "many short changes": ("".join(short), "".join(changed)),
        "kana": (
            "\u3042" * (size // 2) + "\u3044" * (size // 2),
            "\u3044" * (size // 2) + "\u3042" * (size // 2),
        ),
    }


def test_any_two_long_texts_are_compared_in_linear_time() -> None:
    texts = {size: hard_texts(size) for size in (LONG // FACTOR, LONG)}
    for name in texts[LONG]:
        require_linear(lambda size, name=name: by_words(*texts[size][name]), LONG // FACTOR, name)
        require_linear(
            lambda size, name=name: unified(*texts[size][name], "a", "b"), LONG // FACTOR, name
        )
    for name, (old, new) in texts[LONG].items():
        pieces = by_words(old, new)
        assert joined(pieces, "same", "removed") == old, name
        assert joined(pieces, "same", "added") == new, name
        assert patched(old, unified(old, new, "a", "b")) == new, name


def test_a_moved_change_among_many_equal_lines_is_found() -> None:
    """The texts have a thousand empty lines, and one changed word that moved into the middle."""
    lines = [f"Line {number} about tea.\n\n" for number in range(2000)]
    old = "first\n" + "".join(lines) + "last\n"
    new = (
        "FIRST\n" + "".join(lines).replace("Line 1000 about tea", "Line 1000 about milk") + "LAST\n"
    )
    changed = [piece.text for piece in by_words(old, new) if piece.kind != "same"]
    assert [word.strip() for word in changed] == ["first", "FIRST", "tea", "milk", "last", "LAST"]
