"""Two units of work at once, in a known order: the second begins when the first has written and not yet committed."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.store import Store, Transaction

_LONGEST = 5.0  # seconds; a busy machine takes long
_BRIEFLY = 0.1
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def overlapped(
    store: Store, first: Callable[[Transaction], Any], second: Callable[[Transaction], Any]
) -> tuple[Any, Any]:
    """What both came to, or what they raised. On PostgreSQL the first commits once the second waits for it, or soon after."""
    has_written = threading.Event()
    has_begun = threading.Event()

    def early(tx: Transaction) -> Any:
        result = first(tx)
        has_written.set()
        if isinstance(store, PostgresStore):
            assert has_begun.wait(_LONGEST)
            end = time.monotonic() + _BRIEFLY
            while time.monotonic() < end and not tx.connection.exec_driver_sql(_WAITING).scalar_one():
                time.sleep(0.002)
        return result

    def late(tx: Transaction) -> Any:
        assert has_written.wait(_LONGEST)
        has_begun.set()
        return second(tx)

    one, two = await asyncio.gather(store.write(early), store.write(late), return_exceptions=True)
    return one, two
