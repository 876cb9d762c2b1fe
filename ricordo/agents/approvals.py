"""Calls that wait for a person or the client: finding them, and taking up the answer.

An answer with such calls is stored whole and nothing of it is run. The turn that brings the decisions runs what was approved,
takes what the client did, tells the agent of the rest, and goes on. Nobody has to answer: after a while the calls count as denied
and the next message is answered as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ricordo.domain.agent import Agent
from ricordo.domain.clock import SECOND
from ricordo.domain.message import ApprovalPart, Message, Part, ToolCallPart, ToolReturnPart
from ricordo.domain.tool import ToolRule
from ricordo.errors import Conflict, Invalid
from ricordo.tools.toolbox import failed_result

# These sentences are wire facts: clients of the retired Letta V1 server match them.
NOTHING_WAITS = "No tool call is currently awaiting approval"
STILL_WAITING = (
    "Cannot send a new message: The agent is waiting for approval on a tool call. "
    "Please approve or deny the pending request before continuing."
)
DENIED = "Error: request to call tool denied. User reason: {reason}"
CANCELLED = "The user cancelled the request, so the tool call was denied."
EXPIRED = "The request for approval was not answered in time, so the tool call was denied."


@dataclass(frozen=True, slots=True)
class Answered:
    """A request for approval with its answer: what was decided about each call, and what the client did for its own."""

    request: Message
    decisions: dict[str, ApprovalPart] = field(default_factory=dict)
    returns: dict[str, ToolReturnPart] = field(default_factory=dict)

    def calls_to_run(self) -> tuple[ToolCallPart, ...]:
        """The calls that may run now: those that never had to wait, and the approved ones."""
        return tuple(
            call
            for call in self.request.tool_calls
            if call.call_id not in self.returns and (not call.is_gated or self.decisions[call.call_id].approves)
        )

    def results(self, run: Sequence[ToolReturnPart]) -> list[ToolReturnPart]:
        """The results of all calls, in their order: those that were run, the client's, and the denied."""
        known = {result.call_id: result for result in run} | self.returns
        return [known.get(call.call_id) or self._denied(call) for call in self.request.tool_calls]

    def _denied(self, call: ToolCallPart) -> ToolReturnPart:
        return failed_result(call, DENIED.format(reason=self.decisions[call.call_id].reason))


def waiting_in(window: Sequence[Message]) -> Message | None:
    return window[-1] if window and window[-1].is_waiting else None


def answered(window: Sequence[Message], parts: Sequence[Part]) -> Answered:
    """The request that waits, with this answer to it; raises Invalid where nothing waits or the answer does not fit it."""
    request = waiting_in(window)
    if request is None:
        raise Invalid(NOTHING_WAITS)
    gated = {call.call_id: call for call in request.tool_calls if call.is_gated}
    ids = [part.call_id for part in parts if isinstance(part, ApprovalPart | ToolReturnPart)]
    if sorted(ids) != sorted(gated):
        raise Invalid(f"Invalid tool call IDs. Expected '{list(gated)}', but received '{ids}'.")
    decisions = {part.call_id: part for part in parts if isinstance(part, ApprovalPart)}
    returns = [part for part in parts if isinstance(part, ToolReturnPart)]
    # The client does not say which tool a result is of.
    return Answered(request, decisions, {one.call_id: replace(one, name=gated[one.call_id].name) for one in returns})


def to_all(window: Sequence[Message], approves: bool, reason: str | None) -> tuple[Part, ...]:
    """One decision about every call that waits, as older clients send it; raises Invalid where none does."""
    request = waiting_in(window)
    if request is None:
        raise Invalid(NOTHING_WAITS)
    return tuple(ApprovalPart(call.call_id, approves, reason) for call in request.tool_calls if call.is_gated)


def require_nothing_waits(window: Sequence[Message], now: int, seconds: float) -> Message | None:
    """Raise Conflict while calls wait for an answer; returns the request that nobody answered in time, if there is one."""
    request = waiting_in(window)
    if request is not None and now - request.created_at < seconds * SECOND:
        raise Conflict(STILL_WAITING)
    return request


def given_up(request: Message, why: str) -> list[ToolReturnPart]:
    return [failed_result(call, why) for call in request.tool_calls]


def with_approval(agent: Agent, tool_name: str, is_wanted: bool) -> Agent:
    """The agent, with calls of this tool waiting for approval or not."""
    rules = [rule for rule in agent.tool_rules if (rule.type, rule.tool_name) != ("requires_approval", tool_name)]
    if is_wanted:
        rules.append(ToolRule(tool_name, "requires_approval"))
    return agent if len(rules) == len(agent.tool_rules) else replace(agent, tool_rules=tuple(rules))
