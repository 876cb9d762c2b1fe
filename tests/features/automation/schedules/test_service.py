"""The chain of due times, on both databases."""

from datetime import UTC, datetime

from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Scope
from ricordo.features.automation.schedules import queries, service
from ricordo.features.automation.schedules.models import ScheduleRequest
from ricordo.features.automation.schedules.queries import ScheduledMessage, schedules
from ricordo.storage import agents, jobs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stores import ManualClock

DATABASES = BOTH
HOUR = 3600


async def test_each_due_time_plans_one_next_time_and_missed_times_are_merged(
    store: SqliteStore, clock: ManualClock
) -> None:
    agent = make.agent()
    asked = ScheduleRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "Hello."}],
            "schedule": {"type": "recurring", "cron_expression": "0 * * * *"},
        }
    )

    def begin(tx: Transaction) -> ScheduledMessage:
        metadata.create_all(tx.connection, tables=[schedules])
        agents.insert_one(tx, agent, [])
        return service.create(tx, Scope(), agent.id, asked)

    def waiting(tx: Transaction) -> list[int]:
        return sorted(
            job.not_before for job in jobs.page(tx, Scope(), Page(), statuses=["waiting"])
        )

    made = await store.write(begin)
    first = made.next_at or 0
    assert datetime.fromtimestamp(first / SECOND, UTC).minute == 0
    assert await store.read(waiting) == [first]
    assert await store.write(lambda tx: service.begin(tx, made.id, first + 1)) is None

    clock.advance(50 * HOUR)  # no server ran
    for _ in range(2):  # killed and run again
        row = await store.write(lambda tx: service.begin(tx, made.id, first))
        assert row
        assert row.next_at == first + 50 * HOUR * SECOND
        assert await store.read(waiting) == [first, row.next_at]
    second = first + 50 * HOUR * SECOND
    clock.advance(HOUR)
    assert await store.write(lambda tx: service.begin(tx, made.id, second))
    # The later time has begun, so the job of the earlier one has nothing left to do.
    assert await store.write(lambda tx: service.begin(tx, made.id, first)) is None
    await store.write(lambda tx: service.finish(tx, made.id, first, "No."))
    row = await store.read(lambda tx: queries.get(tx, Scope(), agent.id, made.id))
    assert (row.due_at, row.problem) == (second, None)
    await store.write(lambda tx: service.finish(tx, made.id, second))

    clock.advance(3 * HOUR)
    await store.write(service.take_up)
    row = await store.read(lambda tx: queries.get(tx, Scope(), agent.id, made.id))
    # take_up must not move a time whose job still exists.
    assert row.next_at == second + HOUR * SECOND, "the job of the next time must exist"
    await store.write(
        lambda tx: [jobs.remove(tx, Scope(), job.id) for job in jobs.page(tx, Scope(), Page())]
    )
    await store.write(service.take_up)
    row = await store.read(lambda tx: queries.get(tx, Scope(), agent.id, made.id))
    assert row.next_at == second + 4 * HOUR * SECOND
    await store.write(lambda tx: service.delete(tx, Scope(), agent.id, made.id))
    assert await store.read(waiting) == []


async def test_no_due_time_is_skipped_after_the_clock_jumps_ahead_and_back(
    store: SqliteStore, clock: ManualClock
) -> None:
    agent = make.agent()
    expressions = (
        "*/5 * * * *",
        "0 * * * *",
        "30 8 * * *",
        "0 9 * * MON",
        "0 0 1 * *",
        "15 3 29 2 *",
    )

    def begin(tx: Transaction) -> list[ScheduledMessage]:
        metadata.create_all(tx.connection, tables=[schedules])
        agents.insert_one(tx, agent, [])
        message = [{"role": "user", "content": "Hello."}]
        asked = [
            {"messages": message, "schedule": {"type": "recurring", "cron_expression": one}}
            for one in expressions
        ]
        return [
            service.create(tx, Scope(), agent.id, ScheduleRequest.model_validate(one))
            for one in asked
        ]

    def next_times(tx: Transaction) -> list[int | None]:
        return [row.next_at for row in queries.page(tx, Scope(), Page(order="asc"), agent.id)]

    def follow(tx: Transaction) -> None:
        for row in queries.page(tx, Scope(), Page(order="asc"), agent.id):
            service.begin(tx, row.id, row.next_at or 0)

    await store.write(begin)
    for days in (2, 10, 40, 400, 3_650):
        right = await store.read(next_times)
        clock.advance(days * 24 * HOUR)
        await store.write(follow)
        wrong = await store.read(next_times)
        clock.advance(-days * 24 * HOUR)
        # Three of the five rounds run the job before `take_up`. The wrong time is more than a day
        # ahead, so the job sends nothing, and only plans the next time again.
        if days % 4:
            await store.write(follow)
        await store.write(service.take_up)
        # take_up moves no time later, and restores all of them.
        assert all(a <= b for a, b in zip(await store.read(next_times), wrong, strict=True))  # type: ignore[operator]
        assert await store.read(next_times) == right
        due = {
            job.not_before
            for job in await store.read(lambda tx: jobs.page(tx, Scope(), Page(limit=500)))
        }
        assert set(right) <= due
