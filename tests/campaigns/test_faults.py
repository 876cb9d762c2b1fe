"""Things go wrong at random awaits of turns: no agent is ever worse for it. The long form is in `bench/campaigns.py`."""

from pathlib import Path

import pytest

from tests.support.faults import run_campaign
from tests.support.faults_server import run_kills
from tests.support.server_process import CAN_FORK


@pytest.mark.campaign
async def test_after_any_fault_the_next_message_is_answered_and_nothing_is_lost(tmp_path: Path) -> None:
    report = await run_campaign(tmp_path, faults=10, seed=7)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.faults >= 10
    assert report.restarts > 0
    assert len(report.kinds) > 4
    assert report.requests > report.faults


@pytest.mark.campaign
async def test_the_same_holds_on_a_shared_database_whose_connections_break_and_whose_runs_others_take_over(
    tmp_path: Path,
) -> None:
    report = await run_campaign(tmp_path, faults=8, seed=3, database="postgresql")
    print(report)
    assert report.faults >= 8
    assert report.kinds.keys() & {"cut", "overtaken"}
    assert report.requests > report.faults


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
def test_a_server_that_is_killed_in_a_turn_or_an_approval_answers_the_next_message(tmp_path: Path) -> None:
    report = run_kills(tmp_path, kills=3, seed=3)
    print(report)
    assert report.requests >= 3
