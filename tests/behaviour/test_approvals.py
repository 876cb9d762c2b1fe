"""Calls that wait for a person's approval.

They are requested, approved, denied, forgotten, cancelled or interrupted by a kill, and never block
the agent for ever.
"""

import threading
from typing import Any

import pytest

from ricordo.domain.message import ApprovalPart, ToolReturnPart
from tests.seams.scene import (
    BROKEN,
    CLAUDE,
    WAITS,
    Scene,
    Wire,
    calls,
    decides,
    kinds,
    pending,
    returns,
    roles,
    said,
    speech,
    stopped,
)
from tests.support.model_server import Answer, claude, stream

INTERRUPTED = (
    "interrupted: the server stopped before this call had a result. It may or may not have taken "
    "effect."
)
STILL_WAITING = (
    "Cannot send a new message: The agent is waiting for approval on a tool call. "
    "Please approve or deny the pending request before continuing."
)
ROLL_WAITS = [WAITS]
BOTH_WAIT = [*ROLL_WAITS, {"type": "requires_approval", "tool_name": "toss"}]


# Requests for approval.


def test_an_approval_request_shows_the_calls_and_the_text_before_them(
    scene: Scene,
) -> None:
    agent = scene.agent("roll", tool_rules=ROLL_WAITS)
    scene.says(calls(("roll", {"sides": 8}), text="May I?"))

    answer = scene.send(agent, "Roll.")

    assert (kinds(answer), scene.played) == (["assistant", "approval_request"], [])
    assert stopped(answer) == "requires_approval"
    request = answer["messages"][1]
    assert request["tool_call"] == request["tool_calls"][0]
    assert (request["tool_call"]["name"], request["tool_call"]["arguments"]) == (
        "roll",
        '{"sides": 8}',
    )
    run = scene.http.get(f"/v1/runs/{request['run_id']}").json()
    assert (run["status"], run["stop_reason"]) == ("completed", "requires_approval")
    shown = scene.state(agent)["pending_approval"]
    assert shown["id"] == request["id"]
    assert kinds(scene.history(agent))[-2:] == ["assistant", "approval_request"]


def test_an_approved_call_runs_and_the_turn_continues(
    scene: Scene,
) -> None:
    agent, (call_id,) = scene.asks()
    scene.says("Eight.")
    approval: Any = decides((call_id, True))
    answer = scene.client.agents.messages.create(agent, messages=[approval])
    assert [message.message_type for message in answer.messages] == [
        "tool_return_message",
        "assistant_message",
    ]
    assert answer.stop_reason.stop_reason == "end_turn"
    assert scene.games.played == [("roll", 8)]
    assert roles(scene.asked[-1]) == "system user assistant tool"
    kept = [
        str(message.message_type)
        for message in scene.client.agents.messages.list(agent, order="asc")
    ]
    told = [kind.removesuffix("_message") for kind in kept[2:]]
    assert told == ["approval_request", "approval_response", "tool_return", "assistant"]
    scene.require_free(agent)


# Decisions.


