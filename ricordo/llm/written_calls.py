"""Tool calls that a model wrote as text, in the many notations of models' templates. Pure; only certain calls are read.

A notation counts where a tool of that name was offered and its arguments can be read whole; else the text stays a text. All of
it takes time that grows with the text's length alone: an opening is searched once, and one without an end ends the search.
"""

import ast
import json
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import ToolSchema

Offered = Mapping[str, ToolSchema]
Calls = list[ToolCallPart]

# What a call may begin with, anywhere in a text.
MARKS = (
    "<tool_call>",
    "<function_call>",
    "<function=",
    "<function_calls>",
    "<invoke ",
    "<minimax:tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<|channel|>commentary to=",
    "<｜tool▁call",
)
# Longer texts are not read as Python: its parser holds up all threads meanwhile, and is quadratic in f-strings.
PYTHON_CHARACTERS = 16_000
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_TAGGED = re.compile(r"<(?:tool_call|function_call)()>"), re.compile(r"</(?:tool_call|function_call)>")
_FUNCTION = re.compile(r"<function=([\w.-]+)>"), re.compile("</function>")
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>"), re.compile("</parameter>")  # Qwen's coders
_KEY_VALUE = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"), re.compile("</arg_value>")  # GLM
_INVOKE = re.compile(r'<invoke name="([\w.-]+)">'), re.compile("</invoke>")  # Anthropic's older way, MiniMax
_INVOKED = re.compile(r'<parameter name="([\w.-]+)"[^<>]*>'), re.compile("</parameter>")
_WRAPPER = re.compile(r"</?(?:function_calls|minimax:tool_call|tool_call)>")
# Notations of special signs that should never have left the server; the text's end ends the first two as well.
_MISTRAL = (
    re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\[ARGS\]"),
    re.compile(r"(?=\[TOOL_CALLS\])|\Z"),
)
_HARMONY = (  # gpt-oss
    re.compile(r"<\|channel\|>commentary to=([\w.-]++)[^<]*+(?:<\|constrain\|>\w*)?<\|message\|>"),
    re.compile(r"<\|call\|>|<\|end\|>|\Z"),
)
_DEEPSEEK = (
    re.compile(r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>|\s)\s*(?:```json)?"),
    re.compile(r"(?:```\s*)?<｜tool▁call▁end｜>"),
)
_KIMI = (
    re.compile(r"<\|tool_call_begin\|>\s*([\w.:-]+)\s*<\|tool_call_argument_begin\|>"),
    re.compile(r"<\|tool_call_end\|>"),
)
_SPECIAL = re.compile(r"<\|[^|>]*\|>|<｜[^｜>]*｜>")
# A fence counts only where it ends the text: one in the middle is likelier an example than a call.
_FENCE = re.compile(r"```(?:json|tool_call|tool_code|python)?[ \t]*\n")
_PYTHONIC = re.compile(r"\[\s*[A-Za-z_]\w*\(")  # Llama
_BETWEEN = re.compile(r"[\s;]*")
_NUMBERED = re.compile(r":\d+$")


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def offered_name(name: str, offered: Offered) -> str:
    """Return the tool that a name means, where templates left something around it; else the name as it is."""
    if name in offered:
        return name
    bare = name.strip().partition("<|")[0].strip().removeprefix("functions.").removeprefix("tools.")
    bare = bare if bare in offered else _NUMBERED.sub("", bare)
    return bare if bare in offered else name


def looks_like_a_call(text: str) -> bool:
    return text.lstrip().startswith(MARKS)


def written_calls(text: str, offered: Offered) -> tuple[Calls, str]:
    """Return the calls that a text means, and the text without them."""
    whole = text.strip()
    for notation, read in _NOTATIONS:
        calls, rest = _read_all(whole, notation, read, offered)
        if calls:
            return calls, _SPECIAL.sub("", _WRAPPER.sub("", rest)).strip()
    whole = whole.removeprefix("<|python_tag|>").removesuffix("<|eom_id|>").removesuffix("<|eot_id|>").strip()
    if whole.startswith("[TOOL_CALLS]"):
        return _calls_in(read_json(whole.removeprefix("[TOOL_CALLS]")), offered), ""
    if whole.endswith("]") and _PYTHONIC.match(whole):
        return _pythonic(whole, offered), ""
    if whole.startswith(("{", "[")):
        return _calls_in(read_json(whole), offered) or _one_after_another(whole, offered), ""
    if whole.endswith("```") and (fence := _FENCE.search(whole)):
        inner = whole[fence.end() : -3].strip()
        calls = _pythonic(f"[{inner}]", offered) if inner.endswith(")") else _calls_in(read_json(inner), offered)
        return calls, whole[: fence.start()].strip()
    return [], ""


