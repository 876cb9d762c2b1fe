"""Wake-ups of workers by PostgreSQL.

Two servers share the work. A lost or repeated wake-up costs no job.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.background.worker import Pace, Worker
from ricordo.domain.clock import SystemClock
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Collision, Invalid, Unavailable
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine import wake_ups
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.store import Transaction
from tests.seams.jobs import QUICK, add, address_of, get, until, working
from tests.support.postgres import new_store

SECONDS_AWAY = Pace(poll=30, beat=30)
WORKERS = (
    "backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
)
LISTENS = f"count(*) = 1 FROM pg_stat_activity WHERE {WORKERS} AND query LIKE 'LISTEN%'"
CUT = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {WORKERS}"  # noqa: S608 - our own words


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    async with new_store(SystemClock()) as opened:
        yield opened


async def sql(store: PostgresStore, statement: str) -> list[Any]:
    """Run a statement; returns its rows, if it has any."""

    def work(tx: Transaction) -> list[Any]:
        result = tx.connection.execute(text(statement))
        return list(result.all()) if result.returns_rows else []

    return await store.write(work)


async def wait_for(store: PostgresStore, question: str) -> None:
    """Return when this SQL answers true."""
    for _ in range(1000):
        if (await sql(store, f"SELECT {question}"))[0][0]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(question)


class Log:
    """A handler that checks that no two jobs of one key run at once, and counts the runs."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.runs: Counter[str] = Counter()
        self.overlaps: list[str] = []
        self._seconds = seconds
        self._busy: set[str] = set()

    async def __call__(self, _runtime: Runtime, job: Job, _report: Report) -> None:
        self.runs[job.id] += 1
        if job.key in self._busy:
            self.overlaps.append(job.key)
        if job.key:
            self._busy.add(job.key)
        await asyncio.sleep(self._seconds)
        self._busy.discard(job.key or "")


async def test_the_database_wakes_a_worker_when_a_job_is_added(
    store: PostgresStore, tmp_path: Path
) -> None:
    log = Log()
    async with working(store, tmp_path, JobHandler("work", log), is_alone=False, pace=SECONDS_AWAY):
        await wait_for(store, LISTENS)
        done = await until(store, await add(store))
    assert (done.status, done.attempts) == ("done", 1)


async def test_a_worker_that_cannot_start_leaves_no_connections(
    store: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_worker: Worker) -> None:
        raise Unavailable("The database went away.")

    await sql(store, "SELECT 1")
    connections = f"SELECT count(*) FROM pg_stat_activity WHERE {WORKERS}"  # noqa: S608 - our own words
    before = await sql(store, connections)
    monkeypatch.setattr(Worker, "open", fail)
    with pytest.raises(Unavailable, match="went away"):
        async with working(store, tmp_path):
            pass
    await wait_for(store, f"count(*) <= {before[0][0]} FROM pg_stat_activity WHERE {WORKERS}")


async def test_jobs_of_one_key_run_one_after_the_other(
    store: PostgresStore, tmp_path: Path
) -> None:
    log = Log()
    # On a busy machine a wake-up is sometimes lost. Then the poll finds the job some seconds later.
    async with working(
        store, tmp_path, JobHandler("work", log), is_alone=False, pace=Pace(poll=4, beat=30)
    ):
        await wait_for(store, LISTENS)
        for job in [await add(store, key="k") for _ in range(10)]:
            assert (await until(store, job)).status == "done"
    assert log.overlaps == []


async def test_a_wake_up_is_added_and_rolled_back_with_its_transaction(
    store: PostgresStore,
) -> None:
    def add_and_fail(tx: Transaction) -> None:
        jobs.add(tx, Job("work", LOCAL_ORGANIZATION))
        raise Invalid("no")

    with pytest.raises(Invalid):
        await store.write(add_and_fail)
    assert await sql(store, "SELECT id FROM procrastinate_jobs") == []
    job = await add(store, key="k")
    assert [
        tuple(row)
        for row in await sql(store, "SELECT lock, queueing_lock, args FROM procrastinate_jobs")
    ] == [("k", job.id, {"id": job.id})]


async def test_two_servers_share_many_jobs_of_few_keys_without_overlap(
    store: PostgresStore, tmp_path: Path
) -> None:
    log = Log()
    async with AsyncExitStack() as stack:
        other = open_postgres(address_of(store), connections=4, backups=tmp_path)
        stack.push_async_callback(other.close)
        workers = [
            await stack.enter_async_context(
                working(one, tmp_path, JobHandler("work", log), is_alone=False, pace=QUICK)
            )
            for one in (store, other)
        ]
        keys = [None, "a", "b", "c"]
        added = await asyncio.gather(
            *(add((store, other)[n % 2], key=keys[n % 4]) for n in range(80))
        )
        ended = [await until(store, job) for job in added]
        await wait_for(store, "count(*) = 0 FROM procrastinate_jobs")
    assert len(workers) == 2
    assert {job.status for job in ended} == {"done"}
    assert set(log.runs.values()) == {1}
    assert log.overlaps == []


