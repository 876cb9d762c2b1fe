"""Budgets on tokens.

Turns of an agent, or of all agents, are refused once a day's tokens are used up. Background work
stops before that.
"""

import pytest

from ricordo.agents.budgets import put_off
from ricordo.domain.clock import DAY
from ricordo.domain.job import Job
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Expense, Usage
from ricordo.llm.scripted import call
from ricordo.storage import jobs, runs
from ricordo.storage.budgets import BudgetSpent, set_budget
from ricordo.storage.engine.repository import Page
from tests.seams.stage import Stage, text_of
from tests.seams.stores import START, ManualClock, count_statements

DATABASES = ("sqlite", "postgresql")


def reply(tokens: int) -> ModelReply:
    return ModelReply((TextPart("Fine."),), Usage(tokens, 0))


def set_default_limit(stage: Stage, limit: int | None) -> None:
    stage.runtime.settings = stage.runtime.settings.model_copy(update={"daily_tokens": limit})


async def set_agent_limit(stage: Stage, agent: str, limit: int | None) -> None:
    await stage.store.write(lambda tx: set_budget(tx, Scope(), agent, limit))


async def waiting(stage: Stage, kind: str) -> list[Job]:
    found = await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page(order="asc")))
    return [job for job in found if job.kind == kind]


async def test_a_spent_agent_budget_refuses_that_agents_next_turn_only(stage: Stage) -> None:
    one, two = await stage.agent(name="Nina"), await stage.agent()
    await set_agent_limit(stage, one, 100)
    stage.lines += [reply(99), reply(50), reply(5)]
    for _ in range(2):
        await stage.say(one)
    before = len(await stage.history(one))

    with pytest.raises(BudgetSpent) as caught:
        await stage.say(one)

    assert caught.value.kind == "llm_insufficient_credits"
    assert str(caught.value) == (
        "The budget of agent Nina, 100 tokens a day, is used up (149 tokens). "
        "It resets at 2026-01-02 00:00 UTC. Wait until then, or raise the budget."
    )
    assert caught.value.resets_at == START + DAY
    # A refused turn stores neither a run nor a message.
    assert len(await stage.runs(one)) == 2
    assert len(await stage.history(one)) == before
    assert text_of(await stage.say(two)) == "Fine."


async def test_a_new_day_or_a_higher_budget_allows_turns_again(
    stage: Stage, agent: str, clock: ManualClock
) -> None:
    await set_agent_limit(stage, agent, 100)
    stage.lines += [reply(100), reply(100), reply(100)]
    await stage.say(agent)
    with pytest.raises(BudgetSpent):
        await stage.say(agent)
    await set_agent_limit(stage, agent, 150)
    await stage.say(agent)
    with pytest.raises(BudgetSpent):
        await stage.say(agent)
    clock.advance(24 * 3600)
    await stage.say(agent)


async def test_a_running_turn_finishes_even_beyond_its_budget(stage: Stage, agent: str) -> None:
    await set_agent_limit(stage, agent, 10)
    search = ModelReply((call("conversation_search", query="tea"),), Usage(500, 5))
    stage.lines += [search, reply(500)]
    answer = await stage.say(agent)
    assert (answer.failure, text_of(answer)) == (None, "Fine.")
    with pytest.raises(BudgetSpent):
        await stage.say(agent)


async def test_the_common_budget_counts_all_agents_and_background_work(
    stage: Stage, clock: ManualClock
) -> None:
    one, two = await stage.agent(), await stage.agent()
    set_default_limit(stage, 100)
    stage.lines += [reply(40), reply(1), reply(30)]
    await stage.say(one)
    clock.advance(6)
    await stage.store.write(
        lambda tx: runs.add_expense(
            tx, Expense(LOCAL_ORGANIZATION, "embedding", "a/b", Usage(30), created_at=START)
        )
    )
    await stage.say(two)
    clock.advance(6)
    await stage.say(two)
    clock.advance(6)
    with pytest.raises(
        BudgetSpent, match="The budget of this organization, 100 tokens a day, is used up"
    ):
        await stage.say(two)
    set_default_limit(stage, None)
    stage.lines += ["Again."]
    assert text_of(await stage.say(one)) == "Again."


async def test_background_turns_stop_at_eighty_percent_of_a_budget(
    stage: Stage, agent: str
) -> None:
    await set_agent_limit(stage, agent, 100)
    stage.lines += [reply(79), reply(1), reply(1)]
    await stage.say(agent)
    await stage.say(agent, purpose="sleeptime")
    with pytest.raises(BudgetSpent, match="is used up to 80 %"):
        await stage.say(agent, purpose="sleeptime")
    assert text_of(await stage.say(agent)) == "Fine."


async def test_checking_a_budget_costs_one_statement_and_without_a_budget_none(
    stage: Stage, agent: str
) -> None:

    async def statements() -> int:
        stage.lines.append(reply(1))
        with count_statements(stage.store) as counted:
            await stage.say(agent)
        assert counted.transactions == 2
        return len(counted.statements)

    await statements()
    plain = await statements()
    await set_agent_limit(stage, agent, 1000)
    assert await statements() == plain + 1
    await set_agent_limit(stage, agent, None)
    set_default_limit(stage, 1000)
    assert await statements() == plain + 1
    # Far below the limit, only some turns sum up the tokens of the day.
    assert await statements() == plain


@pytest.mark.parametrize("for_agent", [True, False])
async def test_background_jobs_are_postponed_to_the_next_day_at_eighty_percent(
    stage: Stage, agent: str, for_agent: bool
) -> None:
    job = Job(
        "dream", LOCAL_ORGANIZATION, {"of": agent}, key=agent, is_single=True, most_attempts=3
    )
    asked = agent if for_agent else None
    assert not await put_off(stage.runtime, job, asked)
    if for_agent:
        await set_agent_limit(stage, agent, 100)
    else:
        set_default_limit(stage, 100)
    assert not await put_off(stage.runtime, job, asked)
    stage.lines.append(reply(80))
    await stage.say(agent)
    stage.store.cache.clear()

    assert await put_off(stage.runtime, job, asked)
    assert await put_off(stage.runtime, job, asked)

    (later,) = await waiting(stage, "dream")
    assert (later.not_before, later.payload, later.most_attempts) == (START + DAY, {"of": agent}, 3)
    assert (later.status, later.attempts) == ("waiting", 0)
