"""Calls that wait: what is asked, which answers fit, and what becomes of every call."""

from typing import Any

import pytest

from ricordo.agents.approvals import (
    EXPIRED,
    NOTHING_WAITS,
    STILL_WAITING,
    answered,
    given_up,
    has_expired,
    require_nothing_waits,
    to_all,
    waiting_in,
    with_approval,
)
from ricordo.domain.clock import SECOND
from ricordo.domain.message import ApprovalPart, Message, Part, ToolCallPart, ToolReturnPart
from ricordo.domain.tool import ToolRule
from ricordo.errors import Conflict, Invalid
from tests.support import make
from tests.support.clock import START

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


@pytest.mark.parametrize(
    "parts", [(), (YES,), (YES, YES, CLICKED), (YES, CLICKED, ApprovalPart("free", approves=True))]
)
def test_an_answer_has_to_name_exactly_the_calls_that_wait(parts: tuple[Part, ...]) -> None:
    with pytest.raises(Invalid, match=r"^Invalid tool call IDs\. Expected '\['roll', 'click'\]', but received '"):
        answered(WINDOW, parts)


@pytest.mark.parametrize("window", [[], WINDOW[:2]])
def test_an_answer_while_nothing_waits_is_refused(window: list[Message]) -> None:
    with pytest.raises(Invalid, match=NOTHING_WAITS):
        answered(window, (YES,))
    with pytest.raises(Invalid, match=NOTHING_WAITS):
        to_all(window, approves=True, reason=None)


def test_one_decision_can_be_about_all_calls_that_wait() -> None:
    assert to_all(WINDOW, approves=False, reason="No.") == (NO, ApprovalPart("click", approves=False, reason="No."))


def test_a_message_has_to_wait_for_the_answer_until_that_is_overdue() -> None:
    with pytest.raises(Conflict) as caught:
        require_nothing_waits(WINDOW, START + 59 * SECOND, 60)
    assert str(caught.value) == STILL_WAITING
    assert require_nothing_waits(WINDOW, START + 60 * SECOND, 60) is REQUEST
    assert require_nothing_waits(WINDOW[:2], START, 60) is None
    assert [has_expired(REQUEST, START + seconds * SECOND, 60) for seconds in (0, 59, 60)] == [False, False, True]


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
