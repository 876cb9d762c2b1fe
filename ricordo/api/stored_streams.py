"""Streams that outlive their readers.

One reader of a turn stores the turn's stream, and all other readers read the stored stream. The
routes resume a run's stream, or find a conversation's. Only stored events are sent. So all readers
get the same bytes, in this process or another, now or later.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Body, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from ricordo.agents.conversations import DEFAULT, resolve_conversation
from ricordo.agents.run_end import heal
from ricordo.agents.turn import PastTurn
from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.base import MAX_COUNT, RequestPart
from ricordo.api.models.messages import MessageFormat
from ricordo.api.routing import Routes, needs
from ricordo.api.sse import DONE, STREAM, SseEncoder, encoded, is_progress, ping, sse_response
from ricordo.domain.clock import SECOND
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, Invalid, NotFound, Unavailable
from ricordo.runtime import Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.runs import RunEvent

log = logging.getLogger(__name__)
router = Routes(prefix="/v1", tags=["runs"], scope="messages")
# A process may store the end of a stream this long after its turn. After that it counts as dead.
GRACE = 1 * SECOND
_SHORTEST_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Resumption:
    """The part of a stream that a reader requests.

    It starts after the event with the number `after`. `poll` is the number of seconds between two
    reads of another process's stream. `batch` is the number of events in one read.
    """

    after: int = 0
    has_pings: bool = True
    poll: float = 0.1
    batch: int = 100


@dataclass(frozen=True, slots=True)
class _StoredPart:
    """One read of a stored stream: its further events, if there are any.

    Otherwise it has the run (None if deleted) and the last event of the stream.
    """

    events: list[RunEvent]
    run: Run | None = None
    last: RunEvent | None = None


def _chunks_of(part: _StoredPart, *, has_pings: bool) -> Iterator[bytes]:
    """Yield the part's events as they are sent; progress of tools only if pings are wanted."""
    for event in part.events:
        if has_pings or not is_progress(event.data):
            yield event.data.encode()


async def follow(runtime: Runtime, run: Run, resumption: Resumption) -> AsyncIterator[bytes]:
    """Yield the events of the run's stream as they are stored, to the stream's end.

    If the server shuts down, the events stop without an end. The reader continues at another
    server.

    Args:
        runtime: The server's parts.
        run: A run whose stream is stored, running or ended, in this process or another.
        resumption: The part of the stream to read, and the options of the reader.
    """
    position = resumption.after
    silent_since = time.monotonic()
    if resumption.has_pings:
        yield ping(run.id, position, runtime.store.clock)
    while True:
        recording = runtime.recordings.get(run.id)
        changed = recording.changed if recording else None
        part = await _read_part(runtime, run, position, resumption.batch)
        if part and part.events:
            for chunk in _chunks_of(part, has_pings=resumption.has_pings):
                yield chunk
                if chunk == DONE:
                    return
            position = part.events[-1].number
            silent_since = time.monotonic()
            continue
        if part and not changed and await _is_over(runtime, run, part, position):
            # A reader that asks for events after the end gets the end again, so that it does not
            # wait for ever.
            for chunk in _last_events(part):
                yield chunk
            return
        seconds_left = max(0.0, silent_since + runtime.settings.keepalive - time.monotonic())
        await _wait(changed, seconds_left, resumption.poll)
        if time.monotonic() >= silent_since + runtime.settings.keepalive:
            if resumption.has_pings:
                yield ping(run.id, position, runtime.store.clock)
            silent_since = time.monotonic()


async def _wait(changed: asyncio.Event | None, seconds: float, poll: float) -> None:
    """Wait for more of the stream, at most this long. The stream of another process is polled."""
    if changed is None:
        await asyncio.sleep(min(seconds, max(poll, _SHORTEST_POLL)))
        return
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), seconds)


async def _read_part(runtime: Runtime, run: Run, position: int, limit: int) -> _StoredPart | None:
    def read(tx: Transaction) -> _StoredPart:
        if events := runs.events_after(tx, run.id, position, limit):
            return _StoredPart(events)
        try:
            return _StoredPart(
                [], runs.get(tx, Scope(run.organization_id), run.id), runs.last_event(tx, run.id)
            )
        except NotFound:
            return _StoredPart([])

    try:
        return await runtime.store.read(read)
    except Unavailable:
        return None  # the database may be available again while the reader waits


async def _is_over(runtime: Runtime, run: Run, part: _StoredPart, position: int) -> bool:
    """Return whether no more events will come.

    If no process will store the stream's end, it is stored here.
    """
    now = runtime.store.clock.now()
    if part.run is None:
        return True
    if part.last and part.last.data.encode() == DONE:
        return position >= part.last.number
    if part.run.ended_at is None:
        is_ours = run.id in runtime.live
        if not is_ours and part.run.lease_expires_at <= now:
            await runtime.store.write(lambda tx: heal(tx, run))
        return runtime.is_stopping and not is_ours
    if now >= part.run.ended_at + GRACE and run.id not in runtime.recordings:
        await complete(runtime, part.run)
    return False


