"""Tool calls that a model wrote as text, read in whatever notation. Pure; only certain calls are read.

A call is read where a tool of that name was offered and its arguments can be read whole; else the text stays a text. Where a call
may begin, a mark of `call_marks.py` tells; without one, a text is a call where nothing else in it speaks to anybody. The time it
takes grows with the text's length alone: what cannot be read is tried a few times, and then no more.
"""

import ast
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import ToolSchema
from ricordo.llm.call_marks import CALL_MARK, CUT_MARK, CUT_MARK_LENGTH, RESULT_MARK, TURN
from ricordo.llm.loose_json import (
    PYTHON_CHARACTERS,
    balanced_end,
    read_json,
    read_loosely,
    read_unclosed,
    read_value_at,
)

Offered = Mapping[str, ToolSchema]
Calls = list[ToolCallPart]

# The name of a call among others that could be read, where its own cannot: it gets an error as its result.
UNREADABLE_CALL = "unreadable_call"
_MOST_FAILURES = 16
_MOST_PLACES = 64
_ARGUMENT_KEYS = (
    "arguments",
    "parameters",
    "args",
    "input",
    "action_input",
    "tool_input",
    "params",
    "kwargs",
)
_NAME_KEYS = ("name", "tool", "tool_name", "function", "function_name", "action")
# The first keys of an object that may be a call, or the result of one.
CALL_KEYS = frozenset(
    (
        *_NAME_KEYS,
        *_ARGUMENT_KEYS,
        "tool_calls",
        "tool_call",
        "function_call",
        "type",
        "id",
        "status",
        "message",
    )
)
_PREFIXES = ("functions.", "tools.", "default_api.", "functions/", "function.", "tool.")
_NUMBERED = re.compile(r":\d+$")
_SPACE = r"(?:[\w-]{1,32}:)?"
_DSML = re.compile(r"<?(/?)[|｜]{1,2}DSML[|｜]{1,2}\s?")
_HEAD = re.compile(
    rf"<{_SPACE}(?:function|invoke|tool)(?:=|\s+name\s*=)\s*[\"']?([\w.:/-]{{1,128}})[\"']?\s*>"
)
_HEAD_END = re.compile(rf"\s*</{_SPACE}(?:function|invoke|tool)>")
_VALUE = re.compile(
    rf"<{_SPACE}(?:parameter|param|arg|argument)(=|\s+name\s*=)\s*[\"']?([\w.-]{{1,128}})[\"']?([^<>]{{0,200}})>"
)
_VALUE_END = re.compile(
    rf"</{_SPACE}(?:parameter|param|arg|argument)>(?=\s*+(?:<|\Z))|\n(?=<(?:parameter=|/function>))"
)
_KEY = re.compile(r"\s*<arg_key>([^<]{1,200})</arg_key>\s*<arg_value>")
_KEY_END = re.compile(r"</arg_value>(?=\s*+(?:<|\Z))")
_TAG = re.compile(rf"<{_SPACE}([A-Za-z_][\w.-]{{0,127}})\s{{0,9}}(/?)>")
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,127}")
# What may stand between a mark and a call, and between a name and its arguments.
_NOISE = re.compile(
    r"\s+|</?[|｜]?[\w▁:.-]{1,64}[|｜]?>|\[CALL_ID\]\w{0,64}|\[/?[A-Z_]{2,24}\]|```\w{0,12}|[;,\[\]}:=]|\\n"
    r"|(?:functools|assistant|commentary|json|code|python|functions?|call|tool_calls?|Action[ _]Input)(?![\w.])|to="
)
# What may stand behind a call and belongs to it.
_CLOSERS = re.compile(
    r"(?:\s*+(?:</[|｜]?[\w▁:.-]{1,64}[|｜]?>|<[|｜][\w▁:.-]{1,64}[|｜]>|<end_\w{1,32}>|<tool_calls?\|>"
    r"|\[/[A-Z_]{2,24}\]|\[END_[A-Z_]{2,24}\]|```(?!\w)|[;,\]}]))*+"
)
_CLOSER = re.compile(r"</|<\||<｜|```|\[/|\[END_")
_FENCE = re.compile(r"^[ \t]{0,9}```[^\n`]{0,40}$", re.MULTILINE)
_OPEN_FENCE = re.compile(r"(?:\A|\n)[ \t]{0,9}```\w{0,12}\s*\Z")
_LINE = re.compile(r"^[ \t]{0,9}(?=[\[{<A-Za-z_])", re.MULTILINE)
_TURN_BEGIN = re.compile(rf"\A(?:\s*+(?:{TURN}|<s>|(?<=>)assistant\b))++\s*")
_TURN_END = re.compile(
    rf"(?:{TURN}|</s>|<end_of_turn>)\s*(?:\Z|(?=<\|im_start\|>|<start_of_turn>)[\s\S]*\Z)"
)
_WORD = re.compile(r"[^\W\d_][^\W_]*")
_PACKAGED = re.compile(
    r"\s*+\{\s*+\"(status|type)\"\s*+:\s*+\"(?:OK|Failed|heartbeat|system_alert|user_message|login|tool_pictures)\""
)
_NAMES_A_TOOL = re.compile(
    r"[\s\[{]{1,99}[\"'](?:name|tool|tool_name|function|action)[\"']\s{0,9}:\s{0,9}[\"']([\w.:/-]{1,128})[\"']"
)
# Words of wrappers: what else is said beside a call's name and its arguments speaks to somebody.
_WRAPPER_WORDS = frozenset(
    "tool tools call calls called calling function functions name args arguments argument parameters params parameter input "
    "action invoke json python xml assistant commentary code with type id begin end start request to section sep".split()
)


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def offered_name(name: str, offered: Container[str]) -> str:
    """Return the tool that a name means, where templates left something around it; else the name as it is."""
    if name in offered:
        return name
    bare = name.strip().partition("<|")[0].strip().rstrip(":")
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    bare = bare if bare in offered else _NUMBERED.sub("", bare)
    return bare if bare in offered else name


