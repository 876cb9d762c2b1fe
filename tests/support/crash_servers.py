"""The servers of the crash campaign.

They are processes that are killed and frozen, with a plugin and a database. `run_kills` is a
separate campaign, with agents of every type whose calls wait for approval.
"""

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import psycopg
from fastapi import APIRouter, Request
from psycopg.types.string import TextLoader

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.support import postgres
from tests.support.faults_cast import TOOLS, TYPES
from tests.support.faults_model import FaultyModel
from tests.support.model_server import ModelServer
from tests.support.ready import Helper, helper
from tests.support.server_process import ServerProcess

CONNECTIONS = 5  # the connections of each server's pool
# Besides its pool a server has two connections for wake-ups and one that listens.
CONNECTIONS_OF_ONE = CONNECTIONS + 3
MOST_ATTEMPTS = 3
_BELLS, _NOTES = "CAMPAIGN_BELLS", "CAMPAIGN_NOTES"
_KEYS = 5
_KIND = "campaign.note"
_PLANS = ("", "ring", "insert+ring/archive", "guarded", "guarded+guarded", "nap+nap/insert", "hang")
_LONGEST = 0.25  # seconds from a request to its kill


class CrashPlugin:
    """A plugin with the campaigns' tools, a job that logs its runs, and a route to add jobs."""

    def tools(self) -> Sequence[ServerTool]:
        return (ServerTool(ring_bell, "custom", acts_outside=True), *TOOLS)

    def jobs(self) -> Sequence[JobHandler]:
        return (JobHandler(_KIND, _note),)

    def routes(self) -> Sequence[APIRouter]:
        return (_router,)


plugin = CrashPlugin()
_router = APIRouter()


def ring_bell(context: ToolContext, mark: str) -> str:
    """Ring a bell that all the world can hear.

    Args:
        mark: How the ring is written down.
    """
    with Path(os.environ[_BELLS]).open("a") as bells:
        bells.write(mark + "\n")
    return f"Rang {mark}."


@_router.post("/campaign/jobs")
async def _add(request: Request, count: int, seconds: float) -> list[str]:
    runtime: Runtime = request.app.state.runtime

    def work(tx: Transaction) -> list[str]:
        new = [
            Job(
                _KIND,
                LOCAL_ORGANIZATION,
                {"seconds": seconds},
                f"key-{number % _KEYS}",
                most_attempts=MOST_ATTEMPTS,
            )
            for number in range(count)
        ]
        return [added.id for job in new if (added := jobs.add(tx, job))]

    return await runtime.store.write(work)


