"""Daily token budgets (UTC), one for all agents of an organization and one for each agent.

Background work stops first, at 80 %; from 100 % on no turn begins. A budget never stops a running
turn. Without a budget the check costs nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from ricordo.domain.agent import Agent
from ricordo.domain.clock import DAY, SECOND, day_of, to_datetime
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Budget
from ricordo.errors import Invalid, ModelError
from ricordo.settings import Settings
from ricordo.storage import agents, runs
from ricordo.storage.engine.store import Transaction

DAILY_TOKENS = "daily_tokens"  # among an agent's settings
BACKGROUND_PERCENT = 80
# How long the sum of today's usage is cached while it is below 80 % of the limit. Summing reads
# many rows on a busy day.
_CACHE_TIME = 5 * SECOND
_CACHE_KEY = "tokens used today"


class BudgetSpent(ModelError):
    """A budget is used up; `resets_at` (microseconds) is the start of the next day."""

    def __init__(self, owner: str, budget: Budget, percent: int) -> None:
        share = "" if percent == 100 else f" to {percent} %"
        super().__init__(
            "llm_insufficient_credits",
            f"The budget of {owner}, {budget.limit:,} tokens a day, is used up{share} "
            f"({budget.used:,} tokens). It resets "
            f"at {to_datetime(budget.resets_at):%Y-%m-%d %H:%M} UTC. "
            "Wait until then, or raise the budget.",
        )
        self.resets_at = budget.resets_at


def has_budget(settings: Settings, agent: Agent) -> bool:
    """Return True if the agent's tokens per day are limited, by the server or by the agent.

    Args:
        settings: The settings, whose `daily_tokens` is the server's limit; 0 for none.
        agent: The agent.
    """
    return bool(settings.daily_tokens) or DAILY_TOKENS in agent.settings


def require_budget(
    tx: Transaction, settings: Settings, agent: Agent, purpose: str | None = None
) -> None:
    """Raise BudgetSpent if a budget leaves no room for a turn of this agent.

    The check costs up to one statement for each budget, and none without a budget.

    Args:
        tx: The transaction, or a read.
        settings: The server's settings, with the common budget.
        agent: The agent, whose budget is checked too.
        purpose: The purpose of a run in the background, which is refused from 80 % on. None: a turn
            that a message starts, refused from 100 % on.

    Raises:
        BudgetSpent: The agent's budget or the common one is used up.
    """
    percent = BACKGROUND_PERCENT if purpose else 100
    for owner, budget in budgets_of(tx, settings, agent.organization_id, agent):
        if budget.is_spent(percent):
            raise BudgetSpent(owner, budget, percent)


def require_common_budget(tx: Transaction, settings: Settings, organization_id: str) -> None:
    """Raise BudgetSpent if the common budget of the organization's agents is used up.

    Args:
        tx: The transaction, or a read.
        settings: The server's settings, with the common budget.
        organization_id: The organization whose tokens of this day (UTC) are counted.

    Raises:
        BudgetSpent: The budget is used up.
    """
    for owner, budget in budgets_of(tx, settings, organization_id, None):
        if budget.is_spent(100):
            raise BudgetSpent(owner, budget, 100)


def budgets_of(
    tx: Transaction, settings: Settings, organization_id: str, agent: Agent | None
) -> Iterator[tuple[str, Budget]]:
    """Yield the agent's budget and the common one, each with its owner for messages.

    Args:
        tx: The transaction, or a read.
        settings: The server's settings, with the common budget.
        organization_id: The organization whose tokens count for the common budget.
        agent: The agent; None: only the common budget.
    """
    if agent and (agent_budget := budget_of(tx, agent)):
        yield f"agent {agent.name}", agent_budget
    if limit := settings.daily_tokens:
        now = tx.clock.now()
        today = day_of(now)
        yield (
            "this organization",
            Budget(limit, _used(tx, organization_id, today, now, limit), today + DAY),
        )


def budget_of(tx: Transaction, agent: Agent) -> Budget | None:
    """Return the agent's budget with its usage; None if it has none.

    Args:
        tx: The transaction.
        agent: The agent, whose tokens of this day (UTC) are counted.
    """
    limit = agent.settings.get(DAILY_TOKENS)
    if limit is None:
        return None
    today = day_of(tx.clock.now())
    return Budget(limit, runs.used_since(tx, agent.organization_id, today, agent.id), today + DAY)


def set_budget(tx: Transaction, scope: Scope, agent_id: str, limit: int | None) -> Agent:
    """Set the agent's tokens a day; None removes the budget.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the author of the change.
        agent_id: The agent.
        limit: Tokens for each day in UTC, at least 1.

    Returns:
        The changed agent.

    Raises:
        NotFound: The caller has no such agent.
        Invalid: The limit is below 1.
    """
    if limit is not None and limit < 1:
        raise Invalid("A budget is a number of tokens above 0; null removes it.")
    agents.lock(tx, scope, agent_id)
    agent = agents.load(tx, scope, agent_id).agent
    settings = {name: value for name, value in agent.settings.items() if name != DAILY_TOKENS}
    if limit is not None:
        settings[DAILY_TOKENS] = limit
    agent = replace(agent, settings=settings, updated_by=scope.user_id, updated_at=tx.clock.now())
    agents.update(tx, agent)
    return agent


def _used(tx: Transaction, organization_id: str, today: int, now: int, limit: int) -> int:
    cached = tx.cache.get((_CACHE_KEY, organization_id))
    if cached:
        day, cached_at, token_count = cached
        if (
            day == today
            and now - cached_at < _CACHE_TIME
            and token_count * 100 < limit * BACKGROUND_PERCENT
        ):
            return int(token_count)
    token_count = runs.used_since(tx, organization_id, today)
    # This transaction has added no usage, so the sum may be cached even if the transaction is
    # rolled back.
    tx.cache[_CACHE_KEY, organization_id] = (today, now, token_count)
    return token_count
