"""Units of work: plain functions, each run as one transaction in a worker thread.

Async callers pass them to the store. A function with a Transaction never awaits and never opens
another transaction; calls of models, embedders and tools happen between transactions.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson
from sqlalchemy import Connection, Engine, Executable, NullPool
from sqlalchemy.sql.functions import FunctionElement

from ricordo.domain.clock import Clock
from ricordo.domain.quotas import MemoryQuotas
from ricordo.errors import Conflict, DatabaseFailed, Invalid
from ricordo.storage.engine.statements import PreparedStatement, Statements

T = TypeVar("T")
log = logging.getLogger(__name__)
QUOTAS = MemoryQuotas()
FAILURE_SECONDS = 15.0  # seconds after a failed write in which `require_writes` raises its error
SLOW_WRITE = 0.1  # seconds; a slower write is logged: on SQLite all other writers wait for it


class Overtaken(Conflict):
    """Another transaction changed a row after this transaction read it.

    Where that can happen, the store runs the unit again.
    """


@dataclass(slots=True, eq=False)
class Transaction:
    """One open transaction: either all of its changes happen, or none.

    Attributes:
        quotas: Limits on memory, for code that writes it.
        cache: This process's cache of the database; empty when the store opens.
        after_commit: Called after the commit, in the transaction's thread; not after a rollback.
        has_written: The transaction has written. Rows that it reads after that may be rolled back,
            so they are not cached.
        history_bytes: The size of each chain's history when this transaction first checked it, by
            chain id.
        locked_ids: The ids of the rows that this transaction has locked or inserted. A row must be
            locked before it is read for a change (see `Repository.updates`).
    """

    connection: Connection
    clock: Clock
    statements: Statements
    cache: dict[Any, Any]
    quotas: MemoryQuotas = QUOTAS
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    has_written: bool = False
    history_bytes: dict[str, int] = field(default_factory=dict)
    locked_ids: set[str] = field(default_factory=set)
    _cursors: dict[bool, Any] = field(default_factory=dict)

    def run(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Execute once, or once for each of several parameter sets.

        Args:
            statement: An INSERT, UPDATE or DELETE, built once, at import, if it has parameters.
            parameters: The parameters by name, or a list of such sets. An empty list does nothing.

        Returns:
            The number of matched rows.
        """
        self.has_written = True
        if not parameters:
            if isinstance(parameters, Sequence):
                return 0
            return self.connection.execute(statement).rowcount
        # SQLite runs in this process, so separate statements cost little there.
        if (
            self.statements.inserts_in_bulk
            and not isinstance(parameters, Mapping)
            and (bulk := self.statements.bulk_insert(statement, parameters))
        ):
            cursor = self._cursor(bulk)
            cursor.execute(bulk.sql, bulk.bind_rows(parameters))
            return int(cursor.rowcount)
        if isinstance(parameters, Mapping):
            first = parameters
        else:
            first = parameters[0]
        prepared = self.statements.prepared.get(statement) or self.statements.prepare(
            statement, first
        )
        if prepared is None:
            return self.connection.execute(statement, parameters).rowcount
        cursor = self._cursor(prepared)
        if isinstance(parameters, Mapping):
            cursor.execute(prepared.sql, prepared.bound(parameters))
        else:
            cursor.executemany(prepared.sql, [prepared.bound(row) for row in parameters])
        return int(cursor.rowcount)

    def all(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Any]:
        """Return every row.

        Args:
            statement: A select, or a statement that returns rows. With `parameters` it should be
                built once, at import: then it is also compiled once.
            parameters: Its parameters by name; None: it has none.
        """
        if parameters:
            prepared = self.statements.prepared.get(statement) or self.statements.prepare(
                statement, parameters
            )
        else:
            prepared = None
        if parameters is None or prepared is None:
            return self.connection.execute(statement, parameters).all()
        cursor = self._cursor(prepared)
        cursor.execute(prepared.sql, prepared.bound(parameters))
        return prepared.read(cursor.fetchall())

    def first(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the first row of a statement; None if there is no row.

        All rows are read, so the statement limits them.

        Args:
            statement: As in `all`.
            parameters: As in `all`.
        """
        rows = self.all(statement, parameters)
        return rows[0] if rows else None

    def lock(self, statement: Executable, parameters: Mapping[str, Any]) -> None:
        """Lock the row of a `with_for_update` statement until the transaction ends.

        Sends nothing on SQLite, where only one transaction writes at a time.

        Args:
            statement: A select with `with_for_update`, built once, at import.
            parameters: Its parameters by name, usually the row's `id`.
        """
        if self.connection.dialect.name != "sqlite":
            self.all(statement, parameters)
        if id := parameters.get("id"):
            self.locked_ids.add(id)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the changes made within the context after an error, and raise the error.

        The transaction can then continue. Contexts must not be nested.
        """
        callback_count = len(self.after_commit)
        locked_ids = set(self.locked_ids)
        self.has_written = True
        self.connection.exec_driver_sql("SAVEPOINT part")
        try:
            yield
        except Exception:
            # After a lost connection, the error of this statement replaces the first one.
            self.connection.exec_driver_sql("ROLLBACK TO SAVEPOINT part")
            del self.after_commit[callback_count:]
            self.locked_ids = locked_ids
            raise
        self.connection.exec_driver_sql("RELEASE SAVEPOINT part")

    def _cursor(self, prepared: PreparedStatement) -> Any:
        """Return this transaction's cursor: all rows of a statement are read before the next one.

        psycopg prepares the conversions of values once for each cursor.
        """
        for observer in self.statements.observers:
            observer(prepared.sql)
        cursor = self._cursors.get(prepared.is_binary)
        if cursor is None:
            options = {"binary": True} if prepared.is_binary else {}
            cursor = self._cursors[prepared.is_binary] = self.connection.connection.cursor(
                **options
            )
        return cursor


class Store(Protocol):
    """The database: a unit of work is one call, one thread hop and one transaction."""

    clock: Clock

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view; it must not write.

        It may run again if the connection was lost, as `write` says.

        Args:
            work: The unit of work. Its result is returned.
        """

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` and commit, or roll back all of it if it raises.

        On PostgreSQL `work` may run again, after a deadlock or a lost connection, or if it raises
        Overtaken. So it has no effects outside the transaction. It returns its results, and does
        not add to objects that existed before it. Effects that need the commit go to
        `Transaction.after_commit`.

        Args:
            work: The unit of work. Its result is returned.

        Raises:
            DatabaseFailed: The database is down, full, read-only or damaged, or lacks our tables.
        """

    def require_in_place(self) -> None:
        """Raise Unavailable if the database's files were moved."""

    def require_writes(self) -> None:
        """Raise DatabaseFailed if a write failed a moment ago."""

    async def close(self) -> None:
        """Close the database after the running units."""


class SqlStore:
    """The base of both stores.

    It has worker threads with connections, prepared statements and a cache, and runs units of work.
    """

    begin_read = "BEGIN"
    begin_write = "BEGIN"

    def __init__(self, engine: Engine, clock: Clock, readers: Executor, writers: Executor) -> None:
        self.engine = engine
        self.clock = clock
        self.statements = Statements(engine.dialect)
        self.cache: dict[Any, Any] = {}
        self.quotas = QUOTAS
        self._readers = readers
        self._writers = writers
        self._local = threading.local()
        self._connections: set[Connection] = set()
        self._failed_write: DatabaseFailed | None = None
        self._failed_at = 0.0

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view; it must not write.

        It may run again if the connection was lost.

        Args:
            work: The unit of work. Its result is returned.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._unit, self.begin_read, work
        )

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` and commit, or roll back all of it if it raises.

        It may run again, as `Store.write` says.

        Args:
            work: The unit of work. Its result is returned.

        Raises:
            DatabaseFailed: The database is down, full, read-only or damaged, or lacks our tables.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writers, self._write, work)

    def require_in_place(self) -> None:
        """Raise Unavailable if the database's files were moved.

        A PostgreSQL store has no files here.
        """

    def require_writes(self) -> None:
        """Raise DatabaseFailed if a write failed a moment ago.

        While a disk is full, a small write may succeed, so the flag ends only with time. But after
        a failure of the kind "read-only", the next successful write ends it. A lost connection to a
        server is no such failure: the next write opens another. Missing tables fail the reads too.
        """
        failure = self._failed_write
        if failure is None or time.monotonic() - self._failed_at > FAILURE_SECONDS:
            return
        if failure.kind not in ("down", "schema") or self.engine.dialect.name == "sqlite":
            raise DatabaseFailed(str(failure), failure.kind)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        started = time.monotonic()
        try:
            result = self._unit(self.begin_write, work)
        except DatabaseFailed as error:
            self._failed_write = error
            self._failed_at = time.monotonic()
            raise
        else:
            failure = self._failed_write
            if failure is not None and failure.kind == "read-only":
                self._failed_write = None  # one write shows that the database can be written again
            return result
        finally:
            if (seconds := time.monotonic() - started) > SLOW_WRITE:
                details = {"work": name_of(work), "seconds": round(seconds, 3)}
                log.warning("slow write", extra=details)

    def _unit(self, begin: str, work: Callable[[Transaction], T]) -> T:
        raise NotImplementedError

    def _run(self, begin: str, work: Callable[[Transaction], T]) -> T:
        connection = getattr(self._local, "connection", None) or self._connection()
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


def name_of(work: Callable[..., Any]) -> str:
    """Return the name of a unit of work for the log.

    A partial function is named without its arguments, since these may be a person's text.

    Args:
        work: The unit of work: a function, a partial function or another callable.
    """
    return str(getattr(getattr(work, "func", work), "__qualname__", type(work).__name__))


class each(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: column.op("IN")(each(ids))
    """The elements of a JSON list parameter as rows.

    So a list of any length is one cached statement.
    """

    name = "each"
    inherit_cache = True


def to_json(content: Any) -> str:
    """Return the content as JSON.

    Args:
        content: Values that JSON can hold. Keys may be numbers or other plain types, and become
            texts.

    Raises:
        Invalid: It holds a lone surrogate, a number of more than 64 bits, or another unfit value.
    """
    try:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError as error:
        # JSON may hold a lone surrogate or a number of more than 64 bits; a database may not.
        raise Invalid(
            f"This cannot be stored: {error}. Send whole characters, and numbers of at most 64 "
            "bits."
        ) from error


ENGINE_OPTIONS: Mapping[str, Any] = {
    "poolclass": NullPool,  # the stores keep their connections themselves
    "hide_parameters": True,  # errors are logged, and they must not contain people's texts
    "json_serializer": to_json,
    "json_deserializer": orjson.loads,
}
