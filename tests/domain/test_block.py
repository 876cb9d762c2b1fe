"""Blocks: their labels, limits and flags."""

import pytest

from ricordo.domain.block import require_label
from ricordo.errors import Invalid
from tests.support import make


@pytest.mark.parametrize(
    "label",
    ["human", "persona", "Lieblings-Tee", "course/week 1", "a/b/c/d", "名前", "historian", "my.history", "x" * 255],
)
def test_words_with_slashes_between_them_are_labels(label: str) -> None:
    assert require_label(label) == label


@pytest.mark.parametrize(
    "label",
    ["", " ", "/", "/human", "human/", "a//b", "a/ /b", "two\nlines", "nul\x00", "<human>", "del\x7f", "x" * 256],
)
def test_what_could_not_name_a_file_or_a_tag_is_refused(label: str) -> None:
    with pytest.raises(Invalid, match="cannot be used"):
        require_label(label)


@pytest.mark.parametrize(
    "label", [".", "..", "a/../b", ".git/config", ".GIT", "history", "human/History", "a/restore", "compare/b"]
)
def test_words_with_a_meaning_in_paths_or_routes_are_refused_by_name(label: str) -> None:
    with pytest.raises(Invalid, match="has a meaning of its own"):
        require_label(label)


@pytest.mark.parametrize(
    "label",
    ["git~1", ".git./x", ".gitmodules", ".GIT \u200b".strip(), "a/.g\u200cit", "a\\.git", "notes.md/b", "a.MD/b/c"],
)
def test_what_no_clone_could_hold_is_refused(label: str) -> None:
    with pytest.raises(Invalid, match="cannot be used"):
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
