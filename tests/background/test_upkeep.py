"""Jobs that maintain the index, and servers that take over the jobs of a frozen server."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from ricordo.background.upkeep import HANDLERS
from ricordo.background.worker import by_kind
from ricordo.domain.job import Job
from ricordo.domain.passage import Archive
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import LeaseLost
from ricordo.search import rebuild
from ricordo.search.index import PassageFilter, insert_passages
from ricordo.search.write_buffer import FLUSH
from ricordo.storage import jobs, runs
from ricordo.storage.engine.store import SqlStore, Store, Transaction
from ricordo.storage.schema.core_tables import jobs as jobs_table
from ricordo.storage.schema.core_tables import search_buffer, search_partitions
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.jobs import add, runtime_on
from tests.seams.stores import START, ManualClock
from tests.support.library import Interrupted, Library, unheard

DATABASES = BOTH
LIMIT = 60
NOTES = 30


class Freezing(Interrupted):
    """A store that pauses its server once, before a write, until the test resumes it."""

    def __init__(self, store: Store, writes: int) -> None:
        super().__init__(store, writes, self._stand)
        self.stands, self.woken = asyncio.Event(), asyncio.Event()

    async def _stand(self) -> None:
        self.stands.set()
        await self.woken.wait()


class Two:
    """Two servers on one database, and an archive of notes."""

    def __init__(self, store: Store, folder: Path, clock: ManualClock, archive: Archive) -> None:
        self.store, self.folder, self.clock, self.archive = store, folder, clock, archive

    async def add_reindex(self) -> Job:
        """A job that rebuilds the archive's index."""
        id = self.archive.id
        return await add(self.store, rebuild.REINDEX, {"owner_id": id}, key=id, is_single=True)

    async def begin(
        self, job: Job, worker: str, writes: int
    ) -> tuple[Freezing, "asyncio.Task[None]"]:
        """Let a server claim and begin the job, and pause before the write with this number."""
        self.clock.advance(60)
        claimed = await self.store.write(lambda tx: jobs.claim_one(tx, worker, job.id))
        assert claimed
        freezing, runtime = Freezing(self.store, writes), runtime_on(self.store, self.folder)
        runtime.indexing = replace(runtime.indexing, store=freezing)  # type: ignore[arg-type]
        task = asyncio.create_task(by_kind(HANDLERS)[job.kind].run(runtime, claimed, unheard))
        standing = asyncio.create_task(freezing.stands.wait())
        await asyncio.wait({standing, task}, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        assert standing.done(), task
        return freezing, task

    async def freeze(self, job: Job, writes: int) -> tuple[Freezing, "asyncio.Task[None]"]:
        """Pause a server in the same way; then another server takes the job."""
        frozen = await self.begin(job, "frozen", writes)
        self.clock.advance(60)
        await self.store.write(lambda tx: jobs.take_over(tx, silent_for=30_000_000))
        return frozen

    async def notes(self) -> set[str]:
        self.store.cache.clear()  # type: ignore[attr-defined]
        recall = Library(self.store, self.folder).recall
        hits = await recall.passages("note", PassageFilter((self.archive.id,)), 100, "fts")
        return {hit.passage.text for hit in hits}


@pytest.fixture
async def two(store: Store, tmp_path: Path, clock: ManualClock) -> Two:
    state = await make.stored_agent(store)
    archive = await make.stored_archive(store, state.agent, *(f"note {n}" for n in range(NOTES)))
    return Two(store, tmp_path, clock, archive)


# The steps for thirty notes in portions of ten: remove leftovers, three portions, switch to the new
# index, remove leftovers again.
@pytest.mark.parametrize("writes", [2, 4])
async def test_a_frozen_server_that_wakes_up_leaves_the_index_another_builds(
    two: Two, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(rebuild, "AT_ONCE", 10)
    job = await two.add_reindex()
    frozen, first = await two.freeze(job, writes)
    slow, second = await two.begin(job, "another", 3)
    frozen.woken.set()
    await asyncio.wait([first], timeout=LIMIT)
    slow.woken.set()
    await second
    assert isinstance(first.exception(), LeaseLost)
    assert await two.notes() == {f"note {n}" for n in range(NOTES)}
    rows = await two.store.read(lambda tx: tx.all(select(search_partitions.c.owner_id)))
    assert [row.owner_id for row in rows] == [two.archive.id]  # No leftovers to remove.


async def test_a_frozen_merge_that_wakes_up_takes_nothing_from_a_new_index(two: Two) -> None:
    waiting = jobs.ROWS.select.where(jobs_table.c.kind == FLUSH, jobs_table.c.key == two.archive.id)
    merging = (await two.store.read(lambda tx: jobs.ROWS.all(tx, waiting)))[0]
    frozen, merge = await two.freeze(merging, 0)
    await two.store.write(lambda tx: jobs.remove(tx, Scope(), merging.id))
    job = await two.add_reindex()
    slow, building = await two.begin(job, "another", 2)
    late = make.passage(two.archive, "note of late")
    await two.store.write(lambda tx: insert_passages(tx, two.archive, [late]))
    frozen.woken.set()
    await asyncio.wait([merge], timeout=LIMIT)
    slow.woken.set()
    await building
    assert await two.notes() == {"note of late", *(f"note {n}" for n in range(NOTES))}
    assert isinstance(merge.exception(), LeaseLost)
    assert len(await two.store.read(lambda tx: tx.all(select(search_buffer.c.seq)))) == 1


async def test_only_expired_streams_are_deleted_in_portions(
    store: SqlStore, tmp_path: Path, clock: ManualClock
) -> None:
    run, open_run = [make.run((await make.stored_agent(store)).agent) for _ in range(2)]

    def work(tx: Transaction) -> None:
        for one in (run, open_run):
            runs.open_run(tx, one)
            runs.append_events(tx, one.id, 1, ["event"] * 501)
        runs.end(tx, replace(run, status="completed", ended_at=START + 1_000_000))

    await store.write(work)
    handler = next(one for one in HANDLERS if one.kind == "run_events")
    left = []
    for hours in (2.9, 0.2):
        clock.advance(hours * 3600)
        await handler.run(
            runtime_on(store, tmp_path), Job(handler.kind, LOCAL_ORGANIZATION), unheard
        )
        left.append(len(await store.read(lambda tx: runs.events_after(tx, run.id))))
    assert left == [501, 0]
    assert len(await store.read(lambda tx: runs.events_after(tx, open_run.id))) == 501
    assert handler.every_seconds
