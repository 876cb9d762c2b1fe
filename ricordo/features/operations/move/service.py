"""Moving a database to another, on SQLite or PostgreSQL: copied row by row in one snapshot, then read back and compared by hash.

The old database is only read. From before its first row until all of it has been compared the new one is marked as half-finished,
and every server refuses it. What procrastinate and pgvector keep is not moved: both are rebuilt.
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
# Called again and again: the phase, the table, rows done, rows in all.
Report = Callable[[Literal["copied", "compared"], str, int, int], None]
# Each has one row in every new database.
_SEEDED = ("organizations", "users")
_PORTION = 500
# A row of vectors may have a megabyte and more.
_VECTORS_PORTION = 16
_NUL_SIGN = "\u2400"
_MOST_NAMED = 20
_MARK = sa.text("INSERT INTO schema_versions (version, name) VALUES (:version, 'copying')")
_UNMARK = sa.text("DELETE FROM schema_versions WHERE version = :version")
_BEGUN_WITH = sa.text(
    "SELECT coalesce(max(version), 0) FROM schema_versions WHERE version < :version"
)


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """What a move may do: read beside running servers, write over an unfinished copy, write a sign in place of a NUL.

    `sealed_hashes` are the hashes of tables in a sealed backup, which is then the source: its file is not changed at all.
    """

    force: bool = False
    replace: bool = False
    replace_nul: bool = False
    sealed_hashes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What was moved and compared: rows and a hash by table. `leaves_vectors`: some in pgvector, which must be rebuilt.

    `was_sealed`: it came from a backup, and equals the hashes in it.
    """

    rows: Mapping[str, int]
    hashes: Mapping[str, str]
    leaves_vectors: bool = False
    was_sealed: bool = False


class TableHash:
    """A hash over the rows of one table, in whatever order. Equal content makes it equal on every database."""

    def __init__(self, table: sa.Table) -> None:
        self.rows = 0
        # The sum of the rows' hashes: rows have keys, so none is there twice.
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
    """Copy the database into an empty one, and compare. Raises Conflict (in use, not empty, unequal), NotFound, Unavailable."""
    if address(source) == address(target):
        raise Invalid(f"{address(target)} is the database in use already. Name another one.")
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
    """Move, into an SQLite file in one step: a move that is killed leaves what was there. Raises as `move` does."""
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
    """Copy into a new file, which then takes the place of the target's; the caller holds the target's lock."""
    path = target.database_path
    look_for_absent(path)  # whose log would be taken for the new one's
    with file_for(target.data_dir, path) as part:
        done = move(source, at_file(target, part), options, report)
        settle(part)
        if path.exists():
            settle(
                path
            )  # its log is written back and gone, so that it cannot be taken for the new one's
    return done


def at_file(settings: Settings, path: Path) -> Settings:
    """Return the settings with this SQLite file as their database."""
    return settings.model_copy(update={"database_url": SecretStr(f"{SQLITE}{path}")})


def _copy_all(
    old: sa.Connection, new: sa.Connection, options: MoveOptions, report: Report
) -> MoveReport:
    cleans = options.replace_nul and new.dialect.name == "postgresql"
    hashes = {}
    with read_transaction(old):
        there = set(sa.inspect(old).get_table_names())
        counters = _counters(old, there)
        for table in metadata.sorted_tables:
            if table.name in there:
                hashes[table.name] = _copy_table(old, new, table, cleans=cleans, report=report)
            else:  # it belongs to a feature that came later
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
            copied, read = hashes[table.name], TableHash(table)
            for rows in portions(new, table):
                read.add(rows)
                report("compared", table.name, read.rows, copied.rows)
            if read.hexadecimal() != copied.hexadecimal():
                differing.append(table.name)
    if differing:
        raise Conflict(
            f"The copy is not equal to the old database in: {', '.join(differing)}. It is marked as unfinished, and the old "
            "database is as it was. Make sure that nothing else writes to the new one, then repeat with --replace."
        )
    _require_sealed(hashes, options.sealed_hashes)
    if new.dialect.name == "postgresql":
        with write_transaction(new):
            new.exec_driver_sql(f"ANALYZE {_names()}")
    with write_transaction(new):
        new.execute(_UNMARK, {"version": HALF_COPIED})
    counts = {name: copied.rows for name, copied in hashes.items()}
    values = {name: copied.hexadecimal() for name, copied in hashes.items()}
    return MoveReport(counts, values, leaves_vectors, was_sealed=options.sealed_hashes is not None)


