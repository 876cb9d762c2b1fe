"""Workers are killed in the middle of jobs: none is lost, none runs too often, and no two of one key overlap."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ricordo.domain.clock import SystemClock
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.storage import jobs
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.paging import Page
from tests.seams.jobs import address_of
from tests.support.job_worker import SILENCE, Run, is_ready, read_runs
from tests.support.postgres import new_store

ROOT = Path(__file__).parent.parent.parent
LIMIT = 40.0
MOST = 3


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    """A store on PostgreSQL, in real time."""
    async with new_store(SystemClock()) as opened:
        yield opened


@contextmanager
def worker(database: str, log: Path, killed: dict[int, int]) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker that is ready; on leaving it is killed, and the moment is noted."""
    process = subprocess.Popen([sys.executable, "-m", "tests.support.job_worker", database, str(log)], cwd=ROOT)
    try:
        wait_until(lambda: is_ready(log, process.pid) or process.poll() is not None)
        assert process.poll() is None
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)
        killed[process.pid] = time.monotonic_ns()


def wait_until(is_so: object) -> None:
    """Return when it is so."""
    deadline = time.monotonic() + LIMIT
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def add_many(store: Store, count: int, seconds: float) -> None:
    """Jobs of few keys, each of which takes some time."""

    def work(tx: Transaction) -> None:
        for number in range(count):
            payload = {"seconds": seconds}
            jobs.add(tx, Job("work", LOCAL_ORGANIZATION, payload, key=f"key-{number % 5}", most_attempts=MOST))

    await store.write(work)


async def all_jobs(store: Store) -> list[Job]:
    """Every job."""
    return await store.read(lambda tx: jobs.page(tx, Scope(), Page(limit=1000)))


def audit(all_of_them: list[Job], runs: list[Run], killed: dict[int, int]) -> None:
    """Every job has ended, ran as often as it says and no oftener, and overlapped none of its key."""
    starts = Counter(run.job for run in runs)
    finished = Counter(run.job for run in runs if run.ended)
    for job in all_of_them:
        assert job.status in ("done", "failed"), job
        assert starts[job.id] <= job.attempts <= MOST, job
        if job.status == "done":
            assert finished[job.id] >= 1, job
        else:
            assert job.error
            assert (job.error["type"], job.attempts) == ("Interrupted", MOST)
    by_key: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started):
        by_key.setdefault(run.key, []).append(run)
    for of_key in by_key.values():
        for one, other in pairwise(of_key):
            assert (one.ended or killed[one.process]) <= other.started, (one, other)


@pytest.mark.campaign
async def test_a_server_that_is_killed_again_and_again_loses_no_job_on_sqlite(tmp_path: Path) -> None:
    file, log, killed = tmp_path / "ricordo.db", tmp_path / "log", dict[int, int]()
    store = open_sqlite(file)
    await add_many(store, 24, 0.03)
    await store.close()
    chance = random.Random(5)  # noqa: S311
    for _ in range(2):
        with worker(str(file), log, killed):
            count = len(read_runs(log))
            await asyncio.to_thread(wait_until, lambda count=count: len(read_runs(log)) > count)
            await asyncio.sleep(chance.uniform(0, 0.1))
    with worker(str(file), log, killed):
        await asyncio.to_thread(wait_until, lambda: _has_gone_quiet(log))
    store = open_sqlite(file)
    found = await all_jobs(store)
    await store.close()
    assert len(found) == 24
    assert any(run.ended is None for run in read_runs(log))
    audit(found, read_runs(log), killed)


@pytest.mark.campaign
async def test_two_servers_of_which_one_is_killed_again_and_again_lose_no_job_on_postgresql(
    store: PostgresStore, tmp_path: Path
) -> None:
    log, killed, address = tmp_path / "log", dict[int, int](), address_of(store)
    with ExitStack() as stack:
        stack.enter_context(worker(address, log, killed))
        for _ in range(2):
            with worker(address, log, killed) as victim:
                await add_many(store, 10, 0.03)
                await asyncio.to_thread(
                    wait_until, lambda victim=victim: any(run.process == victim.pid for run in read_runs(log))
                )
        deadline = time.monotonic() + LIMIT
        while any(job.status in ("waiting", "running") for job in await all_jobs(store)):
            assert time.monotonic() < deadline
            await asyncio.sleep(SILENCE / 10)
    found = await all_jobs(store)
    assert len(found) == 20
    audit(found, read_runs(log), killed)


def _has_gone_quiet(log: Path) -> bool:
    """Whether nothing has started or ended for a while."""
    return time.time() - log.stat().st_mtime > 0.6
