"""Real kills for the fault campaign: a server process with agents of every type gets SIGKILL in the middle of turns and approvals.

`await run_kills(folder, kills=30)` raises AssertionError with the seed and what it found, or returns how many requests a kill cut
off. On PostgreSQL a killed server's leases would hold its conversations for half a minute; the campaign lets them run out at once.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2

from tests.support.crash_servers import CrashServer, Tables, opened_servers
from tests.support.faults_cast import TOOLS, TYPES
from tests.support.faults_model import FaultyModel
from tests.support.model_server import ModelServer

_PLANS = ("", "ring", "insert+ring/archive", "guarded", "guarded+guarded", "nap+nap/insert", "hang")
_LONGEST = 0.25  # seconds from a request to its kill


@dataclass
class _Killing:
    server: CrashServer
    tables: Tables
    http: httpx2.AsyncClient
    luck: random.Random
    said: int = 0
    broken: int = 0
    wrong: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    async def make_agent(self, kind: str) -> str:
        """An agent of this type with the campaign's tools, one of which needs approval."""
        names = [*(tool.name for tool in TOOLS), "memory_insert", "archival_memory_insert"]
        body = {
            "agent_type": kind,
            "model": "openai/scripted-large",
            "memory_blocks": [{"label": "notes", "value": "Begin."}],
            "tools": [*names, *(["send_message"] if kind != "letta_v1_agent" else [])],
            "tool_rules": [{"type": "requires_approval", "tool_name": "guarded"}],
        }
        response = await self.http.post("/v1/agents/", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    async def once(self, agent: str) -> None:
        """Kill the server while it answers, start it again, and see that the agent answers."""
        plan = self.luck.choice(_PLANS)
        talking = asyncio.create_task(self._cut_off(agent, plan))
        await asyncio.sleep(self.luck.uniform(0.01, _LONGEST))
        await asyncio.to_thread(self.server.kill)
        await asyncio.wait_for(talking, 30)
        if isinstance(self.tables.address, str):
            self.tables.rows("UPDATE runs SET lease_expires_at = 0 WHERE ended_at IS NULL")
        await asyncio.to_thread(self.server.start)
        if (await self.http.get("/v1/runs/", params={"active": True})).json():
            self.wrong.append(f"{plan}: runs are open after a restart")
        # The way out where calls wait for somebody who is gone.
        await self.http.post(f"/v1/agents/{agent}/messages/cancel", json={})
        told = await self._send(agent, "")
        if f"Done say-k{self.said:05d}-1." not in told.text:
            self.wrong.append(f"{plan}: the next message is answered by {told.status_code} {told.text[:400]}")

    async def _cut_off(self, agent: str, plan: str) -> None:
        try:
            told = await self._send(agent, plan)
            while told.status_code == 200 and "approval_request_message" in told.text:
                body = {"messages": [self._approval(told.json())]}
                told = await self.http.post(f"/v1/agents/{agent}/messages", json=body)
        except httpx2.TransportError:
            self.broken += 1

    def _approval(self, answer: dict[str, Any]) -> dict[str, Any]:
        asked = next(one for one in answer["messages"] if one["message_type"] == "approval_request_message")
        approves = self.luck.random() < 0.7
        return {"type": "approval", "approve": approves, "approval_request_id": asked["id"], "reason": "Because."}

    async def _send(self, agent: str, plan: str) -> httpx2.Response:
        self.said += 1
        token = f"say-k{self.said:05d}-1"
        message = {"role": "user", "content": f"{token} {plan}".strip(), "otid": f"otid-{token}"}
        response = await self.http.post(f"/v1/agents/{agent}/messages", json={"messages": [message]})
        if response.status_code == 200:
            self.acknowledged.append(f"otid-{token}")
        return response

    def lost(self) -> list[str]:
        """What was acknowledged and is not stored once, and runs that are still open."""
        stored = Counter(otid for (otid,) in self.tables.rows("SELECT otid FROM messages WHERE otid IS NOT NULL"))
        still_open = self.tables.rows("SELECT id FROM runs WHERE ended_at IS NULL")
        wrong = [f"{otid} is stored {stored[otid]} times" for otid in self.acknowledged if stored[otid] != 1]
        return wrong + [f"{id} is open" for (id,) in still_open]


async def run_kills(folder: Path, *, kills: int, seed: int | None = None, database: str = "sqlite") -> SimpleNamespace:
    """Kill a real server this many times, on SQLite or "postgresql"."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    model = FaultyModel(windows={"scripted-large": 120_000})
    async with (
        ModelServer(model.answer, keeps=False) as provider,
        opened_servers(folder, provider.url, database=database) as ((server,), tables),
        httpx2.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http,
    ):
        killing = _Killing(server, tables, http, random.Random(seed))  # noqa: S311
        agents = [await killing.make_agent(kind) for kind in TYPES]
        for _ in range(kills):
            await killing.once(killing.luck.choice(agents))
        code = await asyncio.to_thread(server.stop)
        wrong = [*killing.wrong, *model.faults, *([f"the server ended with {code}"] if code else []), *killing.lost()]
    assert not wrong, f"seed {seed}: {len(wrong)} wrong:\n" + "\n".join(wrong[:12])
    return SimpleNamespace(seed=seed, kills=kills, broken=killing.broken, requests=model.count)
