"""Kills, freezes and many clients at once.

No acknowledged change is lost or done twice, and every agent still answers.
"""

from pathlib import Path

import pytest

from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.support.crash import Size, run_campaign
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks"),
]


# The campaign checks its results. The test only checks that the campaign did something.
@pytest.mark.parametrize(
    "size", short_and_long(Size(kills=1, agents=4), Size(kills=100, agents=32))
)
async def test_a_server_that_is_killed_in_the_middle_of_turns_loses_nothing_it_acknowledged(
    tmp_path: Path, size: Size, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, size)
    print(report)
    record_property("kills", report.kills)
    record_property("turns", report.turns)
    assert report.outcomes["broken"] >= report.kills >= size.kills
    assert report.answered > 0
    assert report.jobs > 0
    assert report.transcripts > report.kills


@pytest.mark.parametrize(
    "size",
    short_and_long(
        Size(turns=12, kills=1, every=0.8, servers=2, agents=6, clients=4, hurries=True),
        Size(turns=1_000, kills=10, every=5, servers=2, agents=32, clients=16),
    ),
)
async def test_servers_of_which_one_is_killed_again_and_again_lose_no_turn_and_no_job(
    tmp_path: Path, size: Size, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, size)
    print(report)
    record_property("kills", report.kills)
    record_property("turns", report.turns)
    assert report.outcomes["broken"] >= report.kills >= size.kills
    assert report.interrupted == 0
    assert report.answered > 5


@pytest.mark.parametrize(
    ("turns", "agents", "clients"), short_and_long((30, 5, 12), (1_000, 20, 50))
)
async def test_a_crowd_of_clients_loses_no_turn_and_no_edit(
    tmp_path: Path, turns: int, agents: int, clients: int, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, Size(turns=turns, agents=agents, clients=clients))
    print(report)
    record_property("turns", report.turns)
    assert report.outcomes["busy"] > 0
    assert report.answered == report.turns >= turns