async def _note(_runtime: Runtime, job: Job, _report: Report) -> None:
    def note(what: str) -> None:
        words = f"{what} {job.id}/{job.attempts} {job.key} {os.getpid()} {time.monotonic_ns()}\n"
        file = os.open(os.environ[_NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, words.encode())
        os.close(file)

    note("start")
    await asyncio.sleep(job.payload["seconds"])
    note("end")


class CrashServer(ServerProcess):
    """One of the servers.

    `killed` has the times at which its processes were killed, in nanoseconds of the machine's
    clock.
    """

    def __init__(self, helper: Helper, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir()
        super().__init__(helper, folder, environment, f"{__name__}:plugin")
        self.killed: dict[int, int] = {}

    def kill(self) -> None:
        pid = self.pid
        super().kill()
        self.killed[pid] = time.monotonic_ns()

    def freeze(self) -> None:
        """Freeze the process, with everything that it holds, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Tables:
    """The servers' database, a file or an address of PostgreSQL.

    `rows` takes `?` for a value and returns JSON as text.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = address
        self._connection: psycopg.Connection[Any] | None = None
        if isinstance(address, str):
            self._connection = psycopg.connect(address, autocommit=True)
            self._connection.adapters.register_loader("json", TextLoader)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement.

        A file is closed at once, so that the next server must recover it by itself.
        """
        if self._connection is None:
            with closing(
                sqlite3.connect(self.address, isolation_level=None, timeout=10)
            ) as connection:
                return connection.execute(sql, values).fetchall()
        cursor = self._connection.execute(sql.replace("?", "%s").encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._connection:
            self._connection.close()


@asynccontextmanager
async def opened_servers(
    folder: Path, model_url: str, *, count: int = 1, database: str = "sqlite"
) -> AsyncIterator[tuple[list[CrashServer], Tables]]:
    """Servers that answer, on a new SQLite file or PostgreSQL database, removed afterwards."""
    environment = {
        "RICORDO_EMBEDDING": "none",  # otherwise each start would load the model
        "OPENAI_API_KEY": "campaign",
        "OPENAI_BASE_URL": model_url,
        _BELLS: str(folder / "bells"),
        _NOTES: str(folder / "notes"),
    }
    async with AsyncExitStack() as stack:
        address = ""
        if database == "postgresql":
            address = postgres.server().new_database()
            stack.callback(postgres.server().drop, address)
            environment |= {
                "RICORDO_DATABASE_URL": address,
                "RICORDO_DATABASE_CONNECTIONS": str(CONNECTIONS),
            }
        servers = [
            CrashServer(helper(), folder / f"server-{number}", environment)
            for number in range(count)
        ]
        tables = Tables(address or servers[0].database)
        stack.callback(tables.close)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        yield servers, tables


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
        """Make an agent of this type with the campaign's tools, one of which needs approval."""
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
        """Kill the server while it answers, start it again, and check that the agent answers."""
        plan = self.luck.choice(_PLANS)
        talking = asyncio.create_task(self._cut_off(agent, plan))
        await asyncio.sleep(self.luck.uniform(0.01, _LONGEST))
        await asyncio.to_thread(self.server.kill)
        await asyncio.wait_for(talking, 30)
        await asyncio.to_thread(self.server.start)
        if (await self.http.get("/v1/runs/", params={"active": True})).json():
            self.wrong.append(f"{plan}: runs are open after a restart")
        # Cancelling ends calls that wait for a client that is gone.
        await self.http.post(f"/v1/agents/{agent}/messages/cancel", json={})
        told = await self._send(agent, "")
        if f"Done say-k{self.said:05d}-1." not in told.text:
            self.wrong.append(
                f"{plan}: the next message is answered by {told.status_code} {told.text[:400]}"
            )

    async def _cut_off(self, agent: str, plan: str) -> None:
        with suppress(httpx2.TransportError):
            told = await self._send(agent, plan)
            while told.status_code == 200 and "approval_request_message" in told.text:
                asked = next(
                    one
                    for one in told.json()["messages"]
                    if one["message_type"].startswith("approval_req")
                )
                decided = {
                    "approve": self.luck.random() < 0.7,
                    "approval_request_id": asked["id"],
                    "reason": "So.",
                }
                body = {"messages": [{"type": "approval", **decided}]}
                told = await self.http.post(f"/v1/agents/{agent}/messages", json=body)
            return
        self.broken += 1

    async def _send(self, agent: str, plan: str) -> httpx2.Response:
        self.said += 1
        token = f"say-k{self.said:05d}-1"
        message = {"role": "user", "content": f"{token} {plan}".strip(), "otid": f"otid-{token}"}
        response = await self.http.post(
            f"/v1/agents/{agent}/messages", json={"messages": [message]}
        )
        if response.status_code == 200:
            self.acknowledged.append(f"otid-{token}")
        return response

    def lost(self) -> list[str]:
        stored = Counter(
            otid for (otid,) in self.tables.rows("SELECT otid FROM messages WHERE otid IS NOT NULL")
        )
        still_open = self.tables.rows("SELECT id FROM runs WHERE ended_at IS NULL")
        wrong = [
            f"{otid} is stored {stored[otid]} times"
            for otid in self.acknowledged
            if stored[otid] != 1
        ]
        return wrong + [f"{id} is open" for (id,) in still_open]


async def run_kills(folder: Path, *, kills: int, seed: int) -> SimpleNamespace:
    """Kill a server this many times in the middle of turns and approvals of agents of every type.

    Returns the number of interrupted requests. Raises AssertionError with the errors.
    """
    model = FaultyModel(windows={"scripted-large": 120_000})
    async with (
        ModelServer(model.answer, keeps=False) as provider,
        opened_servers(folder, provider.url) as ((server,), tables),
        httpx2.AsyncClient(base_url=server.url, timeout=180, trust_env=False) as http,
    ):
        killing = _Killing(server, tables, http, random.Random(seed))  # noqa: S311
        agents = [await killing.make_agent(kind) for kind in TYPES]
        for _ in range(kills):
            await killing.once(killing.luck.choice(agents))
        code = await asyncio.to_thread(server.stop)
        wrong = [
            *killing.wrong,
            *model.faults,
            *([f"the server ended with {code}"] if code else []),
            *killing.lost(),
        ]
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:12])
    return SimpleNamespace(kills=kills, broken=killing.broken, requests=model.count)