@dataclass(slots=True)
class Reading:
    """The calls in a text, the text around them, and whether something in it is a call or a result that cannot be read."""

    calls: Calls = field(default_factory=list)
    text: str = ""
    is_broken: bool = False


def read_text(text: str, offered: Offered, *, is_marked: bool = False) -> Reading:
    """Read the calls of a text; with `is_marked` only those that a notation's mark announces."""
    text = _without_turns(text)
    # Behind a result that the model made up, nothing is true; a mark that was cut off begins a call at least.
    end = RESULT_MARK.search(text) or CUT_MARK.search(text, max(0, len(text) - CUT_MARK_LENGTH))
    whole = text[: end.start()] if end else text
    reading = _MarkedReader(_canonical(whole), offered).read()
    if not (reading.calls or reading.is_broken or is_marked or end):
        reading = _BareReader(whole.strip(), offered).read()
    if not reading.calls and (end or _is_result(whole)):
        reading.is_broken = True
    return reading


def _is_result(text: str) -> bool:
    """Return whether the whole text is a result or an event as this server packages it, copied by the model."""
    packaged = _PACKAGED.match(text)
    value = read_json(text) if packaged else None
    return isinstance(value, dict) and set(value) == {
        packaged[1] if packaged else "",
        "message",
        "time",
    }


def written_calls(text: str, offered: Offered) -> tuple[Calls, str]:
    """Return the calls that a text means, and the text without them."""
    reading = read_text(text, offered)
    return (reading.calls, reading.text) if reading.calls else ([], "")


def _canonical(text: str) -> str:
    """The text with DeepSeek's DSML as tags of a namespace, its signs being written in several ways."""
    return _DSML.sub(r"<\1dsml:", text) if "DSML" in text else text


