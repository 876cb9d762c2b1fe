"""One-way messages between agents, as jobs.

The step that sends a message adds its job, and the job starts the turn. The message has the same
otid each time the job runs, so no kill delivers it twice. A job waits a short time for the end of
its turn. If the turn takes longer, another job later checks whether a kill interrupted the turn,
and starts it again if so.
"""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.agents.turn_start import STILL_WAITING
from ricordo.domain.clock import SECOND
from ricordo.domain.event import Event, RunStarted
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import TextPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, Invalid, NotFound, Unavailable
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import jobs, keys, runs, users
from ricordo.storage.engine.store import Transaction

KIND = "groups.message"
PURPOSE = "message"  # of the run, as expenses record it
# The last attempts are at least ten minutes apart, so all of them take more than 25 hours. They do
# not count while the conversation waits for an approval.
_ATTEMPTS = 160
_PATIENCE = 20.0  # seconds that a job waits for its turn
_LOOK_AGAIN = 30 * SECOND
_MOST_PAUSES = 20  # `_LOOK_AGAIN` times this number is the longest time between two checks
_NO_LONGER = (
    "The sender of this message may no longer send it: the key was revoked or has expired, or the "
    "user is disabled or deleted."
)
_SCOPE = ("user_id", "subject_id", "user_name", "role", "caller", "key_id", "identifier")


def delivery_of(request: TurnRequest) -> Job:
    """Return the job that starts the turn.

    Its id is derived from the message's otid.
    """
    scope = request.scope
    (message,) = request.messages
    (part,) = message.parts
    assert isinstance(part, TextPart)  # noqa: S101 - for the type checker
    payload = {
        "agent_id": request.agent_id,
        "conversation_id": request.conversation_id,
        "text": part.text,
        "otid": message.otid,
        "name": message.name,
        "sender_id": message.sender_id,
        "is_untrusted": message.is_untrusted,
        "egress": message.egress,
        "callers": list(request.delivery.callers),
        "scope": {name: getattr(scope, name) for name in _SCOPE} | {"scopes": sorted(scope.scopes)},
    }
    key = f"{KIND}:{request.conversation_id}"
    job = Job(
        KIND, scope.organization_id, payload, key, most_attempts=_ATTEMPTS, user_id=scope.subject
    )
    return replace(job, id=f"job-{message.otid}")


async def deliver(runtime: Runtime, job: Job, _report: Report) -> None:
    """Start the turn, or check its outcome.

    If the turn takes longer than `_PATIENCE`, another job is added that checks it later. If the
    conversation waits for an approval, another job is added that tries again later.

    Args:
        runtime: The running server.
        job: A job of `delivery_of`, or one that checks a run (`run_id` in its payload).

    Raises:
        Busy: while the conversation is busy, so that the job soon runs again.
        Unavailable: if the server was stopped, or its database failed, during the turn.
        Invalid: if the sender may no longer send the message.
    """
    store = runtime.store
    run_id = job.payload.get("run_id")
    run: Run | None = None
    if run_id is not None:
        try:
            run = await store.read(lambda tx: runs.get(tx, Scope(job.organization_id), run_id))
        except NotFound:
            return  # deleted with its conversation
    if run is None or was_cut_off(run):
        try:
            run = await _start(runtime, job)
        except Conflict as conflict:
            if str(conflict) != STILL_WAITING:
                raise
            run = None
    if run and was_cut_off(run):
        raise Unavailable(
            "The server was stopped, or its database failed, in the middle of this turn. "
            "It continues later."
        )
    if run is None or run.ended_at is None:
        check = _later_check(job, run, store.clock.now())
        await store.write(lambda tx: jobs.add(tx, check))


def _later_check(job: Job, run: Run | None, now: int) -> Job:
    """Return the job that checks this run later, or starts the turn if there is no run."""
    number = job.payload.get("look", 0) + 1
    payload = job.payload | {"run_id": run.id if run else None, "look": number}
    check = Job(
        KIND, job.organization_id, payload, job.key, most_attempts=_ATTEMPTS, user_id=job.user_id
    )
    id = uuid5(NAMESPACE_URL, f"{payload['otid']}/{number}")
    return replace(check, id=f"job-{id}", not_before=now + _LOOK_AGAIN * min(number, _MOST_PAUSES))


async def _start(runtime: Runtime, job: Job) -> Run:
    """Start the turn, wait a short time for its end, and return its run.

    Raises RicordoError.
    """
    request = await runtime.store.read(lambda tx: _request_of(tx, job))
    turn = await _free_turn(runtime, request)
    started: list[Run] = []

    def hear(event: Event) -> None:
        if isinstance(event, RunStarted):
            started.append(event.run)

    try:
        async with asyncio.timeout(_PATIENCE):
            return (await collect(turn, hear)).run
    except TimeoutError:
        return started[-1]


async def _free_turn(runtime: Runtime, request: TurnRequest) -> LiveTurn:
    """Start the turn; wait a short time if the conversation is busy.

    Raises Busy.
    """
    try:
        return await run_turn(runtime, request)
    except Busy as busy:
        if not (live := runtime.live.get(busy.run_id or "")):
            raise
        ending = asyncio.ensure_future(live.wait())
        try:
            await asyncio.wait([ending], timeout=_PATIENCE)
        finally:
            ending.cancel()
    return await run_turn(runtime, request)


def _request_of(tx: Transaction, job: Job) -> TurnRequest:
    """Return the turn of this job, if its sender may still ask for it.

    Raises Invalid.
    """
    payload: dict[str, Any] = job.payload
    message = NewMessage(
        "system",
        (TextPart(payload["text"]),),
        otid=payload["otid"],
        name=payload["name"],
        sender_id=payload["sender_id"],
        is_untrusted=payload["is_untrusted"],
        egress=payload.get("egress"),
    )
    return TurnRequest(
        _scope_of(tx, job),
        payload["agent_id"],
        messages=(message,),
        conversation_id=payload["conversation_id"],
        delivery=TurnDelivery(callers=tuple(payload["callers"]), purpose=PURPOSE),
    )


def _scope_of(tx: Transaction, job: Job) -> Scope:
    """Return the sender's scope.

    Raises Invalid if the key, or the key that created the token, was revoked or has expired. It is
    also raised if the user was disabled or deleted, even one who sees all data.
    """
    fields = job.payload["scope"]
    organization = Scope(job.organization_id)
    scope = Scope(job.organization_id, **fields | {"scopes": frozenset(fields["scopes"])})
    user_id = scope.subject
    if scope.key_id and scope.user_id.startswith("user-"):
        user_id = scope.user_id  # a service without a user has its key's id instead
    if user_id:
        user = users.find(tx, organization, user_id)
        if user is None or user.disabled_at is not None:
            raise Invalid(_NO_LONGER)
    if scope.key_id and keys.is_withdrawn(tx, organization, scope.key_id):
        raise Invalid(_NO_LONGER)
    return scope


HANDLERS = (JobHandler(KIND, deliver),)
