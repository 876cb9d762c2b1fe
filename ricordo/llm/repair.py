"""Broken outputs of small models, mended in one place. Pure: what cannot be mended with certainty is left as it came.

Mended: a call written as text, thoughts in the text, channels, signs of a template, arguments that are empty, encoded twice,
wrapped in their schema, said twice or nearly JSON, a call's name with something around it, a finish that contradicts the parts.
What is still broken then is named by `fault_in`, so that the model can be asked once more.
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
    new_call_id,
    offered_name,
    read_text,
)

_THINK = re.compile(r"^\s*<(think|thinking)>(?P<thought>.*?)(?:</\1>|$)", re.DOTALL)
# Some chat templates open the thought themselves, so that the answer holds only its end.
_THINK_END = re.compile(r"^(?P<thought>(?:(?!<think).)*?)</(?:think|thinking)>", re.DOTALL)
# What templates leave behind the arguments of a call.
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
    """Whether the reply says nothing: no word and no call, though nothing cut it short."""
    if reply.finish in {"length", "content_filter"}:
        return False
    return not any(
        isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and part.text.strip())
        for part in reply.parts
    )


def repair(reply: ModelReply, tools: Sequence[ToolSchema]) -> ModelReply:
    """Return the reply as the model meant it; the same object where there is nothing to mend."""
    offered = {tool.name: tool for tool in tools}
    parts = _with_thoughts_apart(_with_channels_apart(reply.parts))
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    parts = _without_markup(parts, offered) if has_calls else _with_written_calls(parts, offered)
    if not any(isinstance(part, ToolCallPart | TextPart) for part in parts):
        parts = _with_calls_in_thoughts(parts, offered)
    parts = _with_names(
        tuple(
            _mended_call(part, offered) if isinstance(part, ToolCallPart) else part
            for part in parts
        )
    )
    finish = reply.finish
    if finish in {"stop", "tool_calls", "unknown"}:
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        finish = "tool_calls" if has_calls else "stop" if finish == "tool_calls" else finish
    if parts == reply.parts and finish == reply.finish:
        return reply
    return replace(reply, parts=parts, finish=finish)


def _with_channels_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    result: list[Part] = []
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    for part in parts:
        if not isinstance(part, TextPart) or not has_channels(part.text):
            result.append(part)
            continue
        channels = split_channels(part.text)
        if channels.thoughts:
            result.append(ReasoningPart("\n\n".join(channels.thoughts), native=False))
        if channels.texts:
            result.append(replace(part, text="\n\n".join(channels.texts)))
        if not has_calls:
            result += [
                ToolCallPart(new_call_id(), name, arguments) for name, arguments in channels.calls
            ]
    return tuple(result)


def _with_thoughts_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    place, text = next(
        ((n, part) for n, part in enumerate(parts) if isinstance(part, TextPart)), (0, TextPart(""))
    )
    match = _THINK.match(text.text) or ("</think" in text.text and _THINK_END.match(text.text))
    if not match:
        return parts
    thought, rest = match["thought"].strip(), text.text[match.end() :].lstrip()
    split: list[Part] = [ReasoningPart(thought, native=False)] if thought else []
    if rest:
        split.append(replace(text, text=rest))
    return (*parts[:place], *split, *parts[place + 1 :])


def _with_written_calls(
    parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]
) -> tuple[Part, ...]:
    result: list[Part] = []
    for part in parts:
        if not isinstance(part, TextPart):
            result.append(part)
            continue
        reading = read_text(part.text, offered)
        if not reading.calls:
            result.append(
                part
                if reading.is_broken or reading.text == part.text.strip()
                else TextPart(reading.text)
            )
            continue
        if reading.text:
            result.append(TextPart(reading.text))
        result.extend(reading.calls)
    return tuple(result)


def _without_markup(parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]) -> tuple[Part, ...]:
    """Leave out the text of calls beside real ones: some servers give both."""
    result: list[Part] = []
    for part in parts:
        if not isinstance(part, TextPart):
            result.append(part)
            continue
        reading = read_text(part.text, offered)
        if not (reading.calls or reading.is_broken or reading.text != part.text.strip()):
            result.append(part)
        elif reading.text:
            result.append(TextPart(reading.text))
    return tuple(result)


def _with_calls_in_thoughts(
    parts: tuple[Part, ...], offered: Mapping[str, ToolSchema]
) -> tuple[Part, ...]:
    """Read the calls that a model wrote in its thoughts, where it said nothing else."""
    result: list[Part] = []
    for part in parts:
        reading = (
            read_text(part.text, offered, is_marked=True)
            if isinstance(part, ReasoningPart)
            else None
        )
        result.append(part)
        if reading:
            result.extend(reading.calls)
    return tuple(result)


def _with_names(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Give a call without a name one that no tool has, where others have theirs: it alone is refused."""
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
    """Read arguments that are nearly JSON, said twice, or followed by a sign."""
    start = text.strip()
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(start)
    except (ValueError, RecursionError):
        value, end = read_loosely(start), len(start)
    rest = start[end:].strip()
    if not isinstance(value, dict) or not (_LEFT_OVER.match(rest) or rest == start[:end]):
        return text
    try:
        return _dumps(value)
    except (TypeError, ValueError):
        return text


