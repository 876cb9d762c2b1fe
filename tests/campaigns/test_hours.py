"""A server through simulated hours.

Memory and open files do not grow, and files grow only by stored data. The test moves its clock
ahead by an hour at a time. In each hour new agents talk, edit their memory and are searched, and
the agents of three hours ago are deleted. A schedule sends a message each hour.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from letta_client import Letta

from ricordo.background import worker as working_jobs
from ricordo.background.worker import Pace
from ricordo.domain.clock import SECOND
from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line
from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.features.automation.schedules.test_clock_jumps import JumpingTime, overdue_job_kinds
from tests.features.automation.schedules.test_sending import HOURLY, WORDS, plan
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, call, serving
from tests.seams.waiting import wait_for

_HOUR = 3600 * SECOND
_KEPT_HOURS = 3
_MORE_MB = 40  # Megabytes of memory that Python may release late.
_MORE_HANDLES = 8
# Allowed growth in an hour: versions of deleted agents, jobs and the audit log are kept for long.
_KEPT_KB = 40
_LOG_MB = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of the process and its database at the end of an hour.

    `database` is the bytes of the pages in use. The file itself grows in steps, and by more if the
    pages of deleted agents are not yet free.
    """

    memory: float
    handles: int
    database: int
    log: int


def sizes(folder: Path) -> Sizes:
    path = folder / "ricordo.db"
    with closing(sqlite3.connect(path)) as connection:
        pages, unused, page_size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return Sizes(
        psutil.Process().memory_info().rss / 1e6,
        len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - the names alone
        (pages - unused) * page_size,
        path.with_name("ricordo.db-wal").stat().st_size,
    )


async def answer(request: ModelRequest) -> Line:
    """Edit memory if the person asks for it; otherwise answer with text."""
    last = request.messages[-1]
    if last.role == "user" and "edit" in last.text:
        return call("memory_insert", label="human", new_string=last.text)
    return f"You said: {last.text[:40]}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> JumpingTime:
    clock = JumpingTime()
    monkeypatch.setattr("ricordo.domain.clock.time", clock)
    return clock


@pytest.fixture
def server(
    clock: JumpingTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerInThread]:
    del clock  # the fixture sets the clock before the server starts
    pace = partial(Pace, poll=0.05, beat=0.1, sweep=0.5, mend=0.2)
    monkeypatch.setattr(working_jobs, "Pace", pace)
    with serving(tmp_path) as running:
        running.answers_with(answer)
        yield running


def spend_an_hour(client: Letta, hour: int, turns: int) -> str:
    """Let a new agent talk, edit its memory and be searched; returns its id."""
    block = {"label": "human", "value": "Her name is Ada."}
    agent = client.agents.create(model=MODEL, memory_blocks=[block]).id  # type: ignore[list-item]
    for number in range(turns):
        kind = ("hello", "edit", "search")[number % 3]
        text = f"{kind} {number} of hour {hour}: the tea was {hour * 7919 % 10_007}"
        client.agents.messages.create(agent, input=text)
    client.agents.passages.search(agent, query="tea")
    return agent


def sent(client: Letta, agent: str) -> int:
    """Return how often the conversation holds the schedule's message, on all pages."""
    listed = client.agents.messages.list(agent, order="asc")
    return sum(getattr(message, "content", "") == WORDS for message in listed)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's /proc")
@pytest.mark.parametrize(("hours", "turns"), short_and_long((6, 3), (72, 12)))
def test_after_simulated_hours_memory_and_open_files_are_what_they_were(
    hours: int,
    turns: int,
    server: ServerInThread,
    clock: JumpingTime,
    tmp_path: Path,
    record_property: RecordProperty,
) -> None:
    client = server.client()
    planned = client.agents.create(model=MODEL, include_base_tools=False).id
    plan(client, planned, HOURLY)
    agents: list[str] = []
    measured: list[Sizes] = []
    for hour in range(hours):
        agents.append(spend_an_hour(client, hour, turns))
        for old in agents[:-_KEPT_HOURS]:
            client.agents.delete(old)
            agents.remove(old)
        clock.ahead += _HOUR
        wait_for(lambda: server.read(overdue_job_kinds) == [])
        wait_for(lambda hour=hour: sent(client, planned) > hour)  # type: ignore[misc]
        measured.append(sizes(tmp_path))
    with server.http() as http:
        assert ok(http.get("/v1/health/ready")) is not None
    first, last = measured[max(_KEPT_HOURS, hours // 3)], measured[-1]
    assert last.handles <= first.handles + _MORE_HANDLES, measured
    passed = len(measured) - measured.index(first)
    assert last.database <= first.database + passed * _KEPT_KB * 1000, measured
    assert last.log <= _LOG_MB * 1e6, measured
    if hours > 6:
        assert last.memory <= first.memory + _MORE_MB, measured
    # The number of all turns replaces the recorded parameter, which counts the turns of one hour.
    record_property("turns", hours * turns)
