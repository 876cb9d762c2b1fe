"""Backups before a change of the schema.

On SQLite a backup is a verified copy of the file. On PostgreSQL it is a dump, if pg_dump is
installed.
"""

import logging
import os
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Connection

from ricordo.domain.clock import Clock, to_datetime
from ricordo.errors import Unavailable
from ricordo.storage.engine.seal import seal, write_hashes
from ricordo.storage.engine.work_folders import file_for, make_private_folder

log = logging.getLogger(__name__)
# The tables whose rows a user would miss.
_VALUABLE_TABLES = ("agents", "api_keys", "blocks", "conversations", "archives", "proposals")


def back_up(path: Path, version: int, clock: Clock) -> Path:
    """Copy the database into `backups/` in its folder, and verify the copy.

    Args:
        path: The SQLite file.
        version: The version of its schema, for the name of the copy.
        clock: The clock whose time is in the name of the copy.

    Returns:
        The path of the copy.

    Raises:
        Unavailable: The copy is not sound, or cannot be written.
    """
    target = path.parent / "backups" / f"{path.stem}-schema{version}-{_time(clock)}.db"
    make_private_folder(target.parent)
    with file_for(path.parent, target) as part:
        if not _copy_pages(path, part):
            raise Unavailable(
                f"The backup of {path} before an upgrade is not valid, so nothing was changed. "
                "Check the disk for space and faults, then start again."
            )
        write_hashes(part, {}, {})
        settle(part)
        part.chmod(0o600)
        seal(part)
    return target


def _copy_pages(path: Path, target: Path) -> bool:
    """Copy a database unchanged; return True if the copy is sound."""
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
            return bool(copy.execute("PRAGMA integrity_check").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def back_up_postgres(
    connection: Connection, folder: Path, version: int, clock: Clock
) -> Path | None:
    """Dump the database for `pg_restore`, and seal the dump.

    Args:
        connection: A connection to the database; its transaction is rolled back.
        folder: The folder of backups, which is made if it is missing.
        version: The version of the schema, for the name of the dump.
        clock: The clock whose time is in the name of the dump.

    Returns:
        The path of the dump. None, with a warning in the log, if pg_dump is missing or older than
            the server.

    Raises:
        Unavailable: pg_dump fails, or the dump cannot be written.
    """
    program = shutil.which("pg_dump")
    server = int(str(connection.exec_driver_sql("SHOW server_version_num").scalar_one())) // 10000
    connection.rollback()
    if program is None or _major(program) < server:
        log.warning(
            "the schema is about to change and there is no backup of it: pg_dump is not installed, "
            "or older than the server. "
            "Back up the database with your own tools before each upgrade.",
            extra={"schema": version, "postgresql": server},
        )
        return None
    target = folder / f"{connection.engine.url.database}-schema{version}-{_time(clock)}.dump"
    make_private_folder(folder)
    with file_for(folder.parent, target) as part:
        _dump(program, connection.engine.url, part)
        seal(part)
    log.info(
        "backed up the database before its schema changes",
        extra={"file": str(target), "schema": version},
    )
    return target


def _dump(program: str, url: URL, target: Path) -> None:
    """Let pg_dump write the database into the file. Raises Unavailable."""
    # The password is not an argument, since every user of a machine can read those.
    environment = os.environ | ({"PGPASSWORD": str(url.password)} if url.password else {})
    query = dict(url.query) | {"application_name": "ricordo-backup"}
    address = url.set(drivername="postgresql", password=None, query=query).render_as_string(
        hide_password=False
    )
    try:
        target.touch(mode=0o600)
        process = subprocess.run(  # noqa: S603 - our own arguments
            [program, "--format=custom", f"--file={target}", f"--dbname={address}"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise Unavailable(
            f"The backup {target} cannot be written: {error.strerror}. Choose another "
            "RICORDO_DATA_DIR."
        ) from error
    if process.returncode or not target.stat().st_size:
        raise Unavailable(
            "The backup before an upgrade failed, so nothing was changed: "
            f"{process.stderr.strip()[:300]} Free disk space or repair pg_dump, then start again."
        )


def _time(clock: Clock) -> str:
    return to_datetime(clock.now()).strftime("%Y%m%dT%H%M%S%f")


def _major(program: str) -> int:
    process = subprocess.run(  # noqa: S603
        [program, "--version"], capture_output=True, text=True, check=False
    )
    match = re.search(r"\) (\d+)", process.stdout)
    return int(match[1]) if match else 0


def filled_tables(path: Path) -> list[str]:
    """Return the valuable tables of a database that have rows.

    For a file that cannot be read, one entry says so.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            statement = "SELECT name FROM sqlite_master WHERE type = 'table'"
            existing = {row[0] for row in connection.execute(statement)}
            return [
                name
                for name in _VALUABLE_TABLES
                if name in existing
                and connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()  # noqa: S608
            ]
    except sqlite3.Error:
        return ["something that cannot be read"]


def settle(path: Path) -> None:
    """Write a database's log back into its file, and flush the file to disk.

    If the log cannot be written back, a warning is logged and the log is deleted. No other process
    may use the database meanwhile. Raises Unavailable.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        log.warning(
            "the log of a database could not be written back",
            extra={"file": str(path), "error": error},
        )
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}. Free disk space, then repeat."
        ) from error
