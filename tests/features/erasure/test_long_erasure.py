"""Forgetting somebody who said much: every transaction of it is short, so that others who write do not wait."""

from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.long_erasure import Size, erase

MOST_ROWS = 500


@pytest.mark.parametrize(
    "size", short_and_long(Size(messages=260, passages=260, agents=2, others=1), Size(messages=20_000, passages=20_000))
)
async def test_no_transaction_of_an_erasure_changes_more_than_five_hundred_rows(tmp_path: Path, size: Size) -> None:
    writes, left = await erase(tmp_path, size)
    assert left == 0
    assert len(writes) > 20
    assert max(rows for _, rows in writes) <= MOST_ROWS, writes
