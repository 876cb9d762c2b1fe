"""Token counts by kind, expenses outside of steps, and daily budgets."""

from dataclasses import dataclass
from typing import Literal

Purpose = Literal["turn", "compaction", "sleeptime", "embedding", "notes", "other"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one or more calls.

    Cached and cache-write tokens are part of the prompt's tokens, reasoning tokens part of the
    completion's. They are None if the provider does not report them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def cached_share(self) -> float | None:
        """The share of the prompts' tokens that came from a cache; None if none is reported."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return round(self.cached_tokens / self.prompt_tokens, 4)

    def __add__(self, other: "Usage") -> "Usage":
        sums: dict[str, int | None] = {}
        for kind in self.__slots__:
            counts = (getattr(self, kind), getattr(other, kind))
            is_known = counts != (None, None)
            sums[kind] = sum(count or 0 for count in counts) if is_known else None
        return Usage(**sums)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Expense:
    """The tokens of work outside of a turn's steps.

    `model` is a handle; `created_at` is in microseconds.
    """

    organization_id: str
    purpose: Purpose
    model: str
    usage: Usage
    agent_id: str | None = None
    user_id: str | None = None
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """The token limit for a day (UTC), and the tokens used so far.

    `resets_at` is in microseconds.
    """

    limit: int
    used: int
    resets_at: int

    def is_spent(self, percent: int = 100) -> bool:
        return self.used * 100 >= self.limit * percent
