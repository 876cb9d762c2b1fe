"""Calls that wait for a person: asked for, approved, denied, forgotten, cancelled, and never a deadlock."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from ricordo.agents.run_end import CANCELLED
from ricordo.agents.turn_start import EXPIRED, STILL_WAITING
from ricordo.domain.scope import Scope
from ricordo.storage import tools
from ricordo.storage.engine.store import Transaction
from tests.behaviour.approving import asks, decides, pending, require_free
from tests.behaviour.scene import BROKEN, CLAUDE, Scene, calls, kinds, returns, roles, said, speech, stopped
from tests.support.model_server import claude

ROLL_WAITS = [{"type": "requires_approval", "tool_name": "roll"}]
BOTH_WAIT = [*ROLL_WAITS, {"type": "requires_approval", "tool_name": "toss"}]


# What is asked.


def test_a_request_for_approval_shows_the_calls_and_what_the_agent_said_before(scene: Scene) -> None:
    agent = scene.agent("roll", tool_rules=ROLL_WAITS)
    scene.says(calls(("roll", {"sides": 8}), text="May I?"))

    answer = scene.send(agent, "Roll.")

    assert (kinds(answer), stopped(answer), scene.played) == (
        ["assistant", "approval_request"],
        "requires_approval",
        [],
    )
    request = answer["messages"][1]
    assert request["tool_call"] == request["tool_calls"][0]
    assert (request["tool_call"]["name"], request["tool_call"]["arguments"]) == ("roll", '{"sides": 8}')
    run = scene.http.get(f"/v1/runs/{request['run_id']}").json()
    assert (run["status"], run["stop_reason"]) == ("completed", "requires_approval")
    shown = scene.state(agent)["pending_approval"]
    assert shown["id"] == request["id"]
    assert kinds(scene.history(agent))[-2:] == ["assistant", "approval_request"]


def test_a_request_for_approval_fits_the_clients_types(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("Eight.")
    approval: Any = decides((call_id, True))
    answer = scene.client.agents.messages.create(agent, messages=[approval])
    assert [message.message_type for message in answer.messages] == ["tool_return_message", "assistant_message"]
    kept = [message.message_type for message in scene.client.agents.messages.list(agent, order="asc")]
    assert kept[2:] == [
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
        "assistant_message",
    ]


# What is decided.


def test_an_approved_call_is_run_and_the_agent_goes_on(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("Eight.")

    answer = scene.send(agent, decides((call_id, True)))

    assert (kinds(answer), stopped(answer)) == (["tool_return", "assistant"], "end_turn")
    assert scene.games.played == [("roll", 8)]
    assert roles(scene.asked[-1]) == "system user assistant tool"
    require_free(scene, agent)


def test_a_denied_call_is_not_run_and_the_agent_reads_the_reason(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("As you wish.")

    answer = scene.send(agent, decides((call_id, False, "No gambling.")))

    assert scene.played == []
    assert returns(answer) == [("error", "Error: request to call tool denied. User reason: No gambling.")]
    assert "No gambling." in scene.asked[-1]["messages"][-1]["content"]
    require_free(scene, agent)


def test_of_several_calls_some_are_approved(scene: Scene) -> None:
    agent, (first, second) = asks(scene, ("roll", {}), ("toss", {}), rules=BOTH_WAIT)
    scene.says("Heads.")

    answer = scene.send(agent, decides((second, True), (first, False, "Not that.")))

    assert scene.played == ["toss"]
    assert [status for status, _ in returns(answer)] == ["error", "success"]
    assert [one["tool_call_id"] for one in answer["messages"][0]["tool_returns"]] == [first, second]


def test_calls_that_need_no_approval_wait_beside_those_that_do_and_are_run_with_them(scene: Scene) -> None:
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


def test_an_agent_that_speaks_by_calls_waits_and_goes_on_too(scene: Scene) -> None:
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent", tool_rules=ROLL_WAITS)
    scene.says(calls(("roll", {"request_heartbeat": True})))
    (call_id,) = pending(scene.send(agent, "Roll."))
    scene.says(speech("Six."))
    answer = scene.send(agent, decides((call_id, True)))
    assert (said(answer), stopped(answer)) == (["Six."], "tool_rule")


def test_a_rule_that_ends_the_turn_holds_after_an_approval_too(scene: Scene) -> None:
    rules = [*ROLL_WAITS, {"type": "exit_loop", "tool_name": "roll"}]
    agent, (call_id,) = asks(scene, rules=rules)
    answer = scene.send(agent, decides((call_id, True)))
    assert (kinds(answer), stopped(answer)) == (["tool_return"], "tool_rule")
    require_free(scene, agent)


def test_claude_waits_with_its_signed_thoughts_and_goes_on_with_them(scene: Scene) -> None:
    thinking = {"type": "thinking", "thinking": "Risky.", "signature": "sig-9"}
    agent = scene.agent("roll", model=CLAUDE, tool_rules=ROLL_WAITS)
    scene.says(claude(thinking, {"type": "tool_use", "id": "toolu_1", "name": "roll", "input": {}}, stop="tool_use"))
    asked = scene.send(agent, "Roll.")
    assert kinds(asked) == ["reasoning", "approval_request"]
    scene.says(claude({"type": "text", "text": "Six."}))
    scene.send(agent, decides(("toolu_1", True)))
    assert scene.asked[-1]["messages"][1]["content"][0] == thinking


@pytest.mark.parametrize("approves", [True, False])
def test_an_older_client_decides_about_all_calls_at_once(scene: Scene, approves: bool) -> None:
    agent, _ = asks(scene, ("roll", {}), ("toss", {}), rules=BOTH_WAIT)
    request_id = scene.state(agent)["pending_approval"]["id"]
    scene.says("Well.")

    answer = scene.send(agent, {"approve": approves, "approval_request_id": request_id, "reason": "Because."})

    assert scene.played == (["roll", "toss"] if approves else [])
    assert len(returns(answer)) == 2


def test_an_older_clients_answer_to_another_request_is_refused(scene: Scene) -> None:
    agent, _ = asks(scene)
    answer = scene.post(agent, {"type": "approval", "approve": True, "approval_request_id": "message-other"})
    assert answer.status_code == 400
    assert "Invalid approval request ID." in answer.text
    assert scene.state(agent)["pending_approval"]


def test_a_word_beside_the_decision_comes_after_the_results(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("Eight; and yes, tea.")

    answer = scene.send(agent, decides((call_id, True)), "And tea?")

    assert said(answer) == ["Eight; and yes, tea."]
    assert roles(scene.asked[-1]) == "system user assistant tool user"
    assert scene.asked[-1]["messages"][-1]["content"] == "And tea?"
    require_free(scene, agent)


# What does not fit.


@pytest.mark.parametrize(
    "ids", [("call-unknown",), (), ("0", "0"), ("0", "call-unknown")], ids=["unknown", "none", "twice", "more"]
)
def test_an_answer_that_names_other_calls_is_refused_and_the_request_waits_on(
    scene: Scene, ids: tuple[str, ...]
) -> None:
    agent, (call_id,) = asks(scene)
    named = [call_id if one == "0" else one for one in ids]
    rows = scene.server.rows()

    answer = scene.post(agent, decides(*((one, True) for one in named)))

    assert answer.status_code in (400, 422), answer.text
    if named:
        assert f"Invalid tool call IDs. Expected '{[call_id]}', but received '{named}'." in answer.json()["detail"]
    assert scene.server.rows() == rows
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_an_answer_while_nothing_waits_is_refused(scene: Scene) -> None:
    agent = scene.agent("roll", tool_rules=ROLL_WAITS)
    for answer in (decides(("call_1", True)), {"type": "approval", "approve": True}):
        refused = scene.post(agent, answer)
        assert refused.status_code == 400
        assert "No tool call is currently awaiting approval" in refused.text


def test_a_message_while_a_call_waits_is_a_conflict_that_a_client_does_not_retry(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    rows = scene.server.rows()

    answer = scene.post(agent, "Hello?")

    assert answer.status_code == 409
    assert answer.json()["detail"].removeprefix("CONFLICT: ") == STILL_WAITING
    assert answer.headers["x-should-retry"] == "false"
    assert scene.server.rows() == rows
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


# What becomes of a request that nobody answers.


def test_a_request_that_expired_is_denied_by_the_next_message(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = asks(scene)
    monkeypatch.setattr(scene.server.runtime.settings, "approval_expiry", 0.0)
    scene.says("Never mind the dice.")

    answer = scene.send(agent, "Hello?")

    assert said(answer) == ["Never mind the dice."]
    assert scene.played == []
    assert EXPIRED in str(returns(scene.history(agent)))
    assert roles(scene.asked[-1]) == "system user assistant tool user"
    require_free(scene, agent)


def test_an_answer_that_comes_late_but_before_anything_else_still_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, (call_id,) = asks(scene)
    monkeypatch.setattr(scene.server.runtime.settings, "approval_expiry", 0.0)
    scene.says("Eight.")
    assert said(scene.send(agent, decides((call_id, True)))) == ["Eight."]


def test_cancelling_denies_what_waits(scene: Scene) -> None:
    agent, _ = asks(scene)
    outcome = scene.http.post(f"/v1/agents/{agent}/messages/cancel")
    assert (outcome.status_code, set(outcome.json().values())) == (200, {"cancelled"})
    assert scene.state(agent)["last_stop_reason"] == "cancelled"
    assert CANCELLED in str(returns(scene.history(agent)))
    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 409
    require_free(scene, agent)


def test_a_reset_forgets_what_waits(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    assert scene.http.patch(f"/v1/agents/{agent}/reset-messages", json={}).status_code == 200
    assert scene.post(agent, decides((call_id, True))).status_code == 400
    require_free(scene, agent)


def test_an_agent_is_deleted_while_a_call_waits(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    assert scene.http.delete(f"/v1/agents/{agent}").status_code == 200
    assert scene.post(agent, decides((call_id, True))).status_code == 404


def test_the_tool_that_a_call_waits_for_can_be_taken_away(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    tool = next(one["id"] for one in scene.state(agent)["tools"] if one["name"] == "roll")
    assert scene.http.patch(f"/v1/agents/{agent}/tools/detach/{tool}").status_code == 200
    scene.says("Then not.")
    answer = scene.send(agent, decides((call_id, True)))
    assert (scene.played, [status for status, _ in returns(answer)]) == ([], ["error"])
    require_free(scene, agent)


# What happens twice, or half.


def test_a_repeated_answer_is_not_carried_out_twice(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("Eight.")
    approval = decides((call_id, True), otid="answer-1")
    first = scene.send(agent, approval)
    again = scene.send(agent, approval)
    assert scene.played == ["roll"]
    assert [one["id"] for one in again["messages"]] == [one["id"] for one in first["messages"]]


def test_a_clients_retry_of_an_answer_is_not_carried_out_twice(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says("Eight.")
    first = scene.send(agent, decides((call_id, True)), headers={"x-stainless-retry-count": "0"})
    again = scene.send(agent, decides((call_id, True)), headers={"x-stainless-retry-count": "1"})
    assert scene.played == ["roll"]
    assert said(again) == said(first) == ["Eight."]


def test_two_answers_at_once_are_carried_out_once(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
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
    assert codes.count(200) == 1
    assert set(codes) <= {200, 400, 409}
    assert scene.played == ["roll"]


def test_a_model_that_fails_after_an_approval_loses_no_result(scene: Scene) -> None:
    agent, (call_id,) = asks(scene)
    scene.says(BROKEN)
    assert scene.post(agent, decides((call_id, True))).status_code == 400
    assert scene.played == ["roll"]
    assert ("success", "8") in returns(scene.history(agent))
    require_free(scene, agent)


# Who decides that a tool waits.


def test_a_tool_of_one_agent_is_made_to_wait_and_no_longer(scene: Scene) -> None:
    agent = scene.agent("roll")
    changed = scene.client.agents.tools.update_approval("roll", agent_id=agent, body_requires_approval=True)
    assert changed is not None
    assert [one["type"] for one in scene.state(agent)["tool_rules"]] == ["requires_approval"]
    scene.says(calls(("roll", {})))
    (call_id,) = pending(scene.send(agent, "Roll."))

    off = scene.http.patch(f"/v1/agents/{agent}/tools/approval/roll", json={"requires_approval": False})
    assert off.json()["tool_rules"] == []
    scene.says("Six.")
    scene.send(agent, decides((call_id, True)))  # what waited goes on waiting for its answer
    scene.says(calls(("roll", {})), "Six again.")
    assert said(scene.send(agent, "Roll.")) == ["Six again."]
    assert scene.http.patch(f"/v1/agents/{agent}/tools/approval/nothing?requires_approval=true").status_code == 404
    assert scene.http.patch(f"/v1/agents/{agent}/tools/approval/roll").status_code in (400, 422)


def test_a_tool_that_asks_for_approval_does_so_at_every_agent_it_comes_to(scene: Scene) -> None:
    def set_default(tx: Transaction, wanted: bool) -> None:
        (tool,) = tools.find(tx, Scope(), ["draw"], [])
        tools.update(tx, replace(tool, needs_approval=wanted))

    plain = scene.agent("roll")
    scene.server.write(lambda tx: set_default(tx, True))
    try:
        made = scene.agent("draw")
        draw = scene.state(made)["tools"][0]
        assert draw["default_requires_approval"] is True
        scene.http.patch(f"/v1/agents/{plain}/tools/attach/{draw['id']}")
        for agent in (made, plain):
            scene.says(calls(("draw", {})))
            assert stopped(scene.send(agent, "Draw.")) == "requires_approval"
    finally:
        scene.server.write(lambda tx: set_default(tx, False))
    assert scene.played == []
