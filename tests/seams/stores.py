"""Helpers for tests with a store.

They set a clock, count statements, let writes overlap, wait, fail or die, and flush the index.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import event, text

from ricordo.runtime import Runtime
from ricordo.search import flush as flushing
from ricordo.search.flush import next_deletion
from ricordo.search.partitions import lock_partition
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.store import SqlStore, Store, Transaction

LIMIT = 60  # Seconds that a held or overlapping write may take, also on a busy machine.
START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


class ManualClock:
    """A clock that advances by one microsecond a call, and by `advance`."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return microseconds since 1970, UTC; each call returns a later time."""
        with self._lock:
            self._now += 1
            return self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += round(seconds * 1_000_000)


_BOUNDARIES = ("BEGIN", "COMMIT", "ROLLBACK")
_LOG = re.compile(r"(?:INTO|UPDATE|FROM) audit_")
_JOBS = re.compile(r"(?:INTO|UPDATE|FROM) jobs\b|procrastinate_")
_ANY_KEY = re.compile(r"SELECT api_keys\.seq\s+FROM api_keys")


@dataclass
class Counted:
    """The statements since the count began, and the number of transactions with statements.

    The audit log's statements are counted separately. Two checks run at random times and are not
    counted: a worker looks for jobs, and each second the server looks whether it needs a key.
    """

    statements: list[str] = field(default_factory=list)
    transactions: int = 0
    log_statements: list[str] = field(default_factory=list)
    # Threads whose transaction has run no counted statement yet.
    _begun: set[int] = field(default_factory=set)

    def note(self, statement: str) -> None:
        word = statement.lstrip().split(None, 1)[0].upper()
        if word == "BEGIN":
            self._begun.add(threading.get_ident())
        elif _LOG.search(statement):
            self.log_statements.append(statement)
        elif (
            word not in _BOUNDARIES
            and not _JOBS.search(statement)
            and not _ANY_KEY.match(statement)
        ):
            self.statements.append(statement)
            self.transactions += threading.get_ident() in self._begun
            self._begun.discard(threading.get_ident())


@contextmanager
def count_statements(store: SqlStore) -> Iterator[Counted]:
    """Count all statements of the store's connections within the block.

    `with count_statements(store) as counted`.
    """
    counted = Counted()

    def note(
        _connection: Any, _cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool
    ) -> None:
        counted.note(statement)

    # Prepared statements go directly to the driver, all others through SQLAlchemy.
    store.statements.observers.append(counted.note)
    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield counted
    finally:
        event.remove(store.engine, "before_cursor_execute", note)
        store.statements.observers.remove(counted.note)


def delete_documents(tx: Transaction, owner_id: str) -> None:
    while deletion := next_deletion(tx, owner_id, 4096):
        for step in deletion.steps():
            assert deletion.run(tx, step)


def flush(tx: Transaction, owner_id: str, most: int = flushing.FLUSHED_AT_ONCE) -> int:
    """Index, then flush at most this number of the oldest rows of the write buffer.

    Returns the number of flushed rows.
    """
    delete_documents(tx, owner_id)
    lock_partition(tx, owner_id)
    while packed := flushing.pack_rows(tx, owner_id, most):
        if flushing.write_rows(tx, packed):
            return len(packed.rows)
    return 0


_BRIEFLY = 0.1
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def overlapped(
    store: Store, first: Callable[[Transaction], Any], second: Callable[[Transaction], Any]
) -> tuple[Any, Any]:
    """Run both units at once; return their results or exceptions.

    On PostgreSQL the first commits once the second waits for it, or soon after.
    """
    has_written = threading.Event()
    has_begun = threading.Event()

    def early(tx: Transaction) -> Any:
        result = first(tx)
        has_written.set()
        if isinstance(store, PostgresStore):
            assert has_begun.wait(LIMIT)
            end = time.monotonic() + _BRIEFLY
            while (
                time.monotonic() < end and not tx.connection.exec_driver_sql(_WAITING).scalar_one()
            ):
                time.sleep(0.002)
        return result

    def late(tx: Transaction) -> Any:
        assert has_written.wait(LIMIT)
        has_begun.set()
        return second(tx)

    one, two = await asyncio.gather(store.write(early), store.write(late), return_exceptions=True)
    return one, two


