"""What changed between two texts: nothing of either is lost, and no two texts make it slow."""

import random
import re
import subprocess
import time
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ricordo.memory.merge import DiffPiece, by_words, unified

PARTS = [
    "tea",
    "Tea",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    ".",
    "-",
    "é",
    "茶",
    "の",
    "🫖",
    "a_b",
    "\u2028",
    "1",
    "\\",
    "+",
    "@@",
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=40).map("".join))


def joined(pieces: list[DiffPiece], *kinds: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind in kinds)


def patched(old: str, diff: str) -> str:
    """The old text with the diff applied, strictly: every line it names must stand where it says."""
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
def test_the_pieces_join_to_both_texts(old: str, new: str) -> None:
    pieces = by_words(old, new)
    assert joined(pieces, "same", "removed") == old
    assert joined(pieces, "same", "added") == new
    assert all(piece.text for piece in pieces)
    assert all(one.kind != next_one.kind for one, next_one in pairwise(pieces))


@given(texts, texts)
def test_a_unified_diff_makes_the_new_text_of_the_old_one(old: str, new: str) -> None:
    diff = unified(old, new, "a", "b")
    assert patched(old, diff) == new
    assert (diff == "") == (old == new)


def test_only_the_words_that_changed_are_marked() -> None:
    assert by_words("- likes black tea\n- lives in Rome\n", "- likes green tea, too\n- lives in Rome\n") == [
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


def test_a_unified_diff_names_both_sides_and_shows_three_lines_around() -> None:
    old = "".join(f"{number}\n" for number in range(1, 21))
    assert unified(old, old.replace("\n10\n", "\nten\n") + "end", "v1", "v2") == (
        "--- v1\n+++ v2\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
        "@@ -18,3 +18,4 @@\n 18\n 19\n 20\n+end\n\\ No newline at end of file\n"
    )


def test_git_takes_the_diff(tmp_path: Path) -> None:
    source = random.Random(5)  # noqa: S311
    words = ["tea\n", "milk\n", "\n", "sugar\n", "a cup\n"]
    for _ in range(5):
        old = "".join(source.choice(words) for _ in range(60)) + "last"
        lines = re.findall(r".*\n|.+$", old)
        for _ in range(6):
            lines[source.randrange(len(lines))] = source.choice(["", "new\n"])
        new = "".join(lines)
        (tmp_path / "x").write_text(old)
        (tmp_path / "diff").write_text(unified(old, new, "a/x", "b/x"))
        subprocess.run(["git", "apply", "diff"], cwd=tmp_path, check=True, capture_output=True)
        assert (tmp_path / "x").read_text() == new


def hard() -> dict[str, tuple[str, str]]:
    source = random.Random(1)  # noqa: S311

    def drawn(parts: list[str], length: int) -> str:
        return "".join(source.choice(parts) for _ in range(length))

    common = [f"w{number} " for number in range(300)]
    lines = [f"{word}\n" for word in common]
    short = [f"{number} {drawn(common, 6)}\n" for number in range(3000)]
    changed = [f"{line[:-1]} x\n" if number % 2 else line for number, line in enumerate(short)]
    return {
        "one letter a line": (drawn(["a\n", "b\n"], 50_000), drawn(["a\n", "b\n"], 50_000)),
        "empty lines": ("\n" * 100_000 + "x", "y" + "\n" * 99_999),
        "three hundred lines": (drawn(lines, 20_000), drawn(lines, 20_000)),
        "one line of three hundred words": (drawn(common, 20_000), drawn(common, 20_000)),
        "one line of signs": (drawn([".", ","], 100_000), drawn([".", ","], 100_000)),
        "one word": ("a" * 100_000, "b" * 100_000),
        "many short changes": ("".join(short), "".join(changed)),
        "kana": ("\u3042" * 50_000 + "\u3044" * 50_000, "\u3044" * 50_000 + "\u3042" * 50_000),
    }


def test_any_two_texts_of_a_hundred_thousand_characters_are_compared_within_a_second() -> None:
    """The standard library's matcher takes minutes for some of these."""
    for name, (old, new) in hard().items():
        begin = time.process_time()
        pieces = by_words(old, new)
        middle = time.process_time()
        diff = unified(old, new, "a", "b")
        end = time.process_time()
        assert joined(pieces, "same", "removed") == old, name
        assert joined(pieces, "same", "added") == new, name
        assert patched(old, diff) == new, name
        assert max(middle - begin, end - middle) < 2, name


def test_what_is_the_same_is_found_also_where_not_everything_can_be_compared() -> None:
    """A long text of a thousand empty lines and one changed word, moved into the middle of much else."""
    lines = [f"Line {number} about tea.\n\n" for number in range(2000)]
    old = "first\n" + "".join(lines) + "last\n"
    new = "FIRST\n" + "".join(lines).replace("Line 1000 about tea", "Line 1000 about milk") + "LAST\n"
    changed = [piece.text for piece in by_words(old, new) if piece.kind != "same"]
    assert [word.strip() for word in changed] == ["first", "FIRST", "tea", "milk", "last", "LAST"]
