"""How many tokens embedding took, as providers report it: the adapters count, whoever had something embedded reads."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_COUNTED: ContextVar[Counter[str] | None] = ContextVar("tokens by embedding model", default=None)


@contextmanager
def metered() -> Iterator[Counter[str]]:
    """Tokens by the handle of the model, of all that is embedded inside of the `with`, also by tasks that are begun there."""
    counted: Counter[str] = Counter()
    before = _COUNTED.set(counted)
    try:
        yield counted
    finally:
        _COUNTED.reset(before)


def count(handle: str, reported: Any) -> None:
    """Count what a provider reported; nothing where it reported no number, or nobody asks."""
    counted = _COUNTED.get()
    if counted is not None and isinstance(reported, int) and not isinstance(reported, bool) and reported > 0:
        counted[handle] += reported
