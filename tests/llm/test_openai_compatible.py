"""The adapter for OpenAI-compatible servers, over real HTTP."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import (
    ModelInfo,
    ModelReply,
    ModelSettings,
    ReasoningChunk,
    Restarted,
    TextChunk,
)
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import whole_reply
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.openai_reply import SseReader
from tests.llm.talk import WEATHER, Waits, ask, collect, said, weather_call, weather_return
from tests.support.model_server import Answer, ModelServer, completion, stream


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> OpenAICompatibleModel:
    info = ModelInfo("openai/scripted-1", "openai", "scripted-1", "openai", endpoint=server.url)
    return OpenAICompatibleModel(info, connections, waits.policy(), api_key="key-1")


async def test_a_plain_answer_has_the_reported_usage(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    server.push(completion("Ciao!", usage=usage))
    chunks, reply = await collect(model, ask("Hello"))
    assert chunks == []
    assert reply == ModelReply(
        (TextPart("Ciao!"),), Usage(100, 20, 64, None, 5), "stop", "scripted-1"
    )


async def test_the_server_receives_exactly_this_request(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    await whole_reply(model, ask("Hello"))
    seen = server.requests[0]
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == "Bearer key-1"
    assert seen.headers["content-type"] == "application/json"
    assert seen.raw == (
        b'{"model":"scripted-1","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"Hello"}]}'
    )


async def test_every_field_of_a_request_reaches_the_server(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    request = ask(
        "Weather?",
        said("assistant", "I look.", weather_call()),
        said("tool", weather_return()),
        tools=[WEATHER],
        tool_choice="required",
        user_id="user-9",
        settings=ModelSettings(
            temperature=0.5,
            max_output_tokens=300,
            parallel_tool_calls=False,
            reasoning_effort="low",
            response_format={"type": "json_object"},
            extra={"seed": 7},
        ),
    )
    await whole_reply(model, request)
    assert server.requests[0].body == {
        "model": "scripted-1",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Tells the weather.",
                    "parameters": WEATHER.parameters,
                },
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "max_tokens": 300,
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "user": "user-9",
        "seed": 7,
    }


async def test_a_stream_brings_chunks_and_then_the_whole_reply(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(
        stream(
            {"role": "assistant", "content": ""},
            {"reasoning_content": "hm"},
            {"content": "Ci"},
            {"content": "ao"},
            usage={"prompt_tokens": 9, "completion_tokens": 3},
        )
    )
    chunks, reply = await collect(model, ask("x", stream=True))
    assert chunks == [ReasoningChunk("hm"), TextChunk("Ci"), TextChunk("ao")]
    assert reply == ModelReply(
        (ReasoningPart("hm"), TextPart("Ciao")), Usage(9, 3), "stop", "scripted-1"
    )
    body = server.requests[0].body
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


SIGNS = 'Brava 👩‍🚀! "🇮🇹" \\ud83d is no sign, \\\\ neither.🙂'


def units_of(text: str) -> list[str]:
    """Return the UTF-16 units of a text as programs in JavaScript see them."""
    encoded = text.encode("utf-16-le")
    return [
        encoded[at : at + 2].decode("utf-16-le", "surrogatepass")
        for at in range(0, len(encoded), 2)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_an_emoji_that_is_split_between_two_events_arrives_whole(size: int, field: str) -> None:
    units = units_of(SIGNS)
    for first in range(size):
        cuts = [0, *range(first or size, len(units), size), len(units)]
        pieces = ["".join(units[begin:end]) for begin, end in pairwise(cuts)]
        events = [json.dumps({"choices": [{"delta": {field: piece}}]}) for piece in pieces]
        reader = SseReader()
        read = [event for each in events for event in reader.feed(f"data: {each}\n\n".encode())]
        assert "".join(event["choices"][0]["delta"][field] for event in read) == SIGNS


BROKEN = [b'"a\\ud83d b"', b'"a\\ude00 b"', b'"a\xf0\x9f b"', b'"a\xff b"']


@pytest.mark.parametrize("written", BROKEN)
@pytest.mark.parametrize("streams", [True, False])
async def test_a_broken_character_does_not_lose_the_text_around_it(
    model: OpenAICompatibleModel, server: ModelServer, written: bytes, streams: bool
) -> None:
    kind = b"delta" if streams else b"message"
    body = b'{"choices":[{"index":0,"finish_reason":"stop","%s":{"content":%s}}]}' % (kind, written)
    if streams:
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    kinds = {True: "text/event-stream", False: "application/json"}
    server.push(Answer(pieces=(body,), headers={"content-type": kinds[streams]}))
    _, reply = await collect(model, replace(ask("Hello"), stream=streams))
    (part,) = reply.parts
    assert isinstance(part, TextPart)
    assert part.text.replace("\ufffd", "") == "a b"
    assert len(server.requests) == 1


async def test_an_interrupted_stream_is_restarted(
    model: OpenAICompatibleModel, server: ModelServer, waits: Waits
) -> None:
    broken = stream({"content": "Ci"}, finish=None, done=False)
    server.push(replace(broken, breaks_off=True), broken, stream({"content": "Ciao"}))
    chunks, reply = await collect(model, ask("x", stream=True))
    assert chunks == [TextChunk("Ci"), Restarted(), TextChunk("Ci"), Restarted(), TextChunk("Ciao")]
    assert reply.parts == (TextPart("Ciao"),)
    assert len(server.requests) == 3
    assert len(waits) == 2


async def test_a_stream_interrupted_after_its_end_is_complete(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(replace(stream({"content": "Ciao"}, done=False), breaks_off=True))
    _, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (TextPart("Ciao"),)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message", "kind", "calls"),
    [
        (401, "bad key", "llm_authentication", 1),
        (400, "This model's maximum context length is 5 tokens", "context_window_exceeded", 1),
        (429, "slow down", "llm_rate_limit", 4),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_each_error_has_its_kind_and_number_of_calls(
    model: OpenAICompatibleModel,
    server: ModelServer,
    status: int,
    message: str,
    kind: str,
    calls: int,
    streamed: bool,
) -> None:
    server.push(*[Answer({"error": {"message": message}}, status)] * 5)
    with pytest.raises(ModelError, match=message) as caught:
        await collect(model, ask("x", stream=streamed))
    assert caught.value.kind == kind
    assert len(server.requests) == calls


async def test_a_rate_limit_is_waited_out_as_the_server_asks(
    model: OpenAICompatibleModel, server: ModelServer, waits: Waits
) -> None:
    limited = Answer({"error": {"message": "slow down"}}, 429, {"retry-after": "7"})
    server.push(limited, limited, completion("done"))
    assert (await whole_reply(model, ask("x"))).parts == (TextPart("done"),)
    assert waits == [7, 7]


async def test_a_silent_server_is_a_timeout(server: ModelServer) -> None:
    connections = Connections(timeout=0.05)
    info = ModelInfo("vllm/m", "vllm", "m", "vllm", endpoint=server.url)
    model = OpenAICompatibleModel(info, connections, Waits().policy(retries=1))
    server.push(Answer({}, delay=60), Answer({}, delay=60))
    with pytest.raises(ModelError, match="no sign of life") as caught:
        await whole_reply(model, ask("x"))
    assert caught.value.kind == "llm_timeout"
    assert len(server.requests) == 2
    await connections.close()


async def test_an_unreachable_server_is_an_error(connections: Connections, waits: Waits) -> None:
    async with ModelServer() as gone:
        url = gone.url
    model = OpenAICompatibleModel(
        ModelInfo("vllm/m", "vllm", "m", "vllm", endpoint=url), connections, waits.policy()
    )
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        await whole_reply(model, ask("x"))
    assert caught.value.kind == "llm_error"
    assert len(waits) == 3


async def test_an_html_page_instead_of_a_completion_is_an_error(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(Answer(b"<html>Welcome</html>", headers={"content-type": "text/html"}))
    with pytest.raises(ModelError, match="Check its address") as caught:
        await whole_reply(model, ask("x"))
    assert (caught.value.kind, len(server.requests)) == ("llm_error", 1)


async def test_connections_are_kept_alive_after_answers_streams_and_errors(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(
        completion("a"),
        stream({"content": "b"}),
        Answer({"error": {"message": "no"}}, 404),
        completion("c"),
    )
    for request in (ask("1"), ask("2", stream=True)):
        await collect(model, request)
    with pytest.raises(ModelError):
        await whole_reply(model, ask("3"))
    await whole_reply(model, ask("4"))
    assert len(server.requests) == 4
    assert server.connections == 1


async def test_a_reader_who_leaves_releases_the_connection(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(stream({"content": "one"}, {"content": "two"}, {"content": "three"}))
    answer = model.answer(ask("x", stream=True))
    assert await anext(answer) == TextChunk("one")
    await answer.aclose()
    assert (await whole_reply(model, ask("y"))).parts == (TextPart("ok"),)
