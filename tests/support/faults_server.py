"""Real kills for the fault campaign: a server process with agents of every type gets SIGKILL in the middle of turns and approvals.

`run_kills(folder, kills=30)` raises AssertionError with the seed and what it found, or returns how many requests a kill cut off.
On PostgreSQL a killed server's leases would hold its threads for half a minute; the campaign lets them run out at once.
"""

import random
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.support import postgres
from tests.support.cluster_server import Tables
from tests.support.crash import listening
from tests.support.faults_cast import GATE, TOOLS, TYPES
from tests.support.faults_model import FaultyModel
from tests.support.server_process import ServerProcess

_PLANS = ("", "ring", "insert+ring/archive", "guarded", "guarded+guarded", "nap+nap/insert", "hang")
_LONGEST = 0.25  # seconds from a request to its kill


class KilledPlugin:
    """Brings the campaign's tools into the server."""

    def tools(self) -> Any:
        """The tools."""
        return TOOLS


plugin = KilledPlugin()


@dataclass
class Killed:
    """What was done: kills, requests that one cut off, requests that the provider got and checked."""

    seed: int
    kills: int
    broken: int
    requests: int


@dataclass
class _Killing:
    server: ServerProcess
    http: httpx2.Client
    luck: random.Random
    shared: Tables | None = None
    said: int = 0
    broken: int = 0
    wrong: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    def once(self, agent: str) -> None:
        """Kill the server while it answers, start it again, and see that the agent answers."""
        plan = self.luck.choice(_PLANS)
        talking = threading.Thread(target=self._cut_off, args=(agent, plan))
        talking.start()
        time.sleep(self.luck.uniform(0.01, _LONGEST))
        self.server.kill()
        talking.join(30)
        GATE.open()
        if self.shared:
            self.shared.execute("UPDATE runs SET lease_expires_at = 0 WHERE ended_at IS NULL")
        self.server.start()
        if self.http.get("/v1/runs/", params={"active": True}).json():
            self.wrong.append(f"{plan}: runs are open after a restart")
        self._deny(agent)
        told = self._send(agent, "")
        if f"Done say-k{self.said:05d}-1." not in told.text:
            self.wrong.append(f"{plan}: the next message is answered by {told.status_code} {told.text[:400]}")

    def _cut_off(self, agent: str, plan: str) -> None:
        try:
            told = self._send(agent, plan)
            while told.status_code == 200 and "approval_request_message" in told.text:
                told = self.http.post(f"/v1/agents/{agent}/messages", json={"messages": [self._approval(told.json())]})
        except httpx2.TransportError:
            self.broken += 1

    def _approval(self, answer: dict[str, Any]) -> dict[str, Any]:
        asked = next(one for one in answer["messages"] if one["message_type"] == "approval_request_message")
        approves = self.luck.random() < 0.7
        return {"type": "approval", "approve": approves, "approval_request_id": asked["id"], "reason": "Because."}

    def _deny(self, agent: str) -> None:
        """The way out where calls wait for somebody who is gone."""
        with suppress(httpx2.TransportError):
            self.http.post(f"/v1/agents/{agent}/messages/cancel", json={})

    def _send(self, agent: str, plan: str) -> httpx2.Response:
        self.said += 1
        token = f"say-k{self.said:05d}-1"
        message = {"role": "user", "content": f"{token} {plan}".strip(), "otid": f"otid-{token}"}
        response = self.http.post(f"/v1/agents/{agent}/messages", json={"messages": [message]})
        if response.status_code == 200:
            self.acknowledged.append(f"otid-{token}")
        return response


def run_kills(folder: Path, *, kills: int, seed: int | None = None, database: str = "sqlite") -> Killed:
    """Kill a real server this many times, on SQLite or "postgresql"."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    model = FaultyModel(windows={"scripted-large": 120_000})
    with ExitStack() as stack:
        address = stack.enter_context(listening(model.answer))
        environment = {"OPENAI_API_KEY": "campaign", "OPENAI_BASE_URL": address}
        shared: Tables | None = None
        if database == "postgresql":
            url = postgres.server().new_database()
            stack.callback(postgres.server().drop, url)
            shared = stack.enter_context(closing(Tables(url)))
            environment["RICORDO_DATABASE_URL"] = url
        server = stack.enter_context(ServerProcess(folder, environment, plugin=f"{__name__}:plugin"))
        server.start()
        http = stack.enter_context(httpx2.Client(base_url=server.url, timeout=30, trust_env=False))
        killing = _Killing(server, http, random.Random(seed), shared)  # noqa: S311
        agents = [_agent(http, kind) for kind in TYPES]
        for _ in range(kills):
            killing.once(killing.luck.choice(agents))
        code = server.stop()
        wrong = [*killing.wrong, *model.faults, *([f"the server ended with {code}"] if code else [])]
        tables = shared or stack.enter_context(closing(sqlite3.connect(server.database)))
        wrong += _lost(tables, killing.acknowledged)
    assert not wrong, f"seed {seed}: {len(wrong)} wrong:\n" + "\n".join(wrong[:12])
    return Killed(seed, kills, killing.broken, model.count)


def _agent(http: httpx2.Client, kind: str) -> str:
    tools = [tool.name for tool in TOOLS] + ["memory_insert", "archival_memory_insert"]
    body = {
        "agent_type": kind,
        "model": "openai/scripted-large",
        "memory_blocks": [{"label": "notes", "value": "Begin."}],
        "tools": [*tools, *(["send_message"] if kind != "letta_v1_agent" else [])],
        "tool_rules": [{"type": "requires_approval", "tool_name": "guarded"}],
    }
    response = http.post("/v1/agents/", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def _lost(tables: sqlite3.Connection | Tables, acknowledged: list[str]) -> list[str]:
    stored = [otid for (otid,) in tables.execute("SELECT otid FROM messages WHERE otid IS NOT NULL").fetchall()]
    ((still_open,),) = tables.execute("SELECT count(*) FROM runs WHERE ended_at IS NULL").fetchall()
    wrong = [f"{otid} is stored {stored.count(otid)} times" for otid in acknowledged if stored.count(otid) != 1]
    return wrong + ([f"{still_open} runs are open"] if still_open else [])
