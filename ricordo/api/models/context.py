"""Response models of a context window."""

from typing import Annotated

from ricordo.api.models.base import From, Json, ResponseModel
from ricordo.api.models.messages import StoredMessageFields
from ricordo.domain.message import ApprovalPart, ImagePart, Message, ReasoningPart, TextPart, ToolReturnPart
from ricordo.memory.overview import Overview


class ContextMessageResponse(StoredMessageFields):
    """A message as the window holds it, in one piece; elsewhere it comes in several."""

    role: str
    tool_calls: list[Json] | None
    tool_call_id: str | None
    approvals: list[Json] | None

    @classmethod
    def from_message(cls, message: Message) -> Json:
        returns = message.tool_returns
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        approvals = [
            {"type": "approval", "tool_call_id": part.call_id, "approve": part.approves, "reason": part.reason}
            for part in message.parts
            if isinstance(part, ApprovalPart)
        ]
        return cls.of(
            message,
            content=[item for part in message.parts if (item := _content(part))],
            tool_calls=calls or None,
            tool_call_id=returns[0].call_id if len(returns) == 1 else None,
            tool_returns=[_return(part) for part in returns],
            approvals=approvals or None,
        )


class ContextResponse(ResponseModel):
    """What fills a context window, in tokens, by section. What is missing is 0 tokens and null, or "" where clients expect it."""

    context_window_size_max: Annotated[int, From("limit")]
    context_window_size_current: Annotated[int, From("tokens.total")]
    num_messages: int
    num_archival_memory: Annotated[int, From("passage_count")]
    num_recall_memory: Annotated[int, From("recall_count")]
    num_tokens_external_memory_summary: Annotated[int, From("tokens.memory_metadata")]
    external_memory_summary: Annotated[str, From("parts.memory_metadata")]
    num_tokens_system: Annotated[int, From("tokens.base")]
    system_prompt: Annotated[str, From("parts.base")]
    num_tokens_core_memory: Annotated[int, From("tokens.memory_blocks")]
    core_memory: Annotated[str, From("parts.memory_blocks")]
    # Agents whose memory is rendered as a tree of files had one; here every agent's memory is blocks.
    num_tokens_memory_filesystem: int = 0
    memory_filesystem: str | None = None
    num_tokens_tool_usage_rules: Annotated[int, From("tokens.tool_usage_rules")]
    tool_usage_rules: str | None
    num_tokens_directories: Annotated[int, From("tokens.directories")]
    directories: str | None
    num_tokens_summary_memory: Annotated[int, From("tokens.summary")]
    summary_memory: Annotated[str | None, From("summary")]
    num_tokens_functions_definitions: Annotated[int, From("tokens.tools")]
    functions_definitions: list[Json]
    num_tokens_messages: Annotated[int, From("tokens.messages")]
    messages: list[ContextMessageResponse]

    @classmethod
    def from_overview(cls, seen: Overview) -> Json:
        return cls.of(
            seen,
            num_messages=len(seen.messages),
            tool_usage_rules=seen.parts.tool_usage_rules or None,
            directories=seen.parts.directories or None,
            functions_definitions=[
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in seen.tools
            ],
            messages=[ContextMessageResponse.from_message(message) for message in seen.messages],
        )


def _return(part: ToolReturnPart) -> Json:
    return {
        "tool_call_id": part.call_id,
        "status": part.status,
        "func_response": part.content,
        "stdout": list(part.stdout) or None,
        "stderr": list(part.stderr) or None,
    }


def _content(part: object) -> Json | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            # A picture may be of megabytes, so it is named here and not sent.
            return {"type": "image", "source": {"type": "url", "url": part.url} if part.url else {"type": "base64"}}
        case ReasoningPart() if part.redacted is not None:
            return {"type": "redacted_reasoning", "data": part.redacted}
        case ReasoningPart():
            return {"type": "reasoning", "reasoning": part.text, "is_native": part.native, "signature": part.signature}
        case ToolReturnPart():
            return {"type": "text", "text": part.content}
    return None