def _without_turns(text: str) -> str:
    """The text without the signs at which a template begins and ends a message, and without what follows its end."""
    return _TURN_END.sub("", _TURN_BEGIN.sub("", text, count=1), count=1) if "<" in text else text


class _Reader:
    """Reads one call at a place of a text, in every form that a call has."""

    def __init__(self, text: str, offered: Offered) -> None:
        self.text = text
        self.offered = offered
        # Where the last sequence met something that is neither a call nor a part of its wrapper.
        self.stop = 0
        self._failures = 0

    def calls_at(self, at: int) -> tuple[Calls, int] | None:
        """Return the calls that begin here and where they end; None where none does."""
        sign = self.text[at : at + 1]
        if self._failures >= _MOST_FAILURES:
            return None
        if sign == "<":
            return self._tagged(at) or self._element(at)
        if sign in ("{", "["):
            return self._object(at)
        return self._named(at) if sign and (sign.isalpha() or sign == "_") else None

    def sequence(self, at: int) -> tuple[Calls, int]:
        """Return all calls from here on, past what may stand between them, and where the last one ends."""
        calls: Calls = []
        end = at
        while at < len(self.text):
            found = self.calls_at(at)
            if found:
                calls += found[0]
                at = end = self._past_closers(found[1])
            elif noise := _NOISE.match(self.text, at):
                at = noise.end()
            else:
                break
        self.stop = at
        return calls, end

    def _past_closers(self, at: int) -> int:
        closers = _CLOSERS.match(self.text, at)
        return closers.end() if closers else at

    def _failed(self) -> None:
        """Count a search that may have run to the text's end for nothing."""
        self._failures += 1

    def _value(self, at: int) -> tuple[Any, int] | None:
        if self._failures >= _MOST_FAILURES:
            return None
        found = read_value_at(self.text, at)
        if found is None:
            self._failed()
            closer = _CLOSER.search(self.text, at)
            value = read_unclosed(self.text[at : closer.start()]) if closer else None
            found = None if closer is None or value is None else (value, closer.start())
        return found

    def _object(self, at: int) -> tuple[Calls, int] | None:
        if self.text[at] == "[" and not re.match(r"\[\s{0,99}[\[{]", self.text[at : at + 101]):
            return None
        found = self._value(at)
        calls = calls_in(found[0], self.offered) if found else []
        return (calls, found[1]) if found and calls else None

    def _tagged(self, at: int) -> tuple[Calls, int] | None:
        """Read `<function=name>` or `<invoke name="name">` with values in tags, or with JSON."""
        head = _HEAD.match(self.text, at)
        name = offered_name(head[1], self.offered) if head else ""
        if head is None or name not in self.offered:
            return None
        values: dict[str, Any] = {}
        at = _past_blanks(self.text, head.end())
        while value := _VALUE.match(self.text, at):
            end = _VALUE_END.search(self.text, value.end())
            if end is None:
                self._failed()
                return None
            written = self.text[value.end() : end.start()]
            bare = written.removeprefix("\n").removesuffix("\n") if value[1] == "=" else written
            values[value[2]] = self._typed(name, value[2], bare, value[3])
            at = _past_blanks(self.text, end.end())
        if not values and self.text.startswith("{", at):
            found = self._value(at)
            if found is None or not isinstance(found[0], dict):
                return None
            values, at = found
        closing = _HEAD_END.match(self.text, at)
        if closing is None and not (values and _fits(self.offered[name], values)):
            return None
        return [_call_of(name, values)], closing.end() if closing else at

    def _element(self, at: int) -> tuple[Calls, int] | None:
        """Read an element that is named as a tool, with one element a value, or with JSON."""
        tag = _TAG.match(self.text, at)
        if tag is None or tag[1] not in self.offered:
            return None
        name, closing = tag[1], f"</{self.text[at + 1 : tag.start(1)]}{tag[1]}>"
        values: dict[str, Any] = {}
        at = _past_blanks(self.text, tag.end())
        if not tag[2] and self.text.startswith("{", at):
            found = self._value(at)
            if found is None or not isinstance(found[0], dict):
                return None
            values, at = found
        while not tag[2] and (child := _TAG.match(self.text, at)):
            end = self.text.find(f"</{self.text[at + 1 : child.start(1)]}{child[1]}>", child.end())
            if end < 0:
                self._failed()
                return None
            values[child[1]] = self._typed(name, child[1], self.text[child.end() : end])
            at = _past_blanks(self.text, self.text.index(">", end) + 1)
        if not tag[2] and not self.text.startswith(closing, at := _past_blanks(self.text, at)):
            return None
        end = tag.end() if tag[2] else at + len(closing)
        return ([_call_of(name, values)], end) if _fits(self.offered[name], values) else None

    def _named(self, at: int) -> tuple[Calls, int] | None:
        """Read a name with arguments behind it: as JSON, between tags, or in brackets as Python does."""
        match = _NAME.match(self.text, at)
        name = offered_name(match[0], self.offered) if match else ""
        if match is None or name not in self.offered:
            return None
        at = match.end()
        if self.text.startswith("(", at):
            return self._pythonic(name, at)
        if _KEY.match(self.text, at):
            return self._keyed(name, at)
        end = at
        while (noise := _NOISE.match(self.text, end)) and not self.text.startswith("</", end):
            end = noise.end()
        if self.text.startswith("{", end):
            found = self._value(end)
            if found and isinstance(found[0], dict) and not calls_in(found[0], self.offered):
                return [_call_of(name, found[0])], found[1]
        is_alone = end == len(self.text) or self.text.startswith("</", end)
        return ([_call_of(name, {})], at) if is_alone and _fits(self.offered[name], {}) else None

    def _keyed(self, name: str, at: int) -> tuple[Calls, int] | None:
        """Read GLM's keys and values."""
        values: dict[str, Any] = {}
        while key := _KEY.match(self.text, at):
            end = _KEY_END.search(self.text, key.end())
            if end is None:
                self._failed()
                return None
            values[key[1].strip()] = self._typed(
                name, key[1].strip(), self.text[key.end() : end.start()]
            )
            at = end.end()
        is_closed = self.text.startswith("</", _past_blanks(self.text, at))
        return (
            ([_call_of(name, values)], at)
            if is_closed or _fits(self.offered[name], values)
            else None
        )

    def _pythonic(self, name: str, at: int) -> tuple[Calls, int] | None:
        end = balanced_end(self.text, at)
        if end is None or end - at > PYTHON_CHARACTERS:
            self._failed()
            return None
        arguments = _python_arguments(self.text[at:end], self.offered[name])
        return None if arguments is None else ([_call_of(name, arguments)], end)

    def _typed(self, name: str, key: str, written: str, attributes: str = "") -> Any:
        """The value of a bare text, as the kind that the tool or the notation says."""
        schema = self.offered[name].parameters.get("properties", {}).get(key)
        kind = (
            schema.get("type", "string")
            if isinstance(schema, dict) and "anyOf" not in schema
            else "string"
        )
        is_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
        if 'string="' in attributes:
            is_text = 'string="true"' in attributes
        value = None if is_text else read_json(written)
        if value is None and not is_text:
            value = read_loosely(written.strip())
        return written if value is None else value


