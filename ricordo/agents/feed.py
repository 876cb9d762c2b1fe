"""Events from one turn to its readers.

The turn never waits for a reader: each reader has a bounded queue. When a queue is full, adjacent
deltas are merged; if that is not enough, they are dropped. Whole messages are never dropped. A
reader that fell behind reads the saved messages and then continues.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Container
from dataclasses import dataclass, field, replace

from ricordo.domain.event import (
    ApprovalAsked,
    Compacted,
    Delta,
    Event,
    Failed,
    MessageRestarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    StepSaved,
    TextDelta,
    ToolCallDelta,
)
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.model import Chunk, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.domain.run import Run
from ricordo.llm.argument_stream import ArgumentStream

CAPACITY = 256
# The separator between a reply's text and the speech in a call, or between the speech of two calls.
BETWEEN_WORDS = "\n\n"
Reread = Callable[[], Awaitable[list[Message]]]


@dataclass(slots=True)
class Deltas:
    """The parts of one message, numbered in the order in which they appear.

    Attributes:
        run_id: The run.
        step_id: The step.
        message_id: The message; another one after a restart.
        thoughts_argument: The argument of a call in which the model writes its thoughts. They are
            shown as reasoning before the call.
        speech_argument: The argument of a call in which the model speaks to the user. It is shown
            as text of the message.
        gated_tools: Tools whose calls wait for approval. Readers get such calls as an approval
            request, once the calls are complete and saved.
    """

    run_id: str
    step_id: str
    message_id: str
    thoughts_argument: str | None = field(default=None, kw_only=True)
    speech_argument: str | None = field(default=None, kw_only=True)
    gated_tools: Container[str] = field(default=(), kw_only=True)
    _silent: set[int] = field(default_factory=set, init=False)
    _parts: dict[object, int] = field(default_factory=dict, init=False)
    _call_ids: dict[int, str] = field(default_factory=dict, init=False)
    _names: dict[int, str] = field(default_factory=dict, init=False)
    _arguments: dict[int, ArgumentStream] = field(default_factory=dict, init=False)
    _spoken_by: set[int] = field(default_factory=set, init=False)

    def events(self, chunk: Chunk) -> tuple[Delta | MessageRestarted, ...]:
        """Return the events for this chunk; empty text or reasoning has none."""
        if isinstance(chunk, TextChunk):
            if chunk.text:
                return (TextDelta(*self._position("text"), chunk.text),)
            return ()
        if isinstance(chunk, ReasoningChunk):
            is_empty = not (chunk.text or chunk.signature)
            if is_empty:
                return ()
            return (ReasoningDelta(*self._position("reasoning"), chunk.text, chunk.signature),)
        if isinstance(chunk, ToolCallChunk):
            if chunk.name is not None and chunk.name in self.gated_tools:
                self._silent.add(chunk.index)
            if chunk.index in self._silent:
                return ()
            call_id = self._call_ids.setdefault(chunk.index, chunk.call_id or f"call_{chunk.index}")
            if streamed_argument := self.speech_argument or self.thoughts_argument:
                return self._split_call(chunk, call_id, streamed_argument)
            return (
                ToolCallDelta(*self._position(chunk.index), call_id, chunk.name, chunk.arguments),
            )
        return self._restart()

    def _split_call(self, chunk: ToolCallChunk, call_id: str, key: str) -> tuple[Delta, ...]:
        """Split streamed speech or thoughts from the call.

        The call is published only when it has more than a name.
        """
        if chunk.name:
            self._names[chunk.index] = chunk.name
        events: list[Delta] = []
        text, others = self._arguments.setdefault(chunk.index, ArgumentStream(key)).feed(
            chunk.arguments
        )
        if text and self.speech_argument:
            events.append(self._speech(chunk.index, text))
        elif text:
            events.append(ReasoningDelta(*self._position(f"thoughts of {chunk.index}"), text))
        if others:
            name = self._names.pop(chunk.index, None)
            events.append(ToolCallDelta(*self._position(chunk.index), call_id, name, others))
        return tuple(events)

    def _speech(self, index: int, text: str) -> TextDelta:
        """Return the speech in a call as text of the message, separated from earlier text."""
        is_first = index not in self._spoken_by
        self._spoken_by.add(index)
        separator = BETWEEN_WORDS if is_first and "text" in self._parts else ""
        return TextDelta(*self._position("text"), f"{separator}{text}")

    def _restart(self) -> tuple[MessageRestarted, ...]:
        has_events = bool(self._parts)
        for collection in (
            self._parts,
            self._call_ids,
            self._names,
            self._arguments,
            self._silent,
            self._spoken_by,
        ):
            collection.clear()
        if not has_events:
            return ()
        void = self.message_id
        self.message_id = new_id("message")
        return (MessageRestarted(self.run_id, self.step_id, void, self.message_id),)

    def _position(self, key: object) -> tuple[str, str, str, int]:
        number = self._parts.setdefault(key, len(self._parts))
        return self.run_id, self.step_id, self.message_id, number


@dataclass(slots=True, eq=False)
class Feed:
    """The events of one turn, for all its readers; `reread` returns the saved messages."""

    run: Run
    reread: Reread
    readers: "set[Reader]" = field(default_factory=set)
    _end: RunEnded | Failed | None = None
    _has_begun: bool = False
    _begun_messages: set[str] = field(default_factory=set)

    def publish(self, event: Event) -> None:
        """Give the event to every reader."""
        self._has_begun = True
        if isinstance(event, Delta):
            self._begun_messages.add(event.message_id)
        if isinstance(event, RunEnded | Failed):
            self._end = event
        for reader in self.readers:
            reader.put(event)

    def subscribe(self, capacity: int = CAPACITY) -> "Reader":
        """Return a new reader; if it is late, it begins with the saved messages."""
        # The reader missed the beginning of the current message, so it gets that message as a
        # whole.
        reader = Reader(
            self, capacity, is_behind=self._has_begun, cut=set(self._begun_messages), end=self._end
        )
        self.readers.add(reader)
        return reader

    def catch_up(self) -> None:
        for reader in self.readers:
            reader.catch_up()


@dataclass(slots=True, eq=False)
class Reader:
    """One reader's queue.

    `cut` holds the messages of which a delta was dropped. They get no more deltas, so the reader
    has the beginning of each without gaps.
    """

    feed: Feed
    capacity: int = CAPACITY
    is_behind: bool = False
    cut: set[str] = field(default_factory=set)
    end: RunEnded | Failed | None = None
    _queue: deque[Event] = field(default_factory=deque)
    _has_more: asyncio.Event = field(default_factory=asyncio.Event)
    _seen_ids: set[str] = field(default_factory=set)

    def put(self, event: Event) -> None:
        """Take an event; never wait, and never grow beyond the capacity."""
        if isinstance(event, RunEnded | Failed):
            self.end = event
        elif not (isinstance(event, Delta) and event.message_id in self.cut):
            self._queue.append(event)
            if len(self._queue) > self.capacity:
                self._shrink()
        self._has_more.set()

    def catch_up(self) -> None:
        self.is_behind = True
        self._has_more.set()

    async def events(self) -> AsyncGenerator[Event]:
        """Yield all events from the start, to RunEnded or Failed. Leaving cancels nothing."""
        try:
            yield RunStarted(self.feed.run)
            while True:
                # Check for the end before reading again: then the read includes everything that was
                # saved before the end.
                end = self.end
                if self.is_behind:
                    self.is_behind = False
                    if missed := self._unseen(await self.feed.reread()):
                        yield StepSaved(self.feed.run.id, None, missed)
                elif self._queue:
                    event = self._queue.popleft()
                    if isinstance(event, StepSaved):
                        if fresh := self._unseen(event.messages):
                            yield replace(event, messages=fresh)
                    elif not (isinstance(event, Delta) and event.message_id in self._seen_ids):
                        # If the reader falls behind later, it need not read this message again.
                        if isinstance(event, ApprovalAsked):
                            self._seen_ids.add(event.message.id)
                        elif isinstance(event, Compacted):
                            self._seen_ids.add(event.summary.id)
                        yield event
                elif end:
                    yield end
                    return
                else:
                    self._has_more.clear()
                    await self._has_more.wait()
        finally:
            self.feed.readers.discard(self)

    def _shrink(self) -> None:
        merged: deque[Event] = deque()
        for event in self._queue:
            if merged and (joined := _joined(merged[-1], event)):
                merged[-1] = joined
            else:
                merged.append(event)
        self._queue = merged
        deltas = [(index, event) for index, event in enumerate(merged) if isinstance(event, Delta)]
        while len(merged) > self.capacity and deltas:
            index, dropped = deltas.pop()
            self.cut.add(dropped.message_id)
            del merged[index]
        if len(merged) > self.capacity:
            merged.clear()
            self.is_behind = True

    def _unseen(self, messages: list[Message] | tuple[Message, ...]) -> tuple[Message, ...]:
        fresh = tuple(message for message in messages if message.id not in self._seen_ids)
        self._seen_ids.update(message.id for message in fresh)
        return fresh


def _joined(first: Event, second: Event) -> Event | None:
    """Join two deltas of one part; None for any other events."""
    if not (isinstance(first, Delta) and isinstance(second, Delta) and type(first) is type(second)):
        return None
    if (first.message_id, first.part) != (second.message_id, second.part):
        return None
    if isinstance(first, ReasoningDelta) and isinstance(second, ReasoningDelta):
        # A signature ends the thought that it signs.
        if first.signature:
            return None
        return replace(second, text=first.text + second.text)
    name = "arguments" if isinstance(first, ToolCallDelta) else "text"
    return replace(first, **{name: getattr(first, name) + getattr(second, name)})