def _read_all(
    text: str, notation: "_Notation", read: "Callable[[str, str, Offered], Calls]", offered: Offered
) -> tuple[Calls, str]:
    """Read all calls in a notation or none: half an answer would be another answer."""
    sections, rest = _sections(text, *notation)
    calls: Calls = []
    for name, inner in sections:
        found = read(offered_name(name, offered), inner, offered)
        if not found and (name or inner.strip()):
            return [], ""
        calls += found
    return calls, rest


_Notation = tuple[re.Pattern[str], re.Pattern[str]]


def _sections(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> tuple[list[tuple[str, str]], str]:
    """Cut out each part between an opening, which names it, and a closing; return them, and the text around them."""
    found, around, at = [], [], 0
    while start := opening.search(text, at):
        end = closing.search(text, start.end())
        if end is None and opening not in _OPEN_ENDED:
            break
        found.append((start[1], text[start.end() : end.start() if end else len(text)]))
        around.append(text[at : start.start()])
        at = end.end() if end else len(text)
    return found, "".join([*around, text[at:]])


def _tagged(_name: str, inner: str, offered: Offered) -> Calls:
    """Hermes, Qwen and GLM: JSON, or a name with its values, between tags."""
    if calls := _calls_in(read_json(inner), offered) or _read_all(inner, _FUNCTION, _function, offered)[0]:
        return calls
    name = offered_name(inner.partition("<arg_key>")[0].strip(), offered)
    return [_made(name, _values(inner, _KEY_VALUE, offered[name]))] if name in offered else []


def _function(name: str, inner: str, offered: Offered, notation: "_Notation" = _PARAMETER) -> Calls:
    if name not in offered:
        return []
    values = _values(inner, notation, offered[name]) or (read_json(inner) if inner.strip() else {})
    return [_made(name, values)] if isinstance(values, dict) else []


def _with_signs(name: str, inner: str, offered: Offered) -> Calls:
    call = _call({"name": name, "arguments": inner.strip()}, offered)
    return [call] if call and isinstance(read_json(call.arguments), dict) else []


_OPEN_ENDED = {_TAGGED[0], _FUNCTION[0]}
_NOTATIONS: tuple[tuple[_Notation, Callable[[str, str, Offered], Calls]], ...] = (
    (_TAGGED, _tagged),
    (_FUNCTION, _function),
    (_INVOKE, partial(_function, notation=_INVOKED)),
    (_MISTRAL, _with_signs),
    (_HARMONY, _with_signs),
    (_DEEPSEEK, _with_signs),
    (_KIMI, _with_signs),
)


def _values(text: str, notation: _Notation, tool: ToolSchema) -> dict[str, Any]:
    """Read values that were written as bare text, as the kinds that the tool wants."""
    properties = tool.parameters.get("properties", {})
    result: dict[str, Any] = {}
    for name, written in _sections(text, *notation)[0]:
        schema = properties.get(name.strip())
        is_text = not isinstance(schema, dict) or schema.get("type", "string") == "string"
        bare = written.removeprefix("\n").removesuffix("\n") if notation is _PARAMETER else written
        value = None if is_text else read_json(bare)
        result[name.strip()] = bare if value is None else value
    return result


def _pythonic(text: str, offered: Offered) -> Calls:
    if len(text) > PYTHON_CHARACTERS:
        return []
    try:
        tree = ast.parse(text, mode="eval").body
        items: list[Any] = []
        for element in tree.elts if isinstance(tree, ast.List) else ():
            if not isinstance(element, ast.Call) or element.args or not isinstance(element.func, ast.Name):
                return []
            values = {word.arg or "": ast.literal_eval(word.value) for word in element.keywords}
            items.append({"name": element.func.id, "arguments": values})
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return []
    return _calls_in(items, offered)


def _one_after_another(text: str, offered: Offered) -> Calls:
    """Objects in lines of their own, or parted by semicolons (Llama)."""
    decoder, items, at = json.JSONDecoder(), [], 0
    try:
        while at < len(text):
            item, end = decoder.raw_decode(text, at)
            items.append(item)
            gap = _BETWEEN.match(text, end)
            at = gap.end() if gap else end
    except (ValueError, RecursionError):
        return []
    return _calls_in(items, offered)


def _calls_in(value: Any, offered: Offered) -> Calls:
    """Return the calls in decoded JSON: one, a list of them, or none where any of it is something else."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = [_call(item, offered) for item in (value if isinstance(value, list) else [value])]
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else []


def _call(item: Any, offered: Offered) -> ToolCallPart | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    name = item.get("name") or item.get("tool") or item.get("function")
    key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if not isinstance(name, str) or key is None or (name := offered_name(name, offered)) not in offered:
        return None
    arguments = item[key]
    if arguments is not None and not isinstance(arguments, (dict, str)):
        return None
    return ToolCallPart(new_call_id(), name, arguments) if isinstance(arguments, str) else _made(name, arguments)


def _made(name: str, values: Any) -> ToolCallPart:
    arguments = orjson.dumps(values or {}, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    return ToolCallPart(new_call_id(), name, arguments)


def read_json(text: str | bytes) -> Any:
    """Return the value of a text in JSON; None where it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        return None
