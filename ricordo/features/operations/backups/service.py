"""Back up, restore and upgrade the database.

A backup is copied in one snapshot while servers use the database. It is compared by hash, and moved
to its path in one step. An upgrade brings a database of an older Ricordo to this version.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, func, inspect, select

from ricordo.errors import Conflict, NotFound, Unavailable
from ricordo.features.operations.move.service import (
    MoveOptions,
    MoveReport,
    Report,
    at_file,
    move,
    move_into_file,
)
from ricordo.settings import Settings
from ricordo.storage.engine.backups import filled_tables, settle
from ricordo.storage.engine.database import address, check, exclusive_access, open_store
from ricordo.storage.engine.seal import require_sound, seal, write_hashes
from ricordo.storage.engine.sqlite import lock_file
from ricordo.storage.engine.store import Transaction
from ricordo.storage.engine.work_folders import file_for, make_private_folder
from ricordo.storage.schema.columns import metadata


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """The schemas before and after an upgrade, its backup, and counts of the check.

    `backup` is None if none was needed, or if it could not be made.
    """

    before: int
    after: int
    backup: Path | None
    tables: int
    rows: int


def folder_of(settings: Settings) -> Path:
    """Return the folder for backups by migrations and by the HTTP API.

    Args:
        settings: The settings that name the database and the data folder.
    """
    if settings.postgres_url:
        parent = settings.data_dir
    else:
        parent = settings.database_path.parent
    return parent / "backups"


def back_up(settings: Settings, target: Path, report: Report) -> MoveReport:
    """Write the database into an SQLite file while servers use it.

    Args:
        settings: The settings that name the database.
        target: The path of the new file. Its missing folder is created.
        report: Shows progress.

    Raises:
        Conflict: if the file exists, or the database has another schema than this Ricordo.
        NotFound: if there is no database.
        Unavailable: if the database or the disk fails.
    """
    target = target.absolute()
    if target.exists():
        raise Conflict(f"{target} already exists. Name a new file.")
    make_private_folder(target.parent)
    with file_for(settings.data_dir, target) as part:
        copied = move(settings, at_file(settings, part), MoveOptions(force=True), report)
        write_hashes(part, copied.hashes, copied.rows)
        settle(part)
        seal(part)
    return copied


def restore(
    source: Path, settings: Settings, report: Report, *, replace: bool = False
) -> MoveReport:
    """Replace a database that is not in use with a backup.

    Args:
        source: The file of the backup, which is not changed if it has a seal.
        settings: The settings that name the database to replace.
        report: Shows progress.
        replace: Whether an SQLite file that is not empty may be replaced. On PostgreSQL it only
            allows an unfinished copy: a database with other rows is always refused.

    Raises:
        Conflict: if the database is in use or not empty, or the backup has another schema.
        Invalid: if the backup is damaged, or contains a character that PostgreSQL cannot store.
        NotFound: if there is no file at `source`.
        Unavailable: if a database or the disk fails.
    """
    source = source.absolute()
    hashes = require_sound(source)
    if settings.postgres_url is not None:
        return move(
            at_file(settings, source),
            settings,
            MoveOptions(replace=replace, sealed_hashes=hashes),
            report,
        )
    path = settings.database_path
    make_private_folder(path.parent)
    lock = lock_file(path)
    try:
        if not replace and path.exists() and (tables := filled_tables(path)):
            raise Conflict(
                f"{path} is not empty: it holds {', '.join(tables)}. Back it up, then repeat with "
                "--replace."
            )
        options = MoveOptions(force=True, sealed_hashes=hashes)
        return move_into_file(at_file(settings, source), settings, options, report)
    finally:
        lock.release()


def upgrade(settings: Settings, tables: Sequence[Table]) -> UpgradeReport:
    """Back up, migrate and check a database that is not in use.

    Args:
        settings: The settings that name the database.
        tables: Tables of plugins; missing ones are created.

    Raises:
        NotFound: if there is no database.
        Conflict: if a server uses it.
        Unavailable: if it cannot be read, or has faults after the upgrade.
    """
    status = check(settings)
    if status.state == "absent":
        raise NotFound(
            f"There is no database at {address(settings)}. A server creates one when it starts."
        )
    if status.state == "broken":
        raise Unavailable(status.reason)
    with exclusive_access(settings) as connection:  # raises Conflict if a server uses it
        before = _count_rows(connection)
    folder = folder_of(settings)
    old_files = set(folder.glob("*"))
    asyncio.run(_migrate(settings, tables))
    backups = sorted({*folder.glob("*")} - old_files)
    with exclusive_access(settings) as connection:
        problems = _problems(connection, before)
        after = _count_rows(connection)
    backup = backups[-1] if backups else None
    if problems:
        if backup:
            hint = f" Keep {backup}, which is the database as it was."
        else:
            hint = ""
        raise Unavailable(
            f"The database has faults after the upgrade: {'; '.join(problems[:5])}.{hint}"
        )
    rows = sum(after[name] for name in before if name in after)
    return UpgradeReport(status.schema, check(settings).schema, backup, len(metadata.tables), rows)


async def _migrate(settings: Settings, tables: Sequence[Table]) -> None:
    def create(tx: Transaction) -> None:
        metadata.create_all(tx.connection, tables=tables)

    store = await asyncio.to_thread(open_store, settings)
    try:
        await store.write(create)
    finally:
        await store.close()


def _count_rows(connection: Connection) -> dict[str, int]:
    """Return the number of rows in each of our tables that exists."""
    existing = {*inspect(connection).get_table_names()}
    tables = [table for table in metadata.sorted_tables if table.name in existing]
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables
    }


def _problems(connection: Connection, before: dict[str, int]) -> list[str]:
    """Return the tables, columns and rows that are missing, and other damage."""
    inspector = inspect(connection)
    after = _count_rows(connection)
    problems = [
        f"{name} lost {count - after.get(name, 0)} rows"
        for name, count in before.items()
        if after.get(name, 0) < count
    ]
    for table in metadata.sorted_tables:
        names = set()
        if table.name in after:
            names = {column["name"] for column in inspector.get_columns(table.name)}
        problems += [
            f"{table.name} has no {column.name}"
            for column in table.columns
            if column.name not in names
        ]
    if connection.dialect.name == "sqlite":
        for pragma in ("integrity_check", "foreign_key_check"):
            rows = connection.exec_driver_sql(f"PRAGMA {pragma}").all()
            problems += [f"{pragma} found {tuple(row)}" for row in rows if tuple(row) != ("ok",)]
    return problems
