"""Open, read, lock or check the database that the settings name."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from ricordo.domain.clock import Clock, SystemClock
from ricordo.domain.quotas import MEGABYTE, MemoryQuotas
from ricordo.errors import Conflict, DatabaseFailed, Unavailable
from ricordo.settings import SQLITE, Settings
from ricordo.storage.engine import file_mark, sqlite
from ricordo.storage.engine.failures import advice_for, has_no_space, kind_of, reason_of
from ricordo.storage.engine.statements import Statements
from ricordo.storage.engine.store import SqlStore, Store, Transaction
from ricordo.storage.migrations import HALF_COPIED, MIGRATIONS, UNFINISHED, schema_of

_MISSING_EXTRA = (
    "RICORDO_DATABASE_URL names PostgreSQL, which needs an extra. "
    "Install it: pip install 'ricordo[postgres]'"
)
_WRITE_PATIENCE = 1.0
_UNCHANGED_UPDATE = text(
    "UPDATE schema_versions SET name = name"
    " WHERE version = (SELECT max(version) FROM schema_versions)"
)
_TRIES = 10
PAUSE_SECONDS = 0.1
_COUNT_SERVERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    "pg_backend_pid() AND backend_type = 'client backend' AND application_name = :name"
)


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """The result of `check`.

    Attributes:
        state: A usable database is "sound" on SQLite, and "shared" on PostgreSQL.
        reason: The fault of a broken database.
        schema: The version of the schema; 0: none yet.
        size: The size in bytes.
        version: The version of the PostgreSQL server.
        name: The name of the PostgreSQL database.
        vectors: A phrase about pgvector in the PostgreSQL database.
        servers: The number of connections of Ricordo servers, on PostgreSQL.
    """

    state: Literal["absent", "in use", "sound", "shared", "broken"]
    reason: str = ""
    schema: int = 0
    size: int = 0
    version: str = ""
    name: str = ""
    vectors: str = ""
    servers: int = 0


def open_store(settings: Settings, clock: Clock | None = None) -> Store:
    """Open the database with its schema up to date.

    Args:
        settings: The settings that name the database, with the quotas on memory.
        clock: The clock of the store; None: that of the system.

    Raises:
        Conflict: Another process uses the SQLite database.
        Unavailable: The database cannot be opened, used, backed up or migrated.
    """
    store = _open(settings, clock)
    store.quotas = MemoryQuotas(
        block_kb=settings.max_block_kb,
        memory_mb=settings.max_memory_mb,
        blocks=settings.max_memory_blocks,
        listed_characters=settings.max_listed_characters,
        # While a list is answered, its blocks are in memory twice, and a character takes up to four
        # bytes. So each character can take up to eight bytes of the answer's memory.
        list_characters=settings.max_answer_mb * MEGABYTE // 8,
        history_mb=settings.max_history_mb,
    )
    return store


def _open(settings: Settings, clock: Clock | None) -> SqlStore:
    if settings.postgres_url is None:
        return sqlite.open_sqlite(
            settings.database_path, durability=settings.durability, clock=clock
        )
    store: SqlStore = _postgres().open_postgres(
        settings.postgres_url,
        connections=settings.database_connections,
        durability=settings.durability,
        backups=settings.data_dir / "backups",
        clock=clock,
    )
    return store


def folders_of(settings: Settings) -> tuple[Path, ...]:
    """Return the folders with this server's files: data folder and SQLite folder.

    Args:
        settings: The settings that name the data folder and the database.
    """
    if settings.postgres_url:
        return (settings.data_dir,)
    return (settings.data_dir, settings.database_path.parent)


@contextmanager
def read_beside(settings: Settings) -> Iterator[Transaction]:
    """Read one snapshot while a server may run, without writing or locking.

    Args:
        settings: The settings that name the database.

    Yields:
        A transaction that may only read.

    Raises:
        NotFound: There is no database.
        Conflict: Its schema is not that of this Ricordo.
        Unavailable: It cannot be read.
    """
    if settings.postgres_url is None:
        access = sqlite.read_only(settings.database_path)
    else:
        access = _postgres().read_only(settings.postgres_url)
    with access as connection, read_transaction(connection):
        require_current(connection, address(settings))
        yield Transaction(connection, SystemClock(), Statements(connection.dialect), {})


def _postgres() -> Any:
    try:
        # Imports psycopg, an optional extra.
        from ricordo.storage.engine import postgres
    except ImportError as error:
        raise Unavailable(_MISSING_EXTRA) from error
    return postgres


def address(settings: Settings) -> str:
    """Return the address of the database without its password.

    Args:
        settings: The settings that name the database.

    Returns:
        An address such as `sqlite:///…`, or that of PostgreSQL without its options.
    """
    if settings.postgres_url is None:
        return f"{SQLITE}{settings.database_path}"
    return make_url(settings.postgres_url).render_as_string(hide_password=True).partition("?")[0]


def queue_address(settings: Settings) -> str | None:
    """Return the address of PostgreSQL for the job queue, in the form of libpq; None for SQLite.

    Args:
        settings: The settings that name the database.
    """
    if settings.postgres_url is None:
        return None
    return str(_postgres().queue_address(settings.postgres_url))


@contextmanager
def exclusive_access(
    settings: Settings, *, is_new: bool = False, force: bool = False
) -> Iterator[Connection]:
    """Connect while no server uses the database.

    Args:
        settings: The settings that name the database.
        is_new: Create the file of an SQLite database if it is missing. On PostgreSQL the database
            must exist in any case.
        force: Connect even while a server uses the database. While another program opens or copies
            a PostgreSQL database, Conflict is raised all the same.

    Raises:
        Conflict: A server uses the database, or another program opens or copies it.
        NotFound: There is no SQLite file or it is empty, and `is_new` is not set.
        Unavailable: The database cannot be opened or written, or its last writes are missing.
    """
    if settings.postgres_url is not None:
        with _exclusive_postgres(settings, settings.postgres_url, force=force) as connection:
            yield connection
        return
    path = settings.database_path
    if is_new:
        sqlite.make_private_file(path)
    else:
        sqlite.require_file(path)
        sqlite.require_writable(path)
    lock = _lock_of(path, force=force)
    try:
        if lock and not is_new:
            file_mark.find_missing_writes(path)
        if force and lock:
            lock.release()
        # With the durability "full", the work is on the disk once it is committed.
        with sqlite.first_connection(sqlite.make_engine(path, "full"), path) as connection:
            yield connection
    finally:
        if lock:
            lock.release()


def _lock_of(path: Path, *, force: bool) -> FileLock | None:
    """Take the database's lock.

    With `force`, return None if a server has the lock or no server ever used the database.
    """
    if not force:
        return sqlite.lock_file(path)
    if not file_mark.mark_path(path).exists():
        return None
    try:
        return sqlite.lock_file(path)
    except (Conflict, OSError):
        return None


@contextmanager
def _exclusive_postgres(settings: Settings, url: str, *, force: bool) -> Iterator[Connection]:
    postgres = _postgres()
    with postgres.first_connection(postgres.make_engine(url, "full")) as connection:
        postgres.require_usable(connection)
        # A copy is read in one transaction, which may be idle while the other database works.
        connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        # A server takes this lock first when it starts, so a starting server waits until this block
        # ends.
        is_ours = connection.exec_driver_sql(
            f"SELECT pg_try_advisory_lock({postgres.SCHEMA_LOCK})"
        ).scalar_one()
        others = _servers_left(connection)
        if not is_ours:
            raise Conflict(
                f"{address(settings)} is being opened or copied by another program, or is both "
                "source and target of this move. Wait, or name another database."
            )
        try:
            if others and not force:
                raise Conflict(
                    f"{address(settings)} is in use: Ricordo servers have {others} connections to "
                    "it. Stop them all first."
                )
            yield connection
        finally:
            # Unlock at once: PostgreSQL needs a moment to notice that a session has ended.
            with suppress(DBAPIError):
                connection.rollback()
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({postgres.SCHEMA_LOCK})")


def _servers_left(connection: Connection) -> int:
    """Count the connected servers, allowing stopped ones a second to disappear.

    PostgreSQL ends their sessions a moment after they stop.
    """
    for tries_left in reversed(range(_TRIES)):
        others = count_servers(connection)
        # PostgreSQL keeps one snapshot of its sessions for a transaction, so this one must end.
        connection.rollback()
        if not others or not tries_left:
            break
        time.sleep(PAUSE_SECONDS)
    return others


def count_servers(connection: Connection) -> int:
    """Return the number of connections of Ricordo servers to this PostgreSQL database.

    Args:
        connection: A connection, which is not counted.
    """
    name = connection.engine.url.query["application_name"]
    return int(connection.execute(_COUNT_SERVERS, {"name": name}).scalar_one())


@contextmanager
def read_transaction(connection: Connection) -> Iterator[None]:
    """Open a transaction that reads from one snapshot of the database.

    Args:
        connection: A connection outside a transaction.
    """
    is_postgres = connection.dialect.name == "postgresql"
    with connection.begin():
        connection.exec_driver_sql(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_postgres else "BEGIN"
        )
        yield


async def require_savable(store: Store, settings: Settings) -> None:
    """Check that a row can be saved.

    The check rewrites a row unchanged. If another write takes longer than a second, that is no
    failure.

    Args:
        store: The store of the running server.
        settings: The settings that name its database.

    Raises:
        DatabaseFailed: The disk is full, the files are read-only, or the write failed.
        Unavailable: The files of the SQLite database were moved.
    """
    if settings.postgres_url is None:
        path = settings.database_path
        if has_no_space(path):
            raise DatabaseFailed("The disk of the database is full.", "full")
        sqlite.require_writable(path)
    with suppress(TimeoutError):
        async with asyncio.timeout(_WRITE_PATIENCE):
            await store.write(lambda tx: tx.run(_UNCHANGED_UPDATE))


def require_current(connection: Connection, address: str) -> None:
    """Raise an error unless the schema is that of this Ricordo.

    Args:
        connection: A connection to the database.
        address: The database's address for the message, without a password.

    Raises:
        Conflict: The schema is older or newer.
        Unavailable: The database is a half-finished copy, or too old to be migrated.
    """
    version = schema_of(connection)
    newest = len(MIGRATIONS)
    if version == HALF_COPIED:
        raise Unavailable(UNFINISHED)
    advice = "Start this Ricordo on it once"
    if version > newest:
        advice = "Start the newer Ricordo that wrote it"
    if version != newest:
        raise Conflict(
            f"{address} has schema {version}, but this Ricordo writes schema {newest}. {advice}, "
            "stop it, then repeat."
        )


def check(settings: Settings) -> DatabaseStatus:
    """Check the database without changing its content.

    An SQLite file that no server uses is locked for a moment.

    Args:
        settings: The settings that name the database.
    """
    if settings.postgres_url is None:
        return _check_file(settings.database_path)
    try:
        postgres = _postgres()
        with postgres.read_only(settings.postgres_url) as connection:
            schema = schema_of(connection)
            servers = count_servers(connection)
            if schema == HALF_COPIED:
                return DatabaseStatus("broken", UNFINISHED)
            size, version, name, vectors = postgres.describe(connection)
            if tables := postgres.damaged_tables(connection):
                reason = (
                    f"{address(settings)} is damaged in: {', '.join(tables)}. "
                    "Restore it from a backup."
                )
                return DatabaseStatus("broken", reason)
    except Unavailable as error:
        return DatabaseStatus("broken", str(error))
    return DatabaseStatus(
        "shared",
        schema=schema,
        size=size,
        version=version,
        name=name,
        vectors=vectors,
        servers=servers,
    )


def _check_file(path: Path) -> DatabaseStatus:
    engine = sqlite.make_engine(path, "normal")
    try:
        sqlite.require_writable(path)
        if not path.exists() or path.stat().st_size == 0:
            return DatabaseStatus("absent")
        # The lock is held only for a moment, and a server that starts meanwhile waits for it.
        lock = sqlite.lock_file(path)
        try:
            file_mark.find_missing_writes(path)
        finally:
            lock.release()
        with sqlite.first_connection(engine, path) as connection:
            if damage := sqlite.damage_of(connection):
                return DatabaseStatus(
                    "broken", f"{path} is damaged{damage}. Restore it from a backup."
                )
            schema = schema_of(connection)
    except Conflict:
        return DatabaseStatus("in use")
    except Unavailable as error:
        return DatabaseStatus("broken", _fault_of(path, error))
    except OSError as error:
        return DatabaseStatus("broken", f"{path} cannot be locked: {error.strerror}.")
    except Exception as error:
        # The file may be no database any more, so the driver may raise any of its errors.
        return DatabaseStatus("broken", _fault_of_driver(path, error))
    if schema == HALF_COPIED:
        return DatabaseStatus("broken", f"{path} cannot be used. {UNFINISHED}")
    return DatabaseStatus("sound", schema=int(schema), size=path.stat().st_size)


def _fault_of(path: Path, error: Unavailable) -> str:
    """Return the fault of a file that could not be opened, as far as this check can tell."""
    if not isinstance(error, DatabaseFailed) or error.kind != "damaged":
        return str(error)
    reason = reason_of(error.__cause__ or error)
    return f"{path} is damaged and cannot be read: {reason}. Restore it from a backup."


def _fault_of_driver(path: Path, error: Exception) -> str:
    kind = kind_of(error, path)
    restore = "Restore it from a backup."
    advice = restore if kind == "damaged" else advice_for(kind, restore)
    return f"{path} cannot be read: {reason_of(error)}. {advice}"
