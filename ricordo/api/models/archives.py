"""Models of archives and their passages.

A list with one faulty passage is refused as a whole.
"""

from datetime import UTC, tzinfo
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ricordo.api.models.base import (
    MOST_ITEMS,
    AuthorFields,
    From,
    Items,
    RequestModel,
    RequestPart,
    ResponseModel,
    Timestamp,
    date,
)
from ricordo.api.models.models import EmbeddingConfigResponse, EmbeddingFields
from ricordo.domain.clock import parse_timestamp
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS
from ricordo.domain.text import Json
from ricordo.errors import Invalid

# The most results that a search may skip, since a page costs as much as all pages before it.
MOST_SKIPPED = 10_000
Tag = Annotated[str, Field(min_length=1, max_length=LONGEST_TAG)]


def within_item_limit(noun: str) -> BeforeValidator:
    """Return a check that a list is not empty and not longer than a request may be.

    Args:
        noun: The elements of the list in the plural, for the error.
    """

    def check(rows: Any) -> Any:
        if isinstance(rows, list) and not 1 <= len(rows) <= MOST_ITEMS:
            raise Invalid(
                f"A request takes 1 to {MOST_ITEMS} {noun}, not {len(rows)}. Send them in several "
                "requests."
            )
        return rows

    return BeforeValidator(check)


class ArchiveUpdate(RequestModel):
    """The changes of an archive. An omitted field keeps its value."""

    name: str | None = Field(None, min_length=1, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None


class ArchiveRequest(ArchiveUpdate, EmbeddingFields):
    """An archive to create."""

    name: str = Field(min_length=1, max_length=256)
    vector_db_provider: str = "native"


class PassageItem(RequestPart):
    """One of several passages to archive."""

    text: str = Field(min_length=1)
    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = None

    def timestamp(self, zone: tzinfo = UTC) -> int | None:
        """Return the passage's time as sent, in microseconds UTC.

        Args:
            zone: The time zone of a time that names none.

        Returns:
            The time, or None if none was sent.

        Raises:
            Invalid: The time is malformed, or could not be shown in every time zone.
        """
        if self.created_at is None:
            return None
        return parse_timestamp(self.created_at, zone)


class PassageRequest(PassageItem, RequestModel):
    """A passage to archive."""


class PassageBatchRequest(RequestModel):
    """Several passages to archive."""

    passages: Annotated[Items[PassageItem], within_item_limit("passages")]


class ArchiveResponse(AuthorFields):
    """An archive of passages, with its embedding model."""

    id: str
    name: str
    description: str | None
    metadata: Json
    embedding: str | None
    embedding_config: EmbeddingConfigResponse | None
    vector_db_provider: Annotated[str, From("vector_db")]
    created_at: Timestamp
    updated_at: Timestamp


class PassageResponse(AuthorFields):
    """A passage in an archive; its vector is shown on request."""

    id: str
    text: str
    archive_id: str | None
    tags: list[str]
    metadata: Json
    embedding: list[float] | None = None
    embedding_config: EmbeddingConfigResponse | None = None
    source_id: str | None = None
    file_id: str | None = None
    file_name: str | None = None
    is_deleted: bool = False
    organization_id: str | None
    created_at: Timestamp
    updated_at: Timestamp


ArchiveUpdate.take_back(ArchiveResponse)
PassageItem.take_back(PassageResponse)


class RelevanceResponse(ResponseModel):
    """The relevance of a search result.

    A rank counts from 1. It is null if that kind of search did not find the passage. `rrf_score`
    orders the results of one search. `word_match` and `similarity` tell how good the match is;
    `matches_well` is true if one of them is at least 0.3.
    """

    search_mode: Annotated[str, From("mode")]
    rrf_score: Annotated[float, From("score")]
    vector_rank: int | None
    fts_rank: int | None
    word_match: float = Field(
        description="The share of the query's words found in or near the text, weighted by rarity: 0 to "
        "1."
    )
    similarity: float | None = Field(
        description="Cosine similarity of the vectors; null if none were compared."
    )
    matches_well: bool


class PassageHitResponse(ResponseModel):
    """A passage found in an agent's archives."""

    id: Annotated[str, From("passage.id")]
    timestamp: Annotated[str, From("passage.created_at", date)]
    content: Annotated[str, From("passage.text")]
    tags: Annotated[list[str], From("passage.tags")]
    excerpt: str | None = Field(
        None, description="The part of a long passage that matches best; null for a short one."
    )
    relevance: RelevanceResponse


class PassageSearchResponse(ResponseModel):
    """The results of a search of an agent's archives."""

    results: list[PassageHitResponse]
    count: int


class FoundPassageResponse(ResponseModel):
    """A passage found in one of several archives."""

    passage: PassageResponse
    score: Annotated[float, From("relevance.score")]
    metadata: Annotated[RelevanceResponse, From("relevance")]
    excerpt: str | None = Field(
        None, description="The part of a long passage that matches best; null for a short one."
    )