@dataclass(frozen=True, slots=True)
class Fault:
    """What is still broken in a mended reply, as a sentence for the model that gave it.

    With `is_useless` the reply's text is of no use to anybody: no prompt holds it, and no reader sees it. `problem` is the same
    for people.
    """

    sentence: str
    is_useless: bool = False
    problem: str = ""


_UNREADABLE = (
    "Your last answer was the text of a tool call or of its result, which nobody can read. To use a tool, make a real tool call "
    "with JSON arguments. To speak to the user, answer in plain words."
)
_WRITTEN_CALL = "It wrote a tool call as text that cannot be read."
_COPIED = "Your last answer repeated a piece of your instructions. Answer what was said to you, in your own words."
_CUT_OFF = "Your last answer was cut off at its length limit, in the middle of a tool call. Make it shorter."


def fault_in(reply: ModelReply, request: ModelRequest) -> Fault | None:
    """Return what is still broken in a mended reply; None where it can be used, or the good ones of its calls can."""
    tools = {tool.name: tool for tool in request.callable_tools}
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if len(calls) > MOST_CALLS:
        sentence = f"Your answer has {len(calls):,} tool calls, and at most {MOST_CALLS} are taken at once. Make fewer."
        return Fault(sentence)
    faults = [_fault_of_call(call, tools.get(call.name), reply) for call in calls]
    if calls:
        return None if None in faults else faults[0]
    texts = [part.text for part in reply.parts if isinstance(part, TextPart)]
    if any(_is_unreadable(text, tools, request) for text in texts):
        sentence = _CUT_OFF if reply.finish == "length" else _UNREADABLE
        return Fault(sentence, is_useless=True, problem=_WRITTEN_CALL)
    if copies_instructions(" ".join(texts), request):
        return Fault(_COPIED, is_useless=True, problem="It repeated a piece of its instructions.")
    is_free = request.forced_tool is None and request.tool_choice != "required"
    if not tools or is_free or reply.finish in {"length", "content_filter"}:
        return None
    tool = f"the tool {request.forced_tool}" if request.forced_tool else "one of your tools"
    return Fault(f"You have to call {tool} now; your answer called none.")


def _is_unreadable(text: str, tools: Mapping[str, ToolSchema], request: ModelRequest) -> bool:
    if request.tools and not tools:
        reading = read_text(text, {tool.name: tool for tool in request.tools})
        return reading.is_broken or bool(reading.calls)
    if not tools:
        # Without tools, as in a summary, calls may be spoken of; an answer that begins as one is none.
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
            f"Your answer was cut off at its length limit, in the middle of the call of {call.name}. Make it shorter."
        )
    return Fault(f"{problem} Call {call.name} again.")


