"""Servers that are killed while agents sleep: every message is in exactly one transcript, its own user's, and no run stays open."""

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
import pytest

from tests.support.crash_servers import CrashServer, Tables, opened_servers
from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call
from tests.support.server_process import CAN_FORK

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")]
LIMIT = 240.0  # seconds for everything to come to rest
USERS = ("", "ada", "ben")
FREQUENCY = 3
VOICE_BUFFER = {"max_message_buffer_length": 8, "min_message_buffer_length": 5}
LAST_TURNS = 6  # so many take all that was said before out of a voice agent's view
_SAID = re.compile(r"user: (say-(\w*)-\d{5})")
_OPEN = "SELECT id, status FROM runs WHERE ended_at IS NULL"
_WORK = "SELECT id FROM jobs WHERE status IN ('waiting', 'running') AND key LIKE 'sleeptime:%'"


@dataclass
class Sleepers:
    """A campaign: who talks with which agent, what was said, and what transcripts held of it."""

    servers: list[CrashServer]
    tables: Tables
    http: list[httpx2.AsyncClient]
    luck: random.Random
    agents: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    is_voice: bool = False

    async def make_agents(self, count: int) -> None:
        for number in range(count):
            body = {
                "name": f"tutor-{number}",
                "model": "openai/scripted-large",
                "memory_blocks": [{"label": "human", "value": "Begin."}],
                "enable_sleeptime": True,
                **({"agent_type": "voice_convo_agent"} if self.is_voice else {}),
            }
            agent = (await self._call("POST", "/v1/agents/", json=body)).json()
            group = agent["multi_agent_group"]["id"]
            config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": FREQUENCY}
            if self.is_voice:
                config = {"manager_type": "voice_sleeptime", **VOICE_BUFFER}
            await self._call("PATCH", f"/v1/groups/{group}", json={"manager_config": config})
            self.agents.append(agent["id"])

    async def _call(self, method: str, path: str, **asked: Any) -> httpx2.Response:
        answer = await self.http[0].request(method, path, **asked)
        assert answer.status_code == 200, answer.text
        return answer

    async def talk(self, agent: str, user: str) -> None:
        """Say one thing after another, each until it is answered."""
        while not self.is_over:
            token = f"say-{user}-{len(self.said):05d}"
            self.said.append(token)
            await self.settle(agent, user, token)

    async def settle(self, agent: str, user: str, token: str) -> None:
        body = {"messages": [{"role": "user", "content": token, "otid": f"otid-{token}"}]}
        headers = {"x-ricordo-user": user} if user else {}
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            await self.up.wait()
            with suppress(httpx2.TransportError):
                client = self.luck.choice(self.http)
                answer = await client.post(f"/v1/agents/{agent}/messages", json=body, headers=headers)
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.02)
        self.faults.append(f"{token} was never answered")

    async def kill(self, kills: int) -> None:
        is_alone = len(self.servers) == 1
        for _ in range(kills):
            await asyncio.sleep(self.luck.uniform(0.05, 0.5))
            victim = self.luck.choice(self.servers)
            if is_alone:
                self.up.clear()
            pid = victim.pid
            await asyncio.to_thread(victim.kill)
            if not is_alone:
                # What the dead server held is free at once, and not only when its leases have run out.
                self.tables.rows(
                    "UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running' AND worker LIKE ?", f"%-{pid}-%"
                )
                soon = time.time_ns() // 1000 + 1_000_000
                self.tables.rows(
                    "UPDATE runs SET lease_expires_at = ? WHERE ended_at IS NULL AND lease_token IS NOT NULL", soon
                )
            await asyncio.to_thread(victim.start)
            self.up.set()
        self.is_over = True

    async def come_to_rest(self) -> None:
        deadline = time.monotonic() + LIMIT
        while left := [*self.tables.rows(_WORK), *self.tables.rows(_OPEN)]:
            if time.monotonic() > deadline:
                self.faults.append(f"it never came to rest: {left[:5]}")
                return
            self.tables.rows("UPDATE jobs SET not_before = 0 WHERE status = 'waiting' AND key LIKE 'sleeptime:%'")
            await asyncio.sleep(0.2)

    def audit(self) -> Counter[str]:
        """Return how often each thing that was said is in a transcript that is stored."""
        counts: Counter[str] = Counter()
        for user, text in self.tables.rows(
            "SELECT user_id, CAST(parts AS TEXT) FROM messages WHERE role = 'user' AND group_id IS NOT NULL"
        ):
            # What a voice agent still has in view is read again once it has left that.
            found = _SAID.findall(text.partition("(Newer) In-Context Messages:")[0])
            counts.update(token for token, _ in found)
            whose = {name for _, name in found}
            if len(whose) > 1 or (whose and bool(user) != bool(whose.pop())):
                self.faults.append(f"a transcript of {user} holds words of {whose}")
        self.faults += [f"{token} is in {counts[token]} transcripts" for token in self.said if counts[token] > 1]
        return counts


