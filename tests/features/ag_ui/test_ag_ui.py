"""Agents over AG-UI, by the official `@ag-ui/client`."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.scripted import Line
from tests.seams.http import Wire, bearer, ok
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, call, events_of, serving
from tests.support.node import TYPESCRIPT, NodeDriver

KEY = "the-operator"
PAINT = {
    "name": "paint",
    "description": "Paints the page.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def driver() -> Iterator[NodeDriver]:
    opened = NodeDriver(TYPESCRIPT / "test/ag-ui-driver.mjs")
    yield opened
    opened.close()


@pytest.fixture
def agent(http: httpx2.Client) -> str:
    """Make an agent with a persona; return its id."""
    blocks = [{"label": "persona", "value": "I am Nina."}]
    body = {"name": "Nina", "model": MODEL, "memory_blocks": blocks}
    agent_id: str = ok(http.post("/v1/agents/", json=body))["id"]
    return agent_id


class Thread:
    """A thread of `HttpAgent` in Node.js."""

    def __init__(self, driver: NodeDriver, url: str, agent: str, **config: Any) -> None:
        self._driver = driver
        self._name = new_id("name")
        self.id = config.setdefault("threadId", new_id("thread"))
        path = f"{url}/v1/agents/{agent}/ag-ui"
        driver.send(command="open", name=self._name, url=path, **config)
        driver.answer()

    def begin(self, *texts: str, **parameters: Any) -> None:
        messages = [{"id": new_id("m"), "role": "user", "content": text} for text in texts]
        messages += parameters.pop("messages", [])
        self._driver.send(command="run", name=self._name, messages=messages, **parameters)

    def run(self, *texts: str, **parameters: Any) -> Wire:
        self.begin(*texts, **parameters)
        run: Wire = self._driver.answer()
        return run


@pytest.fixture
def thread(driver: NodeDriver, server: ServerInThread, agent: str) -> Thread:
    return Thread(driver, server.url, agent)


def types_of(run: Wire) -> list[str]:
    return [event["type"] for event in run["events"]]


def outcome_of(run: Wire) -> Wire:
    assert run["error"] is None
    last = run["events"][-1]
    assert last["type"] == "RUN_FINISHED"
    outcome: Wire = last["outcome"]
    return outcome


def said_to(server: ServerInThread) -> list[str]:
    """Return the texts of the last request to the model, without the system prompt."""
    messages = server.model.requests[-1].messages[1:]
    return [message.text for message in messages if message.role in ("user", "assistant")]


def test_a_conversation_is_streamed_and_no_message_is_stored_twice(
    server: ServerInThread, thread: Thread
) -> None:
    server.says([ReasoningPart("She greets me."), TextPart("Hello Ada.")], "Tea, you said.")
    first = thread.run("I am Ada and like tea.")
    assert outcome_of(first) == {"type": "success"}
    kinds = types_of(first)
    assert kinds[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
    for kind in ("REASONING_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT"):
        assert kinds.count(kind) > 1  # in several pieces
    assert [message["role"] for message in first["messages"]] == ["user", "reasoning", "assistant"]
    assert first["messages"][1]["content"] == "She greets me."
    assert first["events"][-1]["usage"][0]["outputTokens"] > 0
    second = thread.run("What do I like?")
    assert second["messages"][-1]["content"] == "Tea, you said."
    assert said_to(server) == ["I am Ada and like tea.", "Hello Ada.", "What do I like?"]


def test_tool_calls_are_sent_with_arguments_results_and_changed_memory(
    server: ServerInThread, thread: Thread
) -> None:
    edit = call("memory_insert", label="persona", new_string="I like chess.")
    server.says(edit, "Noted.")
    run = thread.run("Take up chess.")
    assert outcome_of(run) == {"type": "success"}
    assert run["state"] == {"memory": {"persona": "I am Nina.\nI like chess."}}
    assert "STATE_DELTA" in types_of(run)
    (asking,) = (message for message in run["messages"] if message.get("toolCalls"))
    assert asking["toolCalls"][0]["function"] == {
        "name": "memory_insert",
        "arguments": edit.arguments,
    }
    (result,) = (message for message in run["messages"] if message["role"] == "tool")
    assert result["toolCallId"] == asking["toolCalls"][0]["id"]
    assert run["messages"][-1]["content"] == "Noted."
    server.says("Yes.")
    again = thread.run("Really?")
    assert again["messages"][-1]["content"] == "Yes."
    assert said_to(server).count("Take up chess.") == 1


def test_a_frontend_tool_runs_in_the_client_and_its_result_reaches_the_agent(
    server: ServerInThread, thread: Thread
) -> None:
    server.says(call("paint", color="red"), "It is red now.")
    asked = thread.run("Paint it red.", tools=[PAINT])
    (call_id,) = outcome_of(asked)["pendingToolCallIds"]
    result = {"id": new_id("m"), "role": "tool", "toolCallId": call_id, "content": "painted"}
    done = thread.run(messages=[result], tools=[PAINT])
    assert outcome_of(done) == {"type": "success"}
    assert done["messages"][-1]["content"] == "It is red now."
    assert [message["role"] for message in done["messages"]].count("tool") == 1
    tool_message = server.model.requests[-1].messages[-1]
    assert "painted" in tool_message.tool_returns[0].content


def test_a_new_message_is_answered_without_the_frontend_tools_result(
    server: ServerInThread, thread: Thread
) -> None:
    server.says(call("paint", color="red"), "As you like.")
    thread.run("Paint it red.", tools=[PAINT])
    run = thread.run("Leave it.", tools=[PAINT])
    assert run["messages"][-1]["content"] == "As you like."
    assert said_to(server)[-1] == "Leave it."


@pytest.fixture
def asking_agent(http: httpx2.Client) -> str:
    """Make an agent that may change its memory only with an approval; return its id."""
    body = {
        "name": "Nina",
        "model": MODEL,
        "memory_blocks": [{"label": "persona", "value": "I am Nina."}],
        "tool_rules": [{"type": "requires_approval", "tool_name": "memory_insert"}],
    }
    agent_id: str = ok(http.post("/v1/agents/", json=body))["id"]
    return agent_id


@pytest.mark.parametrize(
    ("status", "payload", "persona"),
    [
        ("resolved", {"approved": True}, "I am Nina.\nI like chess."),
        ("resolved", {"approved": False, "reason": "Not now."}, "I am Nina."),
        ("cancelled", None, "I am Nina."),
        ("resolved", {"approved": True, "editedArgs": {"new_string": "I like tea."}}, "I am Nina."),
        ("resolved", "perhaps", "I am Nina."),
    ],
)
def test_an_approval_is_an_interrupt_and_only_a_yes_runs_the_call(
    driver: NodeDriver,
    server: ServerInThread,
    asking_agent: str,
    status: str,
    payload: Any,
    persona: str,
) -> None:
    thread = Thread(driver, server.url, asking_agent)
    server.says(call("memory_insert", label="persona", new_string="I like chess."), "Well.")
    asked = thread.run("Take up chess.")
    assert outcome_of(asked)["type"] == "interrupt"
    (interrupt,) = asked["interrupts"]
    assert "memory_insert" in interrupt["message"]
    assert asked["state"]["memory"]["persona"] == "I am Nina."
    answer = {"interruptId": interrupt["id"], "status": status, "payload": payload}
    done = thread.run(resume=[answer])
    assert outcome_of(done) == {"type": "success"}
    assert done["messages"][-1]["content"] == "Well."
    assert done["state"]["memory"]["persona"] == persona
    (result,) = (message for message in done["messages"] if message["role"] == "tool")
    assert result["toolCallId"] == interrupt["toolCallId"]
    if isinstance(payload, dict) and payload.get("editedArgs"):
        assert "I like tea." in server.model.requests[-1].messages[-1].tool_returns[0].content
    # The same answer again returns the events of the same run. No second run begins.
    body = run_body(thread.id, resume=[answer])
    assert post(server, asking_agent, body)[-1]["outcome"] == {"type": "success"}
    assert len(server.model.requests) == 2


def run_body(thread_id: str, *texts: str, **fields: Any) -> Wire:
    messages = [
        {"id": f"m{index}", "role": "user", "content": text} for index, text in enumerate(texts)
    ]
    return {"threadId": thread_id, "runId": new_id("run"), "messages": messages, **fields}


def post(server: ServerInThread, agent: str, body: Wire, **headers: str) -> list[Wire]:
    with server.http(headers=headers) as http:
        answer = http.post(f"/v1/agents/{agent}/ag-ui", json=body)
    assert answer.status_code == 200, answer.text
    return [event for _, event in events_of(answer.text)]


def test_a_model_error_becomes_a_run_error_event(server: ServerInThread, thread: Thread) -> None:
    server.says(ModelError("llm_timeout", "The provider took too long."))
    run = thread.run("Hello.")
    last = run["events"][-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "llm_timeout")
    assert "too long" in last["message"]
    server.says("Here I am.")
    assert thread.run("Hello?")["messages"][-1]["content"] == "Here I am."


def test_an_unknown_agent_is_refused(driver: NodeDriver, server: ServerInThread) -> None:
    run = Thread(driver, server.url, new_id("agent")).run("Hello.")
    assert "404" in run["error"]
    assert run["events"] == []


def wait_for_end(http: httpx2.Client, agent: str) -> Wire:
    """Wait until the agent's only run has ended, and return it."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        (run,) = ok(http.get("/v1/runs/", params={"agent_id": agent}))
        if run["status"] not in ("created", "running"):
            ended: Wire = run
            return ended
        time.sleep(0.01)
    raise AssertionError("the run did not end")


