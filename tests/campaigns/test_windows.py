"""Turns of random sizes against random windows: no turn ends with a request that is too long."""

from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.windows import run_campaign


@pytest.mark.campaign
@pytest.mark.parametrize("turns", short_and_long(60, 10_000))
async def test_no_window_is_too_small_for_any_turn_and_recall_finds_what_left_it(tmp_path: Path, turns: int) -> None:
    report = await run_campaign(tmp_path, turns=turns, seed=5)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.turns == turns
    assert report.compactions > turns // 6
    assert report.evicted > report.compactions
    assert report.found > turns
