"""Schedules: made, planned from one time to the next, and the scope that a turn of theirs runs in."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from ricordo.domain.clock import DAY, SECOND, zone
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import OPERATOR_SCOPES, Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.automation.schedules import cron, queries
from ricordo.features.automation.schedules.models import ScheduleRequest, next_time
from ricordo.features.automation.schedules.queries import ScheduledMessage
from ricordo.storage import agents, jobs, keys, users
from ricordo.storage.engine.store import Transaction

SEND = "schedules.send"
MOST = 100  # of one agent
# The last try is about an hour after the first.
_ATTEMPTS = 11
_NO_LONGER = "Whoever made this may no longer send messages: the key was revoked, or the user is disabled or gone."


@dataclass(frozen=True, slots=True)
class Maker:
    """By whom something was made that is sent later: the key, and what it was allowed."""

    organization_id: str
    user_id: str | None
    key_id: str | None
    caller: str | None
    scopes: list[str]


def maker_of(tx: Transaction, scope: Scope, what: str) -> Maker:
    """Return whose key makes this. Raises Forbidden for a login."""
    if scope.key_id:
        try:
            keys.get(tx, Scope(scope.organization_id), scope.key_id)
        except NotFound as error:
            words = (
                f"A login ends by itself, and a {what} goes on. Make the {what} with an API key."
            )
            raise Forbidden(words) from error
    return Maker(
        scope.organization_id, scope.subject, scope.key_id, scope.caller, sorted(scope.scopes)
    )


def create(
    tx: Transaction, scope: Scope, agent_id: str, asked: ScheduleRequest
) -> ScheduledMessage:
    """Store a new schedule, with the job of its first time. Raises Invalid, Conflict, Forbidden, NotFound."""
    message, schedule = asked.sent()
    now = tx.clock.now()
    if schedule["type"] == "recurring":
        usual = _usual_zone(tx, scope, agent_id)
        read = cron.parse(schedule["cron_expression"], schedule["timezone"])
        has_own = schedule["timezone"] or read.timezone != "UTC"
        schedule = {**schedule, "timezone": read.timezone if has_own else usual}
    next_at = next_time(schedule, now)
    if next_at is None:
        is_recurring = schedule["type"] == "recurring"
        raise Invalid(
            cron.NEVER
            if is_recurring
            else "This time has passed already. Choose a time in the future."
        )
    agents.lock(tx, scope, agent_id)
    agents.require(tx, scope, agent_id)
    maker = maker_of(tx, scope, "schedule")
    if queries.count(tx, agent_id) >= MOST:
        raise Conflict(
            f"This agent has {MOST} schedules, and that is the most. Delete one that you no longer need."
        )
    row = ScheduledMessage(
        id=new_id("schedule"),
        organization_id=scope.organization_id,
        agent_id=agent_id,
        message=message,
        schedule=schedule,
        user_id=maker.user_id,
        created_by=scope.user_id,
        key_id=maker.key_id,
        caller=maker.caller,
        scopes=tuple(maker.scopes),
        created_at=now,
        next_at=next_at,
    )
    queries.insert_one(tx, row)
    jobs.add(tx, job_of(row, next_at, not_before=next_at))
    return row


def _usual_zone(tx: Transaction, scope: Scope, agent_id: str) -> str:
    """Return the time zone of the user whose schedule it is, by their property `timezone`; else the agent's."""
    user = users.find(tx, Scope(scope.organization_id), scope.subject) if scope.subject else None
    named = (
        [one.get("value") for one in user.properties if one.get("key") == "timezone"]
        if user
        else []
    )
    for name in named:
        with suppress(Invalid):
            zone(str(name))
            return str(name)
    return agents.timezone(tx, scope, agent_id)


def delete(tx: Transaction, scope: Scope, agent_id: str, id: str) -> None:
    """Delete the schedule; what waits to be sent is not sent. Raises NotFound, Forbidden."""
    agents.require(tx, scope, agent_id)
    row = queries.get(tx, scope, agent_id, id)
    scope.require_owns(row.user_id)
    queries.delete_one(tx, row.id)


