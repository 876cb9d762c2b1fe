"""A user's background tasks in their Dolt database: tasks, runs, last activity.

Every statement names the user. So the rows of many users stay separate, and no sync reads or writes
another user's rows. Nothing is pulled from these tables. Users without runs have no rows, and a
database with only such users has no tables.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from ricordo.domain.clock import to_datetime
from ricordo.domain.scope import User
from ricordo.features.sync.dolt.database import Database, date_of
from ricordo.features.sync.dolt.engines import EngineError
from ricordo.features.sync.remotes.service import RemoteMoved
from ricordo.features.tutor.tasks import queries
from ricordo.storage import activity
from ricordo.storage.engine.store import Transaction

_MADE = "Make the tables of background tasks"
# The columns of each table after user_id. The first of them is part of the key.
_TABLES: Mapping[str, tuple[str, ...]] = {
    "background_tasks": (
        "name",
        "agent_id",
        "course",
        "instructions",
        "cron",
        "idle_minutes",
        "cooldown_minutes",
        "active_days",
        "enabled",
        "updated_at",
    ),
    "task_runs": (
        "id",
        "task",
        "due_at",
        "trigger_type",
        "status",
        "run_id",
        "problem",
        "changes",
        "prompt_tokens",
        "completion_tokens",
        "created_at",
        "ended_at",
    ),
    "user_activity": ("kind", "last_active_at"),
}
_MOST_RUNS = 1000  # the newest runs; older rows remain in Dolt's history
_AUTHOR = "Ricordo <ricordo@localhost>"
Row = tuple[str | None, ...]
Rows = dict[str, dict[str, Row]]  # by table and key


def rows_of(tx: Transaction, user: User) -> Rows:
    """Return the rows of this user; there are none if no task ever ran for the user."""
    runs = queries.newest_of_user(tx, user.id, _MOST_RUNS)
    if not runs:
        return {}
    tasks = {
        id: task
        for id in dict.fromkeys(run.task_id for run in runs)
        if (task := queries.by_id(tx, id))
    }
    records: dict[str, list[dict[str, Any]]] = {
        "background_tasks": [asdict(task) for task in tasks.values()],
        "user_activity": [{"kind": "turn", "last_active_at": activity.last_turn_at(tx, user.id)}],
        "task_runs": [
            asdict(run)
            | asdict(run.usage)
            | {"task": tasks[run.task_id].name, "due_at": run.window, "trigger_type": run.trigger}
            | {"changes": orjson.dumps(run.changes).decode()}
            for run in runs
            if run.task_id in tasks
        ],
    }
    cells = {
        table: [
            tuple(_cell(name, record[name]) for name in _TABLES[table])
            for record in records_of_table
        ]
        for table, records_of_table in records.items()
    }
    return {table: {str(row[0]): row for row in rows} for table, rows in cells.items()}


def write_rows(database: Database, name: str, rows: Rows, *, expected: str, now: int) -> str:
    """Write the user's rows in one commit on the `expected` head of main.

    Missing tables are created in a separate commit, unless there are no rows.

    Args:
        database: The database.
        name: The user's name in it.
        rows: All rows of the user, as `rows_of` returns them. Other rows of the user are deleted.
        expected: The hash that `main` had when the caller read it.
        now: The time of the commit in microseconds.

    Returns:
        The new head, which is `expected` if nothing changed.

    Raises:
        RemoteMoved: if `main` has another hash, also after the tables were created.
    """
    engine = database.engine
    try:
        engine.run("SELECT id FROM task_runs WHERE user_id = ? LIMIT 1", name)
    except EngineError:
        if not rows:
            return expected
    # The engine's character set comes after the columns in its statement for a table.
    ending = engine.make_table.rpartition(")")[2]
    for table, columns in _TABLES.items():
        texts = ", ".join(f"{column} LONGTEXT" for column in columns[1:])
        key = f"user_id VARCHAR(255) NOT NULL, {columns[0]} VARCHAR(255) NOT NULL"
        engine.run(
            f"CREATE TABLE IF NOT EXISTS {table} "
            f"({key}, {texts}, PRIMARY KEY (user_id, {columns[0]})){ending}"
        )
    if engine.run(
        "SELECT table_name FROM dolt_status WHERE status = 'new table' AND table_name IN (?, ?, ?)",
        *_TABLES,
    ):
        _commit(database, _MADE, now)
        raise RemoteMoved  # the head moved to this commit, which is pulled like any other
    with database.transaction():
        if database.head() != expected:
            raise RemoteMoved
        changed = [_write(database, table, name, rows.get(table, {})) for table in _TABLES]
        if not any(changed):
            return expected
        return _commit(database, _step_message(name), now)


def messages_of(name: str) -> tuple[str, ...]:
    """Return the messages of a user's commits of these tables.

    Args:
        name: The user's name in the database.
    """
    return (_MADE, _step_message(name))


def _step_message(name: str) -> str:
    return f"Bring the background tasks of {name} in step"


def _commit(database: Database, message: str, now: int) -> str:
    for table in _TABLES:
        database.engine.call("dolt_add", table)
    arguments = ("-m", message, "--author", _AUTHOR, "--date", date_of(now))
    return str(database.engine.call("dolt_commit", *arguments)[0][0])


def _write(database: Database, table: str, name: str, rows: Mapping[str, Row]) -> bool:
    """Replace the user's rows of the table; return False if they are the same."""
    engine = database.engine
    columns = _TABLES[table]
    names = ", ".join(columns)
    select = f"SELECT {names} FROM {table} WHERE user_id = ?"  # noqa: S608 - constant names
    delete = f"DELETE FROM {table} WHERE user_id = ? AND {columns[0]} = ?"  # noqa: S608
    places = ", ".join("?" for _ in columns)
    write = f"REPLACE INTO {table} (user_id, {names}) VALUES (?, {places})"  # noqa: S608
    stored = {
        str(row[0]): tuple(None if cell is None else str(cell) for cell in row)
        for row in engine.run(select, name)
    }
    surplus = stored.keys() - rows.keys()
    for key in surplus:
        engine.run(delete, name, key)
    changed = [row for key, row in rows.items() if stored.get(key) != row]
    for row in changed:
        engine.run(write, name, *row)
    return bool(changed or surplus)


def _cell(column: str, cell: Any) -> str | None:
    if cell is None:
        return None
    if column.endswith("_at") and isinstance(cell, int):
        return to_datetime(cell).isoformat()
    return str(cell)
