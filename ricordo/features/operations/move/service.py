"""Move a database to another database, on SQLite or PostgreSQL.

Rows are copied in one snapshot, then read back and compared by hash. The old database is only read.
The new database is marked as incomplete until all of it is compared. Until then every server
refuses it. Data of procrastinate and pgvector is not moved. A server creates procrastinate's rows
again, and the command `ricordo search reindex` computes the vectors again.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.exc import DBAPIError

from ricordo.errors import Conflict, Invalid, Unavailable
from ricordo.settings import SQLITE, Settings
from ricordo.storage import migrations
from ricordo.storage.engine.backups import settle
from ricordo.storage.engine.database import (
    address,
    exclusive_access,
    read_transaction,
    require_current,
)
from ricordo.storage.engine.failures import plain_errors, reason_of
from ricordo.storage.engine.file_mark import look_for_absent
from ricordo.storage.engine.sqlite import lock_file, unchanging_file
from ricordo.storage.engine.work_folders import file_for, make_private_folder
from ricordo.storage.migrations import HALF_COPIED, MIGRATIONS, schema_of, write_transaction
from ricordo.storage.schema.columns import as_stored, metadata

Row = dict[str, Any]
# A function that shows progress: the phase, the table, the rows done, and all rows of the table.
Report = Callable[[Literal["copied", "compared"], str, int, int], None]
# Tables that have one row in every new database.
_SEEDED = ("organizations", "users")
_PORTION = 500
# A row of vectors may have more than a megabyte.
_VECTORS_PORTION = 16
_NUL_SIGN = "\u2400"
_MOST_NAMED = 20
_MARK = sa.text("INSERT INTO schema_versions (version, name) VALUES (:version, 'copying')")
_UNMARK = sa.text("DELETE FROM schema_versions WHERE version = :version")
_STARTED_WITH = sa.text(
    "SELECT coalesce(max(version), 0) FROM schema_versions WHERE version < :version"
)


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """Options of a move.

    `force` reads while servers run, `replace` overwrites an unfinished copy, and `replace_nul`
    replaces NUL characters by another character. `sealed_hashes` are the hashes of tables in a
    sealed backup. The backup is then the source, and its file is not changed.
    """

    force: bool = False
    replace: bool = False
    replace_nul: bool = False
    sealed_hashes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The rows and the hash of each table that was moved, by the table's name.

    `leaves_vectors` is set if vectors in pgvector must be rebuilt. `was_sealed` is set if the
    source was a backup that equals its hashes.
    """

    rows: Mapping[str, int]
    hashes: Mapping[str, str]
    leaves_vectors: bool = False
    was_sealed: bool = False


class TableHash:
    """A hash of the rows of one table, whatever their order.

    Equal content has the same hash on every database.
    """

    def __init__(self, table: sa.Table) -> None:
        self.rows = 0
        # The sum of the rows' hashes. Rows have keys, so no row occurs twice.
        self._sum = 0
        self._columns = [
            (column.name, isinstance(column.type, sa.LargeBinary)) for column in table.columns
        ]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.rows += 1
            values = [
                hashlib.sha256(row[name]).hexdigest()
                if is_bytes and row[name] is not None
                else row[name]
                for name, is_bytes in self._columns
            ]
            row_hash = hashlib.sha256(orjson.dumps(values))
            self._sum = (self._sum + int.from_bytes(row_hash.digest())) % 2**256

    def hexadecimal(self) -> str:
        return f"{self._sum:064x}"


def move(source: Settings, target: Settings, options: MoveOptions, report: Report) -> MoveReport:
    """Copy the database into an empty one, and compare the two.

    Args:
        source: The settings that name the old database, which is only read.
        target: The settings that name the new database.
        options: The options of the move.
        report: Shows progress.

    Raises:
        Conflict: if a database is in use, or the new one is not empty. Also if the old one has
            another schema, or if the two differ afterwards.
        Invalid: if the two are the same, or the old one has NUL characters that PostgreSQL cannot
            store. Also if a sealed backup differs from its hashes.
        NotFound: if there is no old database.
        Unavailable: if a database fails.
    """
    if address(source) == address(target):
        raise Invalid(f"{address(target)} is already the database in use. Name another one.")
    if options.sealed_hashes is None:
        access = exclusive_access(source, force=options.force)
    else:
        access = unchanging_file(source.database_path)
    with _plain_errors(), access as old:
        with read_transaction(old):
            require_current(old, address(source))
            if target.postgres_url is not None and not options.replace_nul:
                _require_no_nul(old)
        with exclusive_access(target, is_new=True) as new:
            _prepare(new, address(target), options)
            return _copy_all(old, new, options, report)


