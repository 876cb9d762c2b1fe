"""Vectors as providers send them, checked and brought to length 1."""

import math
import sys
from array import array
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from ricordo.errors import ModelError


def unit(vector: Any, provider: str) -> list[float]:
    """The vector at length 1; one of zeros stays. `vector` may be numbers or OpenAI's base64. Raises ModelError."""
    try:
        numbers: Sequence[float] = _decoded(vector) if isinstance(vector, str) else vector
        length = math.hypot(*numbers)
    except (TypeError, ValueError):
        raise ModelError("llm_error", f"{provider} gave something that is no vector of numbers.") from None
    if not numbers or not math.isfinite(length):
        fault = "vector with a number in it that is none (NaN or infinite)" if numbers else "vector without numbers"
        raise ModelError("llm_error", f"{provider} gave a {fault}. Use another embedding model.")
    if length == 0 or abs(length - 1) < 1e-6:
        return list(numbers)
    return [number / length for number in numbers]


def _decoded(text: str) -> "array[float]":
    numbers = array("f", b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
