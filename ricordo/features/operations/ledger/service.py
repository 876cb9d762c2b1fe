"""Costs of tokens: the operator's price list, and the ledger's lines with costs.

The price list is in the data folder, and Ricordo ships no prices. An example:

currency = "USD"

["openai/gpt-4.1"]         # a handle, or the beginning of handles with * behind it
input = 2.00               # for a million tokens
cached = 0.50
output = 8.00
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from operator import add
from pathlib import Path
from typing import Any

from ricordo.domain.usage import Usage
from ricordo.errors import Invalid, Unavailable
from ricordo.storage.ledger import LedgerEntry

_MILLION = 1_000_000
FILE = "prices.toml"  # in the data folder
_KINDS = ("input", "output", "cached", "cache_write")
_REQUIRED = ("input", "output")


@dataclass(frozen=True, slots=True)
class Cost:
    """Money by kind of token, in the currency of the prices."""

    input: Decimal = Decimal(0)
    cached: Decimal = Decimal(0)
    cache_write: Decimal = Decimal(0)
    output: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        return self.input + self.cached + self.cache_write + self.output

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million tokens, by kind.

    If there is no price for cached tokens, reading or writing them costs as much as input.
    """

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    def cost(self, usage: Usage) -> Cost:
        """Return the cost of this usage.

        Cached tokens are included in the prompt's tokens, and reasoning tokens in the completion's.

        Args:
            usage: The tokens of one model.
        """
        cached = usage.cached_tokens or 0
        written = usage.cache_write_tokens or 0
        if self.cached is None:
            cached_price = self.input
        else:
            cached_price = self.cached
        if self.cache_write is None:
            write_price = self.input
        else:
            write_price = self.cache_write
        plain = max(0, usage.prompt_tokens - cached - written)
        return Cost(
            input=self.input * plain / _MILLION,
            cached=cached_price * cached / _MILLION,
            cache_write=write_price * written / _MILLION,
            output=self.output * usage.completion_tokens / _MILLION,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """An operator's prices by handle.

    A name that ends with `*` applies to all handles that begin with the rest of the name.
    """

    currency: str
    by_name: Mapping[str, Price]

    def of(self, handle: str) -> Price | None:
        """Return the price of this model; None if there is none.

        A price for the handle itself takes precedence over the price for its longest matching
        beginning.

        Args:
            handle: The handle of the model, such as "openai/gpt-4o".
        """
        if handle in self.by_name:
            return self.by_name[handle]
        fitting = [
            name for name in self.by_name if name.endswith("*") and handle.startswith(name[:-1])
        ]
        if fitting:
            return self.by_name[max(fitting, key=len)]
        return None


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the ledger.

    `cost` is None if no model of the line has a price. `unpriced_tokens` are not included in the
    cost.
    """

    key: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost: Cost | None = None
    unpriced_tokens: int = 0


def settle(entries: Iterable[LedgerEntry], prices: Prices | None) -> list[LedgerLine]:
    """Return the lines of the ledger, one for each key, with costs.

    The order of the keys is kept.

    Args:
        entries: The entries; those with the same key are added.
        prices: The operator's prices; None: no line has a cost.
    """
    lines: dict[str | None, list[LedgerLine]] = {}
    for entry in entries:
        price = prices.of(entry.model) if prices else None
        cost = price.cost(entry.usage) if price else None
        unpriced = 0 if price else entry.usage.total_tokens
        line = LedgerLine(entry.key, entry.usage, cost, unpriced)
        lines.setdefault(entry.key, []).append(line)
    return [total(of_key, key) for key, of_key in lines.items()]


def total(lines: Sequence[LedgerLine], key: str | None = None) -> LedgerLine:
    """Return the sum of all lines.

    Args:
        lines: The lines. Tokens without a price stay counted as such.
        key: The key of the result.
    """
    costs = [line.cost for line in lines if line.cost]
    return LedgerLine(
        key,
        sum((line.usage for line in lines), Usage()),
        sum(costs, Cost()) if costs else None,
        sum(line.unpriced_tokens for line in lines),
    )


def read_prices(data_dir: Path) -> Prices | None:
    """Return the operator's prices; None without a price list.

    Args:
        data_dir: The server's data folder.

    Raises:
        Invalid: The list is wrong.
        Unavailable: The file cannot be read.
    """
    try:
        text = (data_dir / FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Invalid(f"{FILE} is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(
            f"{FILE} cannot be read: {error.strerror}. Check its permissions."
        ) from error
    try:
        content = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, ArithmeticError) as error:
        raise Invalid(f"{FILE} is not valid TOML: {error}.") from None
    currency = content.pop("currency", None)
    if not isinstance(currency, str) or not currency.strip():
        raise Invalid(f'{FILE} names no currency. Begin it with: currency = "USD"')
    return Prices(currency.strip(), {name: _price(name, kinds) for name, kinds in content.items()})


def _price(name: str, kinds: Any) -> Price:
    if not isinstance(kinds, dict):
        raise Invalid(
            f'In {FILE}, "{name}" is not a table. Write ["{name}"] and below it input = … and '
            "output = …"
        )
    if unknown := set(kinds) - set(_KINDS):
        raise Invalid(
            f'In {FILE}, ["{name}"] has {", ".join(sorted(unknown))}. Known are '
            f"{', '.join(_KINDS)}."
        )
    if missing := [kind for kind in _REQUIRED if kind not in kinds]:
        raise Invalid(f'In {FILE}, ["{name}"] lacks {" and ".join(missing)}.')
    return Price(**{kind: _amount(name, kind, amount) for kind, amount in kinds.items()})


def _amount(name: str, kind: str, amount: Any) -> Decimal:
    is_number = isinstance(amount, int | Decimal) and not isinstance(amount, bool)
    if not is_number or not Decimal(amount).is_finite() or amount < 0:
        raise Invalid(
            f'In {FILE}, {kind} of ["{name}"] is not a price. Write a number such as 0.25, the '
            "price of a million tokens."
        )
    return Decimal(amount)
