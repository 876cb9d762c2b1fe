"""Repair of broken answers of small models.

A reply is changed only where its meaning is certain.

These faults are repaired:

- calls and reasoning that are written as text, channels, and template tokens;
- arguments that are empty, encoded twice, wrapped in their schema, repeated or almost JSON;
- names with additions, in other capitals, or with other signs between words;
- a finish reason that contradicts the content.

`fault_in` names a fault that remains, so that the model can be asked once more.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from ricordo.llm.call_marks import ANY_MARK, HALF_MARK, HALF_MARK_LENGTH
from ricordo.llm.channels import has_channels, may_become_channels, split_channels
from ricordo.llm.chat import chunks_of
from ricordo.llm.copied_instructions import copies_instructions
from ricordo.llm.loose_json import read_json, read_loosely
from ricordo.llm.written_calls import (
    CALL_KEYS,
    UNREADABLE_CALL,
    called_name,
    new_call_id,
    offered_name,
    read_text,
)

_THINK = re.compile(r"^\s*<(think|thinking)>(?P<thought>.*?)(?:</\1>|$)", re.DOTALL)
# Some chat templates begin the reasoning themselves, so the answer contains only its end.
_THINK_END = re.compile(r"^(?P<thought>(?:(?!<think).)*?)</(?:think|thinking)>", re.DOTALL)
# Leftovers of templates after the arguments of a call.
_LEFT_OVER = re.compile(r"^(?:\s*(?:</\w+>|<\|[^|>]*\|>|<｜[^｜>]*｜>|```))*\s*$")
_SCHEMA_KEYS = {
    "type",
    "properties",
    "required",
    "title",
    "description",
    "additionalProperties",
    "$schema",
    "$defs",
}


def is_empty(reply: ModelReply) -> bool:
    """Return whether the reply has neither text nor call, although nothing cut it short.

    Args:
        reply: The reply before or after its repair.
    """
    if reply.finish in {"length", "content_filter"}:
        return False
    return not any(
        isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and part.text.strip())
        for part in reply.parts
    )


def repair(reply: ModelReply, tools: Sequence[ToolSchema]) -> ModelReply:
    """Return the reply as the model meant it.

    It is the same object if nothing needs repair.

    Args:
        reply: The reply as the adapter read it, which is not changed.
        tools: The tools that the request offered. Written calls of other tools stay text, unless a
            channel marks them as calls.
    """
    offered = {tool.name: tool for tool in tools}
    parts = _with_thoughts_apart(_with_channels_apart(reply.parts))
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    if has_calls:
        parts = _without_markup(parts, offered)
    else:
        parts = _with_written_calls(parts, offered)
    if not any(isinstance(part, ToolCallPart | TextPart) for part in parts):
        parts = _with_calls_in_thoughts(parts, offered)
    mended_parts = (
        _mended_call(part, offered) if isinstance(part, ToolCallPart) else part for part in parts
    )
    parts = _with_names(tuple(mended_parts))
    finish = reply.finish
    if finish in {"stop", "tool_calls", "unknown"}:
        if any(isinstance(part, ToolCallPart) for part in parts):
            finish = "tool_calls"
        elif finish == "tool_calls":
            finish = "stop"
    if parts == reply.parts and finish == reply.finish:
        return reply
    return replace(reply, parts=parts, finish=finish)


def _with_channels_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    new_parts: list[Part] = []
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    for part in parts:
        if not isinstance(part, TextPart) or not has_channels(part.text):
            new_parts.append(part)
            continue
        channels = split_channels(part.text)
        if channels.thoughts:
            new_parts.append(ReasoningPart("\n\n".join(channels.thoughts), native=False))
        if channels.texts:
            new_parts.append(replace(part, text="\n\n".join(channels.texts)))
        if not has_calls:
            new_parts += [
                ToolCallPart(new_call_id(), name, arguments) for name, arguments in channels.calls
            ]
    return tuple(new_parts)


def _with_thoughts_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    texts = ((index, part) for index, part in enumerate(parts) if isinstance(part, TextPart))
    index, text = next(texts, (0, TextPart("")))
    match = _THINK.match(text.text) or ("</think" in text.text and _THINK_END.match(text.text))
    if not match:
        return parts
    thought = match["thought"].strip()
    rest = text.text[match.end() :].lstrip()
    if thought:
        split: list[Part] = [ReasoningPart(thought, native=False)]
    else:
        split = []
    if rest:
        split.append(replace(text, text=rest))
    return (*parts[:index], *split, *parts[index + 1 :])


def _with_written_calls(
    parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]
) -> tuple[Part, ...]:
    new_parts: list[Part] = []
    for part in parts:
        if not isinstance(part, TextPart):
            new_parts.append(part)
            continue
        reading = read_text(part.text, offered)
        if not reading.calls:
            is_unchanged = reading.is_broken or reading.text == part.text.strip()
            new_parts.append(part if is_unchanged else TextPart(reading.text))
            continue
        if reading.text:
            new_parts.append(TextPart(reading.text))
        new_parts.extend(reading.calls)
    return tuple(new_parts)


def _without_markup(parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]) -> tuple[Part, ...]:
    """If a reply has real calls, drop calls in its text, since some servers send both."""
    new_parts: list[Part] = []
    for part in parts:
        if not isinstance(part, TextPart):
            new_parts.append(part)
            continue
        reading = read_text(part.text, offered)
        if not (reading.calls or reading.is_broken or reading.text != part.text.strip()):
            new_parts.append(part)
        elif reading.text:
            new_parts.append(TextPart(reading.text))
    return tuple(new_parts)


def _with_calls_in_thoughts(
    parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]
) -> tuple[Part, ...]:
    """Read the calls in a model's reasoning, if it wrote nothing else."""
    new_parts: list[Part] = []
    for part in parts:
        new_parts.append(part)
        if isinstance(part, ReasoningPart):
            new_parts.extend(read_text(part.text, offered, is_marked=True).calls)
    return tuple(new_parts)


