"""Answers of hosted providers, correct and broken.

Each group names the source of its format.
"""

from typing import Any

from tests.llm.wild.openai_shapes import (
    DONE,
    ROME,
    TIME,
    WEATHER_IN_ROME,
    body,
    call,
    case,
    delta,
    events,
    last,
    of,
    piece,
)
from tests.support.model_server import Answer, event

TEXT, GREETING = ("text", "Ciao!"), ("thought", "Greet.")
_SAFE = {
    kind: {"filtered": False, "severity": "safe"}
    for kind in ("hate", "self_harm", "sexual", "violence")
}


def _split_call(*, first: dict[str, Any] | None = None) -> tuple[bytes, ...]:
    """Return a call in the pieces that OpenAI itself sends."""
    start = first or {"role": "assistant", "content": None}
    return (
        delta(
            {**start, "tool_calls": [piece(0, name="get_weather", arguments="", call_id="call_1")]}
        ),
        delta({"tool_calls": [piece(0, arguments='{"city"')]}),
        delta({"tool_calls": [piece(0, arguments=':"Rome"}')]}),
        delta({}, "tool_calls"),
    )


# openai-python: types/chat/chat_completion.py, types/chat/chat_completion_chunk.py
OPENAI = of(
    "openai",
    case(
        "text",
        body({"role": "assistant", "content": "Ciao!", "refusal": None, "annotations": []}),
        TEXT,
    ),
    case(
        "a refusal", body({"role": "assistant", "content": None, "refusal": "No."}), ("text", "No.")
    ),
    case(
        "parallel calls",
        body(
            {
                "content": None,
                "tool_calls": [call("get_weather", ROME), call("get_time", "{}", "call_2")],
            },
            "tool_calls",
        ),
        WEATHER_IN_ROME,
        TIME,
    ),
    case("a streamed call", events(*_split_call(), last(), DONE), WEATHER_IN_ROME),
    case("cut off at its limit", body({"content": "Ciao!"}, "length"), TEXT, finish="length"),
    case(
        "a call cut off at its limit, and then a shorter one",
        body({"content": None, "tool_calls": [call("get_weather", '{"city": "Ro')]}, "length"),
        body({"content": None, "tool_calls": [call("get_weather", ROME)]}, "tool_calls"),
        WEATHER_IN_ROME,
    ),
    case(
        "the older way to call",
        body(
            {"content": None, "function_call": {"name": "get_weather", "arguments": ROME}},
            "function_call",
        ),
        WEATHER_IN_ROME,
    ),
)
# Azure's REST reference for chat completions, "content filtering"; the first event as its users
# record it.
AZURE = of(
    "azure",
    case(
        "a stream that begins without a choice",
        events(
            event(
                {
                    "choices": [],
                    "created": 0,
                    "id": "",
                    "model": "",
                    "object": "",
                    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": _SAFE}],
                }
            ),
            *_split_call(),
            last(),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
    case(
        "a filtered answer",
        body({"role": "assistant", "content": "Ci"}, "content_filter"),
        ("text", "Ci"),
        finish="content_filter",
    ),
)
# groq-python: types/chat/chat_completion.py (x_groq); console.groq.com/docs/tool-use,
# "tool_use_failed"
_FAILED = {
    "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more "
    "details.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
    "failed_generation": '<function=get_weather>{"city": "Rome"}</function>',
}
GROQ = of(
    "groq",
    case(
        "usage under its own name in a stream",
        events(
            delta({"role": "assistant", "content": ""}, x_groq={"id": "req_1"}),
            delta({"content": "Ciao!"}),
            delta(
                {},
                "stop",
                x_groq={"id": "req_1", "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            ),
            DONE,
        ),
        TEXT,
    ),
    case("a call it could not read", Answer({"error": _FAILED}, 400), WEATHER_IN_ROME),
    case(
        "a call it could not read, in a stream",
        events(
            delta({"role": "assistant", "content": ""}),
            event({"error": {**_FAILED, "status_code": 400}}),
        ),
        WEATHER_IN_ROME,
    ),
)
# api-docs.deepseek.com: create-chat-completion, guides/thinking_mode
DEEPSEEK = of(
    "deepseek",
    case(
        "a thought and a call",
        body(
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "Look.",
                "tool_calls": [call("get_weather", ROME, index=0)],
            },
            "tool_calls",
            usage={
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "total_tokens": 13,
                "prompt_cache_hit_tokens": 8,
                "prompt_cache_miss_tokens": 1,
            },
        ),
        ("thought", "Look."),
        WEATHER_IN_ROME,
        model="deepseek-chat",
    ),
    case(
        "a streamed thought; keep-alive lines between",
        events(
            b": keep-alive\n\n",
            delta({"role": "assistant", "content": None, "reasoning_content": ""}),
            delta({"content": None, "reasoning_content": "Gre"}),
            b": keep-alive\n\n",
            delta({"content": None, "reasoning_content": "et."}),
            delta({"content": "Ciao!", "reasoning_content": None}),
            delta(
                {"content": "", "reasoning_content": None},
                "stop",
                usage={"prompt_tokens": 1, "completion_tokens": 2},
            ),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "no resources, and then an answer",
        body({"content": "Ci"}, "insufficient_system_resource"),
        body({"content": "Ciao!"}),
        TEXT,
    ),
    case(
        "a call in the signs of its template",
        body(
            {
                "content": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
                '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            }
        ),
        WEATHER_IN_ROME,
    ),
)
# docs.x.ai: api-reference, chat completions
XAI = of(
    "xai",
    case(
        "a thought beside the answer",
        body(
            {
                "role": "assistant",
                "content": "Ciao!",
                "reasoning_content": "Greet.",
                "refusal": None,
            },
            usage={
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 42,
                "completion_tokens_details": {"reasoning_tokens": 30},
                "num_sources_used": 0,
            },
            citations=[],
        ),
        GREETING,
        TEXT,
    ),
    case(
        "a call that is streamed whole",
        events(
            delta(
                {
                    "role": "assistant",
                    "tool_calls": [piece(0, name="get_weather", arguments=ROME, call_id="call_1")],
                }
            ),
            delta({}, "tool_calls"),
            last(),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
)
# mistralai client: models/assistantmessage.py, thinkchunk.py, deltamessage.py, usageinfo.py
_THINKS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Greet."}], "closed": True},
    {"type": "text", "text": "Ciao!"},
]
MISTRAL = of(
    "mistral",
    case("pieces with a thought", body({"role": "assistant", "content": _THINKS}), GREETING, TEXT),
    case(
        "a call whose arguments are an object",
        body(
            {
                "content": "",
                "tool_calls": [
                    {
                        "id": "D681PevKs",
                        "function": {"name": "get_weather", "arguments": {"city": "Rome"}},
                        "index": 0,
                    }
                ],
            },
            "tool_calls",
        ),
        WEATHER_IN_ROME,
    ),
    case(
        "a streamed thought in pieces",
        events(
            delta({"role": "assistant", "content": ""}),
            delta(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Gre"}]}]}
            ),
            delta(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "et."}]}]}
            ),
            delta({"content": [{"type": "text", "text": "Ciao"}]}),
            delta(
                {"content": "!"},
                "stop",
                usage={"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11},
            ),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "cut off at the window", body({"content": "Ciao!"}, "model_length"), TEXT, finish="length"
    ),
    case(
        "a call in the signs of its template",
        body({"content": '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}'}),
        WEATHER_IN_ROME,
    ),
)
# docs.together.ai: chat-completions; their models leave templates' tags in the text.
TOGETHER = of(
    "together",
    case(
        "a streamed call whose usage comes with its end",
        events(
            *_split_call()[:-1],
            delta(
                {"content": ""}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 2}
            ),
            DONE,
        ),
        WEATHER_IN_ROME,
    ),
    case(
        "arguments that repeat the schema, and then values",
        body(
            {
                "tool_calls": [
                    call("get_weather", '{"type":"object","properties":{"city":{"type":"string"}}}')
                ]
            },
            "tool_calls",
        ),
        body({"tool_calls": [call("get_weather", ROME)]}, "tool_calls"),
        WEATHER_IN_ROME,
    ),
)
# openrouter.ai/docs: api-reference/streaming, api-reference/errors, use-cases/reasoning-tokens; its
# AI SDK provider's schemas
_TEXT_DETAIL = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "id": None}
_WAITING = b": OPENROUTER PROCESSING\n\n"
OPENROUTER = of(
    "openrouter",
    case(
        "a thought with its proof, and a hidden one",
        body(
            {
                "role": "assistant",
                "content": "Ciao!",
                "reasoning": "Greet.",
                "reasoning_details": [
                    {**_TEXT_DETAIL, "text": "Greet.", "signature": "sig=="},
                    {
                        "type": "reasoning.encrypted",
                        "data": "gAAA",
                        "id": "rs_1",
                        "format": "openai-responses-v1",
                        "index": 1,
                    },
                ],
            },
            choice={"native_finish_reason": "end_turn"},
            provider="Anthropic",
        ),
        GREETING,
        TEXT,
    ),
    case(
        "a streamed thought; its proof comes last",
        events(
            _WAITING,
            delta(
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning": "Gre",
                    "reasoning_details": [{**_TEXT_DETAIL, "text": "Gre"}],
                }
            ),
            _WAITING,
            delta(
                {
                    "content": "",
                    "reasoning": "et.",
                    "reasoning_details": [{**_TEXT_DETAIL, "text": "et."}],
                }
            ),
            delta({"content": "", "reasoning_details": [{**_TEXT_DETAIL, "signature": "sig=="}]}),
            delta({"content": "Ciao!"}),
            delta({"content": ""}, "stop", native_finish_reason="end_turn"),
            last({"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.001, "is_byok": False}),
            DONE,
        ),
        GREETING,
        TEXT,
    ),
    case(
        "an error inside a 200, and then an answer",
        Answer({"error": {"code": 502, "message": "Provider returned error"}, "user_id": "u"}),
        body({"content": "Ciao!"}),
        TEXT,
    ),
    case(
        "an error inside a choice, and then an answer",
        body(
            {"content": ""},
            "error",
            choice={"error": {"code": 503, "message": "No instances available"}},
        ),
        body({"content": "Ciao!"}),
        TEXT,
    ),
    case(
        "an error in the middle of a stream, and then an answer",
        events(
            delta({"content": "Ci"}),
            event(
                {
                    "id": "gen-1",
                    "provider": "X",
                    "error": {"code": "server_error", "message": "Provider disconnected"},
                    "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
                }
            ),
        ),
        events(delta({"content": "Ciao!"}), delta({}, "stop"), DONE),
        TEXT,
    ),
)
HOSTED = (*OPENAI, *AZURE, *GROQ, *DEEPSEEK, *XAI, *MISTRAL, *TOGETHER, *OPENROUTER)
