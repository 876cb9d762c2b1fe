"""Response models of messages. One stored message becomes several pieces, all with its id and each with an otid of its own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from ricordo.api.models.base import From, Json, ResponseModel, Timestamp, or_none
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


class MessageFields(ResponseModel):
    """What every message has."""

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
    """What the user said."""

    message_type: Literal["user_message"] = "user_message"
    content: str | list[Json]


class AssistantMessage(MessageFields):
    """What the agent said."""

    message_type: Literal["assistant_message"] = "assistant_message"
    content: str | list[Json]


class ReasoningMessage(MessageFields):
    """What the agent thought."""

    message_type: Literal["reasoning_message"] = "reasoning_message"
    reasoning: str
    source: Literal["reasoner_model", "non_reasoner_model"]
    signature: str | None


class HiddenReasoningMessage(MessageFields):
    """Thoughts that only the model's provider can read."""

    message_type: Literal["hidden_reasoning_message"] = "hidden_reasoning_message"
    state: Literal["redacted", "omitted"]
    hidden_reasoning: str | None


class ToolCallResponse(ResponseModel):
    """One tool call; a delta of one leaves out what it does not bring."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    tool_call_id: Annotated[str, From("call_id")]
    name: str | None = None
    arguments: str | None = None


class ToolCallMessage(MessageFields):
    """The tools the agent calls."""

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
    def of(cls, result: Any, /, **fields: Any) -> Json:
        """Return the result; with pictures, its text and its pictures as a list."""
        if result.pictures:
            fields["tool_return"] = _content(
                [*([TextPart(result.content)] if result.content else []), *result.pictures]
            )
        return super().of(result, **fields)


class ToolReturnMessage(MessageFields, ToolReturnFields):
    """The results of a step's calls; the first one is also at the top, for older clients."""

    message_type: Literal["tool_return_message"] = "tool_return_message"
    tool_returns: list[ToolReturnResponse]


class ApprovalRequestMessage(MessageFields):
    """Calls that wait for approval, or for the client whose tools they are."""

    message_type: Literal["approval_request_message"] = "approval_request_message"
    tool_call: ToolCallResponse
    tool_calls: list[ToolCallResponse] | ToolCallResponse


class ApprovalDecisionResponse(ResponseModel):
    """What was decided about one call."""

    type: Literal["approval"] = "approval"
    tool_call_id: Annotated[str, From("call_id")]
    approve: Annotated[bool, From("approves")]
    reason: str | None


class ApprovalResponseMessage(MessageFields):
    """What was decided about calls that waited; the last three are of the first call, for older clients."""

    message_type: Literal["approval_response_message"] = "approval_response_message"
    approvals: list[ApprovalDecisionResponse | ToolReturnResponse]
    approve: bool | None
    reason: str | None
    approval_request_id: str | None


class CompactionStats(ResponseModel):
    """How much smaller the window became, in tokens and messages."""

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
    """Something that happened to the window; a compaction lists the messages that left it."""

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
    """What a message has that is shown in one piece."""

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
"""A model, and the fields that are not the message's own."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How a caller wants messages: whether calls of the speaking tool appear as what they say, which types, summaries,
    and system events."""

    speaks_by_tool: bool = True
    tool_name: str = "send_message"
    tool_argument: str = "message"
    types: frozenset[str] | None = None
    shows_summaries: bool = True
    shows_events: bool = True

    def to_json(self) -> Json:
        """Return it as it is stored with the run, by the names of the request."""
        kept = {wire: getattr(self, name) for wire, name in _WIRE_NAMES.items()}
        return {
            **kept,
            "include_return_message_types": None if self.types is None else sorted(self.types),
        }

    @classmethod
    def from_json(cls, kept: Json) -> "MessageFormat":
        """Return the format that a request asks for, or that is stored with its run."""
        given = {name: kept[wire] for wire, name in _WIRE_NAMES.items() if wire in kept}
        types = given.get("types")
        return cls(
            **{**given, "types": None if types is None else frozenset(types)}, shows_events=False
        )

    def keeps(self, message: Json) -> bool:
        return self.types is None or message["message_type"] in self.types


def message_responses(message: Message, format: MessageFormat) -> list[Json]:
    """Return the message's pieces, in order."""
    pieces = enumerate(_pieces(message, format))
    made = [
        model.of(message, otid=message.otid or part_otid(message.id, place), **fields)
        for place, (model, fields) in pieces
    ]
    return [piece for piece in made if format.keeps(piece)]


