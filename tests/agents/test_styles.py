"""What an agent is offered, what its reply means, and what comes after it."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from ricordo.agents.approvals import Answered
from ricordo.agents.styles import (
    AFTER_FAILURE,
    ONE_BY_ONE,
    REMINDER,
    REQUESTED,
    HeartbeatStyle,
    NativeStyle,
    NextAction,
    OfferedTools,
    ParsedReply,
    Style,
    called,
    decide,
    read,
    read_again,
    require_before_exit,
    style_of,
)
from ricordo.domain.message import (
    ApprovalPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from ricordo.domain.model import ModelReply, ModelSettings, ToolSchema
from ricordo.domain.tool import ToolRule
from ricordo.errors import Unsupported
from ricordo.llm.scripted import call
from ricordo.tools.rules import Called, Rulebook
from tests.support import make

NATIVE, HEARTBEAT = NativeStyle(), HeartbeatStyle()
SIDES = {"type": "object", "properties": {"sides": {"type": "integer"}}, "required": []}
ROLL, TOSS = ToolSchema("roll", "Rolls a die.", SIDES), ToolSchema("toss", "Tosses a coin.", SIDES)
SPEECH = ToolSchema(
    "send_message",
    "Says something.",
    {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
)


def rules(*rule: ToolRule) -> Rulebook:
    return Rulebook(rule, ["roll", "toss", "send_message"])


def offer(
    style: Style, book: Rulebook | None = None, *, tools: tuple[ToolSchema, ...] = (), **settings: Any
) -> OfferedTools:
    book = book or rules()
    agent = replace(make.agent(), model_settings=ModelSettings(**settings))
    return style.present(tools or (ROLL, TOSS, SPEECH), book.allowed([]), book, agent)


def result(of: ToolCallPart, status: Any = "success", content: str = "six") -> ToolReturnPart:
    return ToolReturnPart(of.call_id, of.name, status, content)


# What is offered.


def test_a_native_agent_is_offered_all_its_tools_as_they_are_and_may_leave_them() -> None:
    offered = offer(NATIVE)
    assert list(offered.tools.values()) == [ROLL, TOSS, SPEECH]
    assert offered.choice == "auto"


def test_an_agent_of_the_heartbeat_style_must_call_a_tool_and_may_ask_for_another_step() -> None:
    offered = offer(HEARTBEAT, rules(ToolRule("send_message", "exit_loop")))
    assert offered.choice == "required"
    assert {name: list(tool.parameters["properties"]) for name, tool in offered.tools.items()} == {
        "roll": ["sides", "request_heartbeat"],
        "toss": ["sides", "request_heartbeat"],
        "send_message": ["message"],
    }


def test_thoughts_and_a_format_are_offered_where_the_agent_is_set_to_them() -> None:
    offered = offer(HEARTBEAT, thinks_in_arguments=True, response_format={"type": "json_object"})
    assert list(offered.tools["roll"].parameters["properties"]) == ["thinking", "sides", "request_heartbeat"]
    assert offered.tools["send_message"].parameters["properties"]["message"]["type"] == "object"


@pytest.mark.parametrize("style", [NATIVE, HEARTBEAT])
def test_without_a_tool_no_call_is_asked_for(style: Style) -> None:
    book = Rulebook((), [])
    offered = style.present((), book.allowed([]), book, make.agent())
    assert (dict(offered.tools), offered.choice) == ({}, "none")


def test_a_rule_that_wants_a_call_makes_a_native_agent_call() -> None:
    offered = offer(NATIVE, rules(ToolRule("toss", "run_first")))
    assert (list(offered.tools), offered.choice) == (["toss"], "required")


# What a reply means.


def test_words_and_thoughts_stay_as_they_are() -> None:
    parts = (ReasoningPart("Hm."), TextPart("Hello."))
    assert read(ModelReply(parts), offer(NATIVE), rules(), {}) == ParsedReply(parts)


def test_thoughts_are_taken_out_of_a_call_and_the_tool_gets_neither_them_nor_the_heartbeat() -> None:
    asked = call("roll", thinking="Let me see.", sides=6, request_heartbeat=True)
    reading = read(ModelReply((asked,)), offer(HEARTBEAT, thinks_in_arguments=True), rules(), {})
    thought, kept = reading.parts
    assert thought == ReasoningPart("Let me see.", native=False)
    assert isinstance(kept, ToolCallPart)
    assert orjson.loads(kept.arguments) == {"sides": 6, "request_heartbeat": True}
    assert [orjson.loads(one.arguments) for one in reading.calls] == [{"sides": 6}]
    assert reading.wants_heartbeat


def test_a_call_that_is_not_offered_is_refused_with_the_names_of_those_that_are() -> None:
    book = rules(ToolRule("toss", "run_first"))
    asked = call("roll")
    reading = read(ModelReply((asked,)), offer(NATIVE, book), book, {})
    assert reading.calls == ()
    (refusal,) = reading.refused
    assert (refusal.call_id, refusal.status) == (asked.call_id, "error")
    assert "[ToolConstraintError] Cannot call roll, valid tools include: [toss]" in refusal.content


def test_arguments_that_a_rule_fixes_stand_in_the_call_and_in_what_is_run() -> None:
    book = rules(ToolRule("roll", "run_first", None, {"args": {"sides": 20}}))
    reading = read(ModelReply((call("roll", sides=6),)), offer(NATIVE, book), book, {})
    (kept,) = reading.parts
    assert isinstance(kept, ToolCallPart)
    assert orjson.loads(kept.arguments) == orjson.loads(reading.calls[0].arguments) == {"sides": 20}


def test_arguments_that_cannot_be_fixed_end_the_turn_as_an_invalid_call() -> None:
    book = rules(ToolRule("roll", "run_first", None, {"args": {"sides": "many"}}))
    reading = read(ModelReply((call("roll"),)), offer(NATIVE, book), book, {})
    assert (reading.calls, reading.stop) == ((), "invalid_tool_call")
    assert "does not fit its schema" in reading.refused[0].content


def test_calls_that_need_approval_and_calls_of_the_clients_tools_wait() -> None:
    book = rules(ToolRule("roll", "requires_approval"))
    reading = read(ModelReply((call("roll"), call("toss"))), offer(NATIVE, book), book, {})
    assert [one.is_gated for one in reading.calls] == [True, False]
    assert reading.is_waiting
    assert read(ModelReply((call("toss"),)), offer(NATIVE), rules(), {"toss": TOSS}).is_waiting
    assert not read(ModelReply((call("toss"),)), offer(NATIVE), rules(), {}).is_waiting


def approved(
    *calls: ToolCallPart, book: Rulebook, offered: OfferedTools, mine: tuple[ToolSchema, ...] = ()
) -> ParsedReply:
    """A reply that waited, read again once everything in it that waits was approved."""
    request = make.message(make.agent(), role="approval", parts=calls)
    decisions = {one.call_id: ApprovalPart(one.call_id, approves=True) for one in calls if one.is_gated}
    return read_again(Answered(request, decisions), offered, book, {tool.name: tool for tool in mine})


def test_what_was_approved_is_run_also_where_its_tool_needs_no_approval_any_more() -> None:
    asked = replace(call("roll", sides=6), is_gated=True)
    reading = approved(asked, book=rules(), offered=offer(NATIVE))
    assert [(one.call_id, one.arguments) for one in reading.calls] == [(asked.call_id, asked.arguments)]


def test_approval_of_one_call_lets_no_other_pass_that_nobody_was_asked_about() -> None:
    book = rules(
        ToolRule("roll", "requires_approval"), ToolRule("toss", "max_count_per_step", None, {"max_count_limit": 5})
    )
    offered = offer(NATIVE, book)
    first = read(ModelReply((call("roll"), call("roll"), call("toss"))), offered, book, {})
    kept = [part for part in first.parts if isinstance(part, ToolCallPart)]
    reading = approved(*kept, book=book, offered=offered)
    assert [one.call_id for one in reading.calls] == [kept[0].call_id]
    assert [(one.call_id, one.content) for one in reading.refused] == [(one.call_id, ONE_BY_ONE) for one in kept[1:]]


def test_a_call_beside_an_approved_one_has_to_wait_where_its_tool_needs_approval_by_now() -> None:
    asked, beside = replace(call("roll"), is_gated=True), call("toss")
    book = rules(ToolRule("toss", "requires_approval"))
    reading = approved(asked, beside, book=book, offered=offer(NATIVE, book))
    assert [one.call_id for one in reading.calls] == [asked.call_id]
    assert [one.call_id for one in reading.refused] == [beside.call_id]


def test_a_tool_of_the_client_is_never_run_here_even_if_its_call_is_approved() -> None:
    asked = replace(call("toss"), is_gated=True)
    book = rules(ToolRule("toss", "requires_approval"))
    reading = approved(asked, book=book, offered=offer(NATIVE, book), mine=(TOSS,))
    assert reading.calls == ()
    assert "is run by the client" in reading.refused[0].content


# What comes after words.


@pytest.mark.parametrize(
    ("reply", "coming"),
    [
        (ModelReply((TextPart("Hello."),)), NextAction("end_turn")),
        (ModelReply((TextPart("Once upon"),), finish="length"), NextAction("max_tokens_exceeded")),
        (ModelReply((TextPart("No."),), finish="content_filter"), NextAction("end_turn")),
    ],
)
def test_words_end_a_native_turn(reply: ModelReply, coming: NextAction) -> None:
    assert NATIVE.after_text(reply, offer(NATIVE), was_reminded=False) == coming


def test_words_nobody_can_hear_are_met_with_one_reminder() -> None:
    reply = ModelReply((TextPart("Hello."),))
    assert HEARTBEAT.after_text(reply, offer(HEARTBEAT), was_reminded=False) == NextAction(heartbeat=REMINDER)
    assert HEARTBEAT.after_text(reply, offer(HEARTBEAT), was_reminded=True) == NextAction("no_tool_call")
    cut = replace(reply, finish="length")
    assert HEARTBEAT.after_text(cut, offer(HEARTBEAT), was_reminded=False) == NextAction("max_tokens_exceeded")
    book = Rulebook((), [])
    nothing = HEARTBEAT.present((), book.allowed([]), book, make.agent())
    assert HEARTBEAT.after_text(reply, nothing, was_reminded=False) == NextAction("end_turn")


# What comes after calls.


@pytest.mark.parametrize(
    ("style", "arguments", "status", "coming"),
    [
        (NATIVE, {}, "success", NextAction()),
        (NATIVE, {}, "error", NextAction()),
        (HEARTBEAT, {}, "success", NextAction("end_turn")),
        (HEARTBEAT, {"request_heartbeat": False}, "success", NextAction("end_turn")),
        (HEARTBEAT, {"request_heartbeat": True}, "success", NextAction(heartbeat=REQUESTED)),
        (HEARTBEAT, {}, "error", NextAction(heartbeat=AFTER_FAILURE)),
    ],
)
def test_what_comes_after_a_call(style: Style, arguments: dict[str, Any], status: str, coming: NextAction) -> None:
    asked = call("roll", **arguments)
    reading = read(ModelReply((asked,)), offer(style), rules(), {})
    history: list[Called] = []
    assert decide(style, rules(), reading, [result(asked, status)], history) == coming
    assert history == [Called("roll", "six", status == "success")]


@pytest.mark.parametrize("style", [NATIVE, HEARTBEAT])
def test_a_rule_decides_before_the_style(style: Style) -> None:
    ends = rules(ToolRule("roll", "exit_loop"))
    goes_on = rules(ToolRule("roll", "continue_loop"))
    asked = call("roll", request_heartbeat=True)
    reading = read(ModelReply((asked,)), offer(style, ends), ends, {})
    assert decide(style, ends, reading, [result(asked)], []) == NextAction("tool_rule")
    assert decide(style, goes_on, reading, [result(asked)], []).stop is None


def test_a_call_that_was_refused_does_not_count_for_the_rules() -> None:
    book = rules(ToolRule("toss", "run_first"))
    asked = call("roll")
    reading = read(ModelReply((asked,)), offer(NATIVE, book), book, {})
    history: list[Called] = []
    assert decide(NATIVE, book, reading, reading.refused, history) == NextAction()
    assert history == []
    # Nor once it was stored, where a turn that waited goes on.
    stored = parts_from_json(parts_to_json(reading.refused))
    assert [part.is_refused for part in stored if isinstance(part, ToolReturnPart)] == [True]
    assert called([part for part in stored if isinstance(part, ToolReturnPart)]) == []


def test_a_turn_does_not_end_before_what_is_required() -> None:
    book = rules(ToolRule("roll", "required_before_exit"))
    asked = require_before_exit(book, [], NextAction("end_turn"))
    assert asked.stop is None
    assert "roll" in str(asked.heartbeat)
    assert require_before_exit(book, [Called("roll", "six", True)], NextAction("end_turn")) == NextAction("end_turn")
    assert require_before_exit(book, [], NextAction("max_tokens_exceeded")) == NextAction("max_tokens_exceeded")


def test_each_type_of_agent_has_its_style_and_one_without_is_refused_by_name() -> None:
    assert style_of("letta_v1_agent") == NATIVE
    assert style_of("memgpt_v2_agent") == HEARTBEAT
    with pytest.raises(Unsupported, match="voice_convo_agent"):
        style_of("voice_convo_agent")
