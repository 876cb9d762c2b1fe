"""Tool calls that a model wrote as text, in any notation.

Only calls that are certain are read.

A call is recognized only if its tool was offered and all its arguments can be read. Otherwise the
text stays text, or counts as broken if it can only be a call. The marks of `call_marks.py` tell the
possible beginnings of calls. Without a mark, a text is a call only if the rest of it is not meant
for a reader. The time is linear in the text's length, since unreadable positions are tried only a
limited number of times.
"""

import ast
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ricordo.domain.ids import unique
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

# The name given to an unreadable call among readable ones; its result is an error.
UNREADABLE_CALL = "unreadable_call"
_MOST_FAILURES = 16
_MOST_LINES = 64
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
# The first keys of an object that may be a call or the result of a call.
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
# Text between a mark and a call, or between a name and its arguments, that may be skipped.
_NOISE = re.compile(
    r"\s+|</?[|｜]?[\w▁:.-]{1,64}[|｜]?>|\[CALL_ID\]\w{0,64}|\[/?[A-Z_]{2,24}\]|```\w{0,12}|[;,\[\]}:=]|\\n"
    r"|(?:functools|assistant|commentary|json|code|python|functions?|call|tool_calls?|Action[ _]Input)(?![\w.])|to="
)
# Text after a call that belongs to it.
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
# Words of wrappers. Any other text next to a call's name and arguments is meant for a reader.
_WRAPPER_WORDS = frozenset(
    "tool tools call calls called calling function functions name args arguments argument "
    "parameters params parameter input action invoke json python xml assistant commentary code "
    "with type id begin end start request to section sep".split()
)


def new_call_id() -> str:
    """Return a new id for a call, in the form of OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def offered_name(name: str, offered: Container[str]) -> str:
    """Return the offered tool that a name means, else the name.

    Templates may add to the name.

    Args:
        name: The name that the model wrote.
        offered: The names of the offered tools.
    """
    if name in offered:
        return name
    bare = _bare_name(name)
    if bare not in offered:
        bare = _NUMBERED.sub("", bare)
    return bare if bare in offered else name


def called_name(name: str, offered: Collection[str]) -> str:
    """Return the offered tool that the name in a call means, else the name.

    Small models write names in other capitals, or with other signs between their words. Where a
    text may be prose and no call, use `offered_name`, which does not accept such names.

    Args:
        name: The name that the model wrote.
        offered: The names of the offered tools. If several of them differ only in this way, none is
            meant.
    """
    exact_name = offered_name(name, offered)
    if exact_name in offered:
        return exact_name
    for bare in (name, _bare_name(name), _NUMBERED.sub("", _bare_name(name))):
        normal = normal_name(bare)
        matches = [tool for tool in offered if normal and normal_name(tool) == normal]
        if matches:
            return matches[0] if len(matches) == 1 else name
    return name


def normal_name(name: str) -> str:
    """Return the letters and digits of a tool's name in lower case.

    Args:
        name: A name, such as "Memory-Insert", for which "memoryinsert" is returned.
    """
    return "".join(filter(str.isalnum, name)).casefold()


def _bare_name(name: str) -> str:
    """Return the name without the additions of templates and without a namespace."""
    bare = name.strip().partition("<|")[0].strip().rstrip(":")
    for prefix in _PREFIXES:
        if bare.casefold().startswith(prefix):
            bare = bare[len(prefix) :]
    return bare


@dataclass(slots=True)
class ParsedText:
    """The calls in a text and the text around them.

    With `is_broken` a part of the text is an unreadable call or result.
    """

    calls: Calls = field(default_factory=list)
    text: str = ""
    is_broken: bool = False


def read_text(text: str, offered: Offered, *, is_marked: bool = False) -> ParsedText:
    """Read the calls of a text.

    Args:
        text: The text of a reply, which may be cut off at its end.
        offered: The offered tools by name. Only their calls are read.
        is_marked: Whether only calls after a notation's mark are read.
    """
    text = _without_turns(text)
    # Text after an invented result is worthless. A cut mark is the beginning of a call.
    end = RESULT_MARK.search(text) or CUT_MARK.search(text, max(0, len(text) - CUT_MARK_LENGTH))
    readable = text[: end.start()] if end else text
    reading = _MarkedReader(_canonical(readable), offered).read()
    if not (reading.calls or reading.is_broken or is_marked or end):
        reading = _BareReader(readable.strip(), offered).read()
    if not reading.calls and (end or _is_result(readable)):
        reading.is_broken = True
    return reading


def _is_result(text: str) -> bool:
    """Return whether the whole text copies a result or event of this server."""
    match = _PACKAGED.match(text)
    if match is None:
        return False
    package = read_json(text)
    return isinstance(package, dict) and set(package) == {match[1], "message", "time"}


def _canonical(text: str) -> str:
    """Return the text with DeepSeek's DSML marks, which vary, written as tags of a namespace."""
    if "DSML" in text:
        return _DSML.sub(r"<\1dsml:", text)
    return text


