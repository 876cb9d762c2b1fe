"""Gemini at Google AI and at Vertex AI, asked with Google's real client.

Shapes follow google-genai 2.34.0 (`google/genai/types.py`: GenerateContentResponse, Candidate,
FinishReason, Part, GenerateContentResponseUsageMetadata) and the answers recorded in pydantic-ai's
public tests (`tests/models/test_google.py`).
"""

import base64
import importlib
import json
from typing import Any

import pytest

from ricordo.domain.message import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelInfo, ModelSettings, Restarted, ToolSchema
from ricordo.domain.usage import Usage
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.llm.talk import (
    CLOCK,
    HISTORIES,
    WEATHER,
    Waits,
    ask,
    collect,
    said,
    weather_call,
    weather_return,
)
from tests.llm.wild.openai_shapes import as_joined, joined, meaning_of
from tests.support.model_server import Answer, ModelServer

SIGNATURE = base64.b64encode(b"signed by google").decode()
CALL = {
    "functionCall": {"name": "get_weather", "args": {"city": "Rome"}},
    "thoughtSignature": SIGNATURE,
}
CALL_B = {"functionCall": {"name": "get_time", "args": {}}}
USAGE = {
    "promptTokenCount": 20,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 3,
    "cachedContentTokenCount": 8,
    "totalTokenCount": 28,
}


# The import is slow, so it does not run for people who only collect these tests.
@pytest.fixture(scope="module", autouse=True)
def _extra() -> None:
    pytest.importorskip("google.genai", reason="the extra `google` is not installed")


def gemini(*parts: dict[str, Any], finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    """One answer, or one piece of a stream."""
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": USAGE,
        "modelVersion": "gemini-scripted",
        "responseId": "r-1",
    } | more


def streamed(*chunks: dict[str, Any]) -> Answer:
    pieces = tuple(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)
    return Answer(pieces=pieces, headers={"content-type": "text/event-stream"})


def as_answer(stream: bool, *parts: dict[str, Any], **more: Any) -> Answer:
    if not stream:
        return Answer(gemini(*parts, **more))
    *first, last = parts or ({"text": ""},)
    return streamed(*(gemini(part, finish=None) for part in first), gemini(last, **more))


def gemini_at(
    server: ModelServer, connections: Connections, waits: Waits, name: str = "gemini-3-pro"
) -> ChatModel:
    info = ModelInfo(f"google_ai/{name}", "google_ai", name, "google_ai", 1_000_000, server.root)
    return build_model(
        Provider("google_ai", "", "google_ai", "google", "key-1"), info, connections, waits.policy()
    )


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    return gemini_at(server, connections, waits)