def _require_sealed(hashes: Mapping[str, TableHash], sealed: Mapping[str, str] | None) -> None:
    """Raise Invalid where tables are not what they were when the backup was made."""
    known = {name: sealed[name] for name in hashes if name in sealed} if sealed else {}
    if differing := [name for name, value in known.items() if hashes[name].hexadecimal() != value]:
        raise Invalid(
            f"The backup's tables are not what was backed up: {', '.join(differing)}. Nothing was restored. Copy the file again "
            "from where it was made, or take another one."
        )


def _key_of(table: sa.Table) -> tuple[sa.Column[Any], ...]:
    if table.primary_key.columns:
        return tuple(table.primary_key.columns)
    unique = next(one for one in table.constraints if isinstance(one, sa.UniqueConstraint))
    return tuple(unique.columns)


def _count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def portions(connection: sa.Connection, table: sa.Table) -> Iterator[list[Row]]:
    """Yield all rows in the order of the key, some hundred at a time. They are one state only within one snapshot."""
    key = _key_of(table)
    most = _VECTORS_PORTION if table.name == "search_vectors" else _PORTION
    start = sa.select(table).order_by(*key).limit(most)
    after = start.where(
        sa.tuple_(*key)
        > sa.tuple_(*(sa.bindparam(f"after_{c.name}", type_=as_stored(c)) for c in key))
    )
    rows = connection.execute(start).mappings().all()
    while rows:
        yield [dict(row) for row in rows]
        if len(rows) < most:
            return
        last = rows[-1]
        rows = (
            connection.execute(after, {f"after_{c.name}": last[c.name] for c in key})
            .mappings()
            .all()
        )


def _copy_table(
    old: sa.Connection, new: sa.Connection, table: sa.Table, *, cleans: bool, report: Report
) -> TableHash:
    copied, total = TableHash(table), _count(old, table)
    # To the byte: what was stored before there was a normal form of text stays as it is.
    statement = sa.insert(
        sa.table(table.name, *(sa.column(c.name, as_stored(c)) for c in table.columns))
    )
    for found in portions(old, table):
        rows = _without_nul(table, found) if cleans else found
        with write_transaction(new):
            new.execute(statement, rows)
        copied.add(rows)
        report("copied", table.name, copied.rows, total)
    return copied


def _prepare(new: sa.Connection, where: str, options: MoveOptions) -> None:
    """Bring an empty target to this schema and mark it as half-finished, with nothing in it; refuse any other."""
    with read_transaction(new):
        version, names = schema_of(new), set(sa.inspect(new).get_table_names())
        begun_with = (
            new.execute(_BEGUN_WITH, {"version": HALF_COPIED}).scalar_one() if version else 0
        )
        content = {} if version == HALF_COPIED else _content(new, names)
    if version == HALF_COPIED:
        if not options.replace:
            raise Conflict(
                f"{where} is a half-finished copy, which was interrupted. Repeat with --replace to start it again."
            )
        if begun_with != len(MIGRATIONS):
            raise Conflict(
                f"{where} is a half-finished copy that another version of Ricordo began. Make a new database, and name that."
            )
    elif not version and names - {"schema_versions"}:
        raise Conflict(
            f"{where} holds tables of another program. Make a database for Ricordo alone, and name that."
        )
    elif content:
        counted = ", ".join(f"{name} ({rows})" for name, rows in content.items())
        raise Conflict(
            f"{where} is not empty; it holds {counted}. A copy needs an empty database: make a new one."
        )
    else:
        migrations.migrate(
            new, back_up=lambda _version: None
        )  # nothing is in it that could be lost
    with write_transaction(new):
        metadata.create_all(new)
        if version != HALF_COPIED:
            new.execute(_MARK, {"version": HALF_COPIED})
        _delete_all(new)


