"""Units of work: async callers hand in plain functions, each of which is one transaction in a worker thread.

A function that takes a Transaction never awaits and never opens another; model, embedder and tool calls happen in between.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from sqlalchemy import Connection, Executable, Row
from sqlalchemy.sql.functions import FunctionElement

from ricordo.domain.clock import Clock
from ricordo.errors import Invalid

T = TypeVar("T")
log = logging.getLogger(__name__)
SLOW_WRITE = 0.1  # seconds; a write holds up every other writer


class Transaction:
    """One open transaction. What is done through it happens whole or not at all."""

    __slots__ = ("clock", "connection")

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock

    def run(self, statement: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> int:
        """Execute; returns the number of rows that were matched."""
        if isinstance(values, Sequence) and not values:
            return 0
        return self.connection.execute(statement, values).rowcount

    def all(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Every row."""
        return self.connection.execute(statement, values).all()

    def first(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Row[Any] | None:
        """The first row, or None."""
        return self.connection.execute(statement, values).first()


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
