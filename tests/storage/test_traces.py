"""Traces: kept with their step, pruned by age and number, gone with their run."""

from dataclasses import replace

from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.run import Run, Trace
from ricordo.domain.scope import Scope
from ricordo.storage import runs, traces
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make
from tests.seams.stores import START


async def stored_run(store: SqliteStore) -> Run:
    run = make.run((await make.stored_agent(store)).agent, ended_at=START)
    await store.write(lambda tx: runs.open_run(tx, run))
    return run


def trace(run: Run, **fields: object) -> Trace:
    one = Trace(new_id("step"), run.id, run.organization_id, '{"a":1}', '{"b":2}', START)
    return replace(one, **fields)  # type: ignore[arg-type]


async def store_all(store: SqliteStore, new: list[Trace]) -> None:
    for start in range(0, len(new), 100):
        some = new[start : start + 100]
        await store.write(lambda tx, some=some: [traces.insert_one(tx, one) for one in some])


async def test_a_trace_reads_back_by_step_and_by_run_in_its_own_organisation(store: SqliteStore, scope: Scope) -> None:
    run = await stored_run(store)
    first, second = trace(run), trace(run, response=None)
    await store_all(store, [first, second])
    assert await store.read(lambda tx: traces.of_step(tx, scope, first.step_id)) == first
    assert await store.read(lambda tx: traces.of_run(tx, scope, run.id, 9)) == [first, second]
    assert await store.read(lambda tx: traces.of_run(tx, scope, run.id, 1)) == [first]
    elsewhere = Scope("org-2")
    assert await store.read(lambda tx: traces.of_step(tx, elsewhere, first.step_id)) is None
    assert await store.read(lambda tx: traces.of_run(tx, elsewhere, run.id, 9)) == []


async def test_old_traces_and_those_beyond_the_number_go_in_portions(store: SqliteStore, scope: Scope) -> None:
    run = await stored_run(store)
    old = [trace(run, created_at=START - DAY - 1) for _ in range(traces.PORTION + 5)]
    new = [trace(run, created_at=START + number) for number in range(traces.PORTION + 7)]
    await store_all(store, [*old, *new])

    async def prune(kept: int) -> int:
        return await store.write(lambda tx: traces.prune(tx, before=START - DAY, kept=kept))

    assert [await prune(1000) for _ in range(3)] == [traces.PORTION, 5, 0]
    assert [await prune(4) for _ in range(3)] == [traces.PORTION, 3, 0]
    assert await store.read(lambda tx: traces.of_run(tx, scope, run.id, 1000)) == new[-4:]
