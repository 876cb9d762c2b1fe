"""A turn's events as a stream of server-sent events for one reader, with pings while nothing happens."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator

from ricordo.api.models.base import date
from ricordo.api.wire.messages import MessageView
from ricordo.api.wire.sse import SseEncoder, encoded
from ricordo.domain.clock import Clock
from ricordo.domain.event import Event, Failed, RunEnded, RunStarted


class EventStream:
    """One turn for one reader, as it is made."""

    def __init__(self, view: MessageView, clock: Clock, *, has_tokens: bool, has_pings: bool, keepalive: float) -> None:
        self._telling = SseEncoder(view, clock, has_tokens=has_tokens)
        self._clock = clock
        self._has_pings = has_pings
        self._keepalive = keepalive
        self._run_id = ""

    async def read(self, events: AsyncGenerator[Event]) -> AsyncIterator[bytes]:
        """The stream; a ping at its start, and whenever nothing happened for a while."""
        upcoming: asyncio.Task[Event] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait({upcoming}, timeout=self._keepalive)
                if not done:
                    if self._has_pings:
                        yield ping(self._run_id, None, self._clock)
                    continue
                event, upcoming = upcoming.result(), None
                if isinstance(event, RunStarted):
                    self._run_id = event.run.id
                    if self._has_pings:
                        yield ping(self._run_id, None, self._clock)
                for chunk in self._telling.tell(event):
                    yield chunk
                if isinstance(event, RunEnded | Failed):
                    return
        finally:
            if upcoming:
                upcoming.cancel()
                await asyncio.wait({upcoming})  # a generator that is being read cannot be closed
            await events.aclose()


def ping(run_id: str, number: int | None, clock: Clock) -> bytes:
    """A sign of life; it has no number of its own, and says which event of a numbered stream was the last before it."""
    return encoded(
        {
            "message_type": "ping",
            "id": f"ping-{uuid.uuid4()}",
            "date": date(clock.now()),
            "run_id": run_id,
            "seq_id": number,
        }
    )


async def _next(events: AsyncGenerator[Event]) -> Event:
    return await anext(events)
