"""Response models of messages.

A stored message that clients see becomes one or more pieces, which share its id. If the message
has no otid, each piece has its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from ricordo.api.models.base import From, ResponseModel, Timestamp, or_none
from ricordo.api.models.base import date as date_of
from ricordo.domain.ids import part_otid
from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.text import Json


class MessageFields(ResponseModel):
    """The fields of every message."""

    id: str
    date: Annotated[datetime, From("created_at", date_of)]
    name: str | None
    otid: str | None
    sender_id: str | None
    step_id: str | None
    is_err: bool | None = None
    seq_id: int | None = None
    run_id: str | None


class SystemMessage(MessageFields):
    """The system prompt, or a notice to the agent."""

    message_type: Literal["system_message"] = "system_message"
    content: str


class UserMessage(MessageFields):
    """A message of the user, or a system event."""

    message_type: Literal["user_message"] = "user_message"
    content: str | list[Json]


class AssistantMessage(MessageFields):
    """A message of the agent."""

    message_type: Literal["assistant_message"] = "assistant_message"
    content: str | list[Json]


class ReasoningMessage(MessageFields):
    """Reasoning of the agent."""

    message_type: Literal["reasoning_message"] = "reasoning_message"
    reasoning: str
    source: Literal["reasoner_model", "non_reasoner_model"]
    signature: str | None


class HiddenReasoningMessage(MessageFields):
    """Reasoning that only the model's provider can read."""

    message_type: Literal["hidden_reasoning_message"] = "hidden_reasoning_message"
    state: Literal["redacted", "omitted"]
    hidden_reasoning: str | None


