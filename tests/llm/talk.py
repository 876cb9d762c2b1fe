"""Short helpers for talking with a model in these tests."""

from collections.abc import Sequence
from typing import Any

from ricordo.domain.message import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest, ToolSchema
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.support.model_server import ModelServer

WEATHER = ToolSchema(
    "get_weather",
    "Tells the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSchema("get_time", "Tells the time.", {"type": "object", "properties": {}})


def said(role: Role, *parts: Part | str) -> Message:
    whole = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    return Message("message-1", "agent-1", "default", role, whole, 0)


def ask(*messages: Message | str, tools: Sequence[ToolSchema] = (), **fields: Any) -> ModelRequest:
    whole = tuple(
        said("user", message) if isinstance(message, str) else message for message in messages
    )
    return ModelRequest((said("system", "Be kind."), *whole), tuple(tools), **fields)


def weather_call(call_id: str = "call_1", arguments: str = '{"city":"Rome"}') -> ToolCallPart:
    return ToolCallPart(call_id, "get_weather", arguments)


def weather_return(call_id: str = "call_1", content: str = "sunny") -> ToolReturnPart:
    return ToolReturnPart(call_id, "get_weather", "success", content)


# Transcripts that providers refuse until they are repaired.
HISTORIES: dict[str, tuple[Message | str, ...]] = {
    "nothing": (),
    "blank": ("  ", "\n"),
    "begins with the assistant": (said("assistant", "B"), "C"),
    "ends with the assistant": ("A", said("assistant", "B ")),
    "empty parts": (
        "A",
        said("assistant", "", "  "),
        said("user", "", " "),
        said("assistant", "B"),
        "C",
    ),
    "two answers in a row": (
        "A",
        said("assistant", "B"),
        said("assistant", weather_call()),
        said("tool", weather_return()),
    ),
    "a result without a word": (
        "A",
        said("assistant", weather_call()),
        said("tool", weather_return(content=" \n")),
    ),
    "a result that failed": (
        "A",
        said("assistant", weather_call()),
        said("tool", ToolReturnPart("call_1", "get_weather", "error", "")),
        said("user", "heartbeat"),
    ),
    "ids that others give": (
        "A",
        said(
            "assistant",
            weather_call("functions.get_weather:0"),
            ToolCallPart("x" * 80, "get_time", "{}"),
        ),
        said(
            "tool",
            weather_return("functions.get_weather:0"),
            ToolReturnPart("x" * 80, "get_time", "success", "noon"),
        ),
    ),
    "one id again and again": (
        "A",
        said("assistant", weather_call("call_0")),
        said("tool", weather_return("call_0", "rain")),
        said("assistant", weather_call("call_0")),
        said("tool", weather_return("call_0", "sun")),
    ),
    "a name that was made up": (
        "A",
        said(
            "assistant",
            ToolCallPart("a", "multi_tool.use parallel", "{}"),
            ToolCallPart("b", "", "{}"),
        ),
        said(
            "tool",
            ToolReturnPart("a", "multi_tool.use parallel", "error", "no such tool"),
            ToolReturnPart("b", "", "error", "no such tool"),
        ),
    ),
    "arguments that are none": (
        "A",
        said(
            "assistant",
            weather_call("a", '{"city": "Ro'),
            weather_call("b", "[1]"),
            weather_call("c", "null"),
        ),
        said("tool", *(weather_return(each) for each in "abc")),
    ),
    "a system message in the middle": (
        "A",
        said("assistant", "B"),
        said("system", "alert"),
        said("summary", "so far"),
    ),
    "an approval": (
        "A",
        said("approval", weather_call()),
        said("approval", ToolReturnPart("call_1", "get_weather", "success", "from the client")),
    ),
    "begins with a call": (said("assistant", weather_call()), said("tool", weather_return()), "C"),
    "foreign thoughts": (
        "A",
        said("assistant", ReasoningPart("m", signature="s", provider="mine"), "B"),
        "C",
    ),
    "a picture alone": (said("user", ImagePart("image/png", data="QUJD")),),
}


async def collect(model: ChatModel, request: ModelRequest) -> tuple[list[Chunk], ModelReply]:
    """Return all chunks, and the reply that must come last."""
    items = [item async for item in model.answer(request)]
    *chunks, reply = items
    assert isinstance(reply, ModelReply)
    assert not any(isinstance(chunk, ModelReply) for chunk in chunks)
    return [chunk for chunk in chunks if not isinstance(chunk, ModelReply)], reply


class Waits(list[float]):
    """Records the waits that a policy asks for, without waiting."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)

    def policy(self, retries: int = 3, timeout: float = 5) -> CallPolicy:
        """Return a policy that records its waits here, without randomness."""
        return CallPolicy(retries, timeout, sleep=self, jitter=lambda: 1.0)


def claude_at(
    server: ModelServer,
    connections: Connections,
    waits: Waits,
    name: str = "claude-scripted",
    **policy: Any,
) -> ChatModel:
    info = ModelInfo(f"anthropic/{name}", "anthropic", name, "anthropic", 200_000, server.root)
    provider = Provider("anthropic", "", "anthropic", "anthropic", "key-1")
    return build_model(provider, info, connections, waits.policy(**policy))
