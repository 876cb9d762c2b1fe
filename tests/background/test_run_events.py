"""Streams are kept for as long as the settings say."""

from dataclasses import replace
from pathlib import Path

from ricordo.background.upkeep import HANDLERS
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage import run_events, runs
from ricordo.storage.store import SqlStore, Transaction
from tests.agents.stage import Hooks, Stage
from tests.support import make
from tests.support.clock import START, ManualClock


async def test_streams_that_have_expired_are_deleted_in_portions_and_no_other(
    store: SqlStore, tmp_path: Path, clock: ManualClock
) -> None:
    stage = Stage(store, tmp_path, Hooks())
    agent = (await make.stored_agent(store)).agent
    run = make.run(agent)

    def work(tx: Transaction) -> None:
        runs.open_run(tx, run)
        run_events.append(tx, run.id, 1, ["event"] * 501)
        runs.end(tx, replace(run, status="completed", ended_at=START + 1_000_000))

    await store.write(work)
    handler = next(one for one in HANDLERS if one.kind == "run_events")
    job = Job(handler.kind, LOCAL_ORGANIZATION)
    left = []
    for hours in (2.9, 0.2):
        clock.advance(hours * 3600)
        await handler.run(stage.runtime, job, lambda _done, _total: None)
        left.append(len(await store.read(lambda tx: run_events.of_run(tx, run.id))))

    assert left == [501, 0]
    assert handler.every_seconds
    await stage.close()
