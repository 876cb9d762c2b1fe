"""Comparing vectors: what the quick ways find is what exact comparison finds."""

import numpy as np
import pytest

from ricordo.storage.index import vectors
from ricordo.storage.index.fusion import focus
from ricordo.storage.index.vectors import FEW, LOOKED_AT_AGAIN, Vectors, similarities, vectors_from

NOWHERE = np.empty(0, dtype=np.int64)


def rows(count: int, dimensions: int = 64, *, of: int = 40, seed: int = 1) -> np.ndarray:
    """Vectors of length 1 around so many subjects."""
    random = np.random.default_rng(seed)
    subjects = random.normal(size=(of, dimensions))
    found = subjects[random.integers(0, of, count)] + random.normal(size=(count, dimensions)) * 0.5
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float16)


@pytest.fixture(scope="module")
def many() -> Vectors:
    return vectors_from(rows(FEW + 1000))


def exact(many: Vectors, query: np.ndarray) -> np.ndarray:
    return many.rows.astype(np.float32) @ focus(query, many.common)


def test_the_best_of_many_are_looked_at_again_and_compared_exactly(many: Vectors) -> None:
    for query in many.rows[:40].astype(np.float32):
        found = similarities(many, query, len(many), None, NOWHERE)
        known = ~np.isnan(found)
        assert np.count_nonzero(known) == LOOKED_AT_AGAIN
        expected = exact(many, query)
        np.testing.assert_allclose(found[known], expected[known], atol=1e-5)
        assert np.count_nonzero(known[np.argsort(expected)[-10:]]) >= 9


def test_only_what_may_be_found_is_looked_at_and_what_is_asked_for_besides_always_is(many: Vectors) -> None:
    may = np.zeros(len(many), dtype=np.bool_)
    may[::20] = True
    found = similarities(many, many.rows[1].astype(np.float32), len(many), may, np.array([1, 3]))
    assert np.flatnonzero(~np.isnan(found)).tolist() == sorted({1, 3, *range(0, len(many), 20)})
    nothing = similarities(many, many.rows[1].astype(np.float32), len(many), np.zeros_like(may), NOWHERE)
    assert np.isnan(nothing).all()


def test_equal_vectors_are_looked_at_again_no_more_often_than_others() -> None:
    equal = vectors_from(np.tile(rows(1), (FEW + 1, 1)))
    found = similarities(equal, equal.rows[0].astype(np.float32), len(equal), None, NOWHERE)
    assert np.count_nonzero(~np.isnan(found)) == LOOKED_AT_AGAIN


def test_documents_beyond_the_vectors_have_no_similarity(many: Vectors) -> None:
    found = similarities(many, many.rows[0].astype(np.float32), len(many) + 5, None, NOWHERE)
    assert np.isnan(found[-5:]).all()
    few = vectors_from(rows(20))
    assert (
        np.isnan(similarities(few, few.rows[0].astype(np.float32), 25, None, NOWHERE)).tolist()
        == [False] * 20 + [True] * 5
    )


def test_products_of_half_floats_are_those_of_floats_down_to_the_smallest() -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = numbers[np.isfinite(numbers)][:, None]
    found = vectors._products(finite, np.ones(1, dtype=np.float32))
    assert found.tolist() == finite[:, 0].astype(np.float32).tolist()
