"""What tokens were spent on, what they cost by an operator's own prices, and how much may be spent in a day."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from ricordo.domain.clock import SECOND
from ricordo.domain.usage import Usage

Purpose = Literal["turn", "compaction", "sleeptime", "embedding", "other"]
Grouping = Literal["day", "agent", "user", "model", "purpose"]
DAY = 24 * 3600 * SECOND
_MILLION = 1_000_000


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
class Entry:
    """What one model used for one group; `key` names the group (a day, an agent …)."""

    key: str | None
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Cost:
    """Money by kind of token, in the currency of the prices."""

    input: Decimal = Decimal(0)
    cached: Decimal = Decimal(0)
    cache_write: Decimal = Decimal(0)
    output: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        """All kinds together."""
        return self.input + self.cached + self.cache_write + self.output

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.input + other.input,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.output + other.output,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of each kind cost; tokens read from a cache or written to it cost as input where None."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    def cost(self, usage: Usage) -> Cost:
        """What this usage costs. Cached tokens are part of the prompt's, thoughts are part of the completion's."""
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        plain = max(0, usage.prompt_tokens - cached - written)
        return Cost(
            self.input * plain / _MILLION,
            (self.input if self.cached is None else self.cached) * cached / _MILLION,
            (self.input if self.cache_write is None else self.cache_write) * written / _MILLION,
            self.output * usage.completion_tokens / _MILLION,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """An operator's prices, by handle, or by what handles begin with where the name ends with `*`."""

    currency: str
    by_name: Mapping[str, Price]

    def of(self, handle: str) -> Price | None:
        """The price of this model: its own, else that of the longest beginning that fits; None where nothing fits."""
        if handle in self.by_name:
            return self.by_name[handle]
        fitting = [name for name in self.by_name if name.endswith("*") and handle.startswith(name[:-1])]
        return self.by_name[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger. `cost` is None where none of its models has a price; `unpriced_tokens` are not in it."""

    key: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost: Cost | None = None
    unpriced_tokens: int = 0


def settle(entries: Iterable[Entry], prices: Prices | None) -> list[Line]:
    """The lines of the ledger: entries of one key together, with what they cost. The order of the keys is kept."""
    lines: dict[str | None, Line] = {}
    for entry in entries:
        lines[entry.key] = _with(lines.get(entry.key, Line(entry.key)), entry, prices)
    return list(lines.values())


def total(lines: Sequence[Line]) -> Line:
    """All lines together."""
    costs = [line.cost for line in lines if line.cost]
    return Line(
        None,
        sum((line.usage for line in lines), Usage()),
        sum(costs, Cost()) if costs else None,
        sum(line.unpriced_tokens for line in lines),
    )


def _with(line: Line, entry: Entry, prices: Prices | None) -> Line:
    price = prices.of(entry.model) if prices else None
    cost = line.cost
    if price:
        cost = (cost or Cost()) + price.cost(entry.usage)
    unpriced = 0 if price else entry.usage.total_tokens
    return Line(line.key, line.usage + entry.usage, cost, line.unpriced_tokens + unpriced)


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens may be used from one midnight (UTC) to the next, and how many were; `resets_at` in microseconds."""

    limit: int
    used: int
    resets_at: int

    def is_spent(self, percent: int = 100) -> bool:
        """Whether this share of it is used up."""
        return self.used * 100 >= self.limit * percent


def day_of(micros: int) -> int:
    """The moment at which this moment's day began, UTC."""
    return micros - micros % DAY
