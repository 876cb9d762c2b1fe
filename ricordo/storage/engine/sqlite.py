"""SQLite: pragmas, one writer thread, reader threads and the folder lock."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.compiler import compiles

from ricordo.domain.clock import Clock, SystemClock
from ricordo.errors import Conflict, DatabaseFailed, NotFound, Unavailable
from ricordo.storage import migrations
from ricordo.storage.engine import file_mark, seal
from ricordo.storage.engine.backups import back_up
from ricordo.storage.engine.failures import (
    advice_for,
    kind_of,
    plain_errors,
    reason_of,
)
from ricordo.storage.engine.store import ENGINE_OPTIONS, SqlStore, Transaction, each
from ricordo.storage.engine.work_folders import make_private_folder

log = logging.getLogger(__name__)
T = TypeVar("T")
READERS = 4
_MARKED_AFTER = 1.0  # seconds
# A server waits this long for a check of `ricordo doctor`, which holds the lock only for a moment.
_CHECK_SECONDS = 1.0
_ADVICE = "Check that its disk has room."


@compiles(each, "sqlite")
def _each(element: each, compiler: Any, **options: Any) -> str:
    parameter: str = compiler.process(element.clauses, **options)
    return f"(SELECT value FROM json_each({parameter}))"  # noqa: S608 - the text of a bound parameter


class SqliteStore(SqlStore):
    """A store in one file, with one writer thread and a few readers.

    SQLite allows one writer, so callers wait for it here and never see "locked".
    """

    # IMMEDIATE takes the write lock at once. A transaction that reads first could fail later, when
    # it upgrades its lock.
    begin_write = "BEGIN IMMEDIATE"

    def __init__(self, engine: Engine, clock: Clock, lock: FileLock) -> None:
        readers = ThreadPoolExecutor(READERS, "sqlite-reader")
        super().__init__(engine, clock, readers, ThreadPoolExecutor(1, "sqlite-writer"))
        self._lock = lock
        self._path = Path(engine.url.database or "")
        self._is_mark_due = False
        self._is_closed = False
        try:
            self._files = self._writers.submit(self._enter_session).result()
        except BaseException:
            super()._close()
            raise

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` and commit, or roll back all of it if it raises.

        A second after a write, the mark file is written.

        Args:
            work: The unit of work. Its result is returned.

        Raises:
            Unavailable: The database's files were moved.
            DatabaseFailed: The database is down, full, read-only or damaged, or lacks our tables.
        """
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._writers, self._write, work)
        if not self._is_mark_due:
            self._is_mark_due = True
            loop.call_later(_MARKED_AFTER, self._mark_later)
        return result

    def require_in_place(self) -> None:
        if not self._files.are_in_place:
            raise self._files.moved()

    def _raw_connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = self._connection().connection.driver_connection  # type: ignore[assignment]
        return connection

    def _enter_session(self) -> file_mark.OpenFiles:
        with plain_errors(sqlite3, _ADVICE):
            connection = self._raw_connection()
            file_mark.enter(connection, file_mark.LIVE)
            file_mark.write_mark(connection, self._path)
        return file_mark.OpenFiles(self._path)

    def _mark_later(self) -> None:
        with suppress(RuntimeError):  # closed meanwhile; closing has written the mark
            self._writers.submit(self._mark)

    def _mark(self) -> None:
        self._is_mark_due = False
        if self._files.are_in_place:
            with suppress(sqlite3.Error):  # the next write reports the error
                file_mark.write_mark(self._raw_connection(), self._path)

    def _leave_session(self) -> None:
        if not self._files.are_in_place:
            log.error(
                "the database's files were moved or replaced, so they are left unchanged",
                extra={"file": str(self._path)},
            )
            file_mark.abandon(self._raw_connection())
            return
        # On a full disk the next start sees that this session was not closed.
        with suppress(sqlite3.Error):
            file_mark.enter(self._raw_connection(), file_mark.CLOSED)
            file_mark.write_mark(self._raw_connection(), self._path)

    def _unit(self, begin: str, work: Callable[[Transaction], T]) -> T:
        reads = begin == self.begin_read
        is_new = not hasattr(self._local, "connection")
        # If other files replaced ours, a new connection would delete their log when it closes.
        if (is_new or not reads) and not self._files.are_in_place:
            raise self._files.moved()
        with plain_errors(sqlite3, _ADVICE, self._path):
            if reads and is_new:
                cursor = self._connection().connection.cursor()
                cursor.execute("PRAGMA query_only = ON")
                # A small cache for each reader is enough, since the system caches the file too.
                cursor.execute("PRAGMA cache_size = -4096")
            result = self._run(begin, work)
        # A write into a file that was moved meanwhile must not count as done.
        if not (reads or self._files.are_in_place):
            raise self._files.moved()
        return result

    def _begin(self, connection: Connection, begin: str) -> None:
        # Runs through the driver directly, in a tenth of the time, since every transaction begins
        # here.
        for observer in self.statements.observers:
            observer(begin)
        connection.connection.cursor().execute(begin)

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._writers.submit(self._leave_session).result()
        super()._close()
        self._files.close()
        self._lock.release()


