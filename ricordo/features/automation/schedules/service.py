"""Create, plan and delete schedules."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from ricordo.agents import deferred
from ricordo.domain import cron
from ricordo.domain.clock import DAY, SECOND, zone
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid
from ricordo.features.automation.schedules import queries
from ricordo.features.automation.schedules.models import ScheduleRequest, next_time
from ricordo.features.automation.schedules.queries import ScheduledMessage
from ricordo.storage import agents, jobs, users
from ricordo.storage.engine.store import Transaction

SEND = "schedules.send"
MAX_SCHEDULES = 100  # of one agent
# The last attempt is about an hour after the first.
_ATTEMPTS = 11


def create(
    tx: Transaction, scope: Scope, agent_id: str, request: ScheduleRequest
) -> ScheduledMessage:
    """Store a new schedule with the job of its first time.

    Args:
        tx: The transaction.
        scope: The caller, in whose scope the messages are sent.
        agent_id: The agent.
        request: The messages and their times. Without a time zone, recurring times are in the zone
            of the caller's user, or else of the agent.

    Raises:
        Invalid: The schedule has no time in the future, or a message cannot be sent later.
        Conflict: The agent has too many schedules.
        Forbidden: The caller is a browser's session, which ends by itself.
        NotFound: There is no such agent.
    """
    message, schedule = request.sent()
    now = tx.clock.now()
    is_recurring = schedule["type"] == "recurring"
    if is_recurring:
        timezone = cron.parse(schedule["cron_expression"], schedule["timezone"]).timezone
        names_zone = cron.names_zone(schedule["cron_expression"])
        if not schedule["timezone"] and not names_zone:
            timezone = _default_timezone(tx, scope, agent_id)
        schedule = {**schedule, "timezone": timezone}
    next_at = next_time(schedule, now)
    if next_at is None and is_recurring:
        raise Invalid(cron.NEVER)
    if next_at is None:
        raise Invalid("This time is in the past. Choose a time in the future.")
    agents.lock(tx, scope, agent_id)
    agents.require(tx, scope, agent_id)
    sender = deferred.sender_of(tx, scope, "schedule")
    if queries.count(tx, agent_id) >= MAX_SCHEDULES:
        raise Conflict(
            f"This agent has {MAX_SCHEDULES} schedules, and no more are allowed. Delete one that "
            "you no longer need."
        )
    row = ScheduledMessage(
        id=new_id("schedule"),
        organization_id=scope.organization_id,
        agent_id=agent_id,
        message=message,
        schedule=schedule,
        user_id=sender.user_id,
        created_by=scope.user_id,
        key_id=sender.key_id,
        caller=sender.caller,
        scopes=tuple(sender.scopes),
        created_at=now,
        next_at=next_at,
    )
    queries.insert_one(tx, row)
    jobs.add(tx, job_of(row, next_at, not_before=next_at))
    return row


def _default_timezone(tx: Transaction, scope: Scope, agent_id: str) -> str:
    """Return the time zone in the user's property `timezone`, or else the agent's time zone."""
    user = users.find(tx, Scope(scope.organization_id), scope.subject) if scope.subject else None
    for user_property in user.properties if user else ():
        if user_property.get("key") != "timezone":
            continue
        name = str(user_property.get("value"))
        with suppress(Invalid):
            zone(name)
            return name
    return agents.timezone(tx, scope, agent_id)


def delete(tx: Transaction, scope: Scope, agent_id: str, schedule_id: str) -> None:
    """Delete the schedule and its unsent message.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent.
        schedule_id: The schedule.

    Raises:
        NotFound: There is no such agent, or it has no such schedule.
        Forbidden: The schedule is shared or another user's.
    """
    agents.require(tx, scope, agent_id)
    row = queries.get(tx, scope, agent_id, schedule_id)
    scope.require_owns(row.user_id)
    queries.delete_one(tx, row.id)


def job_of(
    row: ScheduledMessage, due_at: int, *, not_before: int, more: Mapping[str, Any] | None = None
) -> Job:
    """Return the job of this due time.

    Its id is a hash of its payload, so it is added only once.

    Args:
        row: The schedule.
        due_at: The time of the message, in microseconds.
        not_before: The earliest time to run the job, in microseconds.
        more: Further fields of the payload; they make it another job of the same due time.
    """
    payload = {"schedule_id": row.id, "due_at": due_at, **(more or {})}
    digest = sha256(repr(sorted(payload.items())).encode()).digest()
    return Job(
        SEND,
        row.organization_id,
        payload,
        key=row.id,
        most_attempts=_ATTEMPTS,
        not_before=not_before,
        id=f"job-{UUID(bytes=digest[:16], version=4)}",
        user_id=row.user_id,
    )


def begin(tx: Transaction, schedule_id: str, due_at: int) -> ScheduledMessage | None:
    """Mark this time as being sent, and plan the next time. A second call changes nothing.

    Returns None if there is nothing to send: the schedule was deleted, this time is finished, or a
    later time has replaced it. Returns None also if a recurring schedule's time is more than a day
    ahead, since a wrong clock planned it.

    Args:
        tx: The transaction.
        schedule_id: The schedule.
        due_at: The time of the message, in microseconds.
    """
    row = queries.lock(tx, schedule_id)
    if row is None:
        return None
    if row.is_recurring and due_at > tx.clock.now() + DAY:
        if row.next_at == due_at:  # planned while the clock was ahead
            _plan(tx, replace(row, next_at=None))
        return None
    if row.next_at == due_at:
        row = _plan(tx, replace(row, due_at=due_at))
    return row if row.due_at == due_at else None


def finish(tx: Transaction, schedule_id: str, due_at: int, problem: str | None = None) -> None:
    """Note that the message of this time was sent or has failed.

    A one-time schedule is deleted after its message. If the message failed, the schedule stays and
    shows the problem.

    Args:
        tx: The transaction.
        schedule_id: The schedule; a deleted one is ignored.
        due_at: The time of the message, in microseconds. It is ignored if another time is being
            sent.
        problem: The sentence that says why it failed; None if it was sent.
    """
    row = queries.lock(tx, schedule_id)
    if row is None or row.due_at != due_at:
        return
    if problem is None and not row.is_recurring:
        queries.delete_one(tx, schedule_id)
        return
    queries.save(tx, replace(row, due_at=None, problem=problem))


def take_up(tx: Transaction, silent_for: int = 3600 * SECOND) -> None:
    """Plan the next time of schedules whose jobs were deleted or failed.

    The message that they missed is not sent later. Recurring schedules that were planned while the
    clock was ahead are planned again.

    Args:
        tx: The transaction.
        silent_for: The microseconds after which a missed time counts as lost.
    """
    now = tx.clock.now()
    for row in queries.left_behind(tx, now - silent_for):
        if _is_unchanged(tx, row):
            _plan(tx, replace(row, problem="The job that was to send this was deleted or failed."))
    for row in queries.planned_after(tx, now + DAY):
        if row.is_recurring and _comes_sooner(row, now + DAY) and _is_unchanged(tx, row):
            _plan(tx, replace(row, next_at=None))  # planned while the clock was ahead


def _is_unchanged(tx: Transaction, row: ScheduledMessage) -> bool:
    """Lock the schedule; return False if another transaction changed or deleted it."""
    return queries.lock(tx, row.id) == row


def _comes_sooner(row: ScheduledMessage, after: int) -> bool:
    """Return whether a schedule has a time after `after` and before the planned one."""
    with suppress(Invalid):
        next_at = next_time(row.schedule, after)
        return next_at is not None and next_at < (row.next_at or 0)
    return False


def _plan(tx: Transaction, row: ScheduledMessage) -> ScheduledMessage:
    """Store the schedule's next time, and add the job that sends its message.

    The next time is after now and after the planned time. Times that passed while no server ran are
    skipped.
    """
    try:
        next_at = next_time(row.schedule, max(tx.clock.now(), row.next_at or 0))
        row = replace(row, next_at=next_at)
    except Invalid as error:  # for example, a time zone that no longer exists
        row = replace(row, next_at=None, problem=str(error))
    queries.save(tx, row)
    if row.next_at:
        jobs.add(tx, job_of(row, row.next_at, not_before=row.next_at))
    return row
