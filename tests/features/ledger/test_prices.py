"""Prices that an operator wrote down: read as they are, and refused with a sentence where they cannot be."""

from decimal import Decimal
from pathlib import Path

import pytest

from ricordo.errors import Invalid
from ricordo.features.ledger.service import FILE, Price, read_prices

GOOD = """
currency = "USD"

["openai/gpt-4.1"]
input = 2
cached = 0.50
output = 8.00

["openai/*"]
input = 0.1
output = 0.2
cache_write = 0.3
"""


def written(folder: Path, text: str) -> Path:
    (folder / FILE).write_text(text)
    return folder


def test_without_a_file_there_are_no_prices(tmp_path: Path) -> None:
    assert read_prices(tmp_path) is None


def test_prices_are_read_exactly(tmp_path: Path) -> None:
    prices = read_prices(written(tmp_path, GOOD))
    assert prices is not None
    assert prices.currency == "USD"
    assert prices.of("openai/gpt-4.1") == Price(Decimal(2), Decimal("8.00"), Decimal("0.50"))
    assert prices.of("openai/o3") == Price(Decimal("0.1"), Decimal("0.2"), cache_write=Decimal("0.3"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('["a/b"]\ninput = 1\noutput = 1', "currency"),
        ('currency = 5\n["a/b"]\ninput = 1\noutput = 1', "currency"),
        ('currency = "USD"\n["a/b"]\ninput = 1', "lacks output"),
        ('currency = "USD"\n["a/b"]\ninput = 1\noutput = 1\nthinking = 2', "thinking"),
        ('currency = "USD"\n["a/b"]\ninput = -1\noutput = 1', "no price"),
        ('currency = "USD"\n["a/b"]\ninput = "1"\noutput = 1', "no price"),
        ('currency = "USD"\n["a/b"]\ninput = true\noutput = 1', "no price"),
        ('currency = "USD"\n["a/b"]\ninput = nan\noutput = 1', "no price"),
        ('currency = "USD"\n"a/b" = 5', "no table"),
        ("currency = ", "not valid TOML"),
    ],
)
def test_what_is_no_price_is_refused_with_what_to_do(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        read_prices(written(tmp_path, text))


def test_a_file_of_other_signs_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="UTF-8"):
        read_prices(tmp_path)
