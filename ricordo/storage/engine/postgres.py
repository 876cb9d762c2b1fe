"""PostgreSQL: worker threads that share connections, retries and backups.

Writes are READ COMMITTED: a statement sees rows that were committed before it, and waits for rows
that another transaction changed. A unit of work that writes a value computed from rows must
therefore do one of two things. It locks these rows (`with_for_update`, which SQLite omits), or it
compares them when it writes, and raises Overtaken if they differ. A read sees one snapshot. Text
columns are COLLATE "C": byte order, as on SQLite. JSON columns are JSON, not JSONB: JSONB would
change the order of keys and large numbers. The few queries that look inside them use no index.
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo
from psycopg import errors
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Integer,
    String,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, PGDialect_psycopg
from sqlalchemy.exc import DatabaseError, DBAPIError

from ricordo.domain.clock import Backoff, Clock, SystemClock
from ricordo.errors import CommitUnknown, DatabaseFailed, Invalid, Unavailable
from ricordo.storage import migrations
from ricordo.storage.engine.backups import back_up_postgres
from ricordo.storage.engine.failures import kind_of, plain_errors, reason_of
from ricordo.storage.engine.shared_connections import SharedConnections
from ricordo.storage.engine.store import ENGINE_OPTIONS, Overtaken, SqlStore, Transaction, each
from ricordo.storage.schema.columns import as_stored

log = logging.getLogger(__name__)
T = TypeVar("T")
OLDEST = 16  # the oldest supported and tested major version of PostgreSQL
_ATTEMPTS = 5
_ATTEMPTS_WHILE_DOWN = 2
_DOWN_SECONDS = 10.0
_BACKOFF = Backoff(0.008, 2, 1)
_LOST_BACKOFF = Backoff(0.02, 4, 10)
# The number of the lock that every Ricordo server takes before it changes the schema.
SCHEMA_LOCK = int.from_bytes(b"ricordo")
_LOOK_SECONDS = 20.0
_BY_SIZE = (
    "SELECT relname FROM pg_stat_user_tables WHERE schemaname = current_schema()"
    " ORDER BY pg_total_relation_size(relid)"
)
# Codes of an input or output error and of an internal error, such as a long text with a missing
# part.
_UNREADABLE = ("58030", "XX000")
_ADVICE = "Check that the PostgreSQL server runs, accepts connections and has room on its disk."
# A unit waits at most 10 s for rows that another unit has locked. If a server hangs inside a unit,
# its locks end after 60 s.
_SESSION = (
    "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET jit = off"
)
# Options of libpq. If the server's machine vanishes, as by a power failure, a connection to it ends
# after half a minute to a minute, and not after a quarter of an hour.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # milliseconds
}
_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)


class _Compiler(PGCompiler_psycopg):
    """Compile `column IN each(ids)` as a comparison with an array.

    PostgreSQL always uses the column's index for that.
    """

    def visit_custom_op_binary(self, element: Any, operator: Any, **options: Any) -> str:
        """Return the SQL of an operator, and write `IN each(…)` as a comparison with an array.

        Args:
            element: The expression with its two sides.
            operator: SQLAlchemy's operator; only IN with `each` at the right is treated here.
            **options: The options of SQLAlchemy's compiler.
        """
        if operator.opstring != "IN" or not isinstance(element.right, each):
            return str(super().visit_custom_op_binary(element, operator, **options))  # type: ignore[no-untyped-call]
        column = self.process(element.left, **options)
        ids = self.process(element.right.clauses, **options)
        if isinstance(element.left.type, Integer):
            kind = "bigint"
        else:
            kind = "text"
        return f"{column} = ANY(ARRAY(SELECT json_array_elements_text({ids})::{kind}))"


class _DdlCompiler(PGDDLCompiler):
    """Create text columns in byte order, as on SQLite, and partial indexes.

    The condition of a partial index is in its `info`.
    """

    def get_column_specification(self, column: Any, **options: Any) -> str:
        """Return the SQL of a column's definition, with byte order for text.

        Args:
            column: The column.
            **options: The options of SQLAlchemy's compiler.
        """
        specification: str = super().get_column_specification(column, **options)  # type: ignore[no-untyped-call]
        if not isinstance(as_stored(column), String):
            return specification
        kind = self.dialect.type_compiler_instance.process(column.type)
        return specification.replace(f" {kind}", f' {kind} COLLATE "C"', 1)

    def visit_create_index(self, create: Any, **options: Any) -> str:  # type: ignore[override]
        """Return the SQL that creates an index, with the condition in its `info`.

        Args:
            create: SQLAlchemy's CREATE INDEX, whose index gets the condition as an option.
            **options: The options of SQLAlchemy's compiler.
        """
        if where := create.element.info.get("where"):
            create.element.dialect_options["postgresql"]["where"] = text(where)
        return str(super().visit_create_index(create, **options))  # type: ignore[no-untyped-call]


class PostgresDialect(PGDialect_psycopg):
    """psycopg 3, with these compilers."""

    statement_compiler = _Compiler
    ddl_compiler = _DdlCompiler
    supports_statement_cache = True


registry.register("postgresql.ricordo", __name__, "PostgresDialect")


class PostgresStore(SqlStore):
    """A database that several servers may share.

    Each unit of work runs in a worker thread and borrows a connection. Callers wait for a free
    thread.
    """

    begin_read = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    begin_write = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

    def __init__(self, engine: Engine, clock: Clock, connections: int) -> None:
        workers = ThreadPoolExecutor(connections, "postgres")
        super().__init__(engine, clock, workers, workers)
        self._shared = SharedConnections(self._connect, self._connections)
        self._down_until = 0.0

    def _connect(self) -> Connection:
        return self.engine.connect()

    def _unit(self, begin: str, work: Callable[[Transaction], T]) -> T:
        with plain_errors(psycopg, _ADVICE):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    result = self._attempt(begin, work)
                except _Retry as retry:
                    if attempt >= self._max_attempts(retry):
                        is_down_until = time.monotonic() + _DOWN_SECONDS
                        if retry.is_lost:
                            self._down_until = is_down_until
                        else:
                            self._down_until = 0.0
                        raise retry.cause from None
                    log.info(
                        "running a unit of work again", extra={"reason": reason_of(retry.cause)}
                    )
                    # After a lost connection wait longer, since a restarting server takes longer
                    # than another transaction.
                    time.sleep((_LOST_BACKOFF if retry.is_lost else _BACKOFF).seconds(attempt))
                else:
                    self._down_until = 0.0
                    return result
            raise AssertionError("the last attempt returns or raises")

    def _max_attempts(self, retry: "_Retry") -> int:
        """Return the number of attempts for a unit of work.

        While the server is known to be down, there are only two: an old connection may fail first.
        """
        if not retry.is_lost:
            return _ATTEMPTS
        is_down = time.monotonic() < self._down_until
        if is_down:
            return _ATTEMPTS_WHILE_DOWN
        return _ATTEMPTS

    def _attempt(self, begin: str, work: Callable[[Transaction], T]) -> T:
        """Run the unit once.

        Raises:
            _Retry: Nothing was changed, and another attempt may succeed.
            CommitUnknown: The connection was lost during the commit.
            Invalid: The content cannot be stored.
            DatabaseFailed: The server refuses another connection, and all others stay in use.
        """
        results: list[T] = []  # the result, once only the commit is left

        def run(tx: Transaction) -> T:
            try:
                result = work(tx)
            except psycopg.Error:
                # SQLAlchemy does not see errors of prepared statements, so it might roll back on a
                # closed connection.
                if tx.connection.connection.dbapi_connection.closed:  # type: ignore[union-attr]
                    tx.connection.invalidate()
                raise
            results.append(result)
            # SQLAlchemy's commit, which follows, then has nothing to send.
            self._note("COMMIT")
            _command(tx.connection, "COMMIT")
            return result

        try:
            self._local.connection = self._shared.borrow()
            return self._run(begin, run)
        except Overtaken as error:
            raise _Retry(error) from error
        except (psycopg.Error, DBAPIError) as error:
            if isinstance(error, DBAPIError):
                cause = error.orig
            else:
                cause = error
            is_outdated = _is_outdated(cause)
            if is_outdated or _is_lost(cause) or self._is_broken():
                self._drop_connection(has_idle=is_outdated)
                if results:
                    raise CommitUnknown(results[0]) from error
                raise _Retry(error, is_lost=True) from error
            if isinstance(cause, _AGAIN):
                raise _Retry(error) from error
            _require_storable(cause)
            raise
        finally:
            if connection := self._local.__dict__.pop("connection", None):
                self._shared.give_back(connection)

    def _begin(self, connection: Connection, begin: str) -> None:
        self._note(begin)
        try:
            _command(connection, begin)
        except errors.FeatureNotSupported as error:
            raise _Standby(str(error)) from error

    def _note(self, sql: str) -> None:
        for observer in self.statements.observers:
            observer(sql)

    def _is_broken(self) -> bool:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            return False
        if connection.invalidated:
            return True
        raw: Any = connection.connection.dbapi_connection
        return bool(raw.closed)

    def _drop_connection(self, *, has_idle: bool) -> None:
        """Close this thread's connection; with `has_idle` the idle ones too."""
        connection: Connection | None = self._local.__dict__.pop("connection", None)
        if connection is not None:
            self._shared.drop(connection, has_idle=has_idle)


