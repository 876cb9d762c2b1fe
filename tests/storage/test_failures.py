"""Errors of a database that is full, read-only or damaged.

Each error names the cause and the remedy, and advises nothing else.
"""

import io
import logging
import shutil
import sqlite3
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from ricordo.errors import DatabaseFailed
from ricordo.logs import TextFormatter
from ricordo.settings import Settings
from ricordo.storage.engine import failures, file_mark, postgres, sqlite
from ricordo.storage.engine import store as stores
from ricordo.storage.engine.database import check, open_store, require_savable
from ricordo.storage.engine.failures import advice_for, kind_of
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Transaction
from tests.support.postgres import name_in, server

Usage = namedtuple("Usage", "total used free")
FULL = Usage(4_096_000, 4_096_000, 0)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def test_every_driver_error_code_has_its_kind_including_extended_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {
        "full": ["SQLITE_FULL"],
        "damaged": ["SQLITE_CORRUPT", "SQLITE_NOTADB"],
        "read-only": ["SQLITE_READONLY"],
    }
    kinds["down"] = [
        "SQLITE_IOERR",
        "SQLITE_CANTOPEN",
        "SQLITE_BUSY",
        "SQLITE_LOCKED",
        "SQLITE_PROTOCOL",
    ]
    for kind, names in kinds.items():
        for primary in (getattr(sqlite3, name) for name in names):
            for extended in range(0, 20):
                assert (
                    kind_of(sqlite_error(primary | extended << 8), tmp_path / "ricordo.db") == kind
                )
    codes = {
        "53100": "full",
        "25006": "read-only",
        "XX001": "damaged",
        "XX002": "damaged",
        "42P01": "schema",
        "42703": "schema",
        "3F000": "schema",
        "42501": "schema",
        "57P01": "down",
    }
    for code, kind in codes.items():
        assert kind_of(psycopg.errors.lookup(code)("what PostgreSQL says")) == kind
    assert kind_of(psycopg.OperationalError("connection refused")) == "down"
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: FULL)
    for primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        assert kind_of(sqlite_error(primary), tmp_path / "ricordo.db") == "full"
    assert "backup" in advice_for("damaged", "")
    assert not any("backup" in advice_for(kind, "") for kind in ("full", "read-only", "down"))  # type: ignore[arg-type]


async def test_a_full_disk_at_the_start_does_not_advise_restoring_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ricordo.db"
    await open_sqlite(path).close()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: FULL)
    for place in ("connect", "migrate"):
        with monkeypatch.context() as patched:

            def fail(*_arguments: object, **_options: object) -> None:
                raise sqlite_error(sqlite3.SQLITE_IOERR)

            target = (
                (sqlite.migrations, "migrate") if place == "migrate" else (sqlite, "_require_own")
            )
            patched.setattr(*target, fail)
            with pytest.raises(DatabaseFailed, match="The disk is full") as caught:
                open_sqlite(path)
        assert "backup" not in str(caught.value)
        assert caught.value.kind == "full"
    monkeypatch.undo()
    await open_sqlite(path).close()


async def test_a_server_with_a_full_disk_or_read_only_files_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path)
    store = open_store(settings)
    await require_savable(store, settings)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _path: FULL)
        with pytest.raises(DatabaseFailed, match="disk of the database is full"):
            await require_savable(store, settings)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite.os, "access", lambda _path, _mode: False)
        with pytest.raises(DatabaseFailed, match="read-only for this user"):
            await require_savable(store, settings)
    await require_savable(store, settings)
    await store.close()


async def test_a_failed_write_is_reported_for_a_moment_although_small_writes_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(Settings(data_dir=tmp_path))

    def fail(_tx: Transaction) -> None:
        raise sqlite_error(sqlite3.SQLITE_FULL)

    store.require_writes()
    with pytest.raises(DatabaseFailed):
        await store.write(fail)
    await store.write(lambda tx: tx.all(text("SELECT 1")))
    with pytest.raises(DatabaseFailed, match="disk is full") as caught:
        store.require_writes()
    assert caught.value.kind == "full"
    monkeypatch.setattr(stores, "FAILURE_SECONDS", 0.0)
    store.require_writes()
    await store.close()


