"""Telling that an archive says something already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.memory.duplicates import KnownPassage, most_alike


def existing(text: str, *tags: str, id: str = "passage-1") -> KnownPassage:
    """A text that is there already."""
    return KnownPassage(id, text, tags)


@pytest.mark.parametrize("text", ["Ada likes tea.", " Ada  likes\ntea. "])
def test_the_same_words_in_the_same_order_are_the_same(text: str) -> None:
    likeness = most_alike(text, (), [existing("Ada likes tea.")])
    assert likeness is not None
    assert (likeness.is_same, likeness.is_kept) == (True, True)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Ada likes tea.", "ADA LIKES TEA!"),
        (
            "Ada moved to Turin in May and works as a gardener there.",
            "In May Ada moved to Turin and works there as a gardener now.",
        ),
        ("Ada möchte am Montag nach Turin fahren", "Ada möchte am Montag nach Turin fahren, bald"),
        ("她喜欢喝茉莉花茶，每天早上都喝", "她喜欢喝茉莉花茶，每天早上都喝。"),
    ],
)
def test_nearly_the_same_words_are_nearly_the_same(text: str, other: str) -> None:
    likeness = most_alike(text, (), [existing(other)])
    assert likeness is not None
    assert not likeness.is_same


@pytest.mark.parametrize(
    "other", ["Ada likes coffee.", "Ben likes tea.", "Ada likes tea, and she keeps bees in her garden.", "", "…"]
)
def test_other_words_are_something_else(other: str) -> None:
    assert most_alike("Ada likes tea.", (), [existing(other)]) is None


def test_a_text_of_no_words_is_like_itself_alone() -> None:
    assert most_alike("…", (), [existing("!"), existing("?")]) is None
    likeness = most_alike("…", (), [existing("…")])
    assert likeness is not None
    assert likeness.is_same


def test_the_same_text_comes_before_one_that_is_nearly_so_and_one_with_all_tags_before_all() -> None:
    there = [
        existing("Ada likes tea!", id="near"),
        existing("Ada likes tea.", "a", id="same"),
        existing("Ada likes tea.", "b", "a", "c", id="kept"),
    ]
    for tags, id, is_kept in ((("b", "c"), "kept", True), (("a",), "same", True), (("d",), "same", False)):
        likeness = most_alike("Ada likes tea.", tags, there)
        assert likeness is not None
        assert (likeness.existing.id, likeness.is_kept) == (id, is_kept)


@given(st.text(max_size=20), st.text(max_size=20))
def test_likeness_goes_both_ways(one: str, other: str) -> None:
    there, back = most_alike(one, (), [existing(other)]), most_alike(other, (), [existing(one)])
    assert (there is None) == (back is None)
    assert there is None or back is None or there.is_same == back.is_same
