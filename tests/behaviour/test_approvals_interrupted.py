"""Servers that are killed, and readers that leave, around an approval: the next message is always answered."""

import threading

import pytest

from ricordo.agents.run_end import close_all
from ricordo.domain.message import ApprovalPart, ToolReturnPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.prompt.transcript import INTERRUPTED
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages, runs
from ricordo.storage.engine.store import Transaction
from tests.behaviour.approving import asks, decides, pending, require_free
from tests.behaviour.scene import Scene, calls, kinds, returns, roles, said
from tests.seams import make
from tests.support.model_server import stream


def take_up(scene: Scene, agent: str, *parts: ApprovalPart | ToolReturnPart, words: str | None = None) -> Run:
    """Leave the database as a server does that is killed after it took the answer up and before it saved results."""

    def work(tx: Transaction) -> Run:
        state = agents.load_whole(tx, Scope(), agent)
        run = make.run(state.agent)
        runs.open_run(tx, run)
        now = tx.clock.now()
        new = [make.message(state.agent, role="approval", parts=parts, run_id=run.id, created_at=now)]
        if words:
            new.append(make.message(state.agent, words, run_id=run.id, created_at=now))
        insert_messages(tx, new)
        return run

    return scene.server.write(work)


def test_a_kill_between_the_answer_and_its_results_tells_the_agent_that_nothing_is_known(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    run = take_up(scene, agent, ApprovalPart(call_id, approves=True), words="And tea?")

    scene.server.write(close_all)

    assert scene.http.get(f"/v1/runs/{run.id}").json()["status"] == "failed"
    assert returns(scene.history(agent)) == [("error", INTERRUPTED)]
    scene.says("I cannot tell what became of the roll.")
    scene.send(agent, "Well?")
    assert roles(scene.asked[-1]) == "system user assistant tool user user"
    assert [message["content"] for message in scene.asked[-1]["messages"][-2:]] == ["And tea?", "Well?"]
    require_free(scene, agent)


def test_what_the_client_did_survives_the_kill(scene: Scene) -> None:
    agent = scene.agent("roll")
    click = {"name": "click", "parameters": {"type": "object", "properties": {}}}
    scene.says(calls(("click", {}), ("roll", {})))
    (call_id,) = pending(scene.send(agent, "Go.", client_tools=[click]))
    take_up(scene, agent, ToolReturnPart(call_id, "click", "success", "clicked"))

    scene.server.write(close_all)

    assert returns(scene.history(agent)) == [("success", "clicked"), ("error", INTERRUPTED)]
    require_free(scene, agent)


def test_a_kill_before_the_answer_leaves_the_request_waiting(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.server.write(close_all)
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_a_turn_that_is_cancelled_after_the_answer_keeps_its_results(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    slow = calls(("roll", {}))
    scene.says(type(slow)(slow.body, delay=5))
    sent = threading.Thread(target=scene.post, args=(agent, decides((call_id, True))))
    before = len(scene.asked)
    sent.start()
    for _ in range(400):
        if len(scene.asked) > before:
            break
        threading.Event().wait(0.005)
    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 200
    sent.join()
    assert ("success", "8") in returns(scene.history(agent))
    require_free(scene, agent)


def test_the_window_is_whole_after_every_path(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    take_up(scene, agent, ApprovalPart(call_id, approves=False, reason="No."))
    scene.server.write(close_all)

    def window(tx: Transaction) -> tuple[list[str], list[str]]:
        thread = conversations.require(tx, Scope(), conversations.default_id(agent))
        return list(thread.window), [message.role for message in messages.by_ids(tx, thread.window)]

    ids, held = scene.server.read(window)
    assert held == ["system", "user", "approval", "approval", "tool"]
    shown = list(dict.fromkeys(message["id"] for message in scene.history(agent)))
    assert ids == shown


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_request_for_approval_is_streamed_and_answered_by_a_stream(scene: Scene, has_tokens: bool) -> None:
    agent = scene.agent("roll", tool_rules=[{"type": "requires_approval", "tool_name": "roll"}])
    first = {"index": 0, "id": "call_s", "type": "function", "function": {"name": "roll", "arguments": '{"sid'}}
    rest = {"index": 0, "function": {"arguments": 'es": 8}'}}
    streamed = stream({"tool_calls": [first]}, {"tool_calls": [rest]}, finish="tool_calls")
    scene.says(streamed if has_tokens else calls(("roll", {"sides": 8})))

    events = [value for _, value in scene.stream(agent, "Roll.", stream_tokens=has_tokens)]

    told = [one["message_type"] for one in events[:-1]]
    assert told[0] == "ping"
    assert told[-3:] == ["approval_request_message", "stop_reason", "usage_statistics"]
    assert events[-3]["stop_reason"] == "requires_approval"
    # Nobody may take what waits for a call that is being made.
    assert "tool_call_message" not in told
    whole = next(one for one in events[:-1] if one["message_type"] == "approval_request_message")
    call_id = whole["tool_calls"][0]["tool_call_id"] if isinstance(whole["tool_calls"], list) else "call_s"

    scene.says(stream({"content": "Eight."}) if has_tokens else "Eight.")
    events = [value for _, value in scene.stream(agent, decides((call_id, True)), stream_tokens=has_tokens)]
    assert kinds(events[1:-3]) == ["tool_return", "assistant"]
    require_free(scene, agent)
