"""The worker of background jobs.

Jobs start at once and run in parallel, but jobs of one key one after the other. Failed jobs are
retried. Periodic jobs run once in each period.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ricordo.background.postgres_worker import background_work
from ricordo.background.worker import Pace, Schedule, by_kind, describe, retry_after
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Invalid
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams.jobs import LIMIT, QUICK, add, address_of, get, runtime_on, until, working
from tests.seams.stores import START, ManualClock

DATABASES = ("sqlite", "postgresql")
ASLEEP = Pace(poll=60, beat=60, sweep=60, prune=60)


class Gate:
    """A handler that waits until the test lets it continue."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, _runtime: Runtime, _job: Job, report: Report) -> None:
        report(1, 2)
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        report(2, 2)


async def nothing(_runtime: Runtime, _job: Job, _report: Report) -> None:
    await asyncio.sleep(0)


async def test_an_added_job_runs_at_once(store: SqliteStore, database: str, tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []

    async def run(runtime: Runtime, job: Job, _report: Report) -> None:
        assert runtime.store is store
        seen.append(job.payload)

    # The test is shorter than a polling interval: the transaction that adds the job wakes the
    # worker. (PostgreSQL: test_postgres_worker.py)
    pace = ASLEEP if database == "sqlite" else QUICK
    async with working(store, tmp_path, JobHandler("work", run), pace=pace):
        await asyncio.sleep(0.01)
        done = await until(store, await add(store, payload={"page": 7}))
    assert seen == [{"page": 7}]
    assert (done.status, done.attempts, done.worker, done.error) == ("done", 1, None, None)
    assert done.started_at
    assert done.ended_at
    assert done.started_at < done.ended_at


async def test_four_jobs_run_in_parallel_and_the_fifth_waits(
    store: SqliteStore, tmp_path: Path
) -> None:
    gate, running, most = asyncio.Event(), 0, 0

    async def run(_runtime: Runtime, _job: Job, _report: Report) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    added = [await add(store) for _ in range(9)]
    async with working(store, tmp_path, JobHandler("work", run)):
        for job in added[:4]:
            await until(store, job, "running")
        await asyncio.sleep(0.05)
        assert most == 4
        gate.set()
        for job in added:
            assert (await until(store, job)).status == "done"
    assert most == 4


async def test_jobs_of_one_key_never_overlap_and_keep_their_order(
    store: SqliteStore, tmp_path: Path
) -> None:
    at_work: Counter[str | None] = Counter()
    order: dict[str | None, list[int]] = {}

    async def run(_runtime: Runtime, job: Job, _report: Report) -> None:
        at_work[job.key] += 1
        assert at_work[job.key] == 1
        order.setdefault(job.key, []).append(job.payload["number"])
        await asyncio.sleep(0.001)
        at_work[job.key] -= 1

    added = [
        await add(store, payload={"number": n}, key=f"key-{n % 3}", most_attempts=1)
        for n in range(40)
    ]
    async with working(store, tmp_path, JobHandler("work", run), pace=Pace(poll=0.02, beat=0.02)):
        for job in added:
            assert (await until(store, job)).status == "done"
    assert order == {f"key-{key}": [n for n in range(40) if n % 3 == key] for key in range(3)}


async def test_a_failing_job_is_retried_with_growing_waits_and_then_fails(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    started: list[int] = []

    async def run(_runtime: Runtime, job: Job, _report: Report) -> None:
        started.append(job.attempts)
        raise RuntimeError("the service at http://ada:hunter2@there said no to key=abcdefgh")

    waits = []
    async with working(store, tmp_path, JobHandler("work", run)):
        job = await add(store, most_attempts=4)
        for attempt in range(1, 4):
            while (now := await get(store, job)).attempts < attempt or now.status != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert now.error
            waits.append((now.not_before - (now.started_at or 0)) / SECOND)
            clock.advance(waits[-1])
        failed = await until(store, job)
    assert started == [1, 2, 3, 4]
    assert [round(wait / least, 1) >= 1 for wait, least in zip(waits, (2, 8, 32), strict=True)] == [
        True
    ] * 3
    assert [wait <= least * 1.21 for wait, least in zip(waits, (2, 8, 32), strict=True)] == [
        True
    ] * 3
    assert failed.status == "failed"
    assert failed.error == {
        "type": "RuntimeError",
        "message": "the service at http://[secret removed: password]@there said no to key=[secret "
        "removed: credential]",
    }


async def test_a_job_that_meets_a_busy_conversation_is_retried_without_using_an_attempt(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    met: list[int] = []

    async def run(_runtime: Runtime, job: Job, _report: Report) -> None:
        met.append(job.attempts)
        if len(met) <= 30:
            raise Busy("run-1")

    async with working(store, tmp_path, JobHandler("work", run)):
        job = await add(store, most_attempts=2)
        for number in range(1, 31):
            while len(met) < number or (now := await get(store, job)).status != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            wait = now.not_before - clock.now()
            age = clock.now() - now.created_at
            assert wait <= max(SECOND, age // 10) + SECOND
            assert wait <= 31 * SECOND
            clock.advance(wait / SECOND)
        done = await until(store, job)
    assert (done.status, done.attempts, set(met)) == ("done", 1, {1})


async def test_an_error_that_would_recur_fails_the_job_at_once(
    store: SqliteStore, tmp_path: Path
) -> None:
    async def run(_runtime: Runtime, _job: Job, _report: Report) -> None:
        raise Invalid("There is no such page.")

    async with working(store, tmp_path, JobHandler("work", run)):
        failed = await until(store, await add(store))
    assert (failed.status, failed.attempts) == ("failed", 1)
    assert failed.error == {"type": "Invalid", "message": "There is no such page."}


async def test_a_long_job_renews_its_heartbeat_and_shows_its_progress(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    gate = Gate()
    async with working(store, tmp_path, JobHandler("work", gate)):
        job = await add(store)
        await gate.began.wait()
        for _ in range(5):
            before = (await get(store, job)).heartbeat_at or 0
            clock.advance(20)
            while (await get(store, job)).heartbeat_at < before + 20 * SECOND:  # type: ignore[operator]  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await get(store, job)).progress == {"done": 1, "total": 2}
        gate.open.set()
        done = await until(store, job)
    assert (done.status, done.attempts, done.progress) == ("done", 1, {"done": 2, "total": 2})


async def test_a_stop_puts_a_running_job_back_without_using_an_attempt(
    store: SqliteStore, tmp_path: Path
) -> None:
    gate = Gate()
    async with working(store, tmp_path, JobHandler("work", gate)):
        job = await add(store, most_attempts=1)
        await gate.began.wait()
    assert gate.was_cancelled
    back = await get(store, job)
    assert (back.status, back.attempts, back.worker, back.error) == ("waiting", 0, None, None)
    gate.open.set()
    async with working(store, tmp_path, JobHandler("work", gate)):
        assert (await until(store, job)).attempts == 1


async def test_a_stop_right_after_the_start_loses_no_job(
    store: SqliteStore, tmp_path: Path
) -> None:
    added = [await add(store, most_attempts=1) for _ in range(30)]
    for pause in range(6):
        async with working(store, tmp_path, JobHandler("work", nothing)):
            for _ in range(pause):
                await asyncio.sleep(0.001)
        for job in added:
            now = await get(store, job)
            assert (now.status, now.attempts) in {("waiting", 0), ("done", 1)}
    async with working(store, tmp_path, JobHandler("work", nothing)):
        for job in added:
            assert (await until(store, job)).status == "done"


@pytest.mark.parametrize(("most", "status"), [(2, "done"), (1, "failed")])
async def test_a_job_of_a_dead_server_runs_again_if_it_has_attempts_left(
    store: SqliteStore, clock: ManualClock, tmp_path: Path, most: int, status: str
) -> None:
    job = await add(store, most_attempts=most)
    await store.write(lambda tx: jobs.claim(tx, "dead", 1))
    clock.advance(-5)  # the machine's clock was set back
    async with working(store, tmp_path, JobHandler("work", nothing)):
        clock.advance(5)
        ended = await until(store, job)
    assert (ended.status, ended.attempts) == (status, most)
    if status == "failed":
        assert ended.error["type"] == "Interrupted"


async def test_with_other_servers_a_job_is_taken_over_only_from_a_silent_worker(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    job = await add(store)
    await store.write(lambda tx: jobs.claim(tx, "elsewhere", 1))
    async with working(store, tmp_path, JobHandler("work", nothing), is_alone=False):
        await asyncio.sleep(0.1)
        assert (await get(store, job)).worker == "elsewhere"
        clock.advance(31)
        assert (await until(store, job)).attempts == 2


@pytest.mark.parametrize("way", ["cancel", "remove"])
async def test_a_cancelled_or_deleted_job_stops(
    store: SqliteStore, tmp_path: Path, way: str
) -> None:
    gate = Gate()
    async with working(store, tmp_path, JobHandler("work", gate)):
        job = await add(store)
        await gate.began.wait()
        await store.write(lambda tx: getattr(jobs, way)(tx, Scope(), job.id))
        while not gate.was_cancelled:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        other = await add(store)
        gate.open.set()
        assert (await until(store, other)).status == "done"
        if way == "cancel":
            assert (await get(store, job)).status == "cancelled"


async def test_a_key_stays_busy_until_its_cancelled_job_has_stopped(
    store: SqliteStore, tmp_path: Path
) -> None:
    gates = {"first": Gate(), "second": Gate()}

    async def run(runtime: Runtime, job: Job, report: Report) -> None:
        await gates[str(job.payload["gate"])](runtime, job, report)

    # The test is shorter than the interval of checks for cancelled jobs, so the first job
    # continues.
    async with working(store, tmp_path, JobHandler("work", run), pace=replace(QUICK, beat=60.0)):
        first = await add(store, payload={"gate": "first"}, key="space")
        await gates["first"].began.wait()
        second = await add(store, payload={"gate": "second"}, key="space")
        await store.write(lambda tx: jobs.cancel(tx, Scope(), first.id))
        await asyncio.sleep(0.1)
        assert not gates["second"].began.is_set()
        gates["first"].open.set()
        gates["second"].open.set()
        assert (await until(store, second)).status == "done"


async def test_a_job_of_an_unknown_kind_waits_a_day_and_then_fails_with_the_reason(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    async with working(store, tmp_path):
        job = await add(store, "future.work")
        while (now := await get(store, job)).not_before < job.not_before + 59 * SECOND:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (now.status, now.attempts) in {("waiting", 0), ("running", 1)}
        clock.advance(25 * 3600)
        failed = await until(store, job)
    assert failed.error
    assert 'No handler for jobs of kind "future.work"' in failed.error["message"]


async def test_a_delayed_job_runs_when_it_is_due(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    async with working(store, tmp_path, JobHandler("work", nothing)):
        later = await add(store, key="same", not_before=clock.now() + 3600 * SECOND)
        # A job that waits for its time delays no other job, not even jobs of its key.
        assert (await until(store, await add(store, key="same"))).status == "done"
        assert (await get(store, later)).status == "waiting"
        clock.advance(3601)
        assert (await until(store, later)).status == "done"


async def test_the_worker_survives_a_temporary_database_failure(
    store: SqliteStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("the disk is full")

    async with working(store, tmp_path, JobHandler("work", nothing)):
        await until(store, await add(store))
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "read", broken)
            async with asyncio.timeout(LIMIT):
                while "it is tried again" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert (await until(store, await add(store))).status == "done"


async def test_a_periodic_job_runs_once_in_each_period(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    slots: list[int] = []

    async def run(_runtime: Runtime, job: Job, _report: Report) -> None:
        slots.append(job.payload["slot"])

    handler = JobHandler("sweep", run, every_seconds=60)
    async with working(store, tmp_path, handler), working(store, tmp_path, handler, is_alone=False):
        for period in range(1, 4):
            async with asyncio.timeout(LIMIT):
                while len(slots) < period:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.06)
            assert len(slots) == period
            clock.advance(60)
    assert len(set(slots)) == len(slots)


class Fetching:
    """A plugin that brings one handler."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def jobs(self) -> list[JobHandler]:
        return [JobHandler("weather.fetch", self.fetch)]

    async def fetch(self, _runtime: Runtime, job: Job, _report: Report) -> None:
        self.ran.append(job.id)


async def test_a_plugins_jobs_run_while_the_server_runs(
    store: SqliteStore | PostgresStore, tmp_path: Path
) -> None:
    plugin, runtime = Fetching(), runtime_on(store, tmp_path)
    runtime.plugins = Plugins([("weather", plugin)])
    address = address_of(store) if isinstance(store, PostgresStore) else None
    async with background_work(runtime, address=address):
        job = await add(store, "weather.fetch")
        assert (await until(store, job)).status == "done"
    await add(store, "weather.fetch")
    assert plugin.ran == [job.id]
    with pytest.raises(Invalid, match=r'"weather\.fetch" have two handlers'):
        async with background_work(runtime, plugin.jobs(), address=address):
            pass


def test_retry_waits_grow_up_to_ten_minutes_with_jitter() -> None:
    for attempt, least in [(1, 2), (2, 8), (3, 32), (4, 128), (5, 512), (6, 600), (500, 600)]:
        waits = {retry_after(attempt) for _ in range(20)}
        assert len(waits) > 10
        assert least * SECOND <= min(waits)
        assert max(waits) <= least * 1.2 * SECOND


_ERRORS = [
    ("401 for sk-proj-0123456789abc", "401 for [secret removed: api key]"),
    (
        "postgresql://ricordo:secret@db/ricordo refused",
        "postgresql://[secret removed: password]@db/ricordo refused",
    ),
    ("GET /x?api_key=abc&page=2", "GET /x?api_key=[secret removed: credential]&page=2"),
    ("Authorization: Bearer abc.defg", "Authorization: Bearer [secret removed: credential]"),
    ("two\nlines", "two lines"),
    ("x" * 1000, "x" * 400),
]


def test_an_error_is_stored_short_and_without_secrets() -> None:
    for message, kept in _ERRORS:
        assert describe(ValueError(message)) == {"type": "ValueError", "message": kept}


def test_a_period_of_less_than_a_second_is_refused() -> None:
    with pytest.raises(Invalid, match="more than once a second"):
        by_kind([JobHandler("a", nothing, every_seconds=0.5)])


SWEEP = JobHandler("sweep", nothing, every_seconds=10)


async def test_servers_with_different_clocks_add_one_job_for_each_period(
    store: SqliteStore, scope: Scope
) -> None:
    servers = [(Schedule([SWEEP]), skew * SECOND) for skew in (0, -3, 4)]
    for second in range(0, 40):
        for schedule, skew in servers:
            wanted = schedule.due(START + second * SECOND + skew)
            await store.write(lambda tx, wanted=wanted: [jobs.add(tx, job) for job in wanted])
            schedule.added(wanted)
        for job in await store.write(lambda tx: jobs.claim(tx, "me", 9)):
            await store.write(lambda tx, job=job: jobs.finish(tx, job))
    slots = [
        job.payload["slot"]
        for job in await store.read(lambda tx: jobs.page(tx, scope, Page(order="asc")))
    ]
    assert len(slots) == len(set(slots))
    assert 5 <= len(slots) <= 6


def test_a_periodic_job_that_could_not_be_stored_is_offered_again() -> None:
    schedule = Schedule([SWEEP])
    first = schedule.due(START)
    assert schedule.due(START) == first
    assert is_id(first[0].id, "job")
    schedule.added(first)
    assert schedule.due(START) == []
    assert [job.payload["slot"] for job in schedule.due(START + 10 * SECOND)] == [
        first[0].payload["slot"] + 1
    ]
