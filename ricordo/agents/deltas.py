"""Chunks of a model's answer as events about the message it will become."""

from collections.abc import Container

from ricordo.domain.event import Delta, MessageRestarted, ReasoningDelta, TextDelta, ToolCallDelta
from ricordo.domain.ids import new_id
from ricordo.domain.model import Chunk, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.llm.argument_stream import ArgumentStream


class Deltas:
    """Counts the parts of one message as they appear.

    `thoughts` names the argument in which the model writes down what it thinks: those are told as reasoning, before their call.
    Calls of tools in `held` wait for somebody, and are told once they are whole and saved, as what they are: a request.
    """

    def __init__(
        self, run_id: str, step_id: str, message_id: str, *, thoughts: str | None = None, held: Container[str] = ()
    ) -> None:
        self.message_id = message_id
        self._run_id = run_id
        self._step_id = step_id
        self._thoughts = thoughts
        self._held = held
        self._silent: set[int] = set()
        self._parts: dict[object, int] = {}
        self._call_ids: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._arguments: dict[int, ArgumentStream] = {}

    def events(self, chunk: Chunk) -> tuple[Delta | MessageRestarted, ...]:
        """The events for this chunk; none for an empty one."""
        if isinstance(chunk, TextChunk):
            return (TextDelta(*self._place("text"), chunk.text),) if chunk.text else ()
        if isinstance(chunk, ReasoningChunk):
            return (ReasoningDelta(*self._place("reasoning"), chunk.text),) if chunk.text else ()
        if isinstance(chunk, ToolCallChunk):
            if chunk.name is not None and chunk.name in self._held:
                self._silent.add(chunk.index)
            if chunk.index in self._silent:
                return ()
            call_id = self._call_ids.setdefault(chunk.index, chunk.call_id or f"call_{chunk.index}")
            if self._thoughts:
                return self._thoughtful_call(chunk, call_id, self._thoughts)
            return (ToolCallDelta(*self._place(chunk.index), call_id, chunk.name, chunk.arguments),)
        return self._restart()

    def _thoughtful_call(self, chunk: ToolCallChunk, call_id: str, key: str) -> tuple[Delta, ...]:
        """The thoughts among the arguments, and the call without them; it is told once there is more of it than a name."""
        if chunk.name:
            self._names[chunk.index] = chunk.name
        told: list[Delta] = []
        thought, others = self._arguments.setdefault(chunk.index, ArgumentStream(key)).feed(chunk.arguments)
        if thought:
            told.append(ReasoningDelta(*self._place(f"thoughts of {chunk.index}"), thought))
        if others:
            name = self._names.pop(chunk.index, None)
            told.append(ToolCallDelta(*self._place(chunk.index), call_id, name, others))
        return tuple(told)

    def _restart(self) -> tuple[MessageRestarted, ...]:
        has_told = bool(self._parts)
        for kept in (self._parts, self._call_ids, self._names, self._arguments, self._silent):
            kept.clear()
        if not has_told:
            return ()
        void, self.message_id = self.message_id, new_id("message")
        return (MessageRestarted(self._run_id, self._step_id, void, self.message_id),)

    def _place(self, key: object) -> tuple[str, str, str, int]:
        return self._run_id, self._step_id, self.message_id, self._parts.setdefault(key, len(self._parts))
