"""What a driver's error says of its database: whether it is down, full, read-only or damaged, and what to do then."""

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import DBAPIError, StatementError

from ricordo.errors import Collision, DatabaseFailed, DatabaseFailure, Invalid, RicordoError

log = logging.getLogger(__name__)
# Below this many bytes nothing can be stored safely: SQLite writes a page of its log, and of its index of the log, at least.
LEAST_SPACE = 1024**2
# SQLite's primary result codes, without what the extended ones add.
_SQLITE_KINDS: dict[int, DatabaseFailure] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_PERM: "read-only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}
# PostgreSQL's classes and codes (appendix A of its manual).
_POSTGRES_KINDS: dict[str, DatabaseFailure] = {
    "53100": "full",
    "25006": "read-only",
    "XX001": "damaged",
    "XX002": "damaged",
}
_ADVICE: dict[DatabaseFailure, str] = {
    "full": "The disk is full. Free some space; a running server goes on by itself then.",
    "read-only": "It cannot be written. Give the user who runs Ricordo the right to write its files, and see that the disk is "
    "not mounted read-only.",
    "damaged": "Some of its pages are damaged; `ricordo doctor` says of which table. Restore it from a backup.",
}


def kind_of(error: BaseException, path: Path | None = None) -> DatabaseFailure:
    """Return what is wrong with the database; `path` is the file of one on SQLite, whose disk is looked at too."""
    cause = cause_of(error)
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        known = _SQLITE_KINDS.get(code & 0xFF)
        if known is None and path is not None and has_no_space(path):
            return "full"  # a log, or its index, that cannot be made there, is an input or output error to SQLite
        return known or "down"
    return _POSTGRES_KINDS.get(getattr(cause, "sqlstate", None) or "", "down")


def advice_for(kind: DatabaseFailure, otherwise: str) -> str:
    """Return what to do about it, which is known but for a database that is down."""
    return _ADVICE.get(kind, otherwise)


def has_no_space(path: Path) -> bool:
    """Return whether the disk of a file is full."""
    try:
        return shutil.disk_usage(path.parent).free < LEAST_SPACE
    except OSError:
        return False


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's own error."""
    return error.orig if isinstance(error, DBAPIError) and error.orig else error


def reason_of(error: BaseException) -> str:
    """Return the driver's first line, without a full stop: further ones may quote what people said."""
    return str(cause_of(error)).partition("\n")[0].strip().rstrip(".")


@contextmanager
def plain_errors(driver: ModuleType, advice: str, path: Path | None = None) -> Iterator[None]:
    """Raise Collision, DatabaseFailed or Invalid for a driver's errors; `advice` is for a database that is down."""
    try:
        yield
    except (DBAPIError, driver.Error) as error:
        cause = cause_of(error)
        if isinstance(cause, RicordoError):
            raise cause from None
        if isinstance(cause, driver.IntegrityError):
            raise Collision(
                f"The database refused it: {reason_of(error)}. Choose another name, or read what is there."
            ) from error
        are_ours = (driver.ProgrammingError, driver.DataError, driver.NotSupportedError)
        if isinstance(cause, are_ours) or not isinstance(cause, driver.Error):
            raise  # a statement or a value of ours is wrong
        reason, kind = reason_of(error), kind_of(error, path)
        log.warning("the database failed", extra={"reason": reason, "kind": kind})
        words = f"The database failed: {reason}. Nothing was changed. {advice_for(kind, advice)}"
        raise DatabaseFailed(words, kind) from error
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