def answer(seen: Seen) -> Answer:
    """A model that works on transcripts in two steps, and answers users at once."""
    if seen.method == "GET":
        return Answer({"data": [{"id": "scripted-large", "context_length": 120_000}]})
    messages = seen.body["messages"]
    told = [str(message.get("content") or "") for message in messages]
    if any("(Older) Evicted Messages:" in text for text in told):
        return keeper_answer(seen, len(messages))
    if not any("<system-reminder>" in text for text in told):
        return completion("Noted.")
    if messages[-1]["role"] == "tool":
        return completion(None, [tool_call("memory_finish_edits", {}, f"call_{len(messages)}")])
    edit = {"label": "human", "new_memory": f"Known: {len(messages)}."}
    return completion(None, [tool_call("memory_rethink", edit, f"call_{len(messages)}")])


def keeper_answer(seen: Seen, length: int) -> Answer:
    """What the keeper of a voice agent's memory does next: the one thing that its rules offer, and then the end."""
    names = [tool["function"]["name"] for tool in seen.body["tools"]]
    arguments: dict[str, Any] = {}
    if names == ["store_memories"]:
        arguments = {"chunks": [{"start_index": 0, "end_index": 0, "context": "Said."}]}
    elif names == ["rethink_user_memory"]:
        arguments = {"new_memory": f"Known: {length}."}
    return completion(None, [tool_call(names[-1], arguments, f"call_{length}")])


@pytest.mark.parametrize("is_voice", [False, True])
@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(3, "sqlite", id="short"),
        pytest.param(250, "sqlite", id="long-sqlite", marks=pytest.mark.soak),
        pytest.param(250, "postgresql", id="long-postgresql", marks=pytest.mark.soak),
    ],
)
async def test_every_message_is_in_one_transcript_however_often_servers_are_killed(
    tmp_path: Path, kills: int, database: str, is_voice: bool
) -> None:
    seed = random.randrange(10**6)  # noqa: S311
    count = 2 if database == "postgresql" else 1
    async with (
        ModelServer(answer, keeps=False) as provider,
        opened_servers(tmp_path, provider.url, count=count, database=database) as (servers, tables),
    ):
        clients = [httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) for server in servers]
        campaign = Sleepers(servers, tables, clients, random.Random(seed), is_voice=is_voice)  # noqa: S311
        await campaign.make_agents(2)
        campaign.up.set()
        talking = [asyncio.create_task(campaign.talk(agent, user)) for agent in campaign.agents for user in USERS]
        await campaign.kill(kills)
        await asyncio.gather(*talking)
        # A few more turns of everybody, so that what was said last is due too.
        for agent in campaign.agents:
            for user in USERS:
                for number in range(LAST_TURNS):
                    await campaign.settle(agent, user, f"last-{user}-{number}-{agent[-4:]}")
        await campaign.come_to_rest()
        counts = campaign.audit()
        campaign.faults += [f"{token} is in no transcript" for token in campaign.said if not counts[token]]
        if is_voice:
            ((made,),) = tables.rows("SELECT COUNT(*) FROM sleep_transcripts")
            ((kept,),) = tables.rows("SELECT COUNT(*) FROM passages")
            campaign.faults += [] if made == kept else [f"of {made} transcripts {kept} pieces were kept"]
        for client in clients:
            await client.aclose()
        for server in servers:
            await asyncio.to_thread(server.stop)
            campaign.faults += [line for line in server.log_text().splitlines() if "Traceback" in line]
    assert not campaign.faults, f"seed {seed}: {len(campaign.faults)} faults:\n" + "\n".join(campaign.faults[:12])
    assert len(campaign.said) > kills
