"""Runs and steps: a run for each turn, a step for each model call with its tool calls."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, Role
from ricordo.domain.usage import Usage

RunStatus = Literal["created", "running", "completed", "failed", "cancelled"]
StepStatus = Literal["pending", "success", "failed", "cancelled"]
StopReason = Literal[
    "end_turn",
    "error",
    "llm_api_error",
    "invalid_llm_response",
    "invalid_tool_call",
    "max_steps",
    "max_tokens_exceeded",
    "no_tool_call",
    "tool_rule",
    "cancelled",
    "insufficient_credits",
    "requires_approval",
    "context_window_overflow_in_system_prompt",
]
# Error type of a run during which the server was stopped or killed.
INTERRUPTED = "interrupted"
# Key in a run's metadata: ids of the sleep-time runs that were planned at its end.
RUN_IDS = "run_ids"
DATABASE_FAILED = "The database failed during this turn. Send the message again in a moment."
# All other reasons are failures.
_STATUSES: dict[StopReason, RunStatus] = {
    "end_turn": "completed",
    "max_steps": "completed",
    "tool_rule": "completed",
    "requires_approval": "completed",
    "cancelled": "cancelled",
}


def status_after(reason: StopReason) -> RunStatus:
    """Return the status of a run that ended for this reason.

    Args:
        reason: The stop reason of the run.
    """
    return _STATUSES.get(reason, "failed")


@dataclass(frozen=True, slots=True)
class Run:
    """One turn, or one talk with a group of agents; each turn of a talk is a separate run.

    From its begin until `ended_at` is set, the row is the conversation's lease. Times are in
    microseconds, durations in nanoseconds (names with `_ns`).

    Attributes:
        user_id: The user that the caller is limited to, or else the conversation's, or None.
        background: It was started in the background; only such a run can have a stored stream.
        body_hash: The hash of the request's body, by which a retry of the request is recognized.
        request_config: The message format that the request chose.
        metadata: In a turn of a group, `group_id` and the `speaker`'s name. In a talk, `turns`,
            each with its `run_ids`, and `usage`, their sum.
        error: `type` and `message` of a failure.
        ttft_ns: The time from the request of the first step to its first token.
        lease_token: A random text by which the process that runs the turn shows its lease; None
            for a planned run that has not begun.
        purpose: The purpose of a background run, e.g. "sleeptime"; None for a run started by a
            message.
        callback: The webhook for the end of the run: `url`, and after the request `sent_at`,
            `status_code`, `error`.
        context_tokens: Tokens in the window after the run, from its last step's usage; not a
            column.
    """

    id: str
    organization_id: str
    agent_id: str
    conversation_id: str
    status: RunStatus = "created"
    stop_reason: StopReason | None = None
    user_id: str | None = None
    background: bool = False
    body_hash: str | None = None
    request_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    created_at: int = 0
    ended_at: int | None = None
    ttft_ns: int | None = None
    duration_ns: int | None = None
    lease_token: str | None = None
    lease_expires_at: int = 0
    purpose: str | None = None
    callback: dict[str, Any] = field(default_factory=dict)
    context_tokens: int | None = None

    @property
    def shown_run_ids(self) -> list[str]:
        """The ids of the sleep-time runs that were planned at its end.

        They may be none. For an agent without sleep-time agents, it is the run's own id.
        """
        following: list[str] | None = self.metadata.get(RUN_IDS)
        if following is None:
            return [self.id]
        return following

    def ended(self, reason: StopReason, now: int, error: dict[str, Any] | None = None) -> "Run":
        """Return the run after its end, with the status that follows from the reason.

        Args:
            reason: Why it ended.
            now: The time in microseconds UTC.
            error: `type` and `message` of a failure; None for any other end.
        """
        return replace(
            self,
            status=_STATUSES.get(reason, "failed"),
            stop_reason=reason,
            error=error,
            ended_at=now,
            duration_ns=(now - self.created_at) * 1000,
        )

    def with_step(self, usage: Usage) -> "Run":
        """Return the run with one more step, which used these tokens.

        Args:
            usage: The tokens of the step. Their total is the size of the window after it.
        """
        return replace(
            self,
            usage=self.usage + usage,
            step_count=self.step_count + 1,
            context_tokens=usage.total_tokens or None,
        )

    @property
    def turn_ids(self) -> list[str]:
        """The ids of a talk's runs; empty for a turn."""
        return self._run_ids("turns")

    @property
    def part_ids(self) -> list[str]:
        """The ids of all runs in a talk, including runs of members that a supervisor asked."""
        return [*self._run_ids("turns"), *self._run_ids("asked")]

    def _run_ids(self, name: str) -> list[str]:
        return [run_id for turn in self.metadata.get(name, ()) for run_id in turn["run_ids"]]

    @property
    def total_usage(self) -> Usage:
        """The tokens of the run, or of all turns of a talk.

        A talk's run counts no tokens, since the runs of its turns count them.
        """
        if "usage" in self.metadata:
            return Usage(**self.metadata["usage"])
        return self.usage

    def new_message(
        self,
        role: Role,
        parts: Iterable[Part],
        created_at: int,
        step_id: str | None = None,
        *,
        egress: str | None = None,
    ) -> Message:
        """Return an unsaved message of this run.

        Args:
            role: The role of the message.
            parts: Its parts, in order.
            created_at: The time of the message in microseconds.
            step_id: The step that wrote it; None for the input of the turn.
            egress: The egress label of all that the step's prompt showed; None for no label.
        """
        return Message(
            id=new_id("message"),
            agent_id=self.agent_id,
            conversation_id=self.conversation_id,
            role=role,
            parts=tuple(parts),
            created_at=created_at,
            organization_id=self.organization_id,
            user_id=self.user_id,
            run_id=self.id,
            step_id=step_id,
            egress=egress,
            # A summary covers the whole conversation and not only the group's part.
            name=None if role == "summary" else self.metadata.get("speaker"),
            group_id=None if role == "summary" else self.metadata.get("group_id"),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One model call with its tool calls, and their outcome.

    Durations are in nanoseconds, `started_at` in microseconds.
    """

    id: str
    organization_id: str
    agent_id: str
    run_id: str
    conversation_id: str
    model: str
    model_handle: str
    provider: str
    model_endpoint: str | None = None
    context_window: int | None = None
    status: StepStatus = "success"
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    error: dict[str, Any] | None = None
    created_at: int = 0
    started_at: int = 0
    model_ns: int | None = None
    tools_ns: int | None = None
    step_ns: int | None = None
    feedback: Literal["positive", "negative"] | None = None
    tags: tuple[str, ...] = ()
    # Memory in its prompt: `blocks` maps ids to hex version ids; `passages` lists ids.
    memory: dict[str, Any] = field(default_factory=dict)
    is_untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """The request and response of one model call, as JSON texts.

    `created_at` is in microseconds.
    """

    step_id: str
    run_id: str
    organization_id: str
    request: str
    response: str | None = None
    created_at: int = 0
