"""What `ricordo doctor` asks of the database file, without changing it or holding it."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no database yet."""


@dataclass(frozen=True, slots=True)
class InUse:
    """A running server holds it."""


@dataclass(frozen=True, slots=True)
class Sound:
    """It can be read and holds together."""

    schema: int
    size: int


@dataclass(frozen=True, slots=True)
class Broken:
    """It cannot be read, or does not hold together."""

    reason: str


def check_database(path: Path) -> Absent | InUse | Sound | Broken:
    """Look at the database."""
    if not path.exists() or path.stat().st_size == 0:
        return Absent()
    try:
        # Only a look at the lock: a server that starts meanwhile is not kept from it.
        with FileLock(path.with_suffix(".lock"), timeout=0, mode=0o600):
            pass
    except Timeout:
        return InUse()
    except OSError as error:
        return Broken(f"{path} cannot be locked: {error.strerror}.")
    try:
        return _read(path)
    except sqlite3.Error as error:
        return Broken(f"{path} cannot be read: {error}. Restore it from a backup.")


def _read(path: Path) -> Sound | Broken:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            return Broken(f"{path} is damaged: {verdict}. Restore it from a backup.")
        (schema,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_versions").fetchone()
    size = sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())
    return Sound(int(schema), size)
