"""What models cost: an operator's own list in the data folder. Ricordo brings none, since prices change.

currency = "USD"

["openai/gpt-4.1"]         # a handle, or the beginning of handles with * behind it
input = 2.00               # for a million tokens
cached = 0.50
output = 8.00
"""

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from ricordo.domain.ledger import Price, Prices
from ricordo.errors import Invalid, Unavailable

FILE = "prices.toml"  # in the data folder
_KINDS = ("input", "output", "cached", "cache_write")
_NEEDED = ("input", "output")


def read_prices(data_dir: Path) -> Prices | None:
    """The operator's prices; None where there is no such file. Raises Invalid with what to mend, Unavailable."""
    try:
        text = (data_dir / FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Invalid(f"{FILE} is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(f"{FILE} cannot be read: {error.strerror}. See to its permissions.") from error
    try:
        content = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, ArithmeticError) as error:
        raise Invalid(f"{FILE} is not valid TOML: {error}.") from None
    currency = content.pop("currency", None)
    if not isinstance(currency, str) or not currency.strip():
        raise Invalid(f'{FILE} does not say in which currency its prices are. Begin it with: currency = "USD"')
    return Prices(currency.strip(), {name: _price(name, kinds) for name, kinds in content.items()})


def _price(name: str, kinds: Any) -> Price:
    if not isinstance(kinds, dict):
        raise Invalid(f'In {FILE}, "{name}" is no table. Write ["{name}"] and below it input = … and output = …')
    if unknown := set(kinds) - set(_KINDS):
        raise Invalid(f'In {FILE}, ["{name}"] has {", ".join(sorted(unknown))}. Known are {", ".join(_KINDS)}.')
    if missing := [kind for kind in _NEEDED if kind not in kinds]:
        raise Invalid(f'In {FILE}, ["{name}"] lacks {" and ".join(missing)}.')
    return Price(**{kind: _amount(name, kind, amount) for kind, amount in kinds.items()})


def _amount(name: str, kind: str, amount: Any) -> Decimal:
    if (
        isinstance(amount, bool)
        or not isinstance(amount, int | Decimal)
        or not Decimal(amount).is_finite()
        or amount < 0
    ):
        raise Invalid(f'In {FILE}, {kind} of ["{name}"] is no price. Write a number, as 0.25, for a million tokens.')
    return Decimal(amount)
