"""A context window on the wire."""

from datetime import datetime
from typing import Any

from ricordo.api.wire.schemas import Json, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.memory.overview import Overview

Wire = dict[str, Any]


class StoredMessage(Shape):
    """A message as it is stored, in one piece; elsewhere on the wire it comes in several."""

    id: str
    agent_id: str
    conversation_id: str
    role: str
    content: list[Json]
    name: str | None
    model: str | None
    tool_calls: list[Json] | None
    tool_call_id: str | None
    tool_returns: list[Json]
    approvals: list[Json] | None
    otid: str | None
    sender_id: str | None
    group_id: str | None
    step_id: str | None
    run_id: str | None
    created_at: datetime


class ContextShape(Shape):
    """What fills a context window, in tokens, section by section."""

    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    num_tokens_external_memory_summary: int
    external_memory_summary: str
    num_tokens_system: int
    system_prompt: str
    num_tokens_core_memory: int
    core_memory: str
    num_tokens_memory_filesystem: int
    memory_filesystem: str | None
    num_tokens_tool_usage_rules: int
    tool_usage_rules: str | None
    num_tokens_directories: int
    directories: str | None
    num_tokens_summary_memory: int
    summary_memory: str | None
    num_tokens_functions_definitions: int
    functions_definitions: list[Json]
    num_tokens_messages: int
    messages: list[StoredMessage]


def overview_to_wire(seen: Overview) -> Wire:
    """The overview; what a section lacks is 0 tokens and null, or "" where clients expect a text."""
    parts, tokens = seen.parts, seen.tokens
    return {
        "context_window_size_max": seen.limit,
        "context_window_size_current": tokens.total,
        "num_messages": len(seen.messages),
        "num_archival_memory": seen.passage_count,
        "num_recall_memory": seen.recall_count,
        "num_tokens_external_memory_summary": tokens.memory_metadata,
        "external_memory_summary": parts.memory_metadata,
        "num_tokens_system": tokens.base,
        "system_prompt": parts.base,
        "num_tokens_core_memory": tokens.memory_blocks,
        "core_memory": parts.memory_blocks,
        # Agents whose memory is rendered as a tree of files had one; here every agent's memory is blocks.
        "num_tokens_memory_filesystem": 0,
        "memory_filesystem": None,
        "num_tokens_tool_usage_rules": tokens.tool_usage_rules,
        "tool_usage_rules": parts.tool_usage_rules or None,
        "num_tokens_directories": tokens.directories,
        "directories": parts.directories or None,
        "num_tokens_summary_memory": tokens.summary,
        "summary_memory": seen.summary,
        "num_tokens_functions_definitions": tokens.tools,
        "functions_definitions": [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in seen.tools
        ],
        "num_tokens_messages": tokens.messages,
        "messages": [_message(message) for message in seen.messages],
    }


def _message(message: Message) -> Wire:
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    returns = message.tool_returns
    return {
        "id": message.id,
        "agent_id": message.agent_id,
        "conversation_id": message.conversation_id,
        "role": message.role,
        "content": [wire for part in message.parts if (wire := _content(part))],
        "name": message.name,
        "model": message.model,
        "tool_calls": calls or None,
        "tool_call_id": returns[0].call_id if len(returns) == 1 else None,
        "tool_returns": [
            {
                "tool_call_id": part.call_id,
                "status": part.status,
                "func_response": part.content,
                "stdout": list(part.stdout) or None,
                "stderr": list(part.stderr) or None,
            }
            for part in returns
        ],
        "approvals": [
            {"type": "approval", "tool_call_id": part.call_id, "approve": part.approves, "reason": part.reason}
            for part in message.parts
            if isinstance(part, ApprovalPart)
        ]
        or None,
        "otid": message.otid,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "step_id": message.step_id,
        "run_id": message.run_id,
        "created_at": stamp(message.created_at),
    }


def _content(part: object) -> Wire | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            # A picture may be of megabytes: told of here, not sent.
            return {"type": "image", "source": {"type": "url", "url": part.url} if part.url else {"type": "base64"}}
        case ReasoningPart() if part.redacted is not None:
            return {"type": "redacted_reasoning", "data": part.redacted}
        case ReasoningPart():
            return {"type": "reasoning", "reasoning": part.text, "is_native": part.native, "signature": part.signature}
        case ToolReturnPart():
            return {"type": "text", "text": part.content}
        case ToolCallPart() | _:
            return None