async def test_the_server_receives_this_request(model: ChatModel, server: ModelServer) -> None:
    server.push(Answer(gemini({"text": "Ciao"})))
    request = ask(
        "Hello", tools=[WEATHER], settings=ModelSettings(temperature=0.5, max_output_tokens=99)
    )
    reply = await whole_reply(model, request)
    assert reply.parts == (TextPart("Ciao"),)
    assert reply.usage == Usage(20, 8, 8, 0, 3)
    seen = server.requests[0]
    assert seen.path.split("?")[0] == "/v1beta/models/gemini-3-pro:generateContent"
    assert seen.headers["x-goog-api-key"] == "key-1"
    assert "key-1" not in seen.path
    assert seen.body["systemInstruction"]["parts"] == [{"text": "Be kind."}]
    assert seen.body["contents"] == [{"role": "user", "parts": [{"text": "Hello"}]}]
    assert seen.body["generationConfig"]["maxOutputTokens"] == 99
    assert seen.body["generationConfig"]["temperature"] == 0.5
    (declared,) = seen.body["tools"][0]["functionDeclarations"]
    assert (declared["name"], declared["description"]) == ("get_weather", "Tells the weather.")


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_without_ids_get_ids_and_their_signatures_are_sent_back(
    model: ChatModel, server: ModelServer, stream: bool
) -> None:
    server.push(as_answer(stream, CALL, CALL_B), Answer(gemini({"text": "Done."})))
    chunks, reply = await collect(model, ask("x", tools=[WEATHER, CLOCK], stream=stream))
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "Rome"}),
        ("get_time", {}),
    ]
    assert all(call.call_id for call in calls)
    assert calls[0].call_id != calls[1].call_id
    assert reply.finish == "tool_calls"
    assert joined(chunks) == (as_joined(reply) if stream else ("", "", []))
    returns = said(
        "tool",
        weather_return(calls[0].call_id),
        ToolReturnPart(calls[1].call_id, "get_time", "error", "no"),
    )
    await whole_reply(
        model, ask("x", said("assistant", *reply.parts), returns, tools=[WEATHER, CLOCK])
    )
    _, answer, results = server.requests[1].body["contents"]
    assert answer["role"] == "model"
    assert [part["functionCall"]["name"] for part in answer["parts"]] == ["get_weather", "get_time"]
    assert answer["parts"][0]["thoughtSignature"] == SIGNATURE
    assert [part["functionResponse"]["name"] for part in results["parts"]] == [
        "get_weather",
        "get_time",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_are_separated_from_the_answer_and_text_keeps_its_signature(
    model: ChatModel, server: ModelServer, stream: bool
) -> None:
    thought, text = (
        {"text": "Rome, then.", "thought": True},
        {"text": "Sunny.", "thoughtSignature": SIGNATURE},
    )
    server.push(as_answer(stream, thought, text), Answer(gemini({"text": "Yes."})))
    chunks, reply = await collect(model, ask("x", stream=stream))
    assert meaning_of(reply) == (("thought", "Rome, then."), ("text", "Sunny."))
    assert joined(chunks) == (as_joined(reply) if stream else ("", "", []))
    await whole_reply(model, ask("x", said("assistant", *reply.parts), "Sure?"))
    answer = server.requests[1].body["contents"][1]
    assert {"text": "Sunny.", "thoughtSignature": SIGNATURE} in answer["parts"]


async def test_another_providers_call_is_sent_with_the_signature_that_google_requires(
    model: ChatModel, server: ModelServer
) -> None:
    server.push(Answer(gemini({"text": "Done."})))
    foreign = said(
        "assistant",
        ReasoningPart("mine", signature="c2ln", provider="anthropic"),
        weather_call("toolu_a"),
    )
    await whole_reply(
        model, ask("x", foreign, said("tool", weather_return("toolu_a")), tools=[WEATHER])
    )
    (part,) = server.requests[0].body["contents"][1]["parts"]
    assert part["functionCall"]["name"] == "get_weather"
    assert base64.b64decode(part["thoughtSignature"]) == b"skip_thought_signature_validator"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_content_or_candidate_is_requested_again(
    model: ChatModel, server: ModelServer, waits: Waits, stream: bool
) -> None:
    reasons = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "OTHER")
    broken: list[dict[str, Any]] = [
        {"candidates": [{"finishReason": reason, "content": {"role": "model"}}]}
        for reason in reasons
    ]
    for answer in (*broken, {}, {"candidates": []}):
        waits.clear()
        empty = answer | {"usageMetadata": USAGE}
        server.push(streamed(empty) if stream else Answer(empty), as_answer(stream, CALL))
        _, reply = await collect(model, ask("x", tools=[WEATHER], stream=stream))
        assert [part.name for part in reply.parts if isinstance(part, ToolCallPart)] == [
            "get_weather"
        ], answer
        assert len(waits) == 1, answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "blocked",
    [
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USAGE},
        {"candidates": [{"index": 0, "finishReason": "SAFETY"}], "usageMetadata": USAGE},
    ],
    ids=["the prompt", "the answer"],
)
async def test_a_blocked_answer_has_the_content_filter_finish(
    model: ChatModel, server: ModelServer, blocked: dict[str, Any], stream: bool
) -> None:
    server.push(streamed(blocked) if stream else Answer(blocked))
    _, reply = await collect(model, ask("x", stream=stream))
    assert (reply.parts, reply.finish) == ((), "content_filter")


async def test_a_cut_stream_is_restarted(
    model: ChatModel, server: ModelServer, waits: Waits
) -> None:
    cut = streamed(gemini({"text": "Ci"}, finish=None))
    server.push(cut, streamed(gemini({"text": "Ci"}, finish=None), gemini({"text": "ao"})))
    chunks, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (TextPart("Ciao"),)
    assert chunks.count(Restarted()) == len(waits) == 1


SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "additionalProperties": False,
        }
    },
    "properties": {
        "where": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        "unit": {"enum": ["c", "f"], "type": "string"},
        "only": {"const": "x"},
        "pair": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        "free": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["where"],
    "additionalProperties": False,
}


