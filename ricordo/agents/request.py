"""What a turn is asked for, and the state it works on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.agents.repeated_reads import RepeatedReads
from ricordo.domain.agent import AgentState, CompactionSettings
from ricordo.domain.event import Event
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import ApprovalPart, Message, Part, Role, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelProfile, ModelRequest, ToolSchema
from ricordo.domain.run import Run, Step, StopReason
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ClientSkill, ToolRule
from ricordo.llm.adaptation import has_results_role
from ricordo.llm.chat import ChatModel
from ricordo.llm.exchange import Exchange
from ricordo.llm.output_budget import usual_output_tokens
from ricordo.memory.edit_guard import EditGuard, GuardSources, search_results
from ricordo.memory.working_memory import WorkingMemory
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Transaction
from ricordo.tools.rules import FinishedCall, Rulebook
from ricordo.tools.toolbox import failed_result

DEFAULT_MAX_STEPS = 50
# A wire fact: clients of the retired Letta V1 server match it.
DENIED = "Error: request to call tool denied. User reason: {reason}"


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message as it comes in. It `is_untrusted` where it holds what somebody else wrote, such as passages of documents."""

    role: Role
    parts: tuple[Part, ...]
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    is_untrusted: bool = False

    def signed(self, message: Message) -> Message:
        return replace(
            message,
            otid=self.otid,
            name=self.name,
            sender_id=self.sender_id,
            group_id=self.group_id,
        )


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to calls that wait: ApprovalParts, and ToolReturnParts of the client's own tools.

    Older clients decide about all calls at once, by `approves` and `reason`; `request_id` is the message that asked.
    """

    parts: tuple[Part, ...] = ()
    otid: str | None = None
    approves: bool | None = None
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A request for approval with its answer: what was decided about each call, and what the client did for its own."""

    request: Message
    decisions: dict[str, ApprovalPart] = field(default_factory=dict)
    returns: dict[str, ToolReturnPart] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def calls_to_run(self) -> list[ToolCallPart]:
        """The calls that may run now: those that never had to wait, and the approved ones."""
        calls = [call for call in self.request.tool_calls if call.call_id not in self.returns]
        return [
            call for call in calls if not call.is_gated or self.decisions[call.call_id].approves
        ]

    def results(self, run: Sequence[ToolReturnPart]) -> list[ToolReturnPart]:
        """The results of all calls, in their order: those that were run, the client's, and the denied."""
        known = {result.call_id: result for result in run} | self.returns
        return [
            known.get(call.call_id)
            or failed_result(call, DENIED.format(reason=self.decisions[call.call_id].reason))
            for call in self.request.tool_calls
        ]


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn: these messages, for this agent, in this conversation (its default where None), or an answer to calls that wait.

    `client_tools` are run by the caller, and `client_skills` shown in the prompt of this turn. `model` and `system` take the place
    of the agent's for this turn alone. `body_hash` names the request as it was sent; with `is_retry` an equal one of the last
    minutes is taken up again. `purpose` and `callback` are the run's (see domain/run.py). With `compaction` the turn only makes
    the window smaller, in this way. `also_save` is called in the transaction that starts the run, and in the one that ends it,
    with the turn's messages where a step ended it. `response_format` takes the place of the agent's for this turn, and one of
    `wanted_tools`, the client's own, has to be called before the turn ends. With `logprobs` the probabilities of tokens are
    wanted, and so many alternatives to each. `callers` are the agents whose calls led to this turn, the first one first.
    `metadata` is the run's. `instructions` follow the system message, and `added_tools`, unstored ones of the server, with
    `added_rules`, the agent's own tools: for this turn alone.
    `planned_run` is the id of a run that was told to somebody before: this turn is it, unless that began already.
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
    added_tools: tuple[str, ...] = ()
    added_rules: tuple[ToolRule, ...] = ()
    planned_run: str | None = None


