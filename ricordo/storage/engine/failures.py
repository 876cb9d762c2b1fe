"""Failures of a database, read from driver errors, and advice for each kind."""

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import DBAPIError, StatementError

from ricordo.errors import Collision, DatabaseFailed, DatabaseFailure, Invalid, RicordoError

try:
    import resource
except ImportError:  # Windows has no such limits
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

log = logging.getLogger(__name__)
# Below this number of free bytes nothing can be stored safely. SQLite needs room for one page of
# its log and for one page of the log's index.
LEAST_SPACE = 1024**2
_LEAST_GROWTH = 64 * 1024
# SQLite's primary result codes, the low byte of the extended ones.
_SQLITE_KINDS: dict[int, DatabaseFailure] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_PERM: "read-only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}
# PostgreSQL's error codes (appendix A of its manual).
_POSTGRES_KINDS: dict[str, DatabaseFailure] = {
    "53100": "full",
    "25006": "read-only",
    "XX001": "damaged",
    "XX002": "damaged",
    # A table, column or schema is missing, or may not be used.
    "42P01": "schema",
    "42703": "schema",
    "3F000": "schema",
    "42501": "schema",
}
_ADVICE: dict[DatabaseFailure, str] = {
    "full": "The disk is full. Free some space; then start the server again. A running server "
    "continues by itself.",
    "read-only": "The database cannot be written. Give the user who runs Ricordo the right to "
    "write its files, and check that the disk is not mounted read-only. With PostgreSQL, check that "
    "the address leads to the primary server.",
    "damaged": "Some of its pages are damaged; `ricordo doctor` says of which table. Restore it from a "
    "backup.",
    "schema": "Check that this is Ricordo's database, that the search_path of its user leads to "
    "Ricordo's tables, and that the user may use them. If tables were dropped, restore a backup. A "
    "running server continues by itself.",
}


def kind_of(error: BaseException, path: Path | None = None) -> DatabaseFailure:
    """Return the kind of failure.

    Args:
        error: An error of the driver, or of SQLAlchemy with the driver's error in it.
        path: The file of an SQLite database, whose disk is checked too; None on PostgreSQL.
    """
    cause = cause_of(error)
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        kind = _SQLITE_KINDS.get(code & 0xFF)
        if kind is None and path is not None and has_no_space(path):
            # If a full disk prevents a log or its index, SQLite reports an input or output error.
            return "full"
        return kind or "down"
    return _POSTGRES_KINDS.get(getattr(cause, "sqlstate", None) or "", "down")


def advice_for(kind: DatabaseFailure, otherwise: str) -> str:
    """Return the advice for this kind; `otherwise` for a database that is down."""
    return _ADVICE.get(kind, otherwise)


def has_no_space(path: Path) -> bool:
    """Return True if the disk of a database is full, or its files are as large as they may be."""
    try:
        return shutil.disk_usage(path.parent).free < LEAST_SPACE or _is_at_limit(path)
    except OSError:
        return False


def _is_at_limit(path: Path) -> bool:
    """Return True if the system's limit of file sizes leaves no room (`ulimit -f`)."""
    if not HAS_LIMITS:
        return False
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    files = (path, path.with_name(f"{path.name}-wal"))
    return any(limit - file.stat().st_size < _LEAST_GROWTH for file in files if file.exists())


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's error, without SQLAlchemy's error around it."""
    if isinstance(error, DBAPIError) and error.orig:
        return error.orig
    return error


def reason_of(error: BaseException) -> str:
    """Return the first line of the driver's error, without a full stop.

    Further lines may quote people's texts.
    """
    return str(cause_of(error)).partition("\n")[0].strip().rstrip(".")


@contextmanager
def plain_errors(driver: ModuleType, advice: str, path: Path | None = None) -> Iterator[None]:
    """Translate a driver's errors inside the `with` block; our errors pass unchanged.

    Args:
        driver: The module of the driver: `sqlite3` or `psycopg`.
        advice: The advice in the message of a database that is down.
        path: The file of an SQLite database, whose disk is checked too; None on PostgreSQL.

    Raises:
        Collision: A unique or foreign key does not allow the row.
        DatabaseFailed: The database is down, full, read-only or damaged, or lacks our tables.
        Invalid: A number is too large, or a text holds half a character.
    """
    try:
        yield
    except (DBAPIError, driver.Error) as error:
        cause = cause_of(error)
        if isinstance(cause, RicordoError):
            raise cause from None
        if isinstance(cause, driver.IntegrityError):
            raise Collision(
                f"The database refused it: {reason_of(error)}. Choose another name, or read the "
                "existing entry."
            ) from error
        kind = kind_of(error, path)
        are_ours = (driver.ProgrammingError, driver.DataError, driver.NotSupportedError)
        is_ours = isinstance(cause, are_ours) and kind != "schema"
        if is_ours or not isinstance(cause, driver.Error):
            raise  # our own statement or parameter is wrong
        reason = reason_of(error)
        log.warning("the database failed", extra={"reason": reason, "kind": kind})
        message = f"The database failed: {reason}. Nothing was changed. {advice_for(kind, advice)}"
        raise DatabaseFailed(message, kind) from error
    except StatementError as error:
        raise error.orig if isinstance(error.orig, RicordoError) else error from None
    except OverflowError as error:
        raise Invalid(
            "A number is too large to be stored. Send numbers of at most 64 bits."
        ) from error
    except UnicodeEncodeError as error:
        raise Invalid(
            "The text holds half a character (a lone surrogate). Send whole characters."
        ) from error
