"""Things go wrong at random awaits of turns: no agent is ever worse for it. The long form is in `bench/campaigns.py`."""

from pathlib import Path

import pytest

from tests.support.faults import run_campaign


@pytest.mark.campaign
async def test_after_any_fault_the_next_message_is_answered_and_nothing_is_lost(tmp_path: Path) -> None:
    report = await run_campaign(tmp_path, faults=15, seed=7)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.faults >= 15
    assert report.restarts > 0
    assert len(report.kinds) > 4
    assert report.requests > report.faults
