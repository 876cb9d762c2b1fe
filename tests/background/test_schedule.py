"""Periodic jobs: one row for each period, whoever adds it and whatever their clocks say."""

from ricordo.background.handlers import Schedule
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.storage import jobs
from ricordo.storage.paging import Page
from ricordo.storage.sqlite import SqliteStore
from tests.support.clock import START


async def nothing(_runtime: object, _job: Job, _report: Report) -> None:
    """Do nothing."""


SWEEP = JobHandler("sweep", nothing, every_seconds=10)


async def test_servers_whose_clocks_differ_add_one_job_a_period(store: SqliteStore, scope: Scope) -> None:
    servers = [(Schedule([SWEEP]), skew * SECOND) for skew in (0, -3, 4)]
    for second in range(0, 40):
        for schedule, skew in servers:
            wanted = schedule.due(START + second * SECOND + skew)
            await store.write(lambda tx, schedule=schedule, wanted=wanted: schedule.add(tx, wanted))
            schedule.added(wanted)
        for job in await store.write(lambda tx: jobs.claim(tx, "me", 9)):
            await store.write(lambda tx, job=job: jobs.finish(tx, job))
    slots = [job.payload["slot"] for job in await store.read(lambda tx: jobs.page(tx, scope, Page(order="asc")))]
    assert len(slots) == len(set(slots))
    assert 5 <= len(slots) <= 6


async def test_a_period_waits_for_the_one_before(store: SqliteStore, scope: Scope) -> None:
    schedule = Schedule([SWEEP])
    for second in (0, 10, 20):
        wanted = schedule.due(START + second * SECOND)
        await store.write(lambda tx, wanted=wanted: schedule.add(tx, wanted))
        schedule.added(wanted)
    assert len(await store.read(lambda tx: jobs.page(tx, scope, Page()))) == 1


def test_what_could_not_be_stored_is_asked_for_again() -> None:
    schedule = Schedule([SWEEP])
    first = schedule.due(START)
    assert schedule.due(START) == first
    assert is_id(first[0].id, "job")
    schedule.added(first)
    assert schedule.due(START) == []
    assert [job.payload["slot"] for job in schedule.due(START + 10 * SECOND)] == [first[0].payload["slot"] + 1]
