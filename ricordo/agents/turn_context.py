"""The state of a running turn: values read at its start, and values that its steps change."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ricordo.agents.request import TurnRequest
from ricordo.domain.agent import AgentState
from ricordo.domain.egress import IN_PROCESS, Clearance, Destination
from ricordo.domain.event import Event
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import (
    ApprovalPart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import MemoryInPrompt, ModelProfile, ModelRequest
from ricordo.domain.run import Run, Step, StopReason
from ricordo.domain.usage import Usage
from ricordo.llm.adaptation import LearnedModel
from ricordo.llm.chat import ChatModel
from ricordo.llm.exchange import Exchange
from ricordo.llm.loose_json import read_json
from ricordo.memory.edits import GuardSources, WorkingMemory, search_results
from ricordo.prompt.system_prompt import SystemPrompt, system_prompt
from ricordo.runtime import Runtime
from ricordo.storage.model_costs import ReplyAccount
from ricordo.tools.rules import CallRules
from ricordo.tools.toolbox import failed_result

# wire fact: clients of the retired Letta V1 server match it.
DENIED = "Error: request to call tool denied. User reason: {reason}"
NOTICE = (
    "You made the same call before in this turn, so it was not run again: its result is above. "
    "Use that result, or answer "
    "the user now."
)
# At this number of equal calls, the turn continues without tools.
_LAST_READ = 3


@dataclass(frozen=True, slots=True)
class AnsweredApproval:
    """A request for approval with its answer.

    `decisions` are the decisions by call id; `returns` are results of tools that the client runs.
    """

    request: Message
    decisions: dict[str, ApprovalPart] = field(default_factory=dict)
    returns: dict[str, ToolReturnPart] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def calls_to_run(self) -> list[ToolCallPart]:
        """Return the calls that may run now: approved ones, and those that needed no approval."""
        calls = [call for call in self.request.tool_calls if call.call_id not in self.returns]
        return [
            call for call in calls if not call.is_gated or self.decisions[call.call_id].approves
        ]

    def results(self, run_results: Sequence[ToolReturnPart]) -> list[ToolReturnPart]:
        """Return the results of all calls, in their order.

        Each is a result of this run, a result of the client, or a denial.

        Args:
            run_results: The results of the calls that `calls_to_run` returned.
        """
        results_by_call = {result.call_id: result for result in run_results} | self.returns
        return [
            results_by_call.get(call.call_id)
            or failed_result(call, DENIED.format(reason=self.decisions[call.call_id].reason))
            for call in self.request.tool_calls
        ]


@dataclass(slots=True)
class ContextWindow:
    """The messages in context, the system message first.

    Attributes:
        prompt_key: A hash that identifies the prompt's content. If it is unchanged, the system
            message need not be rendered again.
        message_count: The number of the conversation's messages, in the window or not.
        first: The index of the turn's first message.
        unsaved: The number of stored messages that the stored window lacks.
        delayed: Messages that came with an answer to calls; they wait until the calls have results.
        is_resumed: The turn continues after calls that waited for an answer.
        has_new_system: The system message differs from the stored one.
        shows_picture_texts: The model cannot read pictures, so it read their texts instead.
    """

    messages: list[Message]
    prompt_key: str
    message_count: int = 0
    first: int = 0
    unsaved: int = 0
    delayed: list[Message] = field(default_factory=list)
    is_resumed: bool = False
    has_new_system: bool = False
    shows_picture_texts: bool = False

    @property
    def waiting(self) -> Message | None:
        """Return the last message if its calls wait for an answer."""
        last = self.messages[-1] if self.messages else None
        if last and last.role == "approval" and last.is_waiting:
            return last
        return None

    def with_input(self, input_messages: Sequence[Message]) -> "ContextWindow":
        """Return the window with the turn's stored input at its end.

        Args:
            input_messages: The stored messages. The stored window does not name them yet.
        """
        return replace(
            self,
            messages=[*self.messages, *input_messages],
            message_count=self.message_count + len(input_messages),
            first=len(self.messages),
            unsaved=len(input_messages),
        )

    def with_answer(self, answer: Message, new_messages: Sequence[Message]) -> "ContextWindow":
        """Return the window with the stored answer to the calls that wait.

        Args:
            answer: The stored message with the decisions and the client's results.
            new_messages: Stored messages that came with the answer. They follow the results of the
                calls.
        """
        window = self.with_input([answer])
        return replace(
            window,
            message_count=window.message_count + len(new_messages),
            unsaved=1 + len(new_messages),
            delayed=list(new_messages),
            is_resumed=True,
        )

    def replace_system(self, text: str, key: str, now: int) -> None:
        """Put another text into the system message.

        Args:
            text: The rendered prompt.
            key: The key of the prompt, which becomes `prompt_key`.
            now: The time of a system message that has none yet, in microseconds.
        """
        system = self.messages[0]
        self.messages[0] = replace(
            system, parts=(TextPart(text),), created_at=system.created_at or now
        )
        self.prompt_key = key
        self.has_new_system = True

    def with_step(self, new_messages: Sequence[Message]) -> list[Message]:
        """Return the messages in context followed by a step's messages, which are not saved yet.

        Args:
            new_messages: The step's messages. With tool results among them, the delayed messages
                follow.
        """
        has_results = any(message.role == "tool" for message in new_messages)
        return [*self.messages, *new_messages, *(self.delayed if has_results else ())]

    def append_saved(self, new_messages: Sequence[Message]) -> None:
        """Append the messages of a saved step.

        Args:
            new_messages: The messages, as the save stored them.
        """
        self.messages = self.with_step(new_messages)
        self.message_count += len(new_messages)
        if any(message.role == "tool" for message in new_messages):
            self.delayed = []
        self.unsaved = 0
        self.has_new_system = False

    def update(self, changed: Message) -> None:
        """Put a changed message in the place of the message with the same id.

        Args:
            changed: The message, as it is stored now.
        """
        self.messages = [
            changed if message.id == changed.id else message for message in self.messages
        ]

    def replace(self, messages: Sequence[Message]) -> None:
        """Replace the messages by those that a compaction saved, with one new message.

        Args:
            messages: The new window, the system message first.
        """
        own = self.messages[self.first : self.first + 1]
        self.messages = list(messages)
        self.message_count += 1
        self.first = messages.index(own[0]) if own and own[0] in messages else min(2, len(messages))
        self.has_new_system = False

    def cut_before_turn(self, kept: int) -> None:
        """Remove the messages right before the turn.

        Args:
            kept: The number of messages to keep; the first is the system message.
        """
        self.messages = [*self.messages[:kept], *self.messages[self.first :]]
        self.first = kept

    @property
    def evicted_count(self) -> int:
        """The number of the conversation's messages that are outside the window."""
        return max(0, self.message_count - len(self.messages))

    def turn_messages(self) -> Sequence[Message]:
        """Return the messages of this turn.

        If the turn resumes calls that waited, they begin with the message that led to the calls.
        """
        begins = self.first
        if self.is_resumed:
            # A compaction may have removed every message of the turn.
            begins = min(begins, len(self.messages) - 1)
            while begins > 1 and not self.messages[begins].is_said:
                begins -= 1
        return self.messages[begins:]


