"""Tool calls that a model wrote as text, in the many notations of models' templates. Pure; only certain calls are read.

A notation counts where a tool of that name was offered and its arguments can be read whole; else the text stays a text.
"""

import ast
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import ToolSchema

Offered = Mapping[str, ToolSchema]

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
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_TAGGED = re.compile(r"<(tool_call|function_call)>(.*?)(?:</\1>|$)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)  # Qwen's coders
_KEY_VALUE = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)  # GLM
_INVOKE = re.compile(r'<invoke name="([\w.-]+)">(.*?)</invoke>', re.DOTALL)  # Anthropic's older way, MiniMax
_INVOKED = re.compile(r'<parameter name="([\w.-]+)"[^>]*>(.*?)</parameter>', re.DOTALL)
_WRAPPER = re.compile(r"</?(?:function_calls|minimax:tool_call|tool_call)>")
_MISTRAL = re.compile(
    r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(\{.*?\})\s*(?=\[TOOL_CALLS\]|$)", re.DOTALL
)
_HARMONY = re.compile(  # gpt-oss
    r"<\|channel\|>commentary to=([\w.-]+)[^<]*(?:<\|constrain\|>\w*)?<\|message\|>(.*?)(?:<\|call\|>|<\|end\|>|$)",
    re.DOTALL,
)
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>|\s)\s*(?:```json\s*)?(\{.*?\})\s*(?:```)?\s*<｜tool▁call▁end｜>",
    re.DOTALL,
)
_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*([\w.:-]+)\s*<\|tool_call_argument_begin\|>\s*(\{.*?\})\s*<\|tool_call_end\|>", re.DOTALL
)
_SPECIAL = re.compile(r"<\|[^|>]*\|>|<｜[^｜>]*｜>")
# A fence counts only where it ends the text: one in the middle is likelier an example than a call.
_FENCE = re.compile(r"```(?:json|tool_call|tool_code|python)?[ \t]*\n(.*?)\n?```\s*$", re.DOTALL)
_PYTHONIC = re.compile(r"^\[\s*[A-Za-z_]\w*\(.*\)\s*\]$", re.DOTALL)  # Llama
_NUMBERED = re.compile(r":\d+$")


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{secrets.token_hex(12)}"


def offered_name(name: str, offered: Offered) -> str:
    """The tool that a name stands for, where templates left something around it; else the name as it is."""
    if name in offered:
        return name
    bare = name.strip().partition("<|")[0].strip().removeprefix("functions.").removeprefix("tools.")
    bare = bare if bare in offered else _NUMBERED.sub("", bare)
    return bare if bare in offered else name


def looks_like_a_call(text: str) -> bool:
    """Whether a text begins a call in a notation that nothing else uses, as a model writes it that lost its way in it."""
    return text.lstrip().startswith(MARKS)


def written_calls(text: str, offered: Offered) -> tuple[list[ToolCallPart], str]:
    """The calls that a text stands for, and the text without them."""
    whole = text.strip()
    for read in (_in_tags, _in_functions, _in_invocations, _in_signs):
        calls, rest = read(whole, offered)
        if calls:
            return calls, rest
    if whole.startswith("<|python_tag|>"):
        whole = whole.removeprefix("<|python_tag|>").removesuffix("<|eom_id|>").removesuffix("<|eot_id|>").strip()
    if whole.startswith("[TOOL_CALLS]"):
        return _calls_in(read_json(whole.removeprefix("[TOOL_CALLS]")), offered), ""
    if _PYTHONIC.match(whole):
        return list(_pythonic(whole, offered)), ""
    if whole.startswith(("{", "[")):
        return _calls_in(read_json(whole), offered) or _one_after_another(whole, offered), ""
    if fence := _FENCE.search(whole):
        inner = fence.group(1).strip()
        calls = list(_pythonic(f"[{inner}]", offered)) if inner.endswith(")") else _calls_in(read_json(inner), offered)
        return calls, whole[: fence.start()].strip()
    return [], ""


def _in_tags(text: str, offered: Offered) -> tuple[list[ToolCallPart], str]:
    """Hermes, Qwen and GLM: JSON, or a name with its values, between tags."""
    if "<tool_call>" not in text and "<function_call>" not in text:
        return [], ""
    calls: list[ToolCallPart] = []
    for found in _TAGGED.finditer(text):
        inner = found.group(2)
        read = _calls_in(read_json(inner), offered) or _in_functions(inner, offered)[0] or _in_pairs(inner, offered)
        if not read and inner.strip():
            return [], ""  # All of them or none: half an answer would be another answer.
        calls += read
    return calls, _TAGGED.sub("", text).strip()