def _without_turns(text: str) -> str:
    """Return the text without a template's tokens around a message, and without later text."""
    if "<" not in text:
        return text
    return _TURN_END.sub("", _TURN_BEGIN.sub("", text, count=1), count=1)


class _Reader:
    """Reads a call at one position of a text, in every form of a call."""

    def __init__(self, text: str, offered: Offered) -> None:
        self.text = text
        self.offered = offered
        # The end of the last sequence of calls. The text after it is neither a call nor part of a
        # wrapper.
        self.stop = 0
        self._failures = 0

    def calls_at(self, at: int) -> tuple[Calls, int] | None:
        """Return the calls that begin here and their end; None if there are none.

        Args:
            at: The index of the call's first sign.
        """
        sign = self.text[at : at + 1]
        if self._failures >= _MOST_FAILURES:
            return None
        if sign == "<":
            return self._tagged(at) or self._element(at)
        if sign in ("{", "["):
            return self._object(at)
        if sign.isalpha() or sign == "_":
            return self._named(at)
        return None

    def sequence(self, at: int) -> tuple[Calls, int]:
        """Return all calls in a row, skipping wrappers between them, and the end of the last.

        Args:
            at: The index at which the first call or wrapper may begin.

        Returns:
            The calls, and the index after the last of them. Without calls, the index is `at`.
        """
        calls: Calls = []
        end = at
        while at < len(self.text):
            match = self.calls_at(at)
            if match:
                calls += match[0]
                at = end = self._past_closers(match[1])
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
        """Count a failed search, since it may have read to the end of the text."""
        self._failures += 1

    def _value(self, at: int) -> tuple[Any, int] | None:
        if self._failures >= _MOST_FAILURES:
            return None
        parsed = read_value_at(self.text, at)
        if parsed is not None:
            return parsed
        self._failed()
        closer = _CLOSER.search(self.text, at)
        if closer is None:
            return None
        json = read_unclosed(self.text[at : closer.start()])
        if json is None:
            return None
        return (json, closer.start())

    def _object(self, at: int) -> tuple[Calls, int] | None:
        if self.text[at] == "[" and not re.match(r"\[\s{0,99}[\[{]", self.text[at : at + 101]):
            return None
        parsed = self._value(at)
        if parsed is None:
            return None
        calls = calls_in(parsed[0], self.offered)
        return (calls, parsed[1]) if calls else None

    def _tagged(self, at: int) -> tuple[Calls, int] | None:
        """Read `<function=name>` or `<invoke name="name">` with values in tags or as JSON."""
        head = _HEAD.match(self.text, at)
        if head:
            name = called_name(head[1], self.offered)
        else:
            name = ""
        if head is None or name not in self.offered:
            return None
        arguments: dict[str, Any] = {}
        at = _past_blanks(self.text, head.end())
        while tag := _VALUE.match(self.text, at):
            end = _VALUE_END.search(self.text, tag.end())
            if end is None:
                self._failed()
                return None
            written = self.text[tag.end() : end.start()]
            if tag[1] == "=":
                written = written.removeprefix("\n").removesuffix("\n")
            arguments[tag[2]] = self._typed(name, tag[2], written, tag[3])
            at = _past_blanks(self.text, end.end())
        if not arguments and self.text.startswith("{", at):
            parsed = self._value(at)
            if parsed is None or not isinstance(parsed[0], dict):
                return None
            arguments, at = parsed
        closing = _HEAD_END.match(self.text, at)
        if closing is None and not (arguments and _fits(self.offered[name], arguments)):
            return None
        return [_call_of(name, arguments)], closing.end() if closing else at

    def _element(self, at: int) -> tuple[Calls, int] | None:
        """Read an element named as a tool, with an element for each argument, or with JSON."""
        tag = _TAG.match(self.text, at)
        if tag is None or tag[1] not in self.offered:
            return None
        name = tag[1]
        closing = f"</{self.text[at + 1 : tag.start(1)]}{name}>"
        arguments: dict[str, Any] = {}
        at = _past_blanks(self.text, tag.end())
        if not tag[2] and self.text.startswith("{", at):
            parsed = self._value(at)
            if parsed is None or not isinstance(parsed[0], dict):
                return None
            arguments, at = parsed
        while not tag[2] and (child := _TAG.match(self.text, at)):
            end = self.text.find(f"</{self.text[at + 1 : child.start(1)]}{child[1]}>", child.end())
            if end < 0:
                self._failed()
                return None
            arguments[child[1]] = self._typed(name, child[1], self.text[child.end() : end])
            at = _past_blanks(self.text, self.text.index(">", end) + 1)
        at = _past_blanks(self.text, at)
        if not (tag[2] or arguments or self.text.startswith(closing, at)):
            end = self.text.find(closing, at)
            written = self.text[at:end] if end >= 0 else ""
            arguments = _arguments_as_text(written.strip(), self.offered[name])
            at = max(end, at)
        if not tag[2] and not self.text.startswith(closing, at):
            return None
        end = tag.end() if tag[2] else at + len(closing)
        if not _fits(self.offered[name], arguments):
            return None
        return [_call_of(name, arguments)], end

    def _named(self, at: int) -> tuple[Calls, int] | None:
        """Read a name with arguments after it: as JSON, between tags, or in Python's brackets."""
        match = _NAME.match(self.text, at)
        if match:
            name = offered_name(match[0], self.offered)
        else:
            name = ""
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
            parsed = self._value(end)
            if parsed and isinstance(parsed[0], dict) and not calls_in(parsed[0], self.offered):
                return [_call_of(name, parsed[0])], parsed[1]
        is_alone = end == len(self.text) or self.text.startswith("</", end)
        if not is_alone or not _fits(self.offered[name], {}):
            return None
        return [_call_of(name, {})], at

    def _keyed(self, name: str, at: int) -> tuple[Calls, int] | None:
        """Read GLM's keys and values."""
        arguments: dict[str, Any] = {}
        while key := _KEY.match(self.text, at):
            end = _KEY_END.search(self.text, key.end())
            if end is None:
                self._failed()
                return None
            parameter = key[1].strip()
            written = self.text[key.end() : end.start()]
            arguments[parameter] = self._typed(name, parameter, written)
            at = end.end()
        is_closed = self.text.startswith("</", _past_blanks(self.text, at))
        if not is_closed and not _fits(self.offered[name], arguments):
            return None
        return [_call_of(name, arguments)], at

    def _pythonic(self, name: str, at: int) -> tuple[Calls, int] | None:
        end = balanced_end(self.text, at)
        if end is None or end - at > PYTHON_CHARACTERS:
            self._failed()
            return None
        arguments = _python_arguments(self.text[at:end], self.offered[name])
        if arguments is None:
            return None
        return ([_call_of(name, arguments)], end)

    def _typed(self, name: str, key: str, written: str, attributes: str = "") -> Any:
        """Return a written argument in the type that the tool or the notation declares."""
        schema = self.offered[name].parameters.get("properties", {}).get(key)
        kind: Any = "string"
        if isinstance(schema, dict) and "anyOf" not in schema:
            kind = schema.get("type", "string")
        is_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
        if 'string="' in attributes:
            is_text = 'string="true"' in attributes
        if is_text:
            return written
        argument = read_json(written)
        if argument is None:
            argument = read_loosely(written.strip())
        if argument is None:
            return written
        return argument


