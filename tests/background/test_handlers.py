"""What is kept of an error, when a job is tried again, which handlers a server may have, and which come by themselves."""

import pytest

from ricordo.background.worker import Schedule, by_kind, describe, retry_after
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid
from ricordo.storage import jobs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams.stores import START


async def nothing(_runtime: object, _job: Job, _report: Report) -> None:
    """Do nothing."""


def test_retries_come_later_and_later_up_to_ten_minutes_and_never_all_at_once() -> None:
    for attempt, least in [(1, 2), (2, 8), (3, 32), (4, 128), (5, 512), (6, 600), (500, 600)]:
        waits = {retry_after(attempt) for _ in range(20)}
        assert len(waits) > 10
        assert least * SECOND <= min(waits)
        assert max(waits) <= least * 1.2 * SECOND


_ERRORS = [
    ("401 for sk-proj-0123456789abc", "401 for [secret removed: api key]"),
    ("postgresql://ricordo:secret@db/ricordo refused", "postgresql://[secret removed: password]@db/ricordo refused"),
    ("GET /x?api_key=abc&page=2", "GET /x?api_key=[secret removed: credential]&page=2"),
    ("Authorization: Bearer abc.defg", "Authorization: Bearer [secret removed: credential]"),
    ("two\nlines", "two lines"),
    ("x" * 1000, "x" * 400),
]


def test_an_error_is_kept_short_and_without_its_secrets() -> None:
    for message, kept in _ERRORS:
        assert describe(ValueError(message)) == {"type": "ValueError", "message": kept}


def test_a_period_of_less_than_a_second_is_refused() -> None:
    with pytest.raises(Invalid, match="more than once a second"):
        by_kind([JobHandler("a", nothing, every_seconds=0.5)])


SWEEP = JobHandler("sweep", nothing, every_seconds=10)


async def test_servers_whose_clocks_differ_add_one_job_a_period(store: SqliteStore, scope: Scope) -> None:
    servers = [(Schedule([SWEEP]), skew * SECOND) for skew in (0, -3, 4)]
    for second in range(0, 40):
        for schedule, skew in servers:
            wanted = schedule.due(START + second * SECOND + skew)
            await store.write(lambda tx, wanted=wanted: [jobs.add(tx, job) for job in wanted])
            schedule.added(wanted)
        for job in await store.write(lambda tx: jobs.claim(tx, "me", 9)):
            await store.write(lambda tx, job=job: jobs.finish(tx, job))
    slots = [job.payload["slot"] for job in await store.read(lambda tx: jobs.page(tx, scope, Page(order="asc")))]
    assert len(slots) == len(set(slots))
    assert 5 <= len(slots) <= 6


def test_what_could_not_be_stored_is_asked_for_again() -> None:
    schedule = Schedule([SWEEP])
    first = schedule.due(START)
    assert schedule.due(START) == first
    assert is_id(first[0].id, "job")
    schedule.added(first)
    assert schedule.due(START) == []
    assert [job.payload["slot"] for job in schedule.due(START + 10 * SECOND)] == [first[0].payload["slot"] + 1]