def _in_pairs(text: str, offered: Offered) -> list[ToolCallPart]:
    name = offered_name(text.partition("<arg_key>")[0].strip(), offered)
    pairs = {key.strip(): value for key, value in _KEY_VALUE.findall(text)}
    return [_made(name, _typed(pairs, offered[name]))] if name in offered else []


def _in_functions(text: str, offered: Offered) -> tuple[list[ToolCallPart], str]:
    calls: list[ToolCallPart] = []
    for found in _FUNCTION.finditer(text):
        name, inner = offered_name(found.group(1), offered), found.group(2)
        if name not in offered:
            return [], ""
        values = _typed(dict(_PARAMETER.findall(inner)), offered[name]) or read_json(inner)
        if not isinstance(values, dict) and inner.strip():
            return [], ""
        calls.append(_made(name, values or {}))
    return calls, _WRAPPER.sub("", _FUNCTION.sub("", text)).strip()


def _in_invocations(text: str, offered: Offered) -> tuple[list[ToolCallPart], str]:
    calls: list[ToolCallPart] = []
    for found in _INVOKE.finditer(text):
        if (name := offered_name(found.group(1), offered)) not in offered:
            return [], ""
        calls.append(_made(name, _typed(dict(_INVOKED.findall(found.group(2))), offered[name])))
    return calls, _WRAPPER.sub("", _INVOKE.sub("", text)).strip()


def _in_signs(text: str, offered: Offered) -> tuple[list[ToolCallPart], str]:
    """Notations of special signs that should never have left the server: Mistral, gpt-oss, DeepSeek, Kimi."""
    for notation in (_MISTRAL, _HARMONY, _DEEPSEEK, _KIMI):
        found = notation.findall(text)
        calls = [_call({"name": name, "arguments": arguments.strip()}, offered) for name, arguments in found]
        whole = [call for call in calls if call is not None and isinstance(read_json(call.arguments), dict)]
        if found and len(whole) == len(found):
            return whole, _SPECIAL.sub("", notation.sub("", text)).strip()
    return [], ""


def _pythonic(text: str, offered: Offered) -> Iterator[ToolCallPart]:
    try:
        tree = ast.parse(text, mode="eval").body
        elements = tree.elts if isinstance(tree, ast.List) else []
        calls = []
        for element in elements:
            if not isinstance(element, ast.Call) or element.args or not isinstance(element.func, ast.Name):
                return
            values = {word.arg or "": ast.literal_eval(word.value) for word in element.keywords}
            calls.append(_call({"name": element.func.id, "arguments": values}, offered))
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return
    whole = [call for call in calls if call is not None]
    if len(whole) == len(calls):
        yield from whole


def _one_after_another(text: str, offered: Offered) -> list[ToolCallPart]:
    """Objects in lines of their own, or parted by semicolons (Llama)."""
    lines = [line for line in re.split(r"[;\n]\s*(?=\{)", text) if line.strip()]
    calls = [_call(read_json(line), offered) for line in lines] if len(lines) > 1 else []
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else []


def _calls_in(value: Any, offered: Offered) -> list[ToolCallPart]:
    """The calls in decoded JSON: one, a list of them, or none where any of it is something else."""
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
    return ToolCallPart(new_call_id(), name, arguments if isinstance(arguments, str) else _dumps(arguments))


def _made(name: str, values: Any) -> ToolCallPart:
    return ToolCallPart(new_call_id(), name, _dumps(values))


def _typed(values: Mapping[str, str], tool: ToolSchema) -> dict[str, Any]:
    """Values that were written as bare text, as the kinds that the tool wants."""
    properties = tool.parameters.get("properties", {})
    result: dict[str, Any] = {}
    for name, text in values.items():
        schema = properties.get(name)
        is_text = not isinstance(schema, dict) or schema.get("type", "string") == "string"
        value = None if is_text else read_json(text)
        result[name] = text if value is None else value
    return result


def read_json(text: str) -> Any:
    """The value of a text in JSON; None where it is none."""
    try:
        return orjson.loads(text.strip())
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None


def _dumps(value: Any) -> str:
    return orjson.dumps(value or {}, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