def _content(new: sa.Connection, names: set[str]) -> dict[str, int]:
    """Return how many rows each table has that is not empty, without those of every new database."""
    counts = {
        table.name: _count(new, table) - (table.name in _SEEDED)
        for table in metadata.sorted_tables
        if table.name in names
    }
    return {name: rows for name, rows in counts.items() if rows > 0}


def _delete_all(new: sa.Connection) -> None:
    if new.dialect.name == "postgresql":
        # One statement: a table that others refer to cannot go alone, and rows one by one take long.
        new.exec_driver_sql(f"TRUNCATE {_names()} RESTART IDENTITY")
        return
    for table in reversed(metadata.sorted_tables):
        new.execute(table.delete())
    new.exec_driver_sql("DELETE FROM sqlite_sequence")


def _names() -> str:
    return ", ".join(table.name for table in metadata.sorted_tables)


def _counters(connection: sa.Connection, there: Container[str]) -> dict[str, int]:
    """Return the highest `seq` that was ever given, by table, where the database remembers it."""
    if connection.dialect.name == "sqlite":
        return {
            row.name: row.seq
            for row in connection.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")
        }
    counters = {}
    for table in metadata.sorted_tables:
        if "seq" in table.c and table.name in there:
            row = connection.exec_driver_sql(
                f"SELECT last_value, is_called FROM {_sequence(connection, table)}"  # noqa: S608
            ).one()
            counters[table.name] = row.last_value if row.is_called else 0
    return counters


def _set_counters(new: sa.Connection, counters: Mapping[str, int]) -> None:
    """Let the next row of each table get a number that none has had."""
    for table in metadata.sorted_tables:
        if "seq" not in table.c:
            continue
        highest = new.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.seq), 0))).scalar_one()
        last = max(highest, counters.get(table.name, 0))
        if new.dialect.name == "postgresql":
            if last:
                new.execute(sa.select(sa.func.setval(_sequence(new, table), last)))
        elif table.dialect_options["sqlite"]["autoincrement"]:
            values = {"name": table.name, "last": last}
            new.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), values)
            new.execute(
                sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), values
            )


def _sequence(connection: sa.Connection, table: sa.Table) -> str:
    return str(
        connection.execute(
            sa.select(sa.func.pg_get_serial_sequence(table.name, "seq"))
        ).scalar_one()
    )


def _require_no_nul(old: sa.Connection) -> None:
    """Raise Invalid with the rows that PostgreSQL cannot take."""
    if found := [place for table in metadata.sorted_tables for place in _with_nul(old, table)]:
        named = "\n".join(f"  {place}" for place in found[:_MOST_NAMED])
        more = f"\n  and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise Invalid(
            f"PostgreSQL cannot keep a NUL character, and this database has some. Nothing was copied. They are in:\n{named}{more}\n"
            f"Change or delete these, or repeat with --replace-nul, which writes the sign {_NUL_SIGN} in their place."
        )


def _with_nul(old: sa.Connection, table: sa.Table) -> Iterator[str]:
    if old.dialect.name != "sqlite":
        return
    names = [table.c.id] if "id" in table.c else list(_key_of(table))
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
    # JSON may hold a NUL on every database, as an escape.
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
            sqlite3, "What was copied is marked as unfinished; the old database is as it was."
        ):
            yield
    except DBAPIError as error:
        raise Unavailable(
            f"The database refused it: {reason_of(error)}. The old database is as it was."
        ) from error
