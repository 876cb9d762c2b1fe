"""Notations in which models write tool calls as text, each as a function of the calls."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from ricordo.domain.model import ToolSchema

Call = tuple[str, dict[str, Any]]
Write = Callable[[Sequence[Call]], str]

NOTE = ToolSchema(
    "memory_insert",
    "Inserts a line.",
    {
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "new_string": {"type": "string"},
            "insert_line": {"type": "integer"},
            "options": {"type": "object"},
            "is_final": {"type": "boolean"},
        },
        "required": ["label", "new_string"],
    },
)
SEARCH = ToolSchema(
    "conversation_search",
    "Searches.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
NOW = ToolSchema("get_time", "Tells the time.", {"type": "object", "properties": {}})
TOOLS = (NOTE, SEARCH, NOW)

# Beginnings of calls, anywhere in a text.
MARKS = (
    "<tool_call>",
    "<function_call>",
    "<function=",
    "<function_calls>",
    "<tools>",
    "<invoke name=",
    "<minimax:tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<|tool_call_begin|>",
    "<|channel|>commentary to=",
    "<｜tool▁call",
    "<｜DSML｜function_calls>",
    "<｜DSML｜invoke name=",
    "<|DSML|tool_calls>",
    "functools[",
)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_json(call: Call, key: str = "arguments") -> str:
    return dumped({"name": call[0], key: call[1]})


def plain(value: Any) -> str:
    """Return a value between tags: text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else dumped(value)


def dsml_value(name: str, value: Any) -> str:
    is_text = "true" if isinstance(value, str) else "false"
    return (
        f'<｜DSML｜parameter name="{name}" string="{is_text}">{plain(value)}</｜DSML｜parameter>\n'
    )


def dsml(calls: Sequence[Call], outer: str) -> str:
    inner = "".join(
        "<｜DSML｜invoke "
        f'name="{name}">\n{"".join(dsml_value(*row) for row in values.items())}</｜DSML｜invoke>\n'
        for name, values in calls
    )
    return f"<｜DSML｜{outer}>\n{inner}</｜DSML｜{outer}>"


def invoked(calls: Sequence[Call], space: str = "") -> str:
    return "".join(
        f'<{space}invoke name="{name}">\n'
        + "".join(
            f'<{space}parameter name="{key}">{plain(value)}</{space}parameter>\n'
            for key, value in values.items()
        )
        + f"</{space}invoke>\n"
        for name, values in calls
    )


def functions(calls: Sequence[Call]) -> list[str]:
    return [
        f"<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in values.items()
        )
        + "</function>"
        for name, values in calls
    ]


def pythonic(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def gemma_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(inner)}" for key, inner in value.items()) + "}"
    return f'<|"|>{dumped(value)[1:-1]}<|"|>' if isinstance(value, str) else dumped(value)


def each(write: Callable[[Call], str], between: str = "\n") -> Write:
    return lambda calls: between.join(map(write, calls))


def around(before: str, write: Callable[[Sequence[Call]], str], after: str) -> Write:
    return lambda calls: f"{before}{write(calls)}{after}"


def rows(key: str = "arguments") -> Write:
    return lambda calls: "[" + ", ".join(as_json(call, key) for call in calls) + "]"