def messages_response(messages: Iterable[Message], format: MessageFormat) -> list[Json]:
    """Return all pieces of all messages; those of each message come in their own order, whichever the messages have."""
    return [piece for message in messages for piece in message_responses(message, format)]


def spoken_words(call: ToolCallPart, format: MessageFormat) -> str | None:
    """What a call of the speaking tool says; None for any other call."""
    if not format.speaks_by_tool or call.name != format.tool_name:
        return None
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    said = arguments.get(format.tool_argument) if isinstance(arguments, dict) else None
    # With a `response_format` what is said is no text but an object.
    return (
        orjson.dumps(said).decode()
        if isinstance(said, dict | list)
        else said
        if isinstance(said, str)
        else None
    )


def _pieces(message: Message, format: MessageFormat) -> Iterator[Piece]:
    match message.role:
        case "system":
            yield SystemMessage, {"content": message.text}
        case "user" if format.shows_events or not message.is_event:
            yield UserMessage, {"content": _content(message.parts)}
        case "tool":
            said = (
                format.tool_name if format.speaks_by_tool else None
            )  # the words are shown, and not that they were said
            if results := [
                one for one in message.tool_returns if one.name != said or one.status == "error"
            ]:
                named = {"name": results[0].name or message.name}
                yield (
                    ToolReturnMessage,
                    {**ToolReturnFields.of(results[0]), **named, "tool_returns": results},
                )
        case "approval" if not message.tool_calls:
            yield _approval_response(message)
        case "assistant" | "approval":
            yield from _assistant(message, format)
        case "summary" if format.shows_summaries:
            yield from _summary(message)


def _content(parts: Iterable[Part]) -> str | list[Json]:
    items: list[Json] = []
    for part in parts:
        if isinstance(part, TextPart):
            items.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            stored = {
                "type": "base64",
                "media_type": part.media_type,
                "data": part.data,
                "detail": part.detail,
            }
            items.append(
                {
                    "type": "image",
                    "source": {"type": "url", "url": part.url} if part.url else stored,
                }
            )
    if len(items) == 1 and items[0]["type"] == "text":
        return str(items[0]["text"])
    return items


def _assistant(message: Message, format: MessageFormat) -> Iterator[Piece]:
    calls: list[ToolCallPart] = []
    waiting: list[ToolCallPart] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            # Some providers sign a call without a thought: there is nothing to show.
            if part.text or part.redacted is not None:
                yield _reasoning(part)
        elif isinstance(part, TextPart) and part.text:
            yield AssistantMessage, {"content": part.text}
        elif isinstance(part, ToolCallPart) and part.is_gated:
            waiting.append(part)
        elif isinstance(part, ToolCallPart):
            said = spoken_words(part, format)
            if said is None:
                calls.append(part)
            else:
                yield AssistantMessage, {"content": said}
    if calls:
        yield ToolCallMessage, {"tool_call": calls[0], "tool_calls": calls}
    if waiting:
        yield ApprovalRequestMessage, {"tool_call": waiting[0], "tool_calls": waiting}


def _approval_response(message: Message) -> Piece:
    """The decisions; the older fields are those of the first call."""
    items: list[Json] = []
    for part in message.parts:
        if isinstance(part, ApprovalPart):
            items.append(ApprovalDecisionResponse.of(part))
        elif isinstance(part, ToolReturnPart):
            items.append(ToolReturnResponse.of(part))
    first = next((item for item in items if item["type"] == "approval"), {})
    # As of the retired Letta V1 server: the id of the call, and not of the message that asked.
    call_id = next((item["tool_call_id"] for item in items), None)
    older = {
        "approve": first.get("approve"),
        "reason": first.get("reason"),
        "approval_request_id": call_id,
    }
    return ApprovalResponseMessage, {"approvals": items, **older}


def _summary(message: Message) -> Iterator[Piece]:
    part = next((part for part in message.parts if isinstance(part, CompactionPart)), None)
    stats = part and CompactionStats.of(part)
    yield SummaryMessage, {"summary": message.text, "compaction_stats": stats}
    if part:
        yield EventMessage, {"event_data": {**(stats or {}), "evicted_message_ids": part.evicted}}


def _reasoning(part: ReasoningPart) -> Piece:
    if part.redacted is not None:
        return HiddenReasoningMessage, {"state": "redacted", "hidden_reasoning": part.redacted}
    source = "reasoner_model" if part.native else "non_reasoner_model"
    return ReasoningMessage, {"reasoning": part.text, "source": source, "signature": part.signature}
