"""Events of a turn for its readers. Whole messages are published only after they are saved."""

from dataclasses import dataclass, field
from typing import Any

from ricordo.domain.message import Message
from ricordo.domain.run import Run, Step


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run, its lease and its input messages are saved."""

    run: Run


@dataclass(frozen=True, slots=True)
class _PartDelta:
    """A piece of a message that is not saved yet.

    `part` is the number of the message's part, from 0. In a group, `speaker` names the agent.
    """

    run_id: str
    step_id: str
    message_id: str
    part: int
    speaker: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class TextDelta(_PartDelta):
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_PartDelta):
    """A piece of reasoning.

    `signature` is the provider's signature of the reasoning that this piece ends.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta(_PartDelta):
    """A piece of a tool call. The tool's name comes with the first piece."""

    call_id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class MessageRestarted:
    """The deltas of `message_id` are void, since the model answers again as `new_message_id`."""

    run_id: str
    step_id: str
    message_id: str
    new_message_id: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Progress of a running tool call, as text written by the tool; it is not stored."""

    run_id: str
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class SpeakerFailed:
    """A member of a group did not answer, and the talk continues without it.

    `kind` is the error type on the wire.
    """

    run_id: str
    speaker: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class StepSaved:
    """A step is saved, with these messages in order.

    `step` is None if the messages are not a whole step with a model's reply, for example when a
    reader catches up. `logprobs` are those of the reply (see ModelReply); they are not stored.
    """

    run_id: str
    step: Step | None
    messages: tuple[Message, ...]
    logprobs: dict[str, list[dict[str, Any]]] | None = None


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The turn waits, because this saved message has calls that need an approval."""

    run_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Compacted:
    """Messages left the window, and this saved summary replaced them.

    Sizes are in tokens, by our estimate.
    """

    run_id: str
    summary: Message
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event of a run that completed or was cancelled."""

    run: Run


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a run that failed; `kind` is the error type on the wire."""

    run: Run
    kind: str
    message: str
    detail: str | None = None


Delta = TextDelta | ReasoningDelta | ToolCallDelta
Event = (
    RunStarted
    | Delta
    | MessageRestarted
    | ToolProgress
    | SpeakerFailed
    | StepSaved
    | ApprovalAsked
    | Compacted
    | RunEnded
    | Failed
)


def waiting_in(event: Event) -> Message | None:
    """Return the message in the event whose calls wait for an answer, if there is one."""
    if isinstance(event, ApprovalAsked):
        return event.message
    if isinstance(event, StepSaved):
        return next((message for message in event.messages if message.is_waiting), None)
    return None
