"""Runs and their records: steps, traces of model calls, events of streams, and expenses.

The row of a run that has begun and not ended is its conversation's lease: a partial unique index
allows only one. Events stay for some hours.
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

from ricordo.domain.agent import Conversation
from ricordo.domain.clock import DAY
from ricordo.domain.run import Run, Step, Trace
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Expense
from ricordo.errors import Busy, Conflict, LeaseLost
from ricordo.storage import conversations as conversation_rows
from ricordo.storage.engine.repository import Page, Repository, equal, in_scope, setter
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import (
    conversations,
    expenses,
    run_events,
    runs,
    steps,
    traces,
)

TOKENS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
PURPOSE = func.coalesce(runs.c.purpose, "turn")
_PRUNED_AT_ONCE = 500
# A trace may have some hundred kilobytes, and every other writer waits for a deletion.
TRACES_PRUNED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run's stream: its number, and its text as it was sent."""

    number: int
    data: str


_RUNS = Repository(Run, runs)
_STEPS = Repository(Step, steps)
_TRACES = Repository(Trace, traces)
_EXPENSES = Repository(Expense, expenses)
_CHANGING = (
    "status",
    "stop_reason",
    "error",
    "step_count",
    "ended_at",
    "ttft_ns",
    "duration_ns",
    "lease_expires_at",
    "user_id",
    *TOKENS,
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
# A completed run is left out: its own turn completed it.
_NOT_STOPPED = select(runs.c.id).where(
    runs.c.id.op("IN", is_comparison=True)(each(bindparam("ids", type_=steps.c.tags.type))),
    runs.c.status.not_in(("cancelled", "failed")),
)
_OPEN = _RUNS.select.where(_IS_BEGUN).order_by(runs.c.seq)
_PLANNED = _RUNS.select.where(_IS_PLANNED, equal(runs, "agent_id")).order_by(runs.c.seq)
# A locked row is skipped, so that a server that froze during a write does not delay other repairs.
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
# Its steps, traces and events are deleted with it.
_DELETE = delete(runs).where(_THIS)
_EVENTS = Repository(RunEvent, run_events)
_OF_RUN = _EVENTS.select.where(equal(run_events, "run_id"))
_EVENTS_AFTER = _OF_RUN.where(run_events.c.number > bindparam("after")).order_by(
    run_events.c.number
)
_EVENTS_AFTER = _EVENTS_AFTER.limit(bindparam("limit"))
_LAST_EVENT = _OF_RUN.order_by(run_events.c.number.desc()).limit(1)
_INSERT_EVENT = insert(run_events)
# Filter by the event's time first, which has an index. The last events of a run are stored shortly
# after its end, so they may be deleted a little later than the others.
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
    .limit(bindparam("limit"))
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
get = _RUNS.get
find = _RUNS.find
get_step = _STEPS.get
get_step_for_change = _STEPS.get_for_change
find_step = _STEPS.find
steps_by_ids = _STEPS.by_ids
open_run = _RUNS.insert
insert_step = _STEPS.insert
insert_trace = _TRACES.insert
# Only the turn that holds the run's lease writes these columns.
save_metadata = _RUNS.updates("metadata", "step_count", locked=None)
by_ids = _RUNS.by_ids
set_feedback = _STEPS.updates("feedback", "tags")


def joined(statement: Select[Any], run_id: ColumnElement[str]) -> Select[Any]:
    """Return the statement joined with the run in this column, and with its conversation.

    The values are None if the run or the conversation does not exist. The new columns are the run's
    status and ended_at, and the conversation's conversation_id, window, last_run_ended_at and
    last_stop_reason.

    Args:
        statement: The select to extend.
        run_id: The column with the id of a run.
    """
    is_its = (conversations.c.id == runs.c.conversation_id) & conversations.c.deleted_at.is_(None)
    names = ("window", "last_run_ended_at", "last_stop_reason")
    return (
        statement.add_columns(
            runs.c.ended_at,
            runs.c.status,
            conversations.c.id.label("conversation_id"),
            *(conversations.c[name] for name in names),
        )
        .outerjoin(runs, runs.c.id == run_id)
        .outerjoin(conversations, is_its)
    )


def save(tx: Transaction, run: Run) -> None:
    """Store a run's progress or end, under its lease.

    Args:
        tx: The transaction.
        run: The run with its new fields and the token of its lease.

    Raises:
        LeaseLost: The run has ended, or another process has the lease.
    """
    if not _save(tx, run, token=run.lease_token):
        raise LeaseLost(f"{run.id} was ended by someone else.")


def begin_planned(tx: Transaction, run: Run) -> bool:
    """Begin a planned run, which takes its conversation's lease.

    Args:
        tx: The transaction.
        run: The planned run with its lease token and the lease's end.

    Returns:
        False if the run has begun or ended already.

    Raises:
        Collision: Another run has the conversation's lease.
    """
    return _begin(tx, run) > 0


def planned(tx: Transaction, agent_id: str) -> list[Run]:
    """Return the agent's planned runs that have not begun, the oldest first.

    Args:
        tx: The transaction.
        agent_id: The agent.
    """
    return _RUNS.all(tx, _PLANNED, {"agent_id": agent_id})


def agents_with_planned(tx: Transaction, purpose: str, before: int) -> list[tuple[str, str]]:
    """Return organization and id of agents with planned runs of this purpose.

    Args:
        tx: The transaction.
        purpose: The purpose of the runs.
        before: Only runs that were planned before this time (microseconds UTC).
    """
    rows = tx.all(_AGENTS_WITH_PLANNED, {"purpose": purpose, "before": before})
    return [(row.organization_id, row.agent_id) for row in rows]


def renew(tx: Transaction, run_id: str, token: str, expires_at: int) -> bool:
    """Extend the lease of an open run.

    Args:
        tx: The transaction.
        run_id: The run.
        token: The token of the lease.
        expires_at: The new end of the lease in microseconds UTC.

    Returns:
        False if the run has ended, or if another process has the lease.
    """
    return (
        tx.run(_RENEW, {"run_id": run_id, "token": token, "new_lease_expires_at": expires_at}) > 0
    )


def end(tx: Transaction, run: Run) -> bool:
    """End a run without its lease, as a cancel or a repair does.

    Args:
        tx: The transaction.
        run: The run with its `ended_at`, its status and the other fields of its end.

    Returns:
        False if the run has ended already; then nothing changes.
    """
    return _end(tx, run) > 0


def note_callback(tx: Transaction, run_id: str, changes: Mapping[str, Any]) -> None:
    """Store the answer of the run's callback with the run.

    Args:
        tx: The transaction.
        run_id: The run; if it was deleted, nothing happens.
        changes: The fields to set: `sent_at` in microseconds UTC, `status_code` or `error`.
    """
    if run := lock(tx, run_id):
        _note_callback(tx, replace(run, callback=run.callback | dict(changes)))


def forget_bodies(tx: Transaction, conversation_id: str) -> None:
    """Forget the hashes of the request bodies of a conversation's runs.

    So a request with an equal body is no repeat.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
    """
    tx.run(_FORGET_BODIES, {"new_body_hash": None, "in_conversation": conversation_id})


def lock(tx: Transaction, run_id: str) -> Run | None:
    """Lock the run until this transaction ends, and return it; None if there is none.

    Args:
        tx: The transaction.
        run_id: The run.
    """
    return _RUNS.first_locked(tx, _LOCK, {"run_id": run_id})


def expired(tx: Transaction) -> list[Run]:
    """Lock and return the open runs with an expired lease, the oldest first.

    Args:
        tx: The transaction.
    """
    return _RUNS.all(tx, _EXPIRED, {"now": tx.clock.now()})


def open_runs(
    tx: Transaction, *, conversation_id: str | None = None, agent_id: str | None = None
) -> list[Run]:
    """Return the runs that have begun and not ended, the oldest first.

    Args:
        tx: The transaction.
        conversation_id: Only runs of this conversation. Then `agent_id` is ignored.
        agent_id: Only runs of this agent. Without both, the runs of all agents are returned.
    """
    if conversation_id:
        return _RUNS.all(tx, _OPEN_OF_CONVERSATION, {"conversation_id": conversation_id})
    if agent_id:
        return _RUNS.all(tx, _OPEN_OF_AGENT, {"agent_id": agent_id})
    return _RUNS.all(tx, _OPEN)


def stopped(tx: Transaction, run_ids: Sequence[str]) -> list[str]:
    """Return those of these runs that were cancelled, failed or deleted.

    Args:
        tx: The transaction.
        run_ids: The runs.
    """
    others = {row.id for row in tx.all(_NOT_STOPPED, {"ids": list(run_ids)})}
    return [run_id for run_id in run_ids if run_id not in others]


def lock_idle(tx: Transaction, scope: Scope, conversation_id: str) -> Conversation:
    """Lock a conversation in which no turn runs, and return it.

    No turn starts there before this transaction ends. The conversation is read under the lock,
    since a turn or another change may have ended just before.

    Args:
        tx: The transaction, which changes something that a running turn has read.
        scope: The caller.
        conversation_id: The conversation.

    Raises:
        NotFound: There is no such conversation.
        Busy: A turn runs in it.
    """
    conversation_rows.lock(tx, conversation_id)
    conversation = conversation_rows.require(tx, scope, conversation_id)
    if begun := open_runs(tx, conversation_id=conversation_id):
        raise Busy(begun[0].id)
    return conversation


def with_same_body(
    tx: Transaction, conversation_id: str, body_hash: str, since: int, *, other_than: str = ""
) -> Run | None:
    """Return the conversation's newest run with the same request body.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        body_hash: The hash of the request's body, as it is stored with a run.
        since: The earliest creation of the run in microseconds UTC.
        other_than: The id of a run to skip; "" skips none.
    """
    parameters = {
        "conversation_id": conversation_id,
        "body_hash": body_hash,
        "since": since,
        "other_than": other_than,
    }
    return _RUNS.first(tx, _SAME_BODY, parameters)


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    agent_ids: Sequence[str] = (),
    statuses: Sequence[str] = (),
    **equal: Any,
) -> list[Run]:
    """Return one page of the runs that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        agent_ids: Only runs of these agents; without any, of all agents.
        statuses: Only runs with one of these statuses; without any, any status.
        **equal: Values by column; None is ignored.
    """
    if agent_ids:
        of_agents = runs.c.agent_id.in_(agent_ids)
    else:
        of_agents = None
    in_organization, *visible = in_scope(runs, scope)
    if equal.get("conversation_id") or len(agent_ids) == 1:
        # With the bare column, SQLite would read all runs by time instead of the few requested
        # ones.
        in_organization = func.coalesce(runs.c.organization_id, "") == scope.organization_id
    if statuses:
        has_status = runs.c.status.in_(statuses)
    else:
        has_status = None
    return _RUNS.page(
        tx, None, page, in_organization, *visible, of_agents, has_status, caller=scope, **equal
    )


