"""The ledger's arithmetic: prices by kind of token, lines by key, budgets."""

from decimal import Decimal

import pytest

from ricordo.domain.clock import DAY, day_of
from ricordo.domain.usage import Budget, Usage
from ricordo.features.ledger.queries import LedgerEntry
from ricordo.features.ledger.service import Cost, LedgerLine, Price, Prices, settle, total
from tests.seams.stores import START

DEAR = Price(Decimal(2), Decimal(8), cached=Decimal("0.5"), cache_write=Decimal("2.5"))


def test_each_kind_of_token_has_its_price_and_none_is_counted_twice() -> None:
    usage = Usage(1_000_000, 500_000, cached_tokens=600_000, cache_write_tokens=100_000, reasoning_tokens=400_000)
    cost = DEAR.cost(usage)
    assert cost == Cost(Decimal("0.6"), Decimal("0.3"), Decimal("0.25"), Decimal(4))
    assert cost.total == Decimal("5.15")


def test_a_cache_without_a_price_costs_as_input() -> None:
    cost = Price(Decimal(2), Decimal(8)).cost(Usage(1_000_000, 0, cached_tokens=500_000, cache_write_tokens=250_000))
    assert cost.total == Decimal(2)


def test_a_provider_that_reports_more_cached_tokens_than_there_were_gives_no_negative_cost() -> None:
    assert DEAR.cost(Usage(10, 0, cached_tokens=20)).input == 0


@pytest.mark.parametrize(
    ("handle", "found"),
    [("openai/gpt-4.1", 1), ("openai/gpt-4.1-mini", 2), ("openai/o3", 3), ("openai", None), ("anthropic/claude", None)],
)
def test_a_price_is_found_by_handle_or_by_the_longest_beginning(handle: str, found: int | None) -> None:
    prices = Prices(
        "USD",
        {
            "openai/gpt-4.1": Price(Decimal(1), Decimal(1)),
            "openai/gpt*": Price(Decimal(2), Decimal(1)),
            "openai/*": Price(Decimal(3), Decimal(1)),
        },
    )
    price = prices.of(handle)
    assert (price.input if price else None) == found


def test_a_handle_is_no_beginning_of_another() -> None:
    assert Prices("USD", {"openai/gpt-4.1": DEAR}).of("openai/gpt-4.1-mini") is None


def test_lines_hold_all_models_of_a_key_and_say_what_has_no_price() -> None:
    prices = Prices("EUR", {"a/*": Price(Decimal(1), Decimal(1))})
    million = Usage(1_000_000, 0)
    entries = [
        LedgerEntry("x", "a/1", million),
        LedgerEntry("x", "b/1", Usage(5, 2)),
        LedgerEntry("y", "b/1", Usage(1, 1)),
    ]
    lines = settle(entries, prices)
    assert [(line.key, line.usage.total_tokens, line.unpriced_tokens) for line in lines] == [
        ("x", 1_000_007, 7),
        ("y", 2, 2),
    ]
    assert [line.cost and line.cost.total for line in lines] == [1, None]
    everything = total(lines)
    assert (everything.usage.total_tokens, everything.unpriced_tokens) == (1_000_009, 9)
    assert everything.cost is not None
    assert everything.cost.total == 1


def test_without_prices_nothing_costs_anything() -> None:
    (line,) = settle([LedgerEntry("x", "a/1", Usage(5, 5))], None)
    assert line == LedgerLine("x", Usage(5, 5), None, 10)
    assert total([]).cost is None


def test_a_budget_is_spent_from_its_limit_on() -> None:
    assert [Budget(100, used, 0).is_spent() for used in (0, 99, 100, 101)] == [False, False, True, True]
    assert [Budget(100, used, 0).is_spent(80) for used in (79, 80)] == [False, True]


def test_days_begin_at_midnight() -> None:
    assert day_of(START) == day_of(START + DAY - 1) == START
    assert day_of(START - 1) == START - DAY
