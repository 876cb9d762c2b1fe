"""What a database must hold after a crash campaign, read without any code of the server."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass
class Said:
    """A message as its sender knows it: whether it was acknowledged, and whether its answer came."""

    agent: str
    token: str
    otid: str
    acknowledged: bool = False
    answered: bool = False


def audit(database: Path, said: list[Said], bells: Path) -> list[str]:
    """Everything that is wrong in a SQLite file."""
    with closing(sqlite3.connect(database)) as tables:
        return [*_files(tables), *audit_tables(tables, said, bells)]


def audit_tables(tables: Any, said: list[Said], bells: Path) -> list[str]:
    """Everything that is wrong in the tables; `tables.execute(sql, values)` takes `?` for a value and gives JSON as text."""
    return [*_runs(tables), *_said(tables, said), *_threads(tables), *_effects(tables, bells)]


def _files(tables: sqlite3.Connection) -> list[str]:
    faults = [f"integrity: {row}" for row in tables.execute("PRAGMA integrity_check") if row != ("ok",)]
    faults += [f"foreign key: {row}" for row in tables.execute("PRAGMA foreign_key_check")]
    return faults


def _runs(tables: sqlite3.Connection) -> list[str]:
    open_runs = tables.execute(
        "SELECT id, status FROM runs WHERE ended_at IS NULL OR status NOT IN ('completed', 'failed')"
    )
    return [f"{id} is {status}" for id, status in open_runs]


def _said(tables: sqlite3.Connection, said: list[Said]) -> list[str]:
    faults = []
    stored = Counter(otid for (otid,) in tables.execute("SELECT otid FROM messages WHERE otid IS NOT NULL"))
    answers = Counter(tables.execute("SELECT agent_id, text FROM messages WHERE role = 'assistant' AND text != ''"))
    for one in said:
        times, told = stored[one.otid], answers[one.agent, f"Done {one.token}."]
        if times > 1 or (one.acknowledged and times != 1):
            faults.append(
                f"{one.token} was {'' if one.acknowledged else 'not '}acknowledged and is stored {times} times"
            )
        if told > 1 or (one.answered and told != 1):
            faults.append(
                f"{one.token} was {'' if one.answered else 'not '}answered and its answer is stored {told} times"
            )
    return faults


def _threads(tables: sqlite3.Connection) -> list[str]:
    """The window holds the whole history in its order (nothing is compacted here), and calls have their results in it."""
    faults = []
    threads = tables.execute('SELECT id, "window", message_count FROM conversations').fetchall()
    for thread, window, count in threads:
        rows = tables.execute(
            "SELECT id, role, parts FROM messages WHERE conversation_id = ? ORDER BY created_at, seq", (thread,)
        ).fetchall()
        if orjson.loads(window) != [id for id, _, _ in rows]:
            faults.append(f"the window of {thread} is not its history")
        if count != len(rows):
            faults.append(f"{thread} counts {count} messages and has {len(rows)}")
        calls: list[str] = []
        for id, role, parts in rows:
            found = orjson.loads(parts)
            if role == "tool":
                if sorted(part["call_id"] for part in found) != sorted(calls):
                    faults.append(f"{id} does not answer the calls before it")
                calls = []
                continue
            faults += [f"{call} has no result" for call in calls]
            calls = [part["call_id"] for part in found if part["kind"] == "tool_call"]
        faults += [f"{call} has no result" for call in calls]
    return faults


def _effects(tables: sqlite3.Connection, bells: Path) -> list[str]:
    """Each call that is said to have gone through did what it says, once; nothing else did anything."""
    done: dict[str, list[str]] = {"notes": [], "shared": [], "archive": []}
    called: set[str] = set()
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    for role, parts in tables.execute(
        "SELECT role, parts FROM messages WHERE role IN ('assistant', 'tool') ORDER BY seq"
    ):
        for part in orjson.loads(parts):
            if part["kind"] == "tool_call":
                names[part["call_id"]] = (part["name"], orjson.loads(part["arguments"]))
                called.add(part["call_id"].removeprefix("call_"))
            elif role == "tool" and part["status"] == "success":
                name, given = names[part["call_id"]]
                place = "archive" if name == "archival_memory_insert" else given.get("label")
                if place:
                    done[place].append(part["call_id"].removeprefix("call_"))
    kept = {
        label: Counter(line for (value,) in rows for line in value.split("\n")[1:])
        for label in ("notes", "shared")
        if (rows := tables.execute("SELECT value FROM blocks WHERE label = ?", (label,)).fetchall())
    }
    kept["archive"] = Counter(text for (text,) in tables.execute("SELECT text FROM passages"))
    faults = []
    for place, marks in done.items():
        expected = Counter(marks)
        if kept.get(place, Counter()) != expected:
            lost, extra = expected - kept.get(place, Counter()), kept.get(place, Counter()) - expected
            faults.append(f"{place}: lost {list(lost)[:5]}, not told {list(extra)[:5]}")
    rung = bells.read_text().split() if bells.exists() else []
    faults += [f"the bell rang for {mark}, and no message tells of it" for mark in rung if mark not in called]
    (counted,) = tables.execute("SELECT count(*) FROM passages").fetchone()
    (summed,) = tables.execute("SELECT coalesce(sum(passage_count), 0) FROM archives").fetchone()
    if counted != summed:
        faults.append(f"archives count {summed} passages and hold {counted}")
    return faults
