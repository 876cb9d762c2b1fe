"""Usage: tokens that were spent outside of steps, and the sums that budgets need. Steps count their own tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, insert, literal, select, update

from ricordo.domain.clock import DAY
from ricordo.domain.usage import Expense
from ricordo.storage.engine.repository import Repository
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import expenses, runs, steps

TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
PURPOSE = func.coalesce(runs.c.purpose, "turn")
_EXPENSES = Repository(Expense, expenses)


def add_expense(tx: Transaction, expense: Expense) -> None:
    """Store what was spent, now where it has no time."""
    _EXPENSES.insert(tx, expense if expense.created_at else replace(expense, created_at=tx.clock.now()))


def used_since(tx: Transaction, organization_id: str, since: int, agent_id: str | None = None) -> int:
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
    ["organization_id", "agent_id", "user_id", "purpose", "model", *TOKENS, "created_at"],
    select(
        steps.c.organization_id,
        steps.c.agent_id,
        runs.c.user_id,
        PURPOSE,
        steps.c.model_handle,
        *(func.sum(steps.c[name]) for name in TOKENS),
        func.min(runs.c.created_at),
    )
    .join(runs, runs.c.id == steps.c.run_id)
    .where(_THESE)
    .group_by(*_GROUP)
    .having(func.sum(steps.c.prompt_tokens + steps.c.completion_tokens) > 0),
)
_EMPTY = update(runs).where(runs.c.id.in_(select(steps.c.run_id).where(_THESE))).values(dict.fromkeys(TOKENS[:2], 0))
