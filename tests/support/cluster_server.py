"""Servers that share one PostgreSQL, each a process of its own that can be killed and frozen, and what they run in campaigns.

async with cluster(folder, model_url) as servers: ...
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
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
from ricordo.tools.toolbox import ServerTool
from tests.support import postgres
from tests.support.crash_model import BELLS, ring_bell
from tests.support.server_process import ServerProcess

CONNECTIONS = 5  # of each server's pool
# Besides its pool a server has two connections for wake-ups and one that listens.
CONNECTIONS_OF_ONE = CONNECTIONS + 3
NOTES = "CAMPAIGN_NOTES"
KEYS = 5
MOST_ATTEMPTS = 3
_KIND = "campaign.note"
_PLUGIN = f"{__name__}:plugin"


class ClusterPlugin:
    """Brings the bell, a job that writes down when it runs, and a door through which such jobs are added."""

    def tools(self) -> Sequence[ServerTool]:
        """The bell."""
        return (ServerTool(ring_bell, "custom", acts_outside=True),)

    def jobs(self) -> Sequence[JobHandler]:
        """The job that writes a line when it starts, and one when it ends."""
        return (JobHandler(_KIND, _note),)

    def routes(self) -> Sequence[APIRouter]:
        """The door."""
        return (_router,)


_router = APIRouter()


@_router.post("/campaign/jobs")
async def _add(request: Request, count: int, seconds: float) -> list[str]:
    runtime: Runtime = request.app.state.runtime

    def work(tx: Transaction) -> list[str]:
        added = []
        for number in range(count):
            key = f"key-{number % KEYS}"
            job = Job(_KIND, LOCAL_ORGANIZATION, {"seconds": seconds}, key, most_attempts=MOST_ATTEMPTS)
            added.append(jobs.add(tx, job))
        return [job.id for job in added if job]

    return await runtime.store.write(work)


async def _note(_runtime: Runtime, job: Job, _report: Report) -> None:
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, _line("start", job))
        await asyncio.sleep(job.payload["seconds"])
        os.write(file, _line("end", job))
    finally:
        os.close(file)


def _line(what: str, job: Job) -> bytes:
    """As `job_worker.read_runs` reads it."""
    return f"{what} {job.id}/{job.attempts} {job.key} {os.getpid()} {time.monotonic_ns()}\n".encode()


plugin = ClusterPlugin()


class ClusterServer(ServerProcess):
    """One of the servers. `killed` tells when each of its processes was killed, in nanoseconds of the machine's clock."""

    def __init__(self, folder: Path, environment: Mapping[str, str], beside: ServerProcess | None) -> None:
        folder.mkdir()
        super().__init__(folder, environment, plugin=_PLUGIN, beside=beside)
        self.killed: dict[int, int] = {}

    @property
    def pid(self) -> int:
        """The process that runs now; 0 where none does."""
        return self._pid

    def kill(self) -> None:
        """Kill it, and note the moment."""
        pid = self._pid
        super().kill()
        self.killed[pid] = time.monotonic_ns()

    def freeze(self) -> None:
        """Let it stand still, with everything that it holds, until `thaw`."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on as if no time had passed."""
        os.kill(self._pid, signal.SIGCONT)


class Tables:
    """The database behind the servers' backs: `execute` takes `?` for a value and gives JSON as text."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.adapters.register_loader("json", TextLoader)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Run one statement."""
        return self._connection.execute(sql.replace("?", "%s").encode(), values or None)

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


@asynccontextmanager
async def cluster(folder: Path, model_url: str, count: int = 2) -> AsyncIterator[tuple[list[ClusterServer], Tables]]:
    """So many servers that answer, on an empty database that is gone afterwards."""
    address = postgres.server().new_database()
    environment = {
        "RICORDO_DATABASE_URL": address,
        "RICORDO_DATABASE_CONNECTIONS": str(CONNECTIONS),
        "RICORDO_EMBEDDING": "none",  # each start would load the model anew
        "OPENAI_API_KEY": "campaign",
        "OPENAI_BASE_URL": model_url,
        BELLS: str(folder / "bells"),
        NOTES: str(folder / "notes"),
    }
    async with AsyncExitStack() as stack:
        stack.callback(postgres.server().drop, address)
        tables = Tables(address)
        stack.callback(tables.close)
        servers: list[ClusterServer] = []
        for number in range(count):
            beside = servers[0] if servers else None
            servers.append(ClusterServer(folder / f"server-{number}", environment, beside))
            stack.callback(servers[-1].close)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        await _forget_rehearsals(servers[0].url)
        yield servers, tables


async def _forget_rehearsals(url: str) -> None:
    """Delete what the servers' helpers did on this database to get warm."""
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        for place in ("/v1/agents/", "/v1/archives/"):
            for found in (await http.get(place)).json():
                assert (await http.delete(f"{place}{found['id']}")).status_code in (200, 204)