def _with_names(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """If other calls have names, give a call without a name an invalid tool name.

    Then only this call is refused.
    """
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    if all(call.name for call in calls) or not any(call.name for call in calls):
        return parts
    return tuple(
        replace(part, name=UNREADABLE_CALL)
        if isinstance(part, ToolCallPart) and not part.name
        else part
        for part in parts
    )


def _mended_call(call: ToolCallPart, offered: Mapping[str, ToolSchema]) -> ToolCallPart:
    name = called_name(call.name, offered)
    arguments = mended_arguments(call.arguments, offered.get(name))
    if name == call.name and arguments == call.arguments:
        return call
    return replace(call, name=name, arguments=arguments)


def mended_arguments(text: str, tool: ToolSchema | None = None) -> str:
    """Return the arguments as a JSON object if that is certain, else unchanged.

    Args:
        text: The arguments as the model wrote them.
        tool: The called tool; None if it was not offered. It shows whether a field named
            `properties` is an argument or a copied schema.
    """
    if not text.strip():
        return "{}"
    arguments = read_json(text)
    if arguments is None:
        if text.strip() == "null":
            return "{}"
        return _loosely_read(text)
    mended = arguments
    if isinstance(mended, str):  # encoded twice
        mended = read_json(mended) if mended.strip() else {}
    if not isinstance(mended, dict):
        return text
    mended = _without_schema(mended, tool)
    if mended is arguments:
        return text
    try:
        return _dumps(mended)
    except orjson.JSONEncodeError:  # nested too deeply
        return text


def _loosely_read(text: str) -> str:
    """Read arguments that are nearly JSON, repeated, or followed by a template's token."""
    start = text.strip()
    try:
        arguments, end = json.JSONDecoder(strict=False).raw_decode(start)
    except (ValueError, RecursionError):
        arguments = read_loosely(start)
        end = len(start)
    rest = start[end:].strip()
    if not isinstance(arguments, dict) or not (_LEFT_OVER.match(rest) or rest == start[:end]):
        return text
    try:
        return _dumps(arguments)
    except (TypeError, ValueError):
        return text


@dataclass(frozen=True, slots=True)
class Fault:
    """The remaining fault of a repaired reply, as a sentence for its model.

    With `is_useless`, the reply's text reaches no prompt and no reader. `problem` is the sentence
    for people.
    """

    sentence: str
    is_useless: bool = False
    problem: str = ""


_UNREADABLE = (
    "Your last answer was the text of a tool call or of its result, which nobody can read. To use "
    "a tool, make a real tool call with JSON arguments. To speak to the user, answer in plain "
    "words."
)
_WRITTEN_CALL = "It wrote a tool call as text that cannot be read."
_COPIED = (
    "Your last answer repeated a piece of your instructions. Answer what was said to you, in your "
    "own words."
)
_CUT_OFF = (
    "Your last answer was cut off at its length limit, in the middle of a tool call. Make it "
    "shorter."
)


_CUT_OFF_CALL = Fault(_CUT_OFF, is_useless=True, problem=_WRITTEN_CALL)
_UNREADABLE_TEXT = Fault(_UNREADABLE, is_useless=True, problem=_WRITTEN_CALL)


def fault_in(reply: ModelReply, request: ModelRequest) -> Fault | None:
    """Return the remaining fault of a repaired reply.

    Args:
        reply: The repaired reply.
        request: The request that it answers.

    Returns:
        The fault; None if the reply or some of its calls can be used.
    """
    tools = {tool.name: tool for tool in request.callable_tools}
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if len(calls) > MOST_CALLS:
        sentence = (
            f"Your answer has {len(calls):,} tool calls, and at most {MOST_CALLS} are taken at "
            "once. Make fewer."
        )
        return Fault(sentence)
    faults = [_fault_of_call(call, tools.get(call.name), reply) for call in calls]
    if calls:
        return None if None in faults else faults[0]
    return _fault_of_text(reply, request, tools)


def _fault_of_text(
    reply: ModelReply, request: ModelRequest, tools: Mapping[str, ToolSchema]
) -> Fault | None:
    """Return the fault of a reply without calls; None if it can be used."""
    texts = [part.text for part in reply.parts if isinstance(part, TextPart)]
    if any(_is_unreadable(text, tools, request) for text in texts):
        return _CUT_OFF_CALL if reply.finish == "length" else _UNREADABLE_TEXT
    if copies_instructions(" ".join(texts), request):
        return Fault(_COPIED, is_useless=True, problem="It repeated a piece of its instructions.")
    if tools and reply.finish not in {"length", "content_filter"}:
        return _missing_call(request)
    return None


def _missing_call(request: ModelRequest) -> Fault | None:
    """Return the fault of a reply without a call, if the request demands one."""
    if request.forced_tool:
        tool = f"the tool {request.forced_tool}"
    elif request.tool_choice == "required":
        tool = "one of your tools"
    else:
        return None
    return Fault(f"You have to call {tool} now; your answer called none.")


def _is_unreadable(text: str, tools: Mapping[str, ToolSchema], request: ModelRequest) -> bool:
    if request.tools and not tools:
        reading = read_text(text, {tool.name: tool for tool in request.tools})
        return reading.is_broken or bool(reading.calls)
    if not tools:
        # If no tools are offered, as in a summary, a text may mention calls but must not begin as
        # one.
        mark = ANY_MARK.match(text.lstrip())
        return mark is not None and read_text(text, tools).is_broken
    is_json = request.settings.response_format is not None and text.lstrip().startswith(("{", "["))
    return not is_json and read_text(text, tools).is_broken


def _fault_of_call(call: ToolCallPart, tool: ToolSchema | None, reply: ModelReply) -> Fault | None:
    if not call.name:
        return Fault("The call names no tool. Call one of the tools by its name.")
    problem = _fault_of(call, tool)
    if problem is None:
        return None
    if reply.finish == "length":
        return Fault(
            "Your answer was cut off at its length limit, in the middle of the call of "
            f"{call.name}. Make it shorter."
        )
    return Fault(f"{problem} Call {call.name} again.")


def _fault_of(call: ToolCallPart, tool: ToolSchema | None) -> str | None:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError as error:
        return f"The arguments of {call.name} are not valid JSON ({error})."
    if not isinstance(arguments, dict):
        return f"The arguments of {call.name} must be a JSON object."
    has_schema_keys = bool(arguments) and _SCHEMA_KEYS.issuperset(arguments)
    is_schema = has_schema_keys and isinstance(arguments.get("properties"), dict)
    if tool:
        properties = tool.parameters.get("properties", {})
    else:
        properties = {}
    if is_schema and not set(arguments) & set(properties):
        return f"The arguments of {call.name} repeat its schema. Give values."
    return None


def _without_schema(arguments: dict[str, Any], tool: ToolSchema | None) -> dict[str, Any]:
    """Return the arguments inside a copied schema.

    For example `{"type": "object", "properties": {"city": "Rome"}}` becomes `{"city": "Rome"}`.
    """
    fields = arguments.get("properties")
    if tool:
        properties = tool.parameters.get("properties", {})
    else:
        properties = {}
    if not isinstance(fields, dict) or not fields or "properties" in properties:
        return arguments
    if not _SCHEMA_KEYS.issuperset(arguments):
        return arguments
    unwrapped = {}
    for name, field in fields.items():
        is_wrapped = isinstance(field, dict) and "value" in field
        if isinstance(field, dict) and "type" in field and not is_wrapped:
            return arguments  # a copy of the schema itself, without values
        unwrapped[name] = field["value"] if is_wrapped else field
    return unwrapped


def _dumps(arguments: Any) -> str:
    return orjson.dumps(arguments or {}).decode()


_THINKS = ("<think>", "<thinking>")
# A fence that may contain a call. It is a call only if no other text follows the fence.
_FENCE = r"```(?:tool_call|tool_code|(?:json|xml)?[ \t]*\n\s*[\[{<])"
_HOLD = re.compile(f"(?:{ANY_MARK.pattern})|{_FENCE}|\\n[ \\t]{{0,9}}(?=[\\[{{])|\\nAction: |\\{{")
_ACTION = "Action: "
_HALF_FENCE = re.compile(r"(?:`{1,2}|```[a-z_]*[ \t]*(?:\n\s*)?|\n[ \t]{0,9})$")
# Searched after the first line of a fence, which cannot close it.
_FENCE_END = re.compile(r"\n[ \t]*```")
_LINE_START = 100
# The most blanks that are held back; longer runs of blanks are shown at once.
_LONGEST_BLANK = 1_000
_CHANNEL_SIGNS = ("<|start|>", "<|channel|>", "<|constrain|>")
# An object is likely to be a call if a tool's name stands within this number of characters
# before it.
_NAME_DISTANCE = 48
# The text after a mark that a sentence only mentions.
_MENTIONED = re.compile(r"[ \t]{0,9}(?:[.,;:!?)\]*_]|([A-Za-z]{1,20})[ \t,.])")
_UNDECIDED = re.compile(r"[ \t]{0,9}[A-Za-z]{0,20}\Z")
# The beginning of an object, up to its first key.
_FIRST_KEY = re.compile(r"[\s\[{]{1,60}[\"']([\w.:/-]{1,128})[\"']\s{0,9}:")
_HALF_KEY = re.compile(r"[\s\[{]{0,60}(?:[\"'][\w.:/-]{0,128}(?:[\"']\s{0,9})?)?\Z")
_FIRST_CALL = re.compile(r"\[\s{0,9}([A-Za-z_][\w.]{0,127})(?:\(|\Z)")


def _begin_as_shown(
    calls: Sequence[ToolCallPart], shown_calls: Mapping[int, tuple[str, str]]
) -> bool:
    """Return whether the calls begin as they were shown."""
    return all(
        index < len(calls)
        and calls[index].name == name
        and calls[index].arguments.startswith(arguments)
        for index, (name, arguments) in shown_calls.items()
    )


def _rests_of_calls(
    calls: Sequence[ToolCallPart], shown_calls: Mapping[int, tuple[str, str]]
) -> Iterator[ToolCallChunk]:
    """Yield the parts of the calls that were not shown."""
    for index, call in enumerate(calls):
        if index not in shown_calls:
            yield ToolCallChunk(index, call.arguments, call.call_id, call.name)
        elif rest := call.arguments[len(shown_calls[index][1]) :]:
            yield ToolCallChunk(index, rest)


class StreamRepair:
    """Repairs a reply while its chunks arrive, and holds possible calls back.

    Close it with the repaired reply; that may restart the stream. It never holds back more than the
    limit of an answer (`answer_bounds.py`).
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._names = frozenset(tool.name for tool in tools)
        self._state = "opening"
        # Held-back text: `_scanned` was already scanned; `_unscanned` is scanned with the next
        # chunk.
        self._scanned: list[str] = []
        self._unscanned = ""
        self._tag = ""
        self._may_think = True
        # The end of a mark in the unscanned text.
        self._mark_end = 0
        # The number of fence marks shown so far. Inside a fence, objects are only examples.
        self._fences = 0
        self._text: list[str] = []
        self._tail = ""
        self._thought: list[str] = []
        # The shown name and arguments of each call, by index.
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self._steps: dict[str, Callable[[], Iterator[Chunk]]] = {
            "opening": self._open,
            "thinking": self._think,
            "text": self._show,
            "mark": self._look_behind_mark,
            "object": self._look_at_key,
            "fenced": self._look_for_fence_end,
            "closed": self._look_behind_fence,
            "held": self._hold,
        }

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the chunks that are now certain.

        Args:
            chunk: The next chunk of the model's answer.
        """
        for certain in self._read(chunk):
            self._note(certain)
            yield certain

    def close(self, reply: ModelReply) -> Iterator[Chunk]:
        """Yield the rest of the repaired reply, or a restart and all of it.

        Args:
            reply: The whole reply after its repair.
        """
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        thoughts = [part.text for part in reply.parts if isinstance(part, ReasoningPart)]
        thought = _missing(self._thought, thoughts)
        texts = [part.text for part in reply.parts if isinstance(part, TextPart)]
        text = _missing(self._text, texts)
        shown_calls = {
            index: (name, "".join(arguments)) for index, (name, arguments) in self._calls.items()
        }
        if thought is None or text is None or not _begin_as_shown(calls, shown_calls):
            yield Restarted()
            yield from chunks_of(reply)
            return
        if thought:
            yield ReasoningChunk(thought)
        if text:
            yield TextChunk(text)
        yield from _rests_of_calls(calls, shown_calls)

    def _read(self, chunk: Chunk) -> Iterator[Chunk]:
        is_call = isinstance(chunk, ToolCallChunk)
        if (
            is_call
            and self._state not in ("held", "mark")
            and (self._scanned or self._unscanned.strip())
        ):
            # If the reply has a real call, the text that was held back is no call.
            text = self._release()
            if self._state == "thinking":
                yield ReasoningChunk(text)
            else:
                yield TextChunk(text)
                self._state = "text"
        if not isinstance(chunk, TextChunk):
            yield chunk
            return
        self._unscanned += chunk.text
        state = ""
        while state != self._state:
            state = self._state
            yield from self._steps[state]()

    def _release(self) -> str:
        text = "".join([*self._scanned, self._unscanned])
        self._scanned = []
        self._unscanned = ""
        return text

    def _show_beginning(self, length: int) -> Iterator[Chunk]:
        """Yield the beginning of the unscanned text."""
        if text := self._unscanned[:length]:
            self._unscanned = self._unscanned[length:]
            self._fences += text.count("```")
            yield TextChunk(text)

    def _note(self, chunk: Chunk) -> None:
        match chunk:
            case TextChunk():
                self._text.append(chunk.text)
                self._tail = (self._tail + chunk.text[-_NAME_DISTANCE:])[-_NAME_DISTANCE:]
            case ReasoningChunk():
                self._thought.append(chunk.text)
            case ToolCallChunk():
                name, arguments = self._calls.get(chunk.index, ("", []))
                arguments.append(chunk.arguments)
                self._calls[chunk.index] = name + (chunk.name or ""), arguments
            case _:
                pass

    def _hold(self) -> Iterator[Chunk]:
        """Hold everything back until the end of the answer."""
        self._mark_scanned(len(self._unscanned))
        yield from ()

    def _mark_scanned(self, length: int) -> None:
        """Move the beginning of the unscanned text to the scanned text."""
        if length:
            self._scanned.append(self._unscanned[:length])
            self._unscanned = self._unscanned[length:]

    def _open(self) -> Iterator[Chunk]:
        """Decide the state of the answer by its beginning."""
        start = self._unscanned.lstrip()
        if self._tag:  # blank lines between reasoning and answer are dropped
            self._unscanned = start
        if self._may_think:
            for opening in _THINKS:
                if start.startswith(opening):
                    self._state = "thinking"
                    self._tag = f"</{opening[1:]}"
                    self._unscanned = start[len(opening) :]
                    return
            if start and any(opening.startswith(start) for opening in _THINKS):
                return
        if not start and len(self._unscanned) < _LONGEST_BLANK:
            return
        self._state = self._opening_state(start)
        yield from ()

    def _opening_state(self, start: str) -> str:
        """Return the state of an answer with this beginning.

        The state stays "opening" until the beginning is long enough.
        """
        openings = ("analysis", *(f"{name}(" for name in self._names))
        if start and any(opening.startswith(start) for opening in openings):
            return "opening"
        if may_become_channels(start) or has_channels(start):
            return "held"
        if not self._names:
            return "text"
        if start.startswith(("{", "[")):
            return "object"
        if start and _ACTION.startswith(start):
            return "opening"
        calls = (
            _ACTION,
            *(f"{name}(" for name in self._names),
            *(f"<{name}>" for name in self._names),
        )
        if start.startswith(calls):
            return "held"
        return "text"

    def _think(self) -> Iterator[Chunk]:
        if not self._thought:
            self._unscanned = self._unscanned.lstrip()
        thought, end, rest = self._unscanned.partition(self._tag)
        if end:
            self._state = "opening"
            self._unscanned = rest
            self._may_think = False
            if thought := thought.rstrip():
                yield ReasoningChunk(thought)
            return
        # Hold back a possible beginning of the closing tag, and the blanks before it.
        lengths = range(len(self._tag) - 1, 0, -1)
        tag_length = next((n for n in lengths if thought.endswith(self._tag[:n])), 0)
        without_tag = thought[: len(thought) - tag_length]
        certain = without_tag.rstrip()
        if len(thought) - len(certain) > _LONGEST_BLANK:
            certain = without_tag
        self._unscanned = thought[len(certain) :]
        if certain:
            yield ReasoningChunk(certain)

    def _show(self) -> Iterator[Chunk]:
        """Yield the text before the possible beginning of a call."""
        position = counted = 0
        fences = self._fences
        while match := _HOLD.search(self._unscanned, position):
            fences += self._unscanned.count("```", counted, match.start())
            counted = match.start()
            if state := self._state_at(match, is_in_fence=fences % 2 == 1):
                is_line = match[0].startswith("\n") and state == "object"
                yield from self._show_beginning(match.end() if is_line else match.start())
                self._mark_end = match.end() - match.start()
                self._state = state
                return
            position = match.end()
        yield from self._show_beginning(self._certain_length(position))

    def _state_at(self, match: re.Match[str], *, is_in_fence: bool) -> str:
        """Return the state that begins at a match of `_HOLD`.

        It is empty for ordinary text.
        """
        sign = match[0]
        is_free = bool(self._names) and not is_in_fence
        if sign == "{":
            start = max(0, match.start() - _NAME_DISTANCE)
            before = (self._tail + self._unscanned[start : match.start()])[-_NAME_DISTANCE:]
            if is_free and any(name in before for name in self._names):
                return "held"
            return ""
        if sign.endswith(_ACTION):
            return "held" if is_free else ""
        if sign.startswith("\n"):
            return "object" if is_free else ""
        if sign.startswith("```"):
            return "fenced" if is_free else ""
        return "mark"

    def _certain_length(self, shortest: int) -> int:
        """Return the length of the unscanned text before a possible mark, fence or object."""
        text = self._unscanned
        length = len(text)
        if half := HALF_MARK.search(text, max(shortest, length - HALF_MARK_LENGTH)):
            length = half.start()
        start = max(shortest, length - _LONGEST_BLANK)
        if self._names and (half := _HALF_FENCE.search(text, start)):
            length = min(length, half.start())
        return length

    def _look_behind_mark(self) -> Iterator[Chunk]:
        """Decide whether a mark begins a call or is only mentioned."""
        mark = self._unscanned[: self._mark_end]
        rest = self._unscanned[self._mark_end : self._mark_end + 64]
        is_whole = mark.endswith((">", "]"))
        may_be_mentioned = is_whole and "DSML" not in mark and mark not in _CHANNEL_SIGNS
        if may_be_mentioned:
            mention = _MENTIONED.match(rest)
        else:
            mention = None
        if mention and mention[1] not in self._names:
            yield from self._show_beginning(self._mark_end)
            self._state = "text"
        elif mention or not (may_be_mentioned and _UNDECIDED.match(rest)):
            self._state = "held"

    def _look_at_key(self) -> Iterator[Chunk]:
        """Decide by its first key whether an object may be a call."""
        start = self._unscanned.lstrip()
        key = _FIRST_KEY.match(start)
        call = _FIRST_CALL.match(start)
        is_call_key = key is not None and (
            key[1] in CALL_KEYS or offered_name(key[1], self._names) in self._names
        )
        if is_call_key or (call and call[1] in self._names):
            self._state = "held"
        elif key or not (_HALF_KEY.match(start) or call):
            self._state = "text"
        yield from ()

    def _look_for_fence_end(self) -> Iterator[Chunk]:
        """Hold a fence back until it ends.

        Each part of it is searched once.
        """
        if end := _FENCE_END.search(self._unscanned):
            self._state = "closed"
            length = end.end()
        else:
            length = max(self._unscanned.rfind("\n"), len(self._unscanned) - _LINE_START, 0)
        self._mark_scanned(length)
        yield from ()

    def _look_behind_fence(self) -> Iterator[Chunk]:
        """Yield the fence if text follows it, since the fence is no call in that case."""
        if not self._unscanned.strip():
            self._mark_scanned(len(self._unscanned))
            return
        rest = self._unscanned
        self._unscanned = ""
        yield TextChunk(self._release())
        self._unscanned = rest
        self._state = "text"


def _missing(shown_pieces: Sequence[str], pieces: Sequence[str]) -> str | None:
    """Return the part that was not shown yet.

    Returns None if another text was shown. Blanks at the ends do not count.
    """
    shown_text = "".join(shown_pieces)
    text = "".join(pieces)
    if text.startswith(shown_text):
        return text[len(shown_text) :]
    if text.strip().startswith(shown_text.strip()):
        return text.strip()[len(shown_text.strip()) :]
    return None
