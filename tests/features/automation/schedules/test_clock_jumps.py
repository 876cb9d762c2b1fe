"""A server whose clock jumps ahead by a year and back.

Turns, leases, jobs and schedules continue.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ricordo.background import worker as working_jobs
from ricordo.background.worker import Pace
from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.job import Job
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations, messages, runs, steps
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.features.automation.schedules.test_sending import (
    HOURLY,
    WORDS,
    new_agent,
    plan,
    sent_otids,
)
from tests.seams.http import ok
from tests.seams.server import Gate, ServerInThread, serving
from tests.seams.waiting import wait_for

YEAR = 366 * DAY
STAMPS = {
    conversations: ("last_message_at", "updated_at"),
    job_rows: ("created_at", "started_at", "ended_at", "heartbeat_at"),
    messages: ("created_at",),
    runs: ("created_at", "ended_at", "lease_expires_at"),
    steps: ("created_at",),
}


class JumpingTime:
    """The module `time` for the server's clock, which is ahead by some microseconds."""

    ahead = 0

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns() + self.ahead * 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> JumpingTime:
    clock = JumpingTime()
    monkeypatch.setattr("ricordo.domain.clock.time", clock)
    return clock


@pytest.fixture
def jumping_server(
    jumping: JumpingTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerInThread]:
    del jumping  # the fixture sets the clock before the server starts
    monkeypatch.setattr(
        working_jobs, "Pace", partial(Pace, poll=0.05, beat=0.1, sweep=0.5, mend=0.2)
    )
    with serving(tmp_path) as server:
        yield server


def stamps_ahead(tx: Transaction) -> list[str]:
    """Return the columns with a time more than a day ahead, except leases of ended turns."""
    limit, ahead = time.time_ns() // 1000 + DAY, list[str]()
    for table, names in STAMPS.items():
        for name in names:
            is_ahead = table.c[name] > limit
            if name == "lease_expires_at":
                is_ahead &= runs.c.ended_at.is_(None)
            ahead += [f"{table.name}.{name}"] * len(
                tx.all(select(table.c.seq).where(is_ahead).limit(1))
            )
    return ahead


def overdue_job_kinds(tx: Transaction) -> list[str]:
    """Return the kinds of jobs that should have run; a periodic one may be running."""
    now = time.time_ns() // 1000
    late = job_rows.c.status.in_(["waiting", "running"]) & (
        job_rows.c.not_before < now - 2 * SECOND
    )
    return [row.kind for row in tx.all(select(job_rows.c.kind).where(late))]


def test_a_server_goes_on_after_its_clock_jumped_ahead_by_a_year_and_back(
    jumping: JumpingTime, jumping_server: ServerInThread
) -> None:
    server = jumping_server
    with server.http() as http:
        client = server.client()
        agent, other = new_agent(client), new_agent(client)
        hourly = plan(client, agent, HOURLY)

        jumping.ahead = YEAR
        server.says("Watered.")
        wait_for(lambda: sent_otids(client, agent))
        ok(http.post(f"/v1/agents/{agent}/archival-memory", json={"text": "Roses need water."}))
        gate = Gate(server)
        server.answers_with(gate)
        body = {
            "messages": [{"role": "user", "content": "Wait."}],
            "background": True,
            "streaming": True,
        }
        talk = ok(http.post("/v1/conversations/", params={"agent_id": other}, json={}))["id"]
        with http.stream("POST", f"/v1/conversations/{talk}/messages", json=body) as held:
            gate.wait()
            assert "messages.created_at" in server.read(stamps_ahead)

            jumping.ahead = 0
            wait_for(lambda: server.read(stamps_ahead) == [])
            gate.open()
            assert held.status_code == 200
            held.read()

        async def here(_request: ModelRequest) -> str:
            return "Here."

        server.answers_with(here)

        for path in (f"/v1/conversations/{talk}/messages", f"/v1/agents/{agent}/messages"):
            sent = {"messages": [{"role": "user", "content": "Are you there?"}], "streaming": False}
            assert "Here." in http.post(path, json=sent).text
            listed = ok(http.get(path, params={"order": "asc", "limit": 100}))
            assert any("Are you there?" in str(one) for one in listed[-4:]), (
                "the newest message must be last"
            )
        # The job runs every ten minutes.
        server.write(
            lambda tx: jobs.add(tx, Job("schedules.take_up", LOCAL_ORGANIZATION, {}, key="at once"))
        )
        wait_for(
            lambda: next_time(http.get(f"/v1/agents/{agent}/schedule/{hourly}").json()) < soon()
        )
        count = len(sent_otids(client, agent))
        plan(client, agent, {"scheduled_at": time.time() * 1000 + 200})
        wait_for(lambda: len(sent_otids(client, agent)) == count + 1)
        wait_for(lambda: server.read(overdue_job_kinds) == [])
        assert ok(http.get("/v1/health/ready")) is not None
        assert server.read(stamps_ahead) == []
        assert WORDS in str(ok(http.get(f"/v1/agents/{agent}/messages", params={"limit": 100})))


def next_time(schedule: Any) -> datetime:
    return datetime.fromisoformat(schedule["next_scheduled_time"].replace("Z", "+00:00"))


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1, minutes=1)
