"""Queries of the ledger: tokens of steps and of other work, by group.

A step counts on the day its run was created, UTC. A planned run is created before it begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Row, Select, Table, func, select, union_all

from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.storage.engine.repository import in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.runs import PURPOSE, TOKENS
from ricordo.storage.schema.core_tables import expenses, runs, steps

Grouping = Literal["day", "agent", "user", "model", "purpose"]
# Sources of the ledger: the rows, their columns for filters and groups, and the table with tokens.
_STEPS: tuple[Any, Mapping[str, Any], Table] = (
    runs.join(steps, steps.c.run_id == runs.c.id),
    {**runs.c, "purpose": PURPOSE, "model": steps.c.model_handle},
    steps,
)
_EXPENSES: tuple[Any, Mapping[str, Any], Table] = (expenses, dict(expenses.c), expenses)
_GROUPS = ("agent_id", "user_id", "model", "purpose")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The tokens of one model in one group.

    `key` names the group: a day, an agent …
    """

    key: str | None
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class LedgerQuery:
    """A query of the ledger, with its filters and its grouping.

    It covers the times from `since` up to, not including, `until`, in microseconds.
    """

    since: int
    until: int
    group_by: Grouping = "day"
    agent_id: str | None = None
    user_id: str | None = None
    purpose: str | None = None
    model: str | None = None


def entries(tx: Transaction, scope: Scope, query: LedgerQuery) -> list[LedgerEntry]:
    """Return the tokens by group and model.

    Days are in order of time, other groups in order of tokens, the most first.
    """
    # Sum up each table first. Otherwise SQLite copies all rows into a temporary table, which takes
    # longer than the sums.
    spent = union_all(_spent(*_STEPS, scope, query), _spent(*_EXPENSES, scope, query)).subquery()
    sums = [func.sum(spent.c[name]).label(name) for name in TOKENS]
    statement = select(spent.c.key, spent.c.model, *sums).group_by(spent.c.key, spent.c.model)
    unordered = [_entry(row, query.group_by) for row in tx.all(statement)]
    if query.group_by == "day":
        return sorted(unordered, key=lambda entry: (entry.key or "", entry.model))
    weight: dict[str | None, int] = {}
    for entry in unordered:
        weight[entry.key] = weight.get(entry.key, 0) + entry.usage.total_tokens
    return sorted(unordered, key=lambda entry: (-weight[entry.key], entry.key or "", entry.model))


def _spent(
    source: Any, columns: Mapping[str, Any], counted: Table, scope: Scope, query: LedgerQuery
) -> Select[Any]:
    created_at = columns["created_at"]
    filters = [
        *in_scope(runs if counted is steps else expenses, scope),
        created_at >= query.since,
        created_at < query.until,
    ]
    filters += [
        columns[name] == value for name in _GROUPS if (value := getattr(query, name)) is not None
    ]
    key = created_at // DAY
    if query.group_by in ("agent", "user"):
        key = columns[f"{query.group_by}_id"]
    elif query.group_by != "day":
        key = columns[query.group_by]
    model = columns["model"]
    sums = (func.sum(counted.c[name]).label(name) for name in TOKENS)
    statement = (
        select(key.label("key"), model.label("model"), *sums).select_from(source).where(*filters)
    )
    return statement.group_by(key, model)


def _entry(row: Row[Any], group_by: Grouping) -> LedgerEntry:
    key = row.key
    if group_by == "day":
        key = datetime.fromtimestamp(int(row.key) * DAY // SECOND, UTC).date().isoformat()
    prompt, completion, *parts = (getattr(row, name) for name in TOKENS)
    # PostgreSQL returns sums as decimals.
    usage = Usage(
        int(prompt), int(completion), *(None if part is None else int(part) for part in parts)
    )
    return LedgerEntry(key, row.model, usage)
