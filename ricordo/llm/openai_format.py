"""Chat completions as JSON: our messages to the wire, and the wire to our reply. Pure; built by hand because it runs each step."""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import orjson

from ricordo.domain.message import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import FinishReason, ModelReply, ModelRequest, ToolSchema
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.pictures import UNREADABLE, readable_picture
from ricordo.llm.repair import new_call_id
from ricordo.llm.tokens import estimated_usage

_FINISHES: dict[str | None, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
_Value = TypeVar("_Value")
_MISTRAL_ID = re.compile(r"^[A-Za-z0-9]{9}$")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server's reading of the format differs from the common one."""

    max_tokens_name: str = "max_tokens"
    takes_user: bool = True
    takes_stream_options: bool = True
    forces_by_name: bool = True
    short_call_ids: bool = False


_OPENAI = Dialect(max_tokens_name="max_completion_tokens")
# Mistral refuses fields it does not know, and call ids that are not nine letters or digits.
_MISTRAL = Dialect(takes_user=False, takes_stream_options=False, short_call_ids=True)
# LM Studio takes tool_choice as a word only.
_LMSTUDIO = Dialect(forces_by_name=False)


def dialect_of(endpoint_type: str, base_url: str) -> Dialect:
    """The dialect spoken at an address."""
    if "://api.openai.com" in base_url or endpoint_type == "azure":
        return _OPENAI
    return {"mistral": _MISTRAL, "lmstudio": _LMSTUDIO}.get(endpoint_type, Dialect())


def to_body(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """The whole request, ready to be dumped."""
    settings = request.settings
    body: dict[str, Any] = {"model": model, "messages": to_messages(request.messages, dialect)}
    if request.tools:
        _add_tools(body, request, dialect)
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.max_output_tokens is not None:
        body[dialect.max_tokens_name] = settings.max_output_tokens
    if settings.reasoning_effort is not None:
        body["reasoning_effort"] = settings.reasoning_effort
    if settings.response_format is not None:
        body["response_format"] = settings.response_format
    if request.user_id is not None and dialect.takes_user:
        body["user"] = request.user_id
    if request.stream:
        body["stream"] = True
        if dialect.takes_stream_options:
            body["stream_options"] = {"include_usage": True}
    body.update(settings.extra)
    return body


def _add_tools(body: dict[str, Any], request: ModelRequest, dialect: Dialect) -> None:
    tools: Iterable[ToolSchema] = request.tools
    choice: Any = request.tool_choice
    if request.forced_tool is not None:
        choice = {"type": "function", "function": {"name": request.forced_tool}}
        if not dialect.forces_by_name:
            tools, choice = [tool for tool in tools if tool.name == request.forced_tool], "required"
    body["tools"] = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]
    body["tool_choice"] = choice
    if request.settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.settings.parallel_tool_calls


def to_messages(messages: Iterable[Message], dialect: Dialect | None = None) -> list[dict[str, Any]]:
    """The transcript in its order. Reasoning stays out: these servers do not take it back."""
    call_id = _short_id if dialect is not None and dialect.short_call_ids else _same
    rows: list[dict[str, Any]] = []
    for message in messages:
        role = message.role
        if role == "assistant" or (role == "approval" and message.tool_calls):
            if row := _assistant(message, call_id):
                rows.append(row)
        elif role in {"tool", "approval"}:
            rows += (
                {"role": "tool", "tool_call_id": call_id(part.call_id), "content": part.content}
                for part in message.tool_returns
            )
        elif role == "system":
            rows.append({"role": "system", "content": message.text})
        elif content := _content(message.parts):
            rows.append({"role": "user", "content": content})
    return rows


def _assistant(message: Message, call_id: Callable[[str], str]) -> dict[str, Any] | None:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": readable_arguments(part.arguments)}
            calls.append({"id": call_id(part.call_id), "type": "function", "function": function})
    text = "\n".join(texts)
    if calls:
        return {"role": "assistant", "content": text or None, "tool_calls": calls}
    return {"role": "assistant", "content": text} if text else None


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]] | None:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    if not any(isinstance(part, ImagePart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart)) or None
    rows: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            rows.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            rows.append(_picture(part))
    return rows


def _picture(part: ImagePart) -> dict[str, Any]:
    picture = readable_picture(part)
    if picture is None:
        return {"type": "text", "text": UNREADABLE}
    image = {"url": picture.url or f"data:{picture.media_type};base64,{picture.data}"}
    if picture.detail is not None:
        image["detail"] = picture.detail
    return {"type": "image_url", "image_url": image}


