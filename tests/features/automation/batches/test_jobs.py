"""The job of a batch, on both databases.

The job is killed at each point and run again. A batch is cancelled, and deleted when it is too old.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import LeaseLost, Unavailable
from ricordo.features.automation.batches import jobs as answering
from ricordo.features.automation.batches import queries, service
from ricordo.features.automation.batches.models import BatchRequest
from ricordo.features.automation.batches.queries import batch_items
from ricordo.storage import jobs, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import SqlStore, Transaction
from ricordo.storage.schema.columns import metadata
from tests.conftest import BOTH
from tests.seams.stage import Gate, Hooks, Stage

DATABASES = BOTH


@pytest.fixture
async def stage(store: SqlStore, tmp_path: Path) -> AsyncIterator[Stage]:
    opened = await Stage(store, tmp_path, Hooks()).open()
    await store.write(lambda tx: metadata.create_all(tx.connection, tables=[batch_items]))
    yield opened
    await opened.close()


async def running_batch_job(stage: Stage, *agents: str) -> Job:
    """Make a batch with a message to each of these agents; return its running job."""
    sent = [
        {"agent_id": agent, "input": f"Message {number}."} for number, agent in enumerate(agents)
    ]
    asked = BatchRequest.model_validate({"requests": sent})

    def work(tx: Transaction) -> Job:
        made = service.create(tx, Scope(), asked, "hash", is_retry=False)
        taken = jobs.claim_one(tx, "worker", made.id)
        assert taken
        return taken

    return await stage.store.write(work)


async def run(stage: Stage, job: Job) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    await answering.answer_batch(stage.runtime, job, lambda done, total: told.append((done, total)))
    return told


async def status_counts(stage: Stage, job: Job) -> dict[str, int]:
    return (await stage.store.read(lambda tx: queries.counts(tx, [job.id])))[job.id]


async def said(stage: Stage, agent: str) -> list[str]:
    found = await stage.store.read(
        lambda tx: messages.page(tx, Scope(), Page(order="asc"), agent_id=agent, role="user")
    )
    return [one.text for one in found]


async def test_a_killed_job_starts_no_turn_twice(stage: Stage) -> None:
    agent = await stage.agent()
    job = await running_batch_job(stage, agent, agent)
    gate = Gate()
    stage.lines += ["One.", gate.line("Two.")]
    first = asyncio.create_task(run(stage, job))
    await gate.reached()
    first.cancel()  # this stops only the job; the turn continues
    await asyncio.wait([first])
    assert await status_counts(stage, job) == {"completed": 1, "waiting": 1}
    again = asyncio.create_task(run(stage, job))
    await asyncio.sleep(0.05)
    gate.open()
    assert await again == [(2, 2)]
    assert await status_counts(stage, job) == {"completed": 2}
    # The kill comes after the turns and before any result is stored.
    values = {"status": "waiting", "request": {"agent_id": agent, "input": "Message 0."}}
    await stage.store.write(
        lambda tx: tx.run(batch_items.update().where(batch_items.c.number == 0).values(values))
    )
    assert await run(stage, job) == [(2, 2)]
    assert await said(stage, agent) == ["Message 0.", "Message 1."]
    answers = await stage.store.read(
        lambda tx: queries.page_of_messages(tx, Scope(), Page(), job.id, None)
    )
    assert [one.text for one in answers] == ["Two.", "One."]


async def test_cancelling_a_job_ends_its_running_turn(stage: Stage) -> None:
    agent = await stage.agent()
    job = await running_batch_job(stage, agent)
    gate = Gate()
    stage.lines.append(gate.line("Never."))
    running = asyncio.create_task(run(stage, job))
    await gate.reached()
    await stage.store.write(lambda tx: service.cancel(tx, Scope(), job.id))
    # The worker cancels the task too when it notices the cancellation.
    running.cancel()
    await asyncio.wait([running])
    assert stage.runtime.live == {}
    assert await status_counts(stage, job) == {"waiting": 1}


async def test_a_server_that_lost_its_job_stores_no_results(stage: Stage) -> None:
    agent = await stage.agent()
    job = await running_batch_job(stage, agent)
    stage.lines.append("One.")
    with pytest.raises(LeaseLost):
        await run(stage, replace(job, worker="another"))
    assert await status_counts(stage, job) == {"waiting": 1}


async def test_a_server_that_shuts_down_leaves_requests_waiting(stage: Stage) -> None:
    job = await running_batch_job(stage, await stage.agent())
    stage.runtime.is_stopping = True
    with pytest.raises(Unavailable, match="shutting down"):
        await run(stage, job)
    assert await status_counts(stage, job) == {"waiting": 1}
