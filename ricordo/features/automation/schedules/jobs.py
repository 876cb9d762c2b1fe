"""Sending what is due, as jobs: the same otids each time a job runs again, so that no kill sends a message twice.

A job ends when its turn has begun; another looks half a minute later whether a kill cut the turn off, which is answered anew then.
"""

from dataclasses import replace

from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import DEFAULT_MAX_STEPS, TurnRequest
from ricordo.api.messages import new_message
from ricordo.api.models.messages import MessageFormat
from ricordo.api.stored_streams import begin_recorded
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden, Invalid, NotFound, RicordoError
from ricordo.features.automation.schedules import service
from ricordo.features.automation.schedules.models import LaterMessage
from ricordo.features.automation.schedules.queries import ScheduledMessage
from ricordo.runtime import Runtime
from ricordo.storage import jobs, runs
from ricordo.storage.engine.store import Transaction

_LOOK_AGAIN = 30 * SECOND


async def send(runtime: Runtime, job: Job, _report: Report) -> None:
    """Begin the turn of this due time. While the conversation is busy, the job is tried again for an hour."""
    store, id, due_at = runtime.store, job.payload["schedule_id"], job.payload["due_at"]
    row = await store.write(lambda tx: service.begin(tx, id, due_at))
    if row is None:
        return
    try:
        run = await _begun(runtime, row, due_at, job.payload.get("run_id"))
    except RicordoError as error:
        problem = str(error)
        is_final = isinstance(error, Invalid | NotFound | Forbidden)
        if is_final or job.attempts >= job.most_attempts:
            await store.write(lambda tx: service.finish(tx, id, due_at, problem))
        if is_final:
            return
        raise
    if run is None or run.ended_at is not None:
        await store.write(lambda tx: service.finish(tx, id, due_at))
        return
    more = {"run_id": run.id, "look": job.payload.get("look", 0) + 1}
    again = service.job_of(
        row, due_at, not_before=store.clock.now() + _LOOK_AGAIN * more["look"], more=more
    )
    await store.write(lambda tx: jobs.add(tx, again))


async def _begun(
    runtime: Runtime, row: ScheduledMessage, due_at: int, run_id: str | None
) -> Run | None:
    """The run of this due time, begun where there is none, or where it was cut off; None where it was deleted."""
    if run_id:
        try:
            run = await runtime.store.read(
                lambda tx: runs.get(tx, Scope(row.organization_id), run_id)
            )
        except NotFound:
            return None
        if not was_cut_off(run):
            return run
    scope = await runtime.store.read(lambda tx: service.scope_of(tx, row))
    message = row.message
    request = TurnRequest(
        scope=scope,
        agent_id=row.agent_id,
        messages=tuple(
            replace(
                new_message(LaterMessage.model_validate(each)), otid=f"{row.id}-{due_at}-{number}"
            )
            for number, each in enumerate(message["messages"])
        ),
        max_steps=message.get("max_steps") or DEFAULT_MAX_STEPS,
        is_background=True,
        callback={"url": message["callback_url"]} if message.get("callback_url") else {},
        request_config=(view := MessageFormat.from_json(message)).to_json(),
    )
    return await begin_recorded(runtime, request, view)


async def take_up(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Plan anew the schedules that lost their jobs."""

    def plan(tx: Transaction) -> None:
        service.take_up(tx)

    await runtime.store.write(plan)


HANDLERS = (
    JobHandler(service.SEND, send),
    JobHandler("schedules.take_up", take_up, every_seconds=600),
)
