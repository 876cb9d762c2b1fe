"""Answers as server-sent events over HTTP: bytes, the official client, resuming."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from letta_client import APIStatusError
from letta_client.types import AgentState
from pydantic import SecretStr

from ricordo.agents.callbacks import signing_key
from ricordo.domain.ids import is_id
from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, TextChunk
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.storage import runs
from tests.api.conftest import Api
from tests.seams.http import refused
from tests.seams.server import LIMIT, PIECES, Gate, ServerInThread, events_of, serving
from tests.support import postgres
from tests.support.json_server import JsonServer

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
USAGE = Usage(10, 4, 3, None, 2)


def stream(
    http: httpx2.Client, agent: AgentState, path: str = "messages/stream", **body: Any
) -> list[Any]:
    answer = http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Hello.", **body})
    assert answer.status_code == 200
    return events_of(answer.text)


def kinds(events: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else value["message_type"] for _, value in events]


@pytest.mark.parametrize(
    ("path", "body"), [("messages/stream", {}), ("messages", {"streaming": True})]
)
def test_a_stream_has_a_ping_messages_the_stop_reason_usage_and_done(
    api: Api, agent: AgentState, path: str, body: dict[str, Any]
) -> None:
    api.server.says(
        call("memory_insert", label="human", new_string="x"),
        ModelReply((TextPart("Done."),), USAGE),
    )

    answer = api.http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Hello.", **body})

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert re.fullmatch(rb"(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n", answer.content)
    events = events_of(answer.text)
    said = ["tool_call_message", "tool_return_message", "assistant_message"]
    assert kinds(events) == ["ping", *said, "stop_reason", "usage_statistics", "[DONE]"]
    ping, *messages, reason, usage = [value for _, value in events[:-1]]
    assert re.fullmatch(r"ping-[0-9a-f-]{36}", ping["id"])
    assert (is_id(ping["run_id"], "run"), bool(DATE.fullmatch(ping["date"])), ping["seq_id"]) == (
        True,
        True,
        None,
    )
    assert {message["run_id"] for message in messages} == {ping["run_id"]}
    assert reason == {"message_type": "stop_reason", "stop_reason": "end_turn"}
    assert (usage["step_count"], usage["run_ids"]) == (2, [ping["run_id"]])


def test_without_token_streaming_every_event_is_a_whole_stored_message(
    api: Api, agent: AgentState
) -> None:
    api.server.says(
        (ReasoningPart("Hm.", signature="proof"), TextPart("Let me note that."), *_calls("a", "b")),
        (ReasoningPart("", signature="proof"), ReasoningPart("", redacted="x"), TextPart("Done.")),
    )

    events = stream(api.http, agent, include_pings=False)

    listed = api.http.get(f"/v1/agents/{agent.id}/messages", params={"order": "asc"}).json()
    assert [value for _, value in events[:-3]] == listed[2:]
    assert isinstance(events[2][1]["tool_calls"], list)
    assert "ping" not in kinds(events)


async def test_the_official_clients_read_a_stream_until_done(api: Api, agent: AgentState) -> None:
    api.server.says(*["Hello, Ada."] * 4)

    whole = list(api.client.agents.messages.create(agent.id, input="Hello.", streaming=True))
    deltas = list(
        api.client.agents.messages.create(
            agent.id, input="Hello.", streaming=True, stream_tokens=True
        )
    )
    with pytest.deprecated_call():
        older = list(
            api.client.agents.messages.stream(agent.id, input="Hello.", include_pings=False)
        )

    assert [event.message_type for event in whole] == [
        "ping",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
    ]
    assert whole[1].content == "Hello, Ada."  # type: ignore[union-attr]
    assert [event.message_type for event in older] == [
        "assistant_message",
        "stop_reason",
        "usage_statistics",
    ]
    said = [event for event in deltas if event.message_type == "assistant_message"]
    assert [event.content for event in said] == ["Hello, ", "Ada."]
    assert len({(event.id, event.otid) for event in said}) == 1
    async with api.server.async_client() as other:
        answer = await other.agents.messages.create(
            agent.id, input="Hello.", streaming=True, stream_tokens=True
        )
        words = [
            event.content async for event in answer if event.message_type == "assistant_message"
        ]
    assert "".join(words) == "Hello, Ada."


def _calls(*names: str) -> list[ToolCallPart]:
    return [
        ToolCallPart(f"call-{name}", "conversation_search", f'{{"query": "{name}"}}')
        for name in names
    ]


def test_an_error_in_a_stream_raises_the_clients_exception(api: Api, agent: AgentState) -> None:
    api.server.says(ModelError("llm_rate_limit", "Slow down."))
    seen: list[str | None] = []
    answers = api.client.agents.messages.create(
        agent.id, input="Hello.", streaming=True, stream_tokens=True
    )
    with pytest.raises(APIStatusError) as caught:
        seen.extend(event.message_type for event in answers)
    assert seen == ["ping", "stop_reason"]
    assert caught.value.body["error_type"] == "llm_rate_limit"  # type: ignore[index]


def test_an_internal_error_shows_no_details_in_a_stream(api: Api, agent: AgentState) -> None:
    api.server.says(RuntimeError("secret words of a broken driver"))
    error = stream(api.http, agent)[-2][1]
    assert (error["error_type"], error["message"]) == (
        "internal_error",
        "An unknown error occurred",
    )
    assert not {"secret", "Traceback"} & set(str(error).split())


def test_disconnecting_from_a_stream_does_not_cancel_the_turn(
    api: Api, agent: AgentState, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(api.server.runtime.settings, "keepalive", 0.02)
    gate = Gate(api.server)
    api.server.answers_with(gate)
    with api.http.stream(
        "POST", f"/v1/agents/{agent.id}/messages/stream", json={"input": "Hello."}
    ) as answer:
        lines = answer.iter_lines()
        assert '"ping"' in next(lines)
        gate.wait()
    time.sleep(0.1)  # at its next ping the server notices that nobody listens
    (run,) = api.client.runs.list(agent_id=agent.id).items
    assert run.status == "running"
    gate.open()

    while api.client.runs.retrieve(run.id).status == "running":
        time.sleep(0.01)
    assert api.client.runs.retrieve(run.id).status == "completed"
    assert api.client.agents.messages.list(agent.id, limit=1).items[0].content == "Here I am."  # type: ignore[union-attr]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


def test_a_second_request_with_the_same_otid_joins_the_running_turn(
    api: Api, agent: AgentState
) -> None:
    gate = Gate(api.server)
    api.server.answers_with(gate)
    body = {"messages": [{"role": "user", "content": "Hello.", "otid": "otid-1"}]}
    path = f"/v1/agents/{agent.id}/messages/stream"
    with (
        api.http.stream("POST", path, json=body) as first,
        api.http.stream("POST", path, json=body) as second,
    ):
        gate.open()
        events = [events_of(answer.read().decode()) for answer in (first, second)]

    assert kinds(events[0]) == [
        "ping",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
        "[DONE]",
    ]
    assert [value for _, value in events[1]][1:] == [value for _, value in events[0]][1:]
    assert events[1][0][1]["run_id"] == events[0][0][1]["run_id"]
    assert len(api.server.model.requests) == 1


WORDS = [f"word {number} " for number in range(40)]


class Receiver(JsonServer):
    """A receiver of callbacks."""

    key_header, key_value = "content-type", "application/json"

    def __init__(self) -> None:
        super().__init__()
        self.was_told = threading.Event()

    def answer(self, _method: str, _parts: list[str], _body: Any) -> Any:
        """Accept every callback."""
        self.was_told.set()
        return {}

    def said_no(self, _status: int, words: str) -> Any:
        return {"detail": words}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ServerInThread, ServerInThread]]:
    """Two servers on one PostgreSQL."""
    url = postgres.server().new_database()
    with (
        serving(tmp_path / "one", database_url=SecretStr(url), database_connections=3) as one,
        serving(tmp_path / "two", database_url=SecretStr(url), database_connections=3) as two,
    ):
        yield one, two
    postgres.server().drop(url)


def agent_on(server: ServerInThread, model: str = PIECES) -> str:
    server.pieces.answers.append(
        ([TextChunk(word) for word in WORDS], ModelReply((TextPart("".join(WORDS)),)))
    )
    with server.http() as http:
        return str(http.post("/v1/agents/", json={"model": model}).json()["id"])


def read_first_events(
    http: httpx2.Client, path: str, body: dict[str, Any], most: int
) -> list[bytes]:
    """Return the first events of an answer, without pings; then cut the connection."""
    blocks: list[bytes] = []
    with http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        rest = b""
        for piece in answer.iter_raw():
            *whole, rest = (rest + piece).split(b"\n\n")
            blocks += [block + b"\n\n" for block in whole if b'"ping"' not in block]
            if len(blocks) >= most:
                break
    return blocks[:most]


def read_in_pieces(
    servers: list[ServerInThread], agent_id: str, size: int
) -> tuple[str, list[bytes]]:
    """Read a background stream; break it every few events, and resume it on the next server."""
    clients = [server.http() for server in servers]
    body = {"input": "Hello.", "background": True, "stream_tokens": True}
    chunks = read_first_events(clients[0], f"/v1/agents/{agent_id}/messages/stream", body, size)
    run_id = clients[0].get("/v1/runs/", params={"agent_id": agent_id}).json()[0]["id"]
    turn = 0
    while chunks[-1] != b"data: [DONE]\n\n":
        turn += 1
        wanted = {"starting_after": len(chunks), "poll_interval": 0.02, "batch_size": 7}
        chunks += read_first_events(
            clients[turn % len(clients)], f"/v1/runs/{run_id}/stream", wanted, size
        )
    for one in clients:
        one.close()
    return run_id, chunks


def test_a_stream_that_breaks_every_few_events_resumes_to_the_same_bytes(api: Api) -> None:
    run_id, chunks = read_in_pieces([api.server], agent_on(api.server), 3)
    whole = api.http.post(f"/v1/runs/{run_id}/stream", json={"include_pings": False})

    assert whole.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert whole.content == b"".join(chunks)
    events = [value for _, value in events_of(whole.text)[:-1]]
    assert [event["seq_id"] for event in events] == list(range(1, len(chunks)))
    assert "".join(event.get("content", "") for event in events) == "".join(WORDS)
    assert api.http.get(f"/v1/runs/{run_id}").json()["background"] is True


def test_two_servers_send_the_same_bytes_of_a_running_stream(
    pair: tuple[ServerInThread, ServerInThread],
) -> None:
    one, two = pair
    run_id, chunks = read_in_pieces([one, two], agent_on(one), 5)

    for server in pair:
        with server.http() as http:
            for after in (0, 7, len(chunks) - 1):
                again = http.post(
                    f"/v1/runs/{run_id}/stream",
                    json={"include_pings": False, "starting_after": after},
                )
                assert again.content == b"".join(chunks[after:])


def test_the_official_client_reads_a_background_stream_and_resumes_it(
    api: Api, agent: AgentState
) -> None:
    api.server.says(call("memory_insert", label="human", new_string="x"), "Done.")

    first = list(
        api.client.agents.messages.create(agent.id, input="Hello.", streaming=True, background=True)
    )
    run_id = str(first[0].run_id)  # type: ignore[union-attr]
    again = list(api.client.runs.messages.stream(run_id, starting_after=1, include_pings=False))
    found = list(
        api.client.conversations.messages.stream("default", agent_id=agent.id, starting_after=2)
    )

    assert [event.seq_id for event in first[:4]] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert again == first[2:]
    assert found[0].seq_id == 2  # type: ignore[union-attr]
    assert found[1:] == first[3:]


def test_disconnecting_from_a_background_stream_does_not_cancel_its_turn(
    api: Api, agent: AgentState
) -> None:
    gate = Gate(api.server)
    api.server.answers_with(gate)
    body = {
        "messages": [{"role": "user", "content": "Hello.", "otid": "otid-left"}],
        "background": True,
    }
    path = f"/v1/agents/{agent.id}/messages/stream"
    with api.http.stream("POST", path, json=body) as answer:
        assert "ping" in next(answer.iter_lines())
        gate.wait()
    gate.open()

    repeated = api.http.post(path, json={**body, "include_pings": False})
    by_otid = {"otid": "otid-left", "agent_id": agent.id, "include_pings": False}
    found = api.http.post("/v1/conversations/default/stream", json=by_otid)

    assert events_of(repeated.text)[-1] == (None, "[DONE]")
    assert '"content":"Here I am."' in repeated.text
    assert found.content == repeated.content
    assert len(api.server.model.requests) == 1


def test_an_unstored_or_expired_stream_is_refused_with_what_to_do(
    api: Api, agent: AgentState, monkeypatch: Any
) -> None:
    api.client.agents.messages.create(agent.id, input="Hello.")
    (plain,) = api.client.runs.list(agent_id=agent.id).items
    words = refused(api.http.post(f"/v1/runs/{plain.id}/stream", json={}), 400)
    assert "was started without background=true" in words
    assert f"GET /v1/runs/{plain.id}/messages" in words
    for path, body, status in (
        ("conversations/default", {"agent_id": agent.id}, 400),
        ("conversations/default", {}, 400),
        ("conversations/conv-none", {}, 404),
        ("runs/run-none", {}, 422),
        (f"runs/{plain.id}", {"starting_after": -1}, 422),
    ):
        refused(api.http.post(f"/v1/{path}/stream", json=body), status)
    rows = api.server.rows()
    for option in ("stream_tokens", "background"):
        words = refused(
            api.http.post(
                f"/v1/agents/{agent.id}/messages", json={"input": "Hello.", option: True}
            ),
            422,
        )
        assert "Streaming options set without streaming enabled." in words
    assert api.server.rows() == rows

    list(
        api.client.agents.messages.create(agent.id, input="Hello.", streaming=True, background=True)
    )
    kept = api.client.runs.list(agent_id=agent.id).items[0]
    assert api.http.post(f"/v1/runs/{kept.id}/stream").status_code == 200
    monkeypatch.setattr(api.server.runtime.settings, "stream_hours", 1e-9)
    assert "has expired" in refused(api.http.post(f"/v1/runs/{kept.id}/stream"), 410)


def test_an_asynchronous_message_returns_its_run_at_once_and_calls_back_at_its_end(
    api: Api, agent: AgentState
) -> None:
    receiver = Receiver()
    api.server.runtime.settings.allow_private_callbacks = True
    gate = Gate(api.server)
    api.server.answers_with(gate)
    try:
        run = api.client.agents.messages.create_async(
            agent.id, input="Hello.", callback_url=f"{receiver.url}/done"
        )
        assert run.status in ("created", "running")
        assert run.background
        assert run.callback_url == f"{receiver.url}/done"
        gate.wait()
        assert not receiver.was_told.is_set()
        gate.open()
        assert receiver.was_told.wait(LIMIT)
    finally:
        api.server.runtime.settings.allow_private_callbacks = False
        receiver.close()

    (seen,) = receiver.seen
    assert (seen.body["run_id"], seen.body["status"]) == (run.id, "completed")
    listed = api.http.get(f"/v1/runs/{run.id}/messages").json()
    assert [one["message_type"] for one in listed] == ["user_message", "assistant_message"]
    assert seen.body["metadata"]["result"]["messages"] == listed
    assert seen.headers["x-ricordo-signature"].startswith("t=")
    assert len(bytes.fromhex(signing_key(api.server.settings.data_dir))) == 32
    streamed = api.http.post(f"/v1/runs/{run.id}/stream", json={"include_pings": False})
    assert '"content":"Here I am."' in streamed.text
    assert api.server.read(lambda tx: runs.last_event(tx, run.id))
    with api.server.http() as again:
        while (told := again.get(f"/v1/runs/{run.id}").json())["callback_sent_at"] is None:
            pass
    assert (told["callback_status_code"], told["callback_error"]) == (200, None)


def test_a_callback_to_a_private_address_is_refused_before_anything_runs(
    api: Api, agent: AgentState
) -> None:
    rows = api.server.rows()
    for url in (
        "http://127.0.0.1:9/",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "http://localhost/",
    ):
        body = {"input": "Hello.", "callback_url": url}
        refused(api.http.post(f"/v1/agents/{agent.id}/messages/async", json=body), 400)
    assert api.server.rows() == rows
