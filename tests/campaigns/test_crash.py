"""Kills at random points of turns: nothing acknowledged is lost, and every agent answers on.

`bench/campaigns.py` has the long form.
"""

from pathlib import Path

import pytest

from tests.support.crash import run_campaign
from tests.support.server_process import CAN_FORK


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
def test_a_server_that_is_killed_in_the_middle_of_turns_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, kills=7)
    print(report)
    # The campaign itself checks everything; this is that it was one.
    assert report.broken >= report.kills
    assert report.answered > 0
    assert report.transcripts > report.kills
