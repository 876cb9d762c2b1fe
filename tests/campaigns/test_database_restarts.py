"""PostgreSQL crashes and recovers during turns. The server continues, and nothing is lost.

`tests/features/operations/admin/test_outages.py` has the short form, in which connections are cut.
"""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from tests.campaigns.sizes import RecordProperty
from tests.seams.http import ok
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support import postgres

_AGENTS = 4
_BETWEEN = 12  # acknowledged turns between two crashes
# Acknowledged writes are in the write-ahead log, as with an operator's settings.
_SETTINGS = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"}


@pytest.fixture
def database() -> Iterator[postgres.Server]:
    made = postgres.Server(_SETTINGS)
    yield made
    made.stop()


class Talker(threading.Thread):
    """Sends numbered messages to one agent, and keeps the numbers that were answered."""

    def __init__(self, server: ServerInThread, agent: str, stops: threading.Event) -> None:
        super().__init__()
        self.agent = agent
        self.answered: list[int] = []
        self.sent = 0
        self._server = server
        self._stops = stops

    def run(self) -> None:
        with self._server.http() as http:
            while not self._stops.is_set():
                self.sent += 1
                answer = http.post(
                    f"/v1/agents/{self.agent}/messages", json={"input": f"Message {self.sent}"}
                )
                assert answer.status_code in (200, 409, 503), answer.text
                if answer.status_code == 200 and '"ok"' in answer.text:
                    self.answered.append(self.sent)
                elif answer.status_code != 200:
                    # The client waits, as `Retry-After` asks, but for a shorter time.
                    time.sleep(0.05)


def numbers_in(http: httpx2.Client, agent: str) -> list[int]:
    """Return the numbers of all messages of this agent's talk, in order."""
    numbers: list[int] = []
    after = None
    while True:
        query = {"limit": 200, "order": "asc", **({"after": after} if after else {})}
        page = ok(http.get(f"/v1/agents/{agent}/messages", params=query))
        if not page:
            return numbers
        after = page[-1]["id"]
        texts = [str(one["content"]) for one in page if one["message_type"] == "user_message"]
        numbers += [int(text.split()[-1]) for text in texts if text.startswith("Message ")]


@pytest.mark.soak
@pytest.mark.campaign
@pytest.mark.parametrize("crashes", [20])
def test_no_turn_is_lost_or_doubled_by_crashes_of_postgresql(
    crashes: int, database: postgres.Server, tmp_path: Path, record_property: RecordProperty
) -> None:
    url = SecretStr(database.new_database())
    with serving(tmp_path, database_url=url, database_connections=4) as server:
        with server.http() as http:
            agents = [
                ok(http.post("/v1/agents/", json={"model": MODEL}))["id"] for _ in range(_AGENTS)
            ]
        stops = threading.Event()
        talkers = [Talker(server, agent, stops) for agent in agents]
        for talker in talkers:
            talker.start()

        def answered() -> int:
            return sum(len(talker.answered) for talker in talkers)

        def has_answered(enough: int) -> bool:
            return answered() >= enough

        try:
            for _ in range(crashes):
                enough = answered() + _BETWEEN
                wait_for(partial(has_answered, enough), "turns do not go on")
                database.crash_and_restart()
            enough = answered() + _BETWEEN
            wait_for(partial(has_answered, enough), "turns do not go on")
        finally:
            stops.set()
            for talker in talkers:
                talker.join(LIMIT)
        with server.http() as http:
            for talker in talkers:
                held = numbers_in(http, talker.agent)
                assert len(held) == len(set(held)), "a message is there twice"
                assert set(talker.answered) <= set(held), "an answered message is lost"
                again = ok(
                    http.post(f"/v1/agents/{talker.agent}/messages", json={"input": "And now?"})
                )
                assert "ok" in str(again["messages"])
        server.provoked()
    record_property("turns", answered())
