"""Telling that an archive says something already."""

from ricordo.memory.duplicates import KnownPassage, most_alike


def existing(text: str, *tags: str, id: str = "passage-1") -> KnownPassage:
    """A text that is there already."""
    return KnownPassage(id, text, tags)


def test_the_same_words_are_the_same_nearly_the_same_nearly_so_and_others_something_else() -> None:
    moved = "Ada moved to Turin in May and works as a gardener there."
    for text, other, is_same in (
        ("Ada likes tea.", "Ada likes tea.", True),
        (" Ada  likes\ntea. ", "Ada likes tea.", True),
        ("…", "…", True),
        ("Ada likes tea.", "ADA LIKES TEA!", False),
        (moved, "In May Ada moved to Turin and works there as a gardener now.", False),
        ("Ada möchte am Montag nach Turin fahren", "Ada möchte am Montag nach Turin fahren, bald", False),
        ("她喜欢喝茉莉花茶，每天早上都喝", "她喜欢喝茉莉花茶，每天早上都喝。", False),
        *((("Ada likes tea."), other, None) for other in ("Ada likes coffee.", "Ben likes tea.", "", "…")),
        ("Ada likes tea.", "Ada likes tea, and she keeps bees in her garden.", None),
        ("…", "!", None),
    ):
        there, back = most_alike(text, (), [existing(other)]), most_alike(other, (), [existing(text)])
        assert (there and there.is_same, back and back.is_same) == (is_same, is_same), (text, other)


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
