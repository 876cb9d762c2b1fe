"""The combined score of words, vectors, speakers and times, and the order that it gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.search.fusion import Similarities, common_of, focus, fuse, ranks, speaks, top
from ricordo.search.reader import DOCUMENT
from ricordo.search.scoring import DocumentColumns, Posting, documents_of


def documents(
    count: int,
    *,
    conversation: int | None = None,
    created_at: list[int] | None = None,
    asks: tuple[int, ...] = (),
) -> DocumentColumns:
    """Return this number of documents, each in a separate conversation or all in one."""
    times = created_at or list(range(count))
    rows = [
        (n + 1, times[n], conversation or n + 1, 0, 10, 0, 0, 1, n in asks) for n in range(count)
    ]
    records = np.array(rows, dtype=DOCUMENT)
    return documents_of(records, records["alive"] == 1)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


NONE = float("nan")


def similarities(*values: float) -> Similarities:
    """Return similarities by position, NONE if one is not known."""
    known = np.flatnonzero(~np.isnan(values))
    return Similarities(known, floats(*values)[known])


def test_word_scores_and_similarities_both_count() -> None:
    for lexical, similar, scores in (
        (floats(2, 8, 0), None, [0.25, 1.0, 0.0]),
        (floats(2, 8, 0), similarities(NONE, NONE, NONE), [0.25, 1.0, 0.0]),
        # Without a hit by words the similarities give the order, and one known similarity is enough
        # for a hit.
        (floats(0, 0, 0), similarities(0.2, 0.9, NONE), [1e-6, 1.0, 0.0]),
        (floats(0, 0), similarities(NONE, -0.3), [0.0, 1.0]),
        # If a document has no vector yet, its score by words also stands in for its similarity.
        (floats(4, 2, 0), similarities(NONE, 0.5, 0.4), [1.0, 0.29 + 0.42, 0.42e-6]),
        (floats(4, 4, 0, 0), similarities(0.1, 0.5, 0.5, 0.1), [0.58, 1.0, 0.42, 0.0]),
    ):
        assert fuse(documents(len(lexical)), lexical, similar).tolist() == pytest.approx(
            scores, abs=1e-6
        )


def test_named_speakers_and_times_come_first_and_questions_last() -> None:
    spoken = np.array([False, True, False])
    found = fuse(documents(3, created_at=[0, 10, 20]), floats(5, 5, 5), None, [(20, 30)], spoken)
    assert found[2] > found[1] > found[0]
    # Times are half-open, and count once where they overlap.
    found = fuse(documents(3, created_at=[0, 10, 20]), floats(1, 1, 1), None, [(0, 20), (10, 20)])
    assert found[0] == found[1] > found[2]
    found = fuse(documents(2, asks=(0,)), floats(1, 1))
    assert found[1] > found[0] > 0


def test_a_bonus_raises_only_documents_found_by_words_or_similarity() -> None:
    bonuses = floats(0, 0.5, 0.5)
    without_words = fuse(
        documents(3), floats(0, 0, 0), similarities(0.9, 0.8, NONE), bonuses=bonuses
    )
    assert without_words.tolist() == pytest.approx([1.0, 0.5 + 1e-6, 0.0], abs=1e-5)
    by_words = fuse(documents(3), floats(4, 2, 0), bonuses=bonuses)
    assert by_words.tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_similar_neighbours_help_only_in_the_same_conversation() -> None:
    similar = similarities(0.9, 0.5, 0.1, 0.5, 0.1)
    together = fuse(documents(5, conversation=1), np.zeros(5, dtype=np.float32), similar)
    assert together[1] > together[3]
    apart = fuse(documents(5), np.zeros(5, dtype=np.float32), similar)
    assert apart[1] == apart[3]


def test_hidden_documents_do_not_change_the_scores_of_others() -> None:
    may = np.array([False, True, True])
    found = fuse(documents(3), floats(100, 2, 1), similarities(0.9, 0.1, 0.3), may=may)
    alone = fuse(documents(2), floats(2, 1), similarities(0.1, 0.3))
    assert found[1:].tolist() == pytest.approx(alone.tolist())


def test_documents_of_a_named_speaker_are_found() -> None:
    name = Posting(np.array([0, 2]), np.array([1, 0], dtype=np.uint8), np.array([False, True]))
    spoken = speaks(documents(3), [name])
    assert spoken.tolist() == [False, False, True]
    assert (
        speaks(
            documents(3), [Posting(np.array([0]), np.array([1], dtype=np.uint8), np.array([False]))]
        )
        is None
    )


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=60
    ),
    k=st.integers(0, 12),
)
def test_top_equals_the_beginning_of_a_full_sort(rows: list[tuple[int, int, bool]], k: int) -> None:
    found = documents(len(rows), created_at=[created for _, created, _ in rows])
    expected = sorted(
        (n for n, row in enumerate(rows) if row[0] and row[2]),
        key=lambda n: (rows[n][0], rows[n][1], n),
        reverse=True,
    )
    mask = np.array([row[2] for row in rows])
    scores = floats(*(row[0] for row in rows))
    assert top(found, scores, mask, k).tolist() == expected[:k]
    assert top(found, scores * mask, None, k).tolist() == expected[:k]


def test_ranks_count_only_visible_documents_and_are_none_without_a_match() -> None:
    may = np.array([True, True, False, True])
    lexical, similar = floats(3, 0, 9, 3), similarities(0.1, NONE, 0.9, 0.4)
    best = np.array([3, 0, 1])
    assert ranks(best, may, lexical, similar) == [(1, 1), (1, 2), (None, None)]
    assert ranks(best, may, floats(0, 0, 0, 0), similar) == [(None, 1), (None, 2), (None, None)]
    assert ranks(best, may, lexical, similarities(NONE, NONE, NONE, NONE)) == [
        (1, None),
        (1, None),
        (None, None),
    ]
    assert ranks(best, may, lexical, None) == [(1, None), (1, None), (None, None)]


def vectors_in_three_directions(count: int, seed: int = 7) -> np.ndarray:
    """Return vectors that share a mean and differ much in three directions only."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 32)) * np.array([9, 6, 4] + [1] * 29) + 5
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def test_the_common_directions_are_those_of_greatest_variance() -> None:
    rows = vectors_in_three_directions(500)
    common = common_of(rows)
    assert common is not None
    exact = np.linalg.svd(rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0))[2][:3]
    assert np.abs(np.linalg.svd(common.directions @ exact.T)[1]) == pytest.approx(
        [1, 1, 1], abs=1e-3
    )
    assert common.directions @ common.directions.T == pytest.approx(np.eye(3), abs=1e-5)
    # `focus` removes the common directions from a query.
    focused = focus(vectors_in_three_directions(1, seed=8)[0].astype(np.float32), common)
    assert common.directions @ focused == pytest.approx([0, 0, 0], abs=1e-5)
    for few in (
        vectors_in_three_directions(99),
        vectors_in_three_directions(500)[:, :3],
        np.zeros((0, 32), dtype=np.float16),
    ):
        assert common_of(few) is None
    for equal in (
        np.zeros((200, 8), dtype=np.float16),
        np.tile(floats(0.6, 0.8, 0, 0, 0), (200, 1)),
    ):
        assert np.isfinite(focus(np.ones(equal.shape[1], dtype=np.float32), common_of(equal))).all()
