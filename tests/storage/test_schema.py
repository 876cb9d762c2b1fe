"""The schema of the database.

An older database keeps its content and gets today's tables, and each column says what erasure does
with it. `tests/fixtures/schema-1.sql` is a database of schema 1 as text. Until that schema is
released, a change of a table requires writing this file again with `python -m
tests.storage.test_schema`. After the release a change is a migration, and the file stays.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, create_engine

from ricordo.domain.ids import new_id
from ricordo.errors import Unavailable
from ricordo.settings import Settings
from ricordo.storage.engine.database import check
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.schema.columns import PackedId, erasure_of, metadata, seq, strings
from tests.seams.server import MODEL, serving

SCHEMA_1 = Path(__file__).parents[1] / "fixtures" / "schema-1.sql"


def schema(path: Path) -> dict[str, object]:
    """Tables with their columns, keys and indexes, as SQLite itself understands them."""
    with closing(sqlite3.connect(path)) as connection:

        def rows(sql: str, *values: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql, values).fetchall()

        tables = rows(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        described: dict[str, object] = {}
        for table, sql in sorted(tables):
            indexes = {
                (
                    name if origin == "c" else origin,
                    unique,
                    partial,
                    tuple(rows(f"PRAGMA index_xinfo({name})")),
                )
                for _, name, unique, origin, partial in rows(f"PRAGMA index_list({table})")
            }
            wheres = rows(
                "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ?", table
            )
            triggers = rows(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", table
            )
            described[table] = {
                "triggers": sorted(triggers),
                "columns": sorted(column[1:] for column in rows(f"PRAGMA table_info({table})")),
                "references": sorted(key[2:] for key in rows(f"PRAGMA foreign_key_list({table})")),
                "indexes": indexes,
                "wheres": sorted(str(sql).partition(" WHERE ")[2] for (sql,) in wheres),
                "options": ("AUTOINCREMENT" in sql, "WITHOUT ROWID" in sql),
            }
        return described


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A database of schema 1."""
    path = tmp_path / "old" / "ricordo.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA_1.read_text("utf-8"))
    return path


async def test_an_upgraded_database_has_exactly_the_tables_of_a_new_one(
    old: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.db"
    for path in (old, new):
        await open_sqlite(path).close()
        # This adds the tables of features that earlier tests imported.
        metadata.create_all(create_engine(f"sqlite:///{path}"))
    assert schema(old) == schema(new), (
        "a table was changed without a migration (see the top of this file)"
    )
    assert set(schema(new)) == {*metadata.tables, "schema_versions"}


def test_an_agent_of_an_older_database_remembers_and_answers(old: Path) -> None:
    with serving(old.parent) as server, server.client() as client:
        (agent,) = client.agents.list()
        said = [
            str(getattr(one, "content", ""))
            for one in client.agents.messages.list(agent.id, order="asc")
        ]
        assert "I keep bees." in said
        assert client.agents.blocks.retrieve("human", agent_id=agent.id).value == "Her name is Ada."
        found = client.agents.passages.search(agent.id, query="honey").results
        assert [one.content for one in found] == ["Honey keeps for ever."]
        server.says("You keep bees.")
        answer = client.agents.messages.create(
            agent.id, messages=[{"role": "user", "content": "What do I keep?"}]
        )
        assert "You keep bees." in str(answer.messages)
        window = server.model.requests[-1].messages
        assert "I keep bees." in str(window)


def test_every_column_says_what_erasure_does_with_it() -> None:
    silent = [
        str(column)
        for table in metadata.tables.values()
        for column in table.columns
        if erasure_of(column) is None
    ]
    assert silent == [], (
        'give the table or the column info={"erasure": "delete"}, "blank" or "keep"'
    )
    try:
        table = Table(
            "of_a_plugin", metadata, seq(), *strings("said"), *strings("kind", erasure="keep")
        )
        assert [erasure_of(column) for column in table.columns] == ["keep", None, "keep"]
    finally:
        metadata.remove(metadata.tables["of_a_plugin"])


UUID = "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9"


def test_a_valid_id_is_packed_into_seventeen_bytes_and_any_other_text_is_kept() -> None:
    packed = PackedId("run").pack(id := new_id("run"))
    assert (len(packed or b""), PackedId("run").unpack(packed)) == (17, id)
    others = [
        "",
        "run-1",
        f"step-{UUID}",
        UUID,
        f"run-{UUID.upper()}",
        f"run-{UUID}\n",
        f"run-{UUID}0",
        "läuft",
    ]
    for other in (None, "sixteen letters.", *others):
        packed = PackedId("run").pack(other)
        assert packed == (None if other is None else other.encode())
        assert PackedId("run").unpack(packed) == other


def write_fixture() -> None:
    """Write `schema-1.sql`, by talking with an agent on a new database."""
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder)) as server, server.client() as client:
            blocks = [{"label": "human", "value": "Her name is Ada."}]
            agent = client.agents.create(
                name="Nina", model=MODEL, memory_blocks=blocks, include_base_tools=False
            )  # type: ignore[arg-type]
            server.says("How nice.")
            client.agents.messages.create(
                agent.id, messages=[{"role": "user", "content": "I keep bees."}]
            )
            client.agents.passages.create(agent.id, text="Honey keeps for ever.")
        with closing(sqlite3.connect(Path(folder) / "ricordo.db")) as connection:
            connection.execute("DELETE FROM jobs")
            connection.execute("DELETE FROM tools")  # the next start creates them again
            connection.commit()
            SCHEMA_1.write_text("\n".join(connection.iterdump()) + "\n", "utf-8")


if __name__ == "__main__":
    write_fixture()


# The schema names of the first versions, before schemas were computed from the tables.
FIRST_NAMES = (
    *(
        "create_spine",
        "create_index_and_jobs",
        "create_tickets",
        "create_pgvector",
        "add_threads_and_ledger",
    ),
    *("add_versions", "shorten_versions", "some_later_one", "and_another"),
)
EARLY_TABLES = (
    "ALTER TABLE messages RENAME COLUMN is_untrusted TO tainted",
    "ALTER TABLE agents RENAME TO persons",
    "DROP TABLE conversations",
    "ALTER TABLE users DROP COLUMN name",
)


def require_too_old(path: Path) -> None:
    """Require that a start and a check refuse this file clearly, and leave it unchanged."""
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    with pytest.raises(
        Unavailable, match=r"one of the first versions of Ricordo.*export its agents as files"
    ):
        open_sqlite(path)
    status = check(Settings(data_dir=path.parent))
    assert (status.state, "one of the first versions" in status.reason) == ("broken", True)
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before
    assert not (path.parent / "backups").exists()


def test_the_first_schemas_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for count in range(1, len(FIRST_NAMES) + 1):
        path = tmp_path / str(count) / "ricordo.db"
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "CREATE TABLE schema_versions (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
            )
            connection.execute("CREATE TABLE agents (seq INTEGER PRIMARY KEY, name TEXT)")
            connection.executemany(
                "INSERT INTO schema_versions VALUES (?, ?)", enumerate(FIRST_NAMES[:count], 1)
            )
        require_too_old(path)


@pytest.mark.parametrize("change", EARLY_TABLES)
def test_a_schema_with_tables_older_than_the_first_migration_is_refused(
    old: Path, change: str
) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        for (index,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
        ).fetchall():
            connection.execute(f'DROP INDEX "{index}"')
        connection.execute(change)
    require_too_old(old)
