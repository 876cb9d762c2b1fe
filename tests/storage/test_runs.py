"""Runs and steps: the lease, and who may save."""

from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import Collision, LeaseLost, NotFound
from ricordo.storage import conversations, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make
from tests.seams.stores import START, count_statements

ELSEWHERE = Scope(organization_id="org-2")


async def opened(store: SqliteStore, run: Run | None = None) -> Run:
    run = run or make.run((await make.stored_agent(store)).agent)
    await store.write(lambda tx: runs.open_run(tx, run))
    return run


def ended(run: Run) -> Run:
    return replace(
        run,
        status="completed",
        stop_reason="end_turn",
        usage=Usage(9, 4, cached_tokens=0, reasoning_tokens=2),
        step_count=2,
        ended_at=START + 50,
        ttft_ns=7,
        duration_ns=8,
    )


async def test_a_run_reads_back_as_it_was_opened_and_as_it_ended(store: SqliteStore, scope: Scope) -> None:
    agent = (await make.stored_agent(store)).agent
    run = await opened(
        store,
        make.run(
            agent, user_id="user-1", background=True, body_hash="h", request_config={"a": None}, metadata={"b": [1]}
        ),
    )
    assert await store.read(lambda tx: runs.get(tx, scope, run.id)) == run
    done = replace(ended(run), error={"type": "llm_error"})
    await store.write(lambda tx: runs.save(tx, done))
    assert await store.read(lambda tx: runs.get(tx, scope, run.id)) == done


