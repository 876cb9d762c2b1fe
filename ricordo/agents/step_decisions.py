"""Decisions of a step: offered tools, parsed reply and next action. No I/O.

Agents talk in one of two styles (`agent_types.py`). A native agent speaks in plain text, which ends
its turn, and continues after tool calls. A heartbeat agent acts only by tools and speaks by
`send_message`. It continues only if it asks for a heartbeat.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import orjson

from ricordo.agents.agent_types import TRAITS, TypeTraits
from ricordo.agents.feed import BETWEEN_WORDS
from ricordo.agents.turn_context import (
    AnsweredApproval,
    TurnContext,
)
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    SPEECH_TOOL,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelReply, ToolChoice, ToolSchema
from ricordo.domain.run import StopReason
from ricordo.domain.tool import Tool, ToolRule, ToolType
from ricordo.errors import Invalid
from ricordo.memory.edits import EditReason
from ricordo.storage.conversations import is_any_default
from ricordo.tools.presentation import (
    UNCHANGED,
    ToolPresentation,
    parse_call,
    prefill,
    schema_for,
    without_nulls,
)
from ricordo.tools.rule_kinds import names_in
from ricordo.tools.rules import (
    Allowed,
    CallRules,
    DeadEnd,
    FinishedCall,
    Rulebook,
    RuleOutcome,
    finished_calls,
)
from ricordo.tools.tool_search import FIND_TOOLS, found_tools
from ricordo.tools.toolbox import (
    ForeignTraits,
    SearchedStore,
    ToolTraits,
    failed_result,
    schema_of,
)

log = logging.getLogger(__name__)
ONE_BY_ONE = (
    "The tool rules set an order, so calls are made one by one. "
    "Call this tool again if it is still needed."
)
OVER = (
    "The same call came too often, so this turn continues without tools. Answer the user in words."
)
REQUESTED = "Function called using request_heartbeat=true, returning control"
AFTER_FAILURE = "Function call failed, returning control"
# Types of tools that agents in voice conversations do not get. These agents speak in plain text,
# and another agent keeps their memory.
_NOT_IN_A_CALL: frozenset[ToolType] = frozenset(
    {"letta_core", "letta_memory_core", "letta_sleeptime_core", "letta_voice_sleeptime_core"}
)
# The characters of an unknown tool's name that are compared with the offered names.
_LONGEST_NAME = 100
SEARCH_MEMORY = "search_memory"
# After this number of calls of other tools, the agent must call a tool that the client requires.
_OWN_CALLS = 5
CUT_OFF = (
    "The model reached its limit of tokens before it gave an answer. Raise the agent's "
    "max_output_tokens, or ask for less at once."
)
WITHHELD = (
    "The provider's content filter withheld the answer. Say it in other words, or use another "
    "model."
)
REMINDER = (
    "Your reply called no tool, so the user has not seen it. Call a tool now; "
    "to answer the user, call send_message."
)


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one step by name, and how they are presented.

    Attributes:
        tools: The tools' schemas, as the model sees them; `bare` holds the schemas as stored.
        gated: Tools whose calls wait for an approval, or for the client that runs them (`client`).
        is_ordered: Tool rules set an order, so only one call of a reply runs.
        forced: The tool that must be called now, or None.
        hidden: Tools that the model does not see, but that run if it calls them.
        acting: Tools whose calls may change something outside the database, which no rollback
            restores.
        reading: Tools for which equal calls in one turn have the same result.
        is_over: The turn continues without tools, because equal calls came too often.
        speaks_by_tools: The agent acts and speaks only by tools.
    """

    tools: Mapping[str, ToolSchema]
    bare: Mapping[str, ToolSchema]
    choice: ToolChoice
    allowed: Allowed
    presentation: ToolPresentation
    gated: frozenset[str] = frozenset()
    client: frozenset[str] = frozenset()
    is_ordered: bool = False
    forced: str | None = None
    hidden: frozenset[str] = frozenset()
    acting: frozenset[str] = frozenset()
    reading: frozenset[str] = frozenset()
    is_over: bool = False
    speaks_by_tools: bool = False


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply: its parts, the calls to run, and results of refused calls.

    Attributes:
        parts: The parts as they are stored.
        calls: The calls to run, with the arguments that the tools get.
        refused: The results of calls that must not run.
        wants_heartbeat: A call asks for another step.
        stop: The reason if the reply itself ends the turn, or None.
        reasons: The reasons for edits of memory, by call id.
        is_waiting: A call waits for a person or for the client, so all calls of the reply wait.
    """

    parts: tuple[Part, ...]
    calls: tuple[ToolCallPart, ...] = ()
    refused: tuple[ToolReturnPart, ...] = ()
    wants_heartbeat: bool = False
    stop: StopReason | None = None
    reasons: Mapping[str, EditReason] = field(default_factory=dict)
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class NextAction:
    """The action after a step: the end of the turn, or another step.

    The next step begins with a heartbeat message if the agent needs one. `error` says why the turn
    ends without an answer. `finished` are the step's calls that the tool rules count from now on.
    """

    stop: StopReason | None = None
    heartbeat: str | None = None
    error: str | None = None
    finished: tuple[FinishedCall, ...] = field(default=(), compare=False)


END = NextAction("end_turn")


def rulebook(state: AgentState, client_tools: Sequence[ToolSchema] = ()) -> Rulebook:
    """Return an agent's rules over its tools in a turn.

    Args:
        state: The agent with its tools.
        client_tools: Tools that the client sent with the turn.

    Raises:
        Invalid: The rules would let no turn end.
    """
    names = [*(tool.name for tool in state.tools), *(tool.name for tool in client_tools)]
    rules = state.agent.tool_rules
    type_rules = TRAITS[state.agent.agent_type].rules
    # The rules of a type replace those of an agent that has their tools, except for approvals.
    if type_rules and {rule.tool_name for rule in type_rules} <= set(names):
        approvals = [rule for rule in rules if rule.type == "requires_approval"]
        rules = (*type_rules, *approvals)
    return Rulebook(rules, names)


def with_approval(agent: Agent, tool_name: str, is_wanted: bool) -> Agent:
    """Return the agent with this tool's approval switched on or off.

    Args:
        agent: The agent, which is not changed.
        tool_name: The name of a tool, attached or not.
        is_wanted: True if calls of the tool wait for an approval.
    """
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
    """Present the agent's and the client's tools that the rules allow now."""
    rules = turn.rules.book
    client_tools = turn.request.overrides.client_tools
    traits = TRAITS[turn.state.agent.agent_type]
    client = frozenset(tool.name for tool in client_tools)
    attached = [tool for tool in turn.state.tools if tool.name not in client]
    if traits.speaks_aloud:
        attached = _tools_in_a_call(attached)
    toolbox = turn.runtime.toolbox
    kinds = {tool.name: toolbox.traits(tool) for tool in attached}
    allowed = _allowed_now(turn)
    wanted_tools = turn.request.overrides.wanted_tools & frozenset(allowed.names)
    schemas = {schema.name: schema for schema in (*map(schema_of, attached), *client_tools)}
    names = frozenset(allowed.names)
    # Of several wanted tools none is forced at first, so that the agent may prepare its answer.
    if len(wanted_tools) == 1 or (wanted_tools and len(turn.rules.finished) >= _OWN_CALLS):
        names = wanted_tools
    bare = {name: schema for name, schema in schemas.items() if name in names}
    presentation = _presentation(turn, kinds, traits)
    tools = bare
    if presentation != UNCHANGED:
        tools = {
            name: schema_for(tool, presentation, is_terminal=name in rules.terminal)
            for name, tool in bare.items()
        }
    must_call = allowed.must_call or bool(wanted_tools) or presentation.heartbeat
    is_over = turn.reads.is_over and _ends_use_of_tools(turn, must_call)
    reading = frozenset(name for name, kind in kinds.items() if kind.is_read_only)
    hidden = _useless_searches(turn, kinds)
    if FIND_TOOLS in kinds:
        hidden |= _tools_to_find(turn, kinds)
    hidden -= wanted_tools
    if turn.reads.is_over and not is_over:
        hidden |= reading
    choice: ToolChoice = "required" if must_call else "auto"
    if is_over or not tools.keys() - hidden:
        choice = "none"
    return OfferedTools(
        tools=tools,
        bare=bare,
        choice=choice,
        allowed=allowed,
        presentation=presentation,
        gated=client | (tools.keys() & rules.gated),
        client=client,
        is_ordered=rules.is_ordered,
        forced=next(iter(wanted_tools)) if len(wanted_tools) == 1 else None,
        hidden=hidden,
        acting=frozenset(name for name, kind in kinds.items() if kind.acts_outside),
        reading=reading,
        is_over=is_over,
        speaks_by_tools=presentation.heartbeat,
    )


def _ends_use_of_tools(turn: TurnContext, must_call: bool) -> bool:
    """Return whether too many equal reads end the use of tools in this turn.

    The turn keeps its other tools while a call is required, now or before the turn may end.
    """
    return not must_call and not turn.rules.book.before_exit(turn.rules.finished)


def _allowed_now(turn: TurnContext) -> Allowed:
    """Return the tools that the rules allow after the finished calls.

    At a dead end no tool is allowed. The agent can still answer, which ends its turn.
    """
    try:
        return turn.rules.book.allowed(turn.rules.finished)
    except DeadEnd as error:
        log.warning(
            "the tool rules allow no next step", extra={"run": turn.run.id, "reason": error}
        )
        return Allowed(())


def _presentation(
    turn: TurnContext, kinds: Mapping[str, ToolTraits], traits: TypeTraits
) -> ToolPresentation:
    """Return the arguments that the agent's type and its blocks add to the tools' schemas."""
    blocks = turn.state.blocks
    settings = turn.state.agent.model_settings
    needs_quotes = any(block.rule == "explicit" for block in blocks)
    # In a conversation with a user, an edit of an unshared block changes the user's copy.
    needs_reasons = turn.state.conversation.user_id is not None or any(
        block.is_users for block in blocks
    )
    editing_tools: frozenset[str] = frozenset()
    if needs_quotes or needs_reasons:
        editing_tools = frozenset(name for name, kind in kinds.items() if kind.edits_memory)
    presentation = ToolPresentation(
        quoting=editing_tools if needs_quotes else frozenset(),
        reasoning=editing_tools if needs_reasons else frozenset(),
    )
    if traits.speaks_aloud:
        presentation = replace(presentation, spoken=frozenset(kinds))
    if traits.style == "heartbeat":
        presentation = replace(
            presentation,
            heartbeat=True,
            thinks_in_arguments=bool(settings.thinks_in_arguments),
            response_format=turn.request.overrides.response_format or settings.response_format,
        )
    return presentation


def _tools_in_a_call(attached: Sequence[Tool]) -> list[Tool]:
    """Return the tools of an agent in a voice conversation, with its search first.

    All other tools that speak, search or edit memory are left out.
    """
    search = [tool for tool in attached if tool.name == SEARCH_MEMORY]
    return [*search, *(tool for tool in attached if tool.tool_type not in _NOT_IN_A_CALL)]


def _useless_searches(turn: TurnContext, kinds: Mapping[str, ToolTraits]) -> frozenset[str]:
    """Return the tools that would search something empty, or something already in view.

    Tools named by a rule are not among them.
    """
    useful_stores: set[SearchedStore] = set()
    conversation = turn.state.conversation
    # If this is not the user's default conversation, the user has other ones.
    has_others = turn.state.has_other_conversations or (
        conversation.user_id is not None and not is_any_default(conversation)
    )
    if turn.window.evicted_count or has_others:
        useful_stores.add("messages")
    if any(archive.passage_count for archive in turn.state.archives):
        useful_stores.add("archive")
    named = {name for rule in turn.state.agent.tool_rules for name in names_in(rule)}
    searches = {name: kind.searches for name, kind in kinds.items() if name not in named}
    return frozenset(
        name
        for name, searched_stores in searches.items()
        if searched_stores and not searched_stores & useful_stores
    )


def _tools_to_find(turn: TurnContext, kinds: Mapping[str, ToolTraits]) -> frozenset[str]:
    """Return the tools that an agent with many tools has to find before it sees them.

    The agent always sees the server's tools, and tools that a rule or the prompt names. It also
    sees tools that were called or found in messages of the window.
    """
    if isinstance(kinds[FIND_TOOLS], ForeignTraits):
        return frozenset()  # a tool of the agent that has the same name
    messages = turn.window.messages
    known = {*found_tools(messages)}
    known.update(name for rule in turn.state.agent.tool_rules for name in names_in(rule))
    prompt = messages[0].text if messages else ""
    return frozenset(
        name
        for name, kind in kinds.items()
        if isinstance(kind, ForeignTraits) and name not in known and name not in prompt
    )


def _with_speech(parts: Sequence[Part], speech: str) -> list[Part]:
    """Return the parts of a reply with speech before its calls."""
    begin = BETWEEN_WORDS if any(isinstance(part, TextPart) for part in parts) else ""
    index = next(
        (index for index, part in enumerate(parts) if isinstance(part, ToolCallPart)), len(parts)
    )
    return [*parts[:index], TextPart(f"{begin}{speech}"), *parts[index:]]


def parse_reply(reply: ModelReply, offered: OfferedTools) -> ParsedReply:
    """Parse the reply's calls.

    Take thoughts out of the arguments, and put fixed arguments in. Refuse calls that must not run,
    and mark calls that wait.

    Args:
        reply: The model's reply, which is not changed.
        offered: The tools that the model was offered.
    """
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
        # Results are matched to calls by id, and some models use an id twice.
        call = replace(part, call_id=new_id("call")) if part.call_id in ids else part
        ids.add(call.call_id)
        bare = offered.bare.get(call.name)
        parsed_call = parse_call(call, offered.presentation, bare)
        wants_heartbeat |= parsed_call.wants_heartbeat
        if parsed_call.thoughts:
            parts.append(ReasoningPart(parsed_call.thoughts, native=False))
        if parsed_call.speech:
            parts = _with_speech(parts, parsed_call.speech)
        if parsed_call.reasoning or parsed_call.quote:
            reasons[call.call_id] = EditReason(parsed_call.reasoning, quote=parsed_call.quote)
        stored = parsed_call.call
        if offered.is_over:
            refused.append(_refused(call, OVER))
            stop = "invalid_tool_call"
        elif call.name not in offered.tools:
            refused.append(_refusal(call, offered))
        elif calls and offered.is_ordered:
            refused.append(_refused(call, ONE_BY_ONE))
        else:
            try:
                run = replace(
                    stored,
                    arguments=parsed_call.arguments,
                    is_gated=call.name in offered.gated,
                )
                if fixed_arguments := offered.allowed.prefilled.get(call.name):
                    run = prefill(run, fixed_arguments, offered.bare[call.name])
                    stored = prefill(stored, fixed_arguments, offered.tools[call.name])
                stored = replace(stored, is_gated=run.is_gated)
                calls.append(run)
            except Invalid as error:
                refused.append(_refused(call, str(error)))
                stop = "invalid_tool_call"
        parts.append(stored)
    is_waiting = any(call.is_gated for call in calls)
    return ParsedReply(
        parts=tuple(parts),
        calls=tuple(calls),
        refused=tuple(refused),
        wants_heartbeat=wants_heartbeat,
        stop=stop,
        reasons=reasons,
        is_waiting=is_waiting,
    )


def parse_approved(answer: AnsweredApproval, offered: OfferedTools) -> ParsedReply:
    """Parse a waiting reply after it was answered.

    The calls may run now; calls that must not run get results.

    Args:
        answer: The request for approval with its answer.
        offered: The tools that may be called now, which may differ from those at the time of the
            request.
    """
    calls: list[ToolCallPart] = []
    refused: list[ToolReturnPart] = []
    reasons: dict[str, EditReason] = {}
    for call in answer.calls_to_run():
        if call.name not in offered.tools:
            refused.append(_refusal(call, offered))
        elif not call.is_gated and offered.is_ordered:
            # The call was refused when the model made it, so no approval was requested.
            refused.append(_refused(call, ONE_BY_ONE))
        elif not call.is_gated and call.name in offered.gated:
            refused.append(
                _refused(call, f"{call.name} now has to wait for approval. Call it again.")
            )
        elif call.name in offered.client:
            refused.append(_refused(call, f"The client runs {call.name}, but it sent no result."))
        else:
            bare = offered.bare.get(call.name)
            parsed_call = parse_call(call, offered.presentation, bare)
            calls.append(replace(call, arguments=parsed_call.arguments))
            reasons[call.call_id] = EditReason(parsed_call.reasoning, quote=parsed_call.quote)
    wants_heartbeat = any(
        parse_call(call, offered.presentation).wants_heartbeat for call in answer.request.tool_calls
    )
    return ParsedReply(
        answer.request.parts, tuple(calls), tuple(refused), wants_heartbeat, reasons=reasons
    )


def parse_nested(
    name: str, arguments: Mapping[str, Any], offered: OfferedTools
) -> ToolCallPart | ToolReturnPart:
    """Return the call that a running tool makes of another tool, or its refusal.

    Args:
        name: The name of the called tool.
        arguments: Arguments as the running tool passes them; rules may add fixed ones.
        offered: The tools that may be called now. Tools that wait for an approval or a client are
            refused.
    """
    call = ToolCallPart(new_id("call"), name, orjson.dumps(arguments).decode())
    if name not in offered.tools:
        return _refusal(call, offered)
    if name in offered.gated:
        return failed_result(
            call,
            f"{name} needs an approval or runs on the client, so code cannot call it. Call "
            "it directly.",
        )
    bare = offered.bare[name]
    call = without_nulls(call, bare)
    try:
        return prefill(call, offered.allowed.prefilled.get(name, {}), bare)
    except Invalid as error:
        return failed_result(call, str(error))


def next_action(
    rules: CallRules,
    offered: OfferedTools,
    reply: ModelReply | None,
    parsed: ParsedReply,
    results: Sequence[ToolReturnPart],
    before: NextAction,
    *,
    is_last: bool = False,
    has_new_input: bool = False,
) -> NextAction:
    """Decide the action after a step.

    A reply that waits or cannot be read ends the turn. Otherwise the tool rules decide, then the
    agent's style.

    Args:
        rules: The tool rules with the turn's finished calls, without those of this step.
        offered: The step's tools.
        reply: The model's reply; None after an answer to waiting calls.
        parsed: The parsed reply, or the parsed calls of the answered one.
        results: The results of the step's calls, with those of refused calls.
        before: The action before the step, which shows a reminder that the model ignored.
        is_last: The turn may take no further step.
        has_new_input: Messages came with the answer to waiting calls, so the turn continues.
    """
    if parsed.is_waiting:
        return NextAction("requires_approval")
    latest = tuple(finished_calls(results))
    if parsed.stop:
        return NextAction(parsed.stop, finished=latest)
    outcome = rules.book.outcome(rules.finished, latest) if results else None
    if outcome:
        has_failed = any(result.status == "error" for result in results)
        action = _after_calls(offered, parsed, outcome, has_failed=has_failed)
    elif reply and reply.finish == "length":
        action = _after_cut(rules, offered, reply)
    elif offered.speaks_by_tools and offered.tools:
        action = NextAction(heartbeat=REMINDER)
    else:
        action = END
    ends = rules.book.required and action.stop in ("end_turn", "tool_rule")
    if ends and (missing := rules.book.before_exit([*rules.finished, *latest])):
        action = NextAction(
            heartbeat=f"Before you end your turn you must still call: {', '.join(missing)}."
        )
    # A model that ignores the reminder to call a tool would do so until the limit of steps.
    is_repeated = (
        outcome is None and action.heartbeat is not None and action.heartbeat == before.heartbeat
    )
    if has_new_input:
        action = NextAction()
    elif is_repeated:
        action = NextAction("no_tool_call")
    elif is_last and action.stop is None:
        action = NextAction("max_steps")
    return replace(action, finished=latest)


def _after_cut(rules: CallRules, offered: OfferedTools, reply: ModelReply) -> NextAction:
    """Return the end after a reply without calls that reached the model's limit of tokens.

    It is not an error if the turn has an answer: the reply's text, or a message that the agent sent
    before with its tool.
    """
    if offered.speaks_by_tools and offered.tools:
        has_answer = any(done.name == SPEECH_TOOL and done.is_success for done in rules.finished)
    else:
        has_answer = reply.has_text
    return NextAction("max_tokens_exceeded", error=None if has_answer else CUT_OFF)


def _after_calls(
    offered: OfferedTools, parsed: ParsedReply, outcome: RuleOutcome, *, has_failed: bool
) -> NextAction:
    """Return the action after calls with this outcome under the tool rules."""
    if outcome.stops:
        # Without the rule, the turn would have ended as well.
        is_silent = offered.speaks_by_tools and not parsed.wants_heartbeat
        return NextAction("end_turn" if is_silent else "tool_rule")
    if not offered.speaks_by_tools:
        return NextAction()
    if outcome.reason:
        return NextAction(heartbeat=outcome.reason)
    if has_failed:
        return NextAction(heartbeat=AFTER_FAILURE)
    return NextAction(heartbeat=REQUESTED) if parsed.wants_heartbeat else END


def _refused(call: ToolCallPart, reason: str) -> ToolReturnPart:
    return replace(failed_result(call, reason), is_refused=True)


def _refusal(call: ToolCallPart, offered: OfferedTools) -> ToolReturnPart:
    # wire fact of the retired Letta V1 server: the beginning of the sentence.
    names = [name for name in offered.tools if name not in offered.hidden]
    listed = ", ".join(names)
    reason = f"[ToolConstraintError] Cannot call {call.name}, valid tools include: [{listed}]"
    if nearest := get_close_matches(call.name[:_LONGEST_NAME].casefold(), names):
        reason = f"{reason}. The nearest name is {' or '.join(nearest)}."
    return _refused(call, reason)