def test_a_denied_call_does_not_run_and_the_agent_reads_the_reason(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    scene.says("As you wish.")

    answer = scene.send(agent, decides((call_id, False, "No gambling.")))

    assert scene.played == []
    assert returns(answer) == [
        ("error", "Error: request to call tool denied. User reason: No gambling.")
    ]
    assert "No gambling." in scene.asked[-1]["messages"][-1]["content"]
    scene.require_free(agent)


def test_some_of_several_calls_can_be_approved(scene: Scene) -> None:
    agent, (first, second) = scene.asks(("roll", {}), ("toss", {}), rules=BOTH_WAIT)
    scene.says("Heads.")

    answer = scene.send(agent, decides((second, True), (first, False, "Not that.")))

    assert scene.played == ["toss"]
    assert [status for status, _ in returns(answer)] == ["error", "success"]
    assert [one["tool_call_id"] for one in answer["messages"][0]["tool_returns"]] == [first, second]


def test_calls_that_need_no_approval_run_together_with_those_that_do(
    scene: Scene,
) -> None:
    agent = scene.agent("roll", "toss", tool_rules=ROLL_WAITS)
    scene.says(calls(("toss", {}), ("roll", {})))
    asked = scene.send(agent, "Play.")
    assert kinds(asked) == ["tool_call", "approval_request"]
    assert scene.played == []
    (call_id,) = pending(asked)
    scene.says("Heads, no roll.")

    answer = scene.send(agent, decides((call_id, False)))

    assert scene.played == ["toss"]
    assert [status for status, _ in returns(answer)] == ["success", "error"]


def test_a_heartbeat_agent_waits_for_approval_and_continues(scene: Scene) -> None:
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent", tool_rules=ROLL_WAITS)
    scene.says(calls(("roll", {"request_heartbeat": True})))
    (call_id,) = pending(scene.send(agent, "Roll."))
    scene.says(speech("Six."))
    answer = scene.send(agent, decides((call_id, True)))
    assert (said(answer), stopped(answer)) == (["Six."], "end_turn")


def test_an_exit_rule_ends_the_turn_after_an_approval_too(scene: Scene) -> None:
    rules = [*ROLL_WAITS, {"type": "exit_loop", "tool_name": "roll"}]
    agent, (call_id,) = scene.asks(rules=rules)
    answer = scene.send(agent, decides((call_id, True)))
    assert (kinds(answer), stopped(answer)) == (["tool_return"], "tool_rule")
    scene.require_free(agent)


def test_claude_gets_its_signed_thoughts_back_after_an_approval(scene: Scene) -> None:
    thinking = {"type": "thinking", "thinking": "Risky.", "signature": "sig-9"}
    agent = scene.agent("roll", model=CLAUDE, tool_rules=ROLL_WAITS)
    scene.says(
        claude(
            thinking,
            {"type": "tool_use", "id": "toolu_1", "name": "roll", "input": {}},
            stop="tool_use",
        )
    )
    asked = scene.send(agent, "Roll.")
    assert kinds(asked) == ["reasoning", "approval_request"]
    scene.says(claude({"type": "text", "text": "Six."}))
    scene.send(agent, decides(("toolu_1", True)))
    assert scene.asked[-1]["messages"][1]["content"][0] == thinking


@pytest.mark.parametrize("approves", [True, False])
def test_an_older_client_can_decide_about_all_calls_at_once(scene: Scene, approves: bool) -> None:
    agent, _ = scene.asks(("roll", {}), ("toss", {}), rules=BOTH_WAIT)
    request_id = scene.state(agent)["pending_approval"]["id"]
    other = scene.post(
        agent, {"type": "approval", "approve": True, "approval_request_id": "message-other"}
    )
    assert (other.status_code, "Invalid approval request ID." in other.text) == (400, True)
    scene.says("Well.")

    answer = scene.send(
        agent, {"approve": approves, "approval_request_id": request_id, "reason": "Because."}
    )

    assert scene.played == (["roll", "toss"] if approves else [])
    assert len(returns(answer)) == 2


def test_a_message_sent_with_a_decision_follows_the_results(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    scene.says("Eight; and yes, tea.")

    answer = scene.send(agent, decides((call_id, True)), "And tea?")

    assert said(answer) == ["Eight; and yes, tea."]
    assert roles(scene.asked[-1]) == "system user assistant tool user"
    assert scene.asked[-1]["messages"][-1]["content"] == "And tea?"
    scene.require_free(agent)


# Decisions that do not fit.


def test_a_decision_about_other_calls_is_refused_and_the_request_still_waits(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    rows = scene.server.rows()
    for named in (["call-unknown"], [], [call_id, call_id], [call_id, "call-unknown"]):
        answer = scene.post(agent, decides(*((one, True) for one in named)))
        assert answer.status_code in (400, 422), (named, answer.text)
        if named:
            assert (
                f"Invalid tool call IDs. Expected '{[call_id]}', but received '{named}'."
                in answer.json()["detail"]
            )
        assert scene.server.rows() == rows, named
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_a_decision_while_no_call_waits_is_refused(scene: Scene) -> None:
    agent = scene.agent("roll", tool_rules=ROLL_WAITS)
    for answer in (decides(("call_1", True)), {"type": "approval", "approve": True}):
        refused = scene.post(agent, answer)
        assert refused.status_code == 400
        assert "No tool call is currently awaiting approval" in refused.text


def test_a_message_while_a_call_waits_is_a_conflict_without_a_retry(
    scene: Scene,
) -> None:
    agent, (call_id,) = scene.asks()
    rows = scene.server.rows()

    answer = scene.post(agent, "Hello?")

    assert answer.status_code == 409
    assert answer.json()["detail"].removeprefix("CONFLICT: ") == STILL_WAITING
    assert answer.headers["x-should-retry"] == "false"
    assert scene.server.rows() == rows
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


# Requests without an answer.


def test_an_expired_request_is_denied_by_the_next_message(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = scene.asks()
    monkeypatch.setattr(scene.server.runtime.settings, "approval_expiry", 0.0)
    scene.says("Never mind the dice.")

    answer = scene.send(agent, "Hello?")

    assert said(answer) == ["Never mind the dice."]
    assert scene.played == []
    assert "was not answered in time" in str(returns(scene.history(agent)))
    assert roles(scene.asked[-1]) == "system user assistant tool user"
    scene.require_free(agent)
    # A late answer still counts if nothing else was sent before it.
    agent, (call_id,) = scene.asks()
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_cancelling_denies_a_waiting_call(scene: Scene) -> None:
    agent, _ = scene.asks()
    outcome = scene.http.post(f"/v1/agents/{agent}/messages/cancel")
    assert (outcome.status_code, set(outcome.json().values())) == (200, {"cancelled"})
    assert scene.state(agent)["last_stop_reason"] == "cancelled"
    assert "The user cancelled the request" in str(returns(scene.history(agent)))
    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 409
    scene.require_free(agent)


def test_an_agent_can_be_reset_or_deleted_while_a_call_waits(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    assert scene.http.patch(f"/v1/agents/{agent}/reset-messages", json={}).status_code == 200
    assert scene.post(agent, decides((call_id, True))).status_code == 400
    scene.require_free(agent)
    agent, (call_id,) = scene.asks()
    assert scene.http.delete(f"/v1/agents/{agent}").status_code == 200
    assert scene.post(agent, decides((call_id, True))).status_code == 404


def test_the_tool_of_a_waiting_call_can_be_detached(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    tool = next(one["id"] for one in scene.state(agent)["tools"] if one["name"] == "roll")
    assert scene.http.patch(f"/v1/agents/{agent}/tools/detach/{tool}").status_code == 200
    scene.says("Then not.")
    answer = scene.send(agent, decides((call_id, True)))
    assert (scene.played, [status for status, _ in returns(answer)]) == ([], ["error"])
    scene.require_free(agent)


# Repeated and interrupted decisions.


def test_a_repeated_decision_runs_its_call_once(scene: Scene) -> None:
    for more, number in (({"otid": "answer-1"}, "0"), ({}, "1")):  # the second is a client's retry
        scene.games.played.clear()
        agent, (call_id,) = scene.asks()
        scene.says("Eight.")
        approval = decides((call_id, True), **more)
        first = scene.send(agent, approval, headers={"x-stainless-retry-count": "0"})
        again = scene.send(agent, approval, headers={"x-stainless-retry-count": number})
        assert scene.played == ["roll"], more
        assert [one["id"] for one in again["messages"]] == [one["id"] for one in first["messages"]]
        assert said(again) == said(first) == ["Eight."]


def test_a_repeated_decision_is_recognized_by_its_calls(scene: Scene) -> None:
    """Clients send an answer again after a lost connection.

    It is recognized without an otid, after a compaction, and while the next call already waits.
    """
    agent, (call_id,) = scene.asks(rules=BOTH_WAIT)
    request = scene.state(agent)["pending_approval"]
    scene.says(calls(("toss", {}), text="And now?"))
    first = scene.send(agent, decides((call_id, True)))
    assert scene.send(agent, decides((call_id, True)))["messages"] == first["messages"]
    assert scene.state(agent)["pending_approval"]["id"] != request["id"]
    scene.says("Eight, and heads.")
    scene.send(agent, decides(*((id, True) for id in pending(first))))
    again = {"type": "approval", "approve": True, "approval_request_id": request["id"]}
    for is_compacted in (False, True):
        if is_compacted:
            scene.says("They played.")
            scene.http.post(f"/v1/agents/{agent}/summarize").raise_for_status()
        assert scene.send(agent, decides((call_id, True)))["messages"] == first["messages"]
        assert scene.send(agent, again)["messages"] == first["messages"]
    # A message sent with the answer counts as new. A different decision is refused, and so is an
    # answer to a call that never waited.
    scene.says("You are welcome.")
    said_too = scene.client.agents.messages.create(
        agent,
        messages=[decides((call_id, True)), {"role": "user", "content": "Thank you."}],  # type: ignore[list-item]
    )
    assert said_too.messages[-1].content == "You are welcome."  # type: ignore[union-attr]
    assert scene.played == ["roll", "toss"]
    for other in (decides((call_id, False)), decides(("call_nobody", True))):
        assert "No tool call is currently awaiting approval" in scene.post(agent, other).text
    shown = [
        one for one in scene.history(agent) if one["message_type"] == "approval_response_message"
    ]
    assert (shown[0]["approve"], shown[0]["approval_request_id"]) == (True, call_id)
    scene.require_free(agent)


def test_two_concurrent_decisions_run_the_call_once(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    scene.says("Eight.")
    codes: list[int] = []

    def answer() -> None:
        with scene.server.http() as http:
            body = {"messages": [decides((call_id, True))]}
            codes.append(http.post(f"/v1/agents/{agent}/messages", json=body).status_code)

    both = [threading.Thread(target=answer) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert 200 in codes
    assert set(codes) <= {200, 409}
    assert scene.played == ["roll"]


def test_a_model_error_after_an_approval_loses_no_result(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    scene.says(BROKEN)
    assert scene.post(agent, decides((call_id, True))).status_code == 400
    assert scene.played == ["roll"]
    assert ("success", "8") in returns(scene.history(agent))
    scene.require_free(agent)


# Changes of the tools that wait for approval.


def test_one_agents_tool_can_be_made_to_need_approval_and_back(scene: Scene) -> None:
    agent = scene.agent("roll")
    changed = scene.client.agents.tools.update_approval(
        "roll", agent_id=agent, body_requires_approval=True
    )
    assert changed is not None
    assert [one["type"] for one in scene.state(agent)["tool_rules"]] == ["requires_approval"]
    scene.says(calls(("roll", {})))
    (call_id,) = pending(scene.send(agent, "Roll."))

    off = scene.http.patch(
        f"/v1/agents/{agent}/tools/approval/roll", json={"requires_approval": False}
    )
    assert off.json()["tool_rules"] == []
    scene.says("Six.")
    scene.send(agent, decides((call_id, True)))  # The waiting call still waits for its answer.
    scene.says(calls(("roll", {})), "Six again.")
    assert said(scene.send(agent, "Roll.")) == ["Six again."]
    assert (
        scene.http.patch(
            f"/v1/agents/{agent}/tools/approval/nothing?requires_approval=true"
        ).status_code
        == 404
    )
    assert scene.http.patch(f"/v1/agents/{agent}/tools/approval/roll").status_code in (400, 422)


def test_a_tool_that_needs_approval_needs_it_for_every_agent(scene: Scene) -> None:
    plain = scene.agent("roll")
    scene.set_approval("draw", True)
    try:
        made = scene.agent("draw")
        draw = scene.state(made)["tools"][0]
        assert draw["default_requires_approval"] is True
        scene.http.patch(f"/v1/agents/{plain}/tools/attach/{draw['id']}")
        for agent in (made, plain):
            scene.says(calls(("draw", {})))
            assert stopped(scene.send(agent, "Draw.")) == "requires_approval"
    finally:
        scene.set_approval("draw", False)
    assert scene.played == []


# Servers that are killed, and readers that leave.


def test_a_kill_between_a_decision_and_its_result_records_an_interrupted_call(
    scene: Scene,
) -> None:
    agent, (call_id,) = scene.asks()
    run = scene.kill_after_answer(agent, ApprovalPart(call_id, approves=True), words="And tea?")

    scene.restart()

    assert scene.http.get(f"/v1/runs/{run.id}").json()["status"] == "failed"
    history = scene.history(agent)
    assert returns(history) == [("error", INTERRUPTED)]
    assert kinds(history) == [
        "system",
        "user",
        "approval_request",
        "approval_response",
        "user",
        "tool_return",
    ]
    assert set(scene.state(agent)["message_ids"]) == {message["id"] for message in history}
    scene.says("I cannot tell what became of the roll.")
    scene.send(agent, "Well?")
    assert roles(scene.asked[-1]) == "system user assistant tool user user"
    assert [message["content"] for message in scene.asked[-1]["messages"][-2:]] == [
        "And tea?",
        "Well?",
    ]
    scene.require_free(agent)


def test_a_clients_result_survives_a_kill(scene: Scene) -> None:
    agent = scene.agent("roll")
    click = {"name": "click", "parameters": {"type": "object", "properties": {}}}
    scene.says(calls(("click", {}), ("roll", {})))
    (call_id,) = pending(scene.send(agent, "Go.", client_tools=[click]))
    scene.kill_after_answer(agent, ToolReturnPart(call_id, "click", "success", "clicked"))

    scene.restart()

    assert returns(scene.history(agent)) == [("success", "clicked"), ("error", INTERRUPTED)]
    scene.require_free(agent)


def test_a_kill_before_the_decision_leaves_the_request_waiting(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    scene.restart()
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_a_turn_cancelled_after_the_decision_keeps_its_results(scene: Scene) -> None:
    agent, (call_id,) = scene.asks()
    slow = calls(("roll", {}))
    scene.says(type(slow)(slow.body, delay=5))
    sent = threading.Thread(target=scene.post, args=(agent, decides((call_id, True))))
    before = len(scene.asked)
    sent.start()
    scene.wait_until_asked(before)
    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 200
    sent.join()
    assert ("success", "8") in returns(scene.history(agent))
    scene.require_free(agent)


@pytest.mark.parametrize(
    "has_all_pairs",
    [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)],
)
def test_repeating_a_decision_after_its_turn_was_interrupted_continues_the_agent(
    scene: Scene, has_all_pairs: bool
) -> None:
    """Results and decisions, in all forms, can be repeated after a cancellation or a failure.

    The calls do not run again.
    """
    for form in ("decision", "otid", "older", "older by call", "result", "denial"):
        # A decision and a result are tested with both causes; the long form tests all pairs.
        has_both = has_all_pairs or form in ("decision", "result")
        for cause in ("cancelled", "failed") if has_both else ("failed",):
            scene.games.played.clear()
            agent, (call_id,) = scene.asks()
            asked = scene.state(agent)["pending_approval"]["id"]
            answer: Wire = {
                "decision": decides((call_id, True)),
                "otid": decides((call_id, True), otid="same"),
                "older": {"approve": True, "approval_request_id": asked},
                "older by call": {"approve": True, "approval_request_id": call_id},
                "result": {
                    "type": "approval",
                    "approvals": [{"type": "tool", "tool_call_id": call_id, "tool_return": "8"}],
                },
                "denial": decides((call_id, False)),
            }[form]
            _fail_after_results(scene, agent, answer, cause)
            before = len(scene.history(agent))
            scene.says("Eight.")
            again = scene.send(agent, answer)
            assert (said(again), stopped(again)) == (["Eight."], "end_turn"), (form, cause)
            shown = [one["message_type"] for one in scene.history(agent)[before:]]
            assert shown == ["user_message", "assistant_message"], (form, cause)
            assert "keep-alive" in scene.history(agent)[before]["content"]
            assert scene.played == (["roll"] if form not in ("result", "denial") else []), (
                form,
                cause,
            )
            scene.require_free(agent)


def _fail_after_results(scene: Scene, agent: str, answer: Wire, cause: str) -> None:
    """Send this answer, and let its turn fail or be cancelled after the results of its calls."""
    if cause == "failed":
        scene.says(Answer({"error": {"message": "wrong key"}}, status=401))
        assert scene.post(agent, answer).status_code == 401
        return
    slow = calls(("roll", {}))
    scene.says(type(slow)(slow.body, delay=5))
    sent = threading.Thread(target=scene.post, args=(agent, answer))
    before = len(scene.asked)
    sent.start()
    scene.wait_until_asked(before)
    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 200
    sent.join()


@pytest.mark.parametrize("has_tokens", [False, True])
def test_an_approval_request_and_its_decision_can_be_streamed(
    scene: Scene, has_tokens: bool
) -> None:
    agent = scene.agent("roll", tool_rules=ROLL_WAITS)
    first = {
        "index": 0,
        "id": "call_s",
        "type": "function",
        "function": {"name": "roll", "arguments": '{"sid'},
    }
    rest = {"index": 0, "function": {"arguments": 'es": 8}'}}
    streamed = stream({"tool_calls": [first]}, {"tool_calls": [rest]}, finish="tool_calls")
    scene.says(streamed if has_tokens else calls(("roll", {"sides": 8})))

    events = [value for _, value in scene.stream(agent, "Roll.", stream_tokens=has_tokens)]

    told = [one["message_type"] for one in events[:-1]]
    assert told[0] == "ping"
    assert told[-3:] == ["approval_request_message", "stop_reason", "usage_statistics"]
    assert events[-3]["stop_reason"] == "requires_approval"
    # The waiting call must not be shown as an ordinary tool call.
    assert "tool_call_message" not in told
    whole = next(one for one in events[:-1] if one["message_type"] == "approval_request_message")
    call_id = (
        whole["tool_calls"][0]["tool_call_id"]
        if isinstance(whole["tool_calls"], list)
        else "call_s"
    )

    scene.says(stream({"content": "Eight."}) if has_tokens else "Eight.")
    events = [
        value
        for _, value in scene.stream(agent, decides((call_id, True)), stream_tokens=has_tokens)
    ]
    assert kinds(events[1:-3]) == ["tool_return", "assistant"]
    scene.require_free(agent)