class ToolCallResponse(ResponseModel):
    """One tool call. A delta of a call has only its new fields."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    tool_call_id: Annotated[str, From("call_id")]
    name: str | None = None
    arguments: str | None = None


class ToolCallMessage(MessageFields):
    """The tool calls of an agent."""

    message_type: Literal["tool_call_message"] = "tool_call_message"
    tool_call: ToolCallResponse
    tool_calls: list[ToolCallResponse] | ToolCallResponse


class ToolReturnFields(ResponseModel):
    """The result of one call."""

    tool_return: Annotated[str, From("content")]
    status: Literal["success", "error"]
    tool_call_id: Annotated[str, From("call_id")]
    stdout: Annotated[list[str] | None, From(convert=or_none)]
    stderr: Annotated[list[str] | None, From(convert=or_none)]


class ToolReturnResponse(ToolReturnFields):
    """The result of one of several calls."""

    tool_return: Annotated[str | list[Json], From("content")]  # type: ignore[assignment]  # the older field is a text
    type: Literal["tool"] = "tool"

    @classmethod
    def of(cls, tool_return: Any, /, **fields: Any) -> Json:
        """Return the result.

        With pictures, it is a list of its text and its pictures.

        Args:
            tool_return: The stored result (a `ToolReturnPart`).
            **fields: Values that replace those of the result.
        """
        if tool_return.pictures:
            if tool_return.content:
                texts = [TextPart(tool_return.content)]
            else:
                texts = []
            fields["tool_return"] = _content([*texts, *tool_return.pictures])
        return super().of(tool_return, **fields)


class ToolReturnMessage(MessageFields, ToolReturnFields):
    """The results of a step's calls.

    The first one is repeated for older clients.
    """

    message_type: Literal["tool_return_message"] = "tool_return_message"
    tool_returns: list[ToolReturnResponse]


class ApprovalRequestMessage(MessageFields):
    """Calls that wait for approval, or for the client that runs them."""

    message_type: Literal["approval_request_message"] = "approval_request_message"
    tool_call: ToolCallResponse
    tool_calls: list[ToolCallResponse] | ToolCallResponse


class ApprovalDecisionResponse(ResponseModel):
    """The decision about one call."""

    type: Literal["approval"] = "approval"
    tool_call_id: Annotated[str, From("call_id")]
    approve: Annotated[bool, From("approves")]
    reason: str | None


class ApprovalResponseMessage(MessageFields):
    """The decisions about waiting calls.

    The last three fields are for older clients. `approve` and `reason` repeat the first approval or
    denial, `approval_request_id` is the id of the first call.
    """

    message_type: Literal["approval_response_message"] = "approval_response_message"
    approvals: list[ApprovalDecisionResponse | ToolReturnResponse]
    approve: bool | None
    reason: str | None
    approval_request_id: str | None


class CompactionStats(ResponseModel):
    """The size of the window before and after a compaction, in tokens and messages."""

    trigger: str
    context_tokens_before: Annotated[int, From("tokens_before")]
    context_tokens_after: Annotated[int, From("tokens_after")]
    context_window: int
    messages_count_before: Annotated[int, From("messages_before")]
    messages_count_after: Annotated[int, From("messages_after")]


class SummaryMessage(MessageFields):
    """A summary that replaces messages that left the window."""

    message_type: Literal["summary_message"] = "summary_message"
    summary: str
    compaction_stats: CompactionStats | None


class EventMessage(MessageFields):
    """An event of the context window.

    For a compaction, it lists the messages that left the window.
    """

    message_type: Literal["event_message"] = "event_message"
    event_type: Literal["compaction"] = "compaction"
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


class StoredMessageFields(ResponseModel):
    """The fields of a message that is shown as one piece."""

    id: str
    agent_id: str
    conversation_id: str
    content: list[Json]
    tool_returns: list[Json]
    name: str | None
    model: str | None
    otid: str | None
    sender_id: str | None
    group_id: str | None
    run_id: str | None
    step_id: str | None
    created_at: Timestamp


_WIRE_NAMES = {
    "use_assistant_message": "speaks_by_tool",
    "assistant_message_tool_name": "tool_name",
    "assistant_message_tool_kwarg": "tool_argument",
    "include_return_message_types": "types",
    "include_compaction_messages": "shows_summaries",
}
Piece = tuple[type[MessageFields], Json]
"""A response model, and the fields whose values do not come from the message."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The form in which a caller wants to read messages.

    `speaks_by_tool` shows calls of the speaking tool as assistant messages; `tool_name` and
    `tool_argument` name this tool and its argument. The other fields select types of messages,
    summaries and system events.
    """

    speaks_by_tool: bool = True
    tool_name: str = "send_message"
    tool_argument: str = "message"
    types: frozenset[str] | None = None
    shows_summaries: bool = True
    shows_events: bool = True

    def to_json(self) -> Json:
        """Return the format in its stored form, with the names of the request's fields."""
        options = {wire: getattr(self, name) for wire, name in _WIRE_NAMES.items()}
        return {
            **options,
            "include_return_message_types": None if self.types is None else sorted(self.types),
        }

    @classmethod
    def from_json(cls, options: Json) -> "MessageFormat":
        """Return the format of a request, or the format stored with its run.

        Args:
            options: The fields by their names in requests; missing ones have their defaults, and
                others are ignored.
        """
        fields = {name: options[wire] for wire, name in _WIRE_NAMES.items() if wire in options}
        if fields.get("types") is not None:
            fields["types"] = frozenset(fields["types"])
        return cls(**fields, shows_events=False)

    def keeps(self, message: Json) -> bool:
        """Return whether a piece has one of the wanted types.

        Args:
            message: The piece as JSON.
        """
        return self.types is None or message["message_type"] in self.types


def message_responses(messages: Iterable[Message], format: MessageFormat) -> list[Json]:
    """Return the pieces of these messages, in order.

    Args:
        messages: The stored messages.
        format: The form that the reader wants. Pieces of other types are left out.
    """
    pieces: list[Json] = []
    for message in messages:
        for index, (model, fields) in enumerate(_pieces(message, format)):
            otid = message.otid or part_otid(message.id, index)
            pieces.append(model.of(message, otid=otid, **fields))
    if format.types is None:
        return pieces
    return [piece for piece in pieces if format.keeps(piece)]


def spoken_words(call: ToolCallPart, format: MessageFormat) -> str | None:
    """Return the text in a call of the speaking tool.

    Args:
        call: A call of the speaking tool.
        format: The form that the reader wants, which names the tool's argument.

    Returns:
        The text, or JSON if the argument is an object or a list. None if the argument is missing or
        of another type.
    """
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(arguments, dict):
        return None
    spoken = arguments.get(format.tool_argument)
    # With a `response_format`, the argument is an object rather than text.
    if isinstance(spoken, dict | list):
        return orjson.dumps(spoken).decode()
    if isinstance(spoken, str):
        return spoken
    return None


