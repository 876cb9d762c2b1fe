"""Short ways to say things to a model in these tests."""

from collections.abc import Sequence
from typing import Any

from ricordo.domain.message import Message, Part, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest, ToolSchema
from ricordo.llm.chat import ChatModel
from ricordo.llm.policy import CallPolicy

WEATHER = ToolSchema(
    "get_weather",
    "Tells the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSchema("get_time", "Tells the time.", {"type": "object", "properties": {}})


def said(role: Role, *parts: Part | str) -> Message:
    """A message of this role."""
    whole = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message("message-1", "agent-1", "default", role, whole, 0)


def ask(*messages: Message | str, tools: Sequence[ToolSchema] = (), **fields: Any) -> ModelRequest:
    """A request after a short system message; bare texts are the user's."""
    whole = tuple(said("user", message) if isinstance(message, str) else message for message in messages)
    return ModelRequest((said("system", "Be kind."), *whole), tuple(tools), **fields)


def weather_call(call_id: str = "call_1", arguments: str = '{"city":"Rome"}') -> ToolCallPart:
    """A call of the weather tool."""
    return ToolCallPart(call_id, "get_weather", arguments)


def weather_return(call_id: str = "call_1", content: str = "sunny") -> ToolReturnPart:
    """Its result."""
    return ToolReturnPart(call_id, "get_weather", "success", content)


async def collect(model: ChatModel, request: ModelRequest) -> tuple[list[Chunk], ModelReply]:
    """All chunks, and the reply that must come last."""
    items = [item async for item in model.answer(request)]
    *chunks, reply = items
    assert isinstance(reply, ModelReply)
    assert not any(isinstance(chunk, ModelReply) for chunk in chunks)
    return [chunk for chunk in chunks if not isinstance(chunk, ModelReply)], reply


class Waits(list[float]):
    """Notes the waits a policy asks for, and does not wait."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)

    def policy(self, retries: int = 3, timeout: float = 5) -> CallPolicy:
        """A policy that waits here, without chance in it."""
        return CallPolicy(retries, timeout, sleep=self, jitter=lambda: 1.0)
