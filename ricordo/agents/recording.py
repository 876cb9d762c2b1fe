"""Recordings: streams of background turns are stored, so that they outlive their readers.

One extra reader of each turn stores its stream, in the format of the API. Readers get the stored
events (`api/stored_streams.py`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.agents.turn import PastTurn, run_turn
from ricordo.domain.event import Event, RunStarted
from ricordo.domain.run import Run
from ricordo.errors import Collision, Unavailable
from ricordo.runtime import LiveTurn, Runtime, StreamEncoder
from ricordo.storage import runs

log = logging.getLogger(__name__)
BATCH_SECONDS = 0.05
# The most chunks that may wait in this queue. Beyond them the turn merges events, as for any slow
# reader.
_MOST_WAITING = 250
_RETRIES = (0.05, 0.2, 0.5, 1, 2, 4, 8, 8, 8)
_FINISH_LIMIT = 10.0

# A function that begins the work of a request, such as `run_turn` or a talk with a group.
Begin = Callable[[Runtime, TurnRequest], Awaitable[LiveTurn]]


async def begin_recorded(runtime: Runtime, request: TurnRequest, begin: Begin = run_turn) -> Run:
    """Begin the turn and the storage of its stream, and return its run.

    The stream is stored only for a background run that no recording of this process stores yet.
    Once the run exists, the caller may leave.

    Args:
        runtime: The server's parts.
        request: The request for the turn.
        begin: The function that begins the work; a talk with a group has another one.

    Raises:
        RicordoError: The turn cannot begin (see `start_turn`).
    """
    # Once the run exists, its stream must be stored, even if the caller leaves now.
    return await asyncio.shield(asyncio.ensure_future(_begin_recorded(runtime, request, begin)))


async def _begin_recorded(runtime: Runtime, request: TurnRequest, begin: Begin) -> Run:
    turn = await begin(runtime, request)
    events = turn.events()
    started = await anext(events)
    assert isinstance(started, RunStarted)  # noqa: S101 - every turn's events begin with it
    run = started.run
    if run.background and run.id not in runtime.recordings and not isinstance(turn, PastTurn):
        encoder = runtime.wire.stream_encoder(
            request.delivery.request_config,
            runtime.store.clock,
            has_tokens=request.overrides.streams_tokens,
        )
        runtime.recordings[run.id] = Recording(runtime, run.id, encoder, events)
    else:
        await events.aclose()
    return run


class Recording:
    """Stores the stream of one turn of this process, in batches.

    It exists until the turn ends, even if all readers leave.
    """

    def __init__(
        self, runtime: Runtime, run_id: str, encoder: StreamEncoder, events: AsyncGenerator[Event]
    ) -> None:
        self._runtime = runtime
        self._run_id = run_id
        self._encoder = encoder
        self._events = events
        self._waiting: list[str] = []
        self._has_more = asyncio.Event()
        self.changed = asyncio.Event()
        self._task = asyncio.create_task(self._record(), name=f"recording {run_id}")

    async def finish(self) -> None:
        """Wait until the ended turn's stream is stored.

        After a time limit, the next reader has to store the rest.
        """
        await asyncio.wait([self._task], timeout=_FINISH_LIMIT)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _record(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            await self._store_all(listening)
        except Exception:
            log.exception("the rest of a stream is not stored", extra={"run": self._run_id})
        finally:
            self._runtime.recordings.pop(self._run_id, None)
            self.changed.set()
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._waiting += [chunk.decode() for chunk in self._encoder.encode(event)]
                    if self._waiting:
                        self._has_more.set()
                    while len(self._waiting) >= _MOST_WAITING:
                        await self.changed.wait()
        finally:
            self._has_more.set()

    async def _store_all(self, listening: asyncio.Task[None]) -> None:
        number = 1
        while True:
            await self._has_more.wait()
            batch = self._waiting
            self._waiting = []
            if not listening.done():
                self._has_more.clear()
            elif not batch:
                return
            if not await self._store(number, batch):
                return
            number += len(batch)
            changed = self.changed
            self.changed = asyncio.Event()
            changed.set()
            # Each batch is a transaction, so events within this time share one transaction.
            await asyncio.wait([listening], timeout=BATCH_SECONDS)

    async def _store(self, first: int, batch: Sequence[str]) -> bool:
        """Store the batch.

        Return False if another process ended the stream, or the run is deleted.
        """
        store = self._runtime.store
        run_id = self._run_id
        for delay in (*_RETRIES, None):
            try:
                await store.write(lambda tx: runs.append_events(tx, run_id, first, batch))
            except Collision:
                # Either our commit succeeded, and only its acknowledgement was lost. Or another
                # process assumed that this one was dead, and stored its own events.
                stored = await store.read(
                    lambda tx: runs.events_after(tx, run_id, first - 1, len(batch))
                )
                return [event.data for event in stored] == list(batch)
            except Unavailable:
                if delay is None:
                    raise
                await asyncio.sleep(delay)
            else:
                return True
        return False
