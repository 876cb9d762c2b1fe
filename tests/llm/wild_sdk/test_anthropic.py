"""Anthropic's messages, asked with its real client.

Shapes follow anthropic 2.12.0: `types/beta/beta_message.py`,
`types/beta/beta_raw_message_stream_event.py`, `types/beta/beta_stop_reason.py`, and the streams in
its public tests, `tests/lib/streaming/fixtures`. Refusals follow Anthropic's pages on errors, on
tool use, and on extended thinking.
"""

import json
import re
from typing import Any

import pytest

from ricordo.domain.message import Message, ReasoningPart, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelSettings, ReasoningChunk, Restarted, TextChunk
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, whole_reply
from tests.llm.talk import (
    CLOCK,
    HISTORIES,
    WEATHER,
    Waits,
    ask,
    claude_at,
    collect,
    said,
    weather_call,
    weather_return,
)
from tests.llm.wild.openai_shapes import as_joined, joined
from tests.support.model_server import Answer, ModelServer, claude, claude_stream, event

THINKING = {"type": "thinking", "thinking": "Rome, then.", "signature": "sig-1"}
REDACTED = {"type": "redacted_thinking", "data": "secret-1"}
TEXT = {"type": "text", "text": "I look."}
CALL = {"type": "tool_use", "id": "toolu_a", "name": "get_weather", "input": {"city": "Rome"}}
CALL_B = {"type": "tool_use", "id": "toolu_b", "name": "get_time", "input": {}}
THOUGHT = ReasoningPart("Rome, then.", signature="sig-1", provider="anthropic")
HIDDEN = ReasoningPart("", redacted="secret-1", provider="anthropic")
# A model that always thinks, signs its thoughts, cannot be forced to call a tool, and takes no
# temperature.
BINDING = "claude-opus-5-5"
PING = event({"type": "ping"}, "ping")


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    return claude_at(server, connections, waits)


def problems(body: dict[str, Any]) -> list[str]:
    """Return the faults for which Anthropic would refuse a request.

    The rules are those of its pages and errors.
    """
    found: list[str] = []
    messages = body["messages"]
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        found.append("it must begin and end with the user")
    ids: set[str] = set()
    open_calls: list[str] = []
    for message in messages:
        blocks = (
            message["content"]
            if isinstance(message["content"], list)
            else [{"type": "text", "text": message["content"]}]
        )
        if not blocks:
            found.append("an empty message")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(open_calls):
            found.append(f"calls {open_calls} have results {results}")
        if results and [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(
            results
        ):
            found.append("results must come first")
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            found += _block_problems(block, ids)
    if open_calls:
        found.append("calls without results at the end")
    if body.get("thinking", {}).get("type") == "enabled":
        found += _thinking_problems(body)
    return found


def _block_problems(block: dict[str, Any], ids: set[str]) -> list[str]:
    found = []
    inner = (
        block["content"]
        if block["type"] == "tool_result" and isinstance(block["content"], list)
        else [block]
    )
    if any(each["type"] == "text" and not each["text"].strip() for each in inner):
        found.append("text content blocks must contain non-whitespace text")
    if block["type"] == "tool_result" and block["content"] in ("", []):
        found.append("an empty result")
    if block["type"] == "tool_use":
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]) or not re.fullmatch(
            r"[a-zA-Z0-9_-]+", block["id"]
        ):
            found.append("a name or id with other signs")
        if block["id"] in ids:
            found.append("`tool_use` ids must be unique")
        ids.add(block["id"])
        if not isinstance(block["input"], dict):
            found.append("input must be an object")
    if block["type"] == "thinking" and not block["signature"]:
        found.append("a thought without a signature")
    return found


def _thinking_problems(body: dict[str, Any]) -> list[str]:
    found = []
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        found.append("Thinking may not be enabled when tool_choice forces tool use.")
    if "temperature" in body or body["thinking"]["budget_tokens"] >= body["max_tokens"]:
        found.append("temperature, or a budget as large as the limit")
    last = next((each for each in reversed(body["messages"]) if each["role"] == "assistant"), None)
    calls = last is not None and any(block["type"] == "tool_use" for block in last["content"])
    if last and calls and last["content"][0]["type"] not in ("thinking", "redacted_thinking"):
        found.append("a final assistant message must start with a thinking block")
    return found


# Requests.


