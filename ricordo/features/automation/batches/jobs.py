"""The job that answers a batch's requests, a few agents at a time.

Each request is an ordinary turn; requests to one agent run in order. The otids of messages are made
from the batch and the message's index. So a job that runs again after a kill finds the turns that
it has started, and starts no turn twice. A turn that was interrupted when its server stopped is run
again.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import orjson

from ricordo.agents.callbacks import deliver
from ricordo.agents.deferred import Sender, scope_of_sender, with_otids
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.clock import Backoff
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Invalid, RicordoError, Unavailable
from ricordo.features.automation.batches import queries, service
from ricordo.features.automation.batches.models import (
    BatchItemRequest,
    callback_body,
    turn_of,
)
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.jobs import FencedStore

AT_ONCE = 4
# While an agent is busy with other turns, its request is retried for about seven minutes.
_BUSY = Backoff(0.5, 2, 30)
_BUSY_ATTEMPTS = 25


async def answer_batch(runtime: Runtime, job: Job, report: Report) -> None:
    """Answer the waiting requests, and end the batch.

    Args:
        runtime: The server's parts.
        job: The batch.
        report: Gets the number of ended requests, and of all.

    Raises:
        Invalid: No request was answered.
        Unavailable: The database failed or the server shuts down, so the job has to be repeated.
    """
    numbers_by_agent = await runtime.store.read(lambda tx: queries.waiting(tx, job.id))
    total = job.payload["requests"]
    waiting_count = sum(map(len, numbers_by_agent.values()))
    # All tasks take from one iterator, so one task handles all requests to an agent.
    numbers_of_agents = iter(numbers_by_agent.values())

    async def answer_some(numbers_of_agents: Iterator[list[int]]) -> None:
        nonlocal waiting_count
        for numbers in numbers_of_agents:
            for number in numbers:
                await _answer(runtime, job, number)
                waiting_count -= 1
                report(total - waiting_count, total)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(answer_some(numbers_of_agents))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    fenced = FencedStore(runtime.store, job)
    await fenced.write(lambda tx: service.add_callback(tx, job))
    counts = (await runtime.store.read(lambda tx: queries.counts(tx, [job.id])))[job.id]
    if not counts.get("completed"):
        raise Invalid("None of the requests was answered. The batch lists the reason for each.")


async def _answer(runtime: Runtime, job: Job, number: int) -> None:
    """Run or find the turn of one request, and store how it ended."""
    request = await runtime.store.read(lambda tx: queries.request(tx, job.id, number))
    if request is None:
        return
    run_id: str | None = None
    problem: str | None = None
    try:
        run = await _ended_run(runtime, job, number, BatchItemRequest.model_validate(request))
        run_id = run.id
        if run.status in ("failed", "cancelled"):
            problem = (run.error or {}).get("message") or "The run was cancelled."
    except Unavailable:
        raise  # the job is repeated
    except RicordoError as error:
        problem = str(error)
    fenced = FencedStore(runtime.store, job)
    await fenced.write(lambda tx: queries.save(tx, job.id, number, run_id=run_id, problem=problem))


async def _ended_run(runtime: Runtime, job: Job, number: int, request: BatchItemRequest) -> Run:
    scope = await runtime.store.read(lambda tx: scope_of_sender(tx, Sender(**job.payload["maker"])))
    turn_request = with_otids(turn_of(scope, request), f"{job.id}-{number}")
    for attempt in range(1, _BUSY_ATTEMPTS + 1):
        with suppress(Busy):
            run = await _turn(runtime, job, turn_request)
            if not was_cut_off(run):
                return run
            if runtime.is_stopping:
                raise Unavailable(
                    "The server is shutting down. The batch continues when it is back."
                )
        await asyncio.sleep(_BUSY.seconds(attempt))
    raise Busy


async def _turn(runtime: Runtime, job: Job, request: TurnRequest) -> Run:
    """Run the turn to its end, and return its run.

    The turn is cancelled if its batch is. If only this job is stopped, the turn continues.
    """
    start = asyncio.ensure_future(run_turn(runtime, request))
    try:
        return (await collect(await asyncio.shield(start))).run
    except asyncio.CancelledError:
        with suppress(RicordoError):
            turn = await start
            if await runtime.store.read(lambda tx: service.is_cancelled(tx, job)):
                await turn.cancel()
        raise


async def call_back(runtime: Runtime, job: Job, _report: Report) -> None:
    """Send the callback of an ended batch, and store its outcome.

    Args:
        runtime: The server's parts.
        job: The job; `batch_id` in its payload names the batch, which has the address.
        _report: Not used, since there is one request.

    Raises:
        NotFound: The batch was deleted.
        Invalid: The address is not allowed.
        Unavailable: The batch has not ended, or the callback was not accepted.
    """
    batch = await runtime.store.read(
        lambda tx: jobs.get(tx, Scope(job.organization_id), job.payload["batch_id"])
    )
    callback = batch.payload["callback"]
    if batch.ended_at is None:
        raise Unavailable("The batch has not ended yet.")
    if callback.get("sent_at") and not callback.get("error"):
        return  # an earlier attempt was killed right after it stored the outcome
    body = orjson.dumps(callback_body(batch))
    changes, failure = await deliver(runtime, job, callback["url"], body)
    await runtime.store.write(lambda tx: service.note_callback(tx, batch, changes))
    if failure:
        raise failure


HANDLERS = (JobHandler(service.RUN, answer_batch), JobHandler(service.CALL_BACK, call_back))
