"""OpenAI's responses API, with OpenAI's real client over real HTTP.

Shapes: openai-python, types/responses/*.py.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ricordo.domain.message import ImagePart, ReasoningPart, TextPart
from ricordo.domain.model import ModelInfo, ModelSettings, ReasoningChunk, TextChunk
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import whole_reply
from ricordo.llm.provider_sdks import ProviderModel, build_model
from ricordo.llm.provider_table import Provider
from tests.llm.talk import CLOCK, WEATHER, Waits, ask, collect, said, weather_call, weather_return
from tests.llm.wild.openai_shapes import as_joined, joined
from tests.support.model_server import Answer, ModelServer, event

THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [
        {"type": "summary_text", "text": "Look it up."},
        {"type": "summary_text", "text": "Then tell."},
    ],
    "encrypted_content": "gAAAA",
    "status": "completed",
}
KEPT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": THOUGHT["summary"],
    "encrypted_content": "gAAAA",
}
WORDS = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Ciao!", "annotations": [], "logprobs": []}],
}
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 0},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 39,
}


def called(
    name: str = "get_weather", arguments: str = '{"city":"Rome"}', call_id: str = "call_1"
) -> dict[str, Any]:
    item = {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "status": "completed",
    }
    return item | {"name": name, "arguments": arguments}


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    found = {
        "id": "resp_1",
        "object": "response",
        "status": status,
        "model": "gpt-5-mini-2025",
        "error": None,
    }
    return found | {"incomplete_details": None, "output": list(output), "usage": USAGE} | more


def streamed(*items: dict[str, Any], end: str | None = "response.completed", **more: Any) -> Answer:
    """Return the events of a response; texts and arguments come in two pieces."""
    rows: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(status="in_progress")}
    ]
    for place, item in enumerate(items):
        rows += _events_of(place, item)
    if end:
        rows.append({"type": end, "response": response(*items, **more)})
    pieces = tuple(
        event({**row, "sequence_number": number}, row["type"]) for number, row in enumerate(rows)
    )
    return Answer(pieces=pieces, headers={"content-type": "text/event-stream; charset=utf-8"})


def _events_of(place: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    at = {"output_index": place, "item_id": item["id"]}
    rows: list[dict[str, Any]] = []
    match item["type"]:
        case "message":
            begun, text = {**item, "content": []}, item["content"][0]["text"]
            rows += [
                {"type": "response.output_text.delta", "delta": half, **at}
                for half in (text[:2], text[2:])
            ]
        case "function_call":
            begun, text = {**item, "arguments": ""}, item["arguments"]
            kind = "response.function_call_arguments.delta"
            rows += [{"type": kind, "delta": half, **at} for half in (text[:2], text[2:])]
        case _:
            begun = {**item, "summary": []}
            for number, row in enumerate(item["summary"]):
                here = {"summary_index": number, **at}
                rows.append(
                    {
                        "type": "response.reasoning_summary_part.added",
                        "part": {"type": "summary_text", "text": ""},
                        **here,
                    }
                )
                rows.append(
                    {"type": "response.reasoning_summary_text.delta", "delta": row["text"], **here}
                )
    added = {"type": "response.output_item.added", "output_index": place, "item": begun}
    return [
        added,
        *rows,
        {"type": "response.output_item.done", "output_index": place, "item": item},
    ]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(lambda _: Answer(response(WORDS))) as running:
        yield running


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> ProviderModel:
    info = ModelInfo("openai/gpt-5-mini", "openai", "gpt-5-mini", "openai", endpoint=server.url)
    return build_model(
        Provider("openai", "", "openai", api_key="key-1", api="responses"),
        info,
        connections,
        waits.policy(),
    )


async def test_a_whole_response_is_read(model: ProviderModel, server: ModelServer) -> None:
    server.push(Answer(response(THOUGHT, WORDS)))
    chunks, reply = await collect(model, ask("Hello"))
    assert chunks == []
    thought, words = reply.parts
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.provider) == ("Look it up.\n\nThen tell.", "openai")
    assert words == TextPart("Ciao!")
    assert reply.usage == Usage(30, 9, 10, 0, 4)
    assert (reply.finish, reply.model) == ("stop", "gpt-5-mini-2025")


async def test_the_server_receives_this_request(model: ProviderModel, server: ModelServer) -> None:
    settings = ModelSettings(
        temperature=0.7,
        max_output_tokens=300,
        parallel_tool_calls=False,
        reasoning_effort="low",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}},
        },
        extra={"verbosity": "low", "strict": True, "prompt_cache_key": "k"},
    )
    messages = (
        "Weather?",
        said("assistant", "I look.", weather_call()),
        said("tool", weather_return()),
        said("user", "And here?", ImagePart("image/png", data="QUJD")),
    )
    await whole_reply(
        model,
        ask(
            *messages,
            tools=[WEATHER, CLOCK],
            forced_tool="get_weather",
            user_id="u",
            settings=settings,
        ),
    )
    seen = server.requests[0]
    assert seen.path == "/v1/responses"
    assert seen.headers["authorization"] == "Bearer key-1"
    body = seen.body
    assert body["input"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look."},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Rome"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "And here?"},
                {
                    "type": "input_image",
                    "image_url": "data:image/png;base64,QUJD",
                    "detail": "auto",
                },
            ],
        },
    ]
    weather, clock = body.pop("tools")
    assert (weather["type"], weather["name"], weather["strict"]) == (
        "function",
        "get_weather",
        True,
    )
    assert weather["parameters"]["additionalProperties"] is False
    assert clock["name"] == "get_time"
    del body["input"]
    assert body == {
        "model": "gpt-5-mini",
        "stream": False,
        "store": False,
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 300,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
            "verbosity": "low",
        },
        "user": "u",
        "prompt_cache_key": "k",
    }


@pytest.mark.parametrize("streams", [False, True])
async def test_reasoning_is_sent_back_unchanged_and_in_its_place(
    streams: bool, model: ProviderModel, server: ModelServer
) -> None:
    hidden = {**THOUGHT, "id": "rs_0", "summary": []}
    items = (hidden, called(), THOUGHT, called("get_time", "{}", "call_2"))
    server.push(streamed(*items) if streams else Answer(response(*items)))
    _, reply = await collect(model, ask("x", tools=[WEATHER, CLOCK], stream=streams))
    assert reply.finish == "tool_calls"
    returns = said("tool", weather_return(), weather_return("call_2"))
    await whole_reply(
        model, ask("x", said("assistant", *reply.parts), returns, tools=[WEATHER, CLOCK])
    )
    assert server.requests[1].body["input"][2:6] == [
        {**KEPT, "id": "rs_0", "summary": []},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Rome"}',
        },
        KEPT,
        {"type": "function_call", "call_id": "call_2", "name": "get_time", "arguments": "{}"},
    ]


async def test_each_model_receives_only_the_settings_it_supports(
    server: ModelServer, connections: Connections, waits: Waits
) -> None:
    settings = ModelSettings(temperature=0.7, reasoning_effort="low", extra={"verbosity": "low"})
    for name, taken in (
        ("o4-mini", {"reasoning"}),
        ("gpt-5-mini", {"reasoning", "text"}),
        ("gpt-4.1", {"temperature"}),
        ("qwen3", {"reasoning", "temperature"}),
    ):
        info = ModelInfo(f"openai/{name}", "openai", name, "openai", endpoint=server.url)
        await whole_reply(
            build_model(
                Provider("openai", "", "openai", api="responses"), info, connections, waits.policy()
            ),
            ask("x", settings=settings),
        )
        assert {"reasoning", "temperature", "text"} & set(server.requests[-1].body) == taken, name


async def test_reasoning_of_other_providers_and_unfinished_reasoning_is_not_sent(
    model: ProviderModel, server: ModelServer
) -> None:
    other = ReasoningPart("Secret.", signature="sig", provider="anthropic")
    chat = ReasoningPart("Said in chat.", provider="openai")
    server.push(Answer(response(THOUGHT, WORDS)))
    own = (await whole_reply(model, ask("x"))).parts[0]
    await whole_reply(
        model, ask("x", said("assistant", other, chat, "Hm."), "y", said("assistant", own), "z")
    )
    contents = [item.get("content") for item in server.requests[1].body["input"]]
    assert contents == ["Be kind.", "x", "Hm.", "y", "z"]


async def test_a_stream_brings_chunks_and_then_the_whole_reply(
    model: ProviderModel, server: ModelServer
) -> None:
    server.push(streamed(THOUGHT, WORDS))
    chunks, reply = await collect(model, ask("x", stream=True))
    assert [type(chunk) for chunk in chunks] == [ReasoningChunk] * 3 + [TextChunk] * 2
    assert joined(chunks) == as_joined(reply)
    assert server.requests[0].body["stream"] is True
    assert reply.usage == Usage(30, 9, 10, 0, 4)


async def test_a_last_event_without_its_output_is_completed(
    model: ProviderModel, server: ModelServer
) -> None:
    server.push(streamed(WORDS, output=[]))
    assert (await whole_reply(model, ask("x", stream=True))).parts == (TextPart("Ciao!"),)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_an_incomplete_response_has_its_reason_as_finish(
    reason: str, finish: str, streams: bool, model: ProviderModel, server: ModelServer
) -> None:
    more: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    whole = Answer(response(WORDS, **more))
    server.push(streamed(WORDS, end="response.incomplete", **more) if streams else whole)
    assert (await whole_reply(model, ask("x", stream=streams))).finish == finish


async def test_a_refusal_is_text(model: ProviderModel, server: ModelServer) -> None:
    refused = {**WORDS, "content": [{"type": "refusal", "refusal": "No."}]}
    server.push(Answer(response(refused)))
    assert (await whole_reply(model, ask("x"))).parts == (TextPart("No."),)


@pytest.mark.parametrize(
    ("answer", "kind", "calls"),
    [
        (Answer({"error": {"message": "no", "code": "invalid_api_key"}}, 401), "llm_authentication", 1),
        (Answer(response(status="failed", error={"code": "rate_limit_exceeded", "message": "slow"})), "llm_rate_limit", 4),
        (streamed(WORDS, end=None), "llm_error", 4),
        (
            Answer(
                pieces=(event({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}),),
                headers={"content-type": "text/event-stream"},
            ),
            "llm_rate_limit",
            4,
        ),
        (streamed(end="response.failed", status="failed", error={"code": "server_error", "message": "oops"}), "llm_error", 4),
        (Answer({"object": "chat.completion", "choices": []}), "llm_error", 1),
    ],
)  # fmt: skip
async def test_each_failure_has_its_kind_and_number_of_calls(
    answer: Answer, kind: str, calls: int, model: ProviderModel, server: ModelServer
) -> None:
    server.push(*[answer] * 5)
    with pytest.raises(ModelError) as caught:
        await collect(model, ask("x", stream=answer.pieces is not None))
    assert caught.value.kind == kind
    assert len(server.requests) == calls
