"""Calls that wait: what is asked, which answers fit, and what becomes of every call."""

from typing import Any

import pytest

from ricordo.agents.approvals import EXPIRED, answered, given_up, waiting_in, with_approval
from ricordo.domain.message import ApprovalPart, Part, ToolCallPart, ToolReturnPart
from ricordo.domain.tool import ToolRule
from tests.seams import make
from tests.seams.stores import START

AGENT = make.agent()
FREE, ROLL = ToolCallPart("free", "toss", "{}"), ToolCallPart("roll", "roll", "{}", is_gated=True)
CLICK = ToolCallPart("click", "click", "{}", is_gated=True)
REQUEST = make.message(AGENT, role="approval", parts=(FREE, ROLL, CLICK), created_at=START)
WINDOW = [make.message(AGENT, "You play.", role="system"), make.message(AGENT, "Play."), REQUEST]
YES, NO = ApprovalPart("roll", approves=True), ApprovalPart("roll", approves=False, reason="No.")
CLICKED = ToolReturnPart("click", "", "success", "clicked")


def result(call: ToolCallPart, content: str = "done") -> ToolReturnPart:
    return ToolReturnPart(call.call_id, call.name, "success", content)


def test_only_the_last_message_of_a_window_can_wait() -> None:
    assert waiting_in(WINDOW) is REQUEST
    assert waiting_in([*WINDOW, make.message(AGENT, "Hello?")]) is None
    assert waiting_in([]) is None


@pytest.mark.parametrize(("decision", "runs"), [(YES, ["free", "roll"]), (NO, ["free"])])
def test_what_is_run_is_what_nobody_denied_and_the_client_has_not_done(decision: Part, runs: list[str]) -> None:
    answer = answered(WINDOW, (decision, CLICKED))
    assert [call.call_id for call in answer.calls_to_run()] == runs


def test_every_call_gets_one_result_in_the_order_of_the_calls() -> None:
    results = answered(WINDOW, (CLICKED, NO)).results([result(FREE, "heads")])
    assert [(one.call_id, one.name, one.status) for one in results] == [
        ("free", "toss", "success"),
        ("roll", "roll", "error"),
        ("click", "click", "success"),
    ]
    assert results[1].content == "Error: request to call tool denied. User reason: No."


def test_calls_that_nobody_answered_all_fail_also_those_that_needed_no_approval() -> None:
    assert [(one.call_id, one.status) for one in given_up(REQUEST, EXPIRED)] == [
        ("free", "error"),
        ("roll", "error"),
        ("click", "error"),
    ]


def test_a_tool_is_made_to_wait_once_and_no_longer_and_other_rules_stay() -> None:
    other: Any = ToolRule("roll", "exit_loop")
    agent = make.agent(tool_rules=(other,))
    once = with_approval(agent, "roll", is_wanted=True)
    assert once.tool_rules == (other, ToolRule("roll", "requires_approval"))
    assert with_approval(once, "roll", is_wanted=True) == once
    assert with_approval(once, "roll", is_wanted=False) == agent
    assert with_approval(agent, "toss", is_wanted=False) is agent
