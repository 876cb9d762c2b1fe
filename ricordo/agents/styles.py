"""How an agent talks: what it is offered, what its reply means, whether it goes on. Two small values; the loop is the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ricordo.agents.agent_types import traits_of
from ricordo.agents.approvals import Answered
from ricordo.domain.agent import Agent, AgentState, AgentType
from ricordo.domain.message import Part, ReasoningPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelReply, ToolChoice, ToolSchema
from ricordo.domain.run import StopReason
from ricordo.errors import Invalid
from ricordo.tools.presenting import Presenting, prefill, schema_for, take_apart
from ricordo.tools.rules import Allowed, Called, Rulebook
from ricordo.tools.toolbox import failed_result


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """What the model is offered in one step: the tools by name, as it sees them and as they are, and how they are dressed up."""

    tools: Mapping[str, ToolSchema]
    bare: Mapping[str, ToolSchema]
    choice: ToolChoice
    allowed: Allowed
    how: Presenting


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply, understood: its parts as they are kept, the calls to run, and results of those that must not be run.

    `calls` hold what the tools get, `quotes` by call id the words of a user's that calls appeal to. `stop` is set where the reply
    itself ends the turn.
    """

    parts: tuple[Part, ...]
    calls: tuple[ToolCallPart, ...] = ()
    refused: tuple[ToolReturnPart, ...] = ()
    wants_heartbeat: bool = False
    stop: StopReason | None = None
    quotes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        """Whether some call has to wait for a person or the client, and so all of them."""
        return any(isinstance(part, ToolCallPart) and part.is_gated for part in self.parts)


@dataclass(frozen=True, slots=True)
class NextAction:
    """What comes after a step: the end of the turn, or another step, with a word to the agent where it needs one."""

    stop: StopReason | None = None
    heartbeat: str | None = None


class Style(Protocol):
    """One way of talking."""

    def present(
        self,
        tools: Sequence[ToolSchema],
        allowed: Allowed,
        rules: Rulebook,
        agent: Agent,
        quoting: frozenset[str] = frozenset(),
    ) -> OfferedTools:
        """The tools as the model is offered them, and whether it must call one; those in `quoting` may quote a user."""
        ...

    def after_text(self, reply: ModelReply, offer: OfferedTools, *, was_reminded: bool) -> NextAction:
        """What comes after a reply without a call."""
        ...

    def after_calls(self, reading: ParsedReply, results: Sequence[ToolReturnPart], reason: str | None) -> NextAction:
        """What comes after calls that no rule decides about; `reason` is why a rule wants another step."""
        ...


@dataclass(frozen=True, slots=True)
class NativeStyle:
    """Plain text speaks to the user and ends the turn; tool calls are run and the model is asked again."""

    def present(
        self,
        tools: Sequence[ToolSchema],
        allowed: Allowed,
        rules: Rulebook,
        agent: Agent,  # noqa: ARG002
        quoting: frozenset[str] = frozenset(),
    ) -> OfferedTools:
        """Every allowed tool as it is; the model may call one or not, unless a rule wants a call."""
        return _offer(tools, allowed, rules, Presenting(quoting=quoting), "required" if allowed.must_call else "auto")

    def after_text(self, reply: ModelReply, offer: OfferedTools, *, was_reminded: bool) -> NextAction:  # noqa: ARG002
        """Text ends the turn, as does an answer that was cut off at its length limit."""
        return NextAction("max_tokens_exceeded" if reply.finish == "length" else "end_turn")

    def after_calls(self, reading: ParsedReply, results: Sequence[ToolReturnPart], reason: str | None) -> NextAction:  # noqa: ARG002
        """Calls go on."""
        return NextAction()


