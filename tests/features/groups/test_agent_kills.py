"""Kills while agents send each other messages: none is lost or doubled, and no run stays open."""

import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from tests.features.groups.cast import ASYNC, WAITS, wait_for
from tests.features.groups.killed import MODEL
from tests.seams.http import ok
from tests.seams.server import LIMIT
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="the helper forks")


class Client:
    """Asks again, with the same otid, until there is an answer."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def agent(self, name: str, *tools: str) -> str:
        body = {"name": name, "model": MODEL, "tools": tools, "include_base_tools": False}
        return str(ok(self.http.post("/v1/agents/", json=body))["id"])

    def say(self, agent_id: str, text: str, otid: str) -> None:
        body = {"messages": [{"role": "user", "content": text, "otid": otid}]}
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            try:
                if self.http.post(f"/v1/agents/{agent_id}/messages", json=body).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"{otid} was never answered")

    def incoming(self, agent_id: str) -> Counter[str]:
        """The numbers that other agents sent to this one."""
        listed = ok(self.http.get(f"/v1/agents/{agent_id}/messages", params={"limit": 1000}))
        texts = [one["content"] for one in listed if one["message_type"] == "system_message"]
        return Counter(text.split()[-1] for text in texts if text.startswith("[Incoming message"))


@pytest.mark.parametrize("kills", [3, pytest.param(150, marks=pytest.mark.soak)])
def test_kills_lose_and_double_no_message_between_agents(kills: int, tmp_path: Path, helper: Helper) -> None:
    server = ServerProcess(helper, tmp_path, {"RICORDO_EMBEDDING": "none"}, "tests.features.groups.killed:plugin")
    server.start()
    try:
        with httpx2.Client(base_url=server.url, timeout=LIMIT, trust_env=False) as http:
            pass_on(Client(http), server, kills)
    finally:
        server.stop()


def pass_on(client: Client, server: ServerProcess, kills: int) -> None:
    """Let one agent send messages to another while the server is killed, and check what came of them."""
    chance = random.Random(kills)  # noqa: S311 - moments
    ann, ben = client.agent("Ann", ASYNC, WAITS), client.agent("Ben")
    for number in range(kills):
        tool = WAITS if number % 2 else ASYNC
        given = (ann, f"{tool} {ben} Number {number}", f"otid-{number}")
        said = threading.Thread(target=client.say, args=given)
        said.start()
        time.sleep(chance.uniform(0.01, 0.3))
        server.kill()
        server.start()
        said.join(LIMIT)
    expected = {str(number) for number in range(0, kills, 2)}
    wait_for(lambda: client.incoming(ben).keys() >= expected)
    wait_for(lambda: not ok(client.http.get("/v1/runs/", params={"active": True})))
    assert set(client.incoming(ben).values()) == {1}
