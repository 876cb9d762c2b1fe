"""Makes scheduled messages, and sends each when it is due: once, wherever a server is killed.

A schedule's next time is a job. The turn that it begins has an otid that follows from the schedule and the time, so a job that runs
twice finds the turn which it began before. Times that passed while no server ran are sent as one.
"""

from dataclasses import replace
from datetime import UTC
from uuid import NAMESPACE_URL, uuid5

from ricordo.agents.request import TurnRequest
from ricordo.api.messages import new_message
from ricordo.api.models.messages import MessageFormat
from ricordo.api.models.turns import MessageRequest
from ricordo.api.stored_streams import begin_recorded
from ricordo.domain.clock import SECOND, to_datetime, zone
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import ROLE_SCOPES, Scope
from ricordo.errors import Busy, Invalid, NotFound, RicordoError
from ricordo.features.schedules import queries
from ricordo.features.schedules.cron import parse_cron
from ricordo.features.schedules.models import OneTimeRequest, ScheduleRequest
from ricordo.features.schedules.queries import ScheduledMessage
from ricordo.llm.addresses import require_callable
from ricordo.runtime import Runtime
from ricordo.storage import agents, jobs, users
from ricordo.storage.engine.store import Transaction

SEND = "schedules.send"
MILLISECOND = SECOND // 1000
MOST = 100  # schedules of one agent
# A busy agent is tried again for about an hour, after 2 seconds first and 10 minutes at last.
_ATTEMPTS = 12


def create(tx: Transaction, runtime: Runtime, scope: Scope, agent_id: str, body: ScheduleRequest) -> ScheduledMessage:
    """Store a schedule with the job of its first time. Raises NotFound, Invalid."""
    timezone = agents.timezone(tx, scope, agent_id)
    if body.callback_url:
        require_callable(body.callback_url, allow_private=runtime.settings.allow_private_callbacks)
    agents.lock(tx, scope, agent_id)
    if queries.count(tx, agent_id) >= MOST:
        raise Invalid(f"The agent has {MOST} schedules, which is the most. Delete one first.")
    now = tx.clock.now()
    cron = None if isinstance(body.schedule, OneTimeRequest) else body.schedule.cron_expression
    if isinstance(body.schedule, OneTimeRequest):
        due_at = round(body.schedule.scheduled_at * MILLISECOND)
        if due_at < now - 60 * SECOND:
            raise Invalid("scheduled_at has passed. It is a time to come, in milliseconds since 1970.")
    else:
        due_at = _next(body.schedule.cron_expression, now, timezone)
    kept = ("user_id", "user_name", "subject_id", "role", "caller", "identifier")
    made = ScheduledMessage(
        id=new_id("schedule"),
        organization_id=scope.organization_id,
        agent_id=agent_id,
        user_id=scope.subject,
        runs_as={name: value for name in kept if (value := getattr(scope, name))},
        message=body.message(),
        cron=cron,
        due_at=due_at,
        created_by=scope.user_id,
        created_at=now,
    )
    queries.insert(tx, made)
    _add_job(tx, made)
    return made


def _next(cron: str, after: int, timezone: str) -> int:
    found = parse_cron(cron).next_after(to_datetime(after).astimezone(UTC), zone(timezone))
    return round(found.timestamp() * SECOND)


def _add_job(tx: Transaction, one: ScheduledMessage) -> None:
    payload = {"schedule_id": one.id, "due_at": one.due_at}
    job = Job(SEND, one.organization_id, payload, key=one.id, user_id=one.user_id)
    jobs.add(tx, replace(job, not_before=one.due_at, most_attempts=_ATTEMPTS))


async def send(runtime: Runtime, job: Job, _report: Report) -> None:
    """Send what is due, and add the job of the next time. Raises Busy while the agent answers somebody else."""
    store, due_at = runtime.store, job.payload["due_at"]
    one = await store.read(lambda tx: queries.by_id(tx, job.payload["schedule_id"]))
    if one is None or one.due_at != due_at:
        return  # deleted, or sent before this server was killed
    error: str | None = None
    try:
        request = await store.read(lambda tx: _request(tx, one))
        await begin_recorded(runtime, request, MessageFormat.from_json(request.request_config))
    except Busy:
        if job.attempts < _ATTEMPTS:
            raise
        error = "The agent was busy each time."
    except NotFound:
        await store.write(lambda tx: queries.remove(tx, one.id))
        return
    except RicordoError as refused:
        error = str(refused)
    await store.write(lambda tx: _go_on(tx, one, error))


def _go_on(tx: Transaction, one: ScheduledMessage, error: str | None) -> None:
    if one.cron is None and error is None:
        queries.remove(tx, one.id)
        return
    now = tx.clock.now()
    if one.cron is None:  # kept, so that somebody sees why it was not sent
        queries.put_off(tx, one.id, 0, error)
        return
    later = replace(
        one, due_at=_next(one.cron, max(now, one.due_at), agents.timezone(tx, Scope(one.organization_id), one.agent_id))
    )
    queries.put_off(tx, one.id, later.due_at, error)
    _add_job(tx, later)


def _request(tx: Transaction, one: ScheduledMessage) -> TurnRequest:
    """The turn that is due now. Raises NotFound where the agent or its user is gone."""
    role = one.runs_as.get("role", "admin")
    scope = replace(Scope(one.organization_id), **one.runs_as, scopes=ROLE_SCOPES[role])
    if one.user_id:
        user = users.require(tx, Scope(one.organization_id), one.user_id)
        if user.disabled_at is not None:
            raise Invalid("The user is disabled.")
    agents.require(tx, scope, one.agent_id)
    said = [new_message(MessageRequest.model_validate(each)) for each in one.message["messages"]]
    own = [
        replace(each, otid=str(uuid5(NAMESPACE_URL, f"{one.id}/{one.due_at}/{number}")))
        for number, each in enumerate(said)
    ]
    view = MessageFormat.from_json({"include_return_message_types": one.message.get("include_return_message_types")})
    address = one.message.get("callback_url")
    return TurnRequest(
        scope=scope,
        agent_id=one.agent_id,
        messages=tuple(own),
        max_steps=int(one.message.get("max_steps") or 50),
        is_background=True,
        callback={"url": address} if address else {},
        request_config=view.to_json(),
    )


HANDLER = JobHandler(SEND, send)
