"""Chunks of a model's answer as events about the message it will become."""

from ricordo.domain.event import Delta, MessageRestarted, ReasoningDelta, TextDelta, ToolCallDelta
from ricordo.domain.ids import new_id
from ricordo.domain.model import Chunk, ReasoningChunk, TextChunk, ToolCallChunk


class Deltas:
    """Counts the parts of one message as they appear."""

    def __init__(self, run_id: str, step_id: str, message_id: str) -> None:
        self.message_id = message_id
        self._run_id = run_id
        self._step_id = step_id
        self._parts: dict[object, int] = {}
        self._call_ids: dict[int, str] = {}

    def read(self, chunk: Chunk) -> Delta | MessageRestarted | None:
        """The event for this chunk; None for an empty one."""
        if isinstance(chunk, TextChunk):
            return TextDelta(*self._place("text"), chunk.text) if chunk.text else None
        if isinstance(chunk, ReasoningChunk):
            return ReasoningDelta(*self._place("reasoning"), chunk.text) if chunk.text else None
        if isinstance(chunk, ToolCallChunk):
            return self._call(chunk)
        return self._restart()

    def _call(self, chunk: ToolCallChunk) -> ToolCallDelta:
        call_id = self._call_ids.setdefault(chunk.index, chunk.call_id or f"call_{chunk.index}")
        return ToolCallDelta(*self._place(chunk.index), call_id, chunk.name, chunk.arguments)

    def _restart(self) -> MessageRestarted | None:
        if not self._parts:
            return None
        void, self.message_id = self.message_id, new_id("message")
        self._parts.clear()
        self._call_ids.clear()
        return MessageRestarted(self._run_id, self._step_id, void, self.message_id)

    def _place(self, key: object) -> tuple[str, str, str, int]:
        return self._run_id, self._step_id, self.message_id, self._parts.setdefault(key, len(self._parts))