class _MarkedReader(_Reader):
    """Reads the calls after marks of notations."""

    def read(self) -> ParsedText:
        """Read the whole text; an unreadable call among others becomes `UNREADABLE_CALL`."""
        around: list[str] = []
        calls: Calls = []
        examples = _examples(self.text)
        at = 0
        is_unread = False
        while mark := CALL_MARK.search(self.text, at):
            if is_unread:
                before = ""
            else:
                before = self.text[at : mark.start()]
            if examples.has(mark.start()):
                around.append("" if is_unread else self.text[at : mark.end()])
                at = mark.end()
                continue
            new_calls, end = self._calls_behind(mark)
            if new_calls:
                if is_unread:
                    calls.append(_unreadable())
                calls += new_calls
                around.append(_OPEN_FENCE.sub("", before))
                at = end
                is_unread = False
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
        return ParsedText(calls, "".join(around).strip(), is_broken=is_unread and not calls)

    def _calls_behind(self, mark: re.Match[str]) -> tuple[Calls, int]:
        """Return the calls at a mark and their end.

        If there is no call, the position is where the search continues.
        """
        calls, end = self.sequence(mark.start())
        stop = self.stop
        if not calls:
            calls, end = self.sequence(mark.end())
        if calls:
            return calls, end
        return [], max(mark.end(), stop, self.stop)

    def _may_begin_a_name(self, name: str, mark: re.Match[str]) -> bool:
        """Return whether a name at the end of the text may be the beginning of a tool's name.

        After a special token, any name may be.
        """
        is_sign = any(bar in mark[0] for bar in "|｜")
        names = (*self.offered, "functions.")
        return is_sign or any(tool.startswith(name) for tool in names)

    def _begins_a_call(self, mark: re.Match[str]) -> bool:
        """Return True if only a call can follow the mark, or if the text ends there."""
        names_a_call = any(name in mark[0] for name in ("function", "invoke", "<tool"))
        if mark[0].startswith("<") and names_a_call and mark[0].endswith("="):
            line_start = self.text[: mark.start()].rpartition("\n")[2]
            return "tool" not in mark[0] and not line_start.strip()
        at = mark.end()
        while noise := _NOISE.match(self.text, at):
            at = noise.end()
        if at == len(self.text) or "dsml:" in mark[0]:
            return True
        name = _NAME.match(self.text, at)
        if name and self.text[name.end() : name.end() + 1] in ("(", "<", "{", "["):
            return True
        if name and name.end() == len(self.text):
            return self._may_begin_a_name(name[0], mark)
        if self.text[at] in "{[<":
            return True
        return name is not None and offered_name(name[0], self.offered) in self.offered


