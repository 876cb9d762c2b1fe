"""Broken outputs of small models, mended in one place. Pure: what cannot be mended with certainty is left as it came.

Mended: a call written as text, `<think>` in the text, arguments that are empty, encoded twice, wrapped in their schema, said
twice or written as Python does, a call's name with something around it, a finish that contradicts the parts. What is still
broken then is named by `fault_in`, so that the model can be asked once more.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    Restarted,
    TextChunk,
    ToolCallChunk,
    ToolSchema,
)
from ricordo.llm.answer_bounds import MOST_CALLS
from ricordo.llm.chat import chunks_of
from ricordo.llm.written_calls import (
    MARKS,
    PYTHON_CHARACTERS,
    looks_like_a_call,
    offered_name,
    read_json,
    written_calls,
)

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
    if len(text) > PYTHON_CHARACTERS or not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def fault_in(reply: ModelReply, request: ModelRequest) -> str | None:
    """What is still broken in a mended reply, told to the model that gave it; None where it can be used."""
    tools = {tool.name: tool for tool in request.tools}
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if len(calls) > MOST_CALLS:
        return f"Your answer has {len(calls):,} tool calls, and at most {MOST_CALLS} are taken at once. Make fewer."
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


_THINKS = ("<think>", "<thinking>")
# A fence that may hold a call; whether it does, only the end of the text tells.
_FENCE = r"```(?:tool_call|tool_code|(?:json)?[ \t]*\n\s*[\[{])"
_HOLD = re.compile("|".join([*map(re.escape, MARKS), _FENCE]))
_HALF_FENCE = re.compile(r"(?:`{1,2}|```[a-z_]*[ \t]*(?:\n\s*)?)$")
# The first line of a fence cannot close it.
_FENCE_END = re.compile(r"\n[ \t]*```([\s\S]*)")
_LINE_START = 100
# Characters of blanks that are held back for what may follow them; more are shown as they are.
_LONGEST_BLANK = 1_000


class StreamRepair:
    """Repairs a reply while chunks arrive, and holds back possible calls; close it with the mended reply, which may start over."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._state = "opening"
        # What is held back: first what was searched, then what is searched with the next chunk.
        self._kept: list[str] = []
        self._held = ""
        self._tag = ""
        self._has_tools = bool(tools)
        self._openings: tuple[str, ...] = _THINKS
        if tools:
            self._openings += ("{", "[{", *MARKS, *(f"[{tool.name}(" for tool in tools))
        self._text: list[str] = []
        self._thought: list[str] = []
        # By index, the name and the arguments that readers have seen.
        self._calls: dict[int, tuple[str, list[str]]] = {}

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        for shown in self._read(chunk):
            self._note(shown)
            yield shown

    def close(self, reply: ModelReply) -> Iterator[Chunk]:
        """What is still to be shown, now that the mended reply is known."""
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        thought = _missing(self._thought, [part.text for part in reply.parts if isinstance(part, ReasoningPart)])
        text = _missing(self._text, [part.text for part in reply.parts if isinstance(part, TextPart)])
        shown = {index: (name, "".join(arguments)) for index, (name, arguments) in self._calls.items()}
        agrees = all(
            index < len(calls) and calls[index].name == name and calls[index].arguments.startswith(arguments)
            for index, (name, arguments) in shown.items()
        )
        if thought is None or text is None or not agrees:
            yield Restarted()
            yield from chunks_of(reply)
            return
        if thought:
            yield ReasoningChunk(thought)
        if text:
            yield TextChunk(text)
        for index, call in enumerate(calls):
            if index not in shown:
                yield ToolCallChunk(index, call.arguments, call.call_id, call.name)
            elif rest := call.arguments[len(shown[index][1]) :]:
                yield ToolCallChunk(index, rest)

    def _read(self, chunk: Chunk) -> Iterator[Chunk]:
        if isinstance(chunk, ToolCallChunk) and (self._kept or self._held.strip()):
            # With a real call beside it, what was held back is no call.
            held = self._release()
            yield ReasoningChunk(held) if self._state == "thinking" else TextChunk(held)
        if not isinstance(chunk, TextChunk):
            yield chunk
            return
        self._held += chunk.text
        if self._state == "opening":
            self._open()
        if self._state == "thinking":
            yield from self._think()
        if self._state in ("fenced", "closed") and self._goes_on(chunk.text):
            self._state = "text"
            yield TextChunk(self._release())
        if self._state == "text":
            yield from self._show()
        if self._state in ("held", "closed"):
            self._keep(len(self._held))

    def _keep(self, length: int) -> None:
        """Search so much of what is held back no more."""
        if length:
            self._kept.append(self._held[:length])
            self._held = self._held[length:]

    def _release(self) -> str:
        held = "".join([*self._kept, self._held])
        self._kept, self._held = [], ""
        return held

    def _goes_on(self, text: str) -> bool:
        """Whether the fence has ended and the text goes on behind it. Each part of it is searched once."""
        if self._state == "fenced":
            found = _FENCE_END.search(self._held)
            if found is None:
                self._keep(max(self._held.rfind("\n"), len(self._held) - _LINE_START, 0))
                return False
            self._state, text = "closed", found[1]
        return bool(text.strip())

    def _note(self, shown: Chunk) -> None:
        match shown:
            case TextChunk():
                self._text.append(shown.text)
            case ReasoningChunk():
                self._thought.append(shown.text)
            case ToolCallChunk():
                name, arguments = self._calls.get(shown.index, ("", []))
                arguments.append(shown.arguments)
                self._calls[shown.index] = name + (shown.name or ""), arguments
            case _:
                pass

    def _open(self) -> None:
        start = self._held.lstrip()
        if self._tag:  # After a thought, the blank lines before the answer belong to neither.
            self._held = start
        for opening in self._openings:
            if start.startswith(opening):
                thinks = opening in _THINKS
                self._state, self._tag = ("thinking", f"</{opening[1:]}") if thinks else ("held", "")
                self._held = start[len(opening) :] if thinks else self._held
                return
        is_blank = not start and len(self._held) < _LONGEST_BLANK
        if not is_blank and not any(opening.startswith(start) for opening in self._openings if start):
            self._state = "text"

    def _think(self) -> Iterator[Chunk]:
        if not self._thought:
            self._held = self._held.lstrip()
        thought, end, rest = self._held.partition(self._tag)
        if end:
            self._state, self._held = "opening", rest
            self._openings = tuple(o for o in self._openings if o not in _THINKS)
            if thought := thought.rstrip():
                yield ReasoningChunk(thought)
            self._open()
            return
        # A piece of the closing tag may be at the end, and blanks that belong to nobody: keep them until it is known.
        kept = next((n for n in range(len(self._tag) - 1, 0, -1) if thought.endswith(self._tag[:n])), 0)
        shown = thought[: len(thought) - kept].rstrip()
        if len(thought) - len(shown) > _LONGEST_BLANK:
            shown = thought[: len(thought) - kept]
        self._held = thought[len(shown) :]
        if shown:
            yield ReasoningChunk(shown)

    def _show(self) -> Iterator[Chunk]:
        """The text up to where a call may begin."""
        held, end = self._held, len(self._held)
        if self._has_tools:
            if found := _HOLD.search(held):
                end = found.start()
                self._state = "fenced" if held.startswith("```", end) else "held"
            elif half := _HALF_FENCE.search(held):
                end = half.start() if len(held) - half.start() < _LONGEST_BLANK else end
            else:
                last = max(held.rfind("<"), held.rfind("["))
                if last >= 0 and any(mark.startswith(held[last:]) for mark in MARKS):
                    end = last
        self._held = held[end:]
        if end:
            yield TextChunk(held[:end])


def _missing(shown: Sequence[str], whole: Sequence[str]) -> str | None:
    """What was not shown yet; None where something else was. Blanks at the ends do not count."""
    seen, all_of_it = "".join(shown), "".join(whole)
    if all_of_it.startswith(seen):
        return all_of_it[len(seen) :]
    if all_of_it.strip().startswith(seen.strip()):
        return all_of_it.strip()[len(seen.strip()) :]
    return None
