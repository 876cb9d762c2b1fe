"""Agents over A2A, by the official `a2a-sdk`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig
from a2a.client.client import Client
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientError, AgentCardResolutionError
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from ricordo.domain.ids import new_id
from ricordo.errors import ModelError
from tests.seams.http import Wire, bearer, ok
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, call, serving

KEY = "the-operator"


@pytest.fixture
def agent(http: httpx2.Client) -> str:
    """Make an agent that changes its persona only with an approval; return its id."""
    body = {
        "name": "Nina",
        "description": "Teaches chess.",
        "model": MODEL,
        "memory_blocks": [{"label": "persona", "value": "I am Nina."}],
        "tool_rules": [{"type": "requires_approval", "tool_name": "memory_insert"}],
    }
    agent_id: str = ok(http.post("/v1/agents/", json=body))["id"]
    return agent_id


async def client_of(
    server: ServerInThread, agent: str, *, streaming: bool, key: str | None = None
) -> Client:
    headers = bearer(key) if key else {}
    http = httpx.AsyncClient(headers=headers, timeout=LIMIT)
    factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=http))
    try:
        return await factory.create_from_url(f"{server.url}/v1/agents/{agent}/a2a")
    except AgentCardResolutionError:
        await http.aclose()
        raise


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
async def client(
    request: pytest.FixtureRequest, server: ServerInThread, agent: str
) -> AsyncIterator[Client]:
    opened = await client_of(server, agent, streaming=request.param)
    yield opened
    await opened._transport.httpx_client.aclose()  # type: ignore[attr-defined]


def message(text: str, **fields: Any) -> SendMessageRequest:
    parts = fields.pop("parts", [Part(text=text)])
    fields = {"message_id": new_id("m"), "role": Role.ROLE_USER, **fields}
    return SendMessageRequest(message=Message(parts=parts, **fields))


async def task_after(client: Client, request: SendMessageRequest) -> tuple[Task, list[Wire]]:
    """Return the task that results from the events of an answer, and the events."""
    task = Task()
    events: list[StreamResponse] = []
    async for event in client.send_message(request):
        events.append(event)
        if event.HasField("task"):
            task.CopyFrom(event.task)
        elif event.HasField("status_update"):
            assert event.status_update.task_id == task.id
            task.status.CopyFrom(event.status_update.status)
        else:
            update = event.artifact_update
            if not update.append:
                task.artifacts.append(update.artifact)
                continue
            (artifact,) = (
                a for a in task.artifacts if a.artifact_id == update.artifact.artifact_id
            )
            artifact.parts[0].text += update.artifact.parts[0].text
    return task, [MessageToDict(event) for event in events]


def texts_of(task: Task) -> list[str]:
    return [artifact.parts[0].text for artifact in task.artifacts]


async def test_the_agent_card_has_the_agents_name_and_url(
    server: ServerInThread, agent: str
) -> None:
    client = await client_of(server, agent, streaming=False)
    card = client._card  # type: ignore[attr-defined]
    assert (card.name, card.description) == ("Nina", "Teaches chess.")
    (interface,) = card.supported_interfaces
    assert interface.url == f"{server.url}/v1/agents/{agent}/a2a"
    assert card.capabilities.streaming
    assert [skill.name for skill in card.skills] == ["Nina"]
    await client._transport.httpx_client.aclose()  # type: ignore[attr-defined]


async def test_a_context_id_continues_the_conversation_and_a_repeated_message_counts_once(
    server: ServerInThread, client: Client
) -> None:
    server.says("Hello Ada.", "Tea, you said.")
    request = message("I am Ada and like tea.")
    first, _ = await task_after(client, request)
    assert first.status.state == TaskState.TASK_STATE_COMPLETED
    assert texts_of(first) == ["Hello Ada."]
    again, _ = await task_after(client, request)
    assert (again.id, texts_of(again)) == (first.id, ["Hello Ada."])
    second, _ = await task_after(client, message("What?", context_id=first.context_id))
    assert (second.context_id, texts_of(second)) == (first.context_id, ["Tea, you said."])
    said = [m.text for m in server.model.requests[-1].messages if m.role == "user"]
    assert said == ["I am Ada and like tea.", "What?"]
    assert len(server.model.requests) == 2
    read = await client.get_task(GetTaskRequest(id=second.id))
    assert read.status.state == TaskState.TASK_STATE_COMPLETED
    assert texts_of(read) == ["Tea, you said."]


async def test_the_stream_names_each_tool_call(server: ServerInThread, client: Client) -> None:
    server.says(call("conversation_search", query="tea"), "Nothing.")
    task, events = await task_after(client, message("Did I speak of tea?"))
    assert texts_of(task) == ["Nothing."]
    updates = [event["statusUpdate"] for event in events if "statusUpdate" in event]
    named = [update["metadata"]["tool_call"]["name"] for update in updates[:-1]]
    assert named == (["conversation_search"] if updates else [])


def data(**fields: Any) -> Part:
    return Part(data=ParseDict(fields, Value()))


@pytest.mark.parametrize(
    ("part", "persona"),
    [
        (Part(text="Yes."), "I am Nina.\nI like chess."),
        (data(approved=True), "I am Nina.\nI like chess."),
        (Part(text="Rather tea."), "I am Nina."),
        (data(approved=False, reason="Rather tea."), "I am Nina."),
        (data(approved="yes"), "I am Nina."),
    ],
)
async def test_a_task_requires_input_until_its_call_is_approved(
    server: ServerInThread,
    http: httpx2.Client,
    agent: str,
    client: Client,
    part: Part,
    persona: str,
) -> None:
    server.says(call("memory_insert", label="persona", new_string="I like chess."), "Well.")
    asked, _ = await task_after(client, message("Take up chess."))
    assert asked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert "memory_insert" in asked.status.message.parts[0].text
    waiting = await client.get_task(GetTaskRequest(id=asked.id))
    assert waiting.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    done, _ = await task_after(client, message("", task_id=asked.id, parts=[part]))
    assert (done.id, done.context_id) == (asked.id, asked.context_id)
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert texts_of(done)[-1] == "Well."
    blocks = ok(http.get(f"/v1/agents/{agent}"))["memory"]["blocks"]
    assert [block["value"] for block in blocks] == [persona]
    if "tea" in str(part):
        asked_model = server.model.requests[-1].messages[-1]
        assert "Rather tea." in asked_model.tool_returns[0].content
    read = await client.get_task(GetTaskRequest(id=asked.id))
    assert read.status.state == TaskState.TASK_STATE_COMPLETED
    with pytest.raises(UnsupportedOperationError):
        await task_after(client, message("More.", task_id=asked.id))


async def test_a_model_error_fails_the_task(server: ServerInThread, client: Client) -> None:
    server.says(ModelError("llm_timeout", "The provider took too long."))
    task, _ = await task_after(client, message("Hello."))
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "too long" in task.status.message.parts[0].text
    read = await client.get_task(GetTaskRequest(id=task.id))
    assert read.status.state == TaskState.TASK_STATE_FAILED


async def test_a_running_task_can_be_followed_and_cancelled_and_refuses_messages(
    server: ServerInThread, agent: str
) -> None:
    client = await client_of(server, agent, streaming=False)
    gate = Gate(server)
    server.answers_with(gate)
    request = message("Think for long.")
    request.configuration.CopyFrom(SendMessageConfiguration(return_immediately=True))
    task, _ = await task_after(client, request)
    assert task.status.state in (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_SUBMITTED)
    with pytest.raises(UnsupportedOperationError):
        await task_after(client, message("And this.", context_id=task.context_id))
    follower = await client_of(server, agent, streaming=True)
    events = follower.subscribe(SubscribeToTaskRequest(id=task.id))
    first = await anext(events)
    assert first.task.id == task.id
    cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
    last = [event async for event in events][-1]
    assert last.status_update.status.state == TaskState.TASK_STATE_CANCELED
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=task.id))
    gate.open()
    for opened in (client, follower):
        await opened._transport.httpx_client.aclose()  # type: ignore[attr-defined]


async def test_a_task_that_another_server_runs_can_be_followed(
    server: ServerInThread, agent: str
) -> None:
    client = await client_of(server, agent, streaming=False)
    gate = Gate(server)
    server.answers_with(gate)
    request = message("Think for long.")
    request.configuration.CopyFrom(SendMessageConfiguration(return_immediately=True))
    task, _ = await task_after(client, request)
    await asyncio.to_thread(gate.wait)
    follower = await client_of(server, agent, streaming=True)
    # A task of another server is only in the database.
    live = server.runtime.live.pop(task.id)
    events = follower.subscribe(SubscribeToTaskRequest(id=task.id))
    first = await anext(events)
    assert first.task.id == task.id
    server.runtime.live[task.id] = live
    gate.open()
    rest = [event async for event in events]
    texts = [
        part.text
        for event in rest
        if event.HasField("artifact_update")
        for part in event.artifact_update.artifact.parts
    ]
    assert "".join(texts) == "Here I am."
    assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    with pytest.raises(UnsupportedOperationError):
        await anext(follower.subscribe(SubscribeToTaskRequest(id=task.id)))
    for opened in (client, follower):
        await opened._transport.httpx_client.aclose()  # type: ignore[attr-defined]


async def test_a_waiting_task_can_be_cancelled(server: ServerInThread, client: Client) -> None:
    server.says(call("memory_insert", label="persona", new_string="I like chess."))
    asked, _ = await task_after(client, message("Take up chess."))
    cancelled = await client.cancel_task(CancelTaskRequest(id=asked.id))
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
    server.says("Here I am.")
    task, _ = await task_after(client, message("And now?", context_id=asked.context_id))
    assert texts_of(task) == ["Here I am."]


async def test_invalid_requests_are_refused_with_a_reason(
    server: ServerInThread, http: httpx2.Client, agent: str, client: Client
) -> None:
    with pytest.raises(InvalidParamsError, match="no text"):
        await task_after(client, message("", parts=[]))
    for task_id in (new_id("run"), "no task"):
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=task_id))
        with pytest.raises(TaskNotFoundError):
            await task_after(client, message("Hello.", task_id=task_id))

    def code_of(method: str, params: Any, **headers: str) -> int:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, "later": None}
        answer = ok(http.post(f"/v1/agents/{agent}/a2a", json=body, headers=headers))
        code: int = answer["error"]["code"]
        return code

    assert code_of("message/send", {}) == -32601
    assert code_of("SendMessage", None) == -32602
    assert code_of("CreateTaskPushNotificationConfig", {}) == -32003
    assert code_of("GetTask", {"id": "x"}, **{"A2A-Version": "0.3"}) == -32009
    file = {"raw": "aGVsbG8=", "mediaType": "audio/wav"}
    assert code_of("SendMessage", {"message": {"messageId": "1", "parts": [file]}}) == -32005
    assert server.model.requests == []


def _conversation_of(server: ServerInThread, key: str, agent: str) -> str:
    with server.http(headers=bearer(key)) as http:
        (conversation,) = ok(http.get("/v1/conversations/", params={"agent_id": agent}))
    conversation_id: str = conversation["id"]
    return conversation_id


async def test_an_api_key_opens_only_its_users_tasks(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("people"), api_key=KEY) as server:
        with server.http(headers=bearer(KEY)) as http:
            body = {"name": "Nina", "model": MODEL, "memory_blocks": []}
            agent = ok(http.post("/v1/agents/", json=body))["id"]
            keys = {}
            for user in ("ada", "bob"):
                ok(http.put(f"/users/{user}/blocks/human", json={"body": f"I am {user}."}))
                key = ok(http.post("/v1/keys/", json={"user": user, "role": "user"}))
                keys[user] = key["key"]
        clients = {
            user: await client_of(server, agent, streaming=False, key=key)
            for user, key in keys.items()
        }
        server.says("Hello Ada.", "Hello Bob.")
        ours, _ = await task_after(clients["ada"], message("I am Ada.", context_id="same"))
        theirs, _ = await task_after(clients["bob"], message("I am Bob.", context_id="same"))
        assert texts_of(theirs) == ["Hello Bob."]
        said = [m.text for m in server.model.requests[-1].messages if m.role == "user"]
        assert said == ["I am Bob."]
        conversation = _conversation_of(server, keys["ada"], agent)
        with pytest.raises(A2AClientError, match="404"):
            await task_after(clients["bob"], message("Hi.", context_id=conversation))
        for call_of in (
            clients["bob"].get_task(GetTaskRequest(id=ours.id)),
            clients["bob"].cancel_task(CancelTaskRequest(id=ours.id)),
        ):
            with pytest.raises(TaskNotFoundError):
                await call_of
        with pytest.raises(AgentCardResolutionError, match="401"):
            await client_of(server, agent, streaming=False, key="wrong")
        for client in clients.values():
            await client._transport.httpx_client.aclose()  # type: ignore[attr-defined]
