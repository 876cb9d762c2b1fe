"""What a database says that is full, read-only or damaged: what it is and what to do, and nothing else is advised."""

import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path

import psycopg
import pytest

from ricordo.errors import DatabaseFailed
from ricordo.settings import Settings
from ricordo.storage.engine import sqlite
from ricordo.storage.engine.database import open_store, require_savable
from ricordo.storage.engine.failures import advice_for, kind_of
from ricordo.storage.engine.sqlite import open_sqlite

Usage = namedtuple("Usage", "total used free")
FULL = Usage(4_096_000, 4_096_000, 0)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def test_every_code_of_a_driver_is_told_by_its_kind_extended_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"full": ["SQLITE_FULL"], "damaged": ["SQLITE_CORRUPT", "SQLITE_NOTADB"], "read-only": ["SQLITE_READONLY"]}
    kinds["down"] = ["SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"]
    for kind, names in kinds.items():
        for primary in (getattr(sqlite3, name) for name in names):
            for extended in range(0, 20):
                assert kind_of(sqlite_error(primary | extended << 8), tmp_path / "ricordo.db") == kind
    codes = {"53100": "full", "25006": "read-only", "XX001": "damaged", "XX002": "damaged", "57P01": "down"}
    for code, kind in codes.items():
        assert kind_of(psycopg.errors.lookup(code)("what PostgreSQL says")) == kind
    assert kind_of(psycopg.OperationalError("connection refused")) == "down"
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: FULL)
    for primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        assert kind_of(sqlite_error(primary), tmp_path / "ricordo.db") == "full"
    assert "backup" in advice_for("damaged", "")
    assert not any("backup" in advice_for(kind, "") for kind in ("full", "read-only", "down"))  # type: ignore[arg-type]


async def test_a_full_disk_at_the_start_is_no_reason_to_restore_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ricordo.db"
    await open_sqlite(path).close()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: FULL)
    for place in ("connect", "migrate"):
        with monkeypatch.context() as patched:

            def fail(*_arguments: object, **_options: object) -> None:
                raise sqlite_error(sqlite3.SQLITE_IOERR)

            target = (sqlite.migrations, "migrate") if place == "migrate" else (sqlite, "_require_own")
            patched.setattr(*target, fail)
            with pytest.raises(DatabaseFailed, match="The disk is full") as caught:
                open_sqlite(path)
        assert "backup" not in str(caught.value)
        assert caught.value.kind == "full"
    monkeypatch.undo()
    await open_sqlite(path).close()


async def test_a_server_whose_disk_is_full_or_whose_files_are_read_only_is_not_ready(
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