def job_of(
    row: ScheduledMessage, due_at: int, *, not_before: int, more: Mapping[str, Any] | None = None
) -> Job:
    """Return the job of this due time; its id is made of what it does, so that it is added once."""
    payload = {"schedule_id": row.id, "due_at": due_at, **(more or {})}
    id = UUID(bytes=sha256(repr(sorted(payload.items())).encode()).digest()[:16], version=4)
    job = Job(
        SEND, row.organization_id, payload, row.id, most_attempts=_ATTEMPTS, not_before=not_before
    )
    return replace(job, id=f"job-{id}", user_id=row.user_id)


def begin(tx: Transaction, id: str, due_at: int) -> ScheduledMessage | None:
    """Take up this due time, and plan the next, once; None where the schedule is gone, or a later time has come meanwhile."""
    row = queries.lock(tx, id)
    if row and row.is_recurring and due_at > tx.clock.now() + DAY:
        if row.next_at == due_at:  # by a clock that had jumped ahead
            _plan(tx, replace(row, next_at=None))
        return None
    if row and row.next_at == due_at:
        row = _plan(tx, replace(row, due_at=due_at))
    return row if row and row.due_at == due_at else None


def finish(tx: Transaction, id: str, due_at: int, problem: str | None = None) -> None:
    """End this due time. A schedule of one time is deleted with it, unless it could not be sent: then it says why."""
    row = queries.lock(tx, id)
    if row is None or row.due_at != due_at:
        return
    if problem is None and not row.is_recurring:
        queries.delete_one(tx, id)
        return
    queries.save(tx, replace(row, due_at=None, problem=problem))


def take_up(tx: Transaction, silent_for: int = 3600 * SECOND) -> None:
    """Plan anew what lost its job, as when somebody deleted it: a time that was missed so is not made up for."""
    now = tx.clock.now()
    for row in queries.left_behind(tx, now - silent_for):
        _plan(tx, replace(row, problem="The job that was to send this was deleted or failed."))
    for row in queries.planned_after(tx, now + DAY):
        if row.is_recurring and _comes_sooner(row, now + DAY):
            _plan(tx, replace(row, next_at=None))  # by a clock that had jumped ahead


def _comes_sooner(row: ScheduledMessage, after: int) -> bool:
    """Return whether a time of the schedule after this one is left out."""
    with suppress(Invalid):
        next_at = next_time(row.schedule, after)
        return next_at is not None and next_at < (row.next_at or 0)
    return False


def _plan(tx: Transaction, row: ScheduledMessage) -> ScheduledMessage:
    """Store when the message is due next, from now on: times that passed while no server ran are left out."""
    try:
        next_at = next_time(row.schedule, max(tx.clock.now(), row.next_at or 0))
        row = replace(row, next_at=next_at)
    except Invalid as error:  # such as a time zone that is no more
        row = replace(row, next_at=None, problem=str(error))
    queries.save(tx, row)
    if row.next_at:
        jobs.add(tx, job_of(row, row.next_at, not_before=row.next_at))
    return row


def scope_of(tx: Transaction, row: ScheduledMessage | Maker) -> Scope:
    """Return the scope that the message is sent in: of the key that made it, as that is now. Raises Forbidden."""
    everything = Scope(row.organization_id)
    scope = Scope(row.organization_id, user_name="administrator", scopes=OPERATOR_SCOPES)
    if row.key_id:
        try:
            known = keys.authenticate(tx, keys.get(tx, everything, row.key_id).hash)
        except NotFound:
            known = None
        if known is None:
            raise Forbidden(_NO_LONGER)
        scope = known[1]
    if row.user_id and scope.subject != row.user_id:
        user = users.find(tx, everything, row.user_id)
        if user is None or user.disabled_at is not None:
            raise Forbidden(_NO_LONGER)
        scope = scope.acting_for(user)
    if scope.subject != row.user_id:
        raise Forbidden(_NO_LONGER)
    return replace(scope, scopes=scope.scopes & frozenset(row.scopes), caller=row.caller or "")
