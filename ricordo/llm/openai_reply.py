"""What servers answer in OpenAI's chat completions, whole or in pieces, as one reply. Pure, and patient with small deviations."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import orjson

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, FinishReason, ModelReply, ModelRequest, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.openai_dialect import Dialect
from ricordo.llm.tokens import estimated_usage
from ricordo.llm.written_calls import new_call_id, read_json

_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}
# The server gave up in the middle: OpenRouter and Mistral; DeepSeek; vLLM.
_BROKEN_OFF = {"error", "insufficient_system_resource", "abort", "aborted"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Value = TypeVar("_Value")


def to_reply(payload: dict[str, Any], request: ModelRequest, dialect: Dialect | None = None) -> ModelReply:
    """Return the reply in a whole (not streamed) answer."""
    builder = ReplyBuilder(dialect)
    for _ in builder.feed(payload):
        pass
    return builder.reply(request)


class SseReader:
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
        if isinstance(event := read_json(value), dict):
            # llama.cpp names a late error in the line itself.
            yield {"error": event} if name == b"error" and "error" not in event else event


@dataclass(slots=True)
class _PartialCall:
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyBuilder:
    """Collects deltas. Knows the ways in which servers mark, or forget to mark, which call a piece belongs to."""

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect or Dialect()
        self._details = ReasoningDetails()
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, int] = {}
        self._finish: FinishReason | None = None
        self._usage: Any = None
        self._model = ""

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def feed(self, event: dict[str, Any]) -> Iterator[Chunk]:
        """The chunks in one event."""
        self._model = read_text(event, "model") or self._model
        self._usage = event.get("usage") or self._usage
        choice = read_choice(event)
        if choice is None:
            return
        delta = choice.get("delta") or {}
        is_whole = not (delta or self._texts or self._calls)
        if is_whole:
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
            yield self._call_piece(piece, is_whole=is_whole)
        if choice.get("finish_reason"):
            self._finish = read_finish(choice["finish_reason"])

    def _call_piece(self, piece: dict[str, Any], *, is_whole: bool) -> ToolCallChunk:
        function, index = read_function(piece), piece.get("index")
        name, call_id = read_text(function, "name"), read_id(piece)
        arguments = as_text(function.get("arguments"))
        if not isinstance(index, int | None):
            unreadable("index")
        slot = len(self._calls) if is_whole else self._slot(index, call_id, name)
        is_new = slot == len(self._calls)
        if is_new:
            self._calls.append(_PartialCall(call_id or new_call_id()))
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


def read_fault(payload: dict[str, Any]) -> Any:
    """The error in an answer or an event whose HTTP status said that all was well; None where there is none."""
    if payload.get("error") or payload.get("object") == "error" or payload.get("type") == "error":
        return payload
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return None
    if choice.get("error"):
        return {"error": choice["error"]}
    reason = choice.get("finish_reason")
    return {"error": {"message": f"It stopped with {reason}."}} if reason in _BROKEN_OFF else None


def generation_in(fault: Any, request: ModelRequest) -> ModelReply | None:
    """What the model wrote, where its server refused to read a call in it (Groq's `tool_use_failed`); else None."""
    body = read_json(fault) if isinstance(fault, bytes) else fault
    error = body.get("error") if isinstance(body, dict) else None
    written = error.get("failed_generation") if isinstance(error, dict) else None
    if not isinstance(written, str) or not written.strip():
        return None
    return with_usage(ModelReply((TextPart(written),)), None, request)


def read_choice(payload: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice of an answer or an event; None where it has none, as in Azure's first and OpenAI's last event."""
    choices = _as(list, payload.get("choices"), "choices")
    if not choices:
        return None
    choice = _as(dict, choices[0], "choices")
    return unreadable("choices") if choice is None else choice


def read_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls, or pieces of calls, in a message or a delta."""
    calls = message.get("tool_calls")
    rows = [calls] if isinstance(calls, dict) else _as(list, calls, "tool_calls") or ()
    if not rows and isinstance(message.get("function_call"), dict):  # The format's older way, for one call.
        return [{"function": message["function_call"]}]
    return [call for call in rows if isinstance(call, dict)]


def read_text(row: dict[str, Any], name: str) -> str:
    return _as(str, row.get(name), name) or ""


def read_id(call: dict[str, Any]) -> str:
    """A call's id, empty where it has none; a number counts."""
    found = call.get("id")
    return str(found) if isinstance(found, int) else read_text(call, "id")


def _as(kind: type[_Value], value: Any, name: str) -> _Value | None:
    return value if value is None or isinstance(value, kind) else unreadable(name)


def unreadable(name: str) -> NoReturn:
    raise ModelError("llm_error", f'The model\'s server gave an answer that cannot be read: "{name}" is malformed.')


def read_content(message: dict[str, Any]) -> tuple[str, str]:
    """Reasoning and text of a message or a delta."""
    thought = read_text(message, "reasoning_content") or _reasoning(message)
    content = message.get("content")
    if not isinstance(content, list):
        return thought, read_text(message, "content") or read_text(message, "refusal")
    # Mistral's reasoning models give a list of pieces.
    pieces = [{"type": "text", "text": p} if isinstance(p, str) else _as(dict, p, "content") or {} for p in content]
    thought += "".join(_piece_text(p.get("thinking")) for p in pieces if p.get("type") == "thinking")
    return thought, "".join(_piece_text(p.get("text")) for p in pieces if p.get("type") == "text")


def _reasoning(message: dict[str, Any]) -> str:
    # Together and others give an object here where there is nothing to read.
    found = message.get("reasoning")
    if isinstance(found, dict):
        return _piece_text(found.get("text"))
    return read_text(message, "reasoning") or "".join(
        _piece_text(row.get("text") or row.get("summary")) for row in _detail_rows(message)
    )


def _piece_text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_piece_text(item.get("text")) for item in value if isinstance(item, dict))
    return value if isinstance(value, str) else ""


class ReasoningDetails:
    """OpenRouter's `reasoning_details`, put together from their pieces: what has to be sent back as it came."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(self, message: dict[str, Any]) -> None:
        """Take in what a message or a delta brings. Raises ModelError where it is no list of objects."""
        for place, row in enumerate(_detail_rows(message)):
            index = row.get("index")
            key: tuple[Any, ...] = (row.get("type"), place if index is None else index)
            if row.get("type") == "reasoning.encrypted":
                key += (row.get("id"),)
            known = self._rows.setdefault(key, {})
            for name, value in row.items():
                grows = name in ("text", "summary") and isinstance(value, str) and isinstance(known.get(name), str)
                if grows:
                    known[name] += value
                elif value is not None or name not in known:
                    known[name] = value

    def whole(self) -> list[dict[str, Any]]:
        return list(self._rows.values())


def _detail_rows(message: dict[str, Any]) -> list[dict[str, Any]]:
    rows = _as(list, message.get("reasoning_details"), "reasoning_details") or ()
    return [row for row in rows if isinstance(row, dict)]


def reasoning_parts(thought: str, details: ReasoningDetails, dialect: Dialect) -> list[Part]:
    """The thoughts as parts, marked where their server wants them back."""
    if dialect.replays == "nothing":
        return [ReasoningPart(thought)] if thought else []
    rows = details.whole() if dialect.replays == "details" else []
    proof = orjson.dumps(rows).decode() if rows else None
    if thought:
        return [ReasoningPart(thought, signature=proof, provider=dialect.provider)]
    return [ReasoningPart("", redacted=proof, provider=dialect.provider)] if proof else []


def read_function(call: dict[str, Any]) -> dict[str, Any]:
    return _as(dict, call.get("function"), "function") or {}


def as_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else orjson.dumps(arguments).decode()


def read_finish(reason: Any) -> FinishReason:
    return _FINISHES.get((_as(str, reason, "finish_reason") or "").lower(), "unknown")


def with_usage(reply: ModelReply, usage: Any, request: ModelRequest) -> ModelReply:
    """The reply with the usage that the server reported, else with our estimate; llama.cpp may report zeros."""
    counted = read_usage(usage) if isinstance(usage, dict) else Usage()
    if not counted.total_tokens:
        counted = estimated_usage(request, reply)
    return ModelReply(reply.parts, counted, reply.finish, reply.model)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Tokens as the server counted them."""
    prompt = _as(dict, usage.get("prompt_tokens_details"), "usage") or {}
    completion = _as(dict, usage.get("completion_tokens_details"), "usage") or {}
    cached = _count(prompt.get("cached_tokens"))
    if cached is None:  # DeepSeek's own name
        cached = _count(usage.get("prompt_cache_hit_tokens"))
    asked, said = _count(usage.get("prompt_tokens")) or 0, _count(usage.get("completion_tokens")) or 0
    thought = _count(completion.get("reasoning_tokens"))
    if thought and _count(usage.get("total_tokens")) == asked + said + thought:
        said += thought  # xAI counts thoughts beside the answer, all others within it.
    return Usage(
        prompt_tokens=asked,
        completion_tokens=said,
        cached_tokens=_count(usage.get("cached_tokens")) if cached is None else cached,  # Together's own name
        cache_write_tokens=_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=thought,
    )


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, float) else _as(int, value, "usage")
