"""Jobs that send due messages.

A repeated job sends messages with the same otids, so no message is sent twice after a kill. A job
ends when its turn has started. Another job checks half a minute later whether a kill interrupted
the turn; if so, it runs the turn again.
"""

from ricordo.agents.deferred import scope_of_sender, with_otids
from ricordo.agents.recording import begin_recorded
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    DEFAULT_MAX_STEPS,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
)
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Forbidden, Invalid, NotFound, RicordoError
from ricordo.features.automation.schedules import service
from ricordo.features.automation.schedules.models import later_message, message_format
from ricordo.features.automation.schedules.queries import ScheduledMessage
from ricordo.runtime import Runtime
from ricordo.storage import jobs, runs
from ricordo.storage.engine.store import Transaction

_CHECK_INTERVAL = 30 * SECOND


async def send(runtime: Runtime, job: Job, _report: Report) -> None:
    """Start the turn of this due time.

    While the conversation is busy, the job waits. After other errors it is retried for about an
    hour. The last error, or one that no retry can change, is stored with the schedule.

    Args:
        runtime: The server's parts.
        job: The job; its payload has `schedule_id`, `due_at` (microseconds), and the `run_id` of a
            turn that it has to check.
        _report: Not used.

    Raises:
        RicordoError: The turn could not start now, for example because another turn runs.
    """
    store = runtime.store
    schedule_id = job.payload["schedule_id"]
    due_at = job.payload["due_at"]
    row = await store.write(lambda tx: service.begin(tx, schedule_id, due_at))
    if row is None:
        return
    try:
        run = await _start_run(runtime, row, due_at, job.payload.get("run_id"))
    except RicordoError as error:
        problem = str(error)
        is_final = isinstance(error, Invalid | NotFound | Forbidden)
        # A busy conversation does not use up an attempt.
        is_last = job.attempts >= job.most_attempts and not isinstance(error, Busy)
        if is_final or is_last:
            await store.write(lambda tx: service.finish(tx, schedule_id, due_at, problem))
        if is_final:
            return
        raise
    if run is None or run.ended_at is not None:
        await store.write(lambda tx: service.finish(tx, schedule_id, due_at))
        return
    # The wait grows with each check. "look" is a key of stored jobs.
    check_number = job.payload.get("look", 0) + 1
    check = service.job_of(
        row,
        due_at,
        not_before=store.clock.now() + _CHECK_INTERVAL * check_number,
        more={"run_id": run.id, "look": check_number},
    )
    await store.write(lambda tx: jobs.add(tx, check))


async def _start_run(
    runtime: Runtime, row: ScheduledMessage, due_at: int, run_id: str | None
) -> Run | None:
    """Return the run of this due time.

    It is started if there is none yet, and started again if the server was stopped during it. If
    the run with this `run_id` was deleted, None is returned.
    """
    if run_id:
        try:
            run = await runtime.store.read(
                lambda tx: runs.get(tx, Scope(row.organization_id), run_id)
            )
        except NotFound:
            return None
        if not was_cut_off(run):
            return run
    scope = await runtime.store.read(lambda tx: scope_of_sender(tx, row.sender))
    settings = row.message
    messages = [later_message(message) for message in settings["messages"]]
    request = TurnRequest(
        scope=scope,
        agent_id=row.agent_id,
        messages=tuple(messages),
        overrides=TurnOverrides(max_steps=settings.get("max_steps") or DEFAULT_MAX_STEPS),
        delivery=TurnDelivery(
            is_background=True,
            callback={"url": settings["callback_url"]} if settings.get("callback_url") else {},
            request_config=message_format(settings),
        ),
    )
    return await begin_recorded(runtime, with_otids(request, f"{row.id}-{due_at}"))


async def take_up(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Plan the schedules whose jobs were lost.

    Args:
        runtime: The server's parts.
        _job: Not used.
        _report: Not used.
    """

    def plan(tx: Transaction) -> None:
        service.take_up(tx)

    await runtime.store.write(plan)


HANDLERS = (
    JobHandler(service.SEND, send),
    JobHandler("schedules.take_up", take_up, every_seconds=600),
)
