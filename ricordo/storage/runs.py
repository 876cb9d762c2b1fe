"""Runs, and what is kept of them: steps, traces of calls to models, events of streams, and tokens spent.

An open run's row is its conversation's lease: a partial unique index allows one. Events are kept for some hours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    delete,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from ricordo.domain.clock import DAY
from ricordo.domain.run import Run, Step, Trace
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Expense
from ricordo.errors import Conflict, LeaseLost
from ricordo.storage.engine.repository import Page, Repository, equal, in_scope, setter
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import expenses, run_events, runs, steps, traces

TOKENS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
PURPOSE = func.coalesce(runs.c.purpose, "turn")
_PRUNED_AT_ONCE = 500
# A trace may have some hundred kilobytes, and deleting holds up every other writer.
TRACES_PRUNED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run's stream: its number, and the very text that is sent."""

    number: int
    data: str


_RUNS, _STEPS, _TRACES = Repository(Run, runs), Repository(Step, steps), Repository(Trace, traces)
_EXPENSES = Repository(Expense, expenses)
_CHANGING = (
    *(
        "status",
        "stop_reason",
        "error",
        "step_count",
        "ended_at",
        "ttft_ns",
        "duration_ns",
        "lease_expires_at",
    ),
    *("user_id", *TOKENS),
)
_THIS = runs.c.id == bindparam("run_id")
_IS_OPEN = runs.c.ended_at.is_(None)
_IS_BEGUN = _IS_OPEN & runs.c.lease_token.is_not(None)
_IS_PLANNED = _IS_OPEN & runs.c.lease_token.is_(None)
_IS_LEASED = _IS_OPEN & (runs.c.lease_token == bindparam("token"))
_save = _RUNS.updates(*_CHANGING, where=_IS_LEASED)
_end = _RUNS.updates(*_CHANGING, where=_IS_OPEN)
_begin = _RUNS.updates(
    "status", "lease_token", "lease_expires_at", "user_id", "request_config", where=_IS_PLANNED
)
_note_callback = _RUNS.updates("callback")
_RENEW = setter(runs, "lease_expires_at", where=_THIS & _IS_LEASED)
_FORGET_BODIES = setter(
    runs, "body_hash", where=runs.c.conversation_id == bindparam("in_conversation")
)
_LOCK = _RUNS.select.where(_THIS).with_for_update()
_OPEN = _RUNS.select.where(_IS_BEGUN).order_by(runs.c.seq)
_PLANNED = _RUNS.select.where(_IS_PLANNED, equal(runs, "agent_id")).order_by(runs.c.seq)
# A locked row is left out: a server that froze in the middle of a write must not hold up the healing of the rest.
_EXPIRED = _OPEN.where(runs.c.lease_expires_at <= bindparam("now")).with_for_update(
    skip_locked=True
)
_AGENTS_WITH_PLANNED = (
    select(runs.c.organization_id, runs.c.agent_id)
    .where(_IS_PLANNED, equal(runs, "purpose"), runs.c.created_at < bindparam("before"))
    .distinct()
)
_OPEN_OF_CONVERSATION = _OPEN.where(equal(runs, "conversation_id"))
_OPEN_OF_AGENT = _OPEN.where(equal(runs, "agent_id"))
_IS_OTHER = (runs.c.created_at >= bindparam("since")) & (runs.c.id != bindparam("other_than"))
_SAME_BODY = (
    _RUNS.select.where(equal(runs, "conversation_id", "body_hash"), _IS_OTHER)
    .order_by(runs.c.created_at.desc())
    .limit(1)
)
_LAST_STEP = (
    select(steps.c.prompt_tokens, steps.c.completion_tokens)
    .where(equal(steps, "run_id"), steps.c.status == "success")
    .order_by(steps.c.seq.desc())
    .limit(1)
)
_STEPS_OF_RUN = select(steps.c.id).where(equal(steps, "run_id"))
# Its steps, traces and stream are deleted with it.
_DELETE = delete(runs).where(_THIS)
_EVENTS = Repository(RunEvent, run_events)
_OF_RUN = _EVENTS.select.where(equal(run_events, "run_id"))
_EVENTS_AFTER = _OF_RUN.where(run_events.c.number > bindparam("after")).order_by(
    run_events.c.number
)
_EVENTS_AFTER = _EVENTS_AFTER.limit(bindparam("most"))
_LAST_EVENT = _OF_RUN.order_by(run_events.c.number.desc()).limit(1)
_INSERT_EVENT = insert(run_events)
# By the time of the event first, for which there is an index: an event is never younger than the end of its run.
_OLD_EVENTS = (
    select(run_events.c.seq)
    .join(runs, runs.c.id == run_events.c.run_id)
    .where(run_events.c.created_at < bindparam("before"), runs.c.ended_at < bindparam("before"))
    .limit(_PRUNED_AT_ONCE)
)
_TRACE_OF_STEP = _TRACES.select.where(equal(traces, "step_id", "organization_id"))
_TRACES_OF_RUN = (
    _TRACES.select.where(equal(traces, "run_id", "organization_id"))
    .order_by(traces.c.seq)
    .limit(bindparam("most"))
)
_NEWEST_TO_GO = (
    select(traces.c.seq).order_by(traces.c.seq.desc()).offset(bindparam("kept")).limit(1)
)
_TOO_OLD = (
    select(traces.c.seq)
    .where(traces.c.created_at < bindparam("before"))
    .order_by(traces.c.created_at)
)
_TOO_MANY = select(traces.c.seq).where(traces.c.seq <= bindparam("newest")).order_by(traces.c.seq)
_DELETE_OLD = delete(traces).where(traces.c.seq.in_(_TOO_OLD.limit(TRACES_PRUNED_AT_ONCE)))
_DELETE_MANY = delete(traces).where(traces.c.seq.in_(_TOO_MANY.limit(TRACES_PRUNED_AT_ONCE)))
get, find, get_step, find_step, steps_by_ids = (
    _RUNS.get,
    _RUNS.find,
    _STEPS.get,
    _STEPS.find,
    _STEPS.by_ids,
)
open_run, insert_step, insert_trace = _RUNS.insert, _STEPS.insert, _TRACES.insert
save_metadata = _RUNS.updates("metadata", "step_count")
by_ids = _RUNS.by_ids
set_feedback = _STEPS.updates("feedback", "tags")


