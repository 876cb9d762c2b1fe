"""The ledger's query: what was spent in steps and outside of them, by group. A step counts on the day its run began, UTC."""

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
# The tables with what was spent, where their rows have what is filtered and grouped by, and their tokens.
_STEPS: tuple[Any, Mapping[str, Any], Table] = (
    runs.join(steps, steps.c.run_id == runs.c.id),
    {**runs.c, "purpose": PURPOSE, "model": steps.c.model_handle},
    steps,
)
_EXPENSES: tuple[Any, Mapping[str, Any], Table] = (expenses, dict(expenses.c), expenses)
_GROUPS = ("agent_id", "user_id", "model", "purpose")


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
    # Summed up within each table first: of all their rows together SQLite would make a table, which takes longer than the sums.
    spent = union_all(_spent(*_STEPS, scope, wanted), _spent(*_EXPENSES, scope, wanted)).subquery()
    sums = [func.sum(spent.c[name]).label(name) for name in TOKENS]
    statement = select(spent.c.key, spent.c.model, *sums).group_by(spent.c.key, spent.c.model)
    found = [_entry(row, wanted.group_by) for row in tx.all(statement)]
    if wanted.group_by == "day":
        return sorted(found, key=lambda entry: (entry.key or "", entry.model))
    weight: dict[str | None, int] = {}
    for entry in found:
        weight[entry.key] = weight.get(entry.key, 0) + entry.usage.total_tokens
    return sorted(found, key=lambda entry: (-weight[entry.key], entry.key or "", entry.model))


def _spent(
    source: Any, columns: Mapping[str, Any], counted: Table, scope: Scope, wanted: LedgerQuery
) -> Select[Any]:
    made = columns["created_at"]
    filters = [
        *in_scope(runs if counted is steps else expenses, scope),
        made >= wanted.since,
        made < wanted.until,
    ]
    filters += [
        columns[name] == value for name in _GROUPS if (value := getattr(wanted, name)) is not None
    ]
    name = f"{wanted.group_by}_id" if wanted.group_by in ("agent", "user") else wanted.group_by
    key, model = made // DAY if name == "day" else columns[name], columns["model"]
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
    # PostgreSQL sums up to a number of any size, and gives that as a decimal.
    usage = Usage(
        int(prompt), int(completion), *(None if part is None else int(part) for part in parts)
    )
    return LedgerEntry(key, row.model, usage)
