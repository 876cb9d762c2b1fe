"""The request for a turn, and the state of a running turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.context_window import ContextWindow, user_texts_in
from ricordo.agents.repeated_reads import RepeatedReads
from ricordo.domain.agent import AgentState, CompactionSettings
from ricordo.domain.event import Event
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import ApprovalPart, Message, Part, Role, ToolCallPart, ToolReturnPart
from ricordo.domain.model import MemoryInPrompt, ModelProfile, ModelRequest, ToolSchema
from ricordo.domain.run import Run, Step, StopReason
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ClientSkill, ToolRule
from ricordo.llm.adaptation import has_results_role
from ricordo.llm.chat import ChatModel
from ricordo.llm.exchange import Exchange
from ricordo.memory.edits import GuardSources, WorkingMemory, search_results
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Transaction
from ricordo.tools.rules import CallRules
from ricordo.tools.toolbox import failed_result

DEFAULT_MAX_STEPS = 50
# wire fact: clients of the retired Letta V1 server match it.
DENIED = "Error: request to call tool denied. User reason: {reason}"


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A new message.

    `is_untrusted`: it contains text of others, such as passages of documents.
    """

    role: Role
    parts: tuple[Part, ...]
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    is_untrusted: bool = False

    def signed(self, message: Message, *, is_untrusted: bool = False) -> Message:
        """Return the message with this one's sender and otid."""
        return replace(
            message,
            is_untrusted=is_untrusted,
            otid=self.otid,
            name=self.name,
            sender_id=self.sender_id,
            group_id=self.group_id,
        )


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to waiting calls: ApprovalParts, and ToolReturnParts of the client's own tools.

    Older clients decide about all calls at once, by `approves` and `reason`; `request_id` is the
    message that asked.
    """

    parts: tuple[Part, ...] = ()
    otid: str | None = None
    approves: bool | None = None
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AnsweredApproval:
    """A request for approval with its answer.

    `decisions` are the decisions by call id; `returns` are results of the client's own tools.
    """

    request: Message
    decisions: dict[str, ApprovalPart] = field(default_factory=dict)
    returns: dict[str, ToolReturnPart] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def calls_to_run(self) -> list[ToolCallPart]:
        """Return the calls that may run now: approved and never gated ones."""
        calls = [call for call in self.request.tool_calls if call.call_id not in self.returns]
        return [
            call for call in calls if not call.is_gated or self.decisions[call.call_id].approves
        ]

    def results(self, run_results: Sequence[ToolReturnPart]) -> list[ToolReturnPart]:
        """Return the results of all calls, in their order.

        They are results of this run, of the client, or denials.
        """
        results_by_call = {result.call_id: result for result in run_results} | self.returns
        return [
            results_by_call.get(call.call_id)
            or failed_result(call, DENIED.format(reason=self.decisions[call.call_id].reason))
            for call in self.request.tool_calls
        ]


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The request for one turn: messages, or an answer to waiting calls.

    Attributes:
        conversation_id: The conversation; None for the agent's default one.
        streams_tokens: Ask the provider for tokens as they appear.
        client_tools: Tools that the caller runs.
        client_skills: Skills that the prompt of this turn shows.
        model: A model in place of the agent's, for this turn.
        system: A system prompt in place of the agent's, for this turn.
        purpose: The run's purpose (see domain/run.py). `callback` and `metadata` are stored
            with the run too.
        compaction: With these settings the turn only makes the window smaller.
        body_hash: The hash of the request as it was sent.
        is_retry: An equal request of the last minutes is answered with its run.
        also_save: Called in the transaction that starts the run, and in the one that ends it,
            then with the turn's messages if a step ended it.
        response_format: The response format in place of the agent's, for this turn.
        wanted_tools: Tools of the client; one of them has to be called before the turn ends.
        logprobs: Return probabilities of tokens, with this number of alternatives.
        callers: The agents whose calls led to this turn, the first one first.
        instructions: Text behind the system message, for this turn.
        only_tools: Names of stored tools in place of the agent's, for this turn.
        added_tools: Names of the server's unstored tools, for this turn; `added_rules` are
            their rules.
        planned_run: The id of a run that was announced before. This turn becomes that run,
            unless it began already.
    """

    scope: Scope
    agent_id: str
    messages: tuple[NewMessage, ...] = ()
    approval: Approval | None = None
    conversation_id: str | None = None
    max_steps: int = DEFAULT_MAX_STEPS
    streams_tokens: bool = False
    client_tools: tuple[ToolSchema, ...] = ()
    client_skills: tuple[ClientSkill, ...] = ()
    model: str | None = None
    system: str | None = None
    is_background: bool = False
    purpose: str | None = None
    callback: dict[str, Any] = field(default_factory=dict)
    compaction: CompactionSettings | None = None
    body_hash: str | None = None
    is_retry: bool = False
    request_config: dict[str, Any] = field(default_factory=dict)
    also_save: Callable[[Transaction, Run, Sequence[Message]], None] | None = None
    response_format: dict[str, Any] | None = None
    wanted_tools: frozenset[str] = frozenset()
    logprobs: int | None = None
    callers: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    instructions: str = ""
    only_tools: tuple[str, ...] | None = None
    added_tools: tuple[str, ...] = ()
    added_rules: tuple[ToolRule, ...] = ()
    planned_run: str | None = None


