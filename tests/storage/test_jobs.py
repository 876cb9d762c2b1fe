"""The rows of jobs: claims, reports of a job's end, and the time that a job is kept."""

import logging
from dataclasses import replace
from functools import partial

import pytest

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, NOBODY, Scope
from ricordo.errors import Invalid, NotFound
from ricordo.storage import jobs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore
from tests.seams.jobs import add, get
from tests.seams.stores import ManualClock

ELSEWHERE = Scope(organization_id="org-2")


async def claim(store: SqliteStore, worker: str = "me", limit: int = 1) -> list[Job]:
    return await store.write(lambda tx: jobs.claim(tx, worker, limit))


async def test_a_job_reads_back_as_it_was_added(store: SqliteStore, scope: Scope) -> None:
    job = await add(
        store,
        payload={"pages": [1, "zwei"]},
        key="k",
        is_single=True,
        most_attempts=3,
        user_id="user-1",
    )
    assert (job.status, job.attempts, job.not_before) == ("waiting", 0, job.created_at)
    assert await get(store, job) == job
    with pytest.raises(NotFound):
        await store.read(lambda tx: jobs.get(tx, ELSEWHERE, job.id))
    assert await store.read(lambda tx: jobs.page(tx, ELSEWHERE, Page())) == []


async def test_of_single_jobs_with_one_key_one_waits_and_one_may_run(store: SqliteStore) -> None:
    def add_one(tx: object, key: str = "space") -> Job | None:
        return jobs.add(tx, Job("merge", LOCAL_ORGANIZATION, key=key, is_single=True))  # type: ignore[arg-type]

    assert await store.write(add_one)
    assert await store.write(add_one) is None
    assert await store.write(lambda tx: add_one(tx, "other"))
    assert len(await claim(store)) == 1
    assert await store.write(add_one)
    assert await store.write(add_one) is None


async def test_a_failed_single_job_is_cancelled_if_another_waits(store: SqliteStore) -> None:
    first = await add(store, "merge", key="space", is_single=True)
    (claimed,) = await claim(store)
    second = await add(store, "merge", key="space", is_single=True)
    assert await store.write(lambda tx: jobs.fail(tx, claimed, {"type": "E", "message": "m"}, 0))
    assert (await get(store, first)).status == "cancelled"
    (again,) = await claim(store)
    assert again.id == second.id


async def test_only_waiting_jobs_are_deleted_by_their_ids(store: SqliteStore) -> None:
    running = await add(store, "read")
    await claim(store)
    waiting = await add(store, "read")
    ended = await add(store, "write")
    found = await store.read(lambda tx: jobs.open_of_kinds(tx, LOCAL_ORGANIZATION, ["read"]))
    assert {job.id for job in found} == {running.id, waiting.id}
    assert not await store.read(lambda tx: jobs.open_of_kinds(tx, "org-2", ["read"]))
    ids = [running.id, waiting.id]
    await store.write(lambda tx: jobs.delete_waiting_ids(tx, ids))
    left = await store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    assert {job.id for job in left} == {running.id, ended.id}


async def test_an_invalid_job_is_refused(store: SqliteStore) -> None:
    for wrong in ({"is_single": True}, {"most_attempts": 0}):
        with pytest.raises(Invalid):
            await add(store, **wrong)  # type: ignore[arg-type]


async def test_claims_take_the_oldest_due_job_of_each_key(
    store: SqliteStore, clock: ManualClock
) -> None:
    late = await add(store, not_before=clock.now() + 9 * SECOND)
    first = await add(store, key="a")
    second = await add(store, key="a")
    third = await add(store, key="b")
    assert [job.id for job in await claim(store, limit=9)] == [first.id, third.id]
    assert await claim(store, limit=9) == []
    assert await store.write(lambda tx: jobs.claim_one(tx, "me", second.id)) is None
    assert await store.read(jobs.is_due)
    clock.advance(10)
    assert [job.id for job in await claim(store, limit=9)] == [late.id]


