"""Reading a stored stream from any number on, while it is made or later, in whichever process."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from ricordo.agents.run_end import heal
from ricordo.agents.turn import PastTurn
from ricordo.api.wire.messages import MessageView
from ricordo.api.wire.sse import DONE, SseEncoder, encoded
from ricordo.api.wire.stream import ping
from ricordo.domain.clock import SECOND
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, NotFound, Unavailable
from ricordo.runtime import Runtime
from ricordo.storage import run_events, runs
from ricordo.storage.run_events import RunEvent
from ricordo.storage.store import Transaction

# A process that ended its turn may still have to store the end of its stream; after this it counts as gone.
GRACE = 1 * SECOND
_LEAST_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Wanted:
    """From which event on, whether with pings, and how a stream of another process is looked at: every so many seconds."""

    after: int = 0
    has_pings: bool = True
    poll: float = 0.1
    batch: int = 100


@dataclass(frozen=True, slots=True)
class _Look:
    """What there is: further events; where there are none, the run (None: it is gone) and the last event of all."""

    events: list[RunEvent]
    run: Run | None = None
    last: RunEvent | None = None


async def follow(runtime: Runtime, run: Run, wanted: Wanted) -> AsyncIterator[bytes]:
    """The events of the run's stream behind `wanted.after`, each once it is stored, to the end."""
    position, told_at = wanted.after, time.monotonic()
    if wanted.has_pings:
        yield ping(run.id, position, runtime.store.clock)
    while True:
        recording = runtime.recordings.get(run.id)
        changed = recording.changed if recording else None
        look = await _look(runtime, run, position, wanted.batch)
        for event in look.events if look else ():
            yield event.data.encode()
            position, told_at = event.number, time.monotonic()
            if event.data.encode() == DONE:
                return
        if look and look.events:
            continue
        if look and not changed and await _is_over(runtime, run, look, position):
            # Behind the end there is the end, so that no reader waits for ever.
            for chunk in _farewell(look):
                yield chunk
            return
        left = max(0.0, told_at + runtime.settings.keepalive - time.monotonic())
        await _wait(changed, left, max(wanted.poll, _LEAST_POLL))
        if wanted.has_pings and time.monotonic() >= told_at + runtime.settings.keepalive:
            yield ping(run.id, position, runtime.store.clock)
            told_at = time.monotonic()


async def _look(runtime: Runtime, run: Run, position: int, most: int) -> _Look | None:
    def read(tx: Transaction) -> _Look:
        if events := run_events.after(tx, run.id, position, most):
            return _Look(events)
        try:
            return _Look([], runs.get(tx, Scope(run.organization_id), run.id), run_events.last(tx, run.id))
        except NotFound:
            return _Look([])

    try:
        return await runtime.store.read(read)
    except Unavailable:
        return None  # it may come back, and the reader is still there


async def _is_over(runtime: Runtime, run: Run, look: _Look, position: int) -> bool:
    """Whether nothing more will come; sees to it that something does where nobody else will."""
    now = runtime.store.clock.now()
    if look.run is None:
        return True
    if look.last and look.last.data.encode() == DONE:
        return position >= look.last.number
    if look.run.ended_at is None:
        is_ours = run.id in runtime.live
        if not is_ours and look.run.lease_expires_at <= now:
            await runtime.store.write(lambda tx: heal(tx, run))
        return runtime.is_stopping and not is_ours
    if now >= look.run.ended_at + GRACE and run.id not in runtime.recordings:
        await complete(runtime, look.run)
    return False


def _farewell(look: _Look) -> list[bytes]:
    if look.run is None:
        return [encoded({"message_type": "stop_reason", "stop_reason": "error"}), DONE]
    # A server that shuts down says nothing: the reader goes on at another, or here when it is back.
    return [DONE] if look.run.ended_at is not None else []


async def _wait(changed: asyncio.Event | None, left: float, poll: float) -> None:
    if changed is None:
        await asyncio.sleep(min(left, poll))
        return
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), left)


async def complete(runtime: Runtime, run: Run) -> None:
    """Store what is missing of an ended run's stream whose recording stopped short: saved messages nobody told, and the end."""
    stored = await runtime.store.read(lambda tx: run_events.of_run(tx, run.id))
    first = stored[-1].number + 1 if stored else 1
    if stored and stored[-1].data.encode() == DONE:
        return
    telling = SseEncoder(view_of(run), runtime.store.clock, has_tokens=False, first=first)
    telling.recall(event.data.encode() for event in stored)
    missing: list[str] = []
    async for event in PastTurn(runtime, Scope(run.organization_id), run.id).events():
        missing += [chunk.decode() for chunk in telling.tell(event)]
    # Another reader, or the recording after all, may have been faster: its events count then.
    with suppress(Collision):
        await runtime.store.write(lambda tx: run_events.append(tx, run.id, first, missing))


def view_of(run: Run) -> MessageView:
    """The view in which the run was asked for."""
    asked, usual = run.request_config, MessageView()
    types = asked.get("include_return_message_types")
    return MessageView(
        asked.get("use_assistant_message", usual.speaks_by_tool),
        asked.get("assistant_message_tool_name", usual.tool_name),
        asked.get("assistant_message_tool_kwarg", usual.tool_argument),
        frozenset(types) if types is not None else None,
        shows_summaries=asked.get("include_compaction_messages", usual.shows_summaries),
        shows_events=False,
    )
