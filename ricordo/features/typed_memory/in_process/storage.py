"""The database of a data folder, opened by a program that is no server: plain calls, each one transaction."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.scope import Scope
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.memory.user_memory import UserMemory, open_memory
from ricordo.settings import Settings
from ricordo.storage import users
from ricordo.storage.database import open_store
from ricordo.storage.store import Store, Transaction

T = TypeVar("T")


class GitUserStorage:
    """Every user's memory, with its history; close it when done, or use it in a `with`.

    A folder with an SQLite database has one program at a time: beside a server use the API instead. Raises Conflict where
    another has it open, Unavailable.
    """

    def __init__(self, data_dir: Path | str, *, settings: Settings | None = None, scope: Scope | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.scope = scope or Scope()
        given = settings or Settings(data_dir=self.data_dir)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._store: Store | None = open_store(given)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ricordo storage", daemon=True)
        self._thread.start()

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view."""
        return self._wait(lambda store: store.read(work))

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction: all of it is saved, or nothing."""
        return self._wait(lambda store: store.write(work))

    def memory_of(self, tx: Transaction, user_id: str) -> UserMemory | None:
        """The user's memory, where she is known."""
        return open_memory(tx, self.scope, user_id) if users.find(tx, self.scope, user_id) else None

    def schema(self, name: str | None) -> BlockSchema | None:
        """The block schema of this name in the data folder, if there is one."""
        folder = self.data_dir / FOLDER
        return read_schema(name, folder) if name and name in schema_names(folder) else None

    def close(self) -> None:
        """Let go of the database; closing twice is the same as once."""
        store, self._store = self._store, None
        if store is None:
            return
        asyncio.run_coroutine_threadsafe(store.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "GitUserStorage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, begin: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        if self._store is None:
            raise ValueError("This storage is closed. Open another GitUserStorage.")
        return asyncio.run_coroutine_threadsafe(begin(self._store), self._loop).result()