def _pieces(message: Message, format: MessageFormat) -> Iterator[Piece]:
    match message.role:
        case "system":
            yield SystemMessage, {"content": message.text}
        case "user" if format.shows_events or not message.is_event:
            yield UserMessage, {"content": _content(message.parts)}
        case "tool":
            # The text of the speaking tool is shown, so its successful result is left out.
            if format.speaks_by_tool:
                hidden = format.tool_name
            else:
                hidden = None
            returns = [
                part
                for part in message.tool_returns
                if part.name != hidden or part.status == "error"
            ]
            if returns:
                fields = ToolReturnFields.of(returns[0])
                fields["name"] = returns[0].name or message.name
                yield ToolReturnMessage, {**fields, "tool_returns": returns}
        case "approval" if not message.tool_calls:
            yield _approval_response(message)
        case "assistant" | "approval":
            yield from _assistant(message, format)
        case "summary" if format.shows_summaries:
            yield from _summary(message)


def _content(parts: Iterable[Part]) -> str | list[Json]:
    pieces: list[Json] = []
    for part in parts:
        if isinstance(part, TextPart):
            pieces.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            inline = {
                "type": "base64",
                "media_type": part.media_type,
                "data": part.data,
                "detail": part.detail,
            }
            pieces.append(
                {
                    "type": "image",
                    "source": {"type": "url", "url": part.url} if part.url else inline,
                }
            )
    if len(pieces) == 1 and pieces[0]["type"] == "text":
        return str(pieces[0]["text"])
    return pieces


def _assistant(message: Message, format: MessageFormat) -> Iterator[Piece]:
    calls: list[ToolCallPart] = []
    waiting: list[ToolCallPart] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            # Empty reasoning only carries a provider's signature for a call.
            if part.text or part.redacted is not None:
                yield _reasoning(part)
        elif isinstance(part, TextPart) and part.text:
            yield AssistantMessage, {"content": part.text}
        elif isinstance(part, ToolCallPart) and part.is_gated:
            waiting.append(part)
        elif isinstance(part, ToolCallPart):
            is_speech = format.speaks_by_tool and part.name == format.tool_name
            spoken = spoken_words(part, format) if is_speech else None
            if spoken is None:
                calls.append(part)
            else:
                yield AssistantMessage, {"content": spoken}
    if calls:
        yield ToolCallMessage, {"tool_call": calls[0], "tool_calls": calls}
    if waiting:
        yield ApprovalRequestMessage, {"tool_call": waiting[0], "tool_calls": waiting}


def _approval_response(message: Message) -> Piece:
    """Return the decisions, with the fields for older clients."""
    decisions: list[Json] = []
    for part in message.parts:
        if isinstance(part, ApprovalPart):
            decisions.append(ApprovalDecisionResponse.of(part))
        elif isinstance(part, ToolReturnPart):
            decisions.append(ToolReturnResponse.of(part))
    first = next((decision for decision in decisions if decision["type"] == "approval"), {})
    # wire fact: the retired Letta V1 server sends the call's id here, not the request message's
    call_id = next((decision["tool_call_id"] for decision in decisions), None)
    older = {
        "approve": first.get("approve"),
        "reason": first.get("reason"),
        "approval_request_id": call_id,
    }
    return ApprovalResponseMessage, {"approvals": decisions, **older}


def _summary(message: Message) -> Iterator[Piece]:
    part = next((part for part in message.parts if isinstance(part, CompactionPart)), None)
    stats = part and CompactionStats.of(part)
    yield SummaryMessage, {"summary": message.text, "compaction_stats": stats}
    if part:
        yield EventMessage, {"event_data": {**(stats or {}), "evicted_message_ids": part.evicted}}


def _reasoning(part: ReasoningPart) -> Piece:
    if part.redacted is not None:
        return HiddenReasoningMessage, {"state": "redacted", "hidden_reasoning": part.redacted}
    if part.native:
        source = "reasoner_model"
    else:
        source = "non_reasoner_model"
    return ReasoningMessage, {"reasoning": part.text, "source": source, "signature": part.signature}
