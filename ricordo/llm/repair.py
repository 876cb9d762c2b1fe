"""Broken outputs of small models, mended in one place. Pure: what cannot be mended with certainty is left as it came.

Mended: a call written as text, `<think>` in the text, arguments that are empty, encoded twice or wrapped in their schema,
a call's name with a prefix, a finish that contradicts the parts. Arguments that are no JSON are left to the tool's own error.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, TextChunk, ToolSchema
from ricordo.llm.chunks import chunks_of

_THINK = re.compile(r"^\s*<(think|thinking)>(.*?)(?:</\1>|$)", re.DOTALL)
# Some chat templates open the thought themselves, so that the answer holds only its end.
_THINK_END = re.compile(r"^((?:(?!<think).)*?)</(?:think|thinking)>", re.DOTALL)
_TAGGED = re.compile(r"<(tool_call|function_call)>(.*?)(?:</\1>|$)", re.DOTALL)
_NAMED_TAG = re.compile(r"^<function=([\w.-]+)>(.*?)(?:</function>|$)", re.DOTALL)
# A fence counts only where it ends the text: one in the middle is likelier an example than a call.
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)\n?```\s*$", re.DOTALL)
_BRACKETED = re.compile(r"^\[TOOL_CALLS\]\s*(.*)$", re.DOTALL)
_OPENINGS = ("<think>", "<thinking>")
_CALL_OPENINGS = ("{", "[{", "[TOOL_CALLS]", "```", "<tool_call>", "<function_call>", "<function=")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_SCHEMA_KEYS = {"type", "properties", "required", "title", "description", "additionalProperties", "$schema", "$defs"}


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{secrets.token_hex(12)}"


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
    place = next((n for n, part in enumerate(parts) if isinstance(part, TextPart)), None)
    if place is None:
        return parts
    text = parts[place]
    assert isinstance(text, TextPart)  # noqa: S101 - tells the type checker what `next` found
    if found := _THINK.match(text.text):
        thought = found.group(2)
    elif "</think" in text.text and (found := _THINK_END.match(text.text)):
        thought = found.group(1)
    else:
        return parts
    rest = text.text[found.end() :].lstrip()
    split: list[Part] = [ReasoningPart(thought.strip(), native=False)] if thought.strip() else []
    if rest:
        split.append(replace(text, text=rest))
    return (*parts[:place], *split, *parts[place + 1 :])


def _with_written_calls(parts: tuple[Part, ...], offered: dict[str, ToolSchema]) -> tuple[Part, ...]:
    result: list[Part] = []
    for part in parts:
        calls, rest = _written_calls(part.text, offered) if isinstance(part, TextPart) else ([], "")
        if not calls:
            result.append(part)
            continue
        if rest:
            result.append(TextPart(rest))
        result.extend(calls)
    return tuple(result)


def _written_calls(text: str, offered: dict[str, ToolSchema]) -> tuple[list[ToolCallPart], str]:
    """The calls that a text stands for, and the text without them."""
    whole = text.strip()
    if named := _NAMED_TAG.match(whole):
        return _calls_in({"name": named.group(1), "arguments": _loads(named.group(2))}, offered), ""
    if "<tool_call>" in whole or "<function_call>" in whole:
        calls = [call for found in _TAGGED.finditer(whole) for call in _calls_in(_loads(found.group(2)), offered)]
        return calls, _TAGGED.sub("", whole).strip()
    if bracketed := _BRACKETED.match(whole):
        return _calls_in(_loads(bracketed.group(1)), offered), ""
    if whole.startswith(("{", "[")):
        return _calls_in(_loads(whole), offered), ""
    if fence := _FENCE.search(whole):
        return _calls_in(_loads(fence.group(1)), offered), whole[: fence.start()].strip()
    return [], ""


def _calls_in(value: Any, offered: dict[str, ToolSchema]) -> list[ToolCallPart]:
    """The calls in decoded JSON: one, a list of them, or none where any of it is something else."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = []
    for item in value if isinstance(value, list) else [value]:
        call = _call(item, offered)
        if call is None:
            return []
        calls.append(call)
    return calls


