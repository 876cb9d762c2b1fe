"""Units of work: async callers pass plain functions, each of which is one transaction in a worker thread.

A function that takes a Transaction never awaits and never opens another; model, embedder and tool calls happen in between.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

import orjson
from sqlalchemy import Connection, Engine, Executable, NullPool
from sqlalchemy.sql.functions import FunctionElement

from ricordo.domain.clock import Clock
from ricordo.domain.quotas import MemoryQuotas
from ricordo.errors import Conflict, Invalid
from ricordo.storage.engine.statements import PreparedStatement, Statements

T = TypeVar("T")
log = logging.getLogger(__name__)
QUOTAS = MemoryQuotas()
SLOW_WRITE = 0.1  # seconds; a write holds up every other writer


class Overtaken(Conflict):
    """Another transaction changed a row after this one read it. Where that can happen, the store runs the unit again."""


class Transaction:
    """One open transaction. What is done through it happens whole or not at all."""

    __slots__ = (
        "_statements",
        "after_commit",
        "cache",
        "clock",
        "connection",
        "has_written",
        "history_bytes",
        "quotas",
    )

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        statements: Statements,
        cache: dict[Any, Any],
        quotas: MemoryQuotas = QUOTAS,
    ) -> None:
        self.connection = connection
        self.clock = clock
        # How much memory may hold, for whoever writes it.
        self.quotas = quotas
        # What this process knows of the database, to be fast; the store starts with it empty.
        self.cache = cache
        # Called once the transaction is committed, in its thread; not at all where it is rolled back.
        self.after_commit: list[Callable[[], None]] = []
        # What is read after a write may be rolled back, so it may not be cached.
        self.has_written = False
        # By chain, how large its history was when this transaction first asked for room in it.
        self.history_bytes: dict[str, int] = {}
        self._statements = statements

    def run(
        self,
        statement: Executable,
        values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Execute, once or for each of several values; returns the number of rows that were matched."""
        self.has_written = True
        if not values:
            return (
                0 if isinstance(values, Sequence) else self.connection.execute(statement).rowcount
            )
        if not isinstance(values, Mapping) and (
            bulk := self._statements.bulk_insert(statement, values)
        ):
            cursor = self._cursor(bulk)
            cursor.execute(bulk.sql, bulk.bind_rows(values))
            return int(cursor.rowcount)
        prepared = self._statements.prepare(
            statement, values if isinstance(values, Mapping) else values[0]
        )
        if prepared is None:
            return self.connection.execute(statement, values).rowcount
        cursor = self._cursor(prepared)
        if isinstance(values, Mapping):
            cursor.execute(prepared.sql, prepared.bind(values))
        else:
            cursor.executemany(prepared.sql, prepared.bind_all(values))
        return int(cursor.rowcount)

    def all(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Every row. With `values` the statement should be one that is built once, at import: it is compiled once too."""
        prepared = self._statements.prepare(statement, values) if values else None
        if values is None or prepared is None:
            return self.connection.execute(statement, values).all()
        cursor = self._cursor(prepared)
        cursor.execute(prepared.sql, prepared.bind(values))
        return prepared.read(cursor.fetchall())

    def first(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Any:
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def lock(self, statement: Executable, values: Mapping[str, Any]) -> None:
        """Lock the rows of a `with_for_update` until the transaction ends; nothing where only one transaction writes at a time."""
        if self.connection.dialect.name != "sqlite":
            self.all(statement, values)

    def _cursor(self, prepared: PreparedStatement) -> Any:
        for observer in self._statements.observers:
            observer(prepared.sql)
        return self.connection.connection.cursor(**prepared.cursor)


class Store(Protocol):
    """The database: a unit of work is one call, one thread hop and one transaction."""

    clock: Clock

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view; it must not write."""

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` and commit, or roll all of it back when it raises."""

    def require_in_place(self) -> None:
        """Raise Unavailable where the database's files are not where they were."""

    async def close(self) -> None:
        """Close the database once running units are done."""


class SqlStore:
    """The base of a store: worker threads with a connection each, prepared statements, a cache, and how a unit of work runs."""

    begin_read = "BEGIN"
    begin_write = "BEGIN"

    def __init__(self, engine: Engine, clock: Clock, readers: Executor, writers: Executor) -> None:
        self.engine = engine
        self.clock = clock
        self.statements = Statements(engine.dialect)
        self.cache: dict[Any, Any] = {}
        self.quotas = QUOTAS
        self._readers, self._writers = readers, writers
        self._local = threading.local()
        self._connections: set[Connection] = set()

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view; it must not write. It may run again where the connection was lost."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._unit, self.begin_read, work
        )

    async def write(self, work: Callable[[Transaction], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, self._write, work)

    def require_in_place(self) -> None:
        """Raise Unavailable where the database's files are not where they were; a server's database has none."""

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        started = time.monotonic()
        try:
            return self._unit(self.begin_write, work)
        finally:
            if (seconds := time.monotonic() - started) > SLOW_WRITE:
                # Of a partial function the name alone: what it is given may be someone's text.
                name = getattr(getattr(work, "func", work), "__qualname__", type(work).__name__)
                log.warning("slow write", extra={"work": name, "seconds": round(seconds, 3)})

    def _unit(self, begin: str, work: Callable[[Transaction], T]) -> T:
        raise NotImplementedError

    def _run(self, connection: Connection, begin: str, work: Callable[[Transaction], T]) -> T:
        with connection.begin():
            self._begin(connection, begin)
            tx = Transaction(connection, self.clock, self.statements, self.cache, self.quotas)
            result = work(tx)
        for callback in tx.after_commit:
            callback()
        return result

    def _begin(self, connection: Connection, begin: str) -> None:
        connection.exec_driver_sql(begin)

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.engine.connect()
            self._connections.add(connection)
        return connection

    def _close(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        for connection in self._connections:
            connection.close()


class each(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: column.op("IN")(each(ids))
    """The items of one JSON list parameter as rows, so that a list of any length is one cached statement."""

    name = "each"
    inherit_cache = True


def to_json(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError as error:
        # Half a surrogate pair, or a number of more than 64 bits: JSON may carry them, a database may not.
        raise Invalid(
            f"This cannot be stored: {error}. Send whole characters, and numbers of at most 64 bits."
        ) from error


ENGINE_OPTIONS: Mapping[str, Any] = {
    "poolclass": NullPool,  # each worker thread keeps its connection
    "hide_parameters": True,  # errors are logged, and what people said must not be
    "json_serializer": to_json,
    "json_deserializer": orjson.loads,
}
