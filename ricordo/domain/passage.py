"""Archival memory: passages of text in archives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from ricordo.errors import Invalid

MOST_TAGS = 64  # of a new passage, block or agent; stored ones may have more
LONGEST_TAG = 100  # characters


@dataclass(frozen=True, slots=True)
class Archive:
    """A collection of passages that agents share by attachment.

    `tags` are the sorted tags of its shared passages. If it was loaded for a user, the tags of the
    passages about this user are among them.
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
    """One archived text.

    `user_id` is the person it is about (None: shared). `is_untrusted` is as in a message.
    """

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
    # The label of its egress policies (`domain/egress.py`).
    egress: str | None = None


# Nearly every question about an earlier conversation has a hit that reaches one of these values
# (measured in docs/internals/retrieval.md).
GOOD_WORD_MATCH = 0.3
GOOD_SIMILARITY = 0.3
# The chance that a hit answers the question, by `word_match` and, if known, by `similarity`. The
# values were fitted to the first ten hits of each question in two data sets
# (docs/internals/retrieval.md).
_CHANCE_BY_WORDS = (-3.22, 2.58)
_CHANCE = (-3.87, 2.01, 2.63)


@dataclass(frozen=True, slots=True)
class Relevance:
    """The relevance of a search hit.

    Ranks count from 1. A rank is None if that index did not find the hit. `score` can be compared
    only among the hits of one search, `word_match` and `similarity` also across searches.
    `word_match` (0 to 1) is the share of the query's words that occur in the text and the turns
    around it. Rare words count more. `similarity` is the cosine of the vectors.
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

    @property
    def match(self) -> float:
        """The match of the hit, from 0 to 1. Matches of different searches can be compared.

        It grows with the chance that the hit answers the query. 1 is a text with all of the query's
        words and its meaning.
        """
        if self.similarity is None:
            (start, *weights), signals = _CHANCE_BY_WORDS, [self.word_match]
        else:
            (start, *weights), signals = _CHANCE, [self.word_match, self.similarity]
        clear = sum(
            weight * min(max(signal, 0.0), 1.0)
            for weight, signal in zip(weights, signals, strict=True)
        )
        lowest = _sigmoid(start)
        share = (_sigmoid(start + clear) - lowest) / (_sigmoid(start + sum(weights)) - lowest)
        return round(share, 3)


def _sigmoid(number: float) -> float:
    return 1 / (1 + exp(-number))


def require_tags(tags: Sequence[str]) -> None:
    """Refuse too many tags, and tags that are too long.

    Args:
        tags: The tags of a new passage, block or agent.

    Raises:
        Invalid: There are more than `MOST_TAGS`, or one is longer than `LONGEST_TAG`.
    """
    longest = max(map(len, tags), default=0)
    if len(tags) > MOST_TAGS:
        raise Invalid(f"There are {len(tags)} tags, and {MOST_TAGS} are allowed. Use fewer.")
    if longest > LONGEST_TAG:
        raise Invalid(f"A tag has {longest} characters, and {LONGEST_TAG} are allowed. Shorten it.")
