"""The request of AG-UI (`RunAgentInput` of the protocol, version 1.0).

Unknown fields are ignored, and a field that is null counts as absent.
Source: the types of `@ag-ui/core` 1.0.0.
"""

from typing import Annotated, Any

import orjson
from pydantic import Field

from ricordo.agents.programs import decision_about
from ricordo.api.models.base import ForeignPart, ForeignRequest, Items
from ricordo.api.models.histories import History
from ricordo.domain.message import PICTURE_TYPES, ImagePart, Part, TextPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.text import Json


class AgUiMessage(ForeignPart):
    """A message of the client's history. Messages with an unknown role are ignored."""

    id: str | None = None
    role: str | None = None
    content: Any = None
    tool_call_id: str | None = None
    error: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The texts and pictures of the message; parts of other types are left out."""
        items = self.content
        if not isinstance(items, list):
            items = [{"type": "text", "text": self.content}]
        parts = (_part_of(item) for item in items if isinstance(item, dict))
        return tuple(part for part in parts if part is not None)

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def result(self) -> ToolReturnPart:
        """The message as the result of a tool that the client ran."""
        pictures = tuple(part for part in self.parts if isinstance(part, ImagePart))
        text = "\n".join(filter(None, (self.text, self.error)))
        call_id = self.tool_call_id or ""
        if self.error:
            return ToolReturnPart(call_id, "", "error", text, pictures=pictures)
        return ToolReturnPart(call_id, "", "success", text, pictures=pictures)


class AgUiTool(ForeignPart):
    """A tool that the client runs."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: Json | None = None

    @property
    def schema_for_model(self) -> ToolSchema:
        parameters = {"type": "object", "properties": {}, **(self.parameters or {})}
        return ToolSchema(self.name, self.description or "", parameters)


class AgUiContext(ForeignPart):
    """Information of the application for one run."""

    description: str | None = None
    value: Any = None

    @property
    def text(self) -> str:
        value = self.value if isinstance(self.value, str) else orjson.dumps(self.value).decode()
        return f"{self.description or 'Context'}: {value}"


class AgUiAnswer(ForeignPart):
    """An answer to one interrupt. `payload` follows the interrupt's `responseSchema`."""

    interrupt_id: str
    status: str | None = None
    payload: Any = None

    @property
    def decision(self) -> Part:
        payload = self.payload if self.status == "resolved" else None
        return decision_about(self.interrupt_id, payload)


class RunAgentRequest(ForeignRequest):
    """A run of an agent in a thread, with the client's history of the thread."""

    thread_id: Annotated[str, Field(min_length=1, max_length=1000)]
    run_id: Annotated[str, Field(min_length=1, max_length=1000)]
    messages: History[AgUiMessage] | None = None
    tools: Items[AgUiTool] | None = None
    context: Items[AgUiContext] | None = None
    resume: Items[AgUiAnswer] | None = None
    state: Any = None

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools or ())

    @property
    def instructions(self) -> str:
        """The application's instructions and context, which hold for this run only."""
        texts = [
            message.text
            for message in self.messages or ()
            if message.role in ("system", "developer") and message.text.strip()
        ]
        return "\n\n".join([*texts, *(context.text for context in self.context or ())])


def _part_of(item: Json) -> Part | None:
    """Return a text or a picture of a message's content, or None for any other part."""
    text = item.get("text")
    if item.get("type") == "text" and isinstance(text, str) and text.strip():
        return TextPart(text)
    source = item.get("source")
    if item.get("type") != "image" or not isinstance(source, dict):
        return None
    value = source.get("value")
    media_type = source.get("mimeType") or PICTURE_TYPES[0]
    if not isinstance(value, str) or media_type not in PICTURE_TYPES:
        return None
    if source.get("type") == "url":
        return ImagePart(media_type, url=value)
    return ImagePart(media_type, value) if source.get("type") == "data" else None