async def test_no_job_is_lost_when_connections_are_cut(
    store: PostgresStore, tmp_path: Path
) -> None:
    log = Log(0.01)
    async with working(store, tmp_path, JobHandler("work", log), is_alone=False, pace=QUICK):
        added = []
        for number in range(30):
            if number in (10, 20):
                await sql(store, CUT)
            try:
                added.append(await add(store, key=f"key-{number % 3}"))
            except Unavailable:
                continue  # The job was not added, and the caller got an error.
        for job in added:
            assert (await until(store, job)).status == "done"
    assert len(added) >= 28
    assert set(log.runs.values()) == {1}
    assert log.overlaps == []


LOST = "DELETE FROM procrastinate_jobs"
TAKER_KILLED = (
    "UPDATE procrastinate_jobs SET status = 'doing' WHERE id = (SELECT min(id) FROM "
    "procrastinate_jobs)"
)
WORKER_COUNTED_DEAD = "DELETE FROM procrastinate_workers"


@pytest.mark.parametrize("mishap", [LOST, TAKER_KILLED, WORKER_COUNTED_DEAD])
async def test_the_job_of_a_wake_up_runs_once_after_any_fault(
    store: PostgresStore, tmp_path: Path, mishap: str
) -> None:
    log = Log()
    added = [await add(store, key="same") for _ in range(3)]
    if mishap != WORKER_COUNTED_DEAD:
        await sql(store, mishap)
    async with working(store, tmp_path, JobHandler("work", log), is_alone=False, pace=QUICK):
        if mishap == WORKER_COUNTED_DEAD:
            await until(store, added[0])
            await sql(store, mishap)
            added += [await add(store, key="same") for _ in range(3)]
        for job in added:
            assert (await until(store, job)).status == "done"
    assert set(log.runs.values()) == {1}
    assert log.overlaps == []


async def test_surplus_wake_ups_claim_nothing(store: PostgresStore, tmp_path: Path) -> None:
    log = Log(0.05)
    async with working(store, tmp_path, JobHandler("work", log), is_alone=False, pace=QUICK):
        job = await add(store)
        await until(store, job, "running", "done")
        for _ in range(3):
            await store.write(lambda tx: wake_ups.send(tx, [job]))
            await wait_for(store, "count(*) = 0 FROM procrastinate_jobs WHERE status = 'todo'")
        assert (await until(store, job)).attempts == 1
    assert log.runs == {job.id: 1}


async def test_jobs_of_a_silent_server_run_elsewhere_and_its_late_end_is_ignored(
    store: PostgresStore, tmp_path: Path
) -> None:
    log = Log()
    frozen = await add(store, key="k", most_attempts=2)
    (held,) = await store.write(lambda tx: jobs.claim(tx, "frozen", 1))
    await sql(store, "UPDATE procrastinate_jobs SET status = 'doing'")
    behind = await add(store, key="k")
    async with working(store, tmp_path, JobHandler("work", log), is_alone=False, pace=QUICK):
        await asyncio.sleep(0.1)
        assert (await get(store, behind)).status == "waiting"
        await sql(
            store, "UPDATE jobs SET heartbeat_at = heartbeat_at - 31000000 WHERE status = 'running'"
        )
        assert (await until(store, frozen)).attempts == 2
        assert (await until(store, behind)).status == "done"
    assert not await store.write(lambda tx: jobs.finish(tx, held))
    assert log.overlaps == []


async def test_of_concurrent_claims_of_one_key_one_succeeds(store: PostgresStore) -> None:
    added = [await add(store, key="k") for _ in range(6)]

    async def claim(job: Job) -> Job | None:
        try:
            return await store.write(lambda tx: jobs.claim_one(tx, "me", job.id))
        except Collision:
            return None

    claimed = [job for job in await asyncio.gather(*map(claim, added)) if job]
    assert len(claimed) == 1
    running = await store.read(lambda tx: [job.status for job in _all(tx, added)])
    assert sorted(running) == ["running", *["waiting"] * 5]


def _all(tx: Transaction, added: list[Job]) -> list[Job]:
    return [jobs.get(tx, Scope(), job.id) for job in added]
