"""Fifty clients, twenty agents, one server process: busy is the only refusal, and nothing is lost or done twice."""

from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.concurrency import run_campaign
from tests.support.server_process import CAN_FORK


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
@pytest.mark.parametrize("turns", short_and_long(120, 1_000))
async def test_a_crowd_of_clients_loses_no_turn_and_no_edit(tmp_path: Path, turns: int) -> None:
    report = await run_campaign(tmp_path, clients=50, agents=20, turns=turns)
    print(report)
    assert report.busy > 0