def readable_arguments(text: str) -> str:
    """Arguments that a server can read: a call whose JSON was broken must not make the whole transcript unusable."""
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({"unreadable_arguments": text}).decode()


def _same(call_id: str) -> str:
    return call_id


def _short_id(call_id: str) -> str:
    if _MISTRAL_ID.match(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=16).hexdigest()[:9]


def to_reply(payload: dict[str, Any], request: ModelRequest) -> ModelReply:
    """The reply in a whole (not streamed) answer."""
    choice = read_choice(payload) or {}
    message = _as(dict, choice.get("message"), "message") or {}
    thought, text = read_content(message)
    calls = read_calls(message)
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    parts: list[Part] = [ReasoningPart(thought)] if thought else []
    if text:
        parts.append(TextPart(text))
    parts += [read_call(call) for call in calls]
    reply = ModelReply(tuple(parts), finish=read_finish(choice.get("finish_reason")), model=read_text(payload, "model"))
    return with_usage(reply, payload.get("usage"), request)


def read_choice(payload: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice of an answer or an event; None where it has none."""
    choices = _as(list, payload.get("choices"), "choices")
    if not choices:
        return None
    choice = _as(dict, choices[0], "choices")
    return unreadable("choices") if choice is None else choice


def read_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls, or pieces of calls, in a message or a delta."""
    return [call for call in _as(list, message.get("tool_calls"), "tool_calls") or () if isinstance(call, dict)]


def read_text(row: dict[str, Any], name: str) -> str:
    """A field's text, empty where it is missing."""
    return _as(str, row.get(name), name) or ""


def _as(kind: type[_Value], value: Any, name: str) -> _Value | None:
    return value if value is None or isinstance(value, kind) else unreadable(name)


def unreadable(name: str) -> NoReturn:
    """Raise the ModelError for an answer that breaks the format in this field."""
    raise ModelError("llm_error", f'The model\'s server gave an answer that cannot be read: "{name}" is malformed.')


def read_content(message: dict[str, Any]) -> tuple[str, str]:
    """Reasoning and text of a message or a delta."""
    thought = read_text(message, "reasoning_content") or read_text(message, "reasoning")
    content = message.get("content")
    if not isinstance(content, list):
        return thought, read_text(message, "content") or read_text(message, "refusal")
    # Mistral's reasoning models give a list of pieces.
    pieces = [_as(dict, piece, "content") or {} for piece in content]
    thought += "".join(_piece_text(p.get("thinking")) for p in pieces if p.get("type") == "thinking")
    return thought, "".join(_piece_text(p.get("text")) for p in pieces if p.get("type") == "text")


def _piece_text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_piece_text(item.get("text")) for item in value if isinstance(item, dict))
    return value if isinstance(value, str) else ""


def read_call(call: dict[str, Any]) -> ToolCallPart:
    """One whole call; its id is made where the server gave none."""
    function = read_function(call)
    arguments = as_text(function.get("arguments"))
    return ToolCallPart(read_text(call, "id") or new_call_id(), read_text(function, "name"), arguments)


def read_function(call: dict[str, Any]) -> dict[str, Any]:
    """What a call, or a piece of one, says of its function."""
    return _as(dict, call.get("function"), "function") or {}


def as_text(arguments: Any) -> str:
    """Arguments as JSON text, from servers that give an object too."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else orjson.dumps(arguments).decode()


def read_finish(reason: Any) -> FinishReason:
    """Why the answer ended."""
    return _FINISHES.get(_as(str, reason, "finish_reason"), "unknown")


def with_usage(reply: ModelReply, usage: Any, request: ModelRequest) -> ModelReply:
    """The reply with the usage that the server reported, else with our estimate."""
    counted = read_usage(usage) if isinstance(usage, dict) else Usage()
    if not counted.total_tokens:
        counted = estimated_usage(request, reply)
    return ModelReply(reply.parts, counted, reply.finish, reply.model)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Tokens as the server counted them."""
    prompt = _as(dict, usage.get("prompt_tokens_details"), "usage") or {}
    completion = _as(dict, usage.get("completion_tokens_details"), "usage") or {}
    cached = _count(prompt.get("cached_tokens"))
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")) or 0,
        completion_tokens=_count(usage.get("completion_tokens")) or 0,
        cached_tokens=_count(usage.get("prompt_cache_hit_tokens")) if cached is None else cached,  # DeepSeek's own name
        cache_write_tokens=_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
    )


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, float) else _as(int, value, "usage")
