"""The ledger and the budgets of agents, over HTTP."""

from typing import Annotated

from fastapi import Depends, Response

from ricordo.agents.budgets import budget_of, set_budget
from ricordo.api.call import Here, answer
from ricordo.api.routing import Routes
from ricordo.domain.usage import Budget
from ricordo.features.ledger.models import BudgetRequest, BudgetResponse, LedgerParameters, LedgerResponse
from ricordo.features.ledger.queries import entries
from ricordo.features.ledger.service import read_prices, settle
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["ledger"])


@router.get("/ledger", response_model=LedgerResponse)
async def read_ledger(here: Here, parameters: Annotated[LedgerParameters, Depends()]) -> Response:
    """Return tokens by day, agent, user, model or purpose, and what they cost where the operator set prices."""
    query = parameters.query(here.store.clock.now())
    prices = read_prices(here.runtime.settings.data_dir)
    lines = settle(await here.store.read(lambda tx: entries(tx, here.scope, query)), prices)
    currency = prices.currency if prices else None
    return answer(LedgerResponse.from_lines(lines, query, currency, parameters.limit))


@router.get("/agents/{agent_id}/budget", response_model=BudgetResponse)
async def read_budget(here: Here, agent_id: str) -> Response:
    """Return how many tokens the agent may use in a day, and how many it used today."""

    def read(tx: Transaction) -> Budget | None:
        return budget_of(tx, agents.load(tx, here.scope, agent_id).agent)

    return answer(BudgetResponse.from_budget(await here.store.read(read)))


@router.patch("/agents/{agent_id}/budget", response_model=BudgetResponse)
async def change_budget(here: Here, agent_id: str, body: BudgetRequest) -> Response:
    """Give the agent a daily budget of tokens, or none. What it used today counts already."""

    def change(tx: Transaction) -> Budget | None:
        return budget_of(tx, set_budget(tx, here.scope, agent_id, body.daily_tokens))

    return answer(BudgetResponse.from_budget(await here.store.write(change)))
