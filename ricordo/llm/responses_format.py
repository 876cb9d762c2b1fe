"""OpenAI's responses API as JSON: our messages to its input items, and its output items to our parts. Pure.

Nothing is stored at the provider: thoughts come back encrypted, are kept as they came, and go back in their place.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from ricordo.domain.message import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import FinishReason, ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.openai_dialect import Dialect
from ricordo.llm.openai_format import content_of, function_of, readable_arguments, readable_name
from ricordo.llm.openai_reading import as_text, read_text, unreadable
from ricordo.llm.pictures import UNREADABLE, readable_picture
from ricordo.llm.repair import new_call_id
from ricordo.llm.tokens import estimated_usage

_CUT: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_OURS = frozenset({"strict", "provider_type", "verbosity"})


def to_body(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """The whole request, ready to be dumped."""
    settings = request.settings
    body: dict[str, Any] = {"model": model, "input": to_items(request.messages, dialect.provider), "store": False}
    if request.tools:
        is_strict = settings.extra.get("strict") is True
        body["tools"] = [_tool(function_of(tool, is_strict=is_strict)) for tool in request.tools]
        forced = request.forced_tool
        body["tool_choice"] = {"type": "function", "name": forced} if forced else request.tool_choice
        if settings.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.temperature is not None and dialect.takes_temperature:
        body["temperature"] = settings.temperature
    if settings.max_output_tokens is not None:
        body["max_output_tokens"] = settings.max_output_tokens
    if dialect.effort != "none":
        body["include"] = ["reasoning.encrypted_content"]
        if settings.reasoning_effort is not None:
            # A summary is all that is shown of these thoughts, and only to those who ask for it.
            shows = {} if settings.reasoning_effort == "none" else {"summary": "auto"}
            body["reasoning"] = {"effort": settings.reasoning_effort, **shows}
    if text := _text(request, dialect):
        body["text"] = text
    if request.user_id is not None:
        body["user"] = request.user_id
    if request.stream:
        body["stream"] = True
    body.update((name, value) for name, value in settings.extra.items() if name not in _OURS)
    return body


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    # Left out, `strict` would be true here.
    return {"type": "function", "strict": False, **function}


def _text(request: ModelRequest, dialect: Dialect) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wanted = request.settings.response_format
    if wanted is not None:
        schema = wanted.get("json_schema")
        inner = schema if wanted.get("type") == "json_schema" and isinstance(schema, dict) else {}
        found["format"] = {"type": wanted.get("type", "text"), **inner}
    verbosity = request.settings.extra.get("verbosity")
    if verbosity and dialect.takes_verbosity:
        found["verbosity"] = verbosity
    return found


def to_items(messages: Iterable[Message], provider: str) -> list[dict[str, Any]]:
    """The transcript as input items, in its order."""
    items: list[dict[str, Any]] = []
    for message in messages:
        role = message.role
        if role == "assistant" or (role == "approval" and message.tool_calls):
            items += _said(message, provider)
        elif role in {"tool", "approval"}:
            items += (
                {"type": "function_call_output", "call_id": part.call_id, "output": part.content}
                for part in message.tool_returns
            )
        elif content := content_of(message.parts, "input_text", _picture):
            items.append({"role": "system" if role == "system" else "user", "content": content})
    return items


def _said(message: Message, provider: str) -> list[dict[str, Any]]:
    """What the model said, as items; thoughts at the very end, with nothing of the model behind them, are refused."""
    items: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart() if part.text:
                items.append({"role": "assistant", "content": part.text})
            case ToolCallPart():
                arguments = readable_arguments(part.arguments)
                items.append(
                    {
                        "type": "function_call",
                        "call_id": part.call_id,
                        "name": readable_name(part.name),
                        "arguments": arguments,
                    }
                )
            case ReasoningPart() if part.provider == provider and (item := _thought(part)):
                items.append(item)
            case _:
                pass
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _thought(part: ReasoningPart) -> dict[str, Any] | None:
    try:
        item = orjson.loads(part.signature or part.redacted or "")
    except orjson.JSONDecodeError:
        return None
    return item if isinstance(item, dict) and item.get("type") == "reasoning" else None


def _picture(part: ImagePart) -> dict[str, Any]:
    picture = readable_picture(part)
    if picture is None:
        return {"type": "input_text", "text": UNREADABLE}
    address = picture.url or f"data:{picture.media_type};base64,{picture.data}"
    return {"type": "input_image", "image_url": address, "detail": picture.detail or "auto"}


def to_reply(response: dict[str, Any], request: ModelRequest, dialect: Dialect) -> ModelReply:
    """The reply in a whole response. Raises ModelError where the response breaks the format."""
    output = response.get("output")
    if not isinstance(output, list):
        unreadable("output")
    parts: list[Part] = []
    for item in output:
        if isinstance(item, dict):
            parts += parts_of(item, dialect.provider)
    reply = ModelReply(tuple(parts), finish=_finish(response, parts), model=read_text(response, "model"))
    return ModelReply(reply.parts, _usage(response.get("usage"), request, reply), reply.finish, reply.model)


def parts_of(item: dict[str, Any], provider: str) -> list[Part]:
    """One output item as parts; of kinds that we never asked for, none."""
    match item.get("type"):
        case "message":
            text = "".join(read_text(row, "text") or read_text(row, "refusal") for row in _rows(item, "content"))
            return [TextPart(text)] if text else []
        case "function_call":
            call_id = read_text(item, "call_id") or read_text(item, "id") or new_call_id()
            return [ToolCallPart(call_id, read_text(item, "name"), as_text(item.get("arguments")))]
        case "reasoning":
            rows = _rows(item, "summary") or _rows(item, "content")
            text = "\n\n".join(read_text(row, "text") for row in rows)
            proof = _proof(item)
            if not (text or proof):
                return []
            return [ReasoningPart(text, proof if text else None, None if text else proof, provider=provider)]
        case _:
            return []


def _proof(item: dict[str, Any]) -> str | None:
    """The item as it goes back. Its id stays out: nothing is stored there, so that no server would find it."""
    if not item.get("encrypted_content"):
        return None
    kept = {"type": "reasoning", "summary": item.get("summary") or [], "encrypted_content": item["encrypted_content"]}
    return orjson.dumps(kept).decode()


def _rows(item: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = item.get(name) or []
    if not isinstance(rows, list):
        unreadable(name)
    return [row for row in rows if isinstance(row, dict)]


def _finish(response: dict[str, Any], parts: list[Part]) -> FinishReason:
    if response.get("status") == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return _CUT.get(str(reason), "unknown")
    return "tool_calls" if any(isinstance(part, ToolCallPart) for part in parts) else "stop"


def _usage(usage: Any, request: ModelRequest, reply: ModelReply) -> Usage:
    if not isinstance(usage, dict) or not (usage.get("input_tokens") or usage.get("output_tokens")):
        return estimated_usage(request, reply)
    asked, said = (usage.get(name) or {} for name in ("input_tokens_details", "output_tokens_details"))
    try:
        return Usage(
            prompt_tokens=int(usage.get("input_tokens") or 0),
            completion_tokens=int(usage.get("output_tokens") or 0),
            cached_tokens=asked.get("cached_tokens"),
            cache_write_tokens=asked.get("cache_write_tokens"),
            reasoning_tokens=said.get("reasoning_tokens"),
        )
    except (AttributeError, TypeError, ValueError):
        unreadable("usage")


def fault_of(response: dict[str, Any]) -> dict[str, Any] | None:
    """The error of a response that failed, in the shape of any other error of OpenAI's; None where there is none."""
    error = response.get("error")
    if error:
        return {"error": error}
    status = response.get("status")
    return {"error": {"message": f"The response is {status}."}} if status in {"failed", "cancelled"} else None


def require_response(payload: Any, address: str) -> dict[str, Any]:
    """The payload, where it is a response. Raises ModelError that says what to do."""
    if isinstance(payload, dict) and (payload.get("object") == "response" or "output" in payload or "error" in payload):
        return payload
    raise ModelError(
        "llm_bad_request",
        f"{address} did not answer with a response. Check its address, or set OPENAI_API=chat for chat completions.",
    )
