"""The ledger: what was spent, on what and by whom; and how much an agent may spend in a day."""

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from ricordo.agents.budgets import budget_of, set_budget
from ricordo.agents.prices import read_prices
from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.ledger import BudgetShape, LedgerShape, budget_to_wire, ledger_to_wire
from ricordo.domain.clock import parse_date
from ricordo.domain.ledger import DAY, Budget, Grouping, day_of, settle
from ricordo.errors import Invalid
from ricordo.storage import agents, ledger
from ricordo.storage.ledger import LedgerQuery
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1", tags=["ledger"])
_USUAL_DAYS = 30
_MOST_TOKENS = 10**15


@dataclass(frozen=True, slots=True)
class Wanted:
    """The query parameters of the ledger."""

    agent_id: str | None = None
    user_id: Annotated[str | None, Query(description="Only what was about this user.")] = None
    purpose: Annotated[str | None, Query(description="turn, compaction, sleeptime, embedding …")] = None
    model: Annotated[str | None, Query(description="Only this model, by its handle.")] = None
    since: Annotated[
        str | None, Query(alias="from", description="First day, or moment; else the last 30 days. UTC without a zone.")
    ] = None
    until: Annotated[str | None, Query(alias="to", description="Last day, or moment; else now.")] = None
    group_by: Annotated[Grouping, Query(description="What the lines stand for.")] = "day"
    limit: Annotated[int, Query(ge=1, le=10_000, description="How many lines at most; the sum is always of all.")] = (
        1000
    )

    def query(self, now: int) -> LedgerQuery:
        """What is asked of the ledger; raises Invalid where it ends before it begins."""
        until = now + 1 if self.until is None else parse_date(self.until, UTC, name="to", end=True) + 1
        usual = day_of(until) - (_USUAL_DAYS - 1) * DAY
        since = usual if self.since is None else parse_date(self.since, UTC, name="from")
        if since >= until:
            raise Invalid("The ledger is asked for a time that ends before it begins. Let `to` be later than `from`.")
        return LedgerQuery(since, until, self.group_by, self.agent_id, self.user_id, self.purpose, self.model)


class BudgetBody(BaseModel):
    """How many tokens an agent may use in a day; null takes the budget away."""

    model_config = ConfigDict(extra="forbid")

    daily_tokens: int | None = Field(ge=1, le=_MOST_TOKENS)


@router.get("/ledger", response_model=LedgerShape)
async def read_ledger(here: Here, wanted: Annotated[Wanted, Depends()]) -> Response:
    """Tokens by day, agent, user, model or purpose, and what they cost where the operator gave prices."""
    query = wanted.query(here.store.clock.now())
    prices = read_prices(here.runtime.settings.data_dir)
    lines = settle(await here.store.read(lambda tx: ledger.entries(tx, here.scope, query)), prices)
    return answer(
        ledger_to_wire(
            lines,
            group_by=query.group_by,
            since=query.since,
            until=query.until - 1,
            currency=prices.currency if prices else None,
            most=wanted.limit,
        )
    )


@router.get("/agents/{agent_id}/budget", response_model=BudgetShape)
async def read_budget(here: Here, agent_id: str) -> Response:
    """How many tokens the agent may use in a day, and how many it did today."""

    def read(tx: Transaction) -> Budget | None:
        return budget_of(tx, agents.load(tx, here.scope, agent_id).agent)

    return answer(budget_to_wire(await here.store.read(read)))


@router.patch("/agents/{agent_id}/budget", response_model=BudgetShape)
async def change_budget(here: Here, agent_id: str, body: BudgetBody) -> Response:
    """Give the agent a budget of so many tokens a day, or none; what it used today counts already."""

    def change(tx: Transaction) -> Budget | None:
        return budget_of(tx, set_budget(tx, here.scope, agent_id, body.daily_tokens))

    return answer(budget_to_wire(await here.store.write(change)))