async def test_only_the_current_holder_of_a_job_can_report_its_end(
    store: SqliteStore, clock: ManualClock
) -> None:
    await add(store, most_attempts=5)
    (mine,) = await claim(store)
    clock.advance(31)
    (freed,) = await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND))
    assert freed.id == mine.id
    (again,) = await claim(store)
    # The same worker holds the job in a second attempt, so reports of the first attempt do not
    # count.
    for end in (
        lambda tx: jobs.finish(tx, mine),
        lambda tx: jobs.fail(tx, mine, {"type": "E", "message": "m"}),
        lambda tx: jobs.put_back(tx, mine),
    ):
        assert not await store.write(end)
    assert (await get(store, mine)).status == "running"
    assert await store.write(lambda tx: jobs.finish(tx, again))
    assert not await store.write(lambda tx: jobs.finish(tx, again))


async def test_renewing_keeps_jobs_and_returns_those_still_held(
    store: SqliteStore, clock: ManualClock, scope: Scope
) -> None:
    added = [await add(store) for _ in range(3)]
    held = await claim(store, limit=3)
    await store.write(lambda tx: jobs.cancel(tx, scope, added[0].id))
    clock.advance(29)
    progress = {added[1].id: {"done": 3, "total": 4}}
    kept = await store.write(lambda tx: jobs.renew(tx, "me", held, progress))
    assert kept == {added[1].id, added[2].id}
    clock.advance(29)
    assert await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND)) == []
    assert (await get(store, added[1])).progress == {"done": 3, "total": 4}


async def test_jobs_that_ended_long_ago_are_pruned(
    store: SqliteStore, clock: ManualClock, scope: Scope
) -> None:
    for _ in range(3):
        await add(store)
    await add(store, "sweep", key="every:sweep", is_single=True)
    for job in await claim(store, limit=4):
        await store.write(lambda tx, job=job: jobs.finish(tx, job))
    waiting = await add(store)
    assert await store.write(jobs.prune) == 0
    clock.advance(3601)
    assert await store.write(jobs.prune) == 1  # the job that records a successful sweep
    clock.advance(jobs.KEPT_SECONDS)
    assert await store.write(jobs.prune) == 3
    assert await store.write(jobs.prune) == 0
    assert [job.id for job in await store.read(lambda tx: jobs.page(tx, scope, Page()))] == [
        waiting.id
    ]


async def test_of_too_many_ended_jobs_the_newest_stay(
    store: SqliteStore, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT_ENDED", 4)
    added = [await add(store) for _ in range(9)]
    for job in await claim(store, limit=9):
        await store.write(lambda tx, job=job: jobs.finish(tx, job))
    assert await store.write(jobs.prune) == 5
    kept = await store.read(lambda tx: jobs.page(tx, scope, Page(order="asc")))
    assert [job.id for job in kept] == [job.id for job in added[5:]]


async def test_a_jobs_slow_write_is_logged_without_the_arguments(
    store: SqliteStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.storage.engine.store.SLOW_WRITE", 0)

    def save(tx: Transaction, *, text: str) -> None: ...

    await add(store)
    (job,) = await claim(store)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ricordo.storage.engine.store"):
        await FencedStore(store, job).write(partial(save, text="what Ada said"))
    (record,) = caplog.records
    assert "save" in str(record.__dict__["work"])
    assert "Ada" not in str(record.__dict__)


async def test_a_job_can_be_read_and_cancelled_only_by_those_who_see_it_in_the_list(
    store: SqliteStore,
) -> None:
    """A job without a user is the server's, or its author's."""
    of_server = await add(store)
    of_service = await add(store, payload={"author": "key-1"})
    of_ada = await add(store, user_id="user-1")
    service = Scope(role="service", user_id="key-1", subject_id=NOBODY)
    ada = Scope(role="user", user_id="user-1", subject_id="user-1")
    for scope, seen in (
        (service, [of_service]),
        (replace(service, user_id="key-2"), []),
        (ada, [of_ada]),
        (Scope(), [of_server, of_service, of_ada]),
    ):
        page = Page(order="asc")
        listed = await store.read(lambda tx, at=scope, page=page: jobs.page(tx, at, page))
        assert listed == seen
        for job in (of_server, of_service, of_ada):
            if job in seen:
                assert await store.read(lambda tx, at=scope, id=job.id: jobs.get(tx, at, id)) == job
                continue
            for use in (jobs.get, jobs.cancel, jobs.remove):
                with pytest.raises(NotFound):
                    await store.write(lambda tx, use=use, at=scope, id=job.id: use(tx, at, id))
