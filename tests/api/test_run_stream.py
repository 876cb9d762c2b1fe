"""Streams over HTTP that are read again, with connections that break and two servers; and turns that nobody waits for."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from letta_client.types import AgentState
from pydantic import SecretStr

from ricordo.background.callbacks import signing_key
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply, TextChunk
from ricordo.llm.scripted import call
from ricordo.storage import run_events
from tests.seams.server import LIMIT, PIECES, Gate, ServerInThread, StrictLetta, events_of, serving
from tests.support import postgres
from tests.support.json_server import JsonServer

WORDS = [f"word {number} " for number in range(40)]


class Receiver(JsonServer):
    """Who is told of the end of runs."""

    key_header, key_value = "content-type", "application/json"

    def __init__(self) -> None:
        super().__init__()
        self.was_told = threading.Event()

    def answer(self, _method: str, _parts: list[str], _body: Any) -> Any:
        """Takes everything."""
        self.was_told.set()
        return {}

    def said_no(self, _status: int, words: str) -> Any:
        """Says why."""
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
    """An agent whose model streams word by word."""
    server.pieces.answers.append(([TextChunk(word) for word in WORDS], ModelReply((TextPart("".join(WORDS)),))))
    with server.http() as http:
        return str(http.post("/v1/agents/", json={"model": model}).json()["id"])


def piecemeal(http: httpx2.Client, path: str, body: dict[str, Any], most: int) -> list[bytes]:
    """The first events of an answer, without pings; then the connection is cut."""
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


def read_in_pieces(servers: list[ServerInThread], agent_id: str, size: int) -> tuple[str, list[bytes]]:
    """A background stream whose connection breaks after every few events, resumed on the next server each time."""
    clients = [server.http() for server in servers]
    body = {"input": "Hello.", "background": True, "stream_tokens": True}
    chunks = piecemeal(clients[0], f"/v1/agents/{agent_id}/messages/stream", body, size)
    run_id = clients[0].get("/v1/runs/", params={"agent_id": agent_id}).json()[0]["id"]
    turn = 0
    while chunks[-1] != b"data: [DONE]\n\n":
        turn += 1
        wanted = {"starting_after": len(chunks), "poll_interval": 0.02, "batch_size": 7}
        chunks += piecemeal(clients[turn % len(clients)], f"/v1/runs/{run_id}/stream", wanted, size)
    for one in clients:
        one.close()
    return run_id, chunks


def test_a_stream_that_breaks_every_few_events_is_resumed_to_the_same_bytes(
    server: ServerInThread, http: httpx2.Client
) -> None:
    run_id, chunks = read_in_pieces([server], agent_on(server), 3)

    whole = http.post(f"/v1/runs/{run_id}/stream", json={"include_pings": False})

    assert whole.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert whole.content == b"".join(chunks)
    events = [value for _, value in events_of(whole.text)[:-1]]
    assert [event["seq_id"] for event in events] == list(range(1, len(chunks)))
    assert "".join(event.get("content", "") for event in events) == "".join(WORDS)
    assert http.get(f"/v1/runs/{run_id}").json()["background"] is True


def test_two_servers_give_the_same_bytes_while_the_stream_is_made(pair: tuple[ServerInThread, ServerInThread]) -> None:
    one, two = pair
    run_id, chunks = read_in_pieces([one, two], agent_on(one), 5)

    for server in pair:
        with server.http() as http:
            for after in (0, 7, len(chunks) - 1):
                again = http.post(f"/v1/runs/{run_id}/stream", json={"include_pings": False, "starting_after": after})
                assert again.content == b"".join(chunks[after:])


def test_the_official_client_reads_a_background_stream_and_resumes_it(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    server.says(call("memory_insert", label="human", new_string="x"), "Done.")

    first = list(client.agents.messages.create(agent.id, input="Hello.", streaming=True, background=True))
    run_id = str(first[0].run_id)  # type: ignore[union-attr]
    again = list(client.runs.messages.stream(run_id, starting_after=1, include_pings=False))
    found = list(client.conversations.messages.stream("default", agent_id=agent.id, starting_after=2))

    assert [event.message_type for event in first[1:]] == [
        "tool_call_message",
        "tool_return_message",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
    ]
    assert [event.seq_id for event in first[:4]] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert again == first[2:]
    assert found[0].seq_id == 2  # type: ignore[union-attr]
    assert found[1:] == first[3:]


def test_leaving_a_background_stream_does_not_cancel_its_turn(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    body = {"messages": [{"role": "user", "content": "Hello.", "otid": "otid-left"}], "background": True}
    path = f"/v1/agents/{agent.id}/messages/stream"
    with http.stream("POST", path, json=body) as answer:
        assert "ping" in next(answer.iter_lines())
        gate.wait()
    gate.open()

    repeated = http.post(path, json={**body, "include_pings": False})
    by_otid = {"otid": "otid-left", "agent_id": agent.id, "include_pings": False}
    found = http.post("/v1/conversations/default/stream", json=by_otid)

    assert events_of(repeated.text)[-1] == (None, "[DONE]")
    assert '"content":"Here I am."' in repeated.text
    assert found.content == repeated.content
    assert len(server.model.requests) == 1


def test_a_stream_that_was_not_kept_or_is_no_more_is_refused_with_what_to_do(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    client.agents.messages.create(agent.id, input="Hello.")
    (plain,) = client.runs.list(agent_id=agent.id).items
    refused = http.post(f"/v1/runs/{plain.id}/stream", json={})
    assert refused.status_code == 400
    assert "was not begun with background=true" in refused.json()["detail"]
    assert f"GET /v1/runs/{plain.id}/messages" in refused.json()["detail"]
    nothing = http.post("/v1/conversations/default/stream", json={"agent_id": agent.id})
    assert nothing.status_code == 404
    assert http.post("/v1/conversations/default/stream", json={}).status_code == 400
    assert http.post("/v1/conversations/conv-none/stream", json={}).status_code == 404
    assert http.post("/v1/runs/run-none/stream", json={}).status_code == 404
    assert http.post(f"/v1/runs/{plain.id}/stream", json={"starting_after": -1}).status_code == 422

    list(client.agents.messages.create(agent.id, input="Hello.", streaming=True, background=True))
    kept = client.runs.list(agent_id=agent.id).items[0]
    assert http.post(f"/v1/runs/{kept.id}/stream").status_code == 200
    hours = server.settings.stream_hours
    server.runtime.settings.stream_hours = 1e-9
    try:
        gone = http.post(f"/v1/runs/{kept.id}/stream")
    finally:
        server.runtime.settings.stream_hours = hours
    assert gone.status_code == 410
    assert "has expired" in gone.json()["detail"]


def test_background_needs_a_stream(http: httpx2.Client, server: ServerInThread, agent: AgentState) -> None:
    rows = server.rows()
    refused = http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello.", "background": True})
    assert refused.status_code == 422
    assert server.rows() == rows


def test_an_asynchronous_message_returns_its_run_at_once_and_its_end_is_told(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    receiver = Receiver()
    server.runtime.settings.allow_private_callbacks = True
    gate = Gate(server)
    server.answers_with(gate)
    try:
        run = client.agents.messages.create_async(agent.id, input="Hello.", callback_url=f"{receiver.url}/done")
        assert run.status in ("created", "running")
        assert run.background
        assert run.callback_url == f"{receiver.url}/done"
        gate.wait()
        assert not receiver.was_told.is_set()
        gate.open()
        assert receiver.was_told.wait(LIMIT)
    finally:
        server.runtime.settings.allow_private_callbacks = False
        receiver.close()

    (seen,) = receiver.seen
    assert (seen.body["run_id"], seen.body["status"]) == (run.id, "completed")
    assert seen.headers["x-ricordo-signature"].startswith("t=")
    assert len(bytes.fromhex(signing_key(server.settings.data_dir))) == 32
    streamed = http.post(f"/v1/runs/{run.id}/stream", json={"include_pings": False})
    assert '"content":"Here I am."' in streamed.text
    assert server.read(lambda tx: run_events.last(tx, run.id))
    with server.http() as again:
        while (told := again.get(f"/v1/runs/{run.id}").json())["callback_sent_at"] is None:
            pass
    assert (told["callback_status_code"], told["callback_error"]) == (200, None)


def test_a_callback_to_a_private_address_is_refused_before_anything_runs(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    rows = server.rows()
    for url in ("http://127.0.0.1:9/", "http://169.254.169.254/latest", "file:///etc/passwd", "http://localhost/"):
        refused = http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello.", "callback_url": url})
        assert refused.status_code == 400, url
    assert server.rows() == rows
