"""Stop reasons, errors and tool choices of each provider with an SDK."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelSettings
from ricordo.errors import ModelError
from ricordo.llm.chat import ChatModel, whole_reply
from tests.llm.talk import CLOCK, WEATHER, Waits, ask, claude_at, collect
from tests.llm.wild_sdk import test_bedrock as bedrock
from tests.llm.wild_sdk import test_google as google
from tests.support.model_server import Answer, ModelServer, claude, claude_stream

one_loader = bedrock.one_loader
TOOLS = [WEATHER, CLOCK]
ONCE = {
    "llm_authentication",
    "llm_bad_request",
    "llm_insufficient_credits",
    "context_window_exceeded",
}


@dataclass(frozen=True)
class Sdk:
    """A provider.

    The functions make its model, its answer "I look." and its errors. The other fields are its
    names of stop reasons and tool choices.
    """

    package: str
    model: Callable[..., ChatModel]
    answer: Callable[[bool, str], Answer]
    error: Callable[[int, str, str], Answer]
    stops: dict[str, str]
    errors: tuple[tuple[int, str, str, str], ...]
    choice: Callable[[dict[str, Any]], Any]
    required: Any
    forced: Any

    def __str__(self) -> str:
        return self.package


ANTHROPIC = Sdk(
    "anthropic",
    claude_at,
    lambda stream, stop: (claude_stream if stream else claude)(
        {"type": "text", "text": "I look."}, stop=stop
    ),
    lambda status, name, words: Answer(
        {"type": "error", "error": {"type": name, "message": words}}, status
    ),
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "content_filter",
        "pause_turn": "stop",
    },
    (
        (401, "authentication_error", "invalid x-api-key", "llm_authentication"),
        (400, "invalid_request_error", "prompt is too long: 9 > 5", "context_window_exceeded"),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low",
            "llm_insufficient_credits",
        ),
        (400, "invalid_request_error", "no such field", "llm_bad_request"),
        (429, "rate_limit_error", "slow down", "llm_rate_limit"),
        (529, "overloaded_error", "Overloaded", "llm_error"),
    ),
    lambda body: body["tool_choice"],
    {"type": "any"},
    {"type": "tool", "name": "get_time"},
)
BEDROCK = Sdk(
    "boto3",
    lambda server, _connections, waits: bedrock.model_at(server, waits),
    lambda stream, stop: (bedrock.converse_stream if stream else bedrock.converse)(
        bedrock.TEXT, stop=stop
    ),
    lambda status, name, words: Answer({"message": words}, status, {"x-amzn-errortype": name}),
    {
        "end_turn": "stop",
        "max_tokens": "length",
        "guardrail_intervened": "content_filter",
        "content_filtered": "content_filter",
    },
    (
        (
            400,
            "ValidationException",
            "Input is too long for requested model.",
            "context_window_exceeded",
        ),
        (400, "ValidationException", "malformed input request", "llm_bad_request"),
        (403, "ExpiredTokenException", "The security token is expired", "llm_authentication"),
        (429, "ThrottlingException", "Too many requests", "llm_rate_limit"),
        (408, "ModelTimeoutException", "took too long", "llm_timeout"),
        (500, "InternalServerException", "oops", "llm_error"),
    ),
    lambda body: body["toolConfig"]["toolChoice"],
    {"any": {}},
    {"tool": {"name": "get_time"}},
)
GOOGLE = Sdk(
    "google.genai",
    google.gemini_at,
    lambda stream, stop: google.as_answer(stream, {"text": "I look."}, finish=stop),
    lambda status, name, words: Answer(
        {"error": {"code": status, "message": words, "status": name}}, status
    ),
    {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
    },
    (
        (
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            "llm_authentication",
        ),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count (9) exceeds the maximum (5).",
            "context_window_exceeded",
        ),
        (400, "INVALID_ARGUMENT", "Unknown name", "llm_bad_request"),
        (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", "llm_rate_limit"),
        (503, "UNAVAILABLE", "The model is overloaded", "llm_error"),
        (504, "DEADLINE_EXCEEDED", "too slow", "llm_timeout"),
    ),
    lambda body: body["toolConfig"]["functionCallingConfig"],
    {"mode": "ANY"},
    {"mode": "ANY", "allowedFunctionNames": ["get_time"]},
)


@pytest.fixture(params=[ANTHROPIC, BEDROCK, GOOGLE], ids=str)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    found: Sdk = request.param
    pytest.importorskip(found.package, reason="its extra is not installed")
    if found is BEDROCK:
        request.getfixturevalue("one_loader")
    return found


@pytest.fixture
def model(sdk: Sdk, server: ModelServer, connections: Any, waits: Waits) -> ChatModel:
    return sdk.model(server, connections, waits)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_stop_reason_has_its_finish(
    sdk: Sdk, model: ChatModel, server: ModelServer, waits: Waits, stream: bool
) -> None:
    for stop, finish in sdk.stops.items():
        server.push(sdk.answer(stream, stop))
        _, reply = await collect(model, ask("x", stream=stream))
        assert (reply.parts, reply.finish) == ((TextPart("I look."),), finish), stop
    assert waits == []


@pytest.mark.parametrize("stream", [False, True])
async def test_each_error_has_its_kind_and_only_our_retries_count(
    sdk: Sdk, model: ChatModel, server: ModelServer, stream: bool
) -> None:
    for status, name, words, kind in sdk.errors:
        server.requests.clear()
        tries = 1 if kind in ONCE else 4
        server.push(*[sdk.error(status, name, words)] * tries)
        with pytest.raises(ModelError, match=re.escape(words)) as caught:
            await collect(model, ask("x", stream=stream))
        assert (caught.value.kind, len(server.requests)) == (kind, tries), words


async def test_a_tool_is_forced_in_each_providers_format_without_thinking(
    sdk: Sdk, model: ChatModel, server: ModelServer
) -> None:
    settings = ModelSettings(max_reasoning_tokens=2_000)
    forced: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"tool_choice": "required"}, sdk.required),
        ({"forced_tool": "get_time"}, sdk.forced),
    )
    for fields, choice in forced:
        server.requests.clear()
        # If a call is required and the model makes none, it is asked once more.
        server.push(*[sdk.answer(False, next(iter(sdk.stops)))] * 2)
        await whole_reply(model, ask("x", tools=TOOLS, settings=settings, **fields))
        assert sdk.choice(server.requests[0].body) == choice, fields
        assert b"2000" not in server.requests[0].raw
