"""Archival memory: passages of text in archives."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Archive:
    """A store of passages, which agents share by attachment.

    `tags` are those of its shared passages and, where it was loaded for a user, of those about this user, sorted.
    """

    id: str
    organization_id: str
    name: str
    description: str | None = None
    embedding: str | None = None
    vector_db: str = "native"
    metadata: dict[str, Any] = field(default_factory=dict)
    passage_count: int = 0
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """One archived text. `user_id` is whom it is about (None: shared); `is_untrusted` as in a message."""

    id: str
    organization_id: str
    archive_id: str
    text: str
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    created_by: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    created_at: int = 0
    updated_at: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Relevance:
    """Why a hit was found: ranks count from 1, None where that index did not find it."""

    score: float
    fts_rank: int | None = None
    vector_rank: int | None = None
    mode: str = "fts"