@dataclass(frozen=True, slots=True)
class HeartbeatStyle:
    """The agent acts only by tools, speaks by `send_message`, and goes on only where it asks for a heartbeat."""

    def present(
        self,
        tools: Sequence[ToolSchema],
        allowed: Allowed,
        rules: Rulebook,
        agent: Agent,
        quoting: frozenset[str] = frozenset(),
    ) -> OfferedTools:
        """Every allowed tool, with the heartbeat among its arguments; one must be called, where there is any."""
        settings = agent.model_settings
        how = Presenting(
            heartbeat=True,
            thinks_in_arguments=bool(settings.thinks_in_arguments),
            response_format=settings.response_format,
            quoting=quoting,
        )
        return _offer(tools, allowed, rules, how, "required")

    def after_text(self, reply: ModelReply, offer: OfferedTools, *, was_reminded: bool) -> NextAction:
        """An agent with tools is reminded once that it speaks through them; one without speaks plainly."""
        if reply.finish == "length":
            return NextAction("max_tokens_exceeded")
        if not offer.tools:
            return NextAction("end_turn")
        return NextAction("no_tool_call") if was_reminded else NextAction(heartbeat=REMINDER)

    def after_calls(self, reading: ParsedReply, results: Sequence[ToolReturnPart], reason: str | None) -> NextAction:
        """A heartbeat follows where a rule wants it, a call failed, or the agent asked for one; else the turn ends."""
        if reason is not None:
            return NextAction(heartbeat=reason)
        if any(result.status == "error" for result in results):
            return NextAction(heartbeat=AFTER_FAILURE)
        return NextAction(heartbeat=REQUESTED) if reading.wants_heartbeat else NextAction("end_turn")


ONE_BY_ONE = "The tool rules set an order, so calls are made one by one. Call this tool again if it is still needed."
REQUESTED = "Function called using request_heartbeat=true, returning control"
AFTER_FAILURE = "Function call failed, returning control"
REMINDER = "Your reply called no tool, so nobody has seen it. Call a tool now; to answer the user, call send_message."
_STYLES: dict[str, Style] = {"native": NativeStyle(), "heartbeat": HeartbeatStyle()}


def style_of(agent_type: AgentType) -> Style:
    """The style of this type of agent; raises Unsupported for a type this version does not run."""
    return _STYLES[traits_of(agent_type).style]


def rulebook(state: AgentState, client_tools: Sequence[ToolSchema] = ()) -> Rulebook:
    """The rules of an agent over the tools it has in a turn. Raises Invalid for rules under which no turn could end."""
    names = [*(tool.name for tool in state.tools), *(tool.name for tool in client_tools)]
    return Rulebook(state.agent.tool_rules, names)


def read(
    reply: ModelReply, offer: OfferedTools, rules: Rulebook, client_tools: Mapping[str, ToolSchema]
) -> ParsedReply:
    """What the reply asks for: thoughts taken out of arguments, fixed arguments put in, calls that must wait marked."""
    parts: list[Part] = []
    calls: list[ToolCallPart] = []
    refused: list[ToolReturnPart] = []
    quotes: dict[str, str] = {}
    wants_heartbeat = False
    stop: StopReason | None = None
    for part in reply.parts:
        if not isinstance(part, ToolCallPart):
            parts.append(part)
            continue
        taken = take_apart(part, offer.how, offer.bare.get(part.name))
        if taken.thoughts:
            parts.append(ReasoningPart(taken.thoughts, native=False))
        wants_heartbeat |= taken.wants_heartbeat
        if taken.quote:
            quotes[part.call_id] = taken.quote
        kept = taken.call
        if part.name not in offer.tools:
            refused.append(_refusal(part, offer))
        elif calls and rules.is_ordered:
            refused.append(failed_result(part, ONE_BY_ONE))
        else:
            try:
                kept, run = _fixed(kept, taken.arguments, offer)
            except Invalid as error:
                refused.append(failed_result(part, str(error)))
                stop = "invalid_tool_call"
            else:
                is_gated = rules.needs_approval(part.name) or part.name in client_tools
                kept = replace(kept, is_gated=True) if is_gated else kept
                calls.append(replace(run, is_gated=is_gated))
        parts.append(kept)
    return ParsedReply(tuple(parts), tuple(calls), _marked(refused), wants_heartbeat, stop, quotes)


