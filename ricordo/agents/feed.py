"""From one turn to its readers. The turn never waits for a reader: each has a bounded queue of its own.

When a queue is full, adjacent deltas are merged, then dropped; whole messages never are: a reader that fell behind reads the
saved messages again and then goes on.
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
# What stands between the text of a reply and what it says with a call, and between what it says with two calls.
BETWEEN_WORDS = "\n\n"
Reread = Callable[[], Awaitable[list[Message]]]


class Deltas:
    """Counts the parts of one message as they appear.

    `thoughts` names the argument in which the model writes down what it thinks: those are told as reasoning, before their call.
    `words` names the one that holds what the user hears: that is text of the message. Calls of the tools in `held` wait for
    approval: readers get them once they are complete and saved, as an approval request.
    """

    def __init__(
        self,
        run_id: str,
        step_id: str,
        message_id: str,
        *,
        thoughts: str | None = None,
        words: str | None = None,
        held: Container[str] = (),
    ) -> None:
        self.message_id = message_id
        self._ids = run_id, step_id
        self._told_argument = words or thoughts
        self._tells_words = words is not None
        self._held = held
        self._silent: set[int] = set()
        self._parts: dict[object, int] = {}
        self._call_ids: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._arguments: dict[int, ArgumentStream] = {}
        self._spoken_by: set[int] = set()

    def events(self, chunk: Chunk) -> tuple[Delta | MessageRestarted, ...]:
        """The events for this chunk; none for an empty one."""
        if isinstance(chunk, TextChunk):
            if chunk.text:
                return (TextDelta(*self._place("text"), chunk.text),)
            return ()
        if isinstance(chunk, ReasoningChunk):
            is_empty = not (chunk.text or chunk.signature)
            if is_empty:
                return ()
            return (ReasoningDelta(*self._place("reasoning"), chunk.text, chunk.signature),)
        if isinstance(chunk, ToolCallChunk):
            if chunk.name is not None and chunk.name in self._held:
                self._silent.add(chunk.index)
            if chunk.index in self._silent:
                return ()
            call_id = self._call_ids.setdefault(chunk.index, chunk.call_id or f"call_{chunk.index}")
            if self._told_argument:
                return self._telling_call(chunk, call_id, self._told_argument)
            return (ToolCallDelta(*self._place(chunk.index), call_id, chunk.name, chunk.arguments),)
        return self._restart()

    def _telling_call(self, chunk: ToolCallChunk, call_id: str, key: str) -> tuple[Delta, ...]:
        """Split what is told in the arguments from the call, which is published once it has more than a name."""
        if chunk.name:
            self._names[chunk.index] = chunk.name
        told: list[Delta] = []
        text, others = self._arguments.setdefault(chunk.index, ArgumentStream(key)).feed(
            chunk.arguments
        )
        if text and self._tells_words:
            told.append(self._spoken(chunk.index, text))
        elif text:
            told.append(ReasoningDelta(*self._place(f"thoughts of {chunk.index}"), text))
        if others:
            name = self._names.pop(chunk.index, None)
            told.append(ToolCallDelta(*self._place(chunk.index), call_id, name, others))
        return tuple(told)

    def _spoken(self, index: int, text: str) -> TextDelta:
        """Return words of a call as text of the message, apart from what it says besides."""
        is_first = index not in self._spoken_by
        self._spoken_by.add(index)
        begin = BETWEEN_WORDS if is_first and "text" in self._parts else ""
        return TextDelta(*self._place("text"), f"{begin}{text}")

    def _restart(self) -> tuple[MessageRestarted, ...]:
        has_told = bool(self._parts)
        for kept in (
            self._parts,
            self._call_ids,
            self._names,
            self._arguments,
            self._silent,
            self._spoken_by,
        ):
            kept.clear()
        if not has_told:
            return ()
        void, self.message_id = self.message_id, new_id("message")
        return (MessageRestarted(*self._ids, void, self.message_id),)

    def _place(self, key: object) -> tuple[str, str, str, int]:
        return *self._ids, self.message_id, self._parts.setdefault(key, len(self._parts))


@dataclass(slots=True, eq=False)
class Feed:
    """The events of one turn, for all who read them; `reread` gives the messages that are saved."""

    run: Run
    reread: Reread
    readers: "set[Reader]" = field(default_factory=set)
    _end: RunEnded | Failed | None = None
    _has_begun: bool = False
    _begun: set[str] = field(default_factory=set)

    def publish(self, event: Event) -> None:
        """Give the event to every reader."""
        self._has_begun = True
        if isinstance(event, Delta):
            self._begun.add(event.message_id)
        if isinstance(event, RunEnded | Failed):
            self._end = event
        for reader in self.readers:
            reader.put(event)

    def subscribe(self, capacity: int = CAPACITY) -> "Reader":
        """A new reader. One that comes after the first event begins with the messages that are saved already."""
        # Of a message that is on its way it missed the beginning: it gets that one whole.
        reader = Reader(
            self, capacity, is_behind=self._has_begun, cut=set(self._begun), end=self._end
        )
        self.readers.add(reader)
        return reader

    def catch_up(self) -> None:
        for reader in self.readers:
            reader.catch_up()


@dataclass(slots=True, eq=False)
class Reader:
    """One reader's queue. A message in `cut` lost a delta and gets no more: what was read of it stays a beginning of the whole."""

    feed: Feed
    capacity: int = CAPACITY
    is_behind: bool = False
    cut: set[str] = field(default_factory=set)
    end: RunEnded | Failed | None = None
    _queue: deque[Event] = field(default_factory=deque)
    _has_more: asyncio.Event = field(default_factory=asyncio.Event)
    _seen: set[str] = field(default_factory=set)

    def put(self, event: Event) -> None:
        """Take an event; never waits and never grows beyond the capacity."""
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
        """Everything from the start, to RunEnded or Failed. Leaving is not cancelling."""
        try:
            yield RunStarted(self.feed.run)
            while True:
                # Whether the turn has ended is asked before reading again: what was saved until then is in what is read.
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
                    elif not (isinstance(event, Delta) and event.message_id in self._seen):
                        # One that falls behind after this need not read it again.
                        if isinstance(event, ApprovalAsked | Compacted):
                            self._seen.add(
                                (
                                    event.message
                                    if isinstance(event, ApprovalAsked)
                                    else event.summary
                                ).id
                            )
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
        deltas = [(place, event) for place, event in enumerate(merged) if isinstance(event, Delta)]
        while len(merged) > self.capacity and deltas:
            place, dropped = deltas.pop()
            self.cut.add(dropped.message_id)
            del merged[place]
        if len(merged) > self.capacity:
            merged.clear()
            self.is_behind = True

    def _unseen(self, messages: list[Message] | tuple[Message, ...]) -> tuple[Message, ...]:
        fresh = tuple(message for message in messages if message.id not in self._seen)
        self._seen.update(message.id for message in fresh)
        return fresh


def _joined(one: Event, other: Event) -> Event | None:
    """Two deltas of one part as one; None for any other events."""
    if not (isinstance(one, Delta) and isinstance(other, Delta) and type(one) is type(other)):
        return None
    if (one.message_id, one.part) != (other.message_id, other.part):
        return None
    if isinstance(one, ReasoningDelta) and isinstance(other, ReasoningDelta):
        # A signature ends its thought.
        if one.signature:
            return None
        return replace(other, text=one.text + other.text)
    name = "arguments" if isinstance(one, ToolCallDelta) else "text"
    return replace(one, **{name: getattr(one, name) + getattr(other, name)})