def test_an_abort_of_the_client_cancels_the_run(
    server: ServerInThread, http: httpx2.Client, agent: str, thread: Thread
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    run = thread.run("Think for long.", abortAt="STATE_SNAPSHOT")
    assert "TEXT_MESSAGE_START" not in types_of(run)
    assert wait_for_end(http, agent)["status"] == "cancelled"
    gate.open()
    server.forget()
    server.says("Here I am.")
    assert thread.run("And now?")["messages"][-1]["content"] == "Here I am."


def test_an_abort_after_a_tool_call_keeps_the_tools_changes(
    server: ServerInThread, http: httpx2.Client, agent: str, thread: Thread
) -> None:
    gate = Gate(server)
    lines = iter([call("memory_insert", label="persona", new_string="I like chess.")])

    async def answer(request: ModelRequest) -> Line:
        return next(lines, None) or await gate(request)

    server.answers_with(answer)
    run = thread.run("Take up chess.", abortAt="TOOL_CALL_RESULT")
    assert types_of(run)[-1] != "RUN_FINISHED"
    assert wait_for_end(http, agent)["status"] == "cancelled"
    gate.open()
    server.forget()
    server.says("I like chess now.")
    again = thread.run("Did you?")
    assert again["messages"][-1]["content"] == "I like chess now."
    assert again["state"]["memory"]["persona"] == "I am Nina.\nI like chess."
    assert said_to(server)[0] == "Take up chess."
    roles = [message.role for message in server.model.requests[-1].messages]
    assert roles.count("tool") == 1


def test_simultaneous_first_runs_create_one_conversation(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    path = f"/v1/agents/{agent}/ag-ui"
    bodies = [run_body("new", text) for text in ("One.", "Two.", "Three.")]
    with ThreadPoolExecutor(len(bodies)) as pool, server.http() as shared:
        answers = list(pool.map(lambda body: shared.post(path, json=body), bodies))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert 200 in {answer.status_code for answer in answers}
    assert len(ok(http.get("/v1/conversations/", params={"agent_id": agent}))) == 1


def test_a_busy_thread_refuses_a_second_run_and_finishes_the_first(
    driver: NodeDriver, server: ServerInThread, agent: str, thread: Thread
) -> None:
    gate = Gate(server, "Done.")
    server.answers_with(gate)
    thread.begin("Begin.")
    gate.wait()
    with server.http() as http:
        busy = http.post(f"/v1/agents/{agent}/ag-ui", json=run_body(thread.id, "And this."))
    assert busy.status_code == 409
    gate.open()
    first = driver.answer()
    assert first["messages"][-1]["content"] == "Done."


def test_a_repeated_run_request_gets_the_first_answer(server: ServerInThread, agent: str) -> None:
    server.says("The only answer.")
    body = run_body(new_id("thread"), "Hello.")
    for _ in range(2):
        events = post(server, agent, {**body, "runId": new_id("run")})
        texts = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(texts) == "The only answer."
    assert len(server.model.requests) == 1


def test_requests_with_unknown_message_kinds_are_answered(
    server: ServerInThread, agent: str
) -> None:
    odd: list[Any] = [
        {"id": 0, "role": "assistant", "content": "Hm."},
        {"id": "1", "role": "activity", "activityType": "x", "content": {"a": None}},
        {"id": "2", "role": "reasoning", "content": "Hm."},
        {"id": "3", "role": "oracle", "content": 7},
        {"id": None, "role": None, "content": None, "name": None},
        {"id": "4", "role": "user", "content": ""},
        {"id": "5", "role": "user", "content": []},
        {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Hello."}, 3]},
    ]
    nulls = dict.fromkeys(("tools", "context", "resume", "forwardedProps", "parentRunId"))
    body = {"threadId": "t", "runId": "r", "messages": odd, "state": None, "later": 1, **nulls}
    server.says("Hello.")
    events = post(server, agent, body)
    assert events[-1]["outcome"] == {"type": "success"}
    assert said_to(server) == ["Hello."]
    for messages in (None, [], odd[:7]):
        events = post(server, agent, {"threadId": "u", "runId": "r", "messages": messages})
        kinds = [event["type"] for event in events]
        assert kinds == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert len(server.model.requests) == 1


def test_a_thread_with_unstorable_history_continues(server: ServerInThread, agent: str) -> None:
    """The client sends the same history with each run, so a refusal would repeat for ever."""
    body = run_body(new_id("thread"), "Half \ud83d and \0.", "Hello.")
    body["messages"][0]["metadata"] = {"size": 1 << 70}
    for answer in ("Hi.", "Still here."):
        server.says(answer)
        sent = json.dumps({**body, "runId": new_id("run")})
        with server.http() as http:
            streamed = http.post(
                f"/v1/agents/{agent}/ag-ui",
                content=sent,
                headers={"content-type": "application/json"},
            )
        assert streamed.status_code == 200, streamed.text
        events = [event for _, event in events_of(streamed.text)]
        assert events[-1]["outcome"] == {"type": "success"}
        body["messages"] += [
            {"id": new_id("m"), "role": "assistant", "content": answer},
            {"id": new_id("m"), "role": "user", "content": "And now?"},
        ]


def test_client_state_is_kept_and_client_instructions_apply_to_one_run(
    driver: NodeDriver, server: ServerInThread, agent: str
) -> None:
    state = {"page": 3, "memory": {"persona": "I am somebody else."}, "huge": "x" * 100_000}
    thread = Thread(driver, server.url, agent, initialState=state)
    context = [{"description": "The page", "value": "Algebra"}]
    instructions = {"id": "s", "role": "system", "content": "Speak like a pirate."}
    run = thread.run("Hello.", messages=[instructions], context=context)
    assert run["state"] == {**state, "memory": {"persona": "I am Nina."}}
    asked = "\n".join(message.text for message in server.model.requests[-1].messages)
    assert "Speak like a pirate." in asked
    assert "The page: Algebra" in asked
    with server.http() as http:
        kept = ok(http.get(f"/v1/agents/{agent}"))["memory"]["blocks"]
    assert [block["value"] for block in kept] == ["I am Nina."]


def test_a_thread_belongs_to_its_user_and_memory_needs_the_read_scope(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("people"), api_key=KEY) as server:
        with server.http(headers=bearer(KEY)) as http:
            body = {"name": "Nina", "model": MODEL, "memory_blocks": []}
            agent = ok(http.post("/v1/agents/", json=body))["id"]
            keys = {}
            for user in ("ada", "bob"):
                ok(http.put(f"/users/{user}/blocks/human", json={"body": f"I am {user}."}))
                keys[user] = ok(http.post("/v1/keys/", json={"user": user, "role": "user"}))
            scopes = ["messages:read", "messages:write", "agents:read"]
            narrow = ok(
                http.post("/v1/keys/", json={"user": "ada", "role": "user", "scopes": scopes})
            )
        heads = {user: {"authorization": f"Bearer {key['key']}"} for user, key in keys.items()}
        server.says("Hello Ada.", "Hello Bob.", "Still there.")
        ours = post(server, agent, run_body("same", "I am Ada."), **heads["ada"])
        theirs = post(server, agent, run_body("same", "I am Bob."), **heads["bob"])
        assert ours[1]["snapshot"] == {"memory": {"human": "I am ada."}}
        assert theirs[1]["snapshot"] == {"memory": {"human": "I am bob."}}
        assert said_to(server) == ["I am Bob."]
        conversation = ours[0]["metadata"]["ricordo"]["conversation_id"]
        path = f"/v1/agents/{agent}/ag-ui"
        with server.http(headers=heads["bob"]) as http:
            assert http.post(path, json=run_body(conversation, "Hi.")).status_code == 404
        again = post(server, agent, run_body(conversation, "Hi again."), **heads["ada"])
        assert again[-1]["outcome"] == {"type": "success"}
        assert said_to(server)[0] == "I am Ada."
        blind = {"authorization": f"Bearer {narrow['key']}"}
        assert post(server, agent, run_body("other"), **blind)[1]["snapshot"] == {"memory": {}}