@dataclass(frozen=True, slots=True)
class StepFilter:
    """A filter of steps; None matches any.

    Attributes:
        tags: Steps with one of these tags; without tags, all steps.
        has_feedback: Steps with a feedback, or those without one.
        since: The earliest time of creation in microseconds UTC.
        until: The latest time of creation in microseconds UTC.
        is_none: No step matches.
    """

    tags: Sequence[str] = ()
    has_feedback: bool | None = None
    feedback: Literal["positive", "negative"] | None = None
    since: int | None = None
    until: int | None = None
    is_none: bool = False


def page_of_steps(
    tx: Transaction,
    scope: Scope,
    page: Page,
    filters: StepFilter | None = None,
    *,
    run_ids: Sequence[str] = (),
    **equal: Any,
) -> list[Step]:
    """Return one page of steps.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list. Steps are ordered by their end, but those of one agent by
            creation.
        filters: The conditions; None matches any step.
        run_ids: Only steps of these runs; without any, of all runs.
        **equal: Values by column; None is ignored.
    """
    filters = filters or StepFilter()
    step_tags = each(steps.c.tags)
    conditions: list[ColumnElement[bool]] = []
    if filters.tags:
        has_tags = (literal(tag).op("IN", is_comparison=True)(step_tags) for tag in filters.tags)
        conditions.append(or_(*has_tags))
    if filters.has_feedback is not None:
        conditions.append(steps.c.feedback.is_not(None) == filters.has_feedback)
    if filters.since is not None:
        conditions.append(steps.c.created_at >= filters.since)
    if filters.until is not None:
        conditions.append(steps.c.created_at <= filters.until)
    if filters.is_none:
        conditions.append(false())
    if run_ids:
        conditions.append(steps.c.run_id.in_(run_ids))
    # Steps are stored when they end. Steps of one agent are read by its index. All other reads
    # start at the newest row.
    return _STEPS.page(
        tx,
        scope,
        page,
        *conditions,
        by=("created_at", "seq") if "agent_id" in equal else ("seq",),
        feedback=filters.feedback,
        **equal,
    )


