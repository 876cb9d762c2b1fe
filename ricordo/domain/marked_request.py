"""Marks for hidden text in the messages and tools of a request to a model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.hidden_text import with_marks
from ricordo.domain.message import (
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)

if TYPE_CHECKING:
    from ricordo.domain.model import ToolSchema


def marked_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages with marks for hidden text; the same ones where they have none."""
    marked = tuple(map(_marked_message, messages))
    has_marks = any(new is not old for new, old in zip(marked, messages, strict=True))
    return marked if has_marks else messages


def marked_tools(tools: "tuple[ToolSchema, ...]") -> "tuple[ToolSchema, ...]":
    """Return the tools with marks for hidden text; the same ones where they have none."""
    marked = tuple(map(_marked_tool, tools))
    has_marks = any(new is not old for new, old in zip(marked, tools, strict=True))
    return marked if has_marks else tools


def _marked_message(message: Message) -> Message:
    parts = tuple(map(_marked_part, message.parts))
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return replace(message, parts=parts)


def _marked_part(part: Part) -> Part:
    match part:
        # A provider's signature is the proof of its own text, which stays as it is.
        case TextPart(text=text, signature=None):
            marked = with_marks(text)
            return part if marked is text else replace(part, text=marked)
        case ReasoningPart(text=text, signature=None, redacted=None):
            marked = with_marks(text)
            return part if marked is text else replace(part, text=marked)
        case ToolCallPart(arguments=arguments):
            marked = _marked_json(arguments)
            return part if marked is arguments else replace(part, arguments=marked)
        case ToolReturnPart(content=content):
            marked = with_marks(content)
            return part if marked is content else replace(part, content=marked)
        case _:
            return part


def _marked_json(text: str) -> str:
    """Return a model's JSON with marks, also for characters that it wrote as escapes."""
    text = with_marks(text)
    if "\\u" not in text:
        return text
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    marked = _marked_value(content)
    return text if marked == content else orjson.dumps(marked).decode()


def _marked_tool(tool: "ToolSchema") -> "ToolSchema":
    description = with_marks(tool.description)
    if description is tool.description and _is_ascii_json(tool.parameters):
        return tool
    parameters = _marked_value(tool.parameters)
    if description is tool.description and parameters == tool.parameters:
        return tool
    return replace(tool, description=description, parameters=parameters)


def _is_ascii_json(parameters: Mapping[str, Any]) -> bool:
    """Return whether the schema has ASCII characters only, as nearly all have.

    Returns False for a schema that orjson cannot write, such as one with a number of more than 64
    bits.
    """
    try:
        return orjson.dumps(parameters).isascii()
    except TypeError:
        return False


def _marked_value(content: Any) -> Any:
    if isinstance(content, str):
        return with_marks(content)
    if isinstance(content, Mapping):
        return {name: _marked_value(member) for name, member in content.items()}
    if isinstance(content, list):
        return [_marked_value(member) for member in content]
    return content
