"""What typed memory takes where its caller says nothing: two variables of the environment, read when they are needed."""

import math
import os

from ricordo.errors import Invalid

MAX_CHARS = "CORE_MEMORY_MAX_CHARS"
THRESHOLD = "ARCHIVAL_ROTATION_THRESHOLD"
LEAST_CHARS = 150


def default_max_chars() -> int:
    """How many characters a block's text may have: CORE_MEMORY_MAX_CHARS, else 1500. Raises Invalid."""
    given = os.environ.get(MAX_CHARS) or "1500"
    try:
        number = int(given)
    except ValueError:
        raise Invalid(
            f"{MAX_CHARS} is {given!r}, which is no whole number. Set it to a number of characters."
        ) from None
    return require_max_chars(number)


def require_max_chars(max_chars: int) -> int:
    """The number of characters, if a block of that length can hold a name, a task and a state; raises Invalid."""
    if max_chars < LEAST_CHARS:
        raise Invalid(f"A block of {max_chars} characters is too short for typed memory. Allow at least {LEAST_CHARS}.")
    return max_chars


def default_threshold() -> float:
    """How full a block may be before it is rotated, from 0 to 1: ARCHIVAL_ROTATION_THRESHOLD, else 0.8. Raises Invalid."""
    given = os.environ.get(THRESHOLD) or "0.8"
    try:
        return require_threshold(float(given))
    except ValueError:
        raise Invalid(f"{THRESHOLD} is {given!r}, which is no number. Set it to a number from 0 to 1.") from None


def require_threshold(threshold: float) -> float:
    """The threshold, if it lies above 0 and not above 1; raises Invalid."""
    if not (math.isfinite(threshold) and 0 < threshold <= 1):
        raise Invalid(
            f"A threshold of {threshold} cannot be used. Give a number above 0, at most 1: 0.8 is 80 percent."
        )
    return threshold