class _BareReader(_Reader):
    """Reads the calls of a text without marks.

    The calls are the whole text, its beginning or end, separate lines, or in an unknown wrapper.
    """

    def read(self) -> ParsedText:
        if not self.text:
            return ParsedText([], self.text)
        letters = normal_name(self.text)
        if not any(normal_name(name) in letters for name in self.offered):
            return ParsedText([], self.text)
        reading = (
            self._whole()
            or self._fenced()
            or self._at_an_end()
            or self._in_lines()
            or self._in_a_wrapper()
        )
        if reading is None:
            is_broken = self._is_broken()
            reading = ParsedText([], "" if is_broken else self.text, is_broken=is_broken)
        return reading

    def _whole(self) -> ParsedText | None:
        calls, end = self.sequence(0)
        if calls and end == len(self.text):
            return ParsedText(calls)
        return None

    def _fenced(self) -> ParsedText | None:
        """Read a fence that begins or ends the text.

        A fence in the middle is more likely an example than a call.
        """
        fences = list(_FENCE.finditer(self.text))
        if not fences or len(fences) % 2:
            return None
        for opening, closing in (fences[:2], fences[-2:]):
            before = self.text[: opening.start()].strip()
            after = self.text[closing.end() :].strip()
            inner = self.text[opening.end() : closing.start()].strip()
            calls, end = _Reader(inner, self.offered).sequence(0)
            if calls and end == len(inner) and not (before and after):
                return ParsedText(calls, before or after)
        return None

    def _at_an_end(self) -> ParsedText | None:
        """Read a call that begins or ends the text, on separate lines."""
        calls, end = self.sequence(0)
        if calls and self._is_line_end(end) and self._is_fitting(calls):
            return ParsedText(calls, self.text[end:].strip())
        for number, line in enumerate(_LINE.finditer(self.text)):
            if number == _MOST_LINES:
                break
            is_named = any(self.text.startswith(name, line.end()) for name in self.offered)
            if not is_named and self.text[line.end()] not in "{[<":
                continue
            calls, end = self.sequence(line.end())
            if calls and end == len(self.text) and self._is_fitting(calls):
                return ParsedText(calls, _OPEN_FENCE.sub("", self.text[: line.start()]).strip())
        return None

    def _in_lines(self) -> ParsedText | None:
        """Read objects that are calls on separate lines, even in the middle of a text."""
        examples = _examples(self.text)
        calls: Calls = []
        around: list[str] = []
        at = 0
        for number, line in enumerate(_LINE.finditer(self.text)):
            start = line.end()
            if number == _MOST_LINES:
                break
            if start < at or self.text[start] not in "{[" or examples.has(start):
                continue
            match = self._object(start)
            if match and self._is_line_end(match[1]) and self._is_fitting(match[0]):
                calls += match[0]
                around.append(self.text[at : line.start()].strip())
                at = match[1]
        around.append(self.text[at:].strip())
        if calls:
            return ParsedText(calls, "\n\n".join(filter(None, around)))
        return None

    def _in_a_wrapper(self) -> ParsedText | None:
        """Read calls in an unknown wrapper, if the rest of the text is not meant for a reader."""
        calls: Calls = []
        at = 0
        while (start := self.text.find("{", at)) >= 0:
            parsed = self._value(start)
            if parsed is None or not isinstance(parsed[0], dict):
                return None
            names = self._names_in(self.text[at:start])
            if names is None:
                return None
            whole_calls = calls_in(parsed[0], self.offered)
            if not whole_calls and len(names) != 1:
                return None
            calls += whole_calls or [_call_of(names[0], parsed[0])]
            at = parsed[1]
        is_rest_empty = self._names_in(self.text[at:]) is not None
        if calls and is_rest_empty and self._is_fitting(calls):
            return ParsedText(calls)
        return None

    def _names_in(self, gap: str) -> list[str] | None:
        """Return the tools named in a gap between arguments.

        Returns None if it has other words.
        """
        all_names = (offered_name(word, self.offered) for word in _NAME.findall(gap))
        names = unique([name for name in all_names if name in self.offered])
        for name in names:
            gap = gap.replace(name, " ")
        is_wrapper = all(word.lower() in _WRAPPER_WORDS for word in _WORD.findall(gap))
        return names if is_wrapper else None

    def _is_line_end(self, at: int) -> bool:
        rest = self.text[at : at + 200].partition("\n")
        return not rest[0].strip() or self.text[at - 1] == "\n"

    def _is_fitting(self, calls: Calls) -> bool:
        return all(_fits(self.offered[call.name], read_json(call.arguments)) for call in calls)

    def _is_broken(self) -> bool:
        """Return whether the whole text is an unreadable call.

        That is an object that names a tool, or an element or `name(…)` of a tool.
        """
        if self.text.startswith("<"):
            return self._is_broken_element()
        if not self.text.startswith(("{", "[{")):
            return self._is_broken_python()
        row = read_json(self.text)
        if row is None:
            head = _NAMES_A_TOOL.match(self.text)
            return head is not None and called_name(head[1], self.offered) in self.offered
        if isinstance(row, list) and row:
            row = row[0]
        if isinstance(row, dict):
            names = [row.get(key) for key in _NAME_KEYS]
        else:
            names = []
        return any(
            isinstance(name, str) and called_name(name, self.offered) in self.offered
            for name in names
        )

    def _is_broken_element(self) -> bool:
        """Return whether the whole text is an element of a tool with unreadable arguments."""
        tag = _TAG.match(self.text)
        return tag is not None and tag[1] in self.offered and self.text.endswith(f"</{tag[1]}>")

    def _is_broken_python(self) -> bool:
        """Return whether the whole text is `name(…)` of a tool with unreadable arguments."""
        name = _NAME.match(self.text)
        if name is None or name[0] not in self.offered or not self.text.startswith("(", name.end()):
            return False
        return balanced_end(self.text, name.end()) in (None, len(self.text))


