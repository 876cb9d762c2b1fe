"""The clock jumps ahead and is set back: timestamps from the future delay nothing."""

from dataclasses import replace

from ricordo.agents.run_end import close_expired
from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.search.write_buffer import flush_when_due
from ricordo.storage import jobs, messages, runs
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.future_times import mend_future_times
from tests.seams import make
from tests.seams.stores import ManualClock

# Jumps in seconds, as after a wrong time zone, an empty battery or a mistyped year.
JUMPS = (*(86_400 * days + 61 for days in (1, 2, 3, 7, 30, 31, 365, 400, 3_650, 36_500)), 90_000)


def add(tx: Transaction, key: str, **fields: object) -> Job:
    job = jobs.add(tx, Job("index", LOCAL_ORGANIZATION, key=key, most_attempts=9, **fields))  # type: ignore[arg-type]
    assert job
    return job


async def test_jobs_and_leases_continue_within_a_minute_after_a_wrong_clock(
    store: SqliteStore, clock: ManualClock
) -> None:
    state = await make.stored_agent(store)
    for jump in JUMPS:
        beating = await store.write(lambda tx, jump=jump: add(tx, f"beating {jump}"))  # type: ignore[misc]
        failing = await store.write(
            lambda tx, jump=jump: add(tx, f"failing {jump}", is_single=True)
        )  # type: ignore[misc]
        held = await store.write(lambda tx: jobs.claim(tx, "me", 9))
        clock.advance(jump)

        def work_by_the_wrong_clock(
            tx: Transaction, held: list[Job] = held, jump: int = jump
        ) -> Job:
            jobs.renew(tx, "me", held, {})
            failed = next(job for job in held if job.is_single)
            jobs.fail(tx, failed, {"type": "E", "message": "m"}, retry_after=2 * SECOND)
            now = tx.clock.now()
            run = make.run(
                state.agent, conversation_id=state.conversation.id, id=f"run-{jump}", created_at=now
            )
            runs.open_run(tx, replace(run, lease_token="token", lease_expires_at=now + 30 * SECOND))
            return add(tx, f"later {jump}", not_before=now + 20 * SECOND)

        later = await store.write(work_by_the_wrong_clock)
        clock.advance(-jump)
        assert await store.write(runs.expired) == []
        assert await store.write(mend_future_times) > 0
        assert await store.write(mend_future_times) == 0
        clock.advance(60)
        freed = await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND))
        assert [job.id for job in freed] == [beating.id]
        taken = await store.write(lambda tx: jobs.claim(tx, "other", 9))
        assert {job.id for job in taken} == {beating.id, failing.id, later.id}
        for job in taken:
            await store.write(lambda tx, job=job: jobs.finish(tx, job))  # type: ignore[misc]
        assert [run.id for run in await store.write(close_expired)] == [f"run-{jump}"]


async def test_planned_and_chosen_future_times_stay(store: SqliteStore, clock: ManualClock) -> None:
    state = await make.stored_agent(store)
    far = clock.now() + 400 * DAY
    job = await store.write(lambda tx: add(tx, "planned", not_before=far))
    archive = await make.stored_archive(store, state.agent)
    passage = make.passage(archive, created_at=far)
    near = make.message(
        state.agent, "A server's clock is an hour ahead.", created_at=clock.now() + 3600 * SECOND
    )
    await make.stored_messages(store, near)
    assert passage.created_at == far
    assert await store.write(mend_future_times) == 0
    assert (await store.read(lambda tx: jobs.get(tx, Scope(), job.id))).not_before == far
    (kept,) = await store.read(lambda tx: messages.by_ids(tx, [near.id]))
    assert kept.created_at == near.created_at


async def test_a_running_job_of_this_process_is_not_taken_over_after_a_clock_jump(
    store: SqliteStore, clock: ManualClock
) -> None:
    job = await store.write(lambda tx: add(tx, "mine"))
    await store.write(lambda tx: jobs.claim(tx, "me", 1))
    clock.advance(JUMPS[-1])
    assert (
        await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND, live={job.id}))
        == []
    )
    assert len(await store.write(lambda tx: jobs.take_over(tx, silent_for=30 * SECOND))) == 1


async def test_the_index_is_flushed_after_the_clock_was_set_back(
    store: SqliteStore, clock: ManualClock
) -> None:
    for jump in JUMPS:
        clock.advance(jump)
        await store.write(lambda tx: flush_when_due(tx, "agent-1", LOCAL_ORGANIZATION, 1))
        clock.advance(-jump)
        await store.write(mend_future_times)
        clock.advance(60)
        for job in await store.write(lambda tx: jobs.claim(tx, "me", 9)):
            await store.write(lambda tx, job=job: jobs.finish(tx, job))  # type: ignore[misc]
        await store.write(lambda tx: flush_when_due(tx, "agent-1", LOCAL_ORGANIZATION, 1))
        clock.advance(60)
        assert len(await store.write(lambda tx: jobs.claim(tx, "me", 9))) == 1
        for job in await store.write(jobs.take_over):
            await store.write(lambda tx, job=job: jobs.remove(tx, Scope(), job.id))  # type: ignore[misc]
