"""What `ricordo doctor` asks of the database, without changing it or holding it."""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ricordo.errors import Unavailable
from ricordo.settings import Settings
from ricordo.storage.database import MISSING
from ricordo.storage.migrations import HALF_COPIED, UNFINISHED
from ricordo.storage.sqlite import first_connection, make_engine


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
class Shared:
    """It is on a PostgreSQL server, which was reached. `schema` is 0 before the first start; `vectors` is pgvector's version."""

    schema: int
    size: int
    server: str
    name: str
    vectors: str | None


@dataclass(frozen=True, slots=True)
class Broken:
    """It cannot be read, or does not hold together."""

    reason: str


def check(settings: Settings) -> Absent | InUse | Sound | Shared | Broken:
    """Look at the database that the settings name."""
    url = settings.postgres_url
    return check_postgres(url) if url else check_database(settings.database_path)


def check_postgres(url: str) -> Shared | Broken:
    """Look at a database on PostgreSQL."""
    try:
        from ricordo.storage import postgres  # brings psycopg
    except ImportError:
        return Broken(MISSING)
    try:
        found = Shared(*postgres.look(url))
    except Unavailable as error:
        return Broken(str(error))
    return Broken(UNFINISHED) if found.schema == HALF_COPIED else found


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
    except Exception as error:
        # Whatever the driver meets in a file that is no database any more.
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0].rstrip(".")
        return Broken(f"{path} cannot be read: {reason}. Restore it from a backup.")


def _read(path: Path) -> Sound | Broken:
    engine = make_engine(path, "normal")
    try:
        with first_connection(engine, path) as connection:
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if verdict != "ok":
                return Broken(f"{path} is damaged: {verdict}. Restore it from a backup.")
            schema = connection.exec_driver_sql("SELECT coalesce(max(version), 0) FROM schema_versions").scalar_one()
    finally:
        engine.dispose()
    if schema == HALF_COPIED:
        return Broken(f"{path} cannot be used. {UNFINISHED}")
    return Sound(int(schema), path.stat().st_size)