async def test_a_schema_beyond_geminis_own_format_is_sent_as_json_schema(
    model: ChatModel, server: ModelServer
) -> None:
    server.push(Answer(gemini({"text": "ok"})))
    await whole_reply(model, ask("x", tools=[ToolSchema("find", "Finds.", SCHEMA)]))
    (declared,) = server.requests[0].body["tools"][0]["functionDeclarations"]
    # `parameters` is Google's kind of schema, which has neither $defs nor additionalProperties;
    # this field has both.
    assert "parameters" not in declared
    sent = declared["parameters_json_schema"]  # Google accepts names in either spelling.
    assert sent["required"] == ["where"]
    assert set(sent["properties"]) == set(SCHEMA["properties"])


async def test_a_thinking_budget_is_sent_in_googles_field(
    model: ChatModel, server: ModelServer
) -> None:
    server.push(Answer(gemini({"text": "ok"})))
    await whole_reply(model, ask("x", settings=ModelSettings(max_reasoning_tokens=2_000)))
    thinking = server.requests[0].body["generationConfig"]["thinkingConfig"]
    assert thinking == {"include_thoughts": True, "thinking_budget": 2_000}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_every_history_begins_and_ends_with_the_user(
    model: ChatModel, server: ModelServer, history: tuple[Message | str, ...]
) -> None:
    server.push(Answer(gemini({"text": "ok"})))
    await whole_reply(model, ask(*history, tools=[WEATHER]))
    contents = server.requests[0].body["contents"]
    roles = [content["role"] for content in contents]
    assert roles[0] == roles[-1] == "user"
    assert "model model" not in " ".join(roles)
    assert all(
        content["parts"] and all(part.get("text", "x").strip() for part in content["parts"])
        for content in contents
    )


async def test_an_unreachable_picture_becomes_a_note(model: ChatModel, server: ModelServer) -> None:
    server.push(Answer(gemini({"text": "ok"})))
    picture = ImagePart("image/png", url=f"{server.root}/gone.png")
    await whole_reply(model, ask(said("user", "See:", picture)))
    (seen,) = server.requests  # The address is private, so it was not called.
    assert seen.body["contents"][0]["parts"][1] == {"text": "(a picture that cannot be read)"}


@pytest.fixture
def vertex(
    server: ModelServer, connections: Connections, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> ChatModel:
    auth = importlib.import_module("google.auth")
    base: Any = importlib.import_module("google.auth.credentials").Credentials

    def refresh(self: Any, _request: Any) -> None:
        self.token = "token-1"

    # Credentials that are refreshed without a request.
    known = type("Known", (base,), {"refresh": refresh})
    monkeypatch.setattr(auth, "default", lambda *_, **__: (known(), "project-1"))
    info = ModelInfo(
        "google_vertex/gemini-3-pro",
        "google_vertex",
        "gemini-3-pro",
        "google_vertex",
        9,
        server.root,
    )
    provider = Provider(
        "google_vertex", "", "google_vertex", "vertex", "project-1", location="europe-west4"
    )
    return build_model(provider, info, connections, waits.policy())


async def test_a_thinking_budget_is_sent_to_vertex_too(
    vertex: ChatModel, server: ModelServer
) -> None:
    server.push(Answer(gemini({"text": "ok"})))
    await whole_reply(vertex, ask("x", settings=ModelSettings(max_reasoning_tokens=2_000)))
    thinking = server.requests[0].body["generationConfig"]["thinkingConfig"]
    assert thinking == {"include_thoughts": True, "thinking_budget": 2_000}


async def test_vertex_is_called_with_googles_own_credentials(
    vertex: ChatModel, server: ModelServer
) -> None:
    server.push(
        Answer(gemini(CALL)), streamed(gemini({"text": "Ci"}, finish=None), gemini({"text": "ao"}))
    )
    reply = await whole_reply(vertex, ask("x", tools=[WEATHER]))
    (call,) = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    results = said("tool", weather_return(call.call_id))
    _, reply = await collect(
        vertex, ask("x", said("assistant", *reply.parts), results, tools=[WEATHER], stream=True)
    )
    assert reply.parts == (TextPart("Ciao"),)
    first, second = server.requests
    place = (
        "/v1beta1/projects/project-1/locations/europe-west4/publishers/google/models/gemini-3-pro"
    )
    assert first.path == f"{place}:generateContent"
    assert second.path.startswith(f"{place}:streamGenerateContent")
    assert first.headers["authorization"] == second.headers["authorization"] == "Bearer token-1"
    assert second.body["contents"][1]["parts"][0]["thoughtSignature"] == SIGNATURE
