"""A streamed chat completion: bytes to events, events to chunks and at last to one reply. Pure; no network in here."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from ricordo.domain.message import Part, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, FinishReason, ModelReply, ModelRequest, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.llm.openai_dialect import Dialect
from ricordo.llm.openai_reading import (
    Details,
    as_text,
    read_calls,
    read_choice,
    read_content,
    read_finish,
    read_function,
    read_id,
    read_text,
    reasoning_parts,
    unreadable,
    with_usage,
)
from ricordo.llm.repair import new_call_id

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventLines:
    """Server-sent events as they arrive in pieces: each `data:` line is one JSON object."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that these bytes complete. Lines that are no JSON object (comments, pings) are passed over."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            yield from self._read(line)

    def end(self) -> Iterator[dict[str, Any]]:
        """The event in a last line without its newline."""
        rest, self._rest = self._rest, b""
        yield from self._read(rest)

    def _read(self, line: bytes) -> Iterator[dict[str, Any]]:
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if self.is_done or not line.startswith((b"data:", b"error:")):
            return
        name, _, value = line.partition(b":")
        value = value.strip()
        if value == b"[DONE]":
            self.is_done = True
            return
        try:
            event = orjson.loads(value)
        except orjson.JSONDecodeError:
            return
        if isinstance(event, dict):
            # llama.cpp names a late error in the line itself.
            yield {"error": event} if name == b"error" and "error" not in event else event


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyBuilder:
    """Collects deltas. Knows the ways in which servers mark, or forget to mark, which call a piece belongs to."""

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect or Dialect()
        self._details = Details()
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, int] = {}
        self._finish: FinishReason | None = None
        self._usage: Any = None
        self._model = ""

    @property
    def is_finished(self) -> bool:
        """Whether the server said why the answer ended."""
        return self._finish is not None

    def feed(self, event: dict[str, Any]) -> Iterator[Chunk]:
        """The chunks in one event."""
        self._model = read_text(event, "model") or self._model
        self._usage = event.get("usage") or self._usage
        choice = read_choice(event)
        if choice is None:
            return
        delta = choice.get("delta") or {}
        if not (delta or self._texts or self._calls):
            # Some servers put a whole message where a delta belongs; others repeat in it what they said.
            delta = choice.get("message") or {}
        if not isinstance(delta, dict):
            unreadable("delta")
        thought, text = read_content(delta)
        self._details.add(delta)
        if thought:
            self._thoughts.append(thought)
            yield ReasoningChunk(thought)
        if text:
            self._texts.append(text)
            yield TextChunk(text)
        for piece in read_calls(delta):
            yield self._call_piece(piece)
        if choice.get("finish_reason"):
            self._finish = read_finish(choice["finish_reason"])

    def _call_piece(self, piece: dict[str, Any]) -> ToolCallChunk:
        function, index = read_function(piece), piece.get("index")
        name, call_id = read_text(function, "name"), read_id(piece)
        arguments = as_text(function.get("arguments"))
        if not isinstance(index, int | None):
            unreadable("index")
        slot = self._slot(index, call_id, name)
        is_new = slot == len(self._calls)
        if is_new:
            self._calls.append(_Call(call_id or new_call_id()))
        call = self._calls[slot]
        first_name = bool(name) and not call.name
        if first_name:
            call.name = name
        call.arguments.append(arguments)
        return ToolCallChunk(slot, arguments, call.call_id if is_new else None, name if first_name else None)

    def _slot(self, index: int | None, call_id: str, name: str) -> int:
        """Which call a piece belongs to: by its index, unless the server counts wrongly or not at all."""
        new, last = len(self._calls), len(self._calls) - 1
        known = next((n for n, call in enumerate(self._calls) if call.call_id == call_id), None) if call_id else None
        if known is not None:
            return known
        if index is None:
            begins = bool(call_id) or (bool(name) and (last < 0 or bool(self._calls[last].name)))
            return new if begins or last < 0 else last
        slot = self._by_index.get(index)
        # A second whole call under an index that is taken: the server numbers all of them 0.
        if slot is None or (call_id and name and self._calls[slot].name):
            slot = self._by_index[index] = new
        return slot

    def reply(self, request: ModelRequest) -> ModelReply:
        """The whole reply, of all that was fed."""
        parts: list[Part] = reasoning_parts("".join(self._thoughts), self._details, self._dialect)
        if self._texts:
            parts.append(TextPart("".join(self._texts)))
        parts += [ToolCallPart(call.call_id, call.name, "".join(call.arguments)) for call in self._calls]
        reply = ModelReply(tuple(parts), finish=self._finish or "unknown", model=self._model)
        return with_usage(reply, self._usage, request)
