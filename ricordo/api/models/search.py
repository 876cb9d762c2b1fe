"""Request and response models of searches across agents and archives, and of imported history."""

from datetime import tzinfo
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from ricordo.api.models.archives import RelevanceResponse, require_few
from ricordo.api.models.base import Json, RequestModel, RequestPart, ResponseModel, Timestamp
from ricordo.api.models.messages import StoredMessageFields, ToolCallResponse
from ricordo.api.models.turns import TextContent
from ricordo.domain.clock import parse_date
from ricordo.domain.message import Message
from ricordo.domain.passage import Relevance
from ricordo.errors import Unsupported
from ricordo.storage.messages import searchable_text


class _SearchRequest(RequestModel):
    """What all searches share."""

    query: str | None = None
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    limit: int = Field(50, ge=1, le=100)
    start_date: str | None = None
    end_date: str | None = None
    agent_id: str | None = None
    project_id: str | None = None
    template_id: str | None = None

    def refuse_unsupported(self) -> None:
        for name in ("project_id", "template_id"):
            if getattr(self, name):
                raise Unsupported(f"Filtering by {name} is not supported by this version of Ricordo. Leave it out.")

    def span(self, where: tzinfo) -> tuple[int | None, int | None]:
        """Return the first and the last wanted timestamp, in microseconds UTC; raises Invalid."""
        start = parse_date(self.start_date, where, name="start_date") if self.start_date else None
        end = parse_date(self.end_date, where, name="end_date", end=True) if self.end_date else None
        return start, end


class MessageSearchRequest(_SearchRequest):
    """Which messages are looked for."""

    roles: list[Literal["user", "assistant"]] | None = None
    conversation_id: str | None = None


class StoredMessageSearchRequest(MessageSearchRequest):
    """Which messages are looked for, tool results among them."""

    roles: list[Literal["user", "assistant", "tool"]] | None = None  # type: ignore[assignment]


class PassageSearchRequest(_SearchRequest):
    """Which passages are looked for."""

    archive_id: str | None = None
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"


class FoundMessageResponse(ResponseModel):
    """What a user or an agent said that a search found."""

    message_type: Literal["user_message", "assistant_message"]
    content: str
    message_id: str
    agent_id: str
    conversation_id: str
    created_at: Timestamp
    relevance: RelevanceResponse

    @classmethod
    def from_hit(cls, message: Message, relevance: Relevance) -> Json:
        return cls.of(
            message,
            message_type=f"{message.role}_message",
            content=searchable_text(message),
            message_id=message.id,
            relevance=RelevanceResponse.of(relevance),
        )


class StoredMessageResponse(StoredMessageFields):
    """A message as it is stored, in one piece."""

    role: Literal["user", "assistant", "tool"]
    tool_calls: list[Json]


class StoredMessageHitResponse(RelevanceResponse):
    """A message that a search found, and the text by which it was found."""

    embedded_text: str
    message: StoredMessageResponse

    @classmethod
    def from_hit(cls, message: Message, relevance: Relevance) -> Json:
        stored = StoredMessageResponse.of(
            message,
            content=[{"type": "text", "text": message.text}] if message.text else [],
            tool_calls=[ToolCallResponse.of(call) for call in message.tool_calls],
            tool_returns=[
                {"tool_call_id": part.call_id, "status": part.status, "func_response": part.content}
                for part in message.tool_returns
            ],
        )
        return cls.of(relevance, embedded_text=searchable_text(message), message=stored)


class PastText(TextContent):
    """A piece of a past message."""

    model_config = ConfigDict(extra="forbid")


class PastMessageRequest(RequestPart):
    """A message from a past conversation. Unknown fields are refused by name, since what they hold would be lost."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant"]
    content: str | list[PastText]
    name: str | None = Field(None, max_length=200)
    created_at: str | None = None
    otid: str | None = Field(None, min_length=1, max_length=200)

    @field_validator("role", mode="before")
    @classmethod
    def _explain_roles(cls, value: Any) -> Any:
        """Say why instructions and tool results are no history."""
        if value in ("system", "tool"):
            raise ValueError(
                f"messages of the role {value} cannot be imported: an agent has one system message, which it keeps "
                "itself, and a tool's result means nothing without its call. Leave them out."
            )
        return value

    @field_validator("content")
    @classmethod
    def _require_words(cls, value: str | list[PastText]) -> str | list[PastText]:
        words = [value] if isinstance(value, str) else [part.text for part in value]
        if not any(text.strip() for text in words):
            raise ValueError("the content is empty. Leave the message out.")
        return value

    @property
    def texts(self) -> list[str]:
        return [self.content] if isinstance(self.content, str) else [part.text for part in self.content]


class ImportRequest(RequestModel):
    """Past messages, oldest first."""

    messages: list[PastMessageRequest]
    conversation_id: str | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _require_few(cls, value: Any) -> Any:
        return require_few(value, "messages")


class ImportResponse(ResponseModel):
    """The ids of imported messages, in the order in which they were sent."""

    message_ids: list[str]
