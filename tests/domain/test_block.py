"""Blocks: their labels, limits and flags."""

import pytest

from ricordo.domain.block import require_label
from ricordo.errors import Invalid
from tests.seams import make


def test_words_with_slashes_between_them_are_labels_and_what_no_file_tag_or_route_could_hold_is_none() -> None:
    for label in (
        *(
            "human",
            "persona",
            "Lieblings-Tee",
            "course/week 1",
            "a/b/c/d",
            "名前",
            "historian",
            "my.history",
            "x" * 255,
        ),
    ):
        assert require_label(label) == label
    for label in (
        *("", " ", "/", "/human", "human/", "a//b", "a/ /b", "two\nlines", "nul\x00", "<human>", "del\x7f", "x" * 256),
        *(
            "git~1",
            ".git./x",
            ".gitmodules",
            ".GIT \u200b".strip(),
            "a/.g\u200cit",
            "a\\.git",
            "notes.md/b",
            "a.MD/b/c",
        ),
    ):
        with pytest.raises(Invalid, match="cannot be used"):
            require_label(label)
    for label in (".", "..", "a/../b", ".git/config", ".GIT", "history", "human/History", "a/restore", "compare/b"):
        with pytest.raises(Invalid, match="has a meaning of its own"):
            require_label(label)


def test_a_text_of_just_the_limit_fits_and_one_more_character_does_not() -> None:
    block = make.block("human", limit=4)
    block.require_fits("été ")
    with pytest.raises(Invalid, match='"human" would hold 5 characters, but its limit is 4'):
        block.require_fits("étés ")


def test_a_block_is_read_only_by_its_flag_or_by_its_policy() -> None:
    assert not make.block().is_read_only
    assert make.block(read_only=True).is_read_only
    assert make.block(policy="read_only").is_read_only
    assert not make.block(policy="propose").is_read_only
