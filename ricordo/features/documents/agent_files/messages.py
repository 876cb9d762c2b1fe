"""Convert messages of agent files.

There are two formats: `.af` of the retired Letta V1 server 0.16.8, and this server's format of
stored messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ricordo.domain.clock import parse_timestamp
from ricordo.domain.message import (
    ApprovalPart,
    EventPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.documents.agent_files.content import FileMessage
from ricordo.features.documents.agent_files.tolerance import ImportNotes

_ROLES = ("system", "user", "assistant", "tool", "approval", "summary")
_FIELDS = (
    "role",
    "otid",
    "name",
    "sender_id",
    "group_id",
    "model",
    "is_untrusted",
    "created_at",
    "egress",
)
_NO_PICTURE = "(A picture that is not in the file.)"
# Types of events that clients write into the text of a user message.
_EVENTS = ("heartbeat", "login", "system_alert")
_PARTS = TypeAdapter(tuple[Part, ...], config=ConfigDict(revalidate_instances="always"))


def whole(message: Message, id: str) -> Json:
    """Return the message in this server's format, without ids of its place, run and user.

    Args:
        message: The message.
        id: The id of the message in the file.
    """
    fields = {
        name: value for name in _FIELDS if (value := getattr(message, name)) not in (None, False)
    }
    return {"id": id, **fields, "parts": parts_to_json(message.parts)}


@dataclass(frozen=True, slots=True)
class Home:
    """The conversation that gets the imported messages, with its agent and user."""

    agent_id: str
    conversation_id: str
    organization_id: str
    user_id: str | None


def from_whole(file_message: FileMessage, id: str, home: Home) -> Message:
    """Convert a message from this server's format.

    Args:
        file_message: The message in the file.
        id: The id of the new message.
        home: The conversation that gets it.

    Raises:
        Invalid: A part of the message cannot be read.
    """
    try:
        parts = parts_from_json(file_message.parts)
        _PARTS.validate_python(parts)
    except ValidationError as error:
        raise Invalid(
            f"A message of the file cannot be read ({error.errors()[0]['msg']})."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(
            f"A message of the file cannot be read ({type(error).__name__}: {error})."
        ) from error
    return _new_message(
        id, home, parts=parts, **{name: getattr(file_message, name) for name in _FIELDS}
    )


def _listed_pieces(content: Any) -> list[Json]:
    """Return a message's content as a list of parts. Raises Invalid."""
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content}]
    pieces = content or []
    if not isinstance(pieces, list) or not all(isinstance(piece, dict) for piece in pieces):
        raise Invalid("The content of a message of the file is neither a text nor a list of parts.")
    return pieces


def from_af(raw: Mapping[str, Any], id: str, home: Home, now: int) -> Message:
    """Convert a message from the format of other servers.

    Args:
        raw: The message as the file has it. Parts of unknown types are dropped; in tool messages,
            so are pictures and reasoning.
        id: The id of the new message.
        home: The conversation that gets it.
        now: The time in microseconds of a message without `created_at`.

    Raises:
        Invalid: The role, the content or the time cannot be read.
        TypeError, AttributeError, ValueError: A value inside a part is of a wrong type.
    """
    role = raw.get("role")
    if role not in _ROLES:
        raise Invalid(
            f'A message of the file has the role "{role}". Roles are {", ".join(_ROLES)}.'
        )
    created_text = raw.get("created_at")
    parts: list[Part] = [
        part for piece in _listed_pieces(raw.get("content")) if (part := _part(piece))
    ]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if role == "tool":
        parts = [*_returns(raw, "\n".join(texts))]
    elif role == "user":
        parts = [_unpack_user_text(part) for part in parts]
    parts += _calls(raw, is_gated=role == "approval")
    parts += [
        _answer(approval) for approval in raw.get("approvals") or () if isinstance(approval, dict)
    ]
    if created_text:
        created_at = parse_timestamp(created_text, UTC)
    else:
        created_at = now
    fields = {name: raw.get(name) for name in ("otid", "sender_id", "group_id", "model")}
    if role == "tool":
        fields["name"] = None
    else:
        fields["name"] = raw.get("name")
    return _new_message(id, home, role=role, parts=tuple(parts), created_at=created_at, **fields)


def with_own_otids(raw_messages: list[Json], notes: ImportNotes) -> list[Json]:
    """Return the messages; drop otids that an earlier message already has.

    An otid is unique in its conversation.

    Args:
        raw_messages: The messages of one conversation, in order.
        notes: Gets notes on the dropped otids.
    """
    seen_otids: set[str] = set()
    unique = []
    for message in raw_messages:
        otid = message.get("otid")
        if otid in seen_otids:
            notes.add("Messages: an otid that an earlier message has is left out.")
            unique.append({**message, "otid": None})
            continue
        if otid:
            seen_otids.add(otid)
        unique.append(message)
    return unique