class _MarkedReader(_Reader):
    """Reads the calls that marks of notations announce."""

    def read(self) -> Reading:
        """Read all of it. Of several calls one that cannot be read stands as `UNREADABLE_CALL`."""
        around: list[str] = []
        calls: Calls = []
        examples = _examples(self.text)
        at = 0
        is_unread = False
        while mark := CALL_MARK.search(self.text, at):
            before = "" if is_unread else self.text[at : mark.start()]
            if examples.has(mark.start()):
                around.append("" if is_unread else self.text[at : mark.end()])
                at = mark.end()
                continue
            found, end = self._calls_behind(mark)
            if found:
                calls += [_unreadable(), *found] if is_unread else found
                around.append(_OPEN_FENCE.sub("", before))
                at, is_unread = end, False
                continue
            if not is_unread and not examples.ends_with(mark.start()) and self._begins_a_call(mark):
                is_unread = True
                around.append(_OPEN_FENCE.sub("", before))
            elif not is_unread:
                around.append(self.text[at:end])
            at = end
        if not is_unread:
            around.append(self.text[at:])
        elif calls:
            calls.append(_unreadable())
        return Reading(calls, "".join(around).strip(), is_broken=is_unread and not calls)

    def _calls_behind(self, mark: re.Match[str]) -> tuple[Calls, int]:
        """Return the calls at a mark and where they end; without one, where the search goes on."""
        found, end = self.sequence(mark.start())
        stop = self.stop
        if not found:
            found, end = self.sequence(mark.end())
        return (found, end) if found else ([], max(mark.end(), stop, self.stop))

    def _begins_a_call(self, mark: re.Match[str]) -> bool:
        """Return whether something stands behind the mark that may only be a call, or the text was cut there."""
        is_tag = mark[0].startswith("<") and (
            "function" in mark[0] or "invoke" in mark[0] or "<tool" in mark[0]
        )
        if is_tag and mark[0].endswith("="):
            return (
                "tool" not in mark[0] and not self.text[: mark.start()].rpartition("\n")[2].strip()
            )
        at = mark.end()
        while noise := _NOISE.match(self.text, at):
            at = noise.end()
        if at == len(self.text) or "dsml:" in mark[0]:
            return True
        name = _NAME.match(self.text, at)
        if name and self.text[name.end() : name.end() + 1] in ("(", "<", "{", "["):
            return True
        if name and name.end() == len(self.text):
            is_sign = any(bar in mark[0] for bar in "|｜")
            return is_sign or any(
                tool.startswith(name[0]) for tool in (*self.offered, "functions.")
            )
        return self.text[at] in "{[<" or bool(
            name and offered_name(name[0], self.offered) in self.offered
        )


