"""Replies from OpenAI's chat completions, whole or streamed. Pure.

Servers deviate from the format in small ways, which are read leniently.
"""

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
from ricordo.llm.loose_json import member_of, read_answer, read_json
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
# Finish reasons of a server that gave up in the middle of its answer.
_BROKEN_OFF = {
    "error",  # OpenRouter, Mistral
    "insufficient_system_resource",  # DeepSeek
    "abort",  # vLLM
    "aborted",
}
# Far above MOST_CALLS, since a model that makes a few calls too many is asked again.
_MOST_SLOTS = 8 * MOST_CALLS
_MOST_DIGITS = 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Field = TypeVar("_Field")


def to_reply(
    completion: dict[str, Any], request: ModelRequest, dialect: Dialect | None = None
) -> ModelReply:
    """Return the reply of a whole (not streamed) answer.

    Args:
        completion: The JSON of the answer.
        request: The request that was answered, for estimates of missing token counts.
        dialect: The known needs of the server; None for OpenAI's usual form.

    Raises:
        ModelError: A field of the answer is malformed.
        BoundReached: The answer has far too many calls.
    """
    builder = ReplyBuilder(dialect)
    for _ in builder.feed(completion):
        pass
    return builder.reply(request)


class SseReader:
    """Server-sent events that arrive in pieces: each `data:` line is one JSON object."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.is_done = False
        self._half = b""

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that are complete with this piece.

        Lines without a JSON object are skipped.

        Args:
            piece: The next bytes of the stream; an event may begin and end anywhere in them.
        """
        first, *lines = piece.split(b"\n")
        self._rest.append(first)
        if not lines:
            return
        lines.insert(0, b"".join(self._rest))
        self._rest = [lines.pop()]
        for line in lines:
            name, _, content = line.removeprefix(_BYTE_ORDER_MARK).partition(b":")
            if self.is_done or name not in (b"data", b"error"):
                continue
            content = content.strip()
            if content == b"[DONE]":
                self.is_done = True
            elif isinstance(event := read_answer(self._joined(content)), dict):
                # llama.cpp sends a late error in an `error:` line.
                if name == b"error" and "error" not in event:
                    event = {"error": event}
                yield event

    def _joined(self, content: bytes) -> bytes:
        """Move the first half of a split character from the end of this event to the next text.

        Servers that count in UTF-16 send the first half of an emoji at the end of one text, and the
        second half at the beginning of the next. Events without a text may come between them.
        """
        if not self._half and b"\\ud" not in content and b"\\uD" not in content:
            return content
        if self._half and _BEGUN_TEXT.search(content):
            pair = b'"' + self._half.replace(b"\\", b"\\\\") + rb"\1"
            content = _SECOND_HALF.sub(pair, content, count=1)
            self._half = b""
        if match := _FIRST_HALF.search(content):
            self._half = match[1]
            content = content[: match.start(1)] + content[match.end(1) :]
        return content


_FIRST_HALF = re.compile(rb'(?<!\\)(?:\\\\)*(\\u[dD][89abAB][\da-fA-F]{2})"')
_SECOND_HALF = re.compile(rb'"(\\u[dD][c-fC-F][\da-fA-F]{2})')
# A text that is not empty, in a field whose texts come in pieces.
_BEGUN_TEXT = re.compile(
    rb'"(?:content|refusal|reasoning|reasoning_content|text|thinking|summary|arguments)"'
    rb'\s*+:\s*+"[^"]'
)
_BRACES = re.compile(r'\\.?|["{}]', re.DOTALL)


