"""What servers answer in OpenAI's chat completions, whole or in pieces, as one reply. Pure, and patient with small deviations."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

import orjson

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    FinishReason,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
)
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.answer_bounds import MOST_CALLS, BoundReached
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_dialect import Dialect
from ricordo.llm.special_tokens import mend_tokens
from ricordo.llm.token_logprobs import read_logprobs
from ricordo.llm.tokens import estimated_usage, plausible_count
from ricordo.llm.written_calls import new_call_id

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
# Far more than an answer may have, so that the model of one with a few too many can be told.
_MOST_SLOTS = 8 * MOST_CALLS
_MOST_DIGITS = 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Value = TypeVar("_Value")


def to_reply(
    payload: dict[str, Any], request: ModelRequest, dialect: Dialect | None = None
) -> ModelReply:
    """Return the reply in a whole (not streamed) answer."""
    builder = ReplyBuilder(dialect)
    for _ in builder.feed(payload):
        pass
    return builder.reply(request)


class SseReader:
    """Server-sent events as they arrive in pieces: each `data:` line is one JSON object."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that these bytes complete. Lines that are no JSON object (comments, pings) are passed over."""
        first, *lines = data.split(b"\n")
        self._rest.append(first)
        if not lines:
            return
        lines.insert(0, b"".join(self._rest))
        self._rest = [lines.pop()]
        for line in lines:
            name, _, value = line.removeprefix(_BYTE_ORDER_MARK).partition(b":")
            if self.is_done or name not in (b"data", b"error"):
                continue
            value = value.strip()
            if value == b"[DONE]":
                self.is_done = True
            elif isinstance(event := read_json(value), dict):
                # llama.cpp names a late error in the line itself.
                yield {"error": event} if name == b"error" and "error" not in event else event


_BRACES = re.compile(r'\\.?|["{}]', re.DOTALL)


@dataclass(slots=True)
class _PartialCall:
    """A call that is put together from its pieces; `is_whole` once its arguments are a closed object."""

    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    has_arguments: bool = False
    is_whole: bool = False
    # Whether a piece came without a name, so that a name begins another call.
    is_named_once: bool = False
    _depth: int = 0
    _is_in_string: bool = False
    _backslash: str = ""

    def add(self, piece: str) -> None:
        """Append a piece of the arguments, which is scanned once."""
        self.arguments.append(piece)
        self.has_arguments |= not piece.isspace() and piece != ""
        for sign in _BRACES.findall(self._backslash + piece):
            self._backslash = "\\" if sign == "\\" else ""
            if sign == '"':
                self._is_in_string = not self._is_in_string
            elif not self._is_in_string and sign in ("{", "}"):
                self._depth += 1 if sign == "{" else -1
                self.is_whole = self._depth == 0


