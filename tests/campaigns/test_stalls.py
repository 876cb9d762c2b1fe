"""Attacks of one client, one upload or one model.

Meanwhile another client is answered, and memory stays bounded. `attacks.py` has the table of
attacks, each of which checks the attacker's response. The short form shares one server among some
attacks. The long form sends more, and requires answers within 50 ms.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.campaigns.attacks import (
    ATTACKS,
    Attack,
    a_huge_answer,
    a_pack_that_unpacks_to_much,
    clients_that_leave_in_the_middle,
    fences_in_an_answer,
    json_that_unfolds_to_much,
    large_bodies_at_once,
    long_markdown,
    searches_of_one_client,
)
from tests.support.attacked_server import AttackedServer, attacked_server, probed
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        not CAN_FORK or sys.platform != "linux", reason="a forked server, and Linux's /proc"
    ),
]
MOST_MB = 200  # Memory above that of a new server.
MOST_MS = 50
# Milliseconds that other requests may wait during these attacks. In the first, one call decodes
# many bytes. In the second, many requests arrive at once and start before the next request.
SLOWER = {large_bodies_at_once: 500, searches_of_one_client: 500}


# The attacks that take most memory have a separate server, since a process keeps some of the memory
# that others used.
ALONE = (large_bodies_at_once, a_pack_that_unpacks_to_much)
TOGETHER = tuple(attack for attack in ATTACKS if attack not in ALONE)
# The limits of each attack are tested beside the code that enforces them. Here the tests show that
# others are served.
IN_THE_SUITE = (
    fences_in_an_answer,
    a_huge_answer,
    json_that_unfolds_to_much,
    clients_that_leave_in_the_middle,
    long_markdown,
)


@pytest.mark.parametrize(
    "attacks",
    [
        pytest.param(IN_THE_SUITE, id="some"),
        pytest.param(TOGETHER, id="most", marks=pytest.mark.soak),
        *(pytest.param((attack,), id=attack.__name__, marks=pytest.mark.soak) for attack in ALONE),
    ],
)
async def test_others_are_served_in_the_middle_of(
    attacks: tuple[Attack, ...], helper: Helper, tmp_path: Path
) -> None:
    async with attacked_server(helper, tmp_path, client_timeout=0.5) as server:
        async with probed(server):
            for attack in attacks:
                await attack(server)
                assert server.most_added_mb <= MOST_MB, attack.__name__
        assert max(server.probe.milliseconds) < float("inf")


@pytest.fixture
async def server(helper: Helper, tmp_path: Path) -> AsyncIterator[AttackedServer]:
    async with attacked_server(helper, tmp_path) as opened:
        opened.is_long = True
        yield opened


@pytest.mark.soak
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_others_wait_no_longer_than_50_ms_in_the_middle_of(
    server: AttackedServer, attack: Attack
) -> None:
    async with probed(server):
        await asyncio.sleep(1)
    idle = server.probe.p99  # Delays that come from other work on the machine.
    async with probed(server):
        for _ in range(3):
            await attack(server)
            await asyncio.sleep(0.5)
    told = (
        f"p99 {server.probe.p99:.1f} ms of {len(server.probe.milliseconds)}, without an attack "
        f"{idle:.1f}"
    )
    print(f"{told}; {server.most_added_mb} MB more at most")
    assert server.most_added_mb <= MOST_MB
    assert server.probe.p99 <= SLOWER.get(attack, MOST_MS) + idle, told
