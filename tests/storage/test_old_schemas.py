"""Databases of every schema that can be upgraded keep their rows, and become like a new one.

`tests/fixtures/schema-N.sql.gz` was made over HTTP by the last Ricordo that had schema N. It holds
an agent with a talk, a passage and blocks. It also holds a user with two versions of a block and a
proposal, and a tool.
"""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table

from ricordo.domain.scope import Scope
from ricordo.storage import agents, blocks, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema import core_tables, memory_tables
from tests.storage.test_schema import schema

FIXTURES = Path(__file__).parents[1] / "fixtures"
# An upgrade adds rows to these tables, and counts these columns again.
_CHANGED_TABLES = {"schema_versions", "jobs", "sqlite_sequence"}
_CHANGED_COLUMNS = {("archives", "passage_count")}
CORE = {
    table.name
    for module in (core_tables, memory_tables)
    for table in vars(module).values()
    if isinstance(table, Table)
}
# The last schema with a database in `fixtures`. A later one differs only by its migrations.
_NEWEST = 14
Tables = dict[str, list[str]]


def dump_of(version: int) -> str:
    packed = FIXTURES / f"schema-{version}.sql.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return packed.with_suffix("").read_text("utf-8")


def tables_of(path: Path) -> Tables:
    """Return the columns of each table."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            for (name,) in names
        }


def content(path: Path, tables: Tables) -> dict[str, list[Any]]:
    """Return the rows of these columns of each table, in a fixed order."""
    with closing(sqlite3.connect(path)) as connection:
        rows = {}
        for name, columns in tables.items():
            quoted = ", ".join(f'"{column}"' for column in columns)
            read = connection.execute(f"SELECT {quoted} FROM {name}")  # noqa: S608 - our own names
            rows[name] = sorted(read, key=repr)
        return rows


@pytest.mark.parametrize("version", range(1, _NEWEST + 1))
async def test_an_older_database_keeps_its_rows_and_gets_the_present_schema(
    version: int, tmp_path: Path
) -> None:
    path, new = tmp_path / "old" / "ricordo.db", tmp_path / "new" / "ricordo.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump_of(version))
    columns = {
        name: [column for column in of if (name, column) not in _CHANGED_COLUMNS]
        for name, of in tables_of(path).items()
        if name not in _CHANGED_TABLES
    }
    before = content(path, columns)
    assert before["agents"]
    assert before["messages"]
    store = open_sqlite(path)
    await store.read(require_readable)
    await store.close()
    await open_sqlite(new).close()
    assert content(path, columns) == before
    upgraded, wanted = schema(path), schema(new)
    assert {name: upgraded[name] for name in CORE} == {name: wanted[name] for name in CORE}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        keys = connection.execute("PRAGMA foreign_key_list(background_tasks)").fetchall()
    assert "agents" not in [key[2] for key in keys], "tasks outlive their agents"


def require_readable(tx: Transaction) -> None:
    """Read an agent with its blocks and messages through the current repositories."""
    (state, *_) = agents.page(tx, Scope(), Page(limit=1))
    assert state.agent.name == "Nina"
    assert blocks.of_agent(tx, state.agent.id)
    assert messages.page(tx, Scope(), Page(limit=10), agent_id=state.agent.id)
