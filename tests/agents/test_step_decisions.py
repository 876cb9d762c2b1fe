"""Offered tools, the meaning of a reply, and the next action of a turn."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ricordo.agents.request import (
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.step_decisions import (
    AFTER_FAILURE,
    CUT_OFF,
    REMINDER,
    REQUESTED,
    NextAction,
    ParsedReply,
    next_action,
    offer_tools,
    parse_approved,
    parse_reply,
    rulebook,
)
from ricordo.agents.turn_context import (
    AnsweredApproval,
    ContextWindow,
    TurnContext,
    WindowLimit,
)
from ricordo.domain.agent import AgentState
from ricordo.domain.message import (
    ApprovalPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from ricordo.domain.model import ModelReply, ModelSettings, ToolSchema
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool, ToolRule
from ricordo.llm.scripted import ScriptedModel, call
from ricordo.storage.model_costs import ReplyAccount
from ricordo.tools.rules import CallRules, FinishedCall, finished_calls
from ricordo.tools.toolbox import Toolbox, schema_of
from tests.seams import make

NATIVE, HEARTBEAT = "letta_v1_agent", "memgpt_v2_agent"
TOOLBOX = Toolbox([])


def tool(name: str, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": []}
    return make.tool(
        name, json_schema={"name": name, "description": f"{name}s.", "parameters": schema}
    )


ROLL, TOSS = tool("roll", sides={"type": "integer"}), tool("toss", sides={"type": "integer"})
SPEECH = tool("send_message", message={"type": "string"})


def turn(
    agent_type: Any = NATIVE,
    *rules: ToolRule,
    tools: tuple[Tool, ...] = (ROLL, TOSS, SPEECH),
    client_tools: tuple[ToolSchema, ...] = (),
    **settings: Any,
) -> TurnContext:
    """Return a turn that has not begun, of an agent with these rules and tools."""
    agent = make.agent(
        agent_type=agent_type, tool_rules=rules, model_settings=ModelSettings(**settings)
    )
    state = AgentState(agent, make.conversation(agent), (), tools, (), ())
    request = TurnRequest(Scope(), agent.id, overrides=TurnOverrides(client_tools=client_tools))
    book = rulebook(state, client_tools)
    runtime: Any = SimpleNamespace(toolbox=TOOLBOX)
    return TurnContext(
        runtime,
        request,
        ReplyAccount(runtime, agent.organization_id),
        ScriptedModel([]),
        make.run(agent),
        state,
        ContextWindow([], ""),
        CallRules(book),
        WindowLimit(),
    )


def after_words(a_turn: TurnContext, before: NextAction | None = None, **reply: Any) -> NextAction:
    words = ModelReply((TextPart("Hello."),), **reply)
    return next_action(
        a_turn.rules,
        offer_tools(a_turn),
        words,
        ParsedReply(words.parts),
        (),
        before or NextAction(),
    )


def after_call(a_turn: TurnContext, asked: ToolCallPart, status: Any = "success") -> NextAction:
    offered, results = (
        offer_tools(a_turn),
        [ToolReturnPart(asked.call_id, asked.name, status, "six")],
    )
    return next_action(
        a_turn.rules,
        offered,
        None,
        parse_reply(ModelReply((asked,)), offered),
        results,
        NextAction(),
    )


# Offered tools.


def test_a_heartbeat_agent_must_call_a_tool_and_may_request_a_heartbeat() -> None:
    offered = offer_tools(turn(HEARTBEAT, ToolRule("send_message", "exit_loop")))
    assert offered.choice == "required"
    assert {name: list(one.parameters["properties"]) for name, one in offered.tools.items()} == {
        "roll": ["sides", "request_heartbeat"],
        "toss": ["sides", "request_heartbeat"],
        "send_message": ["message"],
    }


# The meaning of a reply.


def test_the_refusal_of_an_unknown_tool_names_the_nearest() -> None:
    parsed = parse_reply(ModelReply((call("Tosss"),)), offer_tools(turn()))
    assert parsed.refused[0].content.endswith("The nearest name is toss.")


def test_a_call_that_was_not_offered_is_refused_and_not_counted_by_the_rules() -> None:
    a_turn, asked = turn(NATIVE, ToolRule("toss", "run_first")), call("roll")
    offered = offer_tools(a_turn)
    parsed = parse_reply(ModelReply((asked,)), offered)
    assert parsed.calls == ()
    (refusal,) = parsed.refused
    assert (refusal.call_id, refusal.status) == (asked.call_id, "error")
    assert "[ToolConstraintError] Cannot call roll, valid tools include: [toss]" in refusal.content
    assert "nearest" not in refusal.content
    action = next_action(a_turn.rules, offered, None, parsed, parsed.refused, NextAction())
    assert action == NextAction()
    assert action.finished == ()
    # This also holds for a stored reply, when a turn that waited for approval continues.
    stored = parts_from_json(parts_to_json(parsed.refused))
    assert [part.is_refused for part in stored if isinstance(part, ToolReturnPart)] == [True]
    assert finished_calls([part for part in stored if isinstance(part, ToolReturnPart)]) == []


def approved(a_turn: TurnContext, *calls: ToolCallPart) -> ParsedReply:
    request = make.message(make.agent(), role="approval", parts=calls)
    decisions = {
        one.call_id: ApprovalPart(one.call_id, approves=True) for one in calls if one.is_gated
    }
    return parse_approved(AnsweredApproval(request, decisions), offer_tools(a_turn))


def test_an_approved_call_runs_although_its_tool_needs_no_approval_any_more() -> None:
    asked = replace(call("roll", sides=6), is_gated=True)
    parsed = approved(turn(), asked)
    assert [(one.call_id, one.arguments) for one in parsed.calls] == [
        (asked.call_id, asked.arguments)
    ]


def test_a_call_next_to_an_approved_one_is_refused_if_its_tool_needs_approval() -> None:
    asked, beside = replace(call("roll"), is_gated=True), call("toss")
    parsed = approved(turn(NATIVE, ToolRule("toss", "requires_approval")), asked, beside)
    assert [one.call_id for one in parsed.calls] == [asked.call_id]
    assert [one.call_id for one in parsed.refused] == [beside.call_id]


def test_an_approved_call_of_a_client_tool_never_runs_on_the_server() -> None:
    rule = ToolRule("toss", "requires_approval")
    parsed = approved(
        turn(NATIVE, rule, client_tools=(schema_of(TOSS),)), replace(call("toss"), is_gated=True)
    )
    assert parsed.calls == ()
    assert "The client runs" in parsed.refused[0].content


# The next action.


def test_text_ends_a_native_turn() -> None:
    for finish, stop in (
        ("stop", "end_turn"),
        ("length", "max_tokens_exceeded"),
        ("content_filter", "end_turn"),
    ):
        assert after_words(turn(), finish=finish).stop == stop, finish


def test_text_of_a_heartbeat_agent_gets_one_reminder() -> None:
    assert after_words(turn(HEARTBEAT)) == NextAction(heartbeat=REMINDER)
    assert after_words(turn(HEARTBEAT), NextAction(heartbeat=REMINDER)) == NextAction(
        "no_tool_call"
    )
    # Its text is no answer: it speaks only by tools.
    cut = after_words(turn(HEARTBEAT), finish="length")
    assert (cut.stop, cut.error) == ("max_tokens_exceeded", CUT_OFF)
    assert after_words(turn(), finish="length").error is None
    assert after_words(turn(HEARTBEAT, tools=()), finish="length").error is None
    assert after_words(turn(HEARTBEAT, tools=())) == NextAction("end_turn")


@pytest.mark.parametrize(
    ("style", "arguments", "status", "action"),
    [
        (NATIVE, {}, "success", NextAction()),
        (NATIVE, {}, "error", NextAction()),
        (HEARTBEAT, {}, "success", NextAction("end_turn")),
        (HEARTBEAT, {"request_heartbeat": False}, "success", NextAction("end_turn")),
        (HEARTBEAT, {"request_heartbeat": True}, "success", NextAction(heartbeat=REQUESTED)),
        (HEARTBEAT, {}, "error", NextAction(heartbeat=AFTER_FAILURE)),
    ],
)
def test_the_style_arguments_and_result_of_a_call_decide_the_next_action(
    style: str, arguments: dict[str, Any], status: str, action: NextAction
) -> None:
    a_turn = turn(style)
    decided = after_call(a_turn, call("roll", **arguments), status)
    assert decided == action
    assert decided.finished == (FinishedCall("roll", "six", status == "success"),)
