"""Migrations: the resulting schema, and the protection of databases with content."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from ricordo.errors import Unavailable
from ricordo.search.rebuild import REINDEX, add_job
from ricordo.search.text_parts import parts_of
from ricordo.storage import migrations
from ricordo.storage.engine import sqlite
from ricordo.storage.engine.backups import back_up
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.migrations import long_texts
from tests.seams import make
from tests.support.sharing import MAKE_PRIVATE_FILE


def add_colour(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE agents ADD COLUMN colour TEXT")


def add_table(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE additions (seq INTEGER PRIMARY KEY)")


def add_half_of_something(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE halves (seq INTEGER PRIMARY KEY)")
    connection.exec_driver_sql("DELETE FROM agents")
    connection.exec_driver_sql("INSERT INTO no_such_table VALUES (1)")


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        # Only backups have the table of hashes.
        return [line for line in connection.iterdump() if "backup_hashes" not in line]


def backups(path: Path) -> list[Path]:
    return sorted((path.parent / "backups").glob("*"))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with an agent in it, closed."""
    path = tmp_path / "ricordo.db"
    store = open_sqlite(path)
    await make.stored_agent(store, make.agent("Kept"))
    await store.close()
    return path


def with_migrations(monkeypatch: pytest.MonkeyPatch, *more: migrations.Migration) -> None:
    known, original = (*migrations.MIGRATIONS, *more), migrations.migrate
    monkeypatch.setattr(
        migrations, "migrate", lambda c, back_up: original(c, back_up=back_up, migrations=known)
    )


async def open_and_close(path: Path) -> None:
    await open_sqlite(path).close()


async def test_a_new_database_has_its_first_rows_and_no_backup_and_a_restart_changes_nothing(
    path: Path,
) -> None:
    assert query(path, "SELECT id FROM organizations") == [(LOCAL_ORGANIZATION,)]
    assert query(path, "SELECT id, organization_id FROM users") == [
        (LOCAL_USER, LOCAL_ORGANIZATION)
    ]
    before = dump(path)
    await open_and_close(path)
    assert dump(path) == before
    assert backups(path) == []
    assert query(path, "SELECT version FROM schema_versions") == [(len(migrations.MIGRATIONS),)]


async def test_an_older_schema_is_backed_up_before_the_first_migration(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(path)
    seen: list[list[str]] = []

    def look_then_add_colour(connection: Connection) -> None:
        seen.extend(dump(copy) for copy in backups(path))
        add_colour(connection)

    with_migrations(monkeypatch, look_then_add_colour, add_table)
    await open_and_close(path)
    assert seen == [before]
    (copy,) = backups(path)
    assert copy.name.startswith(f"ricordo-schema{len(migrations.MIGRATIONS)}-")
    assert dump(copy) == before
    if os.name == "posix":
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert query(path, "SELECT name, colour FROM agents") == [("Kept", None)]
    names = query(path, "SELECT name FROM schema_versions ORDER BY version")
    assert names[-2:] == [("look_then_add_colour",), ("add_table",)]


async def test_a_backup_opens_as_a_separate_database(path: Path, tmp_path: Path) -> None:
    copy = back_up(path, 1, SystemClock())
    restored = tmp_path / "restored" / "ricordo.db"
    restored.parent.mkdir()
    copy.rename(restored)
    await open_and_close(restored)
    assert query(restored, "SELECT name FROM agents") == [("Kept",)]


async def test_a_newer_schema_is_refused_with_what_to_do_and_left_unchanged(path: Path) -> None:
    newer = len(migrations.MIGRATIONS) + 1
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO schema_versions VALUES (?, 'from_the_future')", (newer,))
        connection.commit()
    before = dump(path)
    with pytest.raises(
        Unavailable,
        match=rf"schema {newer}, and this Ricordo knows up to {newer - 1}\. Start the newer",
    ):
        open_sqlite(path)
    assert dump(path) == before
    assert backups(path) == []


async def test_a_failed_migration_leaves_everything_unchanged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(path)
    with monkeypatch.context() as patched:
        with_migrations(patched, add_half_of_something)
        with pytest.raises(Exception, match="no such table"):
            open_sqlite(path)
    assert dump(path) == before
    await open_and_close(path)  # the folder is free, and the older Ricordo still works
    # The migrations before a failed one stay applied.
    with_migrations(monkeypatch, add_colour, add_half_of_something)
    with pytest.raises(Exception, match="no such table"):
        open_sqlite(path)
    assert query(path, "SELECT name, colour FROM agents") == [("Kept", None)]
    assert query(path, "SELECT max(version) FROM schema_versions") == [
        (len(migrations.MIGRATIONS) + 1,)
    ]


async def test_a_failed_first_start_leaves_no_partial_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = tmp_path / "ricordo.db", migrations.migrate

    def make_half_a_schema(connection: Connection) -> None:
        migrations.create_schema(connection)
        add_half_of_something(connection)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "make_private_file", MAKE_PRIVATE_FILE)
        known = (make_half_a_schema,)
        patched.setattr(
            migrations, "migrate", lambda c, back_up: original(c, back_up=back_up, migrations=known)
        )
        with pytest.raises(Exception, match="no such table"):
            open_sqlite(path)
    assert query(path, "SELECT name FROM sqlite_master WHERE type = 'table'") == [
        ("schema_versions",)
    ]
    await open_and_close(path)
    assert backups(path) == []


