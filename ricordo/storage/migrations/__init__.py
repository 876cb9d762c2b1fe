"""Numbered changes of the schema, applied in order on every database, after a verified backup of what stands there.

A migration that was released is never edited: its SQL is kept beside it, one file for each database.
"""

from collections.abc import Callable, Sequence
from importlib import resources

from sqlalchemy import Connection, text

from ricordo.errors import Unavailable
from ricordo.storage.migrations import fill
from ricordo.storage.migrations.history import begin_history
from ricordo.storage.migrations.shortening import shorten_history

Migration = Callable[[Connection], None]
# The version of a database that is being copied into: every Ricordo refuses it, older ones too.
HALF_COPIED = 1_000_000
UNFINISHED = (
    "This database is a half-finished copy: `ricordo db migrate-to` was interrupted while it wrote here, and what it copied "
    "from is as it was. Repeat that command with --replace, or use the old database."
)


def create_spine(connection: Connection) -> None:
    """Agents, conversations, messages, blocks, tools, archives, runs and steps, and the local organisation and user."""
    run_file(connection, "0001")


def create_index_and_jobs(connection: Connection) -> None:
    """Jobs, and the search index: what stands in the database waits in its tail until it is merged."""
    run_file(connection, "0002")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("DROP TABLE messages_fts")
        connection.exec_driver_sql("DROP TABLE passages_fts")
    fill.put_all_in_tail(connection)


def create_tickets(connection: Connection) -> None:
    """What hands jobs to workers on PostgreSQL: procrastinate's own schema. SQLite's one server takes them from the table."""
    if connection.dialect.name == "postgresql":
        run_file(connection, "0003")


def create_pgvector(connection: Connection) -> None:
    """A table for archives that chose pgvector, where PostgreSQL has that extension; else nothing, and it is made later."""
    if connection.dialect.name == "postgresql":
        run_file(connection, "0004")


def add_threads_and_ledger(connection: Connection) -> None:
    """Threads with a model and a window of their own, streams that are kept, traces, expenses, and organisations' providers."""
    run_file(connection, "0005")


def add_versions(connection: Connection) -> None:
    """Versions of memory, proposals and remotes; every block that stands gets its first version."""
    run_file(connection, "0006")
    begin_history(connection)


def shorten_versions(connection: Connection) -> None:
    """Versions that take half the room: by the number of their chain, without what can be told from the rows beside them."""
    run_file(connection, "0007")
    shorten_history(connection)
    run_file(connection, "0007-end")


MIGRATIONS: Sequence[Migration] = (
    create_spine,
    create_index_and_jobs,
    create_tickets,
    create_pgvector,
    add_threads_and_ledger,
    add_versions,
    shorten_versions,
)


def migrate(
    connection: Connection, *, back_up: Callable[[int], object], migrations: Sequence[Migration] = MIGRATIONS
) -> int:
    """Bring the schema up to date, each migration in a transaction of its own; returns the version it ends with.

    `back_up` gets the version found and is called once, before the first change to a database that holds something.
    """
    version = current_version(connection)
    if version == HALF_COPIED:
        raise Unavailable(UNFINISHED)
    if version > len(migrations):
        raise Unavailable(
            f"This database has schema {version}, and this Ricordo knows up to {len(migrations)}. "
            "Start the newer Ricordo that wrote it, or restore a backup from the data folder."
        )
    if 0 < version < len(migrations):
        back_up(version)
    for number, migration in enumerate(migrations[version:], version + 1):
        with connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else "BEGIN")
            migration(connection)
            connection.execute(
                text("INSERT INTO schema_versions (version, name) VALUES (:version, :name)"),
                {"version": number, "name": migration.__name__},
            )
    return len(migrations)


def current_version(connection: Connection) -> int:
    """The number of the last migration that was applied; 0 for an empty database."""
    with connection.begin():
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS schema_versions (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
        )
        return int(connection.execute(text("SELECT coalesce(max(version), 0) FROM schema_versions")).scalar_one())


def run_file(connection: Connection, number: str) -> None:
    """Run the statements of `<number>.<database>.sql`, which are parted by lines that hold `--` alone."""
    script = resources.files(__package__).joinpath(f"{number}.{connection.dialect.name}.sql").read_text("utf-8")
    for statement in script.split("\n--\n"):
        # Without parameters, or a driver would take a % in a function's text for the place of one.
        connection.exec_driver_sql(statement.strip(), execution_options={"no_parameters": True})