def _fault_of(call: ToolCallPart, tool: ToolSchema | None) -> str | None:
    try:
        value = orjson.loads(call.arguments)
    except orjson.JSONDecodeError as error:
        return f"The arguments of {call.name} are not valid JSON ({error})."
    if not isinstance(value, dict):
        return f"The arguments of {call.name} must be a JSON object."
    is_schema = (
        bool(value) and _SCHEMA_KEYS.issuperset(value) and isinstance(value.get("properties"), dict)
    )
    own = tool.parameters.get("properties", {}) if tool else {}
    if is_schema and not set(value) & set(own):
        return f"The arguments of {call.name} repeat its schema. Give values."
    return None


def _without_schema(arguments: dict[str, Any], tool: ToolSchema | None) -> dict[str, Any]:
    """Values given in the shape of the schema: `{"type": "object", "properties": {"city": "Rome"}}`."""
    values = arguments.get("properties")
    own = tool.parameters.get("properties", {}) if tool else {}
    if (
        not isinstance(values, dict)
        or not values
        or "properties" in own
        or not _SCHEMA_KEYS.issuperset(arguments)
    ):
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
_FENCE = r"```(?:tool_call|tool_code|(?:json|xml)?[ \t]*\n\s*[\[{<])"
_HOLD = re.compile(f"(?:{ANY_MARK.pattern})|{_FENCE}|\\n[ \\t]{{0,9}}(?=[\\[{{])|\\nAction: |\\{{")
_ACTION = "Action: "
_HALF_FENCE = re.compile(r"(?:`{1,2}|```[a-z_]*[ \t]*(?:\n\s*)?|\n[ \t]{0,9})$")
# The first line of a fence cannot close it.
_FENCE_END = re.compile(r"\n[ \t]*```")
_LINE_START = 100
# Characters of blanks that are held back for what may follow them; more are shown as they are.
_LONGEST_BLANK = 1_000
_CHANNEL_SIGNS = ("<|start|>", "<|channel|>", "<|constrain|>")
# Characters before an object in which a tool's name makes it likely to be a call.
_BEHIND_NAME = 48
# A mark that is spoken of: the sentence goes on behind it.
_SPOKEN_OF = re.compile(r"[ \t]{0,9}(?:[.,;:!?)\]*_]|([A-Za-z]{1,20})[ \t,.])")
_UNDECIDED = re.compile(r"[ \t]{0,9}[A-Za-z]{0,20}\Z")
# The beginning of an object, up to its first key.
_FIRST_KEY = re.compile(r"[\s\[{]{1,60}[\"']([\w.:/-]{1,128})[\"']\s{0,9}:")
_HALF_KEY = re.compile(r"[\s\[{]{0,60}(?:[\"'][\w.:/-]{0,128}(?:[\"']\s{0,9})?)?\Z")
_FIRST_CALL = re.compile(r"\[\s{0,9}([A-Za-z_][\w.]{0,127})(?:\(|\Z)")


