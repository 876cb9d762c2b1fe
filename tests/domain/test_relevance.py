"""The match of a hit: from 0 to 1, and comparable across searches."""

from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.passage import Relevance

shares = st.floats(0, 1)
similarities = st.none() | st.floats(-1, 1)


def match(word_match: float, similarity: float | None = None) -> float:
    return Relevance(0.5, word_match=word_match, similarity=similarity).match


@given(word_match=shares, more=shares, similarity=similarities)
def test_a_match_grows_with_matching_words_and_stays_between_0_and_1(
    word_match: float, more: float, similarity: float | None
) -> None:
    low, high = sorted([word_match, more])
    assert 0 <= match(low, similarity) <= match(high, similarity) <= 1


@given(word_match=shares, similarity=st.floats(-1, 1), more=st.floats(-1, 1))
def test_a_match_grows_with_similarity(word_match: float, similarity: float, more: float) -> None:
    low, high = sorted([similarity, more])
    assert match(word_match, low) <= match(word_match, high)


def test_no_match_is_0_and_a_full_match_is_1() -> None:
    assert match(0) == match(0, 0.0) == match(0, -1.0) == 0
    assert match(1) == match(1, 1.0) == 1