@dataclass(slots=True)
class _PartialCall:
    """A call under construction from its pieces.

    `is_whole` is set while its arguments form a closed object.
    """

    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    has_arguments: bool = False
    is_whole: bool = False
    # A piece of this call had no name. So the server sends each name once, and the next name begins
    # another call.
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
    """Collects deltas into a reply.

    Servers show in various ways, or not at all, to which call a piece belongs. The builder handles
    all these cases.
    """

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect or Dialect()
        # By the JSON of the values that identify a detail.
        self._details: dict[bytes, dict[str, Any]] = {}
        # Texts of the details, which come in pieces, also by the name of their field.
        self._detail_texts: dict[tuple[bytes, str], list[str]] = {}
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        # Slots of calls that have no arguments yet, in their order.
        self._empty: dict[int, None] = {}
        self._finish: FinishReason | None = None
        self._usage: Any = None
        self._model = ""
        self._logprobs: dict[str, list[dict[str, Any]]] = {}

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def feed(self, event: dict[str, Any]) -> Iterator[Chunk]:
        """Add an event, and yield its chunks.

        Args:
            event: The JSON of one event, or of a whole answer.

        Raises:
            ModelError: A field of the event is malformed.
            BoundReached: The answer has far too many calls.
        """
        self._model = _text(event, "model") or self._model
        self._usage = event.get("usage") or self._usage
        choice = _choice(event)
        if choice is None:
            return
        if (logprobs := choice.get("logprobs")) is not None:
            self._add_logprobs(logprobs)
        delta = choice.get("delta") or {}
        is_whole = not (delta or self._texts or self._calls)
        if is_whole:
            # Some servers send a whole message instead of deltas; others repeat all deltas in it.
            delta = choice.get("message") or {}
        if not isinstance(delta, dict):
            _unreadable("delta")
        thought, text = _content(delta)
        repeats_thought = is_whole and bool(self._thoughts)
        if self._dialect.replays == "details" and not repeats_thought:
            self._add_details(delta)
        if thought and not repeats_thought:
            self._thoughts.append(thought)
            yield ReasoningChunk(thought)
        if text:
            self._texts.append(text)
            yield TextChunk(text)
        for piece in _calls(delta):
            yield self._call_piece(piece, is_whole=is_whole)
        if reason := _text(choice, "finish_reason"):
            self._finish = _FINISHES.get(reason.lower(), "unknown")

    def _add_logprobs(self, logprobs: Any) -> None:
        for name, rows in read_logprobs(logprobs).items():
            self._logprobs.setdefault(name, []).extend(rows)

    def _call_piece(self, piece: dict[str, Any], *, is_whole: bool) -> ToolCallChunk:
        function = _as(dict, piece.get("function"), "function") or {}
        name = _text(function, "name")
        sent_id = piece.get("id")
        if isinstance(sent_id, int):
            call_id = str(sent_id)
        else:
            call_id = _text(piece, "id")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            if arguments is None:
                arguments = ""
            else:
                arguments = orjson.dumps(arguments).decode()
        begins = arguments.lstrip().startswith("{")
        slot = len(self._calls)
        if not is_whole:
            slot = self._slot(_index(piece.get("index")), call_id, name, begins=begins)
        is_new = slot == len(self._calls)
        if is_new:
            if slot >= _MOST_SLOTS:
                raise BoundReached(
                    f"The model's answer has more than {_MOST_SLOTS:,} tool calls. Use another "
                    "model."
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

    def _slot_of_id(
        self, call_id: str, slot: int | None, index: int | None, name: str
    ) -> int | None:
        """Return the slot of the call with this id, if the piece continues that call.

        `slot` is the slot of the piece's index.
        """
        same_id = self._by_id.get(call_id) if call_id else None
        if same_id is None:
            return None
        if slot is not None and self._calls[slot].call_id == call_id:
            return slot
        # A name under a new index begins a call, even if the server reuses an id.
        if index is None or slot is not None or not (name and self._calls[same_id].name):
            return same_id
        return None

    def _slot(self, index: int | None, call_id: str, name: str, *, begins: bool) -> int:
        """Return the slot of the call that a piece belongs to.

        It is the call with the piece's index, unless the server numbers calls wrongly or not at
        all. If the piece begins a new call, it is the next free slot. With `begins` the piece
        begins an object, so it cannot continue a complete call.
        """
        new = len(self._calls)
        last = new - 1
        if index is None:
            slot = None
        else:
            slot = self._by_index.get(index)
        if (slot_of_id := self._slot_of_id(call_id, slot, index, name)) is not None:
            return slot_of_id
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
        """Return whether a named piece under this call's index begins another call.

        Some servers send index 0 for all calls.
        """
        if not call.name:
            return False
        return bool(call_id) or (call.is_whole and (begins or call.is_named_once))

    def _open_slot(self, slot: int, call_id: str, *, begins: bool) -> int:
        """Return the slot of the call that a piece without a name continues.

        It is the call in `slot`, unless that call is complete. Then it is an open call, or else a
        new one if the piece begins an object or has an id.
        """
        last = len(self._calls) - 1
        if not self._calls[slot].is_whole:
            return slot
        if begins and self._empty:
            return next(iter(self._empty))
        if not self._calls[last].is_whole and self._calls[last].name:
            return last
        if begins or call_id:
            return last + 1
        return slot

    def _add_details(self, delta: dict[str, Any]) -> None:
        """Join OpenRouter's `reasoning_details` from their pieces.

        They have to be sent back exactly as they came.
        """
        for position, row in enumerate(_detail_rows(delta)):
            index = row.get("index")
            identity = [row.get("type"), position if index is None else index]
            if row.get("type") == "reasoning.encrypted":
                identity.append(row.get("id"))
            key = orjson.dumps(identity)
            detail = self._details.setdefault(key, {})
            for name, field_value in row.items():
                if name in ("text", "summary") and isinstance(field_value, str):
                    self._detail_texts.setdefault((key, name), []).append(field_value)
                    detail[name] = ""
                elif field_value is not None or name not in detail:
                    detail[name] = field_value

    def reply(self, request: ModelRequest) -> ModelReply:
        """Return the reply of all events so far.

        Args:
            request: The request that was answered. Missing token counts are estimated from it.
        """
        parts: list[Part] = []
        thought = "".join(self._thoughts)
        # Reasoning is marked with its provider if that provider wants it back.
        if self._dialect.replays == "nothing":
            provider = None
        else:
            provider = self._dialect.provider
        for (key, name), pieces in self._detail_texts.items():
            self._details[key][name] = "".join(pieces)
        if self._details:
            proof = orjson.dumps(list(self._details.values())).decode()
        else:
            proof = None
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


def read_fault(answer: dict[str, Any]) -> Any:
    """Return the error in an answer or event whose HTTP status is a success.

    An error beside a choice with a usual finish reason is ignored, so that the answer is not lost.
    Without such an error, an error inside the choice is returned.

    Args:
        answer: The JSON of a whole answer, or of one event.

    Returns:
        The JSON with the error; None if there is none.
    """
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        choice = choices[0]
    else:
        choice = None
    reason = member_of(choice, "finish_reason")
    if answer.get("error") or answer.get("object") == "error" or answer.get("type") == "error":
        if isinstance(reason, str) and reason.lower() in _FINISHES:
            return None
        return answer
    if not isinstance(choice, dict):
        return None
    if choice.get("error"):
        return {"error": choice["error"]}
    if isinstance(reason, str) and reason.lower() in _BROKEN_OFF:
        return {"error": {"message": f"It stopped with {reason}."}}
    return None


def generation_in(fault: Any, request: ModelRequest) -> ModelReply | None:
    """If the server failed to read a call in the model's text, return that text, else None.

    Groq sends the text with the error `tool_use_failed`.

    Args:
        fault: The body of the error as bytes, or its JSON.
        request: The request that was refused, for estimates of token counts.
    """
    if isinstance(fault, bytes):
        body = read_json(fault)
    else:
        body = fault
    text = member_of(member_of(body, "error"), "failed_generation")
    if not isinstance(text, str) or not text.strip():
        return None
    return _with_usage(ModelReply((TextPart(text),)), None, request)


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    rows = [calls] if isinstance(calls, dict) else _as(list, calls, "tool_calls") or ()
    # `function_call` is the format's older field for a single call.
    if not rows and isinstance(message.get("function_call"), dict):
        return [{"function": message["function_call"]}]
    return [call for call in rows if isinstance(call, dict)]


def _index(index: Any) -> int | None:
    """Return the index of a call's piece.

    Returns None if it is not a whole number.
    """
    if isinstance(index, str) and index.isdecimal() and len(index) < _MOST_DIGITS:
        return int(index)
    if isinstance(index, float):
        if index.is_integer():
            return int(index)
        return None
    if isinstance(index, int):
        return index
    return None


def _text(row: dict[str, Any], name: str) -> str:
    return _as(str, row.get(name), name) or ""


def _as(kind: type[_Field], field_value: Any, name: str) -> _Field | None:
    if field_value is None or isinstance(field_value, kind):
        return field_value
    return _unreadable(name)


def _unreadable(name: str) -> NoReturn:
    raise ModelError(
        "llm_error",
        f'The model\'s server sent an answer that cannot be read: "{name}" is malformed.',
    )


def _choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event's choice; Azure's first event and OpenAI's last event have no choice."""
    choices = _as(list, event.get("choices"), "choices")
    if not choices:
        return None
    choice = _as(dict, choices[0], "choices")
    if choice is None:
        _unreadable("choices")
    return choice


def _content(message: dict[str, Any]) -> tuple[str, str]:
    """Return the reasoning and the text of a message or a delta."""
    thought = _text(message, "reasoning_content") or _reasoning(message)
    content = message.get("content")
    if not isinstance(content, list):
        return thought, _text(message, "content") or _text(message, "refusal")
    # Mistral's reasoning models send a list of pieces.
    text = ""
    for piece in content:
        if isinstance(piece, str):
            text += piece
            continue
        fields = _as(dict, piece, "content") or {}
        if fields.get("type") == "thinking":
            thought += _piece_text(fields.get("thinking"))
        elif fields.get("type") == "text":
            text += _piece_text(fields.get("text"))
    return thought, text


def _reasoning(message: dict[str, Any]) -> str:
    # Together and others send an object here instead of null.
    reasoning = message.get("reasoning")
    if isinstance(reasoning, dict):
        return _piece_text(reasoning.get("text"))
    rows = _detail_rows(message)
    return _text(message, "reasoning") or "".join(
        _piece_text(row.get("text") or row.get("summary")) for row in rows
    )


def _piece_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(
            _piece_text(piece.get("text")) for piece in content if isinstance(piece, dict)
        )
    if isinstance(content, str):
        return content
    return ""


def _detail_rows(message: dict[str, Any]) -> list[dict[str, Any]]:
    rows = _as(list, message.get("reasoning_details"), "reasoning_details") or ()
    return [row for row in rows if isinstance(row, dict)]


def _with_usage(reply: ModelReply, usage: Any, request: ModelRequest) -> ModelReply:
    """Return the reply with the server's usage, or with our estimate if the server sends none.

    llama.cpp may report zeros, which count as none.
    """
    if isinstance(usage, dict):
        counts = read_usage(usage)
    else:
        counts = Usage()
    if not counts.total_tokens:
        counts = estimated_usage(request, reply)
    return replace(reply, usage=counts)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Return the server's counts of tokens; an implausible count is left out.

    Args:
        usage: The field `usage` of an answer.
    """
    prompt_details = usage.get("prompt_tokens_details")
    if not isinstance(prompt_details, dict):
        prompt_details = {}
    completion_details = usage.get("completion_tokens_details")
    if not isinstance(completion_details, dict):
        completion_details = {}
    cached = plausible_count(prompt_details.get("cached_tokens"))
    if cached is None:  # DeepSeek's name for it
        cached = plausible_count(usage.get("prompt_cache_hit_tokens"))
    if cached is None:  # Together's name for it
        cached = plausible_count(usage.get("cached_tokens"))
    prompt = plausible_count(usage.get("prompt_tokens")) or 0
    completion = plausible_count(usage.get("completion_tokens")) or 0
    reasoning = plausible_count(completion_details.get("reasoning_tokens"))
    total = plausible_count(usage.get("total_tokens"))
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning  # xAI counts reasoning separately; all others include it
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=plausible_count(prompt_details.get("cache_write_tokens")),
        reasoning_tokens=reasoning,
    )
