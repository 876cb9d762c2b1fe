"""Comparing vectors: the fast methods find the same as exact comparison."""

import numpy as np
import pytest

from ricordo.search.fusion import Similarities, focus
from ricordo.search.vectors import COMPARED_EXACTLY, FEW, Vectors, similarities, vectors_from


def rows(count: int, dimensions: int = 64, *, of: int = 40, seed: int = 1) -> np.ndarray:
    """Return vectors of length 1 around this number of subjects."""
    random = np.random.default_rng(seed)
    subjects = random.normal(size=(of, dimensions))
    found = subjects[random.integers(0, of, count)] + random.normal(size=(count, dimensions)) * 0.5
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float16)


@pytest.fixture(scope="module")
def many() -> Vectors:
    return vectors_from(rows(FEW + 1000))


def exact(many: Vectors, query: np.ndarray) -> np.ndarray:
    return many.floats(slice(None)) @ focus(query, many.common)


def nowhere(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.bool_)


def test_the_best_of_many_are_compared_again_exactly(many: Vectors) -> None:
    for query in many.floats(slice(40)):
        found = similarities(many, query, None, nowhere(len(many)))
        assert len(found) == COMPARED_EXACTLY
        expected = exact(many, query)
        np.testing.assert_allclose(found.values, expected[found.positions], atol=1e-5)
        assert np.count_nonzero(np.isin(np.argsort(expected)[-10:], found.positions)) >= 9


def test_only_visible_and_explicitly_requested_vectors_are_compared(
    many: Vectors,
) -> None:
    may, also, query = nowhere(len(many)), nowhere(len(many)), many.floats(slice(2))[1]
    may[::20] = True
    also[[1, 3]] = True
    found = similarities(many, query, may, also)
    assert found.positions.tolist() == sorted({1, 3, *range(0, len(many), 20)})
    assert len(similarities(many, query, nowhere(len(many)), nowhere(len(many)))) == 0


def test_only_vectors_of_the_querys_size_are_compared(many: Vectors) -> None:
    found = similarities(
        many, many.floats(slice(1))[0], None, np.ones(len(many) + 5, dtype=np.bool_)
    )
    assert found.positions.tolist() == list(range(len(many)))
    assert len(similarities(many, np.ones(3, dtype=np.float32), None, nowhere(len(many)))) == 0
    with_deleted = rows(FEW + 100)
    with_deleted[::3] = 0
    every = np.ones(len(with_deleted), dtype=np.bool_)
    similar = similarities(
        vectors_from(with_deleted), with_deleted[1].astype(np.float32), None, every
    )
    assert not similar.values[::3].any()


def test_equal_vectors_are_compared_again_no_more_often_than_others() -> None:
    equal = vectors_from(np.tile(rows(1), (FEW + 1, 1)))
    assert (
        len(similarities(equal, equal.floats(slice(1))[0], None, nowhere(len(equal))))
        == COMPARED_EXACTLY
    )


@pytest.mark.parametrize("count", [FEW - 50, FEW, FEW + 3000], ids=["few", "just few", "many"])
@pytest.mark.parametrize("added", [1, 60, 2000])
def test_vectors_added_later_are_found_as_if_all_were_added_at_once(count: int, added: int) -> None:
    every = rows(count + added)
    grown = vectors_from(every[count:], vectors_from(every[:count]))
    assert len(grown) == len(every)
    together = vectors_from(every)
    np.testing.assert_allclose(grown.floats(slice(None)), together.floats(slice(None)), atol=1e-3)
    for query in every[-3:].astype(np.float32):
        found = similarities(grown, query, None, nowhere(len(grown)))
        expected = every.astype(np.float32) @ focus(query, grown.common)
        best = np.argsort(expected)[-10:]
        assert np.count_nonzero(np.isin(best, found.positions)) >= 9
        np.testing.assert_allclose(found.values, expected[found.positions], atol=5e-3)


def test_a_similarity_does_not_depend_on_the_number_of_compared_vectors() -> None:
    """Matrix products of other shapes differ in the last digits.

    In an earlier version two equal texts were therefore sometimes fourth and fifth, and sometimes
    both fourth.
    """
    for seed in range(6):
        some = rows(20, 256, seed=seed)
        some[7] = some[3]
        query = some[0].astype(np.float32)
        shown = {tuple(matrix(query, some, more).tolist()) for more in range(40)}
        assert len(shown) == 1
        (values,) = shown
        assert values[7] == values[3]


def matrix(query: np.ndarray, some: np.ndarray, more: int) -> np.ndarray:
    """Return the similarities of these vectors, computed among this number of others."""
    every = np.concatenate([some, rows(more + 1, 256, seed=100 + more)[:more]]).astype(np.float32)
    return Similarities(np.arange(len(some)), (every @ query)[: len(some)]).rounded().values
