"""One stored message becomes several on the wire, all with its id and each with an otid that counts the parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from ricordo.api.models.base import date
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

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageView:
    """How a caller wants messages: whether calls of the speaking tool appear as what they say, which types, summaries,
    and what the server itself said to the agent in the user's role."""

    speaks_by_tool: bool = True
    tool_name: str = "send_message"
    tool_argument: str = "message"
    types: frozenset[str] | None = None
    shows_summaries: bool = True
    shows_events: bool = True

    def to_json(self) -> dict[str, Any]:
        """As it is kept with the run, in the wire's words."""
        return {
            "use_assistant_message": self.speaks_by_tool,
            "assistant_message_tool_name": self.tool_name,
            "assistant_message_tool_kwarg": self.tool_argument,
            "include_return_message_types": sorted(self.types) if self.types is not None else None,
            "include_compaction_messages": self.shows_summaries,
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "MessageView":
        """The view in which a run was asked for, as it is kept with the run."""
        usual, types = cls(), kept.get("include_return_message_types")
        return cls(
            kept.get("use_assistant_message", usual.speaks_by_tool),
            kept.get("assistant_message_tool_name", usual.tool_name),
            kept.get("assistant_message_tool_kwarg", usual.tool_argument),
            frozenset(types) if types is not None else None,
            shows_summaries=kept.get("include_compaction_messages", usual.shows_summaries),
            shows_events=False,
        )

    def keeps(self, wire: Wire) -> bool:
        """Whether the caller wants this one."""
        return self.types is None or wire["message_type"] in self.types


def message_to_wire(message: Message, view: MessageView) -> list[Wire]:
    """The message in the wire's pieces, in order."""
    pieces: list[tuple[str, Wire]]
    match message.role:
        case "system":
            pieces = [("system_message", {"content": message.text})]
        case "user" if not view.shows_events and message.is_event:
            pieces = []
        case "user":
            pieces = [("user_message", {"content": _content(message.parts)})]
        case "tool":
            pieces = [("tool_return_message", _returns(message.tool_returns))]
        case "assistant":
            pieces = list(_assistant(message, view))
        case "approval":
            pieces = list(_assistant(message, view)) if message.tool_calls else [_approval_response(message)]
        case "summary":
            pieces = list(_summary(message)) if view.shows_summaries else []
    wires = [{**_base(message, place, kind), **fields} for place, (kind, fields) in enumerate(pieces)]
    return [wire for wire in wires if view.keeps(wire)]


def messages_to_wire(messages: Iterable[Message], view: MessageView, *, newest_first: bool = False) -> list[Wire]:
    """All pieces of all messages, in order; where messages come newest first, so do the pieces of each."""
    step = -1 if newest_first else 1
    return [wire for message in messages for wire in message_to_wire(message, view)[::step]]


def call_to_wire(call: ToolCallPart) -> Wire:
    """A tool call; its arguments stay JSON as text."""
    return {"name": call.name, "arguments": call.arguments, "tool_call_id": call.call_id}


def spoken_words(call: ToolCallPart, view: MessageView) -> str | None:
    """What a call of the speaking tool says; None for any other call."""
    if not view.speaks_by_tool or call.name != view.tool_name:
        return None
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    said = arguments.get(view.tool_argument) if isinstance(arguments, dict) else None
    # With a `response_format` what is said is no text but an object.
    return orjson.dumps(said).decode() if isinstance(said, dict | list) else said if isinstance(said, str) else None


def _base(message: Message, place: int, kind: str) -> Wire:
    return {
        "id": message.id,
        "date": date(message.created_at),
        "name": message.name,
        "message_type": kind,
        "otid": message.otid or part_otid(message.id, place),
        "sender_id": message.sender_id,
        "step_id": message.step_id,
        "is_err": None,
        "seq_id": None,
        "run_id": message.run_id,
    }


def _content(parts: Iterable[Part]) -> str | list[Wire]:
    items: list[Wire] = []
    for part in parts:
        if isinstance(part, TextPart):
            items.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            items.append({"type": "image", "source": _image_source(part)})
    if len(items) == 1 and items[0]["type"] == "text":
        return str(items[0]["text"])
    return items


def _image_source(part: ImagePart) -> Wire:
    if part.url:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data, "detail": part.detail}


def _assistant(message: Message, view: MessageView) -> Iterable[tuple[str, Wire]]:
    calls: list[ToolCallPart] = []
    waiting: list[ToolCallPart] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            # Some providers sign a call without telling a thought: nothing is there to show.
            if part.text or part.redacted is not None:
                yield _reasoning(part)
        elif isinstance(part, TextPart) and part.text:
            yield "assistant_message", {"content": part.text}
        elif isinstance(part, ToolCallPart) and part.is_gated:
            waiting.append(part)
        elif isinstance(part, ToolCallPart):
            said = spoken_words(part, view)
            if said is None:
                calls.append(part)
            else:
                yield "assistant_message", {"content": said}
    for kind, listed in (("tool_call_message", calls), ("approval_request_message", waiting)):
        if listed:
            wires = [call_to_wire(call) for call in listed]
            yield kind, {"tool_call": wires[0], "tool_calls": wires}


def _approval_response(message: Message) -> tuple[str, Wire]:
    """What was decided; the older fields tell of the first call."""
    items: list[Wire] = []
    for part in message.parts:
        if isinstance(part, ApprovalPart):
            items.append(
                {"type": "approval", "tool_call_id": part.call_id, "approve": part.approves, "reason": part.reason}
            )
        elif isinstance(part, ToolReturnPart):
            items.append(_return(part))
    first = next((item for item in items if item["type"] == "approval"), {})
    return "approval_response_message", {
        "approvals": items,
        "approve": first.get("approve"),
        "reason": first.get("reason"),
        "approval_request_id": None,
    }


def _summary(message: Message) -> Iterable[tuple[str, Wire]]:
    part = next((part for part in message.parts if isinstance(part, CompactionPart)), None)
    stats = part and {
        "trigger": part.trigger,
        "context_tokens_before": part.tokens_before,
        "context_tokens_after": part.tokens_after,
        "context_window": part.context_window,
        "messages_count_before": part.messages_before,
        "messages_count_after": part.messages_after,
    }
    yield "summary_message", {"summary": message.text, "compaction_stats": stats}
    if part:
        event = {**(stats or {}), "evicted_message_ids": list(part.evicted)}
        yield "event_message", {"event_type": "compaction", "event_data": event}


def _reasoning(part: ReasoningPart) -> tuple[str, Wire]:
    if part.redacted is not None:
        return "hidden_reasoning_message", {"state": "redacted", "hidden_reasoning": part.redacted}
    source = "reasoner_model" if part.native else "non_reasoner_model"
    return "reasoning_message", {"reasoning": part.text, "source": source, "signature": part.signature}


def _returns(results: Iterable[ToolReturnPart]) -> Wire:
    wires = [_return(part) for part in results]
    first = {key: value for key, value in wires[0].items() if key != "type"}
    return {**first, "tool_returns": wires}


def _return(part: ToolReturnPart) -> Wire:
    return {
        "type": "tool",
        "tool_return": part.content,
        "status": part.status,
        "tool_call_id": part.call_id,
        "stdout": list(part.stdout) or None,
        "stderr": list(part.stderr) or None,
    }
