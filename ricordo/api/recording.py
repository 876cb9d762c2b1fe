"""Streams that outlive their readers: one more reader of a turn stores what it is told, and everybody else reads what is stored.

Nothing is sent that is not stored, so that whoever reads, in this process or in another, now or later, gets the same bytes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from ricordo.agents.request import TurnRequest
from ricordo.agents.turn import PastTurn, run_turn
from ricordo.api.wire.messages import MessageView
from ricordo.api.wire.sse import SseEncoder
from ricordo.domain.event import Event, RunStarted
from ricordo.domain.run import Run
from ricordo.errors import Collision, Unavailable
from ricordo.runtime import Runtime
from ricordo.storage import run_events

log = logging.getLogger(__name__)
BATCH_SECONDS = 0.05
# More than this is not kept waiting here: the turn's own queue merges what one reader is slow to take.
_MOST_WAITING = 250
_RETRIES = (0.05, 0.2, 0.5, 1, 2, 4, 8, 8, 8)
_FINISH_LIMIT = 10.0


async def begin_recorded(runtime: Runtime, request: TurnRequest, view: MessageView) -> Run:
    """Begin a turn whose stream is stored, and return its run; for a repeat, the run that took the messages before."""
    # Once the run is there its stream has to be stored, also when the caller leaves at this very moment.
    return await asyncio.shield(asyncio.ensure_future(_begin(runtime, request, view)))


async def _begin(runtime: Runtime, request: TurnRequest, view: MessageView) -> Run:
    turn = await run_turn(runtime, request)
    events = turn.events()
    started = await anext(events)
    assert isinstance(started, RunStarted)  # noqa: S101 - every turn's events begin with it
    run = started.run
    if run.background and run.id not in runtime.recordings and not isinstance(turn, PastTurn):
        telling = SseEncoder(view, runtime.store.clock, has_tokens=request.streams_tokens, first=1)
        runtime.recordings[run.id] = Recording(runtime, run.id, telling, events)
    else:
        await events.aclose()
    return run


class Recording:
    """Stores the stream of one turn of this process, in batches. It lives as long as the turn, whoever reads or leaves."""

    def __init__(self, runtime: Runtime, run_id: str, telling: SseEncoder, events: AsyncGenerator[Event]) -> None:
        self._runtime = runtime
        self._run_id = run_id
        self._telling = telling
        self._events = events
        self._waiting: list[str] = []
        self._has_more = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_whole = asyncio.Event()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._record(), name=f"recording {run_id}")

    @property
    def changed(self) -> asyncio.Event:
        """Set once more of it is stored than was when this was asked for, or nothing more will be."""
        return self._changed

    async def finish(self) -> None:
        """Return when all of it is stored; its turn has ended. What cannot be stored in time is left to whoever reads it."""
        await asyncio.wait([self._task], timeout=_FINISH_LIMIT)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _record(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            await self._store_all()
        except Exception:
            log.exception("a stream is stored no further", extra={"run": self._run_id})
        finally:
            self._runtime.recordings.pop(self._run_id, None)
            self._changed.set()
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._waiting += [chunk.decode() for chunk in self._telling.tell(event)]
                    if self._waiting:
                        self._has_more.set()
                    while len(self._waiting) >= _MOST_WAITING:
                        self._has_room.clear()
                        await self._has_room.wait()
        finally:
            self._is_whole.set()
            self._has_more.set()

    async def _store_all(self) -> None:
        number = 1
        while True:
            await self._has_more.wait()
            batch, self._waiting = self._waiting, []
            if not batch and self._is_whole.is_set():
                return
            if not self._is_whole.is_set():
                self._has_more.clear()
            self._has_room.set()
            if not await self._store(number, batch):
                return
            number += len(batch)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            # Each batch is a transaction: what is told within this time goes into one.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_whole.wait(), BATCH_SECONDS)

    async def _store(self, first: int, batch: Sequence[str]) -> bool:
        """Store the batch; False where somebody else has ended this stream, or the run is gone."""
        store, run_id = self._runtime.store, self._run_id
        for delay in (*_RETRIES, None):
            try:
                await store.write(lambda tx: run_events.append(tx, run_id, first, batch))
            except Collision:
                # A commit whose answer was lost has stored it; another's events mean that we were thought dead.
                stored = await store.read(lambda tx: run_events.after(tx, run_id, first - 1, len(batch)))
                return [event.data for event in stored] == list(batch)
            except Unavailable:
                if delay is None:
                    raise
                await asyncio.sleep(delay)
            else:
                return True
        return False
