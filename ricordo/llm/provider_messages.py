"""Our messages as pydantic-ai's, and its responses as our replies. What a provider signed goes back to that provider only."""

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.message import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import FinishReason, ModelInfo, ModelReply
from ricordo.domain.usage import Usage
from ricordo.llm.openai_format import readable_arguments
from ricordo.llm.pictures import UNREADABLE, readable_picture

if TYPE_CHECKING:
    from pydantic_ai import messages as wire

# Providers want a conversation to begin with the user; a window that was cut may begin with the assistant.
OPENING = "(The conversation goes on.)"
_REDACTED = ("redacted_thinking", "redacted_content")
_SIGNATURE = "thought_signature"
# The names under which pydantic-ai files what it got from our providers.
_SYSTEMS = {"anthropic": "anthropic", "google_ai": "google", "bedrock": "bedrock"}
_FINISHES: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}


def to_messages(messages: Iterable[Message], provider: str) -> "list[wire.ModelMessage]":
    """The transcript in its order; neighbours on the same side of the conversation that are not the model's become one."""
    from pydantic_ai import messages as wire

    result: list[wire.ModelMessage] = []
    pending: list[Any] = []
    for number, message in enumerate(messages):
        if message.role == "assistant" or (message.role == "approval" and message.tool_calls):
            parts = [part for own in message.parts if (part := _response_part(own, provider)) is not None]
            if not parts:
                continue
            if not any(isinstance(part, (wire.UserPromptPart, wire.ToolReturnPart)) for part in pending) and not result:
                pending.append(wire.UserPromptPart(OPENING))
            if pending:
                result.append(wire.ModelRequest(parts=pending))
            pending = []
            result.append(wire.ModelResponse(parts=parts, provider_name=_SYSTEMS.get(provider, provider)))
        else:
            pending += _request_parts(message, is_first=number == 0)
    if pending:
        result.append(wire.ModelRequest(parts=pending))
    return result


def _request_parts(message: Message, *, is_first: bool) -> list[Any]:
    from pydantic_ai import messages as wire

    if message.role == "system" and is_first:
        return [wire.SystemPromptPart(message.text)]
    if message.role in {"tool", "approval"}:
        return [
            wire.ToolReturnPart(
                tool_name=part.name,
                content=part.content,
                tool_call_id=part.call_id,
                outcome="success" if part.status == "success" else "failed",
            )
            for part in message.tool_returns
        ]
    # A later system message stays in its place, in the user's voice: at the top it would rewrite the cached prompt.
    content = [piece for part in message.parts if (piece := _piece(part)) is not None]
    if not content:
        return []
    plain = content[0] if len(content) == 1 and isinstance(content[0], str) else content
    return [wire.UserPromptPart(plain)]


def _piece(part: Part) -> Any:
    from pydantic_ai import messages as wire

    if isinstance(part, TextPart):
        return part.text or None
    if isinstance(part, ImagePart):
        picture = readable_picture(part)
        if picture is None:
            return UNREADABLE
        if picture.url is not None:
            return wire.ImageUrl(picture.url, media_type=picture.media_type or None)
        return wire.BinaryContent(base64.b64decode(picture.data or ""), media_type=picture.media_type)
    return None


def _response_part(part: Part, provider: str) -> Any:
    from pydantic_ai import messages as wire

    system = _SYSTEMS.get(provider, provider)
    match part:
        case TextPart() if part.text:
            details = {_SIGNATURE: part.signature} if part.signature else None
            return wire.TextPart(part.text, provider_name=system if details else None, provider_details=details)
        case ToolCallPart():
            return wire.ToolCallPart(part.name, readable_arguments(part.arguments), part.call_id)
        case ReasoningPart() if part.provider == provider and part.redacted:
            return wire.ThinkingPart("", id=_REDACTED[0], signature=part.redacted, provider_name=system)
        case ReasoningPart() if part.provider == provider and part.signature:
            return wire.ThinkingPart(part.text, signature=part.signature, provider_name=system)
        case _:
            return None


def to_reply(response: "wire.ModelResponse", info: ModelInfo) -> ModelReply:
    """The reply in a provider's response."""
    parts = [part for own in response.parts if (part := _our_part(own, info.provider)) is not None]
    usage = response.usage
    return ModelReply(
        parts=tuple(parts),
        usage=Usage(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.details.get("reasoning_tokens") or usage.details.get("thoughts_tokens"),
        ),
        finish=_FINISHES.get(response.finish_reason, "unknown"),
        model=response.model_name or info.name,
    )


def _our_part(part: Any, provider: str) -> Part | None:
    match part.part_kind:
        case "text" if part.content:
            return TextPart(part.content, (part.provider_details or {}).get(_SIGNATURE))
        case "thinking" if part.id in _REDACTED:
            return ReasoningPart("", redacted=part.signature, provider=provider)
        case "thinking" if part.content or part.signature:
            return ReasoningPart(part.content, signature=part.signature, provider=provider)
        case "tool-call":
            return ToolCallPart(part.tool_call_id, part.tool_name, arguments_of(part.args))
        case _:
            return None


def arguments_of(arguments: Any) -> str:
    """Arguments as JSON text, whichever way the library holds them."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else orjson.dumps(arguments).decode()