async def test_a_file_at_the_systems_size_limit_counts_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path)
    store = open_store(settings)
    await store.write(lambda tx: tx.all(text("SELECT 1")))
    size = max(file.stat().st_size for file in tmp_path.glob("ricordo.db*"))  # noqa: ASYNC240
    for room, is_savable in ((1000, False), (10**6, True)):
        limits = (size + room, size + room)
        monkeypatch.setattr(failures.resource, "getrlimit", lambda _kind, limits=limits: limits)
        if is_savable:
            await require_savable(store, settings)
        else:
            with pytest.raises(DatabaseFailed, match="full"):
                await require_savable(store, settings)
    await store.close()


async def test_a_log_that_cannot_be_read_on_a_full_disk_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ricordo.db"
    store = open_sqlite(path)
    for name in ("ricordo.db", "ricordo.db-wal", "ricordo.mark"):
        (tmp_path / "killed").mkdir(exist_ok=True)
        (tmp_path / "killed" / name).write_bytes((tmp_path / name).read_bytes())
    await store.close()

    def fail(_uri: str) -> None:
        raise sqlite_error(sqlite3.SQLITE_FULL)

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: FULL)
    signs_in_file = file_mark._signs_in_file(tmp_path / "killed" / "ricordo.db")
    monkeypatch.setattr(file_mark, "_signs_in_file", lambda _path: signs_in_file)
    monkeypatch.setattr(file_mark, "_signs_at", fail)
    with pytest.raises(DatabaseFailed, match="The disk is full") as caught:
        file_mark.find_missing_writes(tmp_path / "killed" / "ricordo.db")
    assert "another database" not in str(caught.value)


def spoil(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


async def test_a_check_names_the_damaged_tables_and_a_read_fails_with_a_clear_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ricordo.db"
    await open_sqlite(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        roots = dict(
            connection.execute(
                "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
        )
    whole = path.read_bytes()
    for table in (
        "messages",
        "agents",
        "runs",
        "jobs",
        "blocks",
        "passages",
        "users",
        "conversations",
        "archives",
        "tools",
    ):
        path.write_bytes(whole)
        spoil(path, roots[table])
        status = check(Settings(data_dir=tmp_path))
        assert (status.state, status.reason) == (
            "broken",
            f"{path} is damaged in: {table}. Restore it from a backup.",
        )
        # The file is valid again, and is then damaged while a server uses it.
        path.write_bytes(whole)
        store = open_sqlite(path)
        spoil(path, roots[table])
        with pytest.raises(DatabaseFailed, match="Some of its pages are damaged") as caught:
            await store.read(
                lambda tx, table=table: tx.all(text(f"SELECT count(*) FROM {table} NOT INDEXED"))  # noqa: S608
            )  # type: ignore[misc]
        assert caught.value.kind == "damaged"
        await store.close()


def test_a_check_of_postgresql_names_the_damaged_tables(tmp_path: Path) -> None:
    url = server().new_database()
    (place,) = server().run("SELECT pg_relation_filepath('users')", name_in(url))[0]
    file = server().folder / "data" / place
    content = bytearray(file.read_bytes())
    content[:] = b"\xff" * len(content)
    file.write_bytes(content)
    status = check(Settings(data_dir=tmp_path, database_url=url))
    assert (status.state, "is damaged in: users. Restore" in status.reason) == ("broken", True)
    with (
        pytest.raises(DatabaseFailed, match="Some of its pages are damaged"),
        postgres.read_only(url) as connection,
    ):
        connection.exec_driver_sql("SELECT * FROM users").all()
    server().drop(url)


def test_a_database_failure_is_logged_without_a_traceback() -> None:
    written = io.StringIO()
    logger = logging.Logger("of a library")
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormatter())
    logger.addHandler(handler)
    causes = (
        DatabaseFailed("The database failed: it is down."),
        psycopg.OperationalError("connection refused"),
        psycopg.errors.AdminShutdown("terminating connection"),
    )
    for cause in causes:
        error = RuntimeError("an answer was under way")
        error.__cause__ = cause
        logger.error("it is tried again", exc_info=error)
    lines = written.getvalue().splitlines()
    assert len(lines) == 2 * len(causes)
    assert 'File "' not in written.getvalue()
