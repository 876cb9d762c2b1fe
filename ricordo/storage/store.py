"""Units of work: async callers hand in plain functions, each of which is one transaction in a worker thread.

A function that takes a Transaction never awaits and never opens another; model, embedder and tool calls happen in between.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from sqlalchemy import Connection, Executable
from sqlalchemy.sql.functions import FunctionElement

from ricordo.domain.clock import Clock
from ricordo.errors import Conflict, Invalid
from ricordo.storage.prepared import Prepared, Statements

T = TypeVar("T")
log = logging.getLogger(__name__)
SLOW_WRITE = 0.1  # seconds; a write holds up every other writer


class Overtaken(Conflict):
    """Another transaction changed a row after this one read it. Where that can happen, the store runs the unit again."""


class Transaction:
    """One open transaction. What is done through it happens whole or not at all."""

    __slots__ = ("_statements", "after_commit", "cache", "clock", "connection", "has_written")

    def __init__(self, connection: Connection, clock: Clock, statements: Statements, cache: dict[Any, Any]) -> None:
        self.connection = connection
        self.clock = clock
        # What this process remembers of the database, to be fast: never the truth, and gone when the store is closed.
        self.cache = cache
        # Called once the transaction is committed, in its thread; not at all where it is rolled back.
        self.after_commit: list[Callable[[], None]] = []
        # What is read after a write may be rolled back, so nothing may be remembered of it.
        self.has_written = False
        self._statements = statements

    def run(self, statement: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> int:
        """Execute, once or for each of several values; returns the number of rows that were matched."""
        self.has_written = True
        if not values:
            return 0 if isinstance(values, Sequence) else self.connection.execute(statement).rowcount
        if not isinstance(values, Mapping) and (at_once := self._statements.at_once(statement, values)):
            cursor = self._cursor(at_once)
            cursor.execute(at_once.sql, at_once.of(values))
            return int(cursor.rowcount)
        prepared = self._statements.prepare(statement, values if isinstance(values, Mapping) else values[0])
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
        """The first row, or None."""
        rows = self.all(statement, values)
        return rows[0] if rows else None

    def lock(self, statement: Executable, values: Mapping[str, Any]) -> None:
        """Lock the rows of a `with_for_update` until the transaction ends; nothing where only one transaction writes at a time."""
        if self.connection.dialect.name != "sqlite":
            self.all(statement, values)

    def _cursor(self, prepared: Prepared) -> Any:
        for observer in self._statements.observers:
            observer(prepared.sql)
        return self.connection.connection.cursor(**prepared.cursor)


class Store(Protocol):
    """The database: a unit of work is one call, one thread hop and one transaction."""

    clock: Clock

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on one consistent view; it must not write."""
        ...

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` and commit, or roll all of it back when it raises."""
        ...

    async def close(self) -> None:
        """Let go of the database once running units are done."""
        ...


class each(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: column.op("IN")(each(ids))
    """The items of one JSON list parameter as rows, so that a list of any length is one cached statement."""

    name = "each"
    inherit_cache = True


def to_json(value: Any) -> str:
    """The serialiser of JSON columns."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError as error:
        # Half a surrogate pair, or a number of more than 64 bits: JSON may carry them, a database may not.
        raise Invalid(
            f"This cannot be stored: {error}. Send whole characters, and numbers of at most 64 bits."
        ) from error


def from_json(text: str | bytes) -> Any:
    """The mirror of `to_json`."""
    return orjson.loads(text)


def warn_if_slow(work: Callable[..., Any], started: float) -> None:
    """Log a write that held the database for longer than SLOW_WRITE; `started` is a `time.monotonic()`."""
    if (seconds := time.monotonic() - started) > SLOW_WRITE:
        log.warning(
            "slow write", extra={"work": getattr(work, "__qualname__", repr(work)), "seconds": round(seconds, 3)}
        )
