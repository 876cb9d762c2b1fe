"""Tokens, counted by kind; what was spent outside of steps; and how many may be spent in a day."""

from dataclasses import dataclass
from typing import Literal

Purpose = Literal["turn", "compaction", "sleeptime", "embedding", "notes", "other"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call or of many. `cached`, `cache_write` and `reasoning` are parts of the first two, None where unreported."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(_sum(getattr(self, kind), getattr(other, kind)) for kind in self.__slots__))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Expense:
    """Tokens of one piece of work outside of a turn's steps; `model` is a handle, `created_at` in microseconds."""

    organization_id: str
    purpose: Purpose
    model: str
    usage: Usage
    agent_id: str | None = None
    user_id: str | None = None
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens may be used from one midnight (UTC) to the next, and how many were; `resets_at` in microseconds."""

    limit: int
    used: int
    resets_at: int

    def is_spent(self, percent: int = 100) -> bool:
        return self.used * 100 >= self.limit * percent


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
