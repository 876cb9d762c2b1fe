"""Limits of one answer, over real HTTP, for each adapter."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.model import EmbeddingInfo, ModelInfo, ToolCallChunk
from ricordo.errors import ModelError
from ricordo.llm import answer_bounds
from ricordo.llm.addresses import Connections
from ricordo.llm.answer_bounds import ERROR_BYTES, MOST_CALLS, BoundReached
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.embedding.remote import openai_embedder
from ricordo.llm.model_lists import list_models
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.openai_format import to_messages
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.llm.talk import (
    WEATHER,
    Waits,
    ask,
    claude_at,
    collect,
    said,
    weather_call,
    weather_return,
)
from tests.support.model_server import (
    Answer,
    ModelServer,
    claude_stream,
    completion,
    stream,
    tool_call,
)

MIB = 1024 * 1024
# Small limits instead of the product's, which take seconds to reach; `make soak` also tests those.
SMALL = {
    "ANSWER_BYTES": MIB,
    "STREAM_BYTES": 2 * MIB,
    "ANSWER_COMMAS": 60_000,
    "ANSWER_CHARACTERS": MIB // 8,
}
JSON, EVENTS = {"content-type": "application/json"}, {"content-type": "text/event-stream"}
ROME = '{"city":"Rome"}'


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> OpenAICompatibleModel:
    info = ModelInfo("openai/scripted-1", "openai", "scripted-1", "openai", endpoint=server.url)
    return OpenAICompatibleModel(info, connections, waits.policy())


@pytest.fixture
def claude_model(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    return claude_at(server, connections, waits)


@pytest.fixture
async def hasty() -> AsyncIterator[Connections]:
    """Connections with a limit of 0.6 seconds for an answer."""
    opened = Connections(timeout=0.1)
    yield opened
    await opened.close()


@pytest.fixture(params=["small", pytest.param("real", marks=pytest.mark.soak)])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits that are reached soon, or keep the limits of the product."""
    if request.param == "small":
        for name, bound in SMALL.items():
            assert getattr(answer_bounds, name) > bound
            monkeypatch.setattr(answer_bounds, name, bound)


def bomb(encoding: str = "gzip") -> Answer:
    """Return a whole answer of twice the allowed bytes, compressed to a thousandth."""
    content = b"a" * (2 * answer_bounds.ANSWER_BYTES)
    whole = b'{"choices": [{"message": {"content": "' + content + b'"}}]}'
    zipped = gzip.compress(whole, 1) if encoding == "gzip" else zlib.compress(whole, 1)
    return Answer(zipped, headers=JSON | {"content-encoding": encoding})


