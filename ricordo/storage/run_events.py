"""The streams of runs that outlive their readers: each event as it was sent, numbered from 1, kept for some hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, insert, select

from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import run_events, runs

_PRUNED_AT_ONCE = 500
_INSERT = insert(run_events)
_EVENTS = select(run_events.c.number, run_events.c.data).where(run_events.c.run_id == bindparam("run_id"))
_AFTER = _EVENTS.where(run_events.c.number > bindparam("after")).order_by(run_events.c.number).limit(bindparam("most"))
_ALL = _EVENTS.order_by(run_events.c.number)
_LAST = _EVENTS.order_by(run_events.c.number.desc()).limit(1)
# By the time of the event first, for which there is an index: an event is never younger than the end of its run.
_OLD = (
    select(run_events.c.seq)
    .join(runs, runs.c.id == run_events.c.run_id)
    .where(run_events.c.created_at < bindparam("before"), runs.c.ended_at < bindparam("before"))
    .limit(_PRUNED_AT_ONCE)
)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run's stream: its number, and the very text that is sent."""

    number: int
    data: str


def append(tx: Transaction, run_id: str, first: int, data: Sequence[str]) -> None:
    """Store events, the first of which has this number; raises Collision where one with such a number is there, or no run."""
    now = tx.clock.now()
    rows: list[dict[str, Any]] = [
        {"run_id": run_id, "number": first + place, "data": one, "created_at": now} for place, one in enumerate(data)
    ]
    tx.run(_INSERT, rows)


def after(tx: Transaction, run_id: str, number: int, most: int) -> list[RunEvent]:
    rows = tx.all(_AFTER, {"run_id": run_id, "after": number, "most": most})
    return [RunEvent(row.number, row.data) for row in rows]


def of_run(tx: Transaction, run_id: str) -> list[RunEvent]:
    return [RunEvent(row.number, row.data) for row in tx.all(_ALL, {"run_id": run_id})]


def last(tx: Transaction, run_id: str) -> RunEvent | None:
    row = tx.first(_LAST, {"run_id": run_id})
    return RunEvent(row.number, row.data) if row else None


def prune(tx: Transaction, before: int) -> int:
    """Delete some of the events of runs that ended before this time; returns how many. Call it until there are none."""
    rows = tx.all(_OLD, {"before": before})
    if not rows:
        return 0
    return tx.run(delete(run_events).where(run_events.c.seq.in_([row.seq for row in rows])))
