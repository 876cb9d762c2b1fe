"""The ledger and budgets on the wire, with their shapes."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from ricordo.api.wire.schemas import Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.ledger import Budget, Cost, Grouping, Line, total

Wire = dict[str, Any]


class CostShape(Shape):
    """Money by kind of token, in the currency of the operator's prices."""

    input: float
    cached: float
    cache_write: float
    output: float
    total: float


class LedgerLineShape(Shape):
    """What was spent by one group; `cost` is null without a price, and leaves out `unpriced_tokens`."""

    key: str | None
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost: CostShape | None
    unpriced_tokens: int | None


class LedgerShape(Shape):
    """What was spent between two moments, line by line and together; `currency` is null without prices."""

    group_by: Grouping
    since: datetime
    until: datetime
    currency: str | None
    lines: list[LedgerLineShape]
    total: LedgerLineShape


class BudgetShape(Shape):
    """How many tokens an agent may use in a day (null: any number), and how many it did today."""

    daily_tokens: int | None
    used_tokens: int | None
    remaining_tokens: int | None
    resets_at: datetime | None


def ledger_to_wire(
    lines: Sequence[Line], *, group_by: Grouping, since: int, until: int, currency: str | None, most: int
) -> Wire:
    """The first lines, and the sum of all."""
    return {
        "group_by": group_by,
        "since": stamp(since),
        "until": stamp(until),
        "currency": currency,
        "lines": [_line(line, currency) for line in lines[:most]],
        "total": _line(total(lines), currency),
    }


def budget_to_wire(budget: Budget | None) -> Wire:
    """An agent's budget; all null where it has none."""
    return {
        "daily_tokens": budget and budget.limit,
        "used_tokens": budget and budget.used,
        "remaining_tokens": max(0, budget.limit - budget.used) if budget else None,
        "resets_at": stamp(budget.resets_at if budget else None),
    }


def _line(line: Line, currency: str | None) -> Wire:
    usage = line.usage
    return {
        "key": line.key,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost": _cost(line.cost) if line.cost else None,
        "unpriced_tokens": line.unpriced_tokens if currency else None,
    }


def _cost(cost: Cost) -> Wire:
    amounts = (cost.input, cost.cached, cost.cache_write, cost.output, cost.total)
    return dict(zip(("input", "cached", "cache_write", "output", "total"), map(_amount, amounts), strict=True))


def _amount(amount: Decimal) -> float:
    return round(float(amount), 6)
