"""Events of streams: numbered once, read from any number on, and deleted when their run is long over."""

from dataclasses import replace

import pytest

from ricordo.domain.agent import Agent
from ricordo.domain.run import Run
from ricordo.errors import Collision
from ricordo.storage import run_events, runs
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.run_events import RunEvent
from tests.seams import make
from tests.seams.stores import START, ManualClock


@pytest.fixture
async def agent(store: SqliteStore) -> Agent:
    """A stored agent."""
    return (await make.stored_agent(store)).agent


async def stored_run(store: SqliteStore, agent: Agent, *events: str, ended_at: int | None = None) -> Run:
    """A run with these events, numbered from 1."""
    run = make.run(agent, background=True)

    def work(tx: Transaction) -> None:
        runs.open_run(tx, run)
        if ended_at:
            runs.end(tx, replace(run, status="completed", ended_at=ended_at))
        run_events.append(tx, run.id, 1, events)

    await store.write(work)
    return run


async def test_events_are_read_from_any_number_on_as_they_were_stored(store: SqliteStore, agent: Agent) -> None:
    run = await stored_run(
        store, agent, 'data: {"a":"é\\u0000"}\n\n', "data: 2\n\n", "data: [DONE]\n\n", ended_at=START
    )
    await stored_run(store, agent, "data: of another run\n\n")

    whole = await store.read(lambda tx: run_events.of_run(tx, run.id))

    assert whole == [
        RunEvent(1, 'data: {"a":"é\\u0000"}\n\n'),
        RunEvent(2, "data: 2\n\n"),
        RunEvent(3, "data: [DONE]\n\n"),
    ]
    for number in range(5):
        assert await store.read(lambda tx, n=number: run_events.after(tx, run.id, n, 9)) == whole[number:]
    assert await store.read(lambda tx: run_events.after(tx, run.id, 0, 2)) == whole[:2]
    assert await store.read(lambda tx: run_events.last(tx, run.id)) == whole[-1]
    assert await store.read(lambda tx: run_events.last(tx, "run-none")) is None


async def test_a_number_is_given_once_and_a_batch_is_stored_whole_or_not_at_all(
    store: SqliteStore, agent: Agent
) -> None:
    run = await stored_run(store, agent, "one", "two")

    with pytest.raises(Collision):
        await store.write(lambda tx: run_events.append(tx, run.id, 2, ["mine", "three"]))

    assert [event.data for event in await store.read(lambda tx: run_events.of_run(tx, run.id))] == ["one", "two"]
    with pytest.raises(Collision):
        await store.write(lambda tx: run_events.append(tx, "run-that-is-gone", 1, ["one"]))


async def test_only_events_of_runs_that_ended_long_ago_are_pruned(
    store: SqliteStore, agent: Agent, clock: ManualClock
) -> None:
    old = await stored_run(store, agent, *["old"] * 501, ended_at=START + 1)
    clock.advance(100)
    young = await stored_run(store, agent, "young", ended_at=clock.now())
    open_one = await stored_run(store, agent, "open")
    clock.advance(1)

    before = START + 50_000_000
    counts = [await store.write(lambda tx: run_events.prune(tx, before)) for _ in range(3)]

    assert counts == [500, 1, 0]
    left = {
        run.id: len(await store.read(lambda tx, id=run.id: run_events.of_run(tx, id))) for run in (old, young, open_one)
    }
    assert left == {old.id: 0, young.id: 1, open_one.id: 1}
    later = clock.now()
    assert await store.write(lambda tx: run_events.prune(tx, later)) == 1
    assert len(await store.read(lambda tx: run_events.of_run(tx, open_one.id))) == 1