class _BareReader(_Reader):
    """Reads the calls of a text without marks: as the whole of it, or at one of its ends."""

    def read(self) -> Reading:
        if not self.text or not any(name in self.text for name in self.offered):
            return Reading([], self.text)
        reading = (
            self._whole()
            or self._fenced()
            or self._at_an_end()
            or self._in_lines()
            or self._in_a_wrapper()
        )
        if reading is None:
            is_broken = self._is_broken()
            reading = Reading([], "" if is_broken else self.text, is_broken=is_broken)
        return reading

    def _whole(self) -> Reading | None:
        calls, end = self.sequence(0)
        return Reading(calls) if calls and end == len(self.text) else None

    def _fenced(self) -> Reading | None:
        """Read a fence that begins or ends the text: one in the middle is likelier an example than a call."""
        fences = list(_FENCE.finditer(self.text))
        for opening, closing in (
            (fences[:2], fences[-2:]) if len(fences) > 1 and len(fences) % 2 == 0 else ()
        ):
            before, after = self.text[: opening.start()].strip(), self.text[closing.end() :].strip()
            inner = self.text[opening.end() : closing.start()].strip()
            calls, end = _Reader(inner, self.offered).sequence(0)
            if calls and end == len(inner) and not (before and after):
                return Reading(calls, before or after)
        return None

    def _at_an_end(self) -> Reading | None:
        """Read a call that begins the text or ends it, in lines of its own."""
        calls, end = self.sequence(0)
        if calls and self._is_line_end(end) and self._is_fitting(calls):
            return Reading(calls, self.text[end:].strip())
        for number, line in enumerate(_LINE.finditer(self.text)):
            if number == _MOST_PLACES:
                break
            is_named = any(self.text.startswith(name, line.end()) for name in self.offered)
            if not is_named and self.text[line.end()] not in "{[<":
                continue
            calls, end = self.sequence(line.end())
            if calls and end == len(self.text) and self._is_fitting(calls):
                return Reading(calls, _OPEN_FENCE.sub("", self.text[: line.start()]).strip())
        return None

    def _in_lines(self) -> Reading | None:
        """Read objects that are calls and have lines of their own, in the middle of a text too."""
        examples = _examples(self.text)
        calls: Calls = []
        around: list[str] = []
        at = 0
        for number, line in enumerate(_LINE.finditer(self.text)):
            start = line.end()
            if number == _MOST_PLACES:
                break
            if start < at or self.text[start] not in "{[" or examples.has(start):
                continue
            found = self._object(start)
            if found and self._is_line_end(found[1]) and self._is_fitting(found[0]):
                calls += found[0]
                around.append(self.text[at : line.start()].strip())
                at = found[1]
        around.append(self.text[at:].strip())
        return Reading(calls, "\n\n".join(filter(None, around))) if calls else None

    def _in_a_wrapper(self) -> Reading | None:
        """Read calls in a wrapper that nobody knows, where nothing else in the text speaks to anybody."""
        calls: Calls = []
        at = 0
        while (start := self.text.find("{", at)) >= 0:
            found = self._value(start)
            if found is None or not isinstance(found[0], dict):
                return None
            names = self._names_in(self.text[at:start])
            if names is None:
                return None
            own = calls_in(found[0], self.offered)
            if not own and len(names) != 1:
                return None
            calls += own or [_call_of(names[0], found[0])]
            at = found[1]
        is_rest_empty = self._names_in(self.text[at:]) is not None
        return Reading(calls) if calls and is_rest_empty and self._is_fitting(calls) else None

    def _names_in(self, gap: str) -> list[str] | None:
        """The tools that a gap between arguments names; None where it says something else."""
        names = list(
            dict.fromkeys(
                name
                for word in _NAME.findall(gap)
                if (name := offered_name(word, self.offered)) in self.offered
            )
        )
        for name in names:
            gap = gap.replace(name, " ")
        words = (word.lower() for word in _WORD.findall(gap))
        return names if all(word in _WRAPPER_WORDS for word in words) else None

    def _is_line_end(self, at: int) -> bool:
        rest = self.text[at : at + 200].partition("\n")
        return not rest[0].strip() or self.text[at - 1] == "\n"

    def _is_fitting(self, calls: Calls) -> bool:
        return all(_fits(self.offered[call.name], read_json(call.arguments)) for call in calls)

    def _is_broken(self) -> bool:
        """Return whether the whole text is an object that names a tool, though not as a call of it."""
        if not self.text.startswith(("{", "[{")):
            return self._is_broken_python()
        value = read_json(self.text)
        if value is None:
            head = _NAMES_A_TOOL.match(self.text)
            return head is not None and offered_name(head[1], self.offered) in self.offered
        row = value[0] if isinstance(value, list) and value else value
        named = [row.get(key) for key in _NAME_KEYS] if isinstance(row, dict) else []
        return any(
            isinstance(name, str) and offered_name(name, self.offered) in self.offered
            for name in named
        )

    def _is_broken_python(self) -> bool:
        """Return whether the whole text is `name(…)` of a tool, with arguments that cannot be read or have no end."""
        name = _NAME.match(self.text)
        if name is None or name[0] not in self.offered or not self.text.startswith("(", name.end()):
            return False
        return balanced_end(self.text, name.end()) in (None, len(self.text))