def readable(raw_messages: list[Json], notes: ImportNotes) -> list[Json]:
    """Return the messages that can be stored; note the others.

    Args:
        raw_messages: The messages of one conversation in this server's format, each with an id.
        notes: Gets notes on the others.
    """
    storable = []
    for message in with_own_otids(raw_messages, notes):
        try:
            from_whole(FileMessage.model_validate(message), message["id"], Home("", "", "", None))
        except (Invalid, ValidationError) as error:
            notes.add(f"Messages: one that cannot be read is left out. {error}".partition("\n")[0])
        else:
            storable.append(message)
    return storable


def _new_message(id: str, home: Home, **fields: Any) -> Message:
    return Message(
        id=id,
        agent_id=home.agent_id,
        conversation_id=home.conversation_id,
        organization_id=home.organization_id,
        user_id=home.user_id,
        **fields,
    )


def _part(piece: Mapping[str, Any]) -> Part | None:
    match piece.get("type"):
        case "text":
            return TextPart(str(piece.get("text") or ""), piece.get("signature"))
        case "image":
            return _picture(piece.get("source") or {})
        case "reasoning":
            return ReasoningPart(
                str(piece.get("reasoning") or ""),
                piece.get("signature"),
                native=bool(piece.get("is_native")),
            )
        case "redacted_reasoning":
            return ReasoningPart("", redacted=str(piece.get("data") or ""))
        case "summarized_reasoning":
            summaries = [
                summary for summary in piece.get("summary") or () if isinstance(summary, dict)
            ]
            return ReasoningPart("\n".join(str(summary.get("text") or "") for summary in summaries))
    return None


def _picture(source: Mapping[str, Any]) -> Part:
    if not (source.get("data") or source.get("url")):
        return TextPart(_NO_PICTURE)
    return ImagePart(
        source.get("media_type") or "image/png",
        source.get("data"),
        source.get("url"),
        source.get("detail"),
    )


def _calls(raw: Mapping[str, Any], *, is_gated: bool) -> list[Part]:
    listed = [call for call in raw.get("tool_calls") or () if isinstance(call, dict)]
    functions = [(call, call.get("function") or {}) for call in listed]
    if not listed:  # some servers write calls only into the message's content
        functions = [
            (call, {**call, "arguments": _text_of(call.get("input"))})
            for call in _pieces(raw, "tool_call")
        ]
    return [
        ToolCallPart(
            str(call.get("id")),
            str(function.get("name")),
            str(function.get("arguments") or "{}"),
            is_gated,
        )
        for call, function in functions
    ]


def _status(is_error: Any) -> Literal["success", "error"]:
    return "error" if is_error else "success"


def _returns(raw: Mapping[str, Any], text: str) -> list[Part]:
    """Return the results of a tool message.

    Older files have them only in the message's text.
    """
    name = str(raw.get("name") or "")
    listed = [
        tool_return
        for tool_return in raw.get("tool_returns") or ()
        if isinstance(tool_return, dict)
    ]
    if not listed:
        listed = [
            {
                **piece,
                "status": _status(piece.get("is_error")),
                "func_response": piece.get("content"),
            }
            for piece in _pieces(raw, "tool_return")
        ]
    unpacked = _unpack_json(text)
    single = {
        "tool_call_id": raw.get("tool_call_id"),
        "status": _status(unpacked.get("status") == "Failed"),
    }
    message_text = unpacked.get("message", text)
    return [
        ToolReturnPart(
            str(tool_return.get("tool_call_id") or raw.get("tool_call_id")),
            str(tool_return.get("name") or name),
            _status(tool_return.get("status") == "error"),
            _text_of(tool_return.get("func_response") or message_text),
            stdout=tuple(map(str, tool_return.get("stdout") or ())),
            stderr=tuple(map(str, tool_return.get("stderr") or ())),
        )
        for tool_return in listed or [single]
    ]


def _answer(answer: Mapping[str, Any]) -> Part:
    """Return a person's decision on a call, or the result of a client's tool."""
    call_id = str(answer.get("tool_call_id"))
    if answer.get("type") == "approval":
        return ApprovalPart(call_id, bool(answer.get("approve")), answer.get("reason"))
    content = _text_of(answer.get("tool_return") or answer.get("func_response") or "")
    return ToolReturnPart(call_id, "", _status(answer.get("status") == "error"), content)


def _pieces(raw: Mapping[str, Any], kind: str) -> list[Json]:
    content = raw.get("content")
    if isinstance(content, list):
        return [piece for piece in content if piece.get("type") == kind]
    return []


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _unpack_user_text(part: Part) -> Part:
    """Unpack a user's text from JSON; an event remains an event.

    Older agents wrap users' texts in JSON.
    """
    if not isinstance(part, TextPart):
        return part
    packed = _unpack_json(part.text)
    if packed.get("type") == "user_message":
        return TextPart(str(packed.get("message") or ""))
    if packed.get("type") in _EVENTS:
        return EventPart(part.text)
    return part


def _unpack_json(text: str) -> dict[str, Any]:
    try:
        if text.startswith("{"):
            packed = orjson.loads(text)
        else:
            packed = None
    except orjson.JSONDecodeError:
        packed = None
    if isinstance(packed, dict):
        return packed
    return {}
