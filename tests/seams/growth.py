"""Checks that work grows no faster than its input.

The check compares two sizes, so it works on a busy machine too. In a test: `require_linear(lambda
size: read("x" * size), 5_000)`.
"""

import time
from collections.abc import Callable

FACTOR = 8
"""The length of the long input, as a multiple of the short input's length.

Linear work takes 8 times as long, quadratic work 64 times.
"""
MOST = 24
TRIES = 7
NOTHING = 0.004  # Seconds of this thread's CPU; shorter work is not compared.


def cpu_seconds(work: Callable[[int], object], size: int) -> float:
    """Return the CPU time that the work takes in this thread."""
    start = time.thread_time()
    work(size)
    return time.thread_time() - start


def is_linear(
    work: Callable[[int], object],
    size: int,
    *,
    factor: int = FACTOR,
    most: int | None = None,
    nothing: float = NOTHING,
) -> bool:
    """Return whether work on `factor` times the size takes at most `most` times as long.

    If the work on the larger size takes less than `nothing` seconds, the times are not compared.
    The measurement is repeated, because a busy machine spoils single ones. One good pair is enough.
    It is very unlikely that the short run is disturbed three times in a row, and the long run is
    not.
    """
    limit = most or factor * MOST // FACTOR
    for _ in range(TRIES):
        long = cpu_seconds(work, size * factor)
        if long <= nothing or long <= limit * min(cpu_seconds(work, size) for _ in range(3)):
            return True
    return False


def require_linear(work: Callable[[int], object], size: int, name: object = "") -> None:
    """Fail if the work grows faster than its input; `name` names the work."""
    assert is_linear(work, size), (
        f"{name!r}: an input {FACTOR} times as long takes more than {MOST} times as long"
    )


def repeated(piece: str, size: int) -> str:
    """Return the piece, repeated to about this length."""
    return piece * (size // len(piece))