@dataclass(slots=True)
class WindowLimit:
    """The limits of a turn's requests in its model's context window (see `context_limit.py`).

    Attributes:
        token_percent: The provider's tokens for a hundred of our estimate.
        least_percent: The least `token_percent` for the rest of the turn, learned from a
            refusal.
        was_refused: No answer came since the last refusal.
        own_window: The window of the conversation's own model, in tokens, if this turn borrows
            another model.
        gained: The tokens that the turn's last compaction freed.
        refused: The smallest request refused since the last answer, by our estimate, and the
            window that the refusal named.
    """

    token_percent: int = 100
    least_percent: int = 0
    was_refused: bool = False
    own_window: int | None = None
    gained: int | None = None
    refused: tuple[int, int | None] | None = None

    def learned_percent(self) -> int | None:
        if not self.was_refused and self.own_window is None:
            return self.token_percent
        return None


@dataclass(slots=True)
class TurnContext:
    """A running turn's state, which each saved step advances.

    Attributes:
        profile: The model's profile.
        memory_in_prompt: When the memory in the prompt is rendered again.
        approval: The answered request for approval that the turn resumes.
        asking: The step whose call to the model is under way.
        removed: Secrets that memory did not store in this turn, with their kinds.
        publish: Publishes an event within a step to the turn's readers.
    """

    runtime: Runtime
    request: TurnRequest
    run: Run
    state: AgentState
    model: ChatModel
    window: ContextWindow
    rules: CallRules
    limit: WindowLimit
    profile: ModelProfile = "full"
    memory_in_prompt: MemoryInPrompt = "step"
    approval: AnsweredApproval | None = None
    asking: "StepDraft | None" = None
    removed: dict[str, str] = field(default_factory=dict)
    reads: RepeatedReads = field(default_factory=RepeatedReads)
    publish: Callable[[Event], None] = lambda _event: None

    @property
    def reads_plain_results(self) -> bool:
        """Return whether the model is small, or has no role for results of tools."""
        return self.profile != "full" or not has_results_role(self.model)

    def is_untrusted(self) -> bool:
        """Return whether the step's prompt contains untrusted content."""
        return (
            self.state.shows_files
            or any(message.is_untrusted for message in self.window.messages)
            or any(block.is_untrusted for block in self.state.blocks)
        )

    def began_at(self) -> int:
        """Return the time of the turn's first message.

        It may stand before calls that waited for approval.
        """
        turn_messages = self.window.turn_messages()
        if self.window.is_resumed and turn_messages and turn_messages[0].is_said:
            return min(self.run.created_at, turn_messages[0].created_at)
        return self.run.created_at

    def view_began(self) -> int:
        """Return the time of the oldest message in view."""
        own_id = self.state.conversation.id
        visible_messages = (
            message
            for message in self.window.messages
            if message.role not in ("system", "summary") and message.conversation_id == own_id
        )
        return min((message.created_at for message in visible_messages), default=self.began_at())

    def guard_sources(self) -> GuardSources:
        """Return the texts that the guard compares with edits of memory."""
        system = (self.state.agent.system, self.request.system or "", self.request.instructions)
        recalled, recalled_user_texts = search_results(self.window.messages)
        # A quote permits an edit only if the user said it in this turn. Words that the user said
        # anywhere in the window count as the user's own, not as untrusted text.
        return GuardSources(
            system=system,
            recalled=recalled,
            user_texts=user_texts_in(self.window.turn_messages()),
            earlier_user_texts=user_texts_in(self.window.messages),
            recalled_user_texts=recalled_user_texts,
        )


@dataclass(slots=True)
class StepDraft:
    """A step while it runs.

    Times are nanoseconds; `message_id` is allocated before the model is asked. `jobs` are requested
    by its tools, and added in the transaction that saves the step.
    """

    number: int
    memory: WorkingMemory
    started_at: int
    id: str = field(default_factory=lambda: new_id("step"))
    message_id: str = field(default_factory=lambda: new_id("message"))
    began_ns: int = field(default_factory=time.monotonic_ns)
    # The last request to the model, and its time.
    request: ModelRequest | None = None
    exchange: Exchange | None = None
    request_ns: int = 0
    first_ns: int | None = None
    model_ns: int = 0
    tools_ns: int = 0
    jobs: list[Job] = field(default_factory=list)

    def record(
        self, turn: TurnContext, created_at: int, stop: StopReason | None, **more: Any
    ) -> Step:
        """Return the step's record, with or without an answer of the model.

        `more` are other fields of the record.
        """
        info = turn.model.info
        fields: dict[str, Any] = {
            "model": info.name,
            "model_handle": info.handle,
            "provider": info.provider,
            "model_endpoint": info.endpoint,
            "context_window": turn.state.agent.context_window,
            "stop_reason": stop,
            "created_at": created_at,
            "started_at": self.started_at,
            "step_ns": time.monotonic_ns() - self.began_ns,
        }
        return Step(
            id=self.id,
            organization_id=turn.run.organization_id,
            agent_id=turn.run.agent_id,
            run_id=turn.run.id,
            conversation_id=turn.run.conversation_id,
            **fields | more,
        )