def context_tokens(tx: Transaction, run_id: str) -> int | None:
    """Return the tokens in the window at the run's last successful step.

    Returns None if there is none, or if they were not counted.

    Args:
        tx: The transaction.
        run_id: The run.
    """
    row = tx.first(_LAST_STEP, {"run_id": run_id})
    if row:
        return row.prompt_tokens + row.completion_tokens or None
    return None


def delete_one(tx: Transaction, scope: Scope, run_id: str) -> None:
    """Delete a run with its steps; its messages stay.

    The steps' tokens move to the expenses.

    Args:
        tx: The transaction.
        scope: The caller.
        run_id: The run's id.

    Raises:
        NotFound: There is no such run, or the caller may not see it.
        Forbidden: The caller may not change it.
        Conflict: The run has not ended.
    """
    scope.require_owns(get(tx, scope, run_id).user_id)
    if (run := lock(tx, run_id)) and run.ended_at is None:
        raise Conflict(f"{run_id} has not ended. Cancel it first, then delete it.")
    keep_spent(tx, [row.id for row in tx.all(_STEPS_OF_RUN, {"run_id": run_id})])
    tx.run(_DELETE, {"run_id": run_id})


def append_events(tx: Transaction, run_id: str, first: int, data: Sequence[str]) -> None:
    """Store the next events of a run's stream.

    Args:
        tx: The transaction.
        run_id: The run.
        first: The number of the first event; the others follow it.
        data: The text of each event as it is sent.

    Raises:
        Collision: A number is used already, or the run does not exist.
    """
    now = tx.clock.now()
    rows: list[dict[str, Any]] = [
        {"run_id": run_id, "number": number, "data": text, "created_at": now}
        for number, text in enumerate(data, first)
    ]
    tx.run(_INSERT_EVENT, rows)


