"""What the stores of all databases share: one unit of work on one connection, and a driver's errors told in our own words."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, StatementError

from ricordo.domain.clock import Clock
from ricordo.errors import Collision, Invalid, RicordoError, Unavailable
from ricordo.storage.prepared import Statements
from ricordo.storage.store import Transaction, log, warn_if_slow

T = TypeVar("T")


class Units:
    """The base of a store: its engine, its prepared statements, what it remembers, and how a unit of work runs."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self.statements = Statements(engine.dialect)
        self.cache: dict[Any, Any] = {}

    def _run(self, connection: Connection, begin: str, work: Callable[[Transaction], T]) -> T:
        with connection.begin():
            self._begin(connection, begin)
            tx = Transaction(connection, self.clock, self.statements, self.cache)
            result = work(tx)
        for callback in tx.after_commit:
            callback()
        return result

    def _begin(self, connection: Connection, begin: str) -> None:
        connection.exec_driver_sql(begin)


def timed(write: Callable[[Callable[[Transaction], T]], T], work: Callable[[Transaction], T]) -> T:
    """What `write` makes of `work`, with a warning in the log where it took long."""
    started = time.monotonic()
    try:
        return write(work)
    finally:
        warn_if_slow(work, started)


@contextmanager
def plain_errors(driver: ModuleType, advice: str) -> Iterator[None]:
    """Raise Collision, Unavailable or Invalid for what the driver raises by itself or through SQLAlchemy.

    `advice` says what to do where the database failed.
    """
    try:
        yield
    except (IntegrityError, driver.IntegrityError) as error:
        raise Collision(
            f"The database refused it: {reason_of(error)}. Choose another name, or read what is there."
        ) from error
    except (OperationalError, driver.OperationalError) as error:
        reason = reason_of(error)
        log.warning("the database failed", extra={"reason": reason})
        raise Unavailable(f"The database failed: {reason}. Nothing was changed. {advice}") from error
    except StatementError as error:
        raise error.orig if isinstance(error.orig, RicordoError) else error from None
    except OverflowError as error:
        raise Invalid("A number is too large to be stored. Send numbers of at most 64 bits.") from error
    except UnicodeEncodeError as error:
        raise Invalid("The text holds half a character (a lone surrogate). Send whole characters.") from error


def reason_of(error: BaseException) -> str:
    """The driver's first line, without a full stop: further ones may quote what people said."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return str(cause).partition("\n")[0].strip().rstrip(".")
