"""Turns of random sizes against random windows: nothing too long is the last word. `bench/campaigns.py` has the long form."""

from pathlib import Path

import pytest

from tests.support.windows import run_campaign


@pytest.mark.campaign
async def test_no_window_is_too_small_for_any_turn_and_recall_finds_what_left_it(tmp_path: Path) -> None:
    report = await run_campaign(tmp_path, turns=60, seed=5)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.turns == 60
    assert report.compactions > 10
    assert report.evicted > report.compactions
    assert report.found > 60