def events_after(
    tx: Transaction, run_id: str, number: int = 0, limit: int = 2**31
) -> list[RunEvent]:
    """Return the stored events of a run's stream, in order.

    Args:
        tx: The transaction.
        run_id: The run; the caller's access to it is checked before.
        number: Only events with a greater number.
        limit: The most events.
    """
    return _EVENTS.all(tx, _EVENTS_AFTER, {"run_id": run_id, "after": number, "limit": limit})


def last_event(tx: Transaction, run_id: str) -> RunEvent | None:
    """Return the last stored event of a run's stream; None if there is none.

    Args:
        tx: The transaction.
        run_id: The run; the caller's access to it is checked before.
    """
    return _EVENTS.first(tx, _LAST_EVENT, {"run_id": run_id})


def prune_events(tx: Transaction, before: int) -> int:
    """Delete some old events, and return their number.

    Call it until it returns 0.

    Args:
        tx: The transaction.
        before: Events of runs that ended before this time (microseconds UTC) are deleted.
    """
    rows = tx.all(_OLD_EVENTS, {"before": before})
    if not rows:
        return 0
    return tx.run(delete(run_events).where(run_events.c.seq.in_([row.seq for row in rows])))


def trace_of_step(tx: Transaction, scope: Scope, step_id: str) -> Trace | None:
    """Return the trace of a step's model call; None if there is none or the caller may not see it.

    Args:
        tx: The transaction.
        scope: The caller.
        step_id: The step.
    """
    parameters = {"step_id": step_id, "organization_id": scope.organization_id}
    return _TRACES.first(tx, _TRACE_OF_STEP.where(*in_scope(traces, scope)), parameters)


def traces_of_run(tx: Transaction, scope: Scope, run_id: str, limit: int) -> list[Trace]:
    """Return the first traces of a run, the oldest first.

    Args:
        tx: The transaction.
        scope: The caller; traces that the caller may not see are left out.
        run_id: The run.
        limit: The most traces.
    """
    parameters = {"run_id": run_id, "organization_id": scope.organization_id, "limit": limit}
    return _TRACES.all(tx, _TRACES_OF_RUN.where(*in_scope(traces, scope)), parameters)


def prune_traces(tx: Transaction, *, before: int, kept: int) -> int:
    """Delete some old traces, and return their number.

    Args:
        tx: The transaction.
        before: Traces from before this time (microseconds UTC) are deleted.
        kept: The most traces that stay. If there are more, the oldest are deleted.

    Returns:
        The number of deleted traces. Call it until it is 0.
    """
    if deleted := tx.run(_DELETE_OLD, {"before": before}):
        return deleted
    row = tx.first(_NEWEST_TO_GO, {"kept": kept})
    if row:
        return tx.run(_DELETE_MANY, {"newest": row.seq})
    return 0


def add_expense(tx: Transaction, *spent: Expense) -> None:
    """Store expenses.

    Args:
        tx: The transaction.
        *spent: The expenses. One without a time gets the current time.
    """
    now = tx.clock.now()
    _EXPENSES.insert(
        tx,
        *(expense if expense.created_at else replace(expense, created_at=now) for expense in spent),
    )


def used_since(
    tx: Transaction, organization_id: str, since: int, agent_id: str | None = None
) -> int:
    """Return the tokens used by an organization or an agent.

    It takes one statement.

    Args:
        tx: The transaction.
        organization_id: The organization.
        since: The earliest creation of a run or an expense, in microseconds UTC.
        agent_id: Only tokens of this agent; the organization then does not matter. None or "": all
            of the organization.
    """
    if agent_id:
        row = tx.first(_USED_BY_AGENT, {"agent_id": agent_id, "since": since})
    else:
        row = tx.first(_USED, {"organization_id": organization_id, "since": since})
    return int(row.used)


def keep_spent(tx: Transaction, step_ids: Sequence[str]) -> None:
    """Move the tokens of steps from their runs to the expenses, before the steps are deleted.

    The prompt and completion tokens of these runs become 0. So the caller moves all steps of a run,
    at once or in portions.

    Args:
        tx: The transaction.
        step_ids: The steps; ids of missing ones are ignored.
    """
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


_USED = _used("organization_id")
_USED_BY_AGENT = _used("agent_id")
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