@dataclass(slots=True)
class WindowLimit:
    """What is known of a turn's room in its model's context window (see `context_limit.py`).

    `token_percent` is what the provider counts, in percent of our own estimate; `least_percent` what a refusal taught for the
    rest of the turn, and `was_refused` that no answer came since. `own_window` is the window of the conversation's own model, in
    tokens, where this turn borrows another model; `gained` tokens were made free by the turn's last compaction. `refused` is the
    smallest request that was refused since the last answer, by our estimate, and the window that the refusal named.
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

    `window` are the in-context messages, the system message first; `unsaved` counts those that are stored but not yet in the
    stored window, and the turn's own begin at `first`. `finished` are the turn's finished calls, as the tool rules count them.
    `profile` is the model's. `approval` is the answered request for approval that the turn resumes; messages that came with
    the answer are in `delayed` until the calls have their results. `asking` is the step whose call to the model is under way.
    `removed` are secrets that memory did not keep in this turn, with their kinds.
    """

    runtime: Runtime
    request: TurnRequest
    run: Run
    state: AgentState
    model: ChatModel
    window: list[Message]
    prompt_key: str
    rules: Rulebook
    limit: WindowLimit
    profile: ModelProfile = "full"
    unsaved: int = 0
    first: int = 0
    prompt_changed: bool = False
    finished: list[FinishedCall] = field(default_factory=list)
    approval: Answered | None = None
    delayed: list[Message] = field(default_factory=list)
    asking: "StepDraft | None" = None
    removed: dict[str, str] = field(default_factory=dict)
    reads: RepeatedReads = field(default_factory=RepeatedReads)
    # Tells the turn's readers of what happens within a step.
    publish: Callable[[Event], None] = lambda _event: None

    @property
    def reads_plain_results(self) -> bool:
        """Return whether the model is small, or has no role for results of tools."""
        return self.profile != "full" or not has_results_role(self.model)

    @property
    def output_budget(self) -> int | None:
        """The bound of an answer for an agent that sets none."""
        window = self.state.agent.context_window
        chosen = self.runtime.settings.max_output_tokens
        return usual_output_tokens(
            self.model.info, window, is_small=self.profile != "full", chosen=chosen
        )

    def refresh_system(self, text: str, key: str, now: int) -> None:
        self.window[0] = replace(
            self.window[0].with_text(text), created_at=self.window[0].created_at or now
        )
        self.prompt_key = key
        self.prompt_changed = True

    def is_untrusted(self) -> bool:
        """Whether the step's prompt holds untrusted content."""
        is_read = any(message.is_untrusted for message in self.window)
        return (
            is_read
            or self.state.shows_files
            or any(block.is_untrusted for block in self.state.blocks)
        )

    def said(self) -> tuple[str, ...]:
        """The messages of the conversation's user in this turn, including those before the calls that waited for approval."""
        return _trusted_words(self.window[_beginning_of(self) :])

    def began_at(self) -> int:
        """When the turn's first message came, before the calls that waited for approval."""
        begins = _beginning_of(self)
        is_there = self.approval and begins and self.window[begins].is_said
        if is_there:
            return min(self.run.created_at, self.window[begins].created_at)
        return self.run.created_at

    def view_began(self) -> int:
        """Return when the oldest message was said that is in view."""
        own = self.state.conversation.id
        said = (
            one
            for one in self.window
            if one.role not in ("system", "summary") and one.conversation_id == own
        )
        return min((one.created_at for one in said), default=self.began_at())

    def evicted_count(self) -> int:
        """Return how many messages of the conversation are outside the window."""
        return max(0, self.state.conversation.message_count + self.unsaved - len(self.window))

    def edit_guard(self) -> EditGuard:
        """The guard that keeps search results and the agent's own instructions out of memory."""

        def read() -> GuardSources:
            system = (self.state.agent.system, self.request.system or "", self.request.instructions)
            recalled, again = search_results(self.window)
            # A quote, by which memory is written, has to be of this turn; that the words are the user's is true for longer.
            return GuardSources(system, recalled, self.said(), _trusted_words(self.window), again)

        return EditGuard(read)


@dataclass(slots=True)
class StepDraft:
    """A step while it is made. Times are nanoseconds; `message_id` is allocated before the model is asked.

    `jobs` are what its tools ask for: they are added in the transaction that saves the step.
    """

    number: int
    memory: WorkingMemory
    started_at: int
    id: str = field(default_factory=lambda: new_id("step"))
    message_id: str = field(default_factory=lambda: new_id("message"))
    began_ns: int = field(default_factory=time.monotonic_ns)
    # What the model was asked last, and when.
    asked: ModelRequest | None = None
    exchange: Exchange | None = None
    asked_ns: int = 0
    first_ns: int | None = None
    model_ns: int = 0
    tools_ns: int = 0
    jobs: list[Job] = field(default_factory=list)

    def record(
        self, turn: TurnContext, created_at: int, stop: StopReason | None, **more: Any
    ) -> Step:
        """The step as it is stored, whatever came of its call to the model; `more` is what is known beside."""
        run = turn.run
        info = turn.model.info
        values: dict[str, Any] = {
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
            self.id, run.organization_id, run.agent_id, run.id, run.conversation_id, **values | more
        )


def _beginning_of(turn: TurnContext) -> int:
    """Where in the window the turn begins, with what came before the calls that waited for approval."""
    begins = turn.first
    if turn.approval:
        begins = min(begins, len(turn.window) - 1)  # a compaction may have left nothing of the turn
    while turn.approval and begins > 1 and not turn.window[begins].is_said:
        begins -= 1
    return begins


def _trusted_words(window: Sequence[Message]) -> tuple[str, ...]:
    return tuple(one.text for one in window if one.is_said and not one.is_untrusted)
