"""From the vectors of tokens to that of a text."""

import math

import numpy as np
import pytest

from ricordo.llm.embedding.embedded import pooled

TABLE = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 0], [-1, 0, 0]], np.float16)


def test_a_text_points_where_the_mean_of_its_tokens_points() -> None:
    assert pooled(TABLE, [0, 1]) == pytest.approx([1 / math.sqrt(5), 2 / math.sqrt(5), 0])
    assert pooled(TABLE, [0, 0, 1]) == pytest.approx([1 / math.sqrt(2), 1 / math.sqrt(2), 0])


@pytest.mark.parametrize("tokens", [[], [2], [0, 3]])
def test_what_points_nowhere_gives_zeros(tokens: list[int]) -> None:
    vector = pooled(TABLE, tokens)
    assert vector.tolist() == [0.0, 0.0, 0.0]
    assert vector.dtype == np.float32


def test_a_long_text_loses_no_precision() -> None:
    # In float16 this sum would stop growing at 2,048.
    assert pooled(TABLE, [0] * 5_000 + [1] * 5_000) == pytest.approx([1 / math.sqrt(5), 2 / math.sqrt(5), 0])
