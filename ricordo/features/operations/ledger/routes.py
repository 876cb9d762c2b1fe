"""Routes and models of the ledger and of agents' budgets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Annotated

from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from ricordo.api.call import RequestContext
from ricordo.api.models.base import From, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.clock import DAY, EARLIEST, day_of, parse_date
from ricordo.domain.text import Json
from ricordo.domain.usage import Budget
from ricordo.errors import Invalid
from ricordo.features.operations.ledger.service import LedgerLine, read_prices, settle, total
from ricordo.storage import agents, users
from ricordo.storage.budgets import budget_of, set_budget
from ricordo.storage.engine.store import Transaction
from ricordo.storage.ledger import Grouping, LedgerEntry, LedgerQuery, entries

router = Routes(prefix="/v1", tags=["ledger"], scope="providers")
_DEFAULT_DAYS = 30
_MOST_TOKENS = 10**15
_Money = Annotated[float, From(convert=lambda amount: round(float(amount), 6))]


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """The query parameters of the ledger."""

    agent_id: str | None = None
    user_id: Annotated[
        str | None, Query(description="Only calls about this user, by id or name.")
    ] = None
    purpose: Annotated[
        str | None, Query(description="turn, compaction, sleeptime, embedding …")
    ] = None
    model: Annotated[str | None, Query(description="Only this model, by its handle.")] = None
    since: Annotated[
        str | None,
        Query(
            alias="from",
            description="First day or time, in UTC if it has no zone; by default the first of the 30 "
            "days that end with `to`.",
        ),
    ] = None
    until: Annotated[
        str | None, Query(alias="to", description="Last day or time; by default now.")
    ] = None
    group_by: Annotated[Grouping, Query(description="The grouping of the lines.")] = "day"
    limit: Annotated[
        int,
        Query(ge=1, le=10_000, description="Most lines returned; the total counts all of them."),
    ] = 1000

    def query(self, now: int) -> LedgerQuery:
        """Return the query.

        Args:
            now: The time in microseconds. The query ends with it by default.

        Raises:
            Invalid: if the query ends before it begins, or a date cannot be read.
        """
        if self.until is None:
            until = now + 1
        else:
            until = parse_date(self.until, UTC, name="to", end=True) + 1
        first = max(day_of(until - 1) - (_DEFAULT_DAYS - 1) * DAY, EARLIEST)
        if self.since is None:
            since = first
        else:
            since = parse_date(self.since, UTC, name="from")
        if since >= until:
            raise Invalid("`to` is before `from`. Send a `to` that is later than `from`.")
        return LedgerQuery(
            since,
            until,
            self.group_by,
            agent_id=self.agent_id,
            user_id=self.user_id,
            purpose=self.purpose,
            model=self.model,
        )


class BudgetRequest(BaseModel):
    """The tokens that an agent may use in a day; null removes the budget."""

    model_config = ConfigDict(extra="forbid")

    daily_tokens: int | None = Field(ge=1, le=_MOST_TOKENS)


class CostResponse(ResponseModel):
    """Money by kind of token, in the currency of the operator's prices."""

    input: _Money
    cached: _Money
    cache_write: _Money
    output: _Money
    total: _Money


class LedgerLineResponse(ResponseModel):
    """The tokens and the cost of one group.

    `cost` is null if there is no price. It does not include `unpriced_tokens`.
    """

    key: str | None
    prompt_tokens: Annotated[int, From("usage.prompt_tokens")]
    completion_tokens: Annotated[int, From("usage.completion_tokens")]
    total_tokens: Annotated[int, From("usage.total_tokens")]
    cached_input_tokens: Annotated[int | None, From("usage.cached_tokens")]
    cached_share: Annotated[float | None, From("usage.cached_share")]
    cache_write_tokens: Annotated[int | None, From("usage.cache_write_tokens")]
    reasoning_tokens: Annotated[int | None, From("usage.reasoning_tokens")]
    cost: CostResponse | None
    unpriced_tokens: int | None

    @classmethod
    def from_line(cls, line: LedgerLine, currency: str | None) -> Json:
        """Return the response for a line.

        Args:
            line: The line.
            currency: The currency of the prices. Without prices, `unpriced_tokens` is null.
        """
        return cls.of(line, unpriced_tokens=line.unpriced_tokens if currency else None)


class LedgerResponse(ResponseModel):
    """The ledger between two times, line by line and in total.

    `currency` is null without prices.
    """

    group_by: Grouping
    since: Timestamp
    until: Timestamp
    currency: str | None
    lines: list[LedgerLineResponse]
    total: LedgerLineResponse

    @classmethod
    def from_lines(
        cls, lines: Sequence[LedgerLine], query: LedgerQuery, currency: str | None, limit: int
    ) -> Json:
        """Return the first lines, and the total of all.

        Args:
            lines: All lines of the ledger.
            query: The query that selected them. Its `until` is the first microsecond after the
                last.
            currency: The currency of the prices; None without prices.
            limit: The most lines that are returned.
        """
        return cls.of(
            query,
            until=query.until - 1,
            currency=currency,
            lines=[LedgerLineResponse.from_line(line, currency) for line in lines[:limit]],
            total=LedgerLineResponse.from_line(total(lines), currency),
        )


class BudgetResponse(ResponseModel):
    """An agent's daily tokens, and the tokens used today; null without a budget."""

    daily_tokens: Annotated[int | None, From("limit")] = None
    used_tokens: Annotated[int | None, From("used")] = None
    remaining_tokens: int | None = None
    resets_at: Timestamp | None = None

    @classmethod
    def from_budget(cls, budget: Budget | None) -> Json:
        """Return the response for a budget.

        Args:
            budget: The agent's budget with its usage; None: all fields are null.
        """
        if budget:
            remaining = max(0, budget.limit - budget.used)
        else:
            remaining = None
        return cls.of(budget, remaining_tokens=remaining)


@router.get("/ledger", response_model=LedgerResponse)
async def read_ledger(
    context: RequestContext, parameters: Annotated[LedgerParameters, Depends()]
) -> Json:
    """Return tokens by day, agent, user, model or purpose, with their cost.

    There are costs only if the operator set prices.
    """
    query = parameters.query(context.store.clock.now())
    prices = read_prices(context.runtime.settings.data_dir)

    def read(tx: Transaction) -> list[LedgerEntry]:
        if query.user_id is None:
            return entries(tx, context.scope, query)
        user = users.require(tx, context.scope, query.user_id)
        return entries(tx, context.scope, replace(query, user_id=user.id))

    lines = settle(await context.store.read(read), prices)
    currency = prices.currency if prices else None
    return LedgerResponse.from_lines(lines, query, currency, parameters.limit)


@router.get("/agents/{agent_id}/budget", response_model=BudgetResponse)
def read_budget(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """Return the agent's daily tokens, and the tokens used today."""
    return BudgetResponse.from_budget(budget_of(tx, agents.load(tx, context.scope, agent_id).agent))


@router.patch("/agents/{agent_id}/budget", response_model=BudgetResponse)
def change_budget(
    tx: Transaction, context: RequestContext, agent_id: str, body: BudgetRequest
) -> Json:
    """Set the agent's daily budget of tokens, or remove it.

    Tokens that the agent has already used today count.
    """
    return BudgetResponse.from_budget(
        budget_of(tx, set_budget(tx, context.scope, agent_id, body.daily_tokens))
    )
