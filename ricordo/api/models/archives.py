"""Request and response models of archives and their passages. What is one list is refused or stored whole."""

from datetime import UTC, tzinfo
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ricordo.api.models.base import (
    MOST_ITEMS,
    AuthorFields,
    From,
    Items,
    Json,
    RequestModel,
    RequestPart,
    ResponseModel,
    Timestamp,
    date,
)
from ricordo.api.models.models import EmbeddingConfigResponse, EmbeddingFields
from ricordo.domain.clock import parse_timestamp
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS
from ricordo.errors import Invalid

# How many results a search may pass over: a page behind them costs as much as the first one with so many results.
MOST_SKIPPED = 10_000
# One request of this many is seconds of work; more of them at once would only be slower to repeat after a failure.
Tag = Annotated[str, Field(min_length=1, max_length=LONGEST_TAG)]


def few(what: str) -> BeforeValidator:
    """A list that is neither empty nor longer than one request may be."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and not 1 <= len(value) <= MOST_ITEMS:
            raise Invalid(
                f"A request takes 1 to {MOST_ITEMS} {what}, not {len(value)}. Send them in several requests."
            )
        return value

    return BeforeValidator(check)


class ArchiveUpdate(RequestModel):
    """What changes of an archive. A field that is left out stays."""

    name: str | None = Field(None, min_length=1, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None


class ArchiveRequest(ArchiveUpdate, EmbeddingFields):
    """An archive to create."""

    name: str = Field(min_length=1, max_length=256)
    vector_db_provider: str = "native"


class PassageItem(RequestPart):
    """One passage of several to archive."""

    text: str = Field(min_length=1)
    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS)] | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = None

    def timestamp(self, where: tzinfo = UTC) -> int | None:
        """Return when the passage was made, in microseconds UTC, where it says so; raises Invalid."""
        return None if self.created_at is None else parse_timestamp(self.created_at, where)


class PassageRequest(PassageItem, RequestModel):
    """A passage to archive."""


class PassageBatchRequest(RequestModel):
    """Several passages to archive."""

    passages: Annotated[Items[PassageItem], few("passages")]


class ArchiveResponse(AuthorFields):
    """An archive of passages, with the model its texts are embedded with, if they are."""

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
    """A passage in an archive; its vector is shown where it was asked for."""

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
    """Why something was found: ranks count from 1, null where that kind of search did not find it.

    `rrf_score` orders the results of one search. How well a result matches at all, say `word_match` and `similarity`;
    `matches_well` is true where one of them is at least 0.3.
    """

    search_mode: Annotated[str, From("mode")]
    rrf_score: Annotated[float, From("score")]
    vector_rank: int | None
    fts_rank: int | None
    word_match: float = Field(
        description="The share of the query's words, by rarity, in the text and around it: 0 to 1."
    )
    similarity: float | None = Field(
        description="The cosine of the vectors; null where none was compared."
    )
    matches_well: bool


class PassageHitResponse(ResponseModel):
    """A passage that a search of an agent's archives found."""

    id: Annotated[str, From("passage.id")]
    timestamp: Annotated[str, From("passage.created_at", date)]
    content: Annotated[str, From("passage.text")]
    tags: Annotated[list[str], From("passage.tags")]
    relevance: RelevanceResponse


class PassageSearchResponse(ResponseModel):
    """What a search of an agent's archives found."""

    results: list[PassageHitResponse]
    count: int


class FoundPassageResponse(ResponseModel):
    """A passage that a search of several archives found."""

    passage: PassageResponse
    score: Annotated[float, From("relevance.score")]
    metadata: Annotated[RelevanceResponse, From("relevance")]
