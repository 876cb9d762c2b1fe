"""The meter of embeddings: adapters count the tokens of their calls, and the gate reads them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ricordo.llm.tokens import text_tokens

_COUNTED: ContextVar[Counter[str] | None] = ContextVar("tokens by embedding model", default=None)


@contextmanager
def metered() -> Iterator[Counter[str]]:
    """Count the tokens embedded inside the `with`, by the model's handle.

    Usage of tasks that start inside the block is counted too.
    """
    counter: Counter[str] = Counter()
    before = _COUNTED.set(counter)
    try:
        yield counter
    finally:
        _COUNTED.reset(before)


def count(handle: str, reported: Any, texts: Sequence[str]) -> None:
    """Count the tokens of a call.

    Args:
        handle: The embedding model's handle.
        reported: The number of tokens that the provider reports. If it is no positive number, the
            tokens of the texts are estimated, so that no call is missing in the ledger.
        texts: The texts of the call.
    """
    counter = _COUNTED.get()
    if counter is None:
        return
    is_number = isinstance(reported, int) and not isinstance(reported, bool)
    if is_number and reported > 0:
        counter[handle] += reported
    else:
        counter[handle] += sum(map(text_tokens, texts))