def move_to(source: Settings, target: Settings, options: MoveOptions, report: Report) -> MoveReport:
    """Move the database; a target that is an SQLite file appears in one step.

    If the move is killed, the target's file is as it was before.

    Args:
        source: The settings that name the old database, which is only read.
        target: The settings that name the new database.
        options: The options of the move.
        report: Shows progress.

    Raises:
        Conflict, Invalid, NotFound, Unavailable: as `move` does.
    """
    if target.postgres_url is not None or address(source) == address(target):
        return move(source, target, options, report)
    path = target.database_path
    make_private_folder(path.parent)
    lock = lock_file(path)
    try:
        if path.exists():
            with _plain_errors(), exclusive_access(target, is_new=True, force=True) as new:
                _prepare(new, address(target), options)
        return move_into_file(source, target, options, report)
    finally:
        lock.release()


def move_into_file(
    source: Settings, target: Settings, options: MoveOptions, report: Report
) -> MoveReport:
    """Copy into a new file, which then replaces the target's file.

    Args:
        source: The settings that name the old database, which is only read.
        target: The settings that name the SQLite file. The caller holds its lock.
        options: The options of the move.
        report: Shows progress.

    Raises:
        Conflict, Invalid, NotFound, Unavailable: as `move` does. Unavailable also if the file is
            missing, but the log of its last writes is still there.
    """
    path = target.database_path
    look_for_absent(path)  # otherwise the new file would use the log of a missing database
    with file_for(target.data_dir, path) as part:
        moved = move(source, at_file(target, part), options, report)
        settle(part)
        if path.exists():
            # Write the log of the old file back, since it would otherwise be used as the log of the
            # new file.
            settle(path)
    return moved


def at_file(settings: Settings, path: Path) -> Settings:
    """Return the settings with this SQLite file as their database.

    Args:
        settings: The settings to copy.
        path: The absolute path of the file.
    """
    return settings.model_copy(update={"database_url": SecretStr(f"{SQLITE}{path}")})


def _copy_all(
    old: sa.Connection, new: sa.Connection, options: MoveOptions, report: Report
) -> MoveReport:
    cleans = options.replace_nul and new.dialect.name == "postgresql"
    hashes = {}
    with read_transaction(old):
        table_names = set(sa.inspect(old).get_table_names())
        counters = _counters(old, table_names)
        for table in metadata.sorted_tables:
            if table.name in table_names:
                hashes[table.name] = _copy_table(old, new, table, cleans=cleans, report=report)
            else:  # the table belongs to a newer feature
                hashes[table.name] = TableHash(table)
        has_pgvector = old.dialect.name == "postgresql" and sa.inspect(old).has_table(
            "search_pgvector"
        )
        leaves_vectors = bool(
            has_pgvector and old.exec_driver_sql("SELECT 1 FROM search_pgvector LIMIT 1").first()
        )
    with write_transaction(new):
        _set_counters(new, counters)
    differing = []
    with read_transaction(new):
        for table in metadata.sorted_tables:
            copied = hashes[table.name]
            read_back = TableHash(table)
            for rows in portions(new, table):
                read_back.add(rows)
                report("compared", table.name, read_back.rows, copied.rows)
            if read_back.hexadecimal() != copied.hexadecimal():
                differing.append(table.name)
    if differing:
        raise Conflict(
            f"The copy is not equal to the old database in: {', '.join(differing)}. It is marked "
            "as unfinished, and the old database is unchanged. Make sure that nothing else writes "
            "to the new one, then repeat with --replace."
        )
    _require_sealed(hashes, options.sealed_hashes)
    if new.dialect.name == "postgresql":
        with write_transaction(new):
            new.exec_driver_sql(f"ANALYZE {_names()}")
    with write_transaction(new):
        new.execute(_UNMARK, {"version": HALF_COPIED})
    counts = {name: copied.rows for name, copied in hashes.items()}
    return MoveReport(
        counts,
        {name: copied.hexadecimal() for name, copied in hashes.items()},
        leaves_vectors,
        was_sealed=options.sealed_hashes is not None,
    )


