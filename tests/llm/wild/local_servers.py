"""Answers of model servers on people's machines, correct and broken.

Each group names the source of its format.
"""

from tests.llm.wild.openai_shapes import (
    DONE,
    PARIS,
    ROME,
    TIME,
    WEATHER_IN_ROME,
    Case,
    body,
    call,
    case,
    cut,
    delta,
    events,
    last,
    of,
    piece,
)
from tests.support.model_server import event

TEXT, GREETING = ("text", "Ciao!"), ("thought", "Greet.")
WEATHER_IN_PARIS = ("call", "get_weather", PARIS)
_XML = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
_QWEN_CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
_GLM = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
_HARMONY = (
    "<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city":"Rome"}<|call|>'
)
_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'
)
_MINIMAX = (
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
    "</minimax:tool_call>"
)


def _call_as_text(name: str, text: str) -> tuple[Case, Case]:
    """Return a call written as text, whole and streamed in pieces of three letters."""
    pieces = [delta({"content": part.decode()}) for part in _letters(text)]
    return (
        case(name, body({"role": "assistant", "content": text}), WEATHER_IN_ROME),
        case(f"{name}, streamed", events(*pieces, delta({}, "stop"), DONE), WEATHER_IN_ROME),
    )


def _letters(text: str) -> list[bytes]:
    return [text[at : at + 3].encode() for at in range(0, len(text), 3)]


