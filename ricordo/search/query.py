"""What a search is asked, what it answers, and what is embedded at a time: values that need no numpy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ricordo.domain.passage import Relevance

SearchMode = Literal["hybrid", "vector", "fts"]


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for. `vectors` holds it embedded, by the handle of the model, each of length 1.

    `nearest` is what an outside index found, by partition: document numbers with their cosine similarity. `related` are words
    near in meaning to words of the text, nearest first.
    """

    text: str
    mode: SearchMode = "hybrid"
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    related: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages of these agents may be found. Times are microseconds, both ends included; empty means: any.

    With `user_id` those about this user and those about no user in particular. `shared` is what a conversation that was forked
    shares with others: their ids, each with the seq of the last message (see `conversations.shared_by`).
    """

    agent_ids: tuple[str, ...]
    conversation_id: str | None = None
    roles: tuple[str, ...] = ()
    user_id: str | None = None
    start: int | None = None
    end: int | None = None
    shared: tuple[tuple[str, int], ...] = ()
    tags: ClassVar[tuple[str, ...]] = ()
    all_tags: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """Which passages of these archives may be found; times and `user_id` as for messages."""

    archive_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    user_id: str | None = None
    start: int | None = None
    end: int | None = None
    conversation_id: ClassVar[None] = None
    roles: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[tuple[str, int], ...]] = ()


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result: the number (`seq`) of a message or passage, and why it was found."""

    document: int
    relevance: Relevance


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best hits, best first. `missing` names the models whose vector of the query would have been needed as well."""

    hits: tuple[SearchHit, ...] = ()
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """Documents in a row that have no vector of this model yet, from position `start`; None where one is deleted."""

    owner_id: str
    kind: str
    embedding: str
    start: int
    documents: tuple[int | None, ...]
    total: int
