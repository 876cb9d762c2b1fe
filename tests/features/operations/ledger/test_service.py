"""The ledger's arithmetic: prices by kind of token, lines by key, budgets."""

from decimal import Decimal
from pathlib import Path

import pytest

from ricordo.domain.usage import Usage
from ricordo.errors import Invalid
from ricordo.features.operations.ledger.service import (
    FILE,
    Cost,
    LedgerLine,
    Price,
    Prices,
    read_prices,
    settle,
    total,
)
from ricordo.storage.ledger import LedgerEntry

GOOD = """
currency = "USD"

["openai/gpt-4.1"]
input = 2
cached = 0.50
output = 8.00

["openai/gpt*"]
input = 0.1
output = 0.2

["openai/*"]
input = 3
output = 1
cache_write = 0.3
"""
DEAR = Price(Decimal(2), Decimal(8), cached=Decimal("0.5"), cache_write=Decimal("2.5"))


def test_each_token_is_priced_once_by_its_kind() -> None:
    usage = Usage(
        1_000_000,
        500_000,
        cached_tokens=600_000,
        cache_write_tokens=100_000,
        reasoning_tokens=400_000,
    )
    cost = DEAR.cost(usage)
    assert cost == Cost(Decimal("0.6"), Decimal("0.3"), Decimal("0.25"), Decimal(4))
    assert cost.total == Decimal("5.15")
    uncached = Price(Decimal(2), Decimal(8)).cost(
        Usage(1_000_000, 0, cached_tokens=500_000, cache_write_tokens=250_000)
    )
    assert uncached.total == Decimal(2)
    # A provider may report more cached tokens than there were.
    assert DEAR.cost(Usage(10, 0, cached_tokens=20)).input == 0


def test_prices_are_read_exactly_from_an_optional_file(
    tmp_path: Path,
) -> None:
    assert read_prices(tmp_path) is None
    (tmp_path / FILE).write_text(GOOD)
    prices = read_prices(tmp_path)
    assert prices.currency == "USD"
    own, group = (
        Price(Decimal(2), Decimal("8.00"), Decimal("0.50")),
        Price(Decimal("0.1"), Decimal("0.2")),
    )
    every = Price(Decimal(3), Decimal(1), cache_write=Decimal("0.3"))
    for handle, found in (
        ("openai/gpt-4.1", own),
        ("openai/gpt-4.1-mini", group),
        ("openai/o3", every),
        ("openai", None),
        ("anthropic/claude", None),
    ):
        assert prices.of(handle) == found, handle


def test_invalid_prices_are_refused_with_advice(tmp_path: Path) -> None:
    priced = 'currency = "USD"\n["a/b"]\n'
    for text, sentence in (
        ('["a/b"]\ninput = 1\noutput = 1', "currency"),
        ('currency = 5\n["a/b"]\ninput = 1\noutput = 1', "currency"),
        (f"{priced}input = 1", "lacks output"),
        (f"{priced}input = 1\noutput = 1\nthinking = 2", "thinking"),
        (f"{priced}input = -1\noutput = 1", "not a price"),
        (f'{priced}input = "1"\noutput = 1', "not a price"),
        (f"{priced}input = true\noutput = 1", "not a price"),
        (f"{priced}input = nan\noutput = 1", "not a price"),
        ('currency = "USD"\n"a/b" = 5', "not a table"),
        ("currency = ", "not valid TOML"),
    ):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(Invalid, match=sentence):
            read_prices(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="UTF-8"):
        read_prices(tmp_path)


def test_ledger_lines_combine_models_and_count_unpriced_tokens() -> None:
    prices = Prices("EUR", {"a/*": Price(Decimal(1), Decimal(1))})
    million = Usage(1_000_000, 0)
    entries = [
        LedgerEntry(key, model, usage)
        for key, model, usage in (
            ("x", "a/1", million),
            ("x", "b/1", Usage(5, 2)),
            ("y", "b/1", Usage(1, 1)),
        )
    ]
    lines = settle(entries, prices)
    short = [
        (one.key, one.usage.total_tokens, one.unpriced_tokens, one.cost and one.cost.total)
        for one in lines
    ]
    assert short == [("x", 1_000_007, 7, 1), ("y", 2, 2, None)]
    everything = total(lines)
    assert (everything.usage.total_tokens, everything.unpriced_tokens) == (1_000_009, 9)
    assert everything.cost.total == 1
    assert settle(entries[2:], None) == [LedgerLine("y", Usage(1, 1), None, 2)]
