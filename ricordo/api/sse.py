"""Send a turn to one reader as server-sent events; the last event is `[DONE]`."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse

from ricordo.api.models.messages import MessageFormat
from ricordo.api.turn_encoder import TurnEncoder, ping_json
from ricordo.domain.clock import Clock
from ricordo.domain.event import Event, Failed, RunEnded, RunStarted, ToolProgress
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED
from ricordo.domain.text import Json
from ricordo.errors import DatabaseFailed

log = logging.getLogger(__name__)
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which readers of other protocols ignore."""
_PREFIX = b"data: "
_PING = 'data: {"message_type":"ping"'
_PROGRESS = '"progress":'
"""The name of a field. Within texts, its quotes are escaped."""


class SseEncoder:
    """Encodes one turn for one reader as server-sent events.

    The arguments are those of `TurnEncoder`. The end of the turn is followed by `[DONE]`.
    """

    def __init__(
        self, view: MessageFormat, clock: Clock, *, has_tokens: bool, first: int | None = None
    ) -> None:
        self._turn = TurnEncoder(view, clock, has_tokens=has_tokens, first=first)

    def encode(self, event: Event) -> list[bytes]:
        """Return the stream's events for an event of the turn; often there are none."""
        chunks = [_named(wire) for wire in self._turn.encode(event)]
        if isinstance(event, RunEnded | Failed):
            chunks.append(DONE)
        return chunks

    def resume(self, chunks: Iterable[bytes]) -> None:
        """Note the events that the reader already has, so that their text is not sent again."""
        for chunk in chunks:
            if chunk.startswith(_PREFIX) and chunk != DONE:
                self._turn.note(orjson.loads(chunk.removeprefix(_PREFIX)))


def sse_response(chunks: AsyncIterator[bytes], cut_off: Sequence[bytes] | None = None) -> Response:
    """Return a stream of these chunks.

    Args:
        chunks: Encoded server-sent events.
        cut_off: The chunks that end the stream if the database fails; None for the form of Letta's
            clients.
    """
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    chunks = _to_their_end(chunks, _CUT_OFF if cut_off is None else cut_off)
    return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)


async def _to_their_end(
    chunks: AsyncIterator[bytes], cut_off: Sequence[bytes]
) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield chunk
    except DatabaseFailed as error:
        log.warning("a stream was cut off", extra={"error": error})
        for chunk in cut_off:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


async def sse_stream(
    events: AsyncGenerator[Event],
    view: MessageFormat,
    clock: Clock,
    *,
    has_tokens: bool,
    has_pings: bool,
    keepalive: float,
) -> AsyncIterator[bytes]:
    """Yield one turn as server-sent events while it runs.

    Args:
        events: The events of the turn, which are closed at the end.
        view: The format of the messages.
        clock: Gives the dates of deltas and pings.
        has_tokens: Send deltas as they come. False: send only whole messages.
        has_pings: Send a ping at the start, after every silence, and with a tool's progress. A ping
            that names a failed member of a group is always sent.
        keepalive: The seconds of silence before a ping.
    """
    encoder = SseEncoder(view, clock, has_tokens=has_tokens)
    run_id = ""
    async with aclosing(with_pauses(events, keepalive)) as events_and_pauses:
        async for event in events_and_pauses:
            if isinstance(event, RunStarted):
                run_id = event.run.id
            if has_pings and (event is None or isinstance(event, RunStarted)):
                yield ping(run_id, None, clock)
            if event is None or (isinstance(event, ToolProgress) and not has_pings):
                continue
            for chunk in encoder.encode(event):
                yield chunk


async def with_pauses(events: AsyncGenerator[Event], pause: float) -> AsyncGenerator[Event | None]:
    """Yield a turn's events to its end, and None after every silence of `pause` seconds.

    Args:
        events: The events of the turn. They are closed at the end, also when the reader leaves
            before.
        pause: Seconds.
    """
    upcoming: asyncio.Future[Event] | None = None
    event: Event | None = None
    try:
        while not isinstance(event, RunEnded | Failed):
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            finished, _ = await asyncio.wait({upcoming}, timeout=pause)
            event = None
            if finished:
                event = upcoming.result()
                upcoming = None
            yield event
    finally:
        if upcoming:
            upcoming.cancel()
            await asyncio.wait({upcoming})  # a generator that is being read cannot be closed
        await events.aclose()


class ReadableTurn(Protocol):
    """A turn whose events can be read, and which can be stopped."""

    def events(self) -> AsyncGenerator[Event]:
        """Return all events from the start."""

    async def cancel(self) -> None:
        """Stop the turn."""


async def events_for_client(
    turn: ReadableTurn, keepalive: float, may_stop: Callable[[], bool]
) -> AsyncGenerator[Event | None]:
    """Yield a turn's events to its end, and None after every silence of `keepalive` seconds.

    Args:
        turn: The turn.
        keepalive: Seconds.
        may_stop: Asked if the client leaves before the end. If it returns True, the turn is
            cancelled.
    """
    events = with_pauses(turn.events(), keepalive)
    has_ended = False
    try:
        async for event in events:
            has_ended = isinstance(event, RunEnded | Failed)
            yield event
    finally:
        await events.aclose()
        if not has_ended and may_stop():
            # The turn keeps a reference to the task, so it is not collected.
            asyncio.ensure_future(turn.cancel())  # noqa: RUF006


def ping(run_id: str, number: int | None, clock: Clock) -> bytes:
    """Return a ping as a server-sent event.

    Args:
        run_id: The run; "" if it is not known yet.
        number: In a numbered stream, the number of the last event, which the ping repeats; None in
            other streams.
        clock: Gives the date.
    """
    return encoded(ping_json(run_id, number, clock))


def is_progress(chunk: str) -> bool:
    """Return whether the chunk is a ping with a tool's progress.

    The other pings that are stored name a failed member of a group.
    """
    return chunk.startswith(_PING) and _PROGRESS in chunk


def encoded(wire: Json) -> bytes:
    return _PREFIX + orjson.dumps(wire) + b"\n\n"


def _named(wire: Json) -> bytes:
    """Return the event for an object of a turn. Errors have a name, which clients listen for."""
    name = b"event: error\n" if wire["message_type"] == "error_message" else b""
    return name + encoded(wire)


_CUT_OFF = (
    _named(
        {
            "message_type": "error_message",
            "run_id": None,
            "error_type": INTERRUPTED,
            "message": DATABASE_FAILED,
            "detail": None,
            "seq_id": None,
        }
    ),
    DONE,
)