class ReplyBuilder:
    """Collects deltas. Knows the ways in which servers mark, or forget to mark, which call a piece belongs to."""

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect or Dialect()
        self._details: dict[tuple[Any, ...], dict[str, Any]] = {}
        # Texts of the details that come in pieces.
        self._grown: dict[tuple[Any, ...], list[str]] = {}
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        # Calls whose arguments have not begun, in their order.
        self._empty: dict[int, None] = {}
        self._finish: FinishReason | None = None
        self._usage: Any = None
        self._model = ""
        self._logprobs: dict[str, list[dict[str, Any]]] = {}

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def feed(self, event: dict[str, Any]) -> Iterator[Chunk]:
        self._model = _text(event, "model") or self._model
        self._usage = event.get("usage") or self._usage
        # Azure's first and OpenAI's last event have no choice.
        if not (choices := _as(list, event.get("choices"), "choices")):
            return
        if (choice := _as(dict, choices[0], "choices")) is None:
            _unreadable("choices")
        if (found := choice.get("logprobs")) is not None:
            for name, rows in read_logprobs(found).items():
                self._logprobs.setdefault(name, []).extend(rows)
        delta = choice.get("delta") or {}
        is_whole = not (delta or self._texts or self._calls)
        if is_whole:
            # Some servers put a whole message where a delta belongs; others repeat in it what they said.
            delta = choice.get("message") or {}
        if not isinstance(delta, dict):
            _unreadable("delta")
        thought, text = _content(delta)
        if self._dialect.replays == "details":
            self._add_details(delta)
        if thought:
            self._thoughts.append(thought)
            yield ReasoningChunk(thought)
        if text:
            self._texts.append(text)
            yield TextChunk(text)
        for piece in _calls(delta):
            yield self._call_piece(piece, is_whole=is_whole)
        if reason := _text(choice, "finish_reason"):
            self._finish = _FINISHES.get(reason.lower(), "unknown")

    def _call_piece(self, piece: dict[str, Any], *, is_whole: bool) -> ToolCallChunk:
        function, index = _as(dict, piece.get("function"), "function") or {}, piece.get("index")
        name, call_id, arguments = (
            _text(function, "name"),
            piece.get("id"),
            function.get("arguments"),
        )
        call_id = str(call_id) if isinstance(call_id, int) else _text(piece, "id")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else orjson.dumps(arguments).decode()
        begins = arguments.lstrip().startswith("{")
        slot = (
            len(self._calls)
            if is_whole
            else self._slot(_index(index), call_id, name, begins=begins)
        )
        is_new = slot == len(self._calls)
        if is_new:
            if slot >= _MOST_SLOTS:
                raise BoundReached(
                    f"The model's answer has more than {_MOST_SLOTS:,} tool calls. Use another model."
                )
            self._calls.append(_PartialCall(call_id or new_call_id()))
            self._by_id.setdefault(self._calls[slot].call_id, slot)
        call = self._calls[slot]
        first_name = bool(name) and not call.name
        if first_name:
            call.name = name
        call.add(arguments)
        call.is_named_once |= not name
        self._empty[slot] = None
        if call.has_arguments:
            del self._empty[slot]
        return ToolCallChunk(
            slot, arguments, call.call_id if is_new else None, name if first_name else None
        )

    def _slot(self, index: int | None, call_id: str, name: str, *, begins: bool) -> int:
        """Return the call that a piece belongs to: by its index, unless the server counts wrongly or not at all.

        `begins` says that the piece is the beginning of an object, so that a call that is whole wants no more of it.
        """
        new, last = len(self._calls), len(self._calls) - 1
        slot = None if index is None else self._by_index.get(index)
        if call_id and (known := self._by_id.get(call_id)) is not None:
            if slot is not None and self._calls[slot].call_id == call_id:
                return slot
            # A name under an index of its own begins a call, whose id the server used before.
            if index is None or slot is not None or not (name and self._calls[known].name):
                return known
        if not name and last >= 0:
            slot = self._open_slot(last if slot is None else slot, call_id, begins=begins)
        elif slot is None or self._is_another(self._calls[slot], call_id, begins=begins):
            is_named_late = (
                index is None and not call_id and last >= 0 and not self._calls[last].name
            )
            slot = last if is_named_late else new
        if index is not None:
            self._by_index[index] = slot
        return slot

    def _is_another(self, call: _PartialCall, call_id: str, *, begins: bool) -> bool:
        """Return whether a piece with a name, under the index of this call, begins another: the server numbers all of them 0."""
        return bool(call.name) and (
            bool(call_id) or (call.is_whole and (begins or call.is_named_once))
        )

    def _open_slot(self, slot: int, call_id: str, *, begins: bool) -> int:
        """Return the call that a piece without a name goes on with: this one, unless it is whole and another is open."""
        last = len(self._calls) - 1
        if not self._calls[slot].is_whole:
            return slot
        if begins and self._empty:
            return next(iter(self._empty))
        if not self._calls[last].is_whole and self._calls[last].name:
            return last
        return last + 1 if begins or call_id else slot

    def _add_details(self, delta: dict[str, Any]) -> None:
        """Put OpenRouter's `reasoning_details` together from their pieces: what has to be sent back as it came."""
        for place, row in enumerate(_detail_rows(delta)):
            index = row.get("index")
            key: tuple[Any, ...] = (row.get("type"), place if index is None else index)
            if row.get("type") == "reasoning.encrypted":
                key += (row.get("id"),)
            known = self._details.setdefault(key, {})
            for name, value in row.items():
                if name in ("text", "summary") and isinstance(value, str):
                    self._grown.setdefault((*key, name), []).append(value)
                    known[name] = ""
                elif value is not None or name not in known:
                    known[name] = value

    def reply(self, request: ModelRequest) -> ModelReply:
        parts: list[Part] = []
        thought = "".join(self._thoughts)
        # Thoughts are marked where their server wants them back.
        provider = None if self._dialect.replays == "nothing" else self._dialect.provider
        for (*key, name), pieces in self._grown.items():
            self._details[tuple(key)][name] = "".join(pieces)
        proof = orjson.dumps(list(self._details.values())).decode() if self._details else None
        if thought:
            parts.append(ReasoningPart(thought, signature=proof, provider=provider))
        elif proof:
            parts.append(ReasoningPart("", redacted=proof, provider=provider))
        if self._texts:
            parts.append(TextPart(mend_tokens("".join(self._texts))))
        parts += [
            ToolCallPart(call.call_id, call.name, mend_tokens("".join(call.arguments)))
            for call in self._calls
        ]
        reply = ModelReply(tuple(parts), finish=self._finish or "unknown", model=self._model)
        if request.logprobs is not None and any(self._logprobs.values()):
            reply = replace(reply, logprobs=self._logprobs)
        return _with_usage(reply, self._usage, request)