class Held:
    """Holds the database at the first statement with this beginning, until released."""

    def __init__(self, store: SqlStore, beginning: str) -> None:
        self._observers = store.statements.observers
        self._beginning = beginning
        self._reached = threading.Event()
        self._released = threading.Event()

    def __enter__(self) -> "Held":
        self._observers.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        # The listener stays, as it may be running now. It holds the database only once.
        self._reached.set()
        self._released.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, LIMIT)

    def release(self) -> None:
        self._released.set()

    def _note(self, statement: str) -> None:
        if statement.startswith(self._beginning) and not self._reached.is_set():
            self._reached.set()
            self._released.wait(LIMIT)


async def broken(store: SqlStore, what: str) -> None:
    """Make the database refuse this operation from now on, as a full disk would.

    `await broken(store, "INSERT ON steps")`.
    """
    if store.engine.dialect.name == "sqlite":
        trigger = (
            f"CREATE TRIGGER broken BEFORE {what} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
    else:
        refuse = "BEGIN RAISE integrity_constraint_violation USING MESSAGE = 'disk is full'; END"
        function = f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refuse} $$"
        await store.write(lambda tx: tx.run(text(function)))
        event, _, when = what.partition(" WHEN ")
        where = f"WHEN ({when})" if when else ""
        trigger = (
            f"CREATE TRIGGER broken BEFORE {event} FOR EACH ROW {where} EXECUTE FUNCTION refuse()"
        )
    await store.write(lambda tx: tx.run(text(trigger)))


async def mended(store: SqlStore) -> None:
    undo = (
        "DROP TRIGGER broken"
        if store.engine.dialect.name == "sqlite"
        else "DROP FUNCTION refuse CASCADE"
    )
    await store.write(lambda tx: tx.run(text(undo)))


class DyingStore:
    """A store whose server is killed after some writes."""

    def __init__(self, store: Any, writes: int) -> None:
        self.clock, self._store, self._left = store.clock, store, writes
        self.read = store.read

    async def write(self, work: Any) -> Any:
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1
        return await self._store.write(work)


@contextmanager
def killed_after(runtime: Runtime, writes: int) -> Iterator[None]:
    store, indexing = runtime.store, runtime.indexing
    runtime.store = DyingStore(store, writes)  # type: ignore[assignment]
    runtime.indexing = replace(indexing, store=runtime.store)
    try:
        yield
    finally:
        runtime.store, runtime.indexing = store, indexing


class _RolledBack(Exception):
    """Ends the first run of a unit of work."""


def write_twice(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each unit of work run, be rolled back, and run again, as after a deadlock."""
    write = store.write

    async def write_again(work: Callable[[Transaction], Any]) -> Any:
        def run_and_roll_back(tx: Transaction) -> None:
            work(tx)
            raise _RolledBack

        with suppress(_RolledBack):
            await write(run_and_roll_back)
        return await write(work)

    monkeypatch.setattr(store, "write", write_again)


class Killed(Exception):
    """Represents the end of the process."""


@contextmanager
def killed_at(store: SqlStore, place: int) -> Iterator[None]:
    """Do not run the statement with this number (from 1), as if the process died there."""
    left = place

    def note(sql: str) -> None:
        nonlocal left
        if sql.split(None, 1)[0].upper() not in ("BEGIN", "COMMIT", "ROLLBACK"):
            left -= 1
            if not left:
                raise Killed

    def before(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        note(statement)

    store.statements.observers.append(note)
    event.listen(store.engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(store.engine, "before_cursor_execute", before)
        store.statements.observers.remove(note)
