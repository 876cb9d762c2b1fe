"""Servers that are killed while agents ask each other: no message is lost or doubled, and no run stays open."""

import asyncio
import random
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from tests.support.crash_servers import CrashServer, Tables, opened_servers
from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call
from tests.support.server_process import CAN_FORK

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")]
LIMIT = 240.0  # seconds for everything to come to rest
SENDERS = 4
WAITS, ASYNC = "send_message_to_agent_and_wait_for_reply", "send_message_to_agent_async"
_ORDER = re.compile(r"(send_message_to_\w+) (agent-\S+) (.+)")
_TOKEN = re.compile(r"ask-\d-\d{5}")
_OPEN = "SELECT id FROM runs WHERE ended_at IS NULL AND lease_token IS NOT NULL"
_WORK = "SELECT id FROM jobs WHERE status IN ('waiting', 'running') AND kind = 'groups.message'"
_FAILED = "SELECT id, CAST(error AS TEXT) FROM jobs WHERE status = 'failed' AND kind = 'groups.message'"


@dataclass
class Askers:
    """A campaign: who sends, who is asked and asks a last one in turn, and which tokens were sent how."""

    servers: list[CrashServer]
    tables: Tables
    http: list[httpx2.AsyncClient]
    luck: random.Random
    senders: list[str] = field(default_factory=list)
    middle: str = ""
    last: str = ""
    sent: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    async def make_agents(self) -> None:
        self.senders = [await self._agent(f"sender-{number}", WAITS, ASYNC) for number in range(SENDERS)]
        self.last = await self._agent("last")
        self.middle = await self._agent("middle", WAITS)

    async def _agent(self, name: str, *tools: str) -> str:
        body = {"name": name, "model": "openai/scripted-large", "include_base_tools": False, "tools": tools}
        answer = await self.http[0].post("/v1/agents/", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def send(self, number: int) -> None:
        """Let one sender send one thing after another, each until it is answered."""
        count = 0
        while not self.is_over:
            count += 1
            token = f"ask-{number}-{count:05d}"
            tool = self.luck.choice((WAITS, ASYNC))
            # What the middle agent gets with an order it passes on to the last one, and waits.
            order = self.luck.choice(("", f"{WAITS} {self.last} "))
            await self.settle(self.senders[number], token, f"{tool} {self.middle} {order}{token}")
            self.sent[token] = tool

    async def settle(self, agent: str, token: str, text: str) -> None:
        body = {"messages": [{"role": "user", "content": text, "otid": f"otid-{token}"}]}
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            await self.up.wait()
            with suppress(httpx2.TransportError):
                answer = await self.luck.choice(self.http).post(f"/v1/agents/{agent}/messages", json=body)
                if answer.status_code == 200:
                    return
                if answer.status_code < 500 and answer.status_code != 409:
                    self.faults.append(f"{token}: {answer.status_code} {answer.text[:300]}")
                    return
            await asyncio.sleep(0.02)
        self.faults.append(f"{token} was never answered")

    async def kill(self, kills: int) -> None:
        is_alone = len(self.servers) == 1
        for _ in range(kills):
            await asyncio.sleep(self.luck.uniform(0.02, 0.3))
            victim = self.luck.choice(self.servers)
            if is_alone:
                self.up.clear()
            await asyncio.to_thread(victim.kill)
            if not is_alone:
                # What the dead server held is free at once, and so is what the other one works on.
                soon = time.time_ns() // 1000 + 1_000_000
                self.tables.rows(
                    "UPDATE runs SET lease_expires_at = ? WHERE ended_at IS NULL AND lease_token IS NOT NULL", soon
                )
                self.tables.rows("UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running'")
            await asyncio.to_thread(victim.start)
            self.up.set()
        self.is_over = True

    async def come_to_rest(self) -> None:
        deadline = time.monotonic() + LIMIT
        while left := [*self.tables.rows(_OPEN), *self.tables.rows(_WORK)]:
            if time.monotonic() > deadline:
                self.faults.append(f"runs or jobs stay open: {left[:5]}")
                return
            await asyncio.sleep(0.2)

    def audit(self) -> None:
        """Compare what each agent got with what was sent."""
        self.faults += [f"a job failed: {row}" for row in self.tables.rows(_FAILED)]
        got = self._incoming(self.middle)
        for token, tool in self.sent.items():
            least = 1 if tool == ASYNC else 0  # of a call that a kill interrupted nobody knows whether it had an effect
            if not least <= got[token] <= 1:
                self.faults.append(f"{token} by {tool} came {got[token]} times")
        self.faults += [f"{token} came from nowhere" for token in got if token not in self.sent]
        self.faults += [f"{token} came twice to the last" for token, n in self._incoming(self.last).items() if n > 1]
        self.faults += [f"a sender was asked {token}" for sender in self.senders for token in self._incoming(sender)]

    def _incoming(self, agent: str) -> Counter[str]:
        """Return how often the agent got each token from another agent."""
        got: Counter[str] = Counter()
        sql = (
            "SELECT CAST(parts AS TEXT) FROM messages WHERE agent_id = ? AND role = 'system' AND sender_id IS NOT NULL"
        )
        for (parts,) in self.tables.rows(sql, agent):
            got.update(_TOKEN.findall("".join(part.get("text", "") for part in orjson.loads(parts))))
        return got


def answer(seen: Seen) -> Answer:
    """A model that sends what it is told to send."""
    if seen.method == "GET":
        return Answer({"data": [{"id": "scripted-large", "context_length": 120_000}]})
    messages = seen.body["messages"]
    last: dict[str, Any] = messages[-1]
    if last["role"] != "tool" and (order := _ORDER.search(str(last["content"]))):
        tool, other, text = order.groups()
        return completion(None, [tool_call(tool, {"message": text, "other_agent_id": other}, f"call_{len(messages)}")])
    return completion("Done.")


@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(3, "sqlite", id="short"),
        pytest.param(500, "sqlite", id="long-sqlite", marks=pytest.mark.soak),
        pytest.param(500, "postgresql", id="long-postgresql", marks=pytest.mark.soak),
    ],
)
async def test_no_message_is_lost_or_doubled_however_often_servers_are_killed(
    tmp_path: Path, kills: int, database: str
) -> None:
    seed = random.randrange(10**6)  # noqa: S311
    count = 2 if database == "postgresql" else 1
    async with (
        ModelServer(answer, keeps=False) as provider,
        opened_servers(tmp_path, provider.url, count=count, database=database) as (servers, tables),
    ):
        clients = [httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) for server in servers]
        campaign = Askers(servers, tables, clients, random.Random(seed))  # noqa: S311
        await campaign.make_agents()
        campaign.up.set()
        sending = [asyncio.create_task(campaign.send(number)) for number in range(SENDERS)]
        await campaign.kill(kills)
        await asyncio.gather(*sending)
        await campaign.come_to_rest()
        campaign.audit()
        for client in clients:
            await client.aclose()
        for server in servers:
            await asyncio.to_thread(server.stop)
            campaign.faults += [line for line in server.log_text().splitlines() if "Traceback" in line]
    assert not campaign.faults, f"seed {seed}: {len(campaign.faults)} faults:\n" + "\n".join(campaign.faults[:12])
    assert len(campaign.sent) >= SENDERS
