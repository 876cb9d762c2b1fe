"""Requests and answers of A2A 1.0 over JSON-RPC.

Unknown fields are ignored. Source: the protocol's `a2a.proto`, in the JSON of `a2a-sdk` 1.3.0.
"""

from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from ricordo.api.models.base import Items, RequestModel, RequestPart, ResponseModel
from ricordo.domain.message import ImagePart, Part, TextPart
from ricordo.domain.text import Json
from ricordo.errors import Unsupported

_LENIENT = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True)
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class A2aPart(RequestPart):
    """A text, JSON data, or a file as base64 (`raw`) or by its address."""

    model_config = _LENIENT

    text: str | None = None
    data: Any = None
    raw: str | None = None
    url: str | None = None
    media_type: str | None = None

    @property
    def part(self) -> Part | None:
        """The part for the agent, or None if it is empty. Raises Unsupported for other files."""
        if self.raw or self.url:
            if self.media_type not in _PICTURES:
                raise Unsupported(f"Files are pictures of one of the types {', '.join(_PICTURES)}.")
            return ImagePart(self.media_type, self.raw, self.url)
        if self.data is not None:
            return TextPart(orjson.dumps(self.data).decode())
        return TextPart(self.text) if self.text and self.text.strip() else None


class A2aMessage(RequestPart):
    """A message for the agent. With `task_id` it continues a task."""

    model_config = _LENIENT

    message_id: str = Field(min_length=1, max_length=1000)
    context_id: str | None = Field(None, max_length=1000)
    task_id: str | None = None
    parts: Items[A2aPart] | None = None

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts that are not empty. Raises Unsupported."""
        parts = (part.part for part in self.parts or ())
        return tuple(part for part in parts if part is not None)


class SendSettings(RequestPart):
    """Options for the answer to a message."""

    model_config = _LENIENT

    return_immediately: bool | None = None


class SendParameters(RequestPart):
    """The parameters of `SendMessage` and `SendStreamingMessage`."""

    model_config = _LENIENT

    message: A2aMessage
    configuration: SendSettings | None = None


class TaskParameters(RequestPart):
    """The parameters of `GetTask`, `CancelTask` and `SubscribeToTask`."""

    model_config = _LENIENT

    id: str


class RpcRequest(RequestModel):
    """A request of JSON-RPC 2.0."""

    model_config = _LENIENT

    id: str | int | None = None
    method: str
    params: Json | None = None


class RpcAnswer(ResponseModel):
    """An answer of JSON-RPC 2.0, with `result` or `error`."""

    model_config = ConfigDict(extra="allow")

    jsonrpc: Literal["2.0"]


class AgentCard(ResponseModel):
    """The agent's card of A2A."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str
