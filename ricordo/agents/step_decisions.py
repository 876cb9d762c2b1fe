"""The decisions of a step: which tools the model is offered, what its reply asks for, and what comes next. No I/O.

Agents talk in one of two styles (`agent_types.py`). A native agent speaks in plain text, which ends its turn, and goes on after
tool calls. A heartbeat agent acts only by tools, speaks by `send_message`, and goes on only where it asks for a heartbeat.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ricordo.agents.agent_types import rules_in_force, traits_of
from ricordo.agents.feed import BETWEEN_WORDS
from ricordo.agents.request import Answered, TurnContext
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ToolChoice, ToolSchema
from ricordo.domain.run import StopReason
from ricordo.domain.tool import Tool, ToolRule, ToolType
from ricordo.errors import Invalid
from ricordo.memory.working_memory import EditReason
from ricordo.storage.conversations import is_any_default
from ricordo.tools.presentation import (
    ToolPresentation,
    parse_call,
    prefill,
    schema_for,
    without_nulls,
)
from ricordo.tools.rules import Allowed, DeadEnd, FinishedCall, Rulebook
from ricordo.tools.toolbox import SearchedStore, failed_result, schema_of

log = logging.getLogger(__name__)
ONE_BY_ONE = (
    "The tool rules set an order, so calls are made one by one. "
    "Call this tool again if it is still needed."
)
OVER = "The same call came too often, so this turn goes on without tools. Answer the user in words."
REQUESTED = "Function called using request_heartbeat=true, returning control"
AFTER_FAILURE = "Function call failed, returning control"
# Types of tools that an agent which speaks aloud is not offered: it speaks in words, and another agent keeps its memory.
_NOT_IN_A_CALL: frozenset[ToolType] = frozenset(
    {"letta_core", "letta_memory_core", "letta_sleeptime_core", "letta_voice_sleeptime_core"}
)
SEARCH_MEMORY = "search_memory"
# So many of its own tools an agent may call before it has to call one that the client wants.
_OWN_CALLS = 5
REMINDER = (
    "Your reply called no tool, so the user has not seen it. Call a tool now; "
    "to answer the user, call send_message."
)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one step by name, as the model sees them and as they are (`bare`), and how they are presented.

    Calls of tools in `gated` wait for an approval, or for the client that runs them (`client`). The one that is `forced`, where
    there is one, has to be called now. Those in `hidden` are not shown to the model, but run where it calls them. With `is_over`
    none is: the turn goes on without tools.
    """

    tools: Mapping[str, ToolSchema]
    bare: Mapping[str, ToolSchema]
    choice: ToolChoice
    allowed: Allowed
    how: ToolPresentation
    gated: frozenset[str] = frozenset()
    client: frozenset[str] = frozenset()
    is_ordered: bool = False
    forced: str | None = None
    hidden: frozenset[str] = frozenset()
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply: its parts as they are stored, the calls to run with the arguments that tools get, and results of refused calls.

    `reasons` are what calls say of their edits of memory, by call id. `stop` is set where the reply itself ends the turn.
    """

    parts: tuple[Part, ...]
    calls: tuple[ToolCallPart, ...] = ()
    refused: tuple[ToolReturnPart, ...] = ()
    wants_heartbeat: bool = False
    stop: StopReason | None = None
    reasons: Mapping[str, EditReason] = field(default_factory=dict)
    # Some call waits for a person or the client, and so all of them do.
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class NextAction:
    """What comes after a step: the end of the turn, or another step, with a heartbeat where the agent needs one."""

    stop: StopReason | None = None
    heartbeat: str | None = None


def rulebook(state: AgentState, client_tools: Sequence[ToolSchema] = ()) -> Rulebook:
    """The rules of an agent over the tools it has in a turn. Raises Invalid for rules under which no turn could end."""
    names = [*(tool.name for tool in state.tools), *(tool.name for tool in client_tools)]
    return Rulebook(rules_in_force(state.agent, names), names)


def with_approval(agent: Agent, tool_name: str, is_wanted: bool) -> Agent:
    """The agent, with calls of this tool waiting for approval or not."""
    rules = [
        rule
        for rule in agent.tool_rules
        if (rule.type, rule.tool_name) != ("requires_approval", tool_name)
    ]
    if is_wanted:
        rules.append(ToolRule(tool_name, "requires_approval"))
    if len(rules) == len(agent.tool_rules):
        return agent
    return replace(agent, tool_rules=tuple(rules))


def offer_tools(turn: TurnContext) -> OfferedTools:
    """Present the agent's tools and the client's, as far as the rules allow them now."""
    agent = turn.state.agent
    rules = turn.rules
    client = frozenset(tool.name for tool in turn.request.client_tools)
    attached = [tool for tool in turn.state.tools if tool.name not in client]
    is_spoken = traits_of(agent.agent_type).speaks_aloud
    if is_spoken:
        attached = _tools_in_a_call(attached)
    try:
        allowed = rules.allowed(turn.finished)
    except DeadEnd as error:  # without tools the agent can still say so, and end its turn
        log.warning("the tool rules leave no way on", extra={"run": turn.run.id, "reason": error})
        allowed = Allowed(())
    names = frozenset(allowed.names)
    wanted = turn.request.wanted_tools & names
    if len(wanted) == 1 or len(turn.finished) >= _OWN_CALLS:
        names = wanted or names
    schemas = (*map(schema_of, attached), *turn.request.client_tools)
    bare = {schema.name: schema for schema in schemas if schema.name in names}
    quotes = any(block.rule == "explicit" for block in turn.state.blocks)
    # In a conversation about a user the agent's own blocks are the user's once they are edited.
    reasons = turn.state.conversation.user_id is not None or any(
        block.is_users for block in turn.state.blocks
    )
    editing: frozenset[str] = frozenset()
    if quotes or reasons:
        toolbox = turn.runtime.toolbox
        editing = frozenset(tool.name for tool in attached if toolbox.edits_memory(tool))
    how = ToolPresentation(
        quoting=editing if quotes else frozenset(),
        reasoning=editing if reasons else frozenset(),
        spoken=frozenset(tool.name for tool in attached) if is_spoken else frozenset(),
    )
    must_call = allowed.must_call or bool(wanted)
    if is_heartbeat(turn):
        thinks = bool(agent.model_settings.thinks_in_arguments)
        speech = turn.request.response_format or agent.model_settings.response_format
        how = replace(how, heartbeat=True, thinks_in_arguments=thinks, response_format=speech)
        must_call = True
    tools = {
        name: schema_for(tool, how, is_terminal=name in rules.terminal)
        for name, tool in bare.items()
    }
    hidden = _useless_searches(turn, attached) - wanted
    is_over = turn.reads.is_over and not must_call and not rules.before_exit(turn.finished)
    if turn.reads.is_over and not is_over:
        hidden |= {tool.name for tool in attached if turn.runtime.toolbox.is_read_only(tool)}
    is_any = bool(tools.keys() - hidden) and not is_over
    choice: ToolChoice = "none" if not is_any else "required" if must_call else "auto"
    gated = client | {name for name in tools if name in rules.gated}
    forced = next(iter(wanted)) if len(wanted) == 1 else None
    return OfferedTools(
        tools, bare, choice, allowed, how, gated, client, rules.is_ordered, forced, hidden, is_over
    )


def _tools_in_a_call(attached: Sequence[Tool]) -> list[Tool]:
    """Return the tools of an agent that speaks aloud: its search first, then all that neither speak, nor search or edit memory."""
    search = [tool for tool in attached if tool.name == SEARCH_MEMORY]
    return [*search, *(tool for tool in attached if tool.tool_type not in _NOT_IN_A_CALL)]


def _useless_searches(turn: TurnContext, attached: Sequence[Tool]) -> frozenset[str]:
    """The tools that search what is empty or in view; those that a rule names stay."""
    stores: set[SearchedStore] = set()
    talk = turn.state.conversation
    # Beside a user's default conversation there may be more than the newest that were looked at.
    has_others = turn.state.has_other_conversations or (
        talk.user_id is not None and not is_any_default(talk)
    )
    if turn.evicted_count() or has_others:
        stores.add("messages")
    if any(archive.passage_count for archive in turn.state.archives):
        stores.add("archive")
    named = {name for rule in turn.state.agent.tool_rules for name in _names_in(rule)}
    toolbox = turn.runtime.toolbox
    searches = {tool.name: toolbox.searches(tool) for tool in attached if tool.name not in named}
    return frozenset(
        name for name, searched in searches.items() if searched and not searched & stores
    )


def _names_in(rule: ToolRule) -> Iterator[str]:
    yield rule.tool_name
    children = rule.options.get("children")
    yield from (str(child) for child in children or ()) if isinstance(children, list) else ()


def _with_words(parts: Sequence[Part], words: str) -> list[Part]:
    """Return the parts of a reply with words that are said before its calls."""
    begin = BETWEEN_WORDS if any(isinstance(part, TextPart) for part in parts) else ""
    place = next(
        (place for place, part in enumerate(parts) if isinstance(part, ToolCallPart)), len(parts)
    )
    return [*parts[:place], TextPart(f"{begin}{words}"), *parts[place:]]


def is_heartbeat(turn: TurnContext) -> bool:
    return traits_of(turn.state.agent.agent_type).style == "heartbeat"


def parse_reply(reply: ModelReply, offered: OfferedTools) -> ParsedReply:
    """Take thoughts out of arguments, put fixed arguments in, refuse calls that must not run, and mark those that wait."""
    parts: list[Part] = []
    calls: list[ToolCallPart] = []
    refused: list[ToolReturnPart] = []
    reasons: dict[str, EditReason] = {}
    ids: set[str] = set()
    wants_heartbeat = False
    stop: StopReason | None = None
    for part in reply.parts:
        if not isinstance(part, ToolCallPart):
            parts.append(part)
            continue
        # Results are matched to calls by id, and some models use one twice.
        call = replace(part, call_id=new_id("call")) if part.call_id in ids else part
        ids.add(call.call_id)
        bare = offered.bare.get(call.name)
        call = without_nulls(call, bare)
        taken = parse_call(call, offered.how, bare)
        wants_heartbeat |= taken.wants_heartbeat
        if taken.thoughts:
            parts.append(ReasoningPart(taken.thoughts, native=False))
        if taken.words:
            parts = _with_words(parts, taken.words)
        reasons[call.call_id] = EditReason(taken.reasoning, quote=taken.quote)
        stored = taken.call
        if offered.is_over:
            refused.append(failed_result(call, OVER))
            stop = "invalid_tool_call"
        elif call.name not in offered.tools:
            refused.append(_refusal(call, offered))
        elif calls and offered.is_ordered:
            refused.append(failed_result(call, ONE_BY_ONE))
        else:
            try:
                stored, run = _with_fixed_arguments(stored, taken.arguments, offered)
                calls.append(run)
            except Invalid as error:
                refused.append(failed_result(call, str(error)))
                stop = "invalid_tool_call"
        parts.append(stored)
    is_waiting = any(call.is_gated for call in calls)
    return ParsedReply(
        tuple(parts), tuple(calls), _marked(refused), wants_heartbeat, stop, reasons, is_waiting
    )


def parse_approved(answer: Answered, offered: OfferedTools) -> ParsedReply:
    """Parse a reply that waited, now that it is answered: the calls that may run, and results of those that must not."""
    calls: list[ToolCallPart] = []
    refused: list[ToolReturnPart] = []
    reasons: dict[str, EditReason] = {}
    for call in answer.calls_to_run():
        if call.name not in offered.tools:
            refused.append(_refusal(call, offered))
        elif not call.is_gated and offered.is_ordered:
            refused.append(
                failed_result(call, ONE_BY_ONE)
            )  # as it was when it was made: nobody was asked about it
        elif not call.is_gated and call.name in offered.gated:
            refused.append(
                failed_result(call, f"{call.name} has to wait for approval by now. Call it again.")
            )
        elif call.name in offered.client:
            refused.append(
                failed_result(
                    call, f"{call.name} is run by the client, which sent no result of it."
                )
            )
        else:
            bare = offered.bare.get(call.name)
            taken = parse_call(without_nulls(call, bare), offered.how, bare)
            calls.append(replace(call, arguments=taken.arguments))
            reasons[call.call_id] = EditReason(taken.reasoning, quote=taken.quote)
    wants_heartbeat = any(
        parse_call(call, offered.how).wants_heartbeat for call in answer.request.tool_calls
    )
    return ParsedReply(
        answer.request.parts, tuple(calls), _marked(refused), wants_heartbeat, reasons=reasons
    )


def parse_nested(
    name: str, arguments: Mapping[str, Any], offered: OfferedTools
) -> ToolCallPart | ToolReturnPart:
    """The call that a tool makes of another one, as it is run; or why it must not be."""
    call = ToolCallPart(new_id("call"), name, orjson.dumps(arguments).decode())
    if name not in offered.tools:
        return _refusal(call, offered)
    if name in offered.gated:
        return failed_result(
            call, f"{name} needs an approval, or is run by the client. Call it yourself."
        )
    call = without_nulls(call, offered.bare.get(name))
    try:
        return _with_fixed_arguments(call, call.arguments, offered)[1]
    except Invalid as error:
        return failed_result(call, str(error))


def next_action(
    turn: TurnContext,
    offered: OfferedTools,
    reply: ModelReply | None,
    parsed: ParsedReply,
    results: Sequence[ToolReturnPart],
    before: NextAction,
) -> NextAction:
    """Decide what comes after a step, and count its calls as finished; `before` is what came before the step.

    A reply that waits or cannot be read ends the turn; else the tool rules decide, and then the agent's style.
    """
    if parsed.is_waiting:
        return NextAction("requires_approval")
    finished = finished_calls(results)
    outcome = turn.rules.outcome(turn.finished, finished) if results else None
    turn.finished += finished
    if parsed.stop:
        return NextAction(parsed.stop)
    speaks_by_tools = is_heartbeat(turn)
    if outcome is None:
        action = _after_words(offered, reply, speaks_by_tools=speaks_by_tools)
    elif outcome.stops:
        is_silent = (
            speaks_by_tools and not parsed.wants_heartbeat
        )  # it would have ended without the rule
        action = NextAction("end_turn" if is_silent else "tool_rule")
    elif not speaks_by_tools:
        action = NextAction()
    elif outcome.reason:
        action = NextAction(heartbeat=outcome.reason)
    elif any(result.status == "error" for result in results):
        action = NextAction(heartbeat=AFTER_FAILURE)
    elif parsed.wants_heartbeat:
        action = NextAction(heartbeat=REQUESTED)
    else:
        action = NextAction("end_turn")
    if action.stop in ("end_turn", "tool_rule") and (
        missing := turn.rules.before_exit(turn.finished)
    ):
        action = NextAction(
            heartbeat=f"Before you end your turn you must still call: {', '.join(missing)}."
        )
    # A model that was told to call a tool and answers in words again would go on so up to the limit of steps.
    is_repeated = (
        outcome is None and action.heartbeat is not None and action.heartbeat == before.heartbeat
    )
    if is_repeated:
        return NextAction("no_tool_call")
    return action


def _after_words(
    offered: OfferedTools, reply: ModelReply | None, *, speaks_by_tools: bool
) -> NextAction:
    """Return the action after a reply that ran no tool."""
    if reply and reply.finish == "length":
        return NextAction("max_tokens_exceeded")
    if speaks_by_tools and offered.tools:
        return NextAction(heartbeat=REMINDER)
    return NextAction("end_turn")


def finished_calls(results: Sequence[ToolReturnPart]) -> list[FinishedCall]:
    """Results as the tool rules count them: a refused call is none."""
    return [
        FinishedCall(one.name, one.content, one.status == "success")
        for one in results
        if not one.is_refused
    ]


def _marked(refused: Sequence[ToolReturnPart]) -> tuple[ToolReturnPart, ...]:
    return tuple(replace(result, is_refused=True) for result in refused)


def _with_fixed_arguments(
    stored: ToolCallPart, arguments: str, offered: OfferedTools
) -> tuple[ToolCallPart, ToolCallPart]:
    """The call as it is stored and as it is run, with the arguments that a rule fixes, and marked where it waits."""
    stored = replace(stored, is_gated=stored.name in offered.gated)
    run = replace(stored, arguments=arguments)
    if not (values := offered.allowed.prefilled.get(stored.name)):
        return stored, run
    return prefill(stored, values, offered.tools[stored.name]), prefill(
        run, values, offered.bare[stored.name]
    )


def _refusal(call: ToolCallPart, offered: OfferedTools) -> ToolReturnPart:
    # The beginning is a wire fact of the retired Letta V1 server.
    names = ", ".join(name for name in offered.tools if name not in offered.hidden)
    return failed_result(
        call, f"[ToolConstraintError] Cannot call {call.name}, valid tools include: [{names}]"
    )