class StreamRepair:
    """Repairs a reply while chunks arrive, and holds back possible calls; close it with the mended reply, which may start over.

    No more is held back than the answer itself may have (`answer_bounds.py`).
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._names = frozenset(tool.name for tool in tools)
        self._state = "opening"
        # Held-back text: `_kept` is scanned already, `_held` is scanned with the next chunk.
        self._kept: list[str] = []
        self._held = ""
        self._tag = ""
        self._may_think = True
        # Where in the held text a mark ends.
        self._mark_end = 0
        # Fences in the text that was shown: inside of one, objects are examples.
        self._fences = 0
        self._text: list[str] = []
        self._tail = ""
        self._thought: list[str] = []
        # By index, the name and the arguments that readers have seen.
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
        """Yield what may be shown by now."""
        for shown in self._read(chunk):
            self._note(shown)
            yield shown

    def close(self, reply: ModelReply) -> Iterator[Chunk]:
        """Yield what is still to be shown, now that the mended reply is known."""
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        thought = _missing(
            self._thought, [part.text for part in reply.parts if isinstance(part, ReasoningPart)]
        )
        text = _missing(
            self._text, [part.text for part in reply.parts if isinstance(part, TextPart)]
        )
        shown = {
            index: (name, "".join(arguments)) for index, (name, arguments) in self._calls.items()
        }
        agrees = all(
            index < len(calls)
            and calls[index].name == name
            and calls[index].arguments.startswith(arguments)
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
        is_call = isinstance(chunk, ToolCallChunk)
        if is_call and self._state not in ("held", "mark") and (self._kept or self._held.strip()):
            # With a real call beside it, what was held back is no call.
            held = self._release()
            yield ReasoningChunk(held) if self._state == "thinking" else TextChunk(held)
            self._state = "thinking" if self._state == "thinking" else "text"
        if not isinstance(chunk, TextChunk):
            yield chunk
            return
        self._held += chunk.text
        state = ""
        while state != self._state:
            state = self._state
            yield from self._steps[state]()

    def _release(self) -> str:
        held = "".join([*self._kept, self._held])
        self._kept, self._held = [], ""
        return held

    def _shown(self, length: int) -> Iterator[Chunk]:
        """Show the beginning of the held text."""
        if text := self._held[:length]:
            self._held = self._held[length:]
            self._fences += text.count("```")
            yield TextChunk(text)

    def _note(self, shown: Chunk) -> None:
        match shown:
            case TextChunk():
                self._text.append(shown.text)
                self._tail = (self._tail + shown.text[-_BEHIND_NAME:])[-_BEHIND_NAME:]
            case ReasoningChunk():
                self._thought.append(shown.text)
            case ToolCallChunk():
                name, arguments = self._calls.get(shown.index, ("", []))
                arguments.append(shown.arguments)
                self._calls[shown.index] = name + (shown.name or ""), arguments
            case _:
                pass

    def _hold(self) -> Iterator[Chunk]:
        """Keep all that comes until the end tells what it is."""
        self._keep(len(self._held))
        yield from ()

    def _keep(self, length: int) -> None:
        """Scan so much of the held text no more."""
        if length:
            self._kept.append(self._held[:length])
            self._held = self._held[length:]

    def _open(self) -> Iterator[Chunk]:
        """Find out how the answer begins."""
        start = self._held.lstrip()
        if self._tag:  # After a thought, the blank lines before the answer belong to neither.
            self._held = start
        if self._may_think:
            for opening in _THINKS:
                if start.startswith(opening):
                    self._state, self._tag = "thinking", f"</{opening[1:]}"
                    self._held = start[len(opening) :]
                    return
            if start and any(opening.startswith(start) for opening in _THINKS):
                return
        if not start and len(self._held) < _LONGEST_BLANK:
            return
        self._state = self._opening_state(start)
        yield from ()

    def _opening_state(self, start: str) -> str:
        """The state of an answer that begins like this; still "opening" where more has to come to tell."""
        if start and any(
            sign.startswith(start) for sign in ("analysis", *(f"{name}(" for name in self._names))
        ):
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
        return "held" if start.startswith(calls) else "text"

    def _think(self) -> Iterator[Chunk]:
        if not self._thought:
            self._held = self._held.lstrip()
        thought, end, rest = self._held.partition(self._tag)
        if end:
            self._state, self._held, self._may_think = "opening", rest, False
            if thought := thought.rstrip():
                yield ReasoningChunk(thought)
            return
        # A piece of the closing tag may be at the end, and blanks that belong to nobody: keep them until it is known.
        kept = next(
            (n for n in range(len(self._tag) - 1, 0, -1) if thought.endswith(self._tag[:n])), 0
        )
        shown = thought[: len(thought) - kept].rstrip()
        if len(thought) - len(shown) > _LONGEST_BLANK:
            shown = thought[: len(thought) - kept]
        self._held = thought[len(shown) :]
        if shown:
            yield ReasoningChunk(shown)

    def _show(self) -> Iterator[Chunk]:
        """Show the text up to where a call may begin."""
        at = counted = 0
        fences = self._fences
        while match := _HOLD.search(self._held, at):
            fences += self._held.count("```", counted, match.start())
            counted = match.start()
            if state := self._state_at(match, is_in_fence=fences % 2 == 1):
                is_line = match[0].startswith("\n")
                yield from self._shown(
                    match.end() if is_line and state == "object" else match.start()
                )
                self._mark_end = match.end() - match.start()
                self._state = state
                return
            at = match.end()
        yield from self._shown(self._certain_length(at))

    def _state_at(self, match: re.Match[str], *, is_in_fence: bool) -> str:
        """The state that begins with a sign in the text; none where the sign is one of many."""
        sign = match[0]
        is_free = bool(self._names) and not is_in_fence
        if sign == "{":
            before = (
                self._tail + self._held[max(0, match.start() - _BEHIND_NAME) : match.start()]
            )[-_BEHIND_NAME:]
            return "held" if is_free and any(name in before for name in self._names) else ""
        if sign.endswith(_ACTION):
            return "held" if is_free else ""
        if sign.startswith("\n"):
            return "object" if is_free else ""
        if sign.startswith("```"):
            return "fenced" if is_free else ""
        return "mark"

    def _certain_length(self, least: int) -> int:
        """How much of the held text is no beginning of a mark, a fence or an object."""
        held = self._held
        length = len(held)
        if half := HALF_MARK.search(held, max(least, length - HALF_MARK_LENGTH)):
            length = half.start()
        if self._names and (half := _HALF_FENCE.search(held, max(least, length - _LONGEST_BLANK))):
            length = min(length, half.start())
        return length

    def _look_behind_mark(self) -> Iterator[Chunk]:
        """Decide whether a mark begins a call, or is spoken of."""
        mark, rest = self._held[: self._mark_end], self._held[self._mark_end : self._mark_end + 64]
        may_be_spoken_of = (
            mark.endswith((">", "]")) and "DSML" not in mark and mark not in _CHANNEL_SIGNS
        )
        spoken = _SPOKEN_OF.match(rest) if may_be_spoken_of else None
        if spoken and spoken[1] not in self._names:
            yield from self._shown(self._mark_end)
            self._state = "text"
        elif spoken or not (may_be_spoken_of and _UNDECIDED.match(rest)):
            self._state = "held"

    def _look_at_key(self) -> Iterator[Chunk]:
        """Decide by its first key whether an object may be a call."""
        start = self._held.lstrip()
        key = _FIRST_KEY.match(start)
        call = _FIRST_CALL.match(start)
        if (key and (key[1] in CALL_KEYS or offered_name(key[1], self._names) in self._names)) or (
            call and call[1] in self._names
        ):
            self._state = "held"
        elif key or not (_HALF_KEY.match(start) or call):
            self._state = "text"
        yield from ()

    def _look_for_fence_end(self) -> Iterator[Chunk]:
        """Keep a fence until it ends. Each part of it is searched once."""
        if end := _FENCE_END.search(self._held):
            self._state = "closed"
            length = end.end()
        else:
            length = max(self._held.rfind("\n"), len(self._held) - _LINE_START, 0)
        self._keep(length)
        yield from ()

    def _look_behind_fence(self) -> Iterator[Chunk]:
        """Show a fence once the text goes on behind it."""
        if not self._held.strip():
            self._keep(len(self._held))
            return
        rest, self._held = self._held, ""
        yield TextChunk(self._release())
        self._held, self._state = rest, "text"


def _missing(shown: Sequence[str], whole: Sequence[str]) -> str | None:
    """Return what was not shown yet; None where something else was. Blanks at the ends do not count."""
    seen, all_of_it = "".join(shown), "".join(whole)
    if all_of_it.startswith(seen):
        return all_of_it[len(seen) :]
    if all_of_it.strip().startswith(seen.strip()):
        return all_of_it.strip()[len(seen.strip()) :]
    return None