async def test_a_conversation_has_one_open_run(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    run = await opened(store, make.run(agent))
    second = make.run(agent, lease_token="token-2")
    with pytest.raises(Collision):
        await opened(store, second)
    assert await store.read(runs.open_runs) == [run]
    await store.write(lambda tx: runs.save(tx, ended(run)))
    await opened(store, second)
    assert await store.read(runs.open_runs) == [second]


async def test_two_conversations_of_an_agent_run_at_once(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: conversations.insert_one(tx, make.conversation(agent, id="conv-2")))
    one = await opened(store, make.run(agent))
    two = await opened(store, make.run(agent, conversation_id="conv-2"))
    elsewhere = await opened(store)
    assert await store.read(runs.open_runs) == [one, two, elsewhere]
    assert await store.read(lambda tx: runs.open_runs(tx, agent_id=agent.id)) == [one, two]
    assert await store.read(lambda tx: runs.open_runs(tx, conversation_id="conv-2")) == [two]


@pytest.mark.parametrize("token", ["token-2", None, ""])
async def test_a_save_with_a_wrong_token_is_refused_and_changes_nothing(
    store: SqliteStore, scope: Scope, token: str | None
) -> None:
    run = await opened(store)
    with pytest.raises(LeaseLost, match=f"{run.id} was ended by someone else"):
        await store.write(lambda tx: runs.save(tx, replace(ended(run), lease_token=token)))
    assert await store.read(lambda tx: runs.get(tx, scope, run.id)) == run


async def test_a_run_that_was_cancelled_can_be_saved_no_more(store: SqliteStore, scope: Scope) -> None:
    run = await opened(store)
    cancelled = replace(run, status="cancelled", stop_reason="cancelled", ended_at=START + 9, lease_token=None)
    assert await store.write(lambda tx: runs.end(tx, cancelled))
    with pytest.raises(LeaseLost):
        await store.write(lambda tx: runs.save(tx, ended(run)))
    assert not await store.write(lambda tx: runs.end(tx, ended(run)))
    kept = await store.read(lambda tx: runs.get(tx, scope, run.id))
    assert (kept.status, kept.ended_at) == ("cancelled", START + 9)


async def test_a_lease_is_renewed_by_its_holder_while_the_run_is_open(store: SqliteStore, scope: Scope) -> None:
    run = await opened(store)
    later = run.lease_expires_at + 10
    assert not await store.write(lambda tx: runs.renew(tx, run.id, "token-2", later))
    assert await store.write(lambda tx: runs.renew(tx, run.id, "token-1", later))
    renewed = await store.read(lambda tx: runs.get(tx, scope, run.id))
    assert renewed == replace(run, lease_expires_at=later)
    await store.write(lambda tx: runs.save(tx, ended(renewed)))
    assert not await store.write(lambda tx: runs.renew(tx, run.id, "token-1", later + 10))


async def test_another_organizations_run_and_step_are_not_found(store: SqliteStore) -> None:
    run = await opened(store)
    step = make.step(run)
    await store.write(lambda tx: runs.insert_step(tx, step))
    with pytest.raises(NotFound, match="Run with ID"):
        await store.read(lambda tx: runs.get(tx, ELSEWHERE, run.id))
    with pytest.raises(NotFound, match="Step with ID"):
        await store.read(lambda tx: runs.get_step(tx, ELSEWHERE, step.id))
    assert await store.read(lambda tx: runs.page(tx, ELSEWHERE, Page())) == []
    assert await store.read(lambda tx: runs.page_of_steps(tx, ELSEWHERE, Page())) == []


async def test_the_newest_run_with_the_same_body_is_found_within_its_time(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    thread = conversations.default_id(agent.id)
    made = [
        make.run(agent, body_hash=body, created_at=START + at, ended_at=START + at)
        for body, at in (("same", 10), ("same", 20), ("other", 30))
    ]
    for run in made:
        await opened(store, run)

    async def found(body: str, since: int) -> Run | None:
        return await store.read(lambda tx: runs.with_same_body(tx, thread, body, START + since))

    assert await found("same", 0) == made[1]
    assert await found("same", 20) == made[1]
    assert await found("same", 21) is None
    assert await found("none", 0) is None
    assert await store.read(lambda tx: runs.with_same_body(tx, "conv-2", "same", 0)) is None


async def test_a_page_of_runs_is_filtered_by_agents_statuses_and_columns(store: SqliteStore, scope: Scope) -> None:
    one, two = await opened(store), await opened(store)
    done = ended(one)
    await store.write(lambda tx: runs.save(tx, done))

    async def found(**filters: object) -> list[Run]:
        return await store.read(lambda tx: runs.page(tx, scope, Page(order="asc"), **filters))  # type: ignore[arg-type]

    assert await found() == [done, two]
    assert await found(agent_ids=[two.agent_id, "agent-x"]) == [two]
    assert await found(statuses=["completed", "failed"]) == [done]
    assert await found(conversation_id=one.conversation_id, background=False) == [done]
    assert await found(background=True) == []


async def test_a_step_reads_back_as_it_was_written(store: SqliteStore, scope: Scope) -> None:
    run = await opened(store)
    step = make.step(
        run,
        model_endpoint="http://127.0.0.1:1",
        context_window=8_000,
        status="failed",
        stop_reason="llm_api_error",
        usage=Usage(1, 2, 3, 4, 5),
        error={"type": "llm_timeout", "retry": [1, None]},
        model_ns=6,
        tools_ns=7,
        step_ns=8,
    )
    plain = make.step(run)
    for one in (step, plain):
        await store.write(lambda tx, one=one: runs.insert_step(tx, one))
    assert await store.read(lambda tx: runs.get_step(tx, scope, step.id)) == step
    assert await store.read(lambda tx: runs.page_of_steps(tx, scope, Page(order="asc"), run_id=run.id)) == [step, plain]
    assert await store.read(lambda tx: runs.page_of_steps(tx, scope, Page(), status="success")) == [plain]


async def test_steps_of_all_agents_are_read_from_the_newest_on_without_sorting_them_all(
    store: SqliteStore, scope: Scope
) -> None:
    run = await opened(store)
    made = [make.step(run, id=f"step-{number}", created_at=START + number) for number in range(9)]
    for step in made:
        await store.write(lambda tx, step=step: runs.insert_step(tx, step))  # type: ignore[misc]
    newest = [step.id for step in reversed(made)]

    async def page(**wanted: Any) -> list[str]:
        return [step.id for step in await store.read(lambda tx: runs.page_of_steps(tx, scope, Page(**wanted)))]

    with count_statements(store) as counted:
        assert await page(limit=4) == newest[:4]
    assert await page(limit=4, after=newest[3]) == newest[4:8]
    assert await page(limit=3, before=newest[5]) == newest[2:5]
    assert await page(limit=3, order="asc", after=newest[5]) == newest[4:1:-1]
    (statement,) = counted.statements
    assert statement.partition("ORDER BY")[2].split()[:2] == ["steps.seq", "DESC"]
