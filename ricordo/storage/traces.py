"""Traces of calls to models, each with the step it belongs to."""

from sqlalchemy import bindparam, delete, select

from ricordo.domain.run import Trace
from ricordo.domain.scope import Scope
from ricordo.storage.engine.repository import Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import traces

# A trace may have some hundred kilobytes, and deleting holds up every other writer.
PORTION = 50
_ROWS = Repository(Trace, traces)
_OF_STEP = _ROWS.select.where(equal(traces, "step_id", "organization_id"))
_OF_RUN = _ROWS.select.where(equal(traces, "run_id", "organization_id")).order_by(traces.c.seq).limit(bindparam("most"))
_NEWEST_TO_GO = select(traces.c.seq).order_by(traces.c.seq.desc()).offset(bindparam("kept")).limit(1)
_TOO_OLD = select(traces.c.seq).where(traces.c.created_at < bindparam("before")).order_by(traces.c.created_at)
_TOO_MANY = select(traces.c.seq).where(traces.c.seq <= bindparam("newest")).order_by(traces.c.seq)
_DELETE_OLD = delete(traces).where(traces.c.seq.in_(_TOO_OLD.limit(PORTION)))
_DELETE_MANY = delete(traces).where(traces.c.seq.in_(_TOO_MANY.limit(PORTION)))


def insert_one(tx: Transaction, trace: Trace) -> None:
    _ROWS.insert(tx, trace)


def of_step(tx: Transaction, scope: Scope, step_id: str) -> Trace | None:
    """The trace of a step, where one was kept."""
    return _ROWS.first(tx, _OF_STEP, {"step_id": step_id, "organization_id": scope.organization_id})


def of_run(tx: Transaction, scope: Scope, run_id: str, most: int) -> list[Trace]:
    """The traces of a run's steps, oldest first."""
    values = {"run_id": run_id, "organization_id": scope.organization_id, "most": most}
    return _ROWS.all(tx, _OF_RUN, values)


def prune(tx: Transaction, *, before: int, kept: int) -> int:
    """Delete some traces made before that time (microseconds), or beyond so many of the newest; returns how many."""
    if deleted := tx.run(_DELETE_OLD, {"before": before}):
        return deleted
    row = tx.first(_NEWEST_TO_GO, {"kept": kept})
    return tx.run(_DELETE_MANY, {"newest": row.seq}) if row else 0