def save(tx: Transaction, run: Run) -> None:
    """Store a run's progress or end, under its lease; raises LeaseLost where it has ended, or the lease is another's."""
    if not _save(tx, run, token=run.lease_token):
        raise LeaseLost(f"{run.id} was ended by someone else.")


def begin_planned(tx: Transaction, run: Run) -> bool:
    """Begin a run that was planned: from here on it is its conversation's lease. False where it began or ended before."""
    return _begin(tx, run) > 0


def planned(tx: Transaction, agent_id: str) -> list[Run]:
    """Return the agent's runs that are planned and have not begun, the oldest first."""
    return _RUNS.all(tx, _PLANNED, {"agent_id": agent_id})


def agents_with_planned(tx: Transaction, purpose: str, before: int) -> list[tuple[str, str]]:
    """Return the organization and id of each agent with runs for this purpose that were planned before this time."""
    rows = tx.all(_AGENTS_WITH_PLANNED, {"purpose": purpose, "before": before})
    return [(row.organization_id, row.agent_id) for row in rows]


def renew(tx: Transaction, run_id: str, token: str, expires_at: int) -> bool:
    return (
        tx.run(_RENEW, {"run_id": run_id, "token": token, "new_lease_expires_at": expires_at}) > 0
    )


def end(tx: Transaction, run: Run) -> bool:
    """End a run without its lease, as a cancel or a healing does; False where it had ended."""
    return _end(tx, run) > 0


def note_callback(tx: Transaction, run_id: str, changes: Mapping[str, Any]) -> None:
    """Note with the run what its callback answered: `sent_at` in microseconds, `status_code`, `error`."""
    if run := lock(tx, run_id):
        _note_callback(tx, replace(run, callback=run.callback | dict(changes)))


def forget_bodies(tx: Transaction, conversation_id: str) -> None:
    tx.run(_FORGET_BODIES, {"new_body_hash": None, "in_conversation": conversation_id})


def lock(tx: Transaction, run_id: str) -> Run | None:
    """Lock the run until this transaction ends, and return it as it is now; None where there is none."""
    return _RUNS.first(tx, _LOCK, {"run_id": run_id})


def expired(tx: Transaction) -> list[Run]:
    """Lock the open runs whose lease has expired, and return them, the oldest first."""
    return _RUNS.all(tx, _EXPIRED, {"now": tx.clock.now()})


