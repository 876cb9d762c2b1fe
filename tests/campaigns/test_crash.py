"""Kills at random points of turns: nothing acknowledged is lost, and every agent still answers."""

from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.crash import run_campaign
from tests.support.server_process import CAN_FORK


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
@pytest.mark.parametrize("kills", short_and_long(7, 300))
def test_a_server_that_is_killed_in_the_middle_of_turns_loses_nothing_it_acknowledged(
    tmp_path: Path, kills: int
) -> None:
    report = run_campaign(tmp_path, kills=kills)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.broken >= report.kills >= kills
    assert report.answered > 0
    assert report.transcripts > report.kills
