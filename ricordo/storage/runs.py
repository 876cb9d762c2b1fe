"""Runs and steps. An open run's row is its conversation's lease: a partial unique index allows one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Row, bindparam, delete, insert, literal, or_, select

from ricordo.domain.run import Run, Step
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, LeaseLost
from ricordo.storage.engine.repository import (
    USAGE,
    equal,
    found,
    names_of,
    new_values,
    setter,
    usage_of,
    usage_values,
    values_of,
)
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.paging import Page, read_page
from ricordo.storage.schema.core_tables import runs, steps
from ricordo.storage.usage import keep_spent

_RUN_FIELDS = names_of(runs, *USAGE)
_STEP_FIELDS = names_of(steps, *USAGE)
_CHANGING = (
    *("status", "stop_reason", "error", "step_count", "ended_at", "ttft_ns", "duration_ns", "lease_expires_at"),
    "user_id",
)
_INSERT, _INSERT_STEP = insert(runs), insert(steps)
_THIS = runs.c.id == bindparam("run_id")
_IS_OPEN = _THIS & runs.c.ended_at.is_(None)
_IS_LEASED = _IS_OPEN & (runs.c.lease_token == bindparam("token"))
_SAVE = setter(runs, *_CHANGING, *USAGE, where=_IS_LEASED)
_RENEW = setter(runs, "lease_expires_at", where=_IS_LEASED)
_END = setter(runs, *_CHANGING, *USAGE, where=_IS_OPEN)
_NOTE_CALLBACK = setter(runs, "callback", where=_THIS)
_FORGET_BODIES = setter(runs, "body_hash", where=runs.c.conversation_id == bindparam("in_conversation"))
_BY_ID = select(runs).where(equal(runs, "id", "organization_id"))
_LOCK = select(runs).where(_THIS).with_for_update()
_OPEN = select(runs).where(runs.c.ended_at.is_(None)).order_by(runs.c.seq)
# A locked row is left out: a server that froze in the middle of a write must not hold up the healing of the rest.
_EXPIRED = _OPEN.where(runs.c.lease_expires_at <= bindparam("now")).with_for_update(skip_locked=True)
_OPEN_OF_CONVERSATION = _OPEN.where(equal(runs, "conversation_id"))
_OPEN_OF_AGENT = _OPEN.where(equal(runs, "agent_id"))
_IS_OTHER = (runs.c.created_at >= bindparam("since")) & (runs.c.id != bindparam("other_than"))
_SAME_BODY = (
    select(runs)
    .where(equal(runs, "conversation_id", "body_hash"), _IS_OTHER)
    .order_by(runs.c.created_at.desc())
    .limit(1)
)
_SET_FEEDBACK = setter(steps, "feedback", "tags", where=steps.c.id == bindparam("step_id"))
_LAST_STEP = (
    select(steps.c.prompt_tokens, steps.c.completion_tokens)
    .where(equal(steps, "run_id"), steps.c.status == "success")
    .order_by(steps.c.seq.desc())
    .limit(1)
)
_STEPS_OF_RUN = select(steps.c.id).where(equal(steps, "run_id"))
# Its steps, traces and stream are deleted with it.
_DELETE = delete(runs).where(_THIS)
_STEP = select(steps).where(equal(steps, "id", "organization_id"))


def open_run(tx: Transaction, run: Run) -> None:
    tx.run(_INSERT, values_of(run, _RUN_FIELDS) | usage_values(run.usage))


def save(tx: Transaction, run: Run) -> None:
    """Store a run's progress or end, under its lease; raises LeaseLost where it has ended, or the lease is another's."""
    if not tx.run(_SAVE, _changes(run) | {"token": run.lease_token}):
        raise LeaseLost(f"{run.id} was ended by someone else.")


def renew(tx: Transaction, run_id: str, token: str, expires_at: int) -> bool:
    """Keep the lease for longer; False where it is lost."""
    return tx.run(_RENEW, {"run_id": run_id, "token": token, "new_lease_expires_at": expires_at}) > 0


def end(tx: Transaction, run: Run) -> bool:
    """End a run without its lease, as a cancel or a healing does; False where it had ended."""
    return tx.run(_END, _changes(run)) > 0


def note_callback(tx: Transaction, run_id: str, changes: Mapping[str, Any]) -> None:
    """Note with the run what its callback answered: `sent_at` in microseconds, `status_code`, `error`."""
    if run := lock(tx, run_id):
        tx.run(_NOTE_CALLBACK, {"new_callback": run.callback | dict(changes), "run_id": run_id})


def forget_bodies(tx: Transaction, conversation_id: str) -> None:
    tx.run(_FORGET_BODIES, {"new_body_hash": None, "in_conversation": conversation_id})


def get(tx: Transaction, scope: Scope, id: str) -> Run:
    return _run(found(tx.first(_BY_ID, {"id": id, "organization_id": scope.organization_id}), "Run", id))


def lock(tx: Transaction, run_id: str) -> Run | None:
    """Lock the run until this transaction ends, and return it as it is now; None where there is none."""
    row = tx.first(_LOCK, {"run_id": run_id})
    return _run(row) if row else None


def expired(tx: Transaction) -> list[Run]:
    """Lock the open runs whose lease has expired, and return them, the oldest first."""
    return [_run(row) for row in tx.all(_EXPIRED, {"now": tx.clock.now()})]


def open_runs(tx: Transaction, *, conversation_id: str | None = None, agent_id: str | None = None) -> list[Run]:
    """Return the runs that have not ended, the oldest first: all, in one conversation, or of one agent."""
    if conversation_id:
        rows = tx.all(_OPEN_OF_CONVERSATION, {"conversation_id": conversation_id})
    elif agent_id:
        rows = tx.all(_OPEN_OF_AGENT, {"agent_id": agent_id})
    else:
        rows = tx.all(_OPEN)
    return [_run(row) for row in rows]


def with_same_body(
    tx: Transaction, conversation_id: str, body_hash: str, since: int, *, other_than: str = ""
) -> Run | None:
    """Return the newest other run of the conversation that was asked for with this very body since that time."""
    values = {"conversation_id": conversation_id, "body_hash": body_hash, "since": since, "other_than": other_than}
    row = tx.first(_SAME_BODY, values)
    return _run(row) if row else None


def page(
    tx: Transaction,
    scope: Scope,
    wanted: Page,
    *,
    agent_ids: Sequence[str] = (),
    statuses: Sequence[str] = (),
    **equal: Any,
) -> list[Run]:
    """Return one page, filtered by agents, by statuses, and by columns."""
    statement = select(runs).where(runs.c.organization_id == scope.organization_id)
    if agent_ids:
        statement = statement.where(runs.c.agent_id.in_(agent_ids))
    if statuses:
        statement = statement.where(runs.c.status.in_(statuses))
    for name, value in equal.items():
        statement = statement.where(runs.c[name] == value)
    return [_run(row) for row in read_page(tx, statement, runs, wanted)]


def insert_step(tx: Transaction, step: Step) -> None:
    tx.run(_INSERT_STEP, values_of(step, _STEP_FIELDS) | usage_values(step.usage) | {"tags": list(step.tags)})


def get_step(tx: Transaction, scope: Scope, id: str) -> Step:
    return found(find_step(tx, scope, id), "Step", id)


def find_step(tx: Transaction, scope: Scope, id: str) -> Step | None:
    row = tx.first(_STEP, {"id": id, "organization_id": scope.organization_id})
    return _step(row) if row else None


@dataclass(frozen=True, slots=True)
class StepFilter:
    """Which steps are wanted: with any of these tags, judged or not, made from `since` to `until` (microseconds, both included)."""

    tags: Sequence[str] = ()
    has_feedback: bool | None = None
    feedback: Literal["positive", "negative"] | None = None
    since: int | None = None
    until: int | None = None


def page_of_steps(
    tx: Transaction, scope: Scope, wanted: Page, which: StepFilter | None = None, **equal: Any
) -> list[Step]:
    """Return one page of steps, filtered by columns and by the feedback about them."""
    statement = select(steps).where(steps.c.organization_id == scope.organization_id)
    for name, value in equal.items():
        statement = statement.where(steps.c[name] == value)
    which = which or StepFilter()
    if which.tags:
        given = each(steps.c.tags)
        statement = statement.where(or_(*(literal(tag).op("IN", is_comparison=True)(given) for tag in which.tags)))
    if which.has_feedback is not None:
        statement = statement.where(steps.c.feedback.is_not(None) if which.has_feedback else steps.c.feedback.is_(None))
    if which.feedback:
        statement = statement.where(steps.c.feedback == which.feedback)
    if which.since is not None:
        statement = statement.where(steps.c.created_at >= which.since)
    if which.until is not None:
        statement = statement.where(steps.c.created_at <= which.until)
    # Steps are stored as they end. An agent's are looked up in its own index, and all others from the newest row on.
    by = ("created_at", "seq") if "agent_id" in equal else ("seq",)
    return [_step(row) for row in read_page(tx, statement, steps, wanted, by=by)]


def set_feedback(tx: Transaction, step: Step) -> None:
    tx.run(_SET_FEEDBACK, {"step_id": step.id, "new_feedback": step.feedback, "new_tags": list(step.tags)})


def context_tokens(tx: Transaction, run_id: str) -> int | None:
    """Return how many tokens the window had at the run's last step; None where nothing was counted."""
    row = tx.first(_LAST_STEP, {"run_id": run_id})
    return (row.prompt_tokens + row.completion_tokens or None) if row else None


def delete_one(tx: Transaction, scope: Scope, run_id: str) -> None:
    """Delete a run with its steps, whose tokens stay in the ledger; its messages stay. Raises NotFound, Conflict."""
    get(tx, scope, run_id)
    if (run := lock(tx, run_id)) and run.ended_at is None:
        raise Conflict(f"{run_id} has not ended. Cancel it first, then delete it.")
    keep_spent(tx, [row.id for row in tx.all(_STEPS_OF_RUN, {"run_id": run_id})])
    tx.run(_DELETE, {"run_id": run_id})


def _changes(run: Run) -> dict[str, Any]:
    return new_values(values_of(run, _CHANGING) | usage_values(run.usage)) | {"run_id": run.id}


def _run(row: Row[Any]) -> Run:
    return Run(**values_of(row, _RUN_FIELDS), usage=usage_of(row))


def _step(row: Row[Any]) -> Step:
    return Step(**values_of(row, _STEP_FIELDS) | {"tags": tuple(row.tags)}, usage=usage_of(row))