def open_runs(
    tx: Transaction, *, conversation_id: str | None = None, agent_id: str | None = None
) -> list[Run]:
    """Return the runs that have not ended, the oldest first: all, in one conversation, or of one agent."""
    if conversation_id:
        return _RUNS.all(tx, _OPEN_OF_CONVERSATION, {"conversation_id": conversation_id})
    if agent_id:
        return _RUNS.all(tx, _OPEN_OF_AGENT, {"agent_id": agent_id})
    return _RUNS.all(tx, _OPEN)


def with_same_body(
    tx: Transaction, conversation_id: str, body_hash: str, since: int, *, other_than: str = ""
) -> Run | None:
    """Return the newest other run of the conversation that was asked for with this very body since that time."""
    values = {
        "conversation_id": conversation_id,
        "body_hash": body_hash,
        "since": since,
        "other_than": other_than,
    }
    return _RUNS.first(tx, _SAME_BODY, values)


def page(
    tx: Transaction,
    scope: Scope,
    wanted: Page,
    *,
    agent_ids: Sequence[str] = (),
    statuses: Sequence[str] = (),
    **equal: Any,
) -> list[Run]:
    of_agents = runs.c.agent_id.in_(agent_ids) if agent_ids else None
    in_organization, *seen = in_scope(runs, scope)
    if equal.get("conversation_id") or len(agent_ids) == 1:
        # A bare organization_id would lead SQLite through all runs by their time, instead of the few that are wanted.
        in_organization = func.coalesce(runs.c.organization_id, "") == scope.organization_id
    has_status = runs.c.status.in_(statuses) if statuses else None
    return _RUNS.page(
        tx, None, wanted, in_organization, *seen, of_agents, has_status, caller=scope, **equal
    )


@dataclass(frozen=True, slots=True)
class StepFilter:
    """Which steps are wanted: with any of these tags, judged or not, made from `since` to `until` (microseconds, both included)."""

    tags: Sequence[str] = ()
    has_feedback: bool | None = None
    feedback: Literal["positive", "negative"] | None = None
    since: int | None = None
    until: int | None = None
    is_none: bool = False


def page_of_steps(
    tx: Transaction,
    scope: Scope,
    wanted: Page,
    which: StepFilter | None = None,
    *,
    run_ids: Sequence[str] = (),
    **equal: Any,
) -> list[Step]:
    """Return one page of steps, filtered by columns and by the feedback about them; `run_ids` are of several runs."""
    which = which or StepFilter()
    given = each(steps.c.tags)
    # Steps are stored as they end. An agent's are looked up in its own index, and all others from the newest row on.
    return _STEPS.page(
        tx,
        scope,
        wanted,
        or_(*(literal(tag).op("IN", is_comparison=True)(given) for tag in which.tags))
        if which.tags
        else None,
        None if which.has_feedback is None else steps.c.feedback.is_not(None) == which.has_feedback,
        None if which.since is None else steps.c.created_at >= which.since,
        None if which.until is None else steps.c.created_at <= which.until,
        false() if which.is_none else None,
        steps.c.run_id.in_(run_ids) if run_ids else None,
        by=("created_at", "seq") if "agent_id" in equal else ("seq",),
        feedback=which.feedback,
        **equal,
    )


def context_tokens(tx: Transaction, run_id: str) -> int | None:
    """Return how many tokens the window had at the run's last step; None where nothing was counted."""
    row = tx.first(_LAST_STEP, {"run_id": run_id})
    return (row.prompt_tokens + row.completion_tokens or None) if row else None


def delete_one(tx: Transaction, scope: Scope, run_id: str) -> None:
    """Delete a run with its steps, whose tokens stay in the ledger; its messages stay. Raises NotFound, Conflict."""
    scope.require_owns(get(tx, scope, run_id).user_id)
    if (run := lock(tx, run_id)) and run.ended_at is None:
        raise Conflict(f"{run_id} has not ended. Cancel it first, then delete it.")
    keep_spent(tx, [row.id for row in tx.all(_STEPS_OF_RUN, {"run_id": run_id})])
    tx.run(_DELETE, {"run_id": run_id})


def append_events(tx: Transaction, run_id: str, first: int, data: Sequence[str]) -> None:
    """Store events, the first of which has this number; raises Collision where one with such a number is there, or no run."""
    now = tx.clock.now()
    rows: list[dict[str, Any]] = [
        {"run_id": run_id, "number": first + place, "data": one, "created_at": now}
        for place, one in enumerate(data)
    ]
    tx.run(_INSERT_EVENT, rows)


