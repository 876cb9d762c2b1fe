"""Vectors as providers send them."""

import base64
import math
import struct
from typing import Any

import pytest

from ricordo.errors import ModelError
from ricordo.llm.embedding.remote import unit


def test_a_vector_is_brought_to_length_one() -> None:
    assert unit([3.0, 4.0], "p") == [0.6, 0.8]
    assert unit([3, 4], "p") == [0.6, 0.8]
    assert math.hypot(*unit([1e300, 1e300, -1e-300], "p")) == pytest.approx(1)


def test_zeros_stay_zeros() -> None:
    assert unit([0.0, 0.0, 0.0], "p") == [0.0, 0.0, 0.0]


def test_base64_is_read_as_floats_of_four_bytes() -> None:
    text = base64.b64encode(struct.pack("<3f", 0.0, 3.0, -4.0)).decode()
    assert unit(text, "p") == pytest.approx([0.0, 0.6, -0.8])


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        ([1.0, math.nan], "NaN"),
        ([math.inf, 1.0], "NaN"),
        ([], "without numbers"),
        (["a"], "no vector"),
        ([1.0, None], "no vector"),
        ([[1.0, 2.0]], "no vector"),
        (None, "no vector"),
        ({"a": 1}, "no vector"),
        ("not base64!", "no vector"),
        ("YWJj", "no vector"),  # three bytes
        ("", "without numbers"),
    ],
)
def test_what_is_no_vector_is_a_clear_error(vector: Any, words: str) -> None:
    with pytest.raises(ModelError, match=f"ollama gave .*{words}") as caught:
        unit(vector, "ollama")
    assert caught.value.kind == "llm_error"