def open_sqlite(
    path: Path, *, durability: str = "normal", clock: Clock | None = None
) -> SqliteStore:
    """Open the file for this process alone, and back up and migrate an older schema.

    Args:
        path: The database's file, which is created if it is missing. The lock is next to it.
        durability: "full" flushes to the disk at each commit. With any other value a crash of the
            machine may lose the newest commits.
        clock: The clock of the store; None: that of the system.

    Raises:
        Conflict: Another process uses the database.
        Unavailable: The database cannot be opened, written, backed up or migrated, belongs to
            another program, or has lost its last writes.
    """
    clock = clock or SystemClock()
    require_writable(path)  # in a folder that this user may not enter, nothing can be looked for
    notice = file_mark.look_for_absent(path)
    make_private_file(path)
    lock = lock_file(path, seconds=_CHECK_SECONDS)
    try:
        notice = notice or file_mark.find_missing_writes(path)
        engine = make_engine(path, durability)
        with plain_errors(sqlite3, _ADVICE, path), first_connection(engine, path) as connection:
            migrations.migrate(connection, back_up=lambda version: back_up(path, version, clock))
            with connection.begin():
                # A backup that is opened as a database will change, so delete its hashes.
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {seal.TABLE}")
            raw: Any = connection.connection.driver_connection
            file_mark.begin(raw, path)
            file_mark.write_mark(raw, path)
        store = SqliteStore(engine, clock, lock)
    except BaseException:
        lock.release()
        raise
    if notice:
        log.error(notice)
    return store


