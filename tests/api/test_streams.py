"""Answers as server-sent events, over HTTP: the bytes themselves, and what the official client makes of them."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from letta_client import APIStatusError
from letta_client.types import AgentState

from ricordo.domain.ids import is_id
from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.seams.server import PIECES, Gate, ServerInThread, StrictLetta, events_of

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
USAGE = Usage(10, 4, 3, None, 2)


@pytest.fixture
def pieces_agent(client: StrictLetta) -> AgentState:
    """An agent whose model streams the pieces a test chose."""
    return client.agents.create(model=PIECES, memory_blocks=[{"label": "human", "value": "Ada"}])


def stream(http: httpx2.Client, agent: AgentState, path: str = "messages/stream", **body: Any) -> list[Any]:
    """The events of one answer, as (name, value)."""
    answer = http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Hello.", **body})
    assert answer.status_code == 200
    return events_of(answer.text)


def kinds(events: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else value["message_type"] for _, value in events]


@pytest.mark.parametrize(
    ("path", "body"),
    [("messages/stream", {}), ("messages/stream", {"streaming": True}), ("messages", {"streaming": True})],
)
def test_a_stream_is_ping_messages_stop_reason_usage_and_done(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, path: str, body: dict[str, Any]
) -> None:
    server.says(call("memory_insert", label="human", new_string="x"), ModelReply((TextPart("Done."),), USAGE))

    answer = http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Hello.", **body})

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert re.fullmatch(rb"(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n", answer.content)
    events = events_of(answer.text)
    assert kinds(events) == [
        "ping",
        "tool_call_message",
        "tool_return_message",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
        "[DONE]",
    ]
    ping, *messages, reason, usage = [value for _, value in events[:-1]]
    assert re.fullmatch(r"ping-[0-9a-f-]{36}", ping["id"])
    assert is_id(ping["run_id"], "run")
    assert DATE.fullmatch(ping["date"])
    assert ping["seq_id"] is None
    assert {message["run_id"] for message in messages} == {ping["run_id"]}
    assert reason == {"message_type": "stop_reason", "stop_reason": "end_turn"}
    assert (usage["step_count"], usage["run_ids"]) == (2, [ping["run_id"]])


def test_without_tokens_every_event_is_the_whole_message_that_is_stored(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    server.says(
        (ReasoningPart("Hm.", signature="proof"), TextPart("Let me note that."), *_calls("a", "b")),
        (ReasoningPart("", signature="proof"), ReasoningPart("", redacted="x"), TextPart("Done.")),
    )

    events = stream(http, agent, include_pings=False)

    listed = http.get(f"/v1/agents/{agent.id}/messages", params={"order": "asc"}).json()
    assert [value for _, value in events[:-3]] == listed[2:]
    assert isinstance(events[2][1]["tool_calls"], list)
    assert "ping" not in kinds(events)


def test_the_client_reads_a_stream_and_ends_at_done(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    server.says("Hello, Ada.", "Hello, Ada.", "Hello, Ada.")

    whole = list(client.agents.messages.create(agent.id, input="Hello.", streaming=True))
    deltas = list(client.agents.messages.create(agent.id, input="Hello.", streaming=True, stream_tokens=True))
    with pytest.deprecated_call():
        older = list(client.agents.messages.stream(agent.id, input="Hello.", include_pings=False))

    assert [event.message_type for event in whole] == ["ping", "assistant_message", "stop_reason", "usage_statistics"]
    assert whole[1].content == "Hello, Ada."  # type: ignore[union-attr]
    assert [event.message_type for event in older] == ["assistant_message", "stop_reason", "usage_statistics"]
    said = [event for event in deltas if event.message_type == "assistant_message"]
    assert [event.content for event in said] == ["Hello, ", "Ada."]
    assert len({(event.id, event.otid) for event in said}) == 1


async def test_the_asynchronous_client_reads_a_stream_too(server: ServerInThread, agent: AgentState) -> None:
    server.says(call("memory_insert", label="human", new_string="x"), "Hello, Ada.")

    async with server.async_client() as client:
        events = [
            event
            async for event in await client.agents.messages.create(
                agent.id, input="Hello.", streaming=True, stream_tokens=True, include_pings=False
            )
        ]
        listed = [message.message_type async for message in client.agents.messages.list(agent.id, limit=2)]

    assert "".join(event.content for event in events if event.message_type == "assistant_message") == "Hello, Ada."
    assert len(listed) == 5


def _calls(*names: str) -> list[ToolCallPart]:
    return [ToolCallPart(f"call-{name}", "conversation_search", f'{{"query": "{name}"}}') for name in names]


def _letters(calls: list[ToolCallPart]) -> Iterator[Chunk]:
    """Several calls at once, their arguments letter by letter in turn; id and name come first."""
    for index, one in enumerate(calls):
        yield ToolCallChunk(index, "", one.call_id, one.name)
    for place in range(max(len(one.arguments) for one in calls)):
        for index, one in enumerate(calls):
            if letter := one.arguments[place : place + 1]:
                yield ToolCallChunk(index, letter)


def add_up(events: list[Any]) -> dict[str, Any]:
    """What a client that adds deltas up ends with: texts by message, calls by their id."""
    texts: dict[tuple[str, str], str] = {}
    calls: dict[str, dict[str, str]] = {}
    for _, value in events:
        if not isinstance(value, dict):
            continue
        if value["message_type"] in ("assistant_message", "reasoning_message"):
            field = "content" if value["message_type"] == "assistant_message" else "reasoning"
            key = (value["id"], value["message_type"])
            texts[key] = texts.get(key, "") + value[field]
        elif value["message_type"] == "tool_call_message":
            delta = value["tool_calls"]
            assert value["tool_call"] == delta
            assert isinstance(delta, dict)
            assert None not in delta.values()
            one = calls.setdefault(delta["tool_call_id"], {"name": "", "arguments": ""})
            one["name"] += delta.get("name", "")
            one["arguments"] += delta.get("arguments", "")
    return {"texts": texts, "calls": calls}


def test_deltas_add_up_exactly_to_what_is_stored(
    http: httpx2.Client, server: ServerInThread, pieces_agent: AgentState
) -> None:
    calls = _calls("tea", "coffee, if there is any", "é")
    parts: tuple[Part, ...] = (ReasoningPart("Let me think."), TextPart("I will look."), *calls)
    chunks: list[Chunk] = [*map(ReasoningChunk, "Let me think."), *map(TextChunk, "I will look."), *_letters(calls)]
    server.pieces.answers.append((chunks, ModelReply(parts, USAGE, "tool_calls")))
    server.pieces.answers.append(([TextChunk("Do"), TextChunk("ne.")], ModelReply((TextPart("Done."),), USAGE)))

    events = stream(http, pieces_agent, stream_tokens=True)

    told = add_up(events)
    listed = http.get(f"/v1/agents/{pieces_agent.id}/messages", params={"order": "asc"}).json()[2:]
    thought, said, called, result, done = listed
    assert told["texts"] == {
        (thought["id"], "reasoning_message"): "Let me think.",
        (said["id"], "assistant_message"): "I will look.",
        (done["id"], "assistant_message"): "Done.",
    }
    assert [{"tool_call_id": id, **one} for id, one in told["calls"].items()] == called["tool_calls"]
    assert [value for _, value in events if value == result] == [result]
    assert kinds(events)[-3:] == ["stop_reason", "usage_statistics", "[DONE]"]
    call_chunks = [chunk for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    assert kinds(events).count("tool_call_message") == len(call_chunks)
    for one in (thought, said, done):
        deltas = [value for _, value in events if isinstance(value, dict) and value.get("id") == one["id"]]
        assert one["otid"] in {delta["otid"] for delta in deltas}
        assert all(DATE.fullmatch(delta["date"]) for delta in deltas)


def test_a_speaking_tool_is_told_as_what_it_says_while_it_says_it(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, pieces_agent: AgentState
) -> None:
    speech = client.tools.list(name="send_message").items[0]
    client.agents.tools.attach(speech.id, agent_id=pieces_agent.id)

    def ask(**body: Any) -> list[Any]:
        one = ToolCallPart("call-1", "send_message", '{"message": "Hello, Ada."}')
        server.pieces.answers.append((list(_letters([one])), ModelReply((one,), USAGE, "tool_calls")))
        server.pieces.answers.append(([], ModelReply((TextPart("Done."),), USAGE)))
        return stream(http, pieces_agent, stream_tokens=True, include_pings=False, **body)

    spoken = ask()
    *deltas, returned = spoken[: kinds(spoken).index("tool_return_message") + 1]
    assert [delta["content"] for _, delta in deltas] == list("Hello, Ada.")
    listed = http.get(f"/v1/agents/{pieces_agent.id}/messages", params={"order": "asc"}).json()
    assert {(delta["id"], delta["otid"]) for _, delta in deltas} == {(listed[2]["id"], listed[2]["otid"])}
    assert returned[1] == listed[3]
    assert "tool_call_message" not in kinds(spoken)
    called = add_up(ask(use_assistant_message=False))["calls"]
    assert called == {"call-1": {"name": "send_message", "arguments": '{"message": "Hello, Ada."}'}}


def test_only_the_types_that_are_wanted_are_streamed(
    http: httpx2.Client, server: ServerInThread, pieces_agent: AgentState
) -> None:
    (one,) = _calls("tea")
    chunks = [ReasoningChunk("Hm."), *_letters([one])]
    server.pieces.answers.append((chunks, ModelReply((ReasoningPart("Hm."), one), USAGE, "tool_calls")))
    server.pieces.answers.append(([TextChunk("Done.")], ModelReply((TextPart("Done."),), USAGE)))

    events = stream(
        http, pieces_agent, stream_tokens=True, include_return_message_types=["assistant_message", "reasoning_message"]
    )

    wanted = ["ping", "reasoning_message", "assistant_message", "stop_reason", "usage_statistics", "[DONE]"]
    assert kinds(events) == wanted


@pytest.mark.parametrize("tokens", [False, True])
def test_an_error_ends_the_stream_in_its_own_event(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState, tokens: bool
) -> None:
    server.says(*[ModelError("llm_rate_limit", "Slow down.")] * 2)

    answer = http.post(f"/v1/agents/{agent.id}/messages/stream", json={"input": "Hello.", "stream_tokens": tokens})

    assert answer.status_code == 200
    assert b"\n\nevent: error\ndata: {" in answer.content
    assert answer.content.endswith(b"}\n\ndata: [DONE]\n\n")
    ping, reason, (name, error), done = events_of(answer.text)
    assert reason == (None, {"message_type": "stop_reason", "stop_reason": "llm_api_error"})
    assert name == "error"
    assert error == {
        "message_type": "error_message",
        "run_id": ping[1]["run_id"],
        "error_type": "llm_rate_limit",
        "message": "Slow down.",
        "detail": None,
        "seq_id": None,
    }
    assert done == (None, "[DONE]")

    seen: list[str | None] = []
    answers = client.agents.messages.create(agent.id, input="Hello.", streaming=True, stream_tokens=tokens)
    with pytest.raises(APIStatusError) as caught:
        seen.extend(event.message_type for event in answers)
    assert seen == ["ping", "stop_reason"]
    assert caught.value.body["error_type"] == "llm_rate_limit"  # type: ignore[index]


def test_an_error_of_ours_never_shows_its_insides(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    server.says(RuntimeError("secret words of a broken driver"))

    events = stream(http, agent)

    assert events[-2][1]["error_type"] == "internal_error"
    assert events[-2][1]["message"] == "An unknown error occurred"
    assert "secret" not in str(events)
    assert "Traceback" not in str(events)


def test_a_silent_stream_is_kept_alive(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.runtime.settings, "keepalive", 0.05)
    gate = Gate(server)
    server.answers_with(gate)

    lines: list[str] = []
    with http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json={"input": "Hello."}) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if sum('"ping"' in one for one in lines) == 3:
                gate.open()

    events = events_of("\n".join(lines).strip())
    pings = [value for _, value in events if isinstance(value, dict) and value["message_type"] == "ping"]
    assert len(pings) >= 3
    assert len({ping["id"] for ping in pings}) == len(pings)
    assert len({ping["run_id"] for ping in pings}) == 1
    assert kinds(events)[len(pings) :] == ["assistant_message", "stop_reason", "usage_statistics", "[DONE]"]


def test_a_silent_stream_without_pings_stays_silent(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.runtime.settings, "keepalive", 0.02)
    gate = Gate(server)
    server.answers_with(gate)

    threading.Timer(0.1, gate.open).start()

    assert "ping" not in kinds(stream(http, agent, include_pings=False))


def test_leaving_a_stream_does_not_cancel_the_turn(
    client: StrictLetta,
    http: httpx2.Client,
    server: ServerInThread,
    agent: AgentState,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server.runtime.settings, "keepalive", 0.02)
    gate = Gate(server)
    server.answers_with(gate)
    with http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json={"input": "Hello."}) as answer:
        lines = answer.iter_lines()
        assert '"ping"' in next(lines)
        gate.wait()
    time.sleep(0.1)  # the server notices that nobody listens at its next ping
    (run,) = client.runs.list(agent_id=agent.id).items
    assert run.status == "running"
    gate.open()

    _wait_for_end(server, run.id)

    assert client.runs.retrieve(run.id).status == "completed"
    assert client.agents.messages.list(agent.id, limit=1).items[0].content == "Here I am."  # type: ignore[union-attr]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


def test_a_second_reader_with_the_same_otid_joins_the_running_turn(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    body = {"messages": [{"role": "user", "content": "Hello.", "otid": "otid-1"}]}
    path = f"/v1/agents/{agent.id}/messages/stream"
    with http.stream("POST", path, json=body) as first, http.stream("POST", path, json=body) as second:
        gate.open()
        events = [events_of(answer.read().decode()) for answer in (first, second)]

    assert kinds(events[0]) == ["ping", "assistant_message", "stop_reason", "usage_statistics", "[DONE]"]
    assert [value for _, value in events[1]][1:] == [value for _, value in events[0]][1:]
    assert events[1][0][1]["run_id"] == events[0][0][1]["run_id"]
    assert len(server.model.requests) == 1


def test_options_of_a_stream_need_a_stream(http: httpx2.Client, server: ServerInThread, agent: AgentState) -> None:
    rows = server.rows()

    refused = http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello.", "stream_tokens": True})

    assert refused.status_code == 422
    assert "Streaming options set without streaming enabled." in refused.json()["detail"]
    assert server.rows() == rows


def _wait_for_end(server: ServerInThread, run_id: str) -> None:
    async def wait() -> None:
        if live := server.runtime.live.get(run_id):
            await live.wait()

    server.run(wait())
