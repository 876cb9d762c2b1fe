"""Counts of tokens."""

from ricordo.domain.usage import Usage


def test_usages_add_by_kind_and_unreported_stays_unreported() -> None:
    total = Usage(10, 5, cached_tokens=4) + Usage(20, 7, reasoning_tokens=3)
    assert total == Usage(30, 12, cached_tokens=4, cache_write_tokens=None, reasoning_tokens=3)
    assert total.total_tokens == 42
