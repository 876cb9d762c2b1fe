"""What callers send about archives and their passages, searches, and past messages. What is one list is refused or taken whole."""

from datetime import UTC, tzinfo
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from ricordo.api.bodies import Body, ConfigBody, Text, WholeBody
from ricordo.domain.clock import parse_date, parse_moment
from ricordo.errors import Invalid, Unsupported

# One request of this many is seconds of work; more of them at once would only be slower to repeat after a failure.
MOST_ITEMS = 10_000
SearchModeName = Literal["vector", "fts", "hybrid"]
Tag = Annotated[str, Field(min_length=1, max_length=500)]


class ArchiveBody(WholeBody):
    """An archive to be made."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None
    embedding: str | None = None
    embedding_config: ConfigBody | None = None
    vector_db_provider: str = "native"

    @property
    def embedding_handle(self) -> str | None:
        """The embedding model's handle, also where an older client gives a whole `embedding_config`."""
        return self.embedding or (self.embedding_config.full_handle if self.embedding_config else None)


class ArchiveChange(WholeBody):
    """What shall change of an archive; a field that is left out stays."""

    name: str | None = Field(None, min_length=1, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None


class PassageItem(Body):
    """One passage of several to be archived."""

    text: str = Field(min_length=1)
    tags: list[Tag] | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = None

    def moment(self, where: tzinfo = UTC) -> int | None:
        """When the passage was made, in microseconds UTC, where that is told; raises Invalid."""
        return None if self.created_at is None else parse_moment(self.created_at, where)


class PassageBody(PassageItem, WholeBody):
    """A passage to be archived."""


class PassageBatchBody(WholeBody):
    """Several passages to be archived."""

    passages: list[PassageItem]

    @field_validator("passages", mode="before")
    @classmethod
    def _require_few(cls, value: Any) -> Any:
        return require_few(value, "passages")


class _SearchBody(WholeBody):
    """What all searches share."""

    query: str | None = None
    search_mode: SearchModeName = "hybrid"
    limit: int = Field(50, ge=1, le=100)
    start_date: str | None = None
    end_date: str | None = None
    agent_id: str | None = None
    project_id: str | None = None
    template_id: str | None = None

    def refuse_unsupported(self) -> None:
        """Raise Unsupported for filters by what this server does not have: to leave one out would answer another question."""
        for name in ("project_id", "template_id"):
            if getattr(self, name):
                raise Unsupported(f"Filtering by {name} is not supported by this version of Ricordo. Leave it out.")

    def span(self, where: tzinfo) -> tuple[int | None, int | None]:
        """The first and the last moment that are wanted, in microseconds UTC; raises Invalid."""
        start = parse_date(self.start_date, where, name="start_date") if self.start_date else None
        end = parse_date(self.end_date, where, name="end_date", end=True) if self.end_date else None
        return start, end


class MessageSearchBody(_SearchBody):
    """Which messages are looked for."""

    roles: list[Literal["user", "assistant"]] | None = None
    conversation_id: str | None = None


class ResultSearchBody(MessageSearchBody):
    """Which messages are looked for, results of tools among them."""

    roles: list[Literal["user", "assistant", "tool"]] | None = None  # type: ignore[assignment]


class PassageSearchBody(_SearchBody):
    """Which passages are looked for."""

    archive_id: str | None = None
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"


class PastText(Text):
    """A piece of a past message."""

    model_config = ConfigDict(extra="forbid")


class PastMessageBody(Body):
    """A message from a past conversation. What it is not made of here would be lost, so other fields are refused by name."""

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
        """Say why instructions and tools' results are no history."""
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
        """The pieces of text the message is made of."""
        return [self.content] if isinstance(self.content, str) else [part.text for part in self.content]


class ImportBody(WholeBody):
    """Past messages, oldest first."""

    messages: list[PastMessageBody]
    conversation_id: str | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _require_few(cls, value: Any) -> Any:
        return require_few(value, "messages")


def require_few(value: Any, what: str) -> Any:
    """The list, unless it is empty or longer than one request may be; raises Invalid."""
    if isinstance(value, list) and not 1 <= len(value) <= MOST_ITEMS:
        # Not a ValueError: the answer to one repeats all that was sent.
        raise Invalid(f"A request takes 1 to {MOST_ITEMS} {what}, not {len(value)}. Send them in several requests.")
    return value