def lock_file(path: Path, *, seconds: float = 0) -> FileLock:
    """Take the lock for the one process that may use the database.

    `release` frees it.

    Args:
        path: The database's file; the lock is next to it.
        seconds: Wait this long for another process to free the lock.

    Raises:
        Conflict: Another process has the lock.
    """
    # The lock is not bound to a thread, since `close` frees it from a worker thread.
    lock = FileLock(path.with_suffix(".lock"), timeout=seconds, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise Conflict(
            f"Another Ricordo server is using {path}. Stop it, or choose another RICORDO_DATA_DIR."
        ) from None
    return lock


def make_private_file(path: Path) -> None:
    """Create an empty file for its owner alone, unless it exists.

    Args:
        path: The file. Its missing folder is made too.

    Raises:
        Unavailable: The file or its folder cannot be written.
    """
    make_private_folder(path.parent)
    try:
        path.touch(mode=0o600)  # SQLite gives the same mode to its other files
    except OSError as error:
        raise Unavailable(
            f"The file {path} cannot be written: {error.strerror}. Choose another RICORDO_DATA_DIR."
        ) from error
    require_writable(path)


def require_writable(path: Path) -> None:
    """Raise DatabaseFailed if this user may not write the files or their folder.

    Args:
        path: The database's file; its other files and its folder are checked too. Missing files are
            ignored.

    Raises:
        DatabaseFailed: One of them is read-only for this user.
    """
    logs = [path.with_name(path.name + end) for end in ("-wal", "-shm")]
    for file in (path.parent, path, *logs, path.with_suffix(".lock")):
        rights = os.W_OK | os.X_OK if file == path.parent else os.W_OK
        if not os.access(file, rights) and file.exists():
            raise DatabaseFailed(
                f"{file} is read-only for this user. Give the user who runs Ricordo the right to "
                "write it, or choose another RICORDO_DATA_DIR.",
                "read-only",
            )


def _require_own(path: Path) -> None:
    """Raise Unavailable if another program created the database."""
    statement = "SELECT name FROM sqlite_master WHERE type = 'table'"
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            tables = {name for (name,) in connection.execute(statement)}
    except sqlite3.Error:
        return  # opening it will report why it cannot be read
    if tables and "schema_versions" not in tables:
        raise Unavailable(
            f"{path} is a database of another program: it has the table {min(tables)}, and no "
            "tables of Ricordo. It was not changed. Choose another RICORDO_DATABASE_URL or "
            "RICORDO_DATA_DIR."
        )


def require_file(path: Path) -> None:
    """Raise NotFound if there is no database file, or if it is empty.

    Args:
        path: The database's file.

    Raises:
        NotFound: It is missing or empty.
    """
    if not path.exists() or not path.stat().st_size:
        raise NotFound(
            f"There is no database at {path}. Set RICORDO_DATA_DIR or RICORDO_DATABASE_URL to the "
            "place of your database."
        )


@contextmanager
def read_only(path: Path) -> Iterator[Connection]:
    """Connect for reading only.

    Args:
        path: The database's file.

    Raises:
        NotFound: There is no such file, or it is empty.
        Unavailable: It cannot be read; also for errors inside the `with` block.
    """
    require_file(path)
    engine = make_engine(path, "normal")
    with plain_errors(sqlite3, "It was only read."), first_connection(engine, path) as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
        connection.rollback()
        yield connection


@contextmanager
def unchanging_file(path: Path) -> Iterator[Connection]:
    """Connect to a file that no one writes, such as a backup, and leave its bytes unchanged.

    Args:
        path: The file, which SQLite opens as immutable.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            uri, uri=True, check_same_thread=False, isolation_level=None
        ),
        **ENGINE_OPTIONS,
    )
    with engine.connect() as connection:
        yield connection


def first_connection(engine: Engine, path: Path) -> Connection:
    """Connect, and report a failure with the path and the reason.

    Args:
        engine: An engine of `make_engine`.
        path: The database's file, for the check and the message.

    Raises:
        Unavailable: The file is a database of another program.
        DatabaseFailed: It cannot be opened.
    """
    _require_own(path)
    try:
        return engine.connect()
    except DatabaseError as error:
        kind = kind_of(error, path)
        advice = advice_for(kind, "Check that its file and its folder can be read and written.")
        message = f"The database {path} cannot be opened: {reason_of(error)}. {advice}"
        raise DatabaseFailed(message, kind) from error


def make_engine(path: Path, durability: str) -> Engine:
    """Return an engine of the file; it opens nothing yet.

    Args:
        path: The database's file.
        durability: "full" flushes to the disk at each commit. Any other value leaves that to
            checkpoints.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),  # not a text, since a path may contain ? # and %
        # With the isolation level None `_unit`, and not the driver, begins transactions.
        connect_args={
            "check_same_thread": False,
            "isolation_level": None,
            "cached_statements": 512,
        },
        **ENGINE_OPTIONS,
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute("PRAGMA temp_store = MEMORY")

    return engine


def damage_of(connection: Connection) -> str:
    """Return the damage of a database as the end of a sentence; "" for none.

    It names the damaged tables, or quotes SQLite if they are unknown.

    Args:
        connection: A connection to the database.
    """
    finding = _finding(connection, "1")
    if finding == "ok":
        return ""
    names = (
        connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
        .scalars()
        .all()
    )
    tables = [name for name in names if _finding(connection, f"'{name}'") != "ok"]
    if tables:
        return f" in: {', '.join(tables)}"
    return f": {finding}"


def _finding(connection: Connection, target: str) -> str:
    try:
        return str(connection.exec_driver_sql(f"PRAGMA quick_check({target})").scalars().first())
    except DatabaseError as error:
        return reason_of(error)
