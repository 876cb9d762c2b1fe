"""Broken outputs of small models, mended in one place. Pure: what cannot be mended with certainty is left as it came.

Mended: a call written as text, `<think>` in the text, arguments that are empty, encoded twice, wrapped in their schema, said
twice or written as Python does, a call's name with something around it, a finish that contradicts the parts. What is still
broken then is named by `fault_in`, so that the model can be asked once more.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, ModelRequest, ToolSchema
from ricordo.llm.written_calls import looks_like_a_call, offered_name, read_json, written_calls

_THINK = re.compile(r"^\s*<(think|thinking)>(?P<thought>.*?)(?:</\1>|$)", re.DOTALL)
# Some chat templates open the thought themselves, so that the answer holds only its end.
_THINK_END = re.compile(r"^(?P<thought>(?:(?!<think).)*?)</(?:think|thinking)>", re.DOTALL)
# What templates leave behind the arguments of a call.
_LEFT_OVER = re.compile(r"^(?:\s*(?:</\w+>|<\|[^|>]*\|>|<｜[^｜>]*｜>|```))*\s*$")
_SCHEMA_KEYS = {"type", "properties", "required", "title", "description", "additionalProperties", "$schema", "$defs"}


def is_empty(reply: ModelReply) -> bool:
    """Whether the reply says nothing: no word and no call, though nothing cut it short."""
    if reply.finish in {"length", "content_filter"}:
        return False
    return not any(
        isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and part.text.strip()) for part in reply.parts
    )


def repair(reply: ModelReply, tools: Sequence[ToolSchema]) -> ModelReply:
    """The reply as the model meant it; the same object where there is nothing to mend."""
    offered = {tool.name: tool for tool in tools}
    parts = _with_thoughts_apart(reply.parts)
    if offered and not any(isinstance(part, ToolCallPart) for part in parts):
        parts = _with_written_calls(parts, offered)
    parts = tuple(_mended_call(part, offered) if isinstance(part, ToolCallPart) else part for part in parts)
    finish = reply.finish
    if finish in {"stop", "tool_calls", "unknown"}:
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        finish = "tool_calls" if has_calls else "stop" if finish == "tool_calls" else finish
    if parts == reply.parts and finish == reply.finish:
        return reply
    return replace(reply, parts=parts, finish=finish)


def _with_thoughts_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    place, text = next(((n, part) for n, part in enumerate(parts) if isinstance(part, TextPart)), (0, TextPart("")))
    found = _THINK.match(text.text) or ("</think" in text.text and _THINK_END.match(text.text))
    if not found:
        return parts
    thought, rest = found["thought"].strip(), text.text[found.end() :].lstrip()
    split: list[Part] = [ReasoningPart(thought, native=False)] if thought else []
    if rest:
        split.append(replace(text, text=rest))
    return (*parts[:place], *split, *parts[place + 1 :])


def _with_written_calls(parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]) -> tuple[Part, ...]:
    result: list[Part] = []
    for part in parts:
        calls, rest = written_calls(part.text, offered) if isinstance(part, TextPart) else ([], "")
        if not calls:
            result.append(part)
            continue
        if rest:
            result.append(TextPart(rest))
        result.extend(calls)
    return tuple(result)


def _mended_call(call: ToolCallPart, offered: Mapping[str, ToolSchema]) -> ToolCallPart:
    name = offered_name(call.name, offered)
    arguments = mended_arguments(call.arguments, offered.get(name))
    if name == call.name and arguments == call.arguments:
        return call
    return replace(call, name=name, arguments=arguments)


def mended_arguments(text: str, tool: ToolSchema | None = None) -> str:
    """The arguments as the JSON text of an object where that can be told; else the text as it is."""
    if not text.strip():
        return "{}"
    value = read_json(text)
    if value is None:
        return "{}" if text.strip() == "null" else _loosely_read(text)
    mended = value
    if isinstance(mended, str):  # Encoded twice.
        mended = read_json(mended) if mended.strip() else {}
    if not isinstance(mended, dict):
        return text
    mended = _without_schema(mended, tool)
    return text if mended is value else _dumps(mended)


def _loosely_read(text: str) -> str:
    """Arguments that are nearly JSON: with line breaks in strings, said twice, followed by a sign, or written as in Python."""
    start = text.strip()
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(start)
    except (ValueError, RecursionError):
        value, end = _as_python(start), len(start)
    rest = start[end:].strip()
    if not isinstance(value, dict) or not (_LEFT_OVER.match(rest) or rest == start[:end]):
        return text
    try:
        return _dumps(value)
    except (TypeError, ValueError):
        return text


def _as_python(text: str) -> Any:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def fault_in(reply: ModelReply, request: ModelRequest) -> str | None:
    """What is still broken in a mended reply, told to the model that gave it; None where it can be used."""
    tools = {tool.name: tool for tool in request.tools}
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    for call in calls:
        if not call.name:
            return "The call names no tool. Call one of the tools by its name."
        if (problem := _fault_of(call, tools.get(call.name))) is None:
            continue
        if reply.finish == "length":
            return f"Your answer was cut off at its length limit, in the middle of the call of {call.name}. Make it shorter."
        return f"{problem} Call {call.name} again."
    if calls or not tools or reply.finish in {"length", "content_filter"}:
        return None
    if any(isinstance(part, TextPart) and looks_like_a_call(part.text) for part in reply.parts):
        return "The call in your answer cannot be read. Make it a real tool call, of one of your tools, with JSON arguments."
    if request.forced_tool is None and request.tool_choice != "required":
        return None
    wanted = f"the tool {request.forced_tool}" if request.forced_tool else "one of your tools"
    return f"You have to call {wanted} now; your answer called none."


def _fault_of(call: ToolCallPart, tool: ToolSchema | None) -> str | None:
    try:
        value = orjson.loads(call.arguments)
    except orjson.JSONDecodeError as error:
        return f"The arguments of {call.name} are not valid JSON ({error})."
    if not isinstance(value, dict):
        return f"The arguments of {call.name} must be a JSON object."
    is_schema = bool(value) and _SCHEMA_KEYS.issuperset(value) and isinstance(value.get("properties"), dict)
    own = tool.parameters.get("properties", {}) if tool else {}
    if is_schema and not set(value) & set(own):
        return f"The arguments of {call.name} repeat its schema. Give values."
    return None


def _without_schema(arguments: dict[str, Any], tool: ToolSchema | None) -> dict[str, Any]:
    """Values given in the shape of the schema: `{"type": "object", "properties": {"city": "Rome"}}`."""
    values = arguments.get("properties")
    own = tool.parameters.get("properties", {}) if tool else {}
    if not isinstance(values, dict) or not values or "properties" in own or not _SCHEMA_KEYS.issuperset(arguments):
        return arguments
    unwrapped = {}
    for name, value in values.items():
        if isinstance(value, dict) and "type" in value and "value" not in value:
            return arguments  # The schema itself came back: there are no values in it.
        unwrapped[name] = value["value"] if isinstance(value, dict) and "value" in value else value
    return unwrapped


def _dumps(value: Any) -> str:
    return orjson.dumps(value or {}).decode()