def user_texts_in(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the texts of the conversation's user in these messages.

    Args:
        messages: Messages of one conversation; texts of other persons in it are left out.
    """
    return tuple(
        message.text for message in messages if message.is_said and not message.is_untrusted
    )


@dataclass(slots=True)
class RepeatedReads:
    """The number of calls of each read in a turn, by name and arguments.

    Small models often search for information that they just got, find nothing new, and search
    again. A repeated call gets a notice. If the model still repeats it, the turn continues without
    tools (`is_over`). A call that changes something resets all counts. A failed call may be
    repeated; after three equal failures the turn continues without tools too.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_over: bool = False

    def notices(
        self, calls: Sequence[ToolCallPart], read_only: Collection[str]
    ) -> dict[str, ToolReturnPart]:
        """Count the calls, and return notices by call id for repeated ones.

        Calls with a notice are not run.

        Args:
            calls: The calls of one step.
            read_only: The names of tools for which equal calls have equal results. A call of any
                other tool resets all counts.
        """
        notices: dict[str, ToolReturnPart] = {}
        for call in calls:
            if call.name not in read_only:
                self.counts.clear()
                self.failures.clear()
                continue
            key = _key(call)
            self.counts[key] += 1
            if self.counts[key] > 1:
                notices[call.call_id] = ToolReturnPart(call.call_id, call.name, "success", NOTICE)
            self.is_over |= self.counts[key] >= _LAST_READ
        return notices

    def allow_again(self, calls: Iterable[ToolCallPart], results: Iterable[ToolReturnPart]) -> None:
        """Let the failed reads of a step run again, since they have no result to use.

        Args:
            calls: The calls of the step, after `notices`.
            results: The results of the calls that ran.
        """
        failed_ids = {result.call_id for result in results if result.status == "error"}
        for call in calls:
            if call.call_id not in failed_ids:
                continue
            key = _key(call)
            if self.counts.pop(key, 0):
                self.failures[key] += 1
                self.is_over |= self.failures[key] >= _LAST_READ

    def forget_results(self) -> None:
        """Let all reads run again, since a compaction has removed results from the window."""
        self.counts.clear()


def _key(call: ToolCallPart) -> tuple[str, str]:
    return (call.name, _canonical(call.arguments))


def _canonical(arguments: str) -> str:
    """Return the arguments in one form: sorted by name, and without those that are null."""
    parsed = read_json(arguments)
    if not isinstance(parsed, dict):
        return arguments
    fields = {key: content for key, content in parsed.items() if content is not None}
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        return arguments


@dataclass(slots=True)
class WindowLimit:
    """The limits of a turn's requests in its model's context window (see `context_limit.py`).

    Attributes:
        token_percent: The provider's tokens for a hundred of our estimate.
        least_percent: The least `token_percent` for the rest of the turn, learned from a
            refusal.
        was_refused: No answer has come since the last refusal.
        own_window: The window of the conversation's model in tokens, if this turn borrows another
            model.
        gained: Tokens that the turn's last compaction freed.
        refused: The smallest request that was refused since the last answer, in tokens by our
            estimate, and the window that the refusal named. None: no request was refused.
    """

    token_percent: int = 100
    least_percent: int = 0
    was_refused: bool = False
    own_window: int | None = None
    gained: int | None = None
    refused: tuple[int, int | None] | None = None


@dataclass(slots=True)
class TurnContext:
    """A running turn's state.

    Attributes:
        runtime: The server's parts.
        request: The caller's request.
        payer: The account that pays for answers that become no step.
        model: The model that answers. `learned` has its limits as earlier calls showed them, and
            `profile` is its profile.
        memory_in_prompt: When to render the memory in the prompt again.
        approval: The answered request for approval that the turn resumes.
        publish: Publishes an event within a step to the turn's readers. It and the attributes above
            do not change during the turn.
        run: The run's record. Each saved step updates it, and also `state` and `window`.
        rules: The tool rules with the turn's finished calls.
        limit: The limits of the turn's requests in the context window.
        asking: The step whose model call is running.
        unsaved_usage: The tokens of a reply whose step is not saved yet.
        clearance: The texts that the turn may send out, by the egress policies of their sources;
            `destination` is the receiver of its prompts.
        removed: Secrets that memory removed in this turn, with their kinds.
        reads: The calls of read-only tools.
    """

    runtime: Runtime
    request: TurnRequest
    payer: ReplyAccount
    model: ChatModel
    run: Run
    state: AgentState
    window: ContextWindow
    rules: CallRules
    limit: WindowLimit
    learned: LearnedModel | None = None
    profile: ModelProfile = "full"
    memory_in_prompt: MemoryInPrompt = "step"
    approval: AnsweredApproval | None = None
    publish: Callable[[Event], None] = lambda _event: None
    asking: "StepDraft | None" = None
    unsaved_usage: Usage | None = None
    clearance: Clearance = field(default_factory=Clearance)
    destination: Destination = IN_PROCESS
    removed: dict[str, str] = field(default_factory=dict)
    reads: RepeatedReads = field(default_factory=RepeatedReads)

    def prompt_of(self, state: AgentState, now: int, recall_count: int) -> SystemPrompt:
        """Return the system prompt that shows this state to the turn's model.

        Args:
            state: The agent's state, which may differ from the turn's.
            now: The time in microseconds.
            recall_count: The number of messages outside the window.
        """
        return system_prompt(
            state,
            self.model.info.provider,
            now,
            recall_count=recall_count,
            rule_lines=self.rules.book.lines,
            is_brief=self.profile != "full",
            has_line_numbers=self.memory_in_prompt == "step",
        )

    def is_untrusted(self) -> bool:
        """Return whether the step's prompt contains untrusted content."""
        # Others may have written the texts of files.
        files = [file for directory in self.state.directories for file in directory.files]
        return (
            self.state.is_others_instructions
            or any(file.content for file in files)
            or self.window.shows_picture_texts
            or any(message.is_untrusted for message in self.window.messages)
            or any(block.is_untrusted for block in self.state.blocks)
        )

    def began_at(self) -> int:
        """Return the time of the turn's first message.

        That message may stand before calls that waited for approval.
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
        system = (
            self.state.agent.system,
            self.request.overrides.system or "",
            self.request.overrides.instructions,
        )
        recalled, recalled_user_texts = search_results(self.window.messages)
        # An archive may repeat only what the user wrote in this turn. A block may also repeat the
        # user's earlier texts.
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

    Attributes:
        number: The number of the step in its turn, from 1; 0 for the calls of an answered request.
        memory: The working copy of memory, which the step's tools edit.
        started_at: The time of its start, in microseconds.
        message_id: The id of the agent's message, allocated before the model is asked.
        began_ns: The monotonic time of its start; all times with `_ns` are in nanoseconds.
        request: The last request to the model.
        exchange: The exchange with the provider, if traces are stored.
        request_ns: The monotonic time of the last request.
        first_ns: The time from the request to the first chunk.
        model_ns: The time of the model's answer.
        tools_ns: The time of the calls.
        jobs: Jobs that the step's tools requested, added in the transaction that saves the step.
    """

    number: int
    memory: WorkingMemory
    started_at: int
    id: str = field(default_factory=lambda: new_id("step"))
    message_id: str = field(default_factory=lambda: new_id("message"))
    began_ns: int = field(default_factory=time.monotonic_ns)
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

        Args:
            turn: The turn of the step.
            created_at: The time of the record, in microseconds.
            stop: The reason that ends the run with this step, or None.
            **more: Other fields of the record; they replace those from the turn.
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