async def test_thoughts_are_sent_back_unchanged_over_many_steps(
    model: ChatModel, server: ModelServer
) -> None:
    first = said("assistant", THOUGHT, HIDDEN, "I look.", weather_call("toolu_a"))
    second = said("assistant", HIDDEN, ToolCallPart("toolu_b", "get_time", "{}"))
    results = (
        said("tool", weather_return("toolu_a")),
        said("tool", ToolReturnPart("toolu_b", "get_time", "error", "no")),
    )
    settings = ModelSettings(max_reasoning_tokens=2_000)
    request = ask(
        "Weather?", first, results[0], second, results[1], tools=[WEATHER, CLOCK], settings=settings
    )
    await whole_reply(model, request)
    body = server.requests[0].body
    assert [
        message["content"] for message in body["messages"] if message["role"] == "assistant"
    ] == [
        [THINKING, REDACTED, TEXT, CALL],
        [REDACTED, CALL_B],
    ]
    assert body["thinking"]["type"] == "enabled"
    assert problems(body) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answers_blocks_are_sent_back_unchanged(
    model: ChatModel, server: ModelServer, stream: bool
) -> None:
    blocks: list[dict[str, Any]] = [THINKING, REDACTED, TEXT, CALL, CALL_B]
    server.push((claude_stream if stream else claude)(*blocks, stop="tool_use"))
    chunks, reply = await collect(model, ask("x", tools=[WEATHER, CLOCK], stream=stream))
    assert joined(chunks) == (as_joined(reply) if stream else ("", "", []))
    assert reply.usage.prompt_tokens == 20
    returns = said(
        "tool", weather_return("toolu_a"), ToolReturnPart("toolu_b", "get_time", "success", "noon")
    )
    await whole_reply(
        model, ask("x", said("assistant", *reply.parts), returns, tools=[WEATHER, CLOCK])
    )
    body = server.requests[1].body
    assert body["messages"][1]["content"] == blocks
    assert problems(body) == []


@pytest.mark.parametrize("provider", ["openai", "google_ai", "mine", None])
async def test_reasoning_of_another_provider_is_left_out(
    model: ChatModel, server: ModelServer, provider: str | None
) -> None:
    foreign = (
        ReasoningPart("mine", signature="foreign", provider=provider),
        ReasoningPart("", redacted="f", provider=provider),
    )
    await whole_reply(model, ask("A", said("assistant", *foreign, "B"), "C"))
    assert server.requests[0].body["messages"][1]["content"] == [{"type": "text", "text": "B"}]


async def test_claude_is_not_asked_to_think_after_a_call_without_its_own_thought(
    model: ChatModel, server: ModelServer
) -> None:
    settings = ModelSettings(max_reasoning_tokens=2_000)
    foreign = said(
        "assistant",
        ReasoningPart("mine", signature="s", provider="openai"),
        weather_call("toolu_a"),
    )
    await whole_reply(
        model,
        ask(
            "x",
            foreign,
            said("tool", weather_return("toolu_a")),
            tools=[WEATHER],
            settings=settings,
        ),
    )
    await whole_reply(
        model, ask("x", said("assistant", "Done."), "y", tools=[WEATHER], settings=settings)
    )
    refused, thinks = (seen.body for seen in server.requests)
    assert "thinking" not in refused
    assert thinks["thinking"]["type"] == "enabled"
    assert problems(refused) == problems(thinks) == []


@pytest.mark.parametrize("forced", [{"tool_choice": "required"}, {"forced_tool": "get_weather"}])
async def test_a_model_that_cannot_be_forced_to_call_a_tool_may_choose(
    server: ModelServer, connections: Connections, waits: Waits, forced: dict[str, Any]
) -> None:
    model = claude_at(server, connections, waits, BINDING)
    await whole_reply(
        model, ask("x", tools=[WEATHER], settings=ModelSettings(temperature=0.5), **forced)
    )
    body = server.requests[0].body
    assert body["tool_choice"]["type"] == "auto"
    assert "temperature" not in body


@pytest.mark.parametrize(
    "settings",
    [
        ModelSettings(),
        ModelSettings(reasoning_effort="high"),
        ModelSettings(max_reasoning_tokens=5_000),
    ],
)
async def test_claude_is_told_to_drop_thoughts_bound_to_a_changed_prompt(
    server: ModelServer, connections: Connections, waits: Waits, settings: ModelSettings
) -> None:
    model = claude_at(server, connections, waits, BINDING)
    await whole_reply(model, ask("A", said("assistant", THOUGHT, "B"), "C", settings=settings))
    seen = server.requests[0]
    assert seen.body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert seen.body["thinking"]["type"] == "adaptive"
    assert "thinking-binding-controls" in seen.headers["anthropic-beta"]


async def test_thinking_can_be_switched_off_for_a_model_that_thinks_by_default(
    server: ModelServer, connections: Connections, waits: Waits
) -> None:
    model = claude_at(server, connections, waits, "claude-sonnet-5")
    await whole_reply(model, ask("x", settings=ModelSettings(reasoning_effort="none")))
    assert server.requests[0].body["thinking"] == {"type": "disabled"}


async def test_a_long_answer_can_be_requested_without_streaming(
    model: ChatModel, server: ModelServer
) -> None:
    # Without our time-out the client refuses requests that may take longer than ten minutes.
    await whole_reply(model, ask("x", settings=ModelSettings(max_output_tokens=64_000)))
    assert server.requests[0].body["max_tokens"] == 64_000


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize(
    "settings", [ModelSettings(), ModelSettings(max_reasoning_tokens=2_000)], ids=["", "thinks"]
)
async def test_every_history_becomes_a_valid_request(
    model: ChatModel,
    server: ModelServer,
    history: tuple[Message | str, ...],
    settings: ModelSettings,
) -> None:
    await whole_reply(model, ask(*history, tools=[WEATHER, CLOCK], settings=settings))
    assert problems(server.requests[0].body) == []


