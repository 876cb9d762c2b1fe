"""Messages in the format of agent files of the retired Letta V1 server 0.16.8 (`.af`)."""

import orjson

from ricordo.domain.clock import stamp
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.text import Json


def to_af(message: Message, id: str, agent_id: str) -> Json:
    """Return the message in the format that other servers read.

    Args:
        message: The message.
        id: The id of the message in the file.
        agent_id: The id of its agent in the file.
    """
    decisions = [part for part in message.parts if isinstance(part, ApprovalPart)]
    calls, returns = message.tool_calls, message.tool_returns
    return {
        "type": "message",
        "id": id,
        "agent_id": agent_id,
        "role": message.role,
        "content": [piece for part in message.parts if (piece := _content(part))],
        "name": message.name or (returns[0].name if returns else None),
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "batch_item_id": None,
        "model": message.model,
        "tool_calls": [_call(call) for call in calls] or None,
        "tool_call_id": returns[0].call_id if returns else None,
        "tool_returns": [_return(tool_return) for tool_return in returns],
        "created_at": stamp(message.created_at),
        "approve": decisions[0].approves if decisions else None,
        "denial_reason": decisions[0].reason if decisions else None,
        "approval_request_id": None,
        "approvals": [
            {
                "type": "approval",
                "tool_call_id": decision.call_id,
                "approve": decision.approves,
                "reason": decision.reason,
            }
            for decision in decisions
        ]
        or None,
    }


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


def _call(call: ToolCallPart) -> Json:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _return(part: ToolReturnPart) -> Json:
    return {
        "tool_call_id": part.call_id,
        "status": part.status,
        "stdout": list(part.stdout),
        "stderr": list(part.stderr),
        "func_response": part.content,
    }