def too_many_words(name: str) -> Answer:
    """Return a stream with more characters in this field than are allowed."""
    return stream(*[{name: "word " * 5000}] * (answer_bounds.ANSWER_CHARACTERS // 25_000 + 1))


def large_zip() -> bytes:
    """Return twice the allowed bytes of one answer, compressed."""
    return gzip.compress(b"a" * (2 * answer_bounds.ANSWER_BYTES), 1)


# Made when they are used: they are many megabytes.
TOO_LARGE = {
    "a whole answer": (False, lambda: Answer(b" " * (answer_bounds.ANSWER_BYTES + 1))),
    "one without an end": (False, lambda: Answer(pieces=(b" " * MIB,) * 99, headers=JSON)),
    "a gzip bomb": (False, bomb),
    "a deflate bomb": (False, lambda: bomb("deflate")),
    "a bomb in a stream": (
        True,
        lambda: Answer(large_zip(), headers=EVENTS | {"content-encoding": "gzip"}),
    ),
    "an event without an end": (
        True,
        lambda: Answer(pieces=(b"data: " + b" " * MIB,) * 99, headers=EVENTS),
    ),
    "a stream of comments": (
        True,
        lambda: Answer(
            pieces=((b": " + b"x" * 1000 + b"\n") * 1000,)
            * (answer_bounds.STREAM_BYTES // MIB + 9),
            headers=EVENTS,
        ),
    ),
    "a stream of words": (True, lambda: too_many_words("content")),
    "a stream of thoughts": (True, lambda: too_many_words("reasoning_content")),
    "many small values": (
        False,
        lambda: Answer(b"[" + b"[]," * (answer_bounds.ANSWER_COMMAS + 1) + b"[]]"),
    ),
    "a text of many characters": (
        False,
        lambda: completion("a" * (answer_bounds.ANSWER_CHARACTERS + 1)),
    ),
    "thousands of calls": (
        False,
        lambda: completion(None, [tool_call("get_weather", ROME, f"c{n}") for n in range(5_000)]),
    ),
    "thousands of calls in a stream": (
        True,
        lambda: stream(
            *(
                {"tool_calls": [{"index": n, **tool_call("get_weather", ROME, f"c{n}")}]}
                for n in range(5_000)
            )
        ),
    ),
}


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_too_large_answer_fails_without_a_retry(
    model: OpenAICompatibleModel, server: ModelServer, waits: Waits, name: str
) -> None:
    streams, make_answer = TOO_LARGE[name]
    server.push(make_answer())
    with pytest.raises(BoundReached) as caught:
        await collect(model, ask("Hello", tools=[WEATHER], stream=streams))
    assert caught.value.kind == "llm_error"
    assert len(server.requests) == 1
    assert not waits
    # The next answer is handled normally.
    assert (await whole_reply(model, ask("Hello"))).parts == (TextPart("ok"),)


@pytest.mark.usefixtures("bounds")
async def test_an_answer_just_within_the_limits_is_accepted(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    text = "a word " * (answer_bounds.ANSWER_CHARACTERS // 7)
    zipped = json.dumps(completion(text).body).encode()
    server.push(completion(text), stream(*[{"content": "a word " * 700}] * (len(text) // 4_900)))
    server.push(Answer(gzip.compress(zipped, 1), headers=JSON | {"content-encoding": "gzip"}))
    assert (await whole_reply(model, ask("Hello"))).parts == (TextPart(text),)
    streamed = (await collect(model, ask("Hello", stream=True)))[1].parts
    assert isinstance(streamed[0], TextPart)
    assert text.startswith(streamed[0].text)
    assert (await whole_reply(model, ask("Hello"))).parts == (TextPart(text),)


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("streams", [False, True])
async def test_answers_of_an_sdk_have_the_same_limits(
    claude_model: ChatModel,
    server: ModelServer,
    connections: Connections,
    waits: Waits,
    streams: bool,
) -> None:
    too_large = (
        claude_stream({"type": "text", "text": "a" * 3 * answer_bounds.ANSWER_CHARACTERS})
        if streams
        else bomb()
    )
    endless = Answer(pieces=(b"data: " + b" " * MIB,) * 99, headers=EVENTS if streams else JSON)
    server.push(too_large, endless, endless)
    info = ModelInfo("openai/o3", "openai", "o3", "openai", endpoint=server.url)
    provider = Provider("openai", server.url, "openai", api_key="key", api="responses")
    google = Provider("google_ai", "", "google_ai", "google", api_key="key")
    google_info = ModelInfo("google_ai/g", "google_ai", "g", "google_ai", endpoint=server.root)
    policy = waits.policy()
    for asked in (
        claude_model,
        build_model(provider, info, connections, policy),
        build_model(google, google_info, connections, policy),
    ):
        with pytest.raises(BoundReached):
            await collect(asked, ask("Hello", stream=streams))
    assert len(server.requests) == 3
    assert not waits


@pytest.mark.usefixtures("bounds")
async def test_a_very_large_error_is_cut_and_classified_by_its_status(
    model: OpenAICompatibleModel, claude_model: ChatModel, server: ModelServer, waits: Waits
) -> None:
    words = json.dumps({"error": {"message": "Slow down."}}).encode()
    for asked in (model, claude_model):
        server.push(*[Answer(words[:-2] + b'", ' + b"x" * 9 * ERROR_BYTES, status=429)] * 4)
        server.push(Answer(large_zip(), status=401, headers={"content-encoding": "gzip"}))
        for kind in ("llm_rate_limit", "llm_authentication"):
            with pytest.raises(ModelError) as caught:
                await whole_reply(asked, ask("Hello"))
            assert caught.value.kind == kind
            assert len(str(caught.value)) < 1_000
    assert len(server.requests) == 10


DRIPS: dict[str, Callable[[], Answer]] = {
    "a body": lambda: Answer(pieces=(b" ",) * 500, headers=JSON, pause=0.02),
    "a stream": lambda: Answer(pieces=(b": ping\n\n",) * 500, headers=EVENTS, pause=0.02),
    "a head": lambda: Answer(
        pieces=(b"HTTP/1.1 200 OK\r\nx-long: ", *(b"a",) * 500), is_raw=True, pause=0.02
    ),
    "an error": lambda: Answer(pieces=(b" ",) * 500, status=500, pause=0.02),
}


@pytest.mark.parametrize("name", DRIPS)
async def test_a_server_that_sends_a_few_bytes_at_a_time_times_out(
    server: ModelServer,
    hasty: Connections,
    waits: Waits,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_bounds, "SILENCES", 2)
    info = ModelInfo("openai/scripted-1", "openai", "scripted-1", "openai", endpoint=server.url)
    policy = waits.policy(timeout=0.2)
    for asked in (
        OpenAICompatibleModel(info, hasty, policy),
        claude_at(server, hasty, waits, timeout=0.2),
    ):
        server.push(DRIPS[name]())
        with pytest.raises(BoundReached) as caught:
            await collect(asked, ask("Hello", stream=name == "a stream"))
        assert caught.value.kind == "llm_timeout"
    assert len(server.requests) == 2
    assert not waits


@pytest.mark.usefixtures("bounds")
async def test_model_lists_and_vectors_have_limits_too(
    server: ModelServer, connections: Connections, waits: Waits
) -> None:
    provider = Provider("vllm", server.url, "vllm")
    embedder = openai_embedder(
        EmbeddingInfo("p/m", "p", "m", "vllm", endpoint=server.url),
        connections,
        waits.policy(),
        provider,
    )
    calls: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: list_models(connections.client(), provider),
        lambda: embedder.embed(["words"]),
    )
    for call in calls:
        server.push(bomb())
        with pytest.raises(BoundReached):
            await call()
    assert len(server.requests) == 2
    assert not waits


LONG = "call_" + "x" * 80
ODD_IDS = {
    "long": LONG,
    "huge": "y" * MIB,
    "odd": "a b\n",
    "quoted": '"><',
    "known": "call_1",
    "same": "twice",
}


@pytest.mark.parametrize("name", ODD_IDS)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_id_that_a_provider_would_refuse_is_replaced(
    model: OpenAICompatibleModel, server: ModelServer, name: str, streams: bool
) -> None:
    rows = [
        tool_call("get_weather", ROME, ODD_IDS[name]),
        tool_call("get_weather", '{"city":"Oslo"}', "twice"),
    ]
    server.push(
        stream(
            *({"tool_calls": [{"index": n, **row}]} for n, row in enumerate(rows)),
            finish="tool_calls",
        )
        if streams
        else completion(None, rows)
    )
    request = ask(
        "Hello",
        said("assistant", weather_call()),
        said("tool", weather_return()),
        tools=[WEATHER],
        stream=streams,
    )
    chunks, reply = await collect(model, request)
    calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    ids = [call.call_id for call in calls]
    assert [call.arguments for call in calls] == [ROME, '{"city":"Oslo"}']
    assert len({*ids, "call_1"}) == 3
    assert all(len(id) <= 40 and id.replace("_", "").isalnum() for id in ids)
    assert "twice" in ids
    told = [chunk.call_id for chunk in chunks if isinstance(chunk, ToolCallChunk) and chunk.call_id]
    assert told == (ids if streams else [])


async def test_a_valid_id_of_a_model_is_kept(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    for id in ("functions.get_weather:0", "a" * 40, "toolu_01", "9"):
        server.push(completion(None, [tool_call("get_weather", ROME, id)]))
        reply = await whole_reply(model, ask("Hello", tools=[WEATHER]))
        assert [part.call_id for part in reply.parts if isinstance(part, ToolCallPart)] == [id]


def test_a_long_stored_id_is_shortened_in_the_call_and_its_result() -> None:
    rows = to_messages([said("assistant", weather_call(LONG)), said("tool", weather_return(LONG))])
    sent = rows[0]["tool_calls"][0]["id"]
    assert sent == rows[1]["tool_call_id"]
    assert len(sent) <= 40


async def test_a_model_that_makes_too_many_calls_is_corrected_once(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    many = completion(
        None, [tool_call("get_weather", ROME, f"c{n}") for n in range(MOST_CALLS + 1)]
    )
    server.push(many, completion("Sorry."))
    assert (await whole_reply(model, ask("Hello", tools=[WEATHER]))).parts == (TextPart("Sorry."),)
    told = server.requests[1].body["messages"]
    assert len(told) == 4
    assert f"at most {MOST_CALLS}" in told[-1]["content"]
    server.push(many, many)
    with pytest.raises(ModelError, match=f"at most {MOST_CALLS}"):
        await whole_reply(model, ask("Hello", tools=[WEATHER]))
    assert len(server.requests) == 4
    server.push(
        completion(None, [tool_call("get_weather", ROME, f"c{n}") for n in range(MOST_CALLS)])
    )
    assert len((await whole_reply(model, ask("Hello", tools=[WEATHER]))).parts) == MOST_CALLS