MARKED: dict[str, Write] = {
    "Hermes, Qwen": each(lambda call: f"<tool_call>\n{as_json(call)}\n</tool_call>"),
    "Hermes without an end": each(lambda call: f"<tool_call>\n{as_json(call)}\n"),
    "Qwen2.5-Coder, doubled braces": each(
        lambda call: "<tool_call>\n{" + as_json(call) + "}\n</tool_call>"
    ),
    "Qwen2.5-Coder, tools": around("<tools>\n", each(as_json), "\n</tools>"),
    "Qwen3-Coder": lambda calls: "\n".join(
        f"<tool_call>\n{one}\n</tool_call>" for one in functions(calls)
    ),
    "Qwen3-Coder without its wrapper": lambda calls: "\n".join(functions(calls)),
    "Llama 3.1, function tags": each(
        lambda call: f"<function={call[0]}>{dumped(call[1])}</function>"
    ),
    "Llama 3.1, python tag": around(
        "<|python_tag|>", each(lambda call: as_json(call, "parameters"), "; "), "<|eom_id|>"
    ),
    "Llama 4, python start": lambda calls: (
        f"<|python_start|>[{', '.join(map(pythonic, calls))}]<|python_end|>"
    ),
    "GLM 4.5": each(
        lambda call: (
            f"<tool_call>{call[0]}\n"
            + "\n".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>"
                for key, value in call[1].items()
            )
            + "\n</tool_call>"
        )
    ),
    "Mistral, rows": around("[TOOL_CALLS]", rows(), ""),
    "Mistral, names": each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{dumped(call[1])}", ""),
    "Mistral, names with ids": each(
        lambda call: f"[TOOL_CALLS]{call[0]}[CALL_ID]abc123def[ARGS]{dumped(call[1])}", ""
    ),
    "Kimi": lambda calls: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumped(values)}<|tool_call_end|>"
            for number, (name, values) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    ),
    "DeepSeek V3": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumped(values)}\n```<｜tool▁call▁end｜>"
            for name, values in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "DeepSeek V3.1": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumped(values)}<｜tool▁call▁end｜>"
            for name, values in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "DeepSeek V3.2": lambda calls: dsml(calls, "function_calls"),
    "DeepSeek V4": lambda calls: dsml(calls, "tool_calls"),
    "DeepSeek V4, ASCII bars": lambda calls: dsml(calls, "tool_calls").replace("｜", "|"),
    "DeepSeek V4, bars doubled": lambda calls: dsml(calls, "tool_calls").replace("｜", "｜｜"),
    "DeepSeek V3.2, JSON": each(
        lambda call: (
            f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{call[0]}">\n{dumped(call[1])}\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    ),
    "gpt-oss": each(
        lambda call: (
            f"<|start|>assistant<|channel|>commentary to=functions.{call[0]} "
            f"<|constrain|>json<|message|>{dumped(call[1])}<|call|>"
        ),
        "",
    ),
    "gpt-oss, recipient in the role": each(
        lambda call: (
            f"<|start|>assistant to=functions.{call[0]}<|channel|>commentary "
            f"json<|message|>{dumped(call[1])}<|call|>"
        ),
        "",
    ),
    "gpt-oss in words": each(
        lambda call: f"assistantcommentary to=functions.{call[0]} json{dumped(call[1])}", ""
    ),
    "gpt-oss, half in words": each(
        lambda call: f"commentary to=functions.{call[0]} <|constrain|>json {dumped(call[1])}"
    ),
    "Anthropic's older way": around("<function_calls>\n", invoked, "</function_calls>"),
    "MiniMax M2": around("<minimax:tool_call>\n", invoked, "</minimax:tool_call>"),
    "Step 3": around(
        "<｜tool_calls_begin｜>", lambda calls: invoked(calls, "steptml:"), "<｜tool_calls_end｜>"
    ),
    "Seed": lambda calls: "\n".join(
        f"<seed:tool_call>\n{one}\n</seed:tool_call>" for one in functions(calls)
    ),
    "Granite": around("<|tool_call|>", rows(), ""),
    "Phi-4-mini": around("functools", rows(), ""),
    "InternLM": each(
        lambda call: f"<|action_start|><|plugin|>\n{as_json(call, 'parameters')}<|action_end|>"
    ),
    "Hunyuan, Jamba": around("<tool_calls>\n", rows(), "\n</tool_calls>"),
    "Nemotron": around("<TOOLCALL>", rows(), "</TOOLCALL>"),
    "LongCat": each(lambda call: f"<longcat_tool_call>{as_json(call)}</longcat_tool_call>"),
    "LM Studio": each(lambda call: f"[TOOL_REQUEST]{as_json(call)}[END_TOOL_REQUEST]"),
    "LFM": lambda calls: f"<|tool_call_start|>[{', '.join(map(pythonic, calls))}]<|tool_call_end|>",
    "Olmo": around("<function_calls>\n", each(pythonic), "\n</function_calls>"),
    "Gemma 4": each(
        lambda call: f"<|tool_call>call:{call[0]}{gemma_value(call[1])}<tool_call|>", ""
    ),
    "Apertus": lambda calls: (
        "<|tools_prefix|>" + dumped([{name: values} for name, values in calls]) + "<|tools_suffix|>"
    ),
    "a tag that no model is known to write": each(
        lambda call: f"<acme_toolcall>{as_json(call)}</acme_toolcall>"
    ),
}
BARE: dict[str, Write] = {
    "JSON": each(as_json),
    "JSON with parameters": each(lambda call: as_json(call, "parameters"), ";"),
    "JSON rows": rows(),
    "the format of the API": lambda calls: dumped(
        {
            "tool_calls": [
                {"type": "function", "function": {"name": name, "arguments": dumped(values)}}
                for name, values in calls
            ]
        }
    ),
    "a fence of JSON": around("```json\n", each(as_json), "\n```"),
    "a fence of calls": around("```tool_code\n", each(pythonic), "\n```"),
    "Python": each(pythonic),
    "Python in a list": lambda calls: f"[{', '.join(map(pythonic, calls))}]",
    "a template's sign before it": around("<|im_start|>", each(as_json), ""),
    "a template's sign and role before it": around(
        "<|im_start|>assistant\n", each(as_json), "<|im_end|>"
    ),
    "Action and input": each(lambda call: f"Action: {call[0]}\nAction Input: {dumped(call[1])}"),
    "Called function": each(
        lambda call: f'[Called function "{call[0]}" with args: {dumped(call[1])}]'
    ),
    "a wrapper that nobody knows": each(
        lambda call: f"@@tool {call[0]} :: {dumped(call[1])} @@end"
    ),
    "an element of that name": each(
        lambda call: (
            f"<{call[0]}>"
            + "".join(f"<{key}>{plain(value)}</{key}>" for key, value in call[1].items())
            + f"</{call[0]}>"
        )
    ),
}