def read_again(
    answer: Answered, offer: OfferedTools, rules: Rulebook, client_tools: Mapping[str, ToolSchema]
) -> ParsedReply:
    """A reply that waited, now that its answer is there: the calls that may be run, and results of those that must not."""
    calls: list[ToolCallPart] = []
    refused: list[ToolReturnPart] = []
    quotes: dict[str, str] = {}
    for call in answer.calls_to_run():
        if call.name not in offer.tools:
            refused.append(_refusal(call, offer))
        elif not call.is_gated and rules.is_ordered:
            refused.append(failed_result(call, ONE_BY_ONE))  # as it was when it was made: nobody was asked about it
        elif not call.is_gated and (rules.needs_approval(call.name) or call.name in client_tools):
            refused.append(failed_result(call, f"{call.name} has to wait for approval by now. Call it again."))
        elif call.name in client_tools:
            refused.append(failed_result(call, f"{call.name} is run by the client, which sent no result of it."))
        else:
            taken = take_apart(call, offer.how, offer.bare.get(call.name))
            calls.append(replace(call, arguments=taken.arguments))
            quotes[call.call_id] = taken.quote
    wants_heartbeat = any(take_apart(call, offer.how).wants_heartbeat for call in answer.request.tool_calls)
    return ParsedReply(answer.request.parts, tuple(calls), _marked(refused), wants_heartbeat, quotes=quotes)


def decide(
    style: Style,
    rules: Rulebook,
    reading: ParsedReply,
    results: Sequence[ToolReturnPart],
    history: list[Called],
) -> NextAction:
    """What comes after calls have their results: rules first, then the style. The calls that ran join the turn's `history`."""
    latest = called(results)
    outcome = rules.outcome(history, latest)
    history += latest
    if reading.stop:
        return NextAction(reading.stop)
    if outcome.stops:
        return require_before_exit(rules, history, NextAction("tool_rule"))
    reason = (outcome.reason or REQUESTED) if outcome.continues else None
    return require_before_exit(rules, history, style.after_calls(reading, results, reason))


def require_before_exit(rules: Rulebook, history: Sequence[Called], coming: NextAction) -> NextAction:
    """The same, unless the turn would end while tools that must be called before were not."""
    if coming.stop not in ("end_turn", "tool_rule") or not (missing := rules.before_exit(history)):
        return coming
    return NextAction(heartbeat=f"Before you end your turn you must still call: {', '.join(missing)}.")


def called(results: Sequence[ToolReturnPart]) -> list[Called]:
    """Results as the rules see them: a call that they refused is none."""
    return [Called(one.name, one.content, one.status == "success") for one in results if not one.is_refused]


def _marked(refused: Sequence[ToolReturnPart]) -> tuple[ToolReturnPart, ...]:
    return tuple(replace(result, is_refused=True) for result in refused)


def _offer(
    tools: Sequence[ToolSchema], allowed: Allowed, rules: Rulebook, how: Presenting, choice: ToolChoice
) -> OfferedTools:
    names = frozenset(allowed.names)
    bare = {tool.name: tool for tool in tools if tool.name in names}
    offered = {name: schema_for(tool, how, is_terminal=rules.is_terminal(name)) for name, tool in bare.items()}
    return OfferedTools(offered, bare, choice if offered else "none", allowed, how)


def _fixed(kept: ToolCallPart, arguments: str, offer: OfferedTools) -> tuple[ToolCallPart, ToolCallPart]:
    """The call as it is kept and as it is run, with the arguments a rule fixes."""
    run = replace(kept, arguments=arguments)
    values = offer.allowed.prefilled.get(kept.name)
    if not values:
        return kept, run
    schema = offer.tools[kept.name]
    return prefill(kept, values, schema), prefill(run, values, offer.bare[kept.name])


def _refusal(call: ToolCallPart, offer: OfferedTools) -> ToolReturnPart:
    # The beginning is a wire fact of the retired Letta V1 server.
    names = ", ".join(offer.tools)
    return failed_result(call, f"[ToolConstraintError] Cannot call {call.name}, valid tools include: [{names}]")
