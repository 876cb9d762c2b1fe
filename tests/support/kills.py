"""A server that is killed after some writes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ricordo.runtime import Runtime


class DyingStore:
    """A store whose server is killed after some writes."""

    def __init__(self, store: Any, writes: int) -> None:
        self.clock, self._store, self._left = store.clock, store, writes
        self.read = store.read

    async def write(self, work: Any) -> Any:
        """Write, unless the end has come."""
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1
        return await self._store.write(work)


@contextmanager
def killed_after(runtime: Runtime, writes: int) -> Iterator[None]:
    """Let the server die after so many writes."""
    store, indexing = runtime.store, runtime.indexing
    runtime.store = DyingStore(store, writes)  # type: ignore[assignment]
    runtime.indexing = replace(indexing, store=runtime.store)
    try:
        yield
    finally:
        runtime.store, runtime.indexing = store, indexing