# ollama: openai/openai.go (ToolCall, ChunkChoice, Usage), server/routes.go; ids are `call_` and
# eight characters
OLLAMA = of(
    "ollama",
    case(
        "text",
        body({"role": "assistant", "content": "Ciao!"}, system_fingerprint="fp_ollama"),
        TEXT,
    ),
    case("a thought", body({"content": "Ciao!", "reasoning": "Greet."}), GREETING, TEXT),
    case(
        "whole calls in one event, all numbered 0",
        events(
            delta(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        piece(0, name="get_weather", arguments=ROME, call_id="call_a1b2c3d4"),
                        piece(0, name="get_time", arguments="{}", call_id="call_e5f6g7h8"),
                    ],
                }
            ),
            delta({"role": "assistant", "content": ""}, "tool_calls"),
            DONE,
        ),
        WEATHER_IN_ROME,
        TIME,
    ),
    case(
        "calls that end with stop",
        body({"content": "", "tool_calls": [call("get_weather", ROME, "call_a1b2c3d4")]}, "stop"),
        WEATHER_IN_ROME,
    ),
    *_call_as_text(
        "a call as fenced JSON",
        '```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```',
    ),
    *_call_as_text(
        "a call as bare JSON", '{"name": "get_weather", "parameters": {"city": "Rome"}}'
    ),
    case(
        "an error in the middle of a stream, and then an answer",
        events(
            delta({"content": "Ci"}),
            event({"error": {"message": "model runner has unexpectedly stopped"}}),
        ),
        events(delta({"content": "Ciao!"}), delta({}, "stop"), DONE),
        TEXT,
    ),
)
# lmstudio.ai/docs/app/api/tools and its issues: tags of templates, calls without ids, gpt-oss'
# channels in names
LMSTUDIO = of(
    "lmstudio",
    case(
        "a name with a channel behind it, streamed",
        events(
            delta(
                {
                    "tool_calls": [
                        piece(0, name="get_weather<|channel|>json", arguments=ROME, call_id="1")
                    ]
                }
            ),
            delta({}, "tool_calls"),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
    *_call_as_text("a call between tags", _XML),
    *_call_as_text("a call in gpt-oss' channels", _HARMONY),
    case(
        "a thought in tags, streamed",
        events(
            *(
                delta({"content": part.decode()})
                for part in _letters("<think>\nGreet.\n</think>\n\nCiao!")
            ),
            delta({}, "stop"),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "only the end of a thought's tag, streamed",
        events(
            delta({"content": "Greet.\n"}),
            delta({"content": "</think>\n\nCiao!"}),
            delta({}, "stop"),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "an error event with its name, and then an answer",
        events(event({"error": {"message": "The model has crashed"}}, "error")),
        events(delta({"content": "Ciao!"}), delta({}, "stop"), DONE),
        TEXT,
    ),
)
# vllm: entrypoints/openai/protocol.py (ChatMessage, DeltaMessage), tool_parsers/; its issues on
# parsers' leftovers
VLLM = of(
    "vllm",
    case(
        "a thought by its older name",
        body(
            {"content": "Ciao!", "reasoning_content": "Greet.", "tool_calls": []}, stop_reason=None
        ),
        GREETING,
        TEXT,
    ),
    case(
        "a thought by its newer name, streamed",
        events(
            delta({"role": "assistant", "content": ""}),
            delta({"reasoning": "Gre"}),
            delta({"reasoning": "et."}),
            delta({"content": "Ciao!"}),
            delta({"content": ""}, "stop", stop_reason=None),
            last(),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "an end for calls without any",
        body({"role": "assistant", "content": "Ciao!", "tool_calls": []}, "tool_calls"),
        TEXT,
    ),
    *_call_as_text("a call its parser left between tags", _XML),
    *_call_as_text("a call as Qwen's coders write it", _QWEN_CODER),
    *_call_as_text("a call as GLM writes it", _GLM),
    *_call_as_text("a call as Kimi writes it", _KIMI),
    *_call_as_text("a call as MiniMax writes it", _MINIMAX),
    *_call_as_text("a call as Llama writes it", '[get_weather(city="Rome")]'),
    case(
        "pieces without an index, the name in each of them",
        events(
            delta(
                {
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "function": {"name": "get_weather", "arguments": '{"city":'},
                        }
                    ]
                }
            ),
            delta(
                {
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "function": {"name": "get_weather", "arguments": '"Rome"}'},
                        }
                    ]
                }
            ),
            delta({"tool_calls": []}, "tool_calls"),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
    case(
        "words, and then a call between tags, streamed",
        events(
            *(delta({"content": p.decode()}) for p in _letters(f"I look.\n{_XML}")),
            delta({}, "stop"),
            DONE,
        ),
        ("text", "I look."),
        WEATHER_IN_ROME,
    ),
    case(
        "tags with nothing to read in them, and then a call",
        body({"content": "<tool_call>\n{'name': get_weather</tool_call>"}),
        body({"content": None, "tool_calls": [call("get_weather", ROME)]}, "tool_calls"),
        WEATHER_IN_ROME,
    ),
)
# llama.cpp: tools/server/tests/unit/test_tool_call.py and README (timings); in older builds each
# error is a separate line
_TIMINGS = {"prompt_n": 10, "prompt_ms": 12.5, "predicted_n": 3, "predicted_ms": 40.1}
LLAMACPP = of(
    "llamacpp",
    case(
        "no usage but timings", body({"content": "Ciao!"}, usage="missing", timings=_TIMINGS), TEXT
    ),
    case(
        "usage of nothing, an empty id, a thought",
        body(
            {
                "content": None,
                "reasoning_content": "Look.",
                "tool_calls": [call("get_weather", ROME, "")],
            },
            "tool_calls",
            usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        ),
        ("thought", "Look."),
        WEATHER_IN_ROME,
    ),
    case(
        "a late error in a line of its own, and then an answer",
        events(
            delta({"content": "Ci"}),
            b'error: {"code":500,"message":"slot unavailable","type":"server_error"}\n\n',
        ),
        events(delta({"content": "Ciao!"}), delta({}, "stop"), DONE),
        TEXT,
    ),
)
# Any of these servers, behind proxies and gateways of all kinds.
_WHOLE = b"".join(
    [delta({"content": "Cia"}), delta({"content": "o!"}), delta({}, "stop"), last(), DONE]
)
ANYBODY = of(
    "vllm",
    case(
        "line ends of Windows and a byte order mark",
        events(b"\xef\xbb\xbf" + _WHOLE.replace(b"\n", b"\r\n")),
        TEXT,
    ),
    case("events cut anywhere", events(*cut(_WHOLE, 5)), TEXT),
    case("no last line", events(delta({"content": "Ciao!"}), delta({}, "stop")), TEXT),
    case(
        "a stream that is cut, and then an answer",
        events(delta({"content": "Ci"}), b'data: {"choices":[{"delta":{"con', breaks_off=True),
        events(_WHOLE),
        TEXT,
    ),
    case(
        "the whole message once more at the end",
        events(
            delta({"content": "Ciao!"}),
            event(
                {
                    "choices": [
                        {"delta": {}, "message": {"content": "Ciao!"}, "finish_reason": "stop"}
                    ]
                }
            ),
            DONE,
        ),
        TEXT,
    ),
    case(
        "a whole answer where a stream was asked for",
        body({"content": None, "tool_calls": [call("get_weather", ROME)]}, "tool_calls"),
        WEATHER_IN_ROME,
    ),
    case(
        "arguments written as Python does, said twice, with a sign behind them",
        body(
            {
                "tool_calls": [
                    call("get_weather", "{'city': 'Rome'}", "1"),
                    call("get_weather", PARIS + PARIS, "2"),
                    call("get_time", "{}</tool_call>", "3"),
                ]
            },
            "tool_calls",
        ),
        WEATHER_IN_ROME,
        WEATHER_IN_PARIS,
        TIME,
    ),
    case(
        "streamed arguments that were encoded twice",
        events(
            delta(
                {
                    "tool_calls": [
                        piece(0, name="get_weather", arguments='"{\\"city\\":', call_id="1")
                    ]
                }
            ),
            delta({"tool_calls": [piece(0, arguments='\\"Rome\\"}"')]}),
            delta({}, "tool_calls"),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
)
LOCAL = (*OLLAMA, *LMSTUDIO, *VLLM, *LLAMACPP, *ANYBODY)