def _require_sealed(hashes: Mapping[str, TableHash], sealed: Mapping[str, str] | None) -> None:
    """Raise Invalid if tables differ from those in the seal."""
    if not sealed:
        return
    differing = [
        name
        for name, copied in hashes.items()
        if name in sealed and copied.hexadecimal() != sealed[name]
    ]
    if differing:
        raise Invalid(
            "These tables of the backup differ from the backed up database: "
            f"{', '.join(differing)}. Nothing was restored. Copy the file again from its source, "
            "or use another backup."
        )


def _key_of(table: sa.Table) -> tuple[sa.Column[Any], ...]:
    if table.primary_key.columns:
        return tuple(table.primary_key.columns)
    unique = next(
        constraint
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint)
    )
    return tuple(unique.columns)


def _count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def portions(connection: sa.Connection, table: sa.Table) -> Iterator[list[Row]]:
    """Yield all rows in the order of the key, in portions.

    Args:
        connection: The connection. The rows are from one point in time only if it reads from one
            snapshot.
        table: A table with a primary key or a unique constraint.
    """
    key = _key_of(table)
    if table.name == "search_vectors":
        limit = _VECTORS_PORTION
    else:
        limit = _PORTION
    start = sa.select(table).order_by(*key).limit(limit)
    markers = (sa.bindparam(f"after_{column.name}", type_=as_stored(column)) for column in key)
    after = start.where(sa.tuple_(*key) > sa.tuple_(*markers))
    rows = connection.execute(start).mappings().all()
    while rows:
        yield [dict(row) for row in rows]
        if len(rows) < limit:
            return
        position = {f"after_{column.name}": rows[-1][column.name] for column in key}
        rows = connection.execute(after, position).mappings().all()


def _copy_table(
    old: sa.Connection, new: sa.Connection, table: sa.Table, *, cleans: bool, report: Report
) -> TableHash:
    copied = TableHash(table)
    total = _count(old, table)
    # Texts are copied unchanged, even if they are not in normal form.
    columns = (sa.column(column.name, as_stored(column)) for column in table.columns)
    statement = sa.insert(sa.table(table.name, *columns))
    for portion in portions(old, table):
        if cleans:
            rows = _without_nul(table, portion)
        else:
            rows = portion
        with write_transaction(new):
            new.execute(statement, rows)
        copied.add(rows)
        report("copied", table.name, copied.rows, total)
    return copied


def _prepare(new: sa.Connection, target_address: str, options: MoveOptions) -> None:
    """Bring an empty target to this schema, and mark it as incomplete.

    Raises Conflict for a target that is not empty.
    """
    with read_transaction(new):
        version = schema_of(new)
        names = set(sa.inspect(new).get_table_names())
        started_with = 0
        if version:
            started_with = new.execute(_STARTED_WITH, {"version": HALF_COPIED}).scalar_one()
        if version == HALF_COPIED:
            content = {}
        else:
            content = _content(new, names)
    if version == HALF_COPIED:
        if not options.replace:
            raise Conflict(
                f"{target_address} is a half-finished copy, which was interrupted. Repeat with "
                "--replace to start it again."
            )
        if started_with != len(MIGRATIONS):
            raise Conflict(
                f"{target_address} is a half-finished copy of another version of Ricordo. Create a "
                "new database, and name that."
            )
    elif not version and names - {"schema_versions"}:
        raise Conflict(
            f"{target_address} holds tables of another program. Create a database only for "
            "Ricordo, and name that."
        )
    elif content:
        counted = ", ".join(f"{name} ({rows})" for name, rows in content.items())
        raise Conflict(
            f"{target_address} is not empty; it holds {counted}. A copy needs an empty database: "
            "create a new one."
        )
    else:
        # An empty database needs no backup.
        migrations.migrate(new, back_up=lambda _version: None)
    with write_transaction(new):
        metadata.create_all(new)
        if version != HALF_COPIED:
            new.execute(_MARK, {"version": HALF_COPIED})
        _delete_all(new)


def _content(new: sa.Connection, names: set[str]) -> dict[str, int]:
    """Return the number of rows of each table that is not empty.

    Rows that every new database contains do not count.
    """
    counts = {
        table.name: _count(new, table) - (table.name in _SEEDED)
        for table in metadata.sorted_tables
        if table.name in names
    }
    return {name: rows for name, rows in counts.items() if rows > 0}