def _command(connection: Connection, sql: str) -> None:
    """Run commands without rows through libpq directly, in half the time of a cursor.

    Raises psycopg's error for the code of PostgreSQL, and OperationalError for a lost connection.
    """
    driver: Any = connection.connection.driver_connection
    try:
        result = driver.pgconn.exec_(sql.encode())
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            code = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
            raise _error_class(code)(result.get_error_message())
    except psycopg.Error:
        if driver.closed:
            connection.invalidate()  # SQLAlchemy must not roll back on a closed connection
        raise


def _error_class(code: bytes | None) -> type[psycopg.Error]:
    try:
        return errors.lookup((code or b"").decode())
    except KeyError:
        return psycopg.OperationalError


class _Retry(Exception):
    """Raised if nothing was changed and the unit may run once more."""

    def __init__(self, cause: Exception, *, is_lost: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.is_lost = is_lost


class _Standby(errors.ReadOnlySqlTransaction):
    """The server refused to begin a write, since it is a standby."""


def _is_outdated(cause: BaseException | None) -> bool:
    """Return True if new connections may succeed where all present ones would fail.

    After a failover they may lead to the new primary server. After another server has changed a
    column, they have no prepared statements with its old type.
    """
    if isinstance(cause, errors.FeatureNotSupported):
        return cause.diag.source_function == "RevalidateCachedQuery"
    return isinstance(cause, _Standby)


def _is_lost(cause: BaseException | None) -> bool:
    if not isinstance(cause, psycopg.OperationalError):
        return False
    return (
        cause.sqlstate is None
        or cause.sqlstate[:2] == "08"
        or cause.sqlstate in ("57P01", "57P02", "57P03")
    )


def _require_storable(cause: BaseException | None) -> None:
    """Raise Invalid for content that cannot be stored, and OverflowError for a large number.

    Invalid is for a NUL character, and for a text that is too long for an index. They are
    recognized by PostgreSQL's codes or by psycopg's message.
    """
    if isinstance(cause, errors.NumericValueOutOfRange):
        raise OverflowError from cause
    if isinstance(cause, errors.ProgramLimitExceeded):
        raise Invalid(
            "A name, label, tag or id is too long to be stored. Send at most 2,000 bytes of each."
        ) from cause
    has_nul = isinstance(cause, psycopg.DataError) and "NUL (0x00)" in str(cause)
    if has_nul or isinstance(
        cause, errors.UntranslatableCharacter | errors.CharacterNotInRepertoire
    ):
        raise Invalid(
            "The text holds a NUL character, which PostgreSQL cannot store. Leave it out."
        ) from cause


def open_postgres(
    url: str,
    *,
    connections: int = 8,
    durability: str = "normal",
    backups: Path,
    clock: Clock | None = None,
) -> PostgresStore:
    """Open the database and migrate an older schema, one server at a time.

    Args:
        url: An address like postgresql://user:password@host/name.
        connections: The number of worker threads, and the most connections.
        durability: "full" waits for the disk at each commit, whatever the server's default is. Any
            other value leaves that default.
        backups: The folder for a dump before a migration.
        clock: The clock of the store; None: that of the system.

    Raises:
        Unavailable: The database cannot be opened, used, backed up or migrated; the message gives
            advice.
    """
    clock = clock or SystemClock()
    engine = make_engine(url, durability)
    with plain_errors(psycopg, _ADVICE), first_connection(engine) as connection:
        require_usable(connection)
        # Another server's migration may take long.
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({SCHEMA_LOCK})")
        # This ends the transaction that SQLAlchemy assumes. The lock stays, since it belongs to the
        # session.
        connection.rollback()
        migrations.migrate(
            connection,
            back_up=lambda version: back_up_postgres(connection, backups, version, clock),
        )
        # NullPool closes the connection, and the lock ends with the session.
    return PostgresStore(engine, clock, connections)


def make_engine(url: str, durability: str = "normal") -> Engine:
    """Return an engine of the database; it opens no connection yet.

    Args:
        url: An address like postgresql://user:password@host/name.
        durability: "full" waits for the disk at each commit, whatever the server's default is. Any
            other value leaves that default.
    """
    engine = create_engine(
        driver_url(url),
        # With autocommit the store, and not the driver, begins transactions. A connection prepares
        # a statement when it runs it the second time. By default it would parse and plan the
        # statement five times first.
        connect_args={"autocommit": True, "prepare_threshold": 1},
        use_native_hstore=False,
        **ENGINE_OPTIONS,
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: psycopg.Connection[Any], _record: object) -> None:
        connection.execute(_SESSION)
        if durability == "full":
            connection.execute("SET synchronous_commit = on")

    return engine


def driver_url(url: str) -> URL:
    """Return the address with our dialect and with default connection options.

    Args:
        url: An address like postgresql://user:password@host/name. Options in it replace the
            defaults, except the encoding.
    """
    parsed = make_url(url).set(drivername="postgresql+ricordo")
    defaults = {**_NETWORK, "application_name": "ricordo"}
    # Without it, the environment or the database may set an encoding that lacks most characters.
    encoding = {"client_encoding": "utf8"}
    return parsed.set(query={**defaults, **parsed.query, **encoding})


def queue_address(url: str) -> str:
    """Return the address for the connections of the job queue, in the form of libpq.

    Args:
        url: An address like postgresql://user:password@host/name. Options in it replace the
            defaults.
    """
    options = psycopg.conninfo.conninfo_to_dict(url)
    missing = {name: text for name, text in _NETWORK.items() if name not in options}
    return psycopg.conninfo.make_conninfo(url, **missing)


def first_connection(engine: Engine) -> Connection:
    """Connect, and report a failure with the address and the reason.

    Args:
        engine: An engine of `make_engine`.

    Raises:
        DatabaseFailed: The connection failed. The address in the message has no password.
    """
    try:
        return engine.connect()
    except DatabaseError as error:
        address = engine.url.render_as_string(hide_password=True).partition("?")[0]
        raise DatabaseFailed(
            f"The database {address.replace('+ricordo', '')} cannot be opened: {reason_of(error)}. "
            "Check that the PostgreSQL server runs, and that RICORDO_DATABASE_URL is right."
        ) from None


def describe(connection: Connection) -> tuple[int, str, str, str]:
    """Return the database's bytes, the server's version, its name, and the state of pgvector.

    Args:
        connection: A connection to the database.
    """
    size, name = connection.exec_driver_sql(
        "SELECT pg_database_size(current_database()), current_database()"
    ).one()
    row = connection.exec_driver_sql(
        "SELECT installed_version, default_version"
        " FROM pg_available_extensions WHERE name = 'vector'"
    ).one_or_none()
    if row is None:
        vectors = "without pgvector"
    elif row.installed_version is None:
        vectors = f"without the extension of pgvector {row.default_version}"
    else:
        vectors = f"with pgvector {row.installed_version}"
    return int(size), server_version(connection), str(name), vectors


@contextmanager
def read_only(url: str) -> Iterator[Connection]:
    """Connect for reading only.

    Args:
        url: An address like postgresql://user:password@host/name.

    Raises:
        Unavailable: The database cannot be used; also for errors inside the `with` block.
    """
    with plain_errors(psycopg, _ADVICE), first_connection(make_engine(url)) as connection:
        require_usable(connection)
        connection.rollback()  # ends the transaction that SQLAlchemy assumes
        yield connection


def server_version(connection: Connection) -> str:
    """Return the version of the PostgreSQL server, such as "16.4".

    Args:
        connection: A connection to the server.
    """
    return str(connection.exec_driver_sql("SHOW server_version").scalar_one()).split()[0]


def require_usable(connection: Connection) -> None:
    """Raise Unavailable for an old server, another encoding, or a pooler without sessions.

    Args:
        connection: A connection to the server.

    Raises:
        Unavailable: The server or the database does not fit. The message gives advice.
    """
    version = server_version(connection)
    if int(version.split(".")[0]) < OLDEST:
        raise Unavailable(f"PostgreSQL {version} is too old. Ricordo needs {OLDEST} or newer.")
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise Unavailable(
            f"The database holds text as {encoding}, and Ricordo needs UTF8. Create another: "
            "CREATE DATABASE ricordo ENCODING 'UTF8' TEMPLATE template0."
        )
    _require_sessions(connection)


def _require_sessions(connection: Connection) -> None:
    """Raise Unavailable if a pooler assigns server sessions per transaction.

    Otherwise settings, session locks, LISTEN and prepared statements would reach other clients'
    sessions. Without such a pooler, two open connections have different backends and keep them.
    """
    with connection.engine.connect() as other:
        first, second, third, fourth = (
            _backend_of(session) for session in (connection, other, connection, other)
        )
    connection.rollback()
    if first != third or second != fourth or first == second:
        raise Unavailable(
            "RICORDO_DATABASE_URL leads to a connection pooler in transaction mode, but Ricordo "
            "needs whole sessions, because it listens for jobs and takes locks. Set pool_mode = "
            "session for this database (in PgBouncer; other poolers call it session mode), or use "
            "the address of PostgreSQL itself."
        )


def _backend_of(connection: Connection) -> int:
    # Do not prepare this statement: a pooler in transaction mode might prepare it in another
    # client's session.
    driver: Any = connection.connection.driver_connection
    (backend,) = driver.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return int(backend)


def damaged_tables(connection: Connection) -> list[str]:
    """Return the tables with unreadable pages, the smallest tables first.

    The search stops after 20 seconds; larger tables are then not read.

    Args:
        connection: A connection outside a transaction. Afterwards it has no statement timeout.
    """
    end = time.monotonic() + _LOOK_SECONDS
    connection.exec_driver_sql("SET max_parallel_workers_per_gather = 0")
    damaged: list[str] = []
    for name in connection.exec_driver_sql(_BY_SIZE).scalars().all():
        milliseconds = round((end - time.monotonic()) * 1000)
        if milliseconds <= 0:
            break
        connection.exec_driver_sql(f"SET statement_timeout = {milliseconds}")
        try:
            # Reads every column, also long texts stored outside the row.
            connection.exec_driver_sql(
                f'SELECT sum(length(whole_row::text)) FROM "{name}" AS whole_row'  # noqa: S608
            ).all()
        except DBAPIError as error:
            if kind_of(error) == "damaged" or getattr(error.orig, "sqlstate", None) in _UNREADABLE:
                damaged.append(str(name))
        connection.rollback()
    connection.exec_driver_sql("SET statement_timeout = 0")
    return damaged
