"""Answering the requests of a batch, a few agents at a time: each by an ordinary turn, and those to one agent in their order.

The messages get otids that are made of the batch and their place in it. So a job that is killed anywhere and runs again finds the
turns that it began, and begins none twice; one that was cut off with the server is answered anew.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import orjson

from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import TurnRequest
from ricordo.agents.turn import collect, run_turn
from ricordo.api.callbacks import deliver
from ricordo.api.messages import request_of
from ricordo.api.models.base import stamp
from ricordo.api.models.jobs import JobResponse
from ricordo.domain.clock import Backoff
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Invalid, RicordoError, Unavailable
from ricordo.features.automation.batches import queries, service
from ricordo.features.automation.batches.models import BatchItemRequest
from ricordo.features.automation.schedules.service import Maker, scope_of
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.jobs import FencedStore

AT_ONCE = 4
# While an agent is busy with others, its request is tried for about ten minutes.
_BUSY, _BUSY_ATTEMPTS = Backoff(0.5, 2, 30), 25


async def answer_batch(runtime: Runtime, job: Job, report: Report) -> None:
    """Answer what has no answer yet, and end the batch. Raises Invalid where not one request was answered."""
    by_agent = await runtime.store.read(lambda tx: queries.waiting(tx, job.id))
    total, agents = job.payload["requests"], iter(by_agent.values())
    left = sum(map(len, by_agent.values()))

    async def answer_some(agents: Iterator[list[int]]) -> None:
        nonlocal left
        for numbers in agents:  # the next agent that nobody has begun with
            for number in numbers:
                await _answer(runtime, job, number)
                left -= 1
                report(total - left, total)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(answer_some(agents))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    fenced = FencedStore(runtime.store, job)
    await fenced.write(lambda tx: service.add_callback(tx, job))
    counts = (await runtime.store.read(lambda tx: queries.counts(tx, [job.id])))[job.id]
    if not counts.get("completed"):
        raise Invalid("None of the requests was answered. The batch says of each why.")


async def _answer(runtime: Runtime, job: Job, number: int) -> None:
    """Run the turn of one request, or find the one that was begun before, and store how it ended."""
    sent = await runtime.store.read(lambda tx: queries.request(tx, job.id, number))
    if sent is None:
        return
    run_id: str | None = None
    problem: str | None = None
    try:
        run = await _ended_run(runtime, job, number, BatchItemRequest.model_validate(sent))
        run_id = run.id
        if run.status in ("failed", "cancelled"):
            problem = (run.error or {}).get("message") or "The run was cancelled."
    except Unavailable:
        raise  # the whole job is tried again
    except RicordoError as error:
        problem = str(error)
    fenced = FencedStore(runtime.store, job)
    await fenced.write(lambda tx: queries.save(tx, job.id, number, run_id, problem))


async def _ended_run(runtime: Runtime, job: Job, number: int, item: BatchItemRequest) -> Run:
    scope = await runtime.store.read(lambda tx: scope_of(tx, Maker(**job.payload["maker"])))
    request = _with_otids(request_of(scope, item.agent_id, item), f"{job.id}-{number}")
    for attempt in range(1, _BUSY_ATTEMPTS + 1):
        with suppress(Busy):
            run = await _turn(runtime, job, request)
            if not was_cut_off(run):
                return run
            if runtime.is_stopping:
                raise Unavailable("The server is shutting down. The batch goes on when it is back.")
        await asyncio.sleep(_BUSY.seconds(attempt))
    raise Busy


async def _turn(runtime: Runtime, job: Job, request: TurnRequest) -> Run:
    """The run of this request, once it has ended. It is cancelled with its batch, but goes on where only this job is stopped."""
    begun = asyncio.ensure_future(run_turn(runtime, request))
    try:
        return (await collect(await asyncio.shield(begun))).run
    except asyncio.CancelledError:
        with suppress(RicordoError):
            turn = await begun
            if await runtime.store.read(lambda tx: service.is_cancelled(tx, job)):
                await turn.cancel()
        raise


def _with_otids(request: TurnRequest, name: str) -> TurnRequest:
    said = [
        replace(one, otid=one.otid or f"{name}-{place}")
        for place, one in enumerate(request.messages)
    ]
    decided = request.approval and replace(
        request.approval, otid=request.approval.otid or f"{name}-approval"
    )
    return replace(request, messages=tuple(said), approval=decided)


async def call_back(runtime: Runtime, job: Job, _report: Report) -> None:
    """Tell of the end of the batch, and note with it what came of that. Raises where it was not taken."""
    batch = await runtime.store.read(
        lambda tx: jobs.get(tx, Scope(job.organization_id), job.payload["batch_id"])
    )
    callback = batch.payload["callback"]
    if batch.ended_at is None:
        raise Unavailable("The batch has not ended yet.")
    if callback.get("sent_at") and not callback.get("error"):
        return  # killed right after it was noted
    told = {
        "job_id": batch.id,
        "status": JobResponse.of(batch)["status"],
        "completed_at": stamp(batch.ended_at),
    }
    changes, failure = await deliver(runtime, job, callback["url"], orjson.dumps(told))
    await runtime.store.write(lambda tx: queries.note_callback(tx, batch, changes))
    if failure:
        raise failure


HANDLERS = (JobHandler(service.RUN, answer_batch), JobHandler(service.CALL_BACK, call_back))
