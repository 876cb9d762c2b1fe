"""Runs and steps: the lease, who may save, traces, stream events, and how long they are kept."""

from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.run import Run, Trace
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import Collision, LeaseLost, NotFound
from ricordo.storage import conversations, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
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


async def test_a_run_reads_back_as_it_was_opened_and_as_it_ended(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    run = await opened(
        store,
        make.run(
            agent,
            user_id="user-1",
            background=True,
            body_hash="h",
            request_config={"a": None},
            metadata={"b": [1]},
        ),
    )
    assert await store.read(lambda tx: runs.get(tx, scope, run.id)) == run
    done = replace(ended(run), error={"type": "llm_error"})
    await store.write(lambda tx: runs.save(tx, done))
    assert await store.read(lambda tx: runs.get(tx, scope, run.id)) == done


async def test_a_conversation_has_at_most_one_open_run(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    run = await opened(store, make.run(agent))
    second = make.run(agent, lease_token="token-2")
    with pytest.raises(Collision):
        await opened(store, second)
    assert await store.read(runs.open_runs) == [run]
    await store.write(lambda tx: runs.save(tx, ended(run)))
    await opened(store, second)
    assert await store.read(runs.open_runs) == [second]


async def test_two_conversations_of_an_agent_can_run_at_once(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    await store.write(
        lambda tx: conversations.insert_one(tx, make.conversation(agent, id="conv-2"))
    )
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


async def test_a_cancelled_run_can_no_longer_be_saved(store: SqliteStore, scope: Scope) -> None:
    run = await opened(store)
    cancelled = replace(
        run, status="cancelled", stop_reason="cancelled", ended_at=START + 9, lease_token=None
    )
    assert await store.write(lambda tx: runs.end(tx, cancelled))
    with pytest.raises(LeaseLost):
        await store.write(lambda tx: runs.save(tx, ended(run)))
    assert not await store.write(lambda tx: runs.end(tx, ended(run)))
    kept = await store.read(lambda tx: runs.get(tx, scope, run.id))
    assert (kept.status, kept.ended_at) == ("cancelled", START + 9)


async def test_a_lease_is_renewed_by_its_holder_while_the_run_is_open(
    store: SqliteStore, scope: Scope
) -> None:
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


async def test_steps_of_all_agents_are_read_newest_first_without_sorting(
    store: SqliteStore, scope: Scope
) -> None:
    run = await opened(store)
    made = [make.step(run, id=f"step-{number}", created_at=START + number) for number in range(9)]
    for step in made:
        await store.write(lambda tx, step=step: runs.insert_step(tx, step))  # type: ignore[misc]
    with count_statements(store) as counted:
        page = await store.read(lambda tx: runs.page_of_steps(tx, scope, Page(limit=4)))
    assert [step.id for step in page] == [step.id for step in made[:4:-1]]
    (statement,) = counted.statements
    assert statement.partition("ORDER BY")[2].split()[:2] == ["steps.seq", "DESC"]


def trace(run: Run, **fields: Any) -> Trace:
    return replace(
        Trace(new_id("step"), run.id, run.organization_id, '{"a":1}', '{"b":2}', START), **fields
    )


async def store_traces(store: SqliteStore, new: list[Trace]) -> None:
    await store.write(lambda tx: runs.insert_trace(tx, *new))


async def test_a_trace_is_read_by_step_and_by_run_only_in_its_organization(
    store: SqliteStore, scope: Scope
) -> None:
    run = await opened(store)
    first, second = trace(run), trace(run, response=None)
    await store_traces(store, [first, second])
    assert await store.read(lambda tx: runs.trace_of_step(tx, scope, first.step_id)) == first
    assert await store.read(lambda tx: runs.traces_of_run(tx, scope, run.id, 9)) == [first, second]
    assert await store.read(lambda tx: runs.traces_of_run(tx, scope, run.id, 1)) == [first]
    elsewhere = Scope("org-2")
    assert await store.read(lambda tx: runs.trace_of_step(tx, elsewhere, first.step_id)) is None
    assert await store.read(lambda tx: runs.traces_of_run(tx, elsewhere, run.id, 9)) == []


async def test_old_and_surplus_traces_are_deleted_in_portions(
    store: SqliteStore, scope: Scope
) -> None:
    run = await opened(store)
    old = [trace(run, created_at=START - DAY - 1) for _ in range(runs.TRACES_PRUNED_AT_ONCE + 5)]
    new = [
        trace(run, created_at=START + number) for number in range(runs.TRACES_PRUNED_AT_ONCE + 7)
    ]
    await store_traces(store, [*old, *new])

    async def prune(kept: int) -> int:
        return await store.write(lambda tx: runs.prune_traces(tx, before=START - DAY, kept=kept))

    assert [await prune(1000) for _ in range(3)] == [runs.TRACES_PRUNED_AT_ONCE, 5, 0]
    assert [await prune(4) for _ in range(3)] == [runs.TRACES_PRUNED_AT_ONCE, 3, 0]
    assert await store.read(lambda tx: runs.traces_of_run(tx, scope, run.id, 1000)) == new[-4:]


async def streamed_run(store: SqliteStore, *events: str, ended_at: int | None = None) -> Run:
    """A run with these events, numbered from 1."""
    run = make.run((await make.stored_agent(store)).agent, background=True)

    def work(tx: Transaction) -> None:
        runs.open_run(tx, run)
        if ended_at:
            runs.end(tx, replace(run, status="completed", ended_at=ended_at))
        runs.append_events(tx, run.id, 1, events)

    await store.write(work)
    return run


async def test_an_event_number_is_used_once_and_a_batch_is_stored_completely_or_not(
    store: SqliteStore,
) -> None:
    run = await streamed_run(store, "one", "two")

    with pytest.raises(Collision):
        await store.write(lambda tx: runs.append_events(tx, run.id, 2, ["mine", "three"]))

    assert [event.data for event in await store.read(lambda tx: runs.events_after(tx, run.id))] == [
        "one",
        "two",
    ]
    with pytest.raises(Collision):
        await store.write(lambda tx: runs.append_events(tx, "run-that-is-gone", 1, ["one"]))