async def test_results_stay_with_their_calls_when_ids_repeat(
    model: ChatModel, server: ModelServer
) -> None:
    await whole_reply(model, ask(*HISTORIES["one id again and again"], tools=[WEATHER]))
    _, one, rain, two, sun = server.requests[0].body["messages"]
    assert one["content"][0]["id"] == rain["content"][0]["tool_use_id"] == "call_0"
    assert two["content"][0]["id"] == sun["content"][0]["tool_use_id"] != "call_0"
    assert [each["content"][0]["content"][0]["text"] for each in (rain, sun)] == ["rain", "sun"]


async def test_a_longer_request_begins_with_the_same_bytes_for_the_cache(
    model: ChatModel, server: ModelServer
) -> None:
    history = HISTORIES["ids that others give"]
    await whole_reply(model, ask(*history, tools=[WEATHER]))
    await whole_reply(model, ask(*history, said("assistant", "B"), "C", tools=[WEATHER]))
    first, second = (seen.body for seen in server.requests)
    marked = {"type": "ephemeral", "ttl": "5m"}
    assert (
        first["system"]
        == second["system"]
        == [{"type": "text", "text": "Be kind.", "cache_control": marked}]
    )
    assert first["tools"] == second["tools"]
    assert first["tools"][-1]["cache_control"] == marked
    ends = [body["messages"][-1]["content"][-1].pop("cache_control") for body in (first, second)]
    assert ends == [marked, marked], "the end of the conversation is marked too"
    assert json.dumps(second["messages"]).startswith(json.dumps(first["messages"])[:-1])


# Responses.


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_without_text_has_the_content_filter_finish(
    model: ChatModel, server: ModelServer, stream: bool
) -> None:
    server.push((claude_stream if stream else claude)(stop="refusal"))
    _, reply = await collect(model, ask("x", stream=stream))
    assert (reply.parts, reply.finish) == ((), "content_filter")


async def test_pings_and_unknown_events_are_ignored(model: ChatModel, server: ModelServer) -> None:
    stream = claude_stream(THINKING, TEXT)
    pieces = stream.pieces or ()
    strange = event({"type": "weather_report", "sky": "blue"}, "weather_report")
    server.push(
        Answer(pieces=(pieces[0], PING, strange, PING, *pieces[1:]), headers=stream.headers)
    )
    chunks, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (THOUGHT, TextPart("I look."))
    assert Restarted() not in chunks


async def test_a_call_cut_by_the_length_limit_is_reported_to_the_model_and_repeated(
    model: ChatModel, server: ModelServer
) -> None:
    stream = claude_stream(CALL, stop="max_tokens")
    pieces = [piece for piece in stream.pieces or () if b'"input_json_delta"' not in piece]
    cut = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": '{"city": "Ro'},
    }
    pieces.insert(2, event(cut, "content_block_delta"))
    server.push(Answer(pieces=tuple(pieces), headers=stream.headers))
    server.push(claude_stream(TEXT))
    chunks, reply = await collect(model, ask("x", tools=[WEATHER], stream=True))
    assert reply.parts == (TextPart("I look."),)
    assert Restarted() in chunks
    assert "toolu_a" in str(server.requests[-1].body["messages"])


@pytest.mark.parametrize("kept", range(1, 6))
async def test_a_stream_cut_anywhere_is_restarted(
    model: ChatModel, server: ModelServer, waits: Waits, kept: int
) -> None:
    whole = claude_stream(THINKING)
    cut = Answer(pieces=(whole.pieces or ())[:kept], headers=whole.headers)
    server.push(cut, claude_stream(THINKING, TEXT))
    chunks, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (THOUGHT, TextPart("I look."))
    assert len(waits) == 1
    after = chunks[chunks.index(Restarted()) + 1 :] if Restarted() in chunks else chunks
    assert "".join(each.text for each in after if isinstance(each, ReasoningChunk)) == "Rome, then."
    assert "".join(each.text for each in after if isinstance(each, TextChunk)) == "I look."


@pytest.mark.parametrize(
    ("kind", "words", "expected", "tries"),
    [
        ("overloaded_error", "Overloaded", "llm_error", 4),
        ("rate_limit_error", "slow down", "llm_rate_limit", 4),
        (
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "context_window_exceeded",
            1,
        ),
        ("request_too_large", "Request exceeds the maximum size", "context_window_exceeded", 1),
        ("authentication_error", "invalid x-api-key", "llm_authentication", 1),
    ],
)
async def test_an_error_in_the_stream_is_handled_like_one_before_it(
    model: ChatModel, server: ModelServer, kind: str, words: str, expected: str, tries: int
) -> None:
    fault = event({"type": "error", "error": {"type": kind, "message": words}}, "error")
    server.push(*[claude_stream(TEXT, stop=None, tail=(fault,))] * 4)
    with pytest.raises(ModelError, match=words) as caught:
        await collect(model, ask("x", stream=True))
    assert caught.value.kind == expected
    assert len(server.requests) == tries
