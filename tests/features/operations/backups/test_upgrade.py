"""`ricordo upgrade`: every released schema, the newest, a database in use, and no database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ricordo.storage.migrations import MIGRATIONS
from tests.cli.conftest import Shell
from tests.seams.server import serving
from tests.support import postgres

FIXTURES = sorted((Path(__file__).parents[3] / "fixtures").glob("schema-*.sql"))
NEWEST = len(MIGRATIONS)


def old_database(shell: Shell, fixture: Path) -> Path:
    path = shell.data / "ricordo.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(fixture.read_text("utf-8"))
    return path


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_databases_of_every_released_schema_are_backed_up_and_upgraded(
    shell: Shell, fixture: Path
) -> None:
    path = old_database(shell, fixture)
    done = shell.run("upgrade")
    assert done.returncode == 0, done.stdout + done.stderr
    (copy,) = (shell.data / "backups").glob("*.db")
    assert f"had {fixture.stem.replace('-', ' ')}, and has schema {NEWEST} now" in done.stdout
    assert f"The database before the upgrade is in {copy}." in done.stdout
    assert "none lost" in done.stdout
    for file, newest in ((copy, int(fixture.stem.split("-")[1])), (path, NEWEST)):
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT max(version) FROM schema_versions").fetchone() == (
                newest,
            )
            assert connection.execute("SELECT name FROM agents").fetchall() == [("Nina",)]
    again = shell.run("upgrade")
    assert again.returncode == 0, again.stderr
    assert f"has schema {NEWEST}, which is this Ricordo's" in again.stdout
    assert shell.run("audit", "export").stdout.count('"ricordo upgrade"') == 2
    assert len([*(shell.data / "backups").glob("*.db")]) == 1


def test_an_upgrade_of_an_empty_postgresql_database_asks_for_no_program(shell: Shell) -> None:
    url = postgres.server().new_database(empty=True)
    try:
        done = shell.run("upgrade", RICORDO_DATABASE_URL=url)
    finally:
        postgres.server().drop(url)
    assert f"was empty, and has schema {NEWEST} now." in done.stdout, done.stderr
    assert "pg_dump" not in done.stdout


def test_an_upgrade_refuses_missing_used_and_newer_databases(shell: Shell) -> None:
    missing = shell.run("upgrade")
    assert missing.returncode == 2
    assert "There is no database" in missing.stderr
    path = old_database(shell, FIXTURES[0])
    with serving(shell.data):
        used = shell.run("upgrade")
    assert used.returncode == 2
    assert "Stop it" in used.stderr
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO schema_versions VALUES (999, 'later')")
    newer = shell.run("upgrade")
    assert newer.returncode == 2
    assert "Start the newer Ricordo" in newer.stderr


def test_a_column_missing_after_an_upgrade_is_reported_with_the_backup(shell: Shell) -> None:
    path = old_database(shell, FIXTURES[0])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE memory_remotes DROP COLUMN last_error")
    done = shell.run("upgrade")
    assert done.returncode == 2
    assert "memory_remotes has no last_error" in done.stderr
    assert "which is the database as it was" in done.stderr