def _last_events(part: _StoredPart) -> list[bytes]:
    if part.run is None:
        return [encoded({"message_type": "stop_reason", "stop_reason": "error"}), DONE]
    # A server that shuts down sends no end. The reader continues at another server, or here later.
    if part.run.ended_at is not None:
        return [DONE]
    return []


async def complete(runtime: Runtime, run: Run) -> None:
    """Store the missing end of an ended run's stream.

    The recording stopped too early, so some saved messages and the end are missing.
    """
    stored = await runtime.store.read(lambda tx: runs.events_after(tx, run.id))
    first = stored[-1].number + 1 if stored else 1
    if stored and stored[-1].data.encode() == DONE:
        return
    encoder = SseEncoder(
        MessageFormat.from_json(run.request_config),
        runtime.store.clock,
        has_tokens=False,
        first=first,
    )
    encoder.resume(event.data.encode() for event in stored)
    missing: list[str] = []
    async for event in PastTurn(runtime, Scope(run.organization_id), run.id).events():
        missing += [chunk.decode() for chunk in encoder.encode(event)]
    # If another reader or the recording stored the end first, its events are used.
    with suppress(Collision):
        await runtime.store.write(lambda tx: runs.append_events(tx, run.id, first, missing))


class ResumeRequest(RequestPart):
    """The start of a resumed stream and its options."""

    starting_after: int = Field(
        0, ge=0, le=MAX_COUNT, description="The seq_id of the last event that you read."
    )
    include_pings: bool | None = True
    poll_interval: float | None = Field(
        0.1, ge=0, le=60, description="Seconds between two reads of another process's run."
    )
    batch_size: int | None = Field(100, ge=1, le=1000)
    run_id: str | None = Field(None, description="The run; by default the conversation's newest.")
    otid: str | None = Field(None, description="The otid of a message that started the run.")
    agent_id: str | None = Field(None, description="The agent of the conversation `default`.")

    def resumption(self) -> Resumption:
        """Return the part of the stream that the request asks for."""
        return Resumption(
            self.starting_after,
            self.include_pings is not False,
            0.1 if self.poll_interval is None else self.poll_interval,
            self.batch_size or 100,
        )


Resume = Annotated[ResumeRequest | None, Body()]


@router.post("/runs/{run_id}/stream", response_class=StreamingResponse, responses=STREAM)
@needs("messages:read")
async def resume(context: RequestContext, run_id: str, body: Resume = None) -> Response:
    """Read the stream of a run with `background`, from any event.

    Every server sends the same bytes.
    """
    run = await context.store.read(lambda tx: runs.get(tx, context.scope, run_id))
    return stream_of(context, run, (body or ResumeRequest()).resumption())


@router.post(
    "/conversations/{conversation_id}/stream", response_class=StreamingResponse, responses=STREAM
)
@needs("messages:read")
async def resume_conversation(
    context: RequestContext, conversation_id: str, body: Resume = None
) -> Response:
    """Read the stream of the conversation's newest run with `background`, or of the named run."""
    request = body or ResumeRequest()
    run = await context.store.read(lambda tx: _run_of(tx, context, conversation_id, request))
    return stream_of(context, run, request.resumption())


def stream_of(context: RequestContext, run: Run, resumption: Resumption) -> Response:
    """Return the response that reads this run's stored stream.

    The response is a refusal (410) if the stream has expired.

    Args:
        context: The caller's context.
        run: The run.
        resumption: The part of the stream to read, and the options of the reader.

    Raises:
        Invalid: The run's stream was not stored.
    """
    if not run.background:
        raise Invalid(
            f"{run.id} was started without background=true, so its stream was not stored. Read its "
            f"messages instead: GET /v1/runs/{run.id}/messages."
        )
    hours = context.runtime.settings.stream_hours
    oldest = context.store.clock.now() - round(hours * 3600 * SECOND)
    if run.ended_at is not None and run.ended_at < oldest:
        sentence = (
            f"The stream of {run.id} is kept for {hours:g} hours after its end, and has expired."
        )
        return answer(
            {"detail": f"{sentence} Read its messages instead: GET /v1/runs/{run.id}/messages."},
            410,
        )
    return sse_response(follow(context.runtime, run, resumption))


def _run_of(
    tx: Transaction, context: RequestContext, conversation_id: str, request: ResumeRequest
) -> Run:
    if conversation_id == DEFAULT:
        agent_id = request.agent_id
    else:
        agent_id = None
    conversation = resolve_conversation(tx, context.scope, conversation_id, agent_id).id
    if request.run_id:
        run = runs.get(tx, context.scope, request.run_id)
        if run.conversation_id != conversation:
            raise NotFound(f"Run with ID {request.run_id} not found in this conversation")
        return run
    if request.otid:
        matches = [
            message
            for message in messages.by_otids(tx, conversation, [request.otid])
            if message.run_id
        ]
        if not matches:
            raise NotFound(f"No message of this conversation has the otid {request.otid}")
        return runs.get(tx, context.scope, str(matches[0].run_id))
    newest = runs.page(
        tx, context.scope, Page(limit=1), conversation_id=conversation, background=True
    )
    if not newest:
        # wire fact: this sentence comes from the retired Letta V1 server
        raise Invalid(
            "No active runs found for this conversation. Only runs that were started with "
            "background=true have a stream."
        )
    return newest[0]
