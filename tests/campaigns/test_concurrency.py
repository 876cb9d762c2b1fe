"""Fifty clients, twenty agents, one server process: busy is the only refusal, and nothing is lost or done twice.

`bench/campaigns.py` has the long form.
"""

from pathlib import Path

import pytest

from tests.support.concurrency import run_campaign
from tests.support.server_process import CAN_FORK


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
async def test_a_crowd_of_clients_loses_no_turn_and_no_edit(tmp_path: Path) -> None:
    report = await run_campaign(tmp_path, clients=50, agents=20, turns=120)
    print(report)
    assert report.busy > 0