def events_after(
    tx: Transaction, run_id: str, number: int = 0, most: int = 2**31
) -> list[RunEvent]:
    return _EVENTS.all(tx, _EVENTS_AFTER, {"run_id": run_id, "after": number, "most": most})


def last_event(tx: Transaction, run_id: str) -> RunEvent | None:
    return _EVENTS.first(tx, _LAST_EVENT, {"run_id": run_id})


def prune_events(tx: Transaction, before: int) -> int:
    """Delete some of the events of runs that ended before this time; returns how many. Call it until there are none."""
    rows = tx.all(_OLD_EVENTS, {"before": before})
    if not rows:
        return 0
    return tx.run(delete(run_events).where(run_events.c.seq.in_([row.seq for row in rows])))


def trace_of_step(tx: Transaction, scope: Scope, step_id: str) -> Trace | None:
    values = {"step_id": step_id, "organization_id": scope.organization_id}
    return _TRACES.first(tx, _TRACE_OF_STEP.where(*in_scope(traces, scope)), values)


def traces_of_run(tx: Transaction, scope: Scope, run_id: str, most: int) -> list[Trace]:
    values = {"run_id": run_id, "organization_id": scope.organization_id, "most": most}
    return _TRACES.all(tx, _TRACES_OF_RUN.where(*in_scope(traces, scope)), values)


def prune_traces(tx: Transaction, *, before: int, kept: int) -> int:
    """Delete some traces made before that time (microseconds), or beyond so many of the newest; returns how many."""
    if deleted := tx.run(_DELETE_OLD, {"before": before}):
        return deleted
    row = tx.first(_NEWEST_TO_GO, {"kept": kept})
    return tx.run(_DELETE_MANY, {"newest": row.seq}) if row else 0


def add_expense(tx: Transaction, *spent: Expense) -> None:
    """Store what was spent, now where it has no time."""
    now = tx.clock.now()
    _EXPENSES.insert(
        tx,
        *(expense if expense.created_at else replace(expense, created_at=now) for expense in spent),
    )


def used_since(
    tx: Transaction, organization_id: str, since: int, agent_id: str | None = None
) -> int:
    """How many tokens were used since that time (microseconds) in an organization, or by one agent; one statement."""
    if agent_id:
        row = tx.first(_USED_BY_AGENT, {"agent_id": agent_id, "since": since})
    else:
        row = tx.first(_USED, {"organization_id": organization_id, "since": since})
    return int(row.used)


def keep_spent(tx: Transaction, step_ids: Sequence[str]) -> None:
    tx.run(_KEEP, {"ids": list(step_ids)})
    tx.run(_EMPTY, {"ids": list(step_ids)})


def _sum(table: Any, *where: ColumnElement[bool]) -> ColumnElement[int]:
    tokens = func.sum(table.c.prompt_tokens + table.c.completion_tokens)
    return func.coalesce(
        select(tokens).where(*where, table.c.created_at >= bindparam("since")).scalar_subquery(),
        literal(0),
    )


def _used(column: str) -> Select[Any]:
    of_runs, of_rest = (
        _sum(table, table.c[column] == bindparam(column)) for table in (runs, expenses)
    )
    return select((of_runs + of_rest).label("used"))


_USED, _USED_BY_AGENT = _used("organization_id"), _used("agent_id")
_THESE = steps.c.id.op("IN", is_comparison=True)(each(bindparam("ids", type_=steps.c.tags.type)))
_OF_STEP = (steps.c.organization_id, steps.c.agent_id, runs.c.user_id, steps.c.model_handle)
_KEEP = insert(expenses).from_select(
    ["organization_id", "agent_id", "user_id", "model", "purpose", *TOKENS, "created_at"],
    select(
        *_OF_STEP,
        PURPOSE,
        *(func.sum(steps.c[name]) for name in TOKENS),
        func.min(runs.c.created_at),
    )
    .join(runs, runs.c.id == steps.c.run_id)
    .where(_THESE)
    .group_by(*_OF_STEP, runs.c.purpose, runs.c.created_at // DAY)
    .having(func.sum(steps.c.prompt_tokens + steps.c.completion_tokens) > 0),
)
_EMPTY = (
    update(runs)
    .where(runs.c.id.in_(select(steps.c.run_id).where(_THESE)))
    .values(dict.fromkeys(TOKENS[:2], 0))
)
