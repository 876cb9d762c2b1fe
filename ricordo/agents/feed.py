"""From one turn to its readers. The turn never waits for a reader: each has a bounded queue of its own.

When a queue is full, adjacent deltas are merged, then dropped; whole messages never are: a reader that fell behind reads the
saved messages again and then goes on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Delta,
    Event,
    Failed,
    ReasoningDelta,
    RunEnded,
    StepSaved,
    TextDelta,
    ToolCallDelta,
)
from ricordo.domain.message import Message

CAPACITY = 256
Reread = Callable[[], Awaitable[list[Message]]]


class Reader:
    """One reader's queue. Iterate over it; it ends after RunEnded or Failed."""

    def __init__(
        self,
        run_id: str,
        reread: Reread,
        *,
        capacity: int = CAPACITY,
        is_behind: bool = False,
        missed: Iterable[str] = (),
    ) -> None:
        self._run_id = run_id
        self._reread = reread
        self._capacity = capacity
        self._is_behind = is_behind
        self._queue: deque[Event] = deque()
        self._end: RunEnded | Failed | None = None
        self._waiting = asyncio.Event()
        self._seen: set[str] = set()
        self._cut: set[str] = set(missed)

    def put(self, event: Event) -> None:
        """Take an event; never waits and never grows beyond the capacity."""
        if isinstance(event, RunEnded | Failed):
            self._end = event
        elif isinstance(event, Delta) and event.message_id in self._cut:
            pass  # a message that lost one delta gets no more: what was told of it stays a beginning of the whole
        else:
            self._queue.append(event)
            if len(self._queue) > self._capacity:
                self._make_room()
        self._waiting.set()

    def catch_up(self) -> None:
        """Read again what is saved, before anything else."""
        self._is_behind = True
        self._waiting.set()

    def _make_room(self) -> None:
        merged: deque[Event] = deque()
        for event in self._queue:
            if merged and (joined := _joined(merged[-1], event)):
                merged[-1] = joined
            else:
                merged.append(event)
        self._queue = merged
        while len(self._queue) > self._capacity and any(isinstance(event, Delta) for event in self._queue):
            self._cut_last_delta()
        if len(self._queue) > self._capacity:
            self._queue.clear()
            self._is_behind = True

    def _cut_last_delta(self) -> None:
        place, delta = [(place, event) for place, event in enumerate(self._queue) if isinstance(event, Delta)][-1]
        self._cut.add(delta.message_id)
        del self._queue[place]

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            # Whether the turn has ended is asked before reading again: what was saved until then is in what is read.
            end = self._end
            if self._is_behind:
                self._is_behind = False
                if missed := self._unseen(await self._reread()):
                    yield StepSaved(self._run_id, None, missed)
            elif self._queue:
                event = self._queue.popleft()
                if isinstance(event, StepSaved):
                    if fresh := self._unseen(list(event.messages)):
                        yield replace(event, messages=fresh)
                elif not (isinstance(event, Delta) and event.message_id in self._seen):
                    self._seen.update(_message_in(event))
                    yield event
            elif end:
                yield end
                return
            else:
                self._waiting.clear()
                await self._waiting.wait()

    def _unseen(self, messages: list[Message]) -> tuple[Message, ...]:
        fresh = tuple(message for message in messages if message.id not in self._seen)
        self._seen.update(message.id for message in fresh)
        return fresh


class Feed:
    """What a turn tells, to all who listen."""

    def __init__(self, run_id: str, reread: Reread) -> None:
        self._run_id = run_id
        self._reread = reread
        self._readers: set[Reader] = set()
        self._end: RunEnded | Failed | None = None
        self._has_told = False
        self._begun: set[str] = set()

    def publish(self, event: Event) -> None:
        """Give the event to every reader."""
        self._has_told = True
        if isinstance(event, Delta):
            self._begun.add(event.message_id)
        if isinstance(event, RunEnded | Failed):
            self._end = event
        for reader in self._readers:
            reader.put(event)

    def subscribe(self) -> Reader:
        """A new reader. One that comes after the first event begins with the messages that are saved already."""
        # Of a message that is being told it missed the beginning: it gets that one whole.
        reader = Reader(self._run_id, self._reread, is_behind=self._has_told, missed=self._begun)
        if self._end:
            reader.put(self._end)
        self._readers.add(reader)
        return reader

    def catch_up(self) -> None:
        """Make every reader read again what is saved."""
        for reader in self._readers:
            reader.catch_up()

    def leave(self, reader: Reader) -> None:
        """Forget a reader; leaving is not cancelling."""
        self._readers.discard(reader)


def _message_in(event: Event) -> tuple[str, ...]:
    """The id of the saved message that the event brings; a reader that falls behind after it need not be told it again."""
    if isinstance(event, ApprovalAsked):
        return (event.message.id,)
    return (event.summary.id,) if isinstance(event, Compacted) else ()


def _joined(one: Event, other: Event) -> Event | None:
    if isinstance(one, TextDelta) and isinstance(other, TextDelta) and _same_place(one, other):
        return replace(one, text=one.text + other.text)
    if isinstance(one, ReasoningDelta) and isinstance(other, ReasoningDelta) and _same_place(one, other):
        return replace(one, text=one.text + other.text)
    if isinstance(one, ToolCallDelta) and isinstance(other, ToolCallDelta) and _same_place(one, other):
        return replace(one, arguments=one.arguments + other.arguments)
    return None


def _same_place(one: Delta, other: Delta) -> bool:
    return (one.message_id, one.part) == (other.message_id, other.part)