def _delete_all(new: sa.Connection) -> None:
    if new.dialect.name == "postgresql":
        # TRUNCATE is faster than DELETE. One statement names all tables, since a table to which
        # others refer cannot be truncated alone.
        new.exec_driver_sql(f"TRUNCATE {_names()} RESTART IDENTITY")
        return
    for table in reversed(metadata.sorted_tables):
        new.execute(table.delete())
    new.exec_driver_sql("DELETE FROM sqlite_sequence")


def _names() -> str:
    return ", ".join(table.name for table in metadata.sorted_tables)


def _counters(connection: sa.Connection, table_names: Container[str]) -> dict[str, int]:
    """Return the highest `seq` ever used in each table, if the database records it."""
    if connection.dialect.name == "sqlite":
        return {
            row.name: row.seq
            for row in connection.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")
        }
    counters = {}
    for table in metadata.sorted_tables:
        if "seq" in table.c and table.name in table_names:
            row = connection.exec_driver_sql(
                f"SELECT last_value, is_called FROM {_sequence(connection, table)}"  # noqa: S608
            ).one()
            if row.is_called:
                counters[table.name] = row.last_value
            else:
                counters[table.name] = 0
    return counters


def _set_counters(new: sa.Connection, counters: Mapping[str, int]) -> None:
    """Make sure that the next row of each table gets a number that was never used."""
    for table in metadata.sorted_tables:
        if "seq" not in table.c:
            continue
        highest = new.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.seq), 0))).scalar_one()
        last = max(highest, counters.get(table.name, 0))
        if new.dialect.name == "postgresql":
            if last:
                new.execute(sa.select(sa.func.setval(_sequence(new, table), last)))
        elif table.dialect_options["sqlite"]["autoincrement"]:
            counter = {"name": table.name, "last": last}
            new.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), counter)
            new.execute(
                sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), counter
            )


def _sequence(connection: sa.Connection, table: sa.Table) -> str:
    return str(
        connection.execute(
            sa.select(sa.func.pg_get_serial_sequence(table.name, "seq"))
        ).scalar_one()
    )


def _require_no_nul(old: sa.Connection) -> None:
    """Raise Invalid, naming the rows that PostgreSQL cannot store."""
    fields = [field for table in metadata.sorted_tables for field in _with_nul(old, table)]
    if not fields:
        return
    listed = "\n".join(f"  {field}" for field in fields[:_MOST_NAMED])
    if len(fields) > _MOST_NAMED:
        more = f"\n  and {len(fields) - _MOST_NAMED} more"
    else:
        more = ""
    raise Invalid(
        "PostgreSQL cannot store NUL characters, and this database has some. Nothing was copied. "
        f"They are in:\n{listed}{more}\nChange or delete these, or repeat with --replace-nul, "
        f"which writes the sign {_NUL_SIGN} in their place."
    )


def _with_nul(old: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Yield the fields with a NUL character."""
    if old.dialect.name != "sqlite":
        return
    if "id" in table.c:
        names = [table.c.id]
    else:
        names = list(_key_of(table))
    if not (columns := _texts(table)):
        return
    marks = [
        (sa.func.instr(column, sa.func.char(0)) > 0).label(f"nul_in_{column.name}")
        for column in columns
    ]
    for row in old.execute(sa.select(*names, *marks).where(sa.or_(*marks))):
        key = "/".join(map(str, row[: len(names)]))
        for column, is_marked in zip(columns, row[len(names) :], strict=True):
            if is_marked:
                yield f"{table.name}.{column.name} of {key}"


def _texts(table: sa.Table) -> list[sa.Column[Any]]:
    # JSON may contain a NUL on every database, as an escape.
    return [column for column in table.columns if isinstance(as_stored(column), sa.String)]


def _without_nul(table: sa.Table, rows: Sequence[Row]) -> list[Row]:
    names = [column.name for column in _texts(table)]
    return [
        row | {name: row[name].replace("\0", _NUL_SIGN) for name in names if row[name]}
        for row in rows
    ]


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        with plain_errors(
            sqlite3, "The copied part is marked as unfinished; the old database is unchanged."
        ):
            yield
    except DBAPIError as error:
        raise Unavailable(
            f"The database refused it: {reason_of(error)}. The old database is unchanged."
        ) from error