def overwrite_pages(path: Path) -> None:
    """Overwrite the middle of the file, whose pages a start does not read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE filler (text TEXT)")
        connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 3000,) for _ in range(60)])
        connection.commit()
        connection.execute("PRAGMA journal_mode = DELETE")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 20 * 4096)
        file.write(b"\xff" * 5 * 4096)


async def test_an_invalid_backup_stops_the_upgrade_before_any_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite_pages(path)
    with_migrations(monkeypatch, add_colour)
    with pytest.raises(Unavailable, match="is not valid, so nothing was changed"):
        open_sqlite(path)
    assert backups(path) == []
    assert query(path, "SELECT max(version) FROM schema_versions") == [
        (len(migrations.MIGRATIONS),)
    ]
    assert "colour" not in [column[1] for column in query(path, "PRAGMA table_info(agents)")]


async def test_a_backup_that_cannot_be_written_stops_the_upgrade(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(path)
    (path.parent / "backups").write_text("a file in the way")
    with_migrations(monkeypatch, add_colour)
    with pytest.raises(Unavailable, match="cannot be made"):
        open_sqlite(path)
    assert dump(path) == before


async def test_keys_of_an_older_database_have_no_limits(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in ("requests_per_minute", "max_body_bytes"):
            connection.execute(f"ALTER TABLE api_keys DROP COLUMN {name}")
        connection.execute(
            "INSERT INTO api_keys (id, organization_id, kind, name, hash, hint, role, created_at)"
            " SELECT 'key-1', id, 'key', 'old', 'h', 'h', 'service', 0 FROM organizations"
        )
        connection.execute("DELETE FROM schema_versions")
        connection.execute("INSERT INTO schema_versions VALUES (4, 'add_index_of_newest_messages')")
    await open_and_close(path)
    assert query(path, "SELECT requests_per_minute, max_body_bytes FROM api_keys") == [(None, None)]


@pytest.mark.parametrize(
    ("constraint", "done"),
    [
        ("", migrations.keep_tasks_without_agents),
        ("CONSTRAINT background_tasks_agent_id_fkey ", migrations.keep_tasks_without_agents),
        ("CONSTRAINT background_tasks_agent_id_fkey ", migrations.free_tasks_of_their_agents),
    ],
)
async def test_tasks_of_an_older_database_outlive_their_agents(
    constraint: str, done: migrations.Migration, path: Path
) -> None:
    version = migrations.MIGRATIONS.index(done)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"""
            DROP TABLE IF EXISTS task_runs;
            DROP TABLE IF EXISTS background_tasks;
            CREATE TABLE background_tasks (
                seq INTEGER NOT NULL, id VARCHAR NOT NULL, agent_id VARCHAR NOT NULL,
                PRIMARY KEY (seq), UNIQUE (id),
                {constraint}FOREIGN KEY(agent_id) REFERENCES agents (id) ON DELETE CASCADE
            );
            CREATE TABLE task_runs (
                seq INTEGER NOT NULL, task_id VARCHAR NOT NULL, PRIMARY KEY (seq),
                FOREIGN KEY(task_id) REFERENCES background_tasks (id) ON DELETE CASCADE
            );
            INSERT INTO background_tasks SELECT 1, 'task-1', id FROM agents;
            INSERT INTO task_runs VALUES (1, 'task-1');
            """  # noqa: S608 - our own words
        )
        connection.execute("UPDATE schema_versions SET version = ?", (version,))
        connection.commit()
    await open_and_close(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM agents")
        connection.commit()
        assert connection.execute("SELECT task_id FROM task_runs").fetchall() == [("task-1",)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_an_older_database_gets_the_index_of_waiting_proposals(path: Path) -> None:
    version = migrations.MIGRATIONS.index(migrations.add_index_of_waiting_proposals)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX proposals_waiting")
        connection.execute("UPDATE schema_versions SET version = ?", (version,))
        connection.commit()
    await open_and_close(path)
    index = "SELECT count(*) FROM sqlite_master WHERE name = 'proposals_waiting'"
    assert query(path, index) == [(1,)]


async def test_indexes_with_long_texts_are_rebuilt_after_an_upgrade(path: Path) -> None:
    store = open_sqlite(path)
    talks = {}
    for name, text in (("long", "tea " * 400), ("short", "tea"), ("waiting", "tea " * 400)):
        talks[name] = (await make.stored_agent(store, make.agent(name))).agent
        await make.stored_messages(store, make.message(talks[name], text))
    archive = await make.stored_archive(store, talks["short"], "rain " * 400)
    await store.write(lambda tx: add_job(tx, talks["waiting"].id, talks["waiting"].organization_id))
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        version = migrations.MIGRATIONS.index(migrations.cut_long_texts)
        connection.execute("UPDATE schema_versions SET version = ?", (version,))
        connection.commit()
    await open_and_close(path)
    jobs = query(path, "SELECT key FROM jobs WHERE kind = 'search.reindex' AND status = 'waiting'")
    assert sorted(jobs) == sorted([(talks["long"].id,), (archive.id,), (talks["waiting"].id,)])


def test_the_migration_has_the_same_constants_as_the_search() -> None:
    assert long_texts.REINDEX == REINDEX
    limit = long_texts.UNCUT_CHARACTERS
    assert len(parts_of("x" * limit)) == 1
    assert len(parts_of("x" * (limit + 1))) > 1
