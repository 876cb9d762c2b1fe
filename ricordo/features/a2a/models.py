"""Requests and answers of A2A 1.0 over JSON-RPC.

Unknown fields are ignored. Source: the protocol's `a2a.proto`, in the JSON of `a2a-sdk` 1.3.0.
"""

from typing import Any

import orjson
from pydantic import ConfigDict, Field

from ricordo.api.models.base import ForeignPart, Items, ResponseModel
from ricordo.domain.message import PICTURE_TYPES, ImagePart, Part, TextPart
from ricordo.errors import Unsupported


class A2aPart(ForeignPart):
    """A text, JSON data, or a file as base64 (`raw`) or by its address."""

    text: str | None = None
    data: Any = None
    raw: str | None = None
    url: str | None = None
    media_type: str | None = None

    @property
    def part(self) -> Part | None:
        """The part for the agent; None if it is empty. Unsupported is raised for other files."""
        if self.raw or self.url:
            if self.media_type not in PICTURE_TYPES:
                raise Unsupported(
                    f"Files are pictures of one of the types {', '.join(PICTURE_TYPES)}."
                )
            return ImagePart(self.media_type, self.raw, self.url)
        if self.data is not None:
            return TextPart(orjson.dumps(self.data).decode())
        return TextPart(self.text) if self.text and self.text.strip() else None


class A2aMessage(ForeignPart):
    """A message for the agent. With `task_id` it continues a task."""

    message_id: str = Field(min_length=1, max_length=1000)
    context_id: str | None = Field(None, max_length=1000)
    task_id: str | None = None
    parts: Items[A2aPart] | None = None

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts that are not empty. Unsupported is raised for a file that is no picture."""
        parts = (part.part for part in self.parts or ())
        return tuple(part for part in parts if part is not None)


class SendSettings(ForeignPart):
    """Options for the answer to a message."""

    return_immediately: bool | None = None


class SendParameters(ForeignPart):
    """The parameters of `SendMessage` and `SendStreamingMessage`."""

    message: A2aMessage
    configuration: SendSettings | None = None


class TaskParameters(ForeignPart):
    """The parameters of `GetTask`, `CancelTask` and `SubscribeToTask`."""

    id: str


class AgentCard(ResponseModel):
    """The agent's card of A2A."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str