def read_fault(payload: dict[str, Any]) -> Any:
    """Return the error in an answer or an event whose HTTP status said that all was well; None where there is none.

    An error beside an answer that ended as answers do costs nobody the answer.
    """
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    if payload.get("error") or payload.get("object") == "error" or payload.get("type") == "error":
        return None if isinstance(reason, str) and reason.lower() in _FINISHES else payload
    if not isinstance(choice, dict):
        return None
    if choice.get("error"):
        return {"error": choice["error"]}
    return {"error": {"message": f"It stopped with {reason}."}} if reason in _BROKEN_OFF else None


def generation_in(fault: Any, request: ModelRequest) -> ModelReply | None:
    """What the model wrote, where its server refused to read a call in it (Groq's `tool_use_failed`); else None."""
    body = read_json(fault) if isinstance(fault, bytes) else fault
    error = body.get("error") if isinstance(body, dict) else None
    written = error.get("failed_generation") if isinstance(error, dict) else None
    if not isinstance(written, str) or not written.strip():
        return None
    return _with_usage(ModelReply((TextPart(written),)), None, request)


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    rows = [calls] if isinstance(calls, dict) else _as(list, calls, "tool_calls") or ()
    if not rows and isinstance(
        message.get("function_call"), dict
    ):  # The format's older way, for one call.
        return [{"function": message["function_call"]}]
    return [call for call in rows if isinstance(call, dict)]


def _index(value: Any) -> int | None:
    """The index of a call's piece, where it is a number at all."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS:
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _text(row: dict[str, Any], name: str) -> str:
    return _as(str, row.get(name), name) or ""


def _as(kind: type[_Value], value: Any, name: str) -> _Value | None:
    return value if value is None or isinstance(value, kind) else _unreadable(name)


def _unreadable(name: str) -> NoReturn:
    raise ModelError(
        "llm_error",
        f'The model\'s server gave an answer that cannot be read: "{name}" is malformed.',
    )


def _content(message: dict[str, Any]) -> tuple[str, str]:
    """Reasoning and text of a message or a delta."""
    thought = _text(message, "reasoning_content") or _reasoning(message)
    content = message.get("content")
    if not isinstance(content, list):
        return thought, _text(message, "content") or _text(message, "refusal")
    # Mistral's reasoning models give a list of pieces.
    pieces = [
        {"type": "text", "text": p} if isinstance(p, str) else _as(dict, p, "content") or {}
        for p in content
    ]
    thought += "".join(
        _piece_text(p.get("thinking")) for p in pieces if p.get("type") == "thinking"
    )
    return thought, "".join(_piece_text(p.get("text")) for p in pieces if p.get("type") == "text")


def _reasoning(message: dict[str, Any]) -> str:
    # Together and others give an object here where there is nothing to read.
    found = message.get("reasoning")
    if isinstance(found, dict):
        return _piece_text(found.get("text"))
    rows = _detail_rows(message)
    return _text(message, "reasoning") or "".join(
        _piece_text(row.get("text") or row.get("summary")) for row in rows
    )


def _piece_text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_piece_text(item.get("text")) for item in value if isinstance(item, dict))
    return value if isinstance(value, str) else ""


def _detail_rows(message: dict[str, Any]) -> list[dict[str, Any]]:
    rows = _as(list, message.get("reasoning_details"), "reasoning_details") or ()
    return [row for row in rows if isinstance(row, dict)]


def _with_usage(reply: ModelReply, usage: Any, request: ModelRequest) -> ModelReply:
    """The reply with the usage that the server reported, else with our estimate; llama.cpp may report zeros."""
    counted = read_usage(usage) if isinstance(usage, dict) else Usage()
    if not counted.total_tokens:
        counted = estimated_usage(request, reply)
    return replace(reply, usage=counted)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Return the tokens as the server counted them; a count that is none counts as not given."""
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    cached = plausible_count(prompt.get("cached_tokens"))
    if cached is None:  # DeepSeek's own name
        cached = plausible_count(usage.get("prompt_cache_hit_tokens"))
    asked, said = (
        plausible_count(usage.get("prompt_tokens")) or 0,
        plausible_count(usage.get("completion_tokens")) or 0,
    )
    thought = plausible_count(completion.get("reasoning_tokens"))
    if thought and plausible_count(usage.get("total_tokens")) == asked + said + thought:
        said += thought  # xAI counts thoughts beside the answer, all others within it.
    return Usage(
        prompt_tokens=asked,
        completion_tokens=said,
        cached_tokens=plausible_count(usage.get("cached_tokens"))
        if cached is None
        else cached,  # Together's own name
        cache_write_tokens=plausible_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=thought,
    )