@dataclass(frozen=True, slots=True)
class _Examples:
    """The fences of a text that may hold examples.

    `firsts` and `lasts` bound the fences that have text on both sides; `last` bounds the final
    fence after text.
    """

    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    last: tuple[int, int] = (0, 0)

    def has(self, at: int) -> bool:
        """Return whether this position is in a fence with text on both sides."""
        number = bisect_right(self.firsts, at) - 1
        return number >= 0 and at < self.lasts[number]

    def ends_with(self, at: int) -> bool:
        """Return whether this position is in the fence that ends the text."""
        return self.last[0] <= at < self.last[1]


def _examples(text: str) -> _Examples:
    if "```" in text:
        fences = [match.span() for match in _FENCE.finditer(text)]
    else:
        fences = []
    spans = [
        (opening[0], closing[1])
        for opening, closing in zip(fences[::2], fences[1::2], strict=False)
    ]
    begin = len(text) - len(text.lstrip())
    end = len(text.rstrip())
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


def _arguments_as_text(written: str, tool: ToolSchema) -> dict[str, Any]:
    """Return the arguments of a tool from the text of its element.

    They are JSON that may lack its braces, or the text itself for a tool that takes one text.
    Returns no arguments for any other text.
    """
    keyed = read_json("{" + written.strip("{} \n") + "}")
    if isinstance(keyed, dict) and keyed:
        return keyed
    properties = tool.parameters.get("properties", {})
    needed = tool.parameters.get("required") or list(properties)
    if len(needed) != 1 or "<" in written or not written:
        return {}
    (name,) = needed
    if properties.get(name, {}).get("type", "string") != "string":
        return {}
    return {name: written}


