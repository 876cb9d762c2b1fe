"""The ledger: what was spent in turns and beside them, summed up. A step counts on the day its run began, UTC.

Steps are found through their runs, which are indexed by time. Where steps are deleted, what they spent moves to the expenses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, func, insert, literal, select, union_all, update

from ricordo.domain.clock import SECOND
from ricordo.domain.ledger import DAY, Entry, Grouping
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import expenses, runs, steps

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
_PURPOSE = func.coalesce(runs.c.purpose, "turn")
_COLUMNS: dict[Grouping, str] = {
    "day": "day",
    "agent": "agent_id",
    "user": "user_id",
    "model": "model",
    "purpose": "purpose",
}


@dataclass(frozen=True, slots=True)
class LedgerQuery:
    """What is asked of the ledger: the times from `since` to before `until` (microseconds), for whom, and by what."""

    since: int
    until: int
    group_by: Grouping = "day"
    agent_id: str | None = None
    user_id: str | None = None
    purpose: str | None = None
    model: str | None = None


def entries(tx: Transaction, scope: Scope, wanted: LedgerQuery) -> list[Entry]:
    """What was spent, by group and model; days in their order, other groups by what they spent, the most first."""
    spent = union_all(_of_steps(scope, wanted), _of_expenses(scope, wanted)).subquery()
    key = spent.c[_COLUMNS[wanted.group_by]]
    sums = [func.sum(spent.c[name]).label(name) for name in _TOKENS]
    statement = select(key.label("key"), spent.c.model, *sums).group_by(key, spent.c.model)
    found = [_entry(row, wanted.group_by) for row in tx.all(statement)]
    if wanted.group_by == "day":
        return sorted(found, key=lambda entry: (entry.key or "", entry.model))
    weight: dict[str | None, int] = {}
    for entry in found:
        weight[entry.key] = weight.get(entry.key, 0) + entry.usage.total_tokens
    return sorted(found, key=lambda entry: (-weight[entry.key], entry.key or "", entry.model))


def used_since(tx: Transaction, organization_id: str, since: int, agent_id: str | None = None) -> int:
    """How many tokens were used since that time (microseconds) in an organisation, or by one agent; one statement."""
    if agent_id:
        row = tx.first(_USED_BY_AGENT, {"agent_id": agent_id, "since": since})
    else:
        row = tx.first(_USED, {"organization_id": organization_id, "since": since})
    return int(row.used)


def keep_spent(tx: Transaction, step_ids: Sequence[str]) -> None:
    """Note among the expenses what these steps spent, so that they can be deleted; their runs count no more."""
    tx.run(_KEEP, {"ids": list(step_ids)})
    tx.run(_EMPTY, {"ids": list(step_ids)})


def _of_steps(scope: Scope, wanted: LedgerQuery) -> Select[Any]:
    filters = [
        runs.c.organization_id == scope.organization_id,
        runs.c.created_at >= wanted.since,
        runs.c.created_at < wanted.until,
        *_equal(runs.c.agent_id, wanted.agent_id),
        *_equal(runs.c.user_id, wanted.user_id),
        *_equal(_PURPOSE, wanted.purpose),
        *_equal(steps.c.model_handle, wanted.model),
    ]
    return (
        select(
            _day(runs.c.created_at),
            runs.c.agent_id,
            runs.c.user_id,
            steps.c.model_handle.label("model"),
            _PURPOSE.label("purpose"),
            *(steps.c[name] for name in _TOKENS),
        )
        .join(steps, steps.c.run_id == runs.c.id)
        .where(*filters)
    )


def _of_expenses(scope: Scope, wanted: LedgerQuery) -> Select[Any]:
    filters = [
        expenses.c.organization_id == scope.organization_id,
        expenses.c.created_at >= wanted.since,
        expenses.c.created_at < wanted.until,
        *_equal(expenses.c.agent_id, wanted.agent_id),
        *_equal(expenses.c.user_id, wanted.user_id),
        *_equal(expenses.c.purpose, wanted.purpose),
        *_equal(expenses.c.model, wanted.model),
    ]
    return select(
        _day(expenses.c.created_at),
        expenses.c.agent_id,
        expenses.c.user_id,
        expenses.c.model,
        expenses.c.purpose,
        *(expenses.c[name] for name in _TOKENS),
    ).where(*filters)


def _equal(column: ColumnElement[Any], value: str | None) -> list[ColumnElement[bool]]:
    return [] if value is None else [column == value]


def _day(moment: ColumnElement[int]) -> ColumnElement[Any]:
    return (moment // DAY).label("day")


def _entry(row: Row[Any], group_by: Grouping) -> Entry:
    key = row.key
    if group_by == "day":
        key = datetime.fromtimestamp(int(row.key) * DAY // SECOND, UTC).date().isoformat()
    prompt, completion, *parts = (getattr(row, name) for name in _TOKENS)
    # PostgreSQL sums up to a number of any size, and gives that as a decimal.
    usage = Usage(int(prompt), int(completion), *(None if part is None else int(part) for part in parts))
    return Entry(key, row.model, usage)


def _sum(table: Any, *where: ColumnElement[bool]) -> ColumnElement[int]:
    tokens = func.sum(table.c.prompt_tokens + table.c.completion_tokens)
    return func.coalesce(
        select(tokens).where(*where, table.c.created_at >= bindparam("since")).scalar_subquery(), literal(0)
    )


def _used(column: str) -> Select[Any]:
    of_runs, of_rest = (_sum(table, table.c[column] == bindparam(column)) for table in (runs, expenses))
    return select((of_runs + of_rest).label("used"))


_USED, _USED_BY_AGENT = _used("organization_id"), _used("agent_id")
_THESE = steps.c.id.op("IN", is_comparison=True)(each(bindparam("ids", type_=steps.c.tags.type)))
_GROUP = (
    steps.c.organization_id,
    steps.c.agent_id,
    runs.c.user_id,
    runs.c.purpose,
    steps.c.model_handle,
    runs.c.created_at // DAY,
)
_KEEP = insert(expenses).from_select(
    ["organization_id", "agent_id", "user_id", "purpose", "model", *_TOKENS, "created_at"],
    select(
        steps.c.organization_id,
        steps.c.agent_id,
        runs.c.user_id,
        _PURPOSE,
        steps.c.model_handle,
        *(func.sum(steps.c[name]) for name in _TOKENS),
        func.min(runs.c.created_at),
    )
    .join(runs, runs.c.id == steps.c.run_id)
    .where(_THESE)
    .group_by(*_GROUP)
    .having(func.sum(steps.c.prompt_tokens + steps.c.completion_tokens) > 0),
)
_EMPTY = update(runs).where(runs.c.id.in_(select(steps.c.run_id).where(_THESE))).values(dict.fromkeys(_TOKENS[:2], 0))
