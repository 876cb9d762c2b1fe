"""Many clients, few agents, one server: every message is answered once, no edit of memory is lost, and busy is the only refusal.

`run_campaign(folder, clients=50, agents=20, turns=1000)` raises AssertionError with the seed, or returns what was done.
"""

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson

from ricordo.domain.message import Message, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.llm.chat import ChatModel
from ricordo.llm.scripted import ScriptedModel, call
from tests.support.server_process import ServerProcess

_PLUGIN = f"{__name__}:plugin"
_BUSY = "Cannot send a new message"


@dataclass
class Report:
    """What a campaign did. `busy` counts the refusals that clients tried again after."""

    seed: int
    turns: int
    busy: int
    conflicts: int
    seconds: float


class CrowdPlugin:
    """Brings the model of the campaign into the server."""

    def providers(self) -> Sequence[ChatModel]:
        """A model that files what it hears in its ledger, some of it in one that two agents share."""
        return (_MODEL,)


def _reply(request: ModelRequest) -> ModelReply:
    """Append a line for the message; again where that failed; then say that it is done."""
    _MODEL.requests.clear()  # a thousand transcripts of hundreds of messages are too many to keep
    heard = max(place for place, message in enumerate(request.messages) if message.role == "user")
    token, *labels = request.messages[heard].text.split()
    steps = request.messages[heard + 1 :]
    wanted = [label for label in labels if not _is_written(label, steps)]
    if not wanted:
        return ModelReply((TextPart(f"Noted {token}."),), Usage(10, 3))
    return ModelReply(tuple(_append(label, token) for label in wanted), Usage(10, 9), "tool_calls")


def _is_written(label: str, steps: Sequence[Message]) -> bool:
    calls = {call.call_id for step in steps for call in step.tool_calls if f'"label":"{label}"' in call.arguments}
    return any(part.call_id in calls and part.status == "success" for step in steps for part in step.tool_returns)


def _append(label: str, token: str) -> ToolCallPart:
    if sum(token.encode()) % 2:
        return call("core_memory_append", label=label, content=token)
    return call("memory_insert", label=label, new_string=token)


_MODEL = ScriptedModel(_reply, name="crowd")
plugin = CrowdPlugin()


@dataclass
class _Crowd:
    http: httpx2.AsyncClient
    agents: list[str]
    random: random.Random
    busy: int = 0
    answered: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    async def client(self, number: int, turns: int) -> None:
        for turn in range(turns):
            token = f"turn-{number}-{turn}"
            agent = self.random.choice(self.agents)
            text = f"{token} ledger shared" if self.random.random() < 0.2 else f"{token} ledger"
            message: dict[str, Any] = {"role": "user", "content": text}
            if self.random.random() < 0.5:
                message["otid"] = token
            if await self.say(agent, token, message):
                self.answered.setdefault(agent, []).append(text)

    async def say(self, agent: str, token: str, message: dict[str, Any]) -> bool:
        """Send until it is accepted; False where something else than busy came back."""
        while True:
            response = await self.http.post(f"/v1/agents/{agent}/messages", json={"messages": [message]})
            if response.status_code == 409 and _BUSY in response.text and response.json()["run_id"]:
                self.busy += 1
                await asyncio.sleep(self.random.uniform(0.05, 0.25))
                continue
            said = response.json()["messages"][-1].get("content") if response.status_code == 200 else None
            if said != f"Noted {token}.":
                self.faults.append(f"{token} was answered by {response.status_code} {response.text[:300]}")
            return response.status_code == 200


async def run_campaign(
    folder: Path, *, clients: int = 50, agents: int = 20, turns: int = 1000, seed: int | None = None
) -> Report:
    """Let the clients talk and check what is stored afterwards."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    with ServerProcess(folder, {}, plugin=_PLUGIN) as server:
        await asyncio.to_thread(server.start)
        limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            crowd = _Crowd(http, await _make_agents(http, agents), random.Random(seed))  # noqa: S311
            share = [turns // clients + (number < turns % clients) for number in range(clients)]
            await asyncio.gather(*(crowd.client(number, own) for number, own in enumerate(share)))
        code = await asyncio.to_thread(server.stop)
        faults = [*crowd.faults, *([f"the server ended with {code}"] if code else [])]
        faults += [line for line in server.log_text().splitlines() if "locked" in line or "ERROR" in line]
        conflicts, wrong = _audit(server.database, crowd.answered, turns)
    faults += wrong
    assert not faults, f"seed {seed}: {len(faults)} faults:\n" + "\n".join(faults[:12])
    return Report(seed, turns, crowd.busy, conflicts, time.monotonic() - began)


async def _make_agents(http: httpx2.AsyncClient, count: int) -> list[str]:
    made = []
    for number in range(count):
        if number % 2 == 0:
            block = await http.post("/v1/blocks/", json={"label": "shared", "value": "Begin."})
        body = {
            "name": f"clerk-{number}",
            "model": "scripted/crowd",
            "memory_blocks": [{"label": "ledger", "value": "Begin."}],
            "block_ids": [block.json()["id"]],
            "tools": ["core_memory_append"],
        }
        response = await http.post("/v1/agents/", json=body)
        assert response.status_code == 200, response.text
        made.append(response.json()["id"])
    return made


def _audit(database: Path, answered: dict[str, list[str]], turns: int) -> tuple[int, list[str]]:
    """How many edits met another one, and what is wrong."""
    faults: list[str] = []
    with closing(sqlite3.connect(database)) as tables:
        ends = Counter(status for (status,) in tables.execute("SELECT status FROM runs"))
        if ends != {"completed": turns}:
            faults.append(f"runs: {dict(ends)}")
        for agent, texts in answered.items():
            faults += _audit_agent(tables, agent, texts)
        rows = tables.execute(
            "SELECT b.id, b.label, b.value, group_concat(ab.agent_id) FROM blocks b"
            " JOIN agents_blocks ab ON ab.block_id = b.id GROUP BY b.id"
        ).fetchall()
        for _, label, value, agents in rows:
            expected = [
                text.split()[0] for agent in agents.split(",") for text in answered.get(agent, ()) if label in text
            ]
            if Counter(value.split("\n")) != Counter(["Begin.", *expected]):
                lost, extra = (
                    Counter(expected) - Counter(value.split("\n")),
                    Counter(value.split("\n")) - Counter(expected),
                )
                faults.append(f"block {label} of {agents}: lost {list(lost)}, extra {list(extra)}")
        results = tables.execute("SELECT parts FROM messages WHERE role = 'tool'").fetchall()
    conflicts = sum(part["status"] == "error" for (parts,) in results for part in orjson.loads(parts))
    return conflicts, faults


def _audit_agent(tables: sqlite3.Connection, agent: str, texts: list[str]) -> list[str]:
    rows = tables.execute(
        "SELECT id, role, text FROM messages WHERE agent_id = ? ORDER BY created_at, seq", (agent,)
    ).fetchall()
    (window,) = tables.execute("SELECT window FROM conversations WHERE agent_id = ?", (agent,)).fetchone()
    faults = [] if orjson.loads(window) == [id for id, _, _ in rows] else [f"the window of {agent} is not its history"]
    heard = [text for _, role, text in rows if role == "user"]
    if Counter(heard) != Counter(texts):
        faults.append(f"{agent} heard {Counter(heard) - Counter(texts)}, missed {Counter(texts) - Counter(heard)}")
    spoken = [text for _, role, text in rows if role == "assistant" and text]
    if spoken != [f"Noted {text.split()[0]}." for text in heard]:
        faults.append(f"{agent} did not answer each message once, in order")
    return faults
