"""Request and response models of the ledger and of budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from ricordo.api.models.base import stamp
from ricordo.domain.clock import DAY, day_of, parse_date
from ricordo.domain.usage import Budget
from ricordo.errors import Invalid
from ricordo.features.ledger.queries import Grouping, LedgerQuery
from ricordo.features.ledger.service import Cost, LedgerLine, total

_DEFAULT_DAYS = 30
_MOST_TOKENS = 10**15
Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """The query parameters of the ledger."""

    agent_id: str | None = None
    user_id: Annotated[str | None, Query(description="Only what was about this user.")] = None
    purpose: Annotated[str | None, Query(description="turn, compaction, sleeptime, embedding …")] = None
    model: Annotated[str | None, Query(description="Only this model, by its handle.")] = None
    since: Annotated[
        str | None, Query(alias="from", description="First day or time, UTC without a zone; else the last 30 days.")
    ] = None
    until: Annotated[str | None, Query(alias="to", description="Last day or time; else now.")] = None
    group_by: Annotated[Grouping, Query(description="What each line is for.")] = "day"
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most lines returned; the total counts all of them.")] = (
        1000
    )

    def query(self, now: int) -> LedgerQuery:
        """Return the query; raises Invalid where it ends before it begins."""
        until = now + 1 if self.until is None else parse_date(self.until, UTC, name="to", end=True) + 1
        first = day_of(until) - (_DEFAULT_DAYS - 1) * DAY
        since = first if self.since is None else parse_date(self.since, UTC, name="from")
        if since >= until:
            raise Invalid("The ledger is asked for a time that ends before it begins. Let `to` be later than `from`.")
        return LedgerQuery(since, until, self.group_by, self.agent_id, self.user_id, self.purpose, self.model)


class BudgetRequest(BaseModel):
    """How many tokens an agent may use in a day; null removes the budget."""

    model_config = ConfigDict(extra="forbid")

    daily_tokens: int | None = Field(ge=1, le=_MOST_TOKENS)


class CostResponse(BaseModel):
    """Money by kind of token, in the currency of the operator's prices."""

    input: float
    cached: float
    cache_write: float
    output: float
    total: float

    @classmethod
    def of(cls, cost: Cost) -> "CostResponse":
        return cls(**{name: _rounded(getattr(cost, name)) for name in cls.model_fields})


class LedgerLineResponse(BaseModel):
    """What one group spent; `cost` is null without a price, and does not include `unpriced_tokens`."""

    key: str | None
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost: CostResponse | None
    unpriced_tokens: int | None

    @classmethod
    def of(cls, line: LedgerLine, currency: str | None) -> "LedgerLineResponse":
        """Make it from a line; without prices nothing is unpriced."""
        usage = line.usage
        return cls(
            key=line.key,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
            cached_input_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost=CostResponse.of(line.cost) if line.cost else None,
            unpriced_tokens=line.unpriced_tokens if currency else None,
        )


class LedgerResponse(BaseModel):
    """What was spent between two times, line by line and in total; `currency` is null without prices."""

    group_by: Grouping
    since: Timestamp
    until: Timestamp
    currency: str | None
    lines: list[LedgerLineResponse]
    total: LedgerLineResponse

    @classmethod
    def of(cls, lines: Sequence[LedgerLine], query: LedgerQuery, currency: str | None, most: int) -> "LedgerResponse":
        """Make it from the first lines, and the total of all."""
        return cls(
            group_by=query.group_by,
            since=stamp(query.since),
            until=stamp(query.until - 1),
            currency=currency,
            lines=[LedgerLineResponse.of(line, currency) for line in lines[:most]],
            total=LedgerLineResponse.of(total(lines), currency),
        )


class BudgetResponse(BaseModel):
    """How many tokens an agent may use in a day, and how many it used today; all null without a budget."""

    daily_tokens: int | None = None
    used_tokens: int | None = None
    remaining_tokens: int | None = None
    resets_at: Timestamp | None = None

    @classmethod
    def of(cls, budget: Budget | None) -> "BudgetResponse":
        """Make it from an agent's budget."""
        if budget is None:
            return cls()
        return cls(
            daily_tokens=budget.limit,
            used_tokens=budget.used,
            remaining_tokens=max(0, budget.limit - budget.used),
            resets_at=stamp(budget.resets_at),
        )


def _rounded(amount: Decimal) -> float:
    return round(float(amount), 6)