@dataclass(frozen=True, slots=True)
class _Examples:
    """The fences of a text that may hold examples: those between words, and the `last` one with words before it."""

    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    last: tuple[int, int] = (0, 0)

    def has(self, at: int) -> bool:
        """Return whether this place is in a fence with words on both sides."""
        number = bisect_right(self.firsts, at) - 1
        return number >= 0 and at < self.lasts[number]

    def ends_with(self, at: int) -> bool:
        """Return whether this place is in the fence that ends the text."""
        return self.last[0] <= at < self.last[1]


def _examples(text: str) -> _Examples:
    fences = [match.span() for match in _FENCE.finditer(text)] if "```" in text else []
    spans = [
        (opening[0], closing[1])
        for opening, closing in zip(fences[::2], fences[1::2], strict=False)
    ]
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    middle = [(first, last) for first, last in spans if begin < first and last < end]
    ending = [(first, last) for first, last in spans if begin < first and last >= end]
    return _Examples(
        tuple(first for first, _ in middle),
        tuple(last for _, last in middle),
        ending[-1] if ending else (0, 0),
    )


def _past_blanks(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _python_arguments(text: str, tool: ToolSchema) -> dict[str, Any] | None:
    """The values of `(city="Rome", days=3)`; those without a name are taken in the order of the tool's parameters."""
    try:
        node = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(node, ast.Call):
            return None
        names = list(tool.parameters.get("properties", {}))
        if len(node.args) > len(names) or any(word.arg is None for word in node.keywords):
            return None
        values = dict(zip(names, map(_literal, node.args), strict=False))
        return values | {word.arg or "": _literal(word.value) for word in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None


_JSON_WORDS = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr) -> Any:
    return (
        _JSON_WORDS[node.id]
        if isinstance(node, ast.Name) and node.id in _JSON_WORDS
        else ast.literal_eval(node)
    )


def calls_in(value: Any, offered: Offered) -> Calls:
    """Return the calls in decoded JSON: one, a list of them, or none where any of it is something else."""
    if isinstance(value, dict):
        value = next(
            (
                value[key]
                for key in ("tool_calls", "tool_call", "function_call")
                if isinstance(value.get(key), list | dict)
            ),
            value,
        )
    calls = [_call(item, offered) for item in (value if isinstance(value, list) else [value])]
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else []


def _call(item: Any, offered: Offered) -> ToolCallPart | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    named = next((key for key in _NAME_KEYS if isinstance(item.get(key), str)), None)
    name = offered_name(item[named], offered) if named else ""
    if named is None or name not in offered:
        return _keyed_by_name(item, offered)
    key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if key is None:
        values = {other: item[other] for other in item if other not in (named, "id", "type")}
        return _call_of(name, values) if values and _fits(offered[name], values) else None
    arguments = item[key]
    if arguments is not None and not isinstance(arguments, dict | str):
        return None
    return (
        ToolCallPart(new_call_id(), name, arguments)
        if isinstance(arguments, str)
        else _call_of(name, arguments)
    )


def _keyed_by_name(item: dict[str, Any], offered: Offered) -> ToolCallPart | None:
    """Read `{"get_weather": {"city": "Rome"}}`."""
    if len(item) != 1:
        return None
    ((written, values),) = item.items()
    name = offered_name(str(written), offered)
    is_call = name in offered and isinstance(values, dict) and _fits(offered[name], values)
    return _call_of(name, values) if is_call else None


def _fits(tool: ToolSchema, values: Any) -> bool:
    """Return whether these are the arguments of the tool by their names."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    return (
        isinstance(values, dict)
        and set(required) <= set(values)
        and (not properties or set(values) <= set(properties))
    )


def _call_of(name: str, values: Any) -> ToolCallPart:
    try:
        arguments = orjson.dumps(values or {}, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    except TypeError:  # Halves of characters, or numbers above 64 bits.
        arguments = json.dumps(values, default=str)
    return ToolCallPart(new_call_id(), name, arguments)


def _unreadable() -> ToolCallPart:
    return ToolCallPart(new_call_id(), UNREADABLE_CALL, "{}")