def _call(item: Any, offered: dict[str, ToolSchema]) -> ToolCallPart | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    name = item.get("name") or item.get("tool") or item.get("function")
    key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if not isinstance(name, str) or key is None or (name := _offered_name(name, offered)) not in offered:
        return None
    arguments = item[key]
    if arguments is not None and not isinstance(arguments, (dict, str)):
        return None
    return ToolCallPart(new_call_id(), name, arguments if isinstance(arguments, str) else _dumps(arguments))


def _mended_call(call: ToolCallPart, offered: dict[str, ToolSchema]) -> ToolCallPart:
    name = _offered_name(call.name, offered)
    arguments = mended_arguments(call.arguments, offered.get(name))
    if name == call.name and arguments == call.arguments:
        return call
    return replace(call, name=name, arguments=arguments)


def mended_arguments(text: str, tool: ToolSchema | None = None) -> str:
    """The arguments as the JSON text of an object where that can be told; else the text as it is."""
    if not text.strip():
        return "{}"
    value = _loads(text)
    if value is None:
        return "{}" if text.strip() == "null" else text
    mended = value
    if isinstance(mended, str):  # Encoded twice.
        mended = _loads(mended) if mended.strip() else {}
    if not isinstance(mended, dict):
        return text
    mended = _without_schema(mended, tool)
    return text if mended is value else _dumps(mended)


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


def _offered_name(name: str, offered: dict[str, ToolSchema]) -> str:
    if name in offered:
        return name
    bare = name.strip().removeprefix("functions.").removeprefix("tools.")
    return bare if bare in offered else name


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text.strip())
    except orjson.JSONDecodeError:
        return None


def _dumps(value: Any) -> str:
    return orjson.dumps(value or {}).decode()


class StreamRepair:
    """The same mending while chunks arrive: thoughts are told from text, and what may be a call is held back."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._state = "opening"
        self._held = ""
        self._tag = ""
        self._openings = _OPENINGS + (_CALL_OPENINGS if tools else ())

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        """What readers may see of this chunk now."""
        if not isinstance(chunk, TextChunk):
            yield chunk
            return
        if self._state == "text":
            yield chunk
            return
        self._held += chunk.text
        if self._state == "opening":
            self._open()
        if self._state == "thinking":
            yield from self._think()
        if self._state == "text" and self._held:
            held, self._held = self._held, ""
            yield TextChunk(held)

    def close(self, reply: ModelReply) -> Iterator[Chunk]:
        """What was held back, now that the mended reply is known."""
        if not self._held:
            return
        if self._state == "thinking":
            yield ReasoningChunk(self._held)
        elif self._state == "held" and any(isinstance(part, ToolCallPart) for part in reply.parts):
            yield from (chunk for chunk in chunks_of(reply) if not isinstance(chunk, ReasoningChunk))
        else:
            yield TextChunk(self._held)
        self._held = ""

    def _open(self) -> None:
        start = self._held.lstrip()
        if self._tag:  # After a thought, the blank lines before the answer belong to neither.
            self._held = start
        for opening in self._openings:
            if start.startswith(opening):
                thinks = opening in _OPENINGS
                self._state, self._tag = ("thinking", f"</{opening[1:]}") if thinks else ("held", "")
                self._held = start[len(opening) :] if thinks else self._held
                return
        if start and not any(opening.startswith(start) for opening in self._openings):
            self._state = "text"

    def _think(self) -> Iterator[Chunk]:
        thought, end, rest = self._held.partition(self._tag)
        if end:
            self._state, self._held = "opening", rest
            self._openings = tuple(o for o in self._openings if o not in _OPENINGS)
            if thought:
                yield ReasoningChunk(thought)
            self._open()
            return
        # A piece of the closing tag may be at the end: keep it until it is known.
        kept = next((n for n in range(len(self._tag) - 1, 0, -1) if thought.endswith(self._tag[:n])), 0)
        self._held = thought[len(thought) - kept :]
        if shown := thought[: len(thought) - kept]:
            yield ReasoningChunk(shown)