def _python_arguments(text: str, tool: ToolSchema) -> dict[str, Any] | None:
    """Return the arguments of `(city="Rome", days=3)`; None if they are unreadable.

    Positional arguments follow the order of the tool's parameters. An object as the only argument
    holds all of them if their names fit.
    """
    try:
        node = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(node, ast.Call):
            return None
        names = list(tool.parameters.get("properties", {}))
        if len(node.args) > len(names) or any(keyword.arg is None for keyword in node.keywords):
            return None
        positional = dict(zip(names, map(_literal, node.args), strict=False))
        by_keyword = {keyword.arg or "": _literal(keyword.value) for keyword in node.keywords}
        only = positional.get(names[0]) if len(node.args) == 1 and not by_keyword else None
        if only and _fits(tool, only):
            return dict(only)
        return positional | by_keyword
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None


_JSON_WORDS = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    return ast.literal_eval(node)


def calls_in(decoded: Any, offered: Offered) -> Calls:
    """Return the calls in decoded JSON, one or a list.

    No calls are returned if a part is something else.

    Args:
        decoded: Any decoded JSON.
        offered: The offered tools by name.
    """
    rows = decoded
    if isinstance(decoded, dict):
        envelopes = (decoded.get(key) for key in ("tool_calls", "tool_call", "function_call"))
        rows = next((rows for rows in envelopes if isinstance(rows, list | dict)), decoded)
    if not isinstance(rows, list):
        rows = [rows]
    calls: Calls = []
    for row in rows:
        call = _call(row, offered)
        if call is None:
            return []
        calls.append(call)
    return calls


def _call_with_keys(name: str, keys: dict[str, Any], offered: Offered) -> ToolCallPart | None:
    """Return the call whose arguments are next to its name; None if they do not fit the tool."""
    if keys and _fits(offered[name], keys):
        return _call_of(name, keys)
    return None


def _call(row: Any, offered: Offered) -> ToolCallPart | None:
    if isinstance(row, dict) and isinstance(row.get("function"), dict):
        row = row["function"]
    if not isinstance(row, dict):
        return None
    name_key = next((key for key in _NAME_KEYS if isinstance(row.get(key), str)), None)
    arguments_key = next((key for key in _ARGUMENT_KEYS if key in row), None)
    find_name = offered_name if arguments_key is None else called_name
    name = find_name(row[name_key], offered) if name_key else ""
    if name_key is None or name not in offered:
        return _keyed_by_name(row, offered)
    if arguments_key is None:
        others = {key: row[key] for key in row if key not in (name_key, "id", "type")}
        return _call_with_keys(name, others, offered)
    arguments = row[arguments_key]
    if isinstance(arguments, str):
        return ToolCallPart(new_call_id(), name, arguments)
    if arguments is None or isinstance(arguments, dict):
        return _call_of(name, arguments)
    return None


def _keyed_by_name(row: dict[str, Any], offered: Offered) -> ToolCallPart | None:
    """Read `{"get_weather": {"city": "Rome"}}`; return None for any other object."""
    if len(row) != 1:
        return None
    ((key, arguments),) = row.items()
    name = offered_name(str(key), offered)
    is_call = name in offered and isinstance(arguments, dict) and _fits(offered[name], arguments)
    if is_call:
        return _call_of(name, arguments)
    return None


def _fits(tool: ToolSchema, arguments: Any) -> bool:
    """Return whether the names of these arguments fit the tool."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    if not isinstance(arguments, dict) or not set(required) <= set(arguments):
        return False
    return not properties or set(arguments) <= set(properties)


def _call_of(name: str, arguments: Any) -> ToolCallPart:
    try:
        dumped = orjson.dumps(arguments or {}, option=orjson.OPT_NON_STR_KEYS, default=str)
        text = dumped.decode()
    except TypeError:  # lone surrogates, or numbers above 64 bits
        text = json.dumps(arguments, default=str)
    return ToolCallPart(new_call_id(), name, text)


def _unreadable() -> ToolCallPart:
    return ToolCallPart(new_call_id(), UNREADABLE_CALL, "{}")
