"""Having a database for oneself: a connection to it while no server uses it, and none can begin to."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, inspect, make_url, text

from ricordo.errors import Conflict, NotFound, Unavailable
from ricordo.settings import SQLITE, Settings
from ricordo.storage import migrations, sqlite
from ricordo.storage.database import MISSING
from ricordo.storage.migrations import HALF_COPIED, MIGRATIONS

_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' AND application_name = :name"
)


def address(settings: Settings) -> str:
    """Where the database is, without its password."""
    if settings.postgres_url is None:
        return f"{SQLITE}{settings.database_path}"
    return make_url(settings.postgres_url).render_as_string(hide_password=True).partition("?")[0]


@contextmanager
def hold(settings: Settings, *, is_new: bool = False, force: bool = False) -> Iterator[Connection]:
    """A connection to a database that nobody else uses; `is_new` makes the file, `force` bears with servers on PostgreSQL.

    Raises Conflict where a server uses it, NotFound, Unavailable.
    """
    if settings.postgres_url is not None:
        with _hold_postgres(settings, settings.postgres_url, force=force) as connection:
            yield connection
        return
    path = settings.database_path
    if is_new:
        sqlite.make_private_file(path)
    elif not path.exists() or not path.stat().st_size:
        raise NotFound(
            f"There is no database at {path}. Set RICORDO_DATA_DIR or RICORDO_DATABASE_URL to where yours is."
        )
    lock = sqlite.lock_file(path)
    # "full": what is said to be done is on the disk.
    engine = sqlite.make_engine(path, "full")
    try:
        with sqlite.first_connection(engine, path) as connection:
            yield connection
    finally:
        engine.dispose()
        lock.release()


@contextmanager
def _hold_postgres(settings: Settings, url: str, *, force: bool) -> Iterator[Connection]:
    try:
        from ricordo.storage import postgres  # brings psycopg
    except ImportError as error:
        raise Unavailable(MISSING) from error
    engine = postgres.make_engine(url, "full")
    try:
        with postgres.first_connection(engine) as connection:
            postgres.require_usable(connection)
            # Reading all of it is one transaction, in which this connection waits for the other database.
            connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
            # A server that starts takes this lock first, so it waits until we are done. It is the session's, and goes with it.
            is_ours = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({postgres.SCHEMA_LOCK})").scalar_one()
            others = count_servers(connection)
            connection.rollback()  # ends SQLAlchemy's idea of a transaction
            if not is_ours:
                raise Conflict(
                    f"{address(settings)} is being opened or copied by somebody else, or is both ends of this move. "
                    "Wait, or name another database."
                )
            if others and not force:
                raise Conflict(
                    f"{address(settings)} is in use: Ricordo servers have {others} connections to it. Stop them all first."
                )
            yield connection
    finally:
        engine.dispose()


def count_servers(connection: Connection) -> int:
    """How many other connections of Ricordo there are to this database on PostgreSQL."""
    name = connection.engine.url.query["application_name"]
    return int(connection.execute(_OTHERS, {"name": name}).scalar_one())


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """One snapshot of the database."""
    is_postgres = connection.dialect.name == "postgresql"
    with connection.begin():
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_postgres else "BEGIN")
        yield


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """One transaction."""
    with connection.begin():
        connection.exec_driver_sql("BEGIN" if connection.dialect.name == "postgresql" else "BEGIN IMMEDIATE")
        yield


def schema_of(connection: Connection) -> int:
    """The version of the schema, read without making anything; 0 where there is none."""
    if not inspect(connection).has_table("schema_versions"):
        return 0
    return int(connection.execute(text("SELECT coalesce(max(version), 0) FROM schema_versions")).scalar_one())


def require_current(connection: Connection, where: str) -> None:
    """Raise Conflict or Unavailable where the schema is not the one this Ricordo writes."""
    version, known = schema_of(connection), len(MIGRATIONS)
    if version == HALF_COPIED:
        raise Unavailable(migrations.UNFINISHED)
    if version != known:
        what = "Start the newer Ricordo that wrote it" if version > known else "Start this Ricordo on it once"
        raise Conflict(f"{where} has schema {version}, and this Ricordo writes {known}. {what}, stop it, then repeat.")
