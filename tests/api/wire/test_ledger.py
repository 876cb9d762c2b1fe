from decimal import Decimal

from ricordo.api.wire.ledger import BudgetShape, LedgerShape, budget_to_wire, ledger_to_wire
from ricordo.domain.ledger import DAY, Budget, Cost, Line
from ricordo.domain.usage import Usage
from tests.api.wire.fits import require_fits
from tests.support.clock import START

LINES = [Line("a", Usage(10, 5, 3, None, 1), Cost(Decimal("0.1"), output=Decimal("0.0000004")), 2), Line(None)]


def test_a_ledger_shows_its_first_lines_and_the_sum_of_all() -> None:
    wire = ledger_to_wire(LINES, group_by="user", since=START, until=START + DAY, currency="USD", most=1)
    require_fits(LedgerShape, wire)
    assert [line["key"] for line in wire["lines"]] == ["a"]
    assert wire["lines"][0]["cost"] == {"input": 0.1, "cached": 0.0, "cache_write": 0.0, "output": 0.0, "total": 0.1}
    assert (wire["total"]["total_tokens"], wire["total"]["unpriced_tokens"]) == (15, 2)
    assert (wire["since"], wire["until"]) == ("2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z")


def test_an_empty_ledger_without_prices_fits_its_shape() -> None:
    wire = ledger_to_wire([], group_by="day", since=0, until=1, currency=None, most=5)
    require_fits(LedgerShape, wire)
    assert (wire["lines"], wire["total"]["cost"], wire["total"]["unpriced_tokens"]) == ([], None, None)


def test_a_budget_that_is_overdrawn_leaves_nothing() -> None:
    wire = budget_to_wire(Budget(100, 130, START))
    require_fits(BudgetShape, wire)
    assert (wire["used_tokens"], wire["remaining_tokens"]) == (130, 0)
    require_fits(BudgetShape, budget_to_wire(None))
