"""The shapes of messages and whole turns, for the OpenAPI document (see schemas.py)."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ricordo.api.wire.schemas import Json, RelevanceShape, Shape
from ricordo.domain.run import StopReason


class MessageFields(Shape):
    """What every message has."""

    id: str
    date: datetime
    name: str | None
    otid: str | None
    sender_id: str | None
    step_id: str | None
    is_err: bool | None
    seq_id: int | None
    run_id: str | None


class SystemMessage(MessageFields):
    """The system prompt, or a notice to the agent."""

    message_type: Literal["system_message"]
    content: str


class UserMessage(MessageFields):
    """What the user said."""

    message_type: Literal["user_message"]
    content: str | list[Json]


class AssistantMessage(MessageFields):
    """What the agent said."""

    message_type: Literal["assistant_message"]
    content: str | list[Json]


class ReasoningMessage(MessageFields):
    """What the agent thought."""

    message_type: Literal["reasoning_message"]
    reasoning: str
    source: Literal["reasoner_model", "non_reasoner_model"]
    signature: str | None


class HiddenReasoningMessage(MessageFields):
    """Thoughts that only the model's provider can read."""

    message_type: Literal["hidden_reasoning_message"]
    state: Literal["redacted", "omitted"]
    hidden_reasoning: str | None


class ToolCallShape(Shape):
    """One tool call; a delta of one leaves out what it does not bring."""

    tool_call_id: str
    name: str | None = None
    arguments: str | None = None


class ToolCallMessage(MessageFields):
    """The tools the agent calls."""

    message_type: Literal["tool_call_message"]
    tool_call: ToolCallShape
    tool_calls: list[ToolCallShape] | ToolCallShape


class ToolReturnShape(Shape):
    """What one call gave."""

    type: Literal["tool"]
    tool_return: str
    status: Literal["success", "error"]
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None


class ToolReturnMessage(MessageFields):
    """What the calls of a step gave."""

    message_type: Literal["tool_return_message"]
    tool_return: str
    status: Literal["success", "error"]
    tool_call_id: str
    stdout: list[str] | None
    stderr: list[str] | None
    tool_returns: list[ToolReturnShape]


class ApprovalRequestMessage(MessageFields):
    """Calls that wait for approval, or for the client whose tools they are."""

    message_type: Literal["approval_request_message"]
    tool_call: ToolCallShape
    tool_calls: list[ToolCallShape] | ToolCallShape


class ApprovalShape(Shape):
    """What was decided about one call."""

    type: Literal["approval"]
    tool_call_id: str
    approve: bool
    reason: str | None


class ApprovalResponseMessage(MessageFields):
    """What was decided about calls that waited; the last three tell of the first call, for older clients."""

    message_type: Literal["approval_response_message"]
    approvals: list[ApprovalShape | ToolReturnShape]
    approve: bool | None
    reason: str | None
    approval_request_id: str | None


class CompactionStatsShape(Shape):
    """How much smaller the window became, in tokens and messages."""

    trigger: str
    context_tokens_before: int
    context_tokens_after: int
    context_window: int
    messages_count_before: int
    messages_count_after: int


class SummaryMessage(MessageFields):
    """What stands for messages that left the window."""

    message_type: Literal["summary_message"]
    summary: str
    compaction_stats: CompactionStatsShape | None


class EventMessage(MessageFields):
    """Something that happened to the window; a compaction lists the messages that left it."""

    message_type: Literal["event_message"]
    event_type: Literal["compaction"]
    event_data: Json


AnyMessage = Annotated[
    SystemMessage
    | UserMessage
    | AssistantMessage
    | ReasoningMessage
    | HiddenReasoningMessage
    | ToolCallMessage
    | ToolReturnMessage
    | ApprovalRequestMessage
    | ApprovalResponseMessage
    | SummaryMessage
    | EventMessage,
    Field(discriminator="message_type"),
]


class StopReasonShape(Shape):
    """Why the turn ended."""

    message_type: Literal["stop_reason"]
    stop_reason: StopReason


class UsageShape(Shape):
    """Tokens of the turn."""

    message_type: Literal["usage_statistics"]
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    step_count: int
    run_ids: list[str]
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    context_tokens: int | None


class TurnShape(Shape):
    """A whole turn: what the agent said and did, why it ended, and what it took."""

    messages: list[AnyMessage]
    stop_reason: StopReasonShape
    usage: UsageShape
    logprobs: Json | None
    turns: list[Json] | None


class FoundMessageShape(Shape):
    """What a user or an agent said that a search found."""

    message_type: Literal["user_message", "assistant_message"]
    content: str
    message_id: str
    agent_id: str
    conversation_id: str
    created_at: datetime
    relevance: RelevanceShape


class StoredMessageShape(Shape):
    """A message as it is kept, in one piece."""

    id: str
    role: Literal["user", "assistant", "tool"]
    content: list[Json]
    tool_calls: list[Json]
    tool_returns: list[Json]
    name: str | None
    model: str | None
    agent_id: str
    conversation_id: str
    run_id: str | None
    step_id: str | None
    otid: str | None
    sender_id: str | None
    group_id: str | None
    created_at: datetime


class MessageResultShape(RelevanceShape):
    """A message that a search found, and the text by which it was found."""

    embedded_text: str
    message: StoredMessageShape
