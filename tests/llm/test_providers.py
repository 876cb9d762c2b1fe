"""The adapter on top of pydantic-ai, with Anthropic's real client over real HTTP."""

import builtins
import importlib
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from ricordo.domain.message import ImagePart, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelInfo, ModelReply, ModelSettings
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError, Unavailable
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import AdapterName, Provider
from tests.llm.talk import (
    CLOCK,
    WEATHER,
    Waits,
    ask,
    claude_at,
    collect,
    said,
    weather_call,
    weather_return,
)
from tests.support.model_server import Answer, ModelServer, claude

THINKING = {"type": "thinking", "thinking": "Rome, then.", "signature": "sig-1"}
TEXT = {"type": "text", "text": "I look."}
CALL_B = {"type": "tool_use", "id": "toolu_b", "name": "get_time", "input": {}}
CACHED = {"type": "ephemeral", "ttl": "5m"}


def not_found() -> httpx2.HTTPStatusError:
    request = httpx2.Request("GET", "https://host/a.png")
    return httpx2.HTTPStatusError(
        "404 Not Found", request=request, response=httpx2.Response(404, request=request)
    )


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    return claude_at(server, connections, waits)


async def test_a_plain_answer_has_its_cache_usage(model: ChatModel, server: ModelServer) -> None:
    server.push(
        claude(
            {"type": "text", "text": "Ciao"},
            cache_read_input_tokens=100,
            cache_creation_input_tokens=7,
        )
    )
    chunks, reply = await collect(model, ask("Hello"))
    assert chunks == []
    assert reply == ModelReply(
        (TextPart("Ciao"),), Usage(127, 5, 100, 7), "stop", "claude-scripted"
    )


async def test_the_server_receives_exactly_this_request(
    model: ChatModel, server: ModelServer
) -> None:
    picture = ImagePart("image/png", data="QUJD")
    request = ask(
        said("user", "See:", picture),
        said(
            "assistant", "I look.", weather_call("toolu_a"), ToolCallPart("toolu_b", "get_time", "")
        ),
        said(
            "tool",
            weather_return("toolu_a"),
            ToolReturnPart("toolu_b", "get_time", "error", "no clock"),
        ),
        tools=[WEATHER, CLOCK],
        user_id="user-9",
        settings=ModelSettings(temperature=0.5, parallel_tool_calls=False),
    )
    await whole_reply(model, request)
    seen = server.requests[0]
    assert seen.path.split("?")[0] == "/v1/messages"
    assert "key-1" in (seen.headers.get("x-api-key") or seen.headers["authorization"])
    assert seen.body == {
        "model": "claude-scripted",
        "max_tokens": 16_384,
        "temperature": 0.5,
        "stream": False,
        "metadata": {"user_id": "user-9"},
        "system": [{"type": "text", "text": "Be kind.", "cache_control": CACHED}],
        "tools": [
            {
                "name": "get_weather",
                "description": "Tells the weather.",
                "input_schema": WEATHER.parameters,
            },
            {
                "name": "get_time",
                "description": "Tells the time.",
                "input_schema": CLOCK.parameters,
                "cache_control": CACHED,
            },
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See:"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {
                        "type": "tool_use",
                        "id": "toolu_a",
                        "name": "get_weather",
                        "input": {"city": "Rome"},
                    },
                    {
                        "type": "tool_use",
                        "id": "toolu_b",
                        "name": "get_time",
                        "input": {"unreadable_arguments": ""},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_a",
                        "content": [{"type": "text", "text": "sunny"}],
                        "is_error": False,
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_b",
                        "content": [{"type": "text", "text": "no clock"}],
                        "is_error": True,
                        "cache_control": CACHED,
                    },
                ],
            },
        ],
    }


async def test_a_silent_server_is_a_timeout(server: ModelServer) -> None:
    connections = Connections(timeout=0.05)
    model = claude_at(server, connections, Waits(), retries=1, timeout=0.05)
    server.push(Answer({}, delay=60), Answer({}, delay=60))
    with pytest.raises(ModelError) as caught:
        await whole_reply(model, ask("x"))
    assert caught.value.kind == "llm_timeout"
    assert len(server.requests) == 2
    await connections.close()


async def test_a_thinking_budget_leaves_room_for_the_answer(
    model: ChatModel, server: ModelServer
) -> None:
    settings = ModelSettings(temperature=0.5, max_output_tokens=2_000, max_reasoning_tokens=4_000)
    await whole_reply(model, ask("x", settings=settings))
    body = server.requests[0].body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4_000}
    assert body["max_tokens"] > 4_000
    assert "temperature" not in body


async def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, waits: Waits
) -> None:
    def without(name: str) -> Any:
        raise builtins.ImportError(name)

    monkeypatch.setattr(importlib, "import_module", without)
    connections = Connections(1)
    advices: dict[AdapterName, str] = {
        "anthropic": "",
        "google": "",
        "openai": " or set OPENAI_API=chat for chat completions",
        "bedrock": "",
    }
    for extra, advice in advices.items():
        info = ModelInfo(f"{extra}/m", extra, "m", extra)
        model: ChatModel = build_model(
            Provider(extra, "", extra, extra, "k", "responses"), info, connections, waits.policy()
        )
        with pytest.raises(Unavailable, match=rf'pip install "ricordo\[{extra}\]"{advice}$'):
            await whole_reply(model, ask("x"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        NotImplementedError("no"),
        TypeError("no"),
        httpx2.InvalidURL("no"),
        not_found(),
    ],
)
async def test_a_request_that_the_sdk_cannot_convert_is_a_bad_request(
    model: ChatModel,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    stream: bool,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise error

    await whole_reply(model, ask("x"))
    monkeypatch.setattr("pydantic_ai.models.anthropic.AnthropicModel._map_message", refuse)
    with pytest.raises(ModelError, match="anthropic cannot take this request") as caught:
        await collect(model, ask("x", stream=stream))
    assert caught.value.kind == "llm_bad_request"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "payload", [{"content": [None]}, {"content": 5}, {"usage": "many"}, {"content": [{"type": 5}]}]
)
async def test_a_malformed_answer_is_a_model_error(
    model: ChatModel, server: ModelServer, payload: dict[str, Any]
) -> None:
    answer = claude({"type": "text", "text": "Ciao"})
    assert isinstance(answer.body, dict)
    server.push(*[replace(answer, body=answer.body | payload)] * 4)
    with pytest.raises(ModelError):
        await whole_reply(model, ask("x"))
