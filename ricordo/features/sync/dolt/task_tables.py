"""A user's background tasks in their Dolt database: the tasks that were done for them, the runs, and when they were last active.

Every statement names the user, so a database of many users keeps the rows of each apart, and no sync reads or writes another's.
Nothing is pulled from these tables. Users for whom no task ever ran have no rows, and a database of such users alone no tables.
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
from ricordo.storage.engine.store import Transaction

# By table its columns behind user_id; the first is the key beside it.
_TABLES: Mapping[str, tuple[str, ...]] = {
    "background_tasks": (
        *(
            "name",
            "agent_id",
            "course",
            "instructions",
            "cron",
            "idle_minutes",
            "cooldown_minutes",
            "active_days",
        ),
        *("enabled", "updated_at"),
    ),
    "task_runs": (
        *(
            "id",
            "task",
            "due_at",
            "trigger_type",
            "status",
            "run_id",
            "problem",
            "changes",
            "prompt_tokens",
        ),
        *("completion_tokens", "created_at", "ended_at"),
    ),
    "user_activity": ("kind", "last_active_at"),
}
_MOST_RUNS = 1000  # the newest; Dolt's history has those that were there before
_AUTHOR = "Ricordo <ricordo@localhost>"
Row = tuple[str | None, ...]
Rows = dict[str, dict[str, Row]]  # by table and key


def rows_of(tx: Transaction, user: User) -> Rows:
    """Return the rows of this user; nothing where no task ever ran for them."""
    runs = queries.newest_of_user(tx, user.id, _MOST_RUNS)
    if not runs:
        return {}
    tasks = {
        id: task
        for id in dict.fromkeys(run.task_id for run in runs)
        if (task := queries.by_id(tx, id))
    }
    found: dict[str, list[dict[str, Any]]] = {
        "background_tasks": [asdict(task) for task in tasks.values()]
    }
    found["user_activity"] = [
        {"kind": "turn", "last_active_at": queries.last_active_at(tx, user.id)}
    ]
    found["task_runs"] = [
        asdict(run)
        | asdict(run.usage)
        | {"task": tasks[run.task_id].name, "due_at": run.window, "trigger_type": run.trigger}
        | {"changes": orjson.dumps(run.changes).decode()}
        for run in runs
        if run.task_id in tasks
    ]
    listed = {
        table: [tuple(_cell(name, one[name]) for name in _TABLES[table]) for one in rows]
        for table, rows in found.items()
    }
    return {table: {str(row[0]): row for row in rows} for table, rows in listed.items()}


def bring_in_step(database: Database, name: str, wanted: Rows, expected: str, now: int) -> str:
    """Write the rows of the user, in one commit on the `expected` head of main; returns the head then. Raises RemoteMoved."""
    engine = database.engine
    try:
        engine.run("SELECT id FROM task_runs WHERE user_id = ? LIMIT 1", name)
    except EngineError:
        if not wanted:
            return expected
    # What an engine says of letters stands behind the columns of its own table.
    ending = engine.make_table.rpartition(")")[2]
    for table, columns in _TABLES.items():
        texts = ", ".join(f"{column} LONGTEXT" for column in columns[1:])
        key = f"user_id VARCHAR(255) NOT NULL, {columns[0]} VARCHAR(255) NOT NULL"
        engine.run(
            f"CREATE TABLE IF NOT EXISTS {table} ({key}, {texts}, PRIMARY KEY (user_id, {columns[0]})){ending}"
        )
    if engine.run(
        "SELECT table_name FROM dolt_status WHERE status = 'new table' AND table_name IN (?, ?, ?)",
        *_TABLES,
    ):
        _commit(database, "Make the tables of background tasks", now)
        raise RemoteMoved  # by this commit, which is pulled as anybody's
    with database.transaction():
        if database.head() != expected:
            raise RemoteMoved
        changed = [_write(database, table, name, wanted.get(table, {})) for table in _TABLES]
        return (
            _commit(database, f"Bring the background tasks of {name} in step", now)
            if any(changed)
            else expected
        )


def _commit(database: Database, message: str, now: int) -> str:
    for table in _TABLES:
        database.engine.call("dolt_add", table)
    given = ("-m", message, "--author", _AUTHOR, "--date", date_of(now))
    return str(database.engine.call("dolt_commit", *given)[0][0])


def _write(database: Database, table: str, name: str, wanted: Mapping[str, Row]) -> bool:
    """Make the user's rows of the table the wanted ones; False where they are."""
    engine = database.engine
    columns = _TABLES[table]
    listed = ", ".join(columns)
    found = engine.run(f"SELECT {listed} FROM {table} WHERE user_id = ?", name)  # noqa: S608 - our own words
    there = {
        str(row[0]): tuple(None if cell is None else str(cell) for cell in row) for row in found
    }
    for key in there.keys() - wanted.keys():
        engine.run(f"DELETE FROM {table} WHERE user_id = ? AND {columns[0]} = ?", name, key)  # noqa: S608
    places = ", ".join("?" for _ in columns)
    changed = [row for key, row in wanted.items() if there.get(key) != row]
    for row in changed:
        engine.run(f"REPLACE INTO {table} (user_id, {listed}) VALUES (?, {places})", name, *row)  # noqa: S608
    return bool(changed or there.keys() - wanted.keys())


def _cell(column: str, value: Any) -> str | None:
    is_time = column.endswith("_at") and isinstance(value, int)
    return None if value is None else to_datetime(value).isoformat() if is_time else str(value)
