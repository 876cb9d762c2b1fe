"""Messages that a search found, on the wire."""

from typing import Any

from ricordo.api.wire.messages import call_to_wire
from ricordo.api.wire.passages import relevance_to_wire
from ricordo.api.wire.times import stamp
from ricordo.domain.message import Message
from ricordo.domain.passage import Relevance
from ricordo.storage.messages import searchable_text


def found_message_to_wire(message: Message, relevance: Relevance) -> dict[str, Any]:
    """What a user or an agent said, and where and when."""
    return {
        "message_type": f"{message.role}_message",
        "content": searchable_text(message),
        "message_id": message.id,
        "agent_id": message.agent_id,
        "conversation_id": message.conversation_id,
        "created_at": stamp(message.created_at),
        "relevance": relevance_to_wire(relevance),
    }


def result_to_wire(message: Message, relevance: Relevance) -> dict[str, Any]:
    """A whole message beside the text by which it was found and its ranks."""
    return {"embedded_text": searchable_text(message), "message": _stored(message), **relevance_to_wire(relevance)}


def _stored(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "role": message.role,
        "content": [{"type": "text", "text": message.text}] if message.text else [],
        "tool_calls": [call_to_wire(call) for call in message.tool_calls],
        "tool_returns": [
            {"tool_call_id": part.call_id, "status": part.status, "func_response": part.content}
            for part in message.tool_returns
        ],
        "name": message.name,
        "model": message.model,
        "agent_id": message.agent_id,
        "conversation_id": message.conversation_id,
        "run_id": message.run_id,
        "step_id": message.step_id,
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "created_at": stamp(message.created_at),
    }
