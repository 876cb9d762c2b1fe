"""Runs and steps: one run a turn, one step a model call with the tools it asked for."""

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
# The type of error of a run whose server was stopped or killed in the middle of it.
INTERRUPTED = "interrupted"
# In the metadata of a run: the runs of sleeping agents that its end began.
RUN_IDS = "run_ids"
DATABASE_FAILED = "The database failed during this turn. Send the message again in a moment."
_COMPLETED: set[StopReason] = {"end_turn", "max_steps", "tool_rule", "requires_approval"}


def status_after(reason: StopReason) -> RunStatus:
    if reason == "cancelled":
        return "cancelled"
    return "completed" if reason in _COMPLETED else "failed"


@dataclass(frozen=True, slots=True)
class Run:
    """One turn, or one talk with a group of agents, whose turns are runs too.

    While `ended_at` is None its row is the conversation's lease. Durations are in nanoseconds. In `metadata` of a turn in a group
    are `group_id` and the `speaker`'s name; in that of a talk `turns`, each with its `run_ids`, and `usage`, their sum.
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
    # What it is for where nobody waits for it, as "sleeptime"; None: somebody said something.
    purpose: str | None = None
    # Whom to tell when it has ended: `url`, and what became of it: `sent_at` (microseconds), `status_code`, `error`.
    callback: dict[str, Any] = field(default_factory=dict)
    # What the window took after it, in tokens, as its last step's usage tells; no column of its own.
    context_tokens: int | None = None

    @property
    def shown_run_ids(self) -> list[str]:
        """The ids of the runs that follow it, where its agent has others that work on its memory; else its own."""
        following: list[str] | None = self.metadata.get(RUN_IDS)
        return [self.id] if following is None else following

    def ended(self, reason: StopReason, now: int, error: dict[str, Any] | None = None) -> "Run":
        status, duration = status_after(reason), (now - self.created_at) * 1000
        return replace(
            self, status=status, stop_reason=reason, error=error, ended_at=now, duration_ns=duration
        )

    @property
    def turn_ids(self) -> list[str]:
        """The ids of the runs that a talk is made of; none for a turn."""
        return self._run_ids("turns")

    @property
    def part_ids(self) -> list[str]:
        """The ids of all runs that belong to a talk: those of its turns, and of members that a supervisor asked."""
        return [*self._run_ids("turns"), *self._run_ids("asked")]

    def _run_ids(self, name: str) -> list[str]:
        return [run_id for turn in self.metadata.get(name, ()) for run_id in turn["run_ids"]]

    @property
    def total_usage(self) -> Usage:
        """The tokens of the run, or of all turns of a talk: its own row counts none, as they are counted in theirs."""
        return Usage(**self.metadata["usage"]) if "usage" in self.metadata else self.usage

    def new_message(
        self, role: Role, parts: Iterable[Part], created_at: int, step_id: str | None = None
    ) -> Message:
        """A message that this run brings, not yet stored."""
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
            # A summary is of all that was said in the conversation, not of the group's part alone.
            name=None if role == "summary" else self.metadata.get("speaker"),
            group_id=None if role == "summary" else self.metadata.get("group_id"),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One model call and what came of it. Durations are in nanoseconds, `started_at` in microseconds."""

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
    # What its prompt held of memory: `blocks`, by id the hex id of the version; `passages`, their ids.
    memory: dict[str, Any] = field(default_factory=dict)
    is_untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """What one call of a model was asked and what it answered, as JSON texts; `created_at` is in microseconds."""

    step_id: str
    run_id: str
    organization_id: str
    request: str
    response: str | None = None
    created_at: int = 0
