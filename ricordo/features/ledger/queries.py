"""The ledger's query: what was spent in steps and outside of them, by group. A step counts on the day its run began, UTC."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, func, select, union_all

from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import expenses, runs, steps
from ricordo.storage.usage import PURPOSE, TOKENS

Grouping = Literal["day", "agent", "user", "model", "purpose"]
_COLUMNS: dict[Grouping, str] = {
    "day": "day",
    "agent": "agent_id",
    "user": "user_id",
    "model": "model",
    "purpose": "purpose",
}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one model used for one group; `key` names the group (a day, an agent …)."""

    key: str | None
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class LedgerQuery:
    """A query of the ledger: the times from `since` to before `until` (microseconds), for whom, and by what."""

    since: int
    until: int
    group_by: Grouping = "day"
    agent_id: str | None = None
    user_id: str | None = None
    purpose: str | None = None
    model: str | None = None


def entries(tx: Transaction, scope: Scope, wanted: LedgerQuery) -> list[LedgerEntry]:
    """What was spent, by group and model; days in their order, other groups by what they spent, the most first."""
    spent = union_all(_of_steps(scope, wanted), _of_expenses(scope, wanted)).subquery()
    key = spent.c[_COLUMNS[wanted.group_by]]
    sums = [func.sum(spent.c[name]).label(name) for name in TOKENS]
    statement = select(key.label("key"), spent.c.model, *sums).group_by(key, spent.c.model)
    found = [_entry(row, wanted.group_by) for row in tx.all(statement)]
    if wanted.group_by == "day":
        return sorted(found, key=lambda entry: (entry.key or "", entry.model))
    weight: dict[str | None, int] = {}
    for entry in found:
        weight[entry.key] = weight.get(entry.key, 0) + entry.usage.total_tokens
    return sorted(found, key=lambda entry: (-weight[entry.key], entry.key or "", entry.model))


def _of_steps(scope: Scope, wanted: LedgerQuery) -> Select[Any]:
    filters = [
        runs.c.organization_id == scope.organization_id,
        runs.c.created_at >= wanted.since,
        runs.c.created_at < wanted.until,
        *_equal(runs.c.agent_id, wanted.agent_id),
        *_equal(runs.c.user_id, wanted.user_id),
        *_equal(PURPOSE, wanted.purpose),
        *_equal(steps.c.model_handle, wanted.model),
    ]
    return (
        select(
            _day(runs.c.created_at),
            runs.c.agent_id,
            runs.c.user_id,
            steps.c.model_handle.label("model"),
            PURPOSE.label("purpose"),
            *(steps.c[name] for name in TOKENS),
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
        *(expenses.c[name] for name in TOKENS),
    ).where(*filters)


def _equal(column: ColumnElement[Any], value: str | None) -> list[ColumnElement[bool]]:
    return [] if value is None else [column == value]


def _day(timestamp: ColumnElement[int]) -> ColumnElement[Any]:
    return (timestamp // DAY).label("day")


def _entry(row: Row[Any], group_by: Grouping) -> LedgerEntry:
    key = row.key
    if group_by == "day":
        key = datetime.fromtimestamp(int(row.key) * DAY // SECOND, UTC).date().isoformat()
    prompt, completion, *parts = (getattr(row, name) for name in TOKENS)
    # PostgreSQL sums up to a number of any size, and gives that as a decimal.
    usage = Usage(int(prompt), int(completion), *(None if part is None else int(part) for part in parts))
    return LedgerEntry(key, row.model, usage)
