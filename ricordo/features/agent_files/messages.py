"""Messages in agent files: in the format of the retired Letta V1 server 0.16.8 (`.af`), and whole, as they are stored here."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ricordo.api.models.base import Json, stamp
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
from ricordo.errors import Invalid
from ricordo.features.agent_files.content import FileMessage
from ricordo.features.agent_files.tolerance import ImportNotes

_ROLES = ("system", "user", "assistant", "tool", "approval", "summary")
_KEPT = ("role", "otid", "name", "sender_id", "group_id", "model", "is_untrusted", "created_at")
# What clients pack into the text of a user's message, beside words of a user.
_NO_PICTURE = "(A picture that is not in the file.)"
_EVENTS = ("heartbeat", "login", "system_alert")
_PARTS = TypeAdapter(tuple[Part, ...], config=ConfigDict(revalidate_instances="always"))


def to_af(message: Message, id: str, agent: str) -> Json:
    """Return the message as other servers read it."""
    decisions = [part for part in message.parts if isinstance(part, ApprovalPart)]
    calls, returns = message.tool_calls, message.tool_returns
    return {
        "type": "message",
        "id": id,
        "agent_id": agent,
        "role": message.role,
        "content": [made for part in message.parts if (made := _content(part))],
        "name": message.name or (returns[0].name if returns else None),
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "batch_item_id": None,
        "model": message.model,
        "tool_calls": [_call(call) for call in calls] or None,
        "tool_call_id": returns[0].call_id if returns else None,
        "tool_returns": [_return(one) for one in returns],
        "created_at": stamp(message.created_at),
        "approve": decisions[0].approves if decisions else None,
        "denial_reason": decisions[0].reason if decisions else None,
        "approval_request_id": None,
        "approvals": [
            {
                "type": "approval",
                "tool_call_id": one.call_id,
                "approve": one.approves,
                "reason": one.reason,
            }
            for one in decisions
        ]
        or None,
    }


def whole(message: Message, id: str) -> Json:
    """Return all of the message."""
    kept = {name: value for name in _KEPT if (value := getattr(message, name)) not in (None, False)}
    return {"id": id, **kept, "parts": parts_to_json(message.parts)}


@dataclass(frozen=True, slots=True)
class Home:
    """Where imported messages go, and the local ids of the file, which their evidence refers to."""

    agent_id: str
    conversation_id: str
    organization_id: str
    user_id: str | None


def from_whole(sent: FileMessage, id: str, home: Home) -> Message:
    """Return a message of ours. Raises Invalid where it is none."""
    try:
        parts = parts_from_json(sent.parts)
        _PARTS.validate_python(parts)
    except ValidationError as error:
        raise Invalid(
            f"A message of the file cannot be read ({error.errors()[0]['msg']})."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(
            f"A message of the file cannot be read ({type(error).__name__}: {error})."
        ) from error
    return _made(id, home, parts=parts, **{name: getattr(sent, name) for name in _KEPT})


def from_af(sent: Mapping[str, Any], id: str, home: Home, now: int) -> Message:
    """Return a message that another server wrote. Raises Invalid where it is none."""
    role = sent.get("role")
    if role not in _ROLES:
        raise Invalid(
            f'A message of the file has the role "{role}". Roles are {", ".join(_ROLES)}.'
        )
    created = sent.get("created_at")
    content = sent.get("content") or []
    pieces = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(pieces, list) or not all(isinstance(piece, dict) for piece in pieces):
        raise Invalid("The content of a message of the file is neither a text nor a list of parts.")
    parts: list[Part] = [made for piece in pieces if (made := _part(piece))]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if role == "tool":
        parts = [*_returns(sent, "\n".join(texts))]
    elif role == "user":
        parts = [_said(part) for part in parts]
    parts += _calls(sent, is_gated=role == "approval")
    parts += [_answer(one) for one in sent.get("approvals") or () if isinstance(one, dict)]
    said_at = parse_timestamp(created, UTC) if created else now
    given = {name: sent.get(name) for name in ("otid", "sender_id", "group_id", "model")}
    given["name"] = None if role == "tool" else sent.get("name")
    return _made(id, home, role=role, parts=tuple(parts), created_at=said_at, **given)


def with_own_otids(sent: list[Json], notes: ImportNotes) -> list[Json]:
    """Return messages without the otids that an earlier one has: in a conversation each is unique."""
    known: set[str] = set()
    kept = []
    for one in sent:
        otid = one.get("otid")
        if otid in known:
            notes.add("Messages: an otid that an earlier message has is left out.")
            kept.append({**one, "otid": None})
            continue
        if otid:
            known.add(otid)
        kept.append(one)
    return kept


def readable(sent: list[Json], notes: ImportNotes) -> list[Json]:
    """Return those of our own messages that can be stored."""
    kept = []
    for one in with_own_otids(sent, notes):
        try:
            from_whole(FileMessage.model_validate(one), one["id"], Home("", "", "", None))
        except (Invalid, ValidationError) as error:
            notes.add(f"Messages: one that cannot be read is left out. {error}".partition("\n")[0])
        else:
            kept.append(one)
    return kept


def _made(id: str, home: Home, **fields: Any) -> Message:
    return Message(
        id=id,
        agent_id=home.agent_id,
        conversation_id=home.conversation_id,
        organization_id=home.organization_id,
        user_id=home.user_id,
        **fields,
    )


def _content(part: Part) -> Json | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(url=str(url)):
            return {"type": "image", "source": {"type": "url", "url": url}}
        case ImagePart():
            source = {
                "type": "base64",
                "media_type": part.media_type,
                "data": part.data,
                "detail": part.detail,
            }
            return {"type": "image", "source": source}
        case ReasoningPart(redacted=str(redacted)):
            return {"type": "redacted_reasoning", "data": redacted}
        case ReasoningPart():
            return {
                "type": "reasoning",
                "is_native": part.native,
                "reasoning": part.text,
                "signature": part.signature,
            }
        case ToolReturnPart():
            packed = {
                "status": "OK" if part.status == "success" else "Failed",
                "message": part.content,
            }
            return {"type": "text", "text": orjson.dumps(packed).decode()}
    return None


def _part(piece: Mapping[str, Any]) -> Part | None:
    match piece.get("type"):
        case "text":
            return TextPart(str(piece.get("text") or ""), piece.get("signature"))
        case "image":
            source = piece.get("source") or {}
            if not (source.get("data") or source.get("url")):
                return TextPart(_NO_PICTURE)
            return ImagePart(
                source.get("media_type") or "image/png",
                source.get("data"),
                source.get("url"),
                source.get("detail"),
            )
        case "reasoning":
            return ReasoningPart(
                str(piece.get("reasoning") or ""),
                piece.get("signature"),
                native=bool(piece.get("is_native")),
            )
        case "redacted_reasoning":
            return ReasoningPart("", redacted=str(piece.get("data") or ""))
        case "summarized_reasoning":
            told = [one for one in piece.get("summary") or () if isinstance(one, dict)]
            return ReasoningPart("\n".join(str(one.get("text") or "") for one in told))
    return None


def _call(call: ToolCallPart) -> Json:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _calls(sent: Mapping[str, Any], *, is_gated: bool) -> list[Part]:
    found = [one for one in sent.get("tool_calls") or () if isinstance(one, dict)]
    functions = [(one, one.get("function") or {}) for one in found]
    if not found:  # some have them in the content alone
        functions = [
            (one, {**one, "arguments": _text_of(one.get("input"))})
            for one in _pieces(sent, "tool_call")
        ]
    return [
        ToolCallPart(
            str(one.get("id")),
            str(function.get("name")),
            str(function.get("arguments") or "{}"),
            is_gated,
        )
        for one, function in functions
    ]


def _return(part: ToolReturnPart) -> Json:
    return {
        "tool_call_id": part.call_id,
        "status": part.status,
        "stdout": list(part.stdout),
        "stderr": list(part.stderr),
        "func_response": part.content,
    }


def _returns(sent: Mapping[str, Any], text: str) -> list[Part]:
    """The results of a tool message; older files have them in its text alone."""
    name = str(sent.get("name") or "")
    listed = [one for one in sent.get("tool_returns") or () if isinstance(one, dict)] or [
        {
            **one,
            "status": "error" if one.get("is_error") else "success",
            "func_response": one.get("content"),
        }
        for one in _pieces(sent, "tool_return")
    ]
    packed = _unpacked(text)
    only = {
        "tool_call_id": sent.get("tool_call_id"),
        "status": "error" if packed.get("status") == "Failed" else "success",
    }
    said = packed.get("message", text)
    return [
        ToolReturnPart(
            str(one.get("tool_call_id") or sent.get("tool_call_id")),
            str(one.get("name") or name),
            "error" if one.get("status") == "error" else "success",
            _text_of(one.get("func_response") or said),
            stdout=tuple(map(str, one.get("stdout") or ())),
            stderr=tuple(map(str, one.get("stderr") or ())),
        )
        for one in listed or [only]
    ]


def _answer(one: Mapping[str, Any]) -> Part:
    """What a person decided about a call, or what the client's own tool gave."""
    call_id = str(one.get("tool_call_id"))
    if one.get("type") == "approval":
        return ApprovalPart(call_id, bool(one.get("approve")), one.get("reason"))
    content = _text_of(one.get("tool_return") or one.get("func_response") or "")
    return ToolReturnPart(
        call_id, "", "error" if one.get("status") == "error" else "success", content
    )


def _pieces(sent: Mapping[str, Any], kind: str) -> list[Json]:
    content = sent.get("content")
    return [one for one in content if one.get("type") == kind] if isinstance(content, list) else []


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _said(part: Part) -> Part:
    """The words of a user, which older agents pack into JSON; an event of the server stays one."""
    if not isinstance(part, TextPart):
        return part
    packed = _unpacked(part.text)
    if packed.get("type") == "user_message":
        return TextPart(str(packed.get("message") or ""))
    return EventPart(part.text) if packed.get("type") in _EVENTS else part


def _unpacked(text: str) -> dict[str, Any]:
    try:
        packed = orjson.loads(text) if text.startswith("{") else None
    except orjson.JSONDecodeError:
        packed = None
    return packed if isinstance(packed, dict) else {}
