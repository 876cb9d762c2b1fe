"""Archival memory: passages of text in archives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ricordo.errors import Invalid

MOST_TAGS = 64  # of one passage, block or agent that is new; what is stored may have more
LONGEST_TAG = 100  # characters


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


# By measurement (docs/internals/retrieval.md): nearly every question about what was said has a hit that reaches one of them.
GOOD_WORD_MATCH, GOOD_SIMILARITY = 0.3, 0.3


@dataclass(frozen=True, slots=True)
class Relevance:
    """Why a hit was found: ranks count from 1, None where that index did not find it.

    `score` compares the hits of one search. The other two can be compared between searches: `word_match` is how much of the
    query, weighted by rarity, the text and the turns around it hold, from 0 to 1; `similarity` is the cosine of the vectors.
    """

    score: float
    fts_rank: int | None = None
    vector_rank: int | None = None
    mode: str = "fts"
    word_match: float = 0.0
    similarity: float | None = None

    @property
    def matches_well(self) -> bool:
        return self.word_match >= GOOD_WORD_MATCH or (self.similarity or 0.0) >= GOOD_SIMILARITY


def require_tags(tags: Sequence[str]) -> None:
    """Raise Invalid for more tags than a passage may have, or longer ones."""
    longest = max(map(len, tags), default=0)
    if len(tags) > MOST_TAGS:
        raise Invalid(f"There are {len(tags)} tags, of which {MOST_TAGS} are allowed. Use fewer.")
    if longest > LONGEST_TAG:
        raise Invalid(
            f"A tag has {longest} characters, of which {LONGEST_TAG} are allowed. Shorten it."
        )
