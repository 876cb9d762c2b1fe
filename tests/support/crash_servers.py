"""The servers of the crash campaign: processes that are killed and frozen, what they run in it, and their database."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

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
from tests.support.faults_cast import TOOLS
from tests.support.ready import Helper
from tests.support.server_process import ServerProcess

CONNECTIONS = 5  # of each server's pool
# Besides its pool a server has two connections for wake-ups and one that listens.
CONNECTIONS_OF_ONE = CONNECTIONS + 3
MOST_ATTEMPTS = 3
_BELLS, _NOTES = "CAMPAIGN_BELLS", "CAMPAIGN_NOTES"
_KEYS = 5
_KIND = "campaign.note"


class CrashPlugin:
    """Brings the campaigns' tools, a job that writes down when it runs, and a route by which such jobs are added."""

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
            Job(_KIND, LOCAL_ORGANIZATION, {"seconds": seconds}, f"key-{number % _KEYS}", most_attempts=MOST_ATTEMPTS)
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
    """One of the servers. `killed` tells when each of its processes was killed, in nanoseconds of the machine's clock."""

    def __init__(self, helper: Helper, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir()
        super().__init__(helper, folder, environment, f"{__name__}:plugin")
        self.killed: dict[int, int] = {}

    def kill(self) -> None:
        pid = self.pid
        super().kill()
        self.killed[pid] = time.monotonic_ns()

    def freeze(self) -> None:
        """Let it stand still, with everything that it holds, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Tables:
    """The servers' database, a file or an address of PostgreSQL: `rows` takes `?` for a value and gives JSON as text."""

    def __init__(self, address: str | Path) -> None:
        self.address = address
        self._connection: psycopg.Connection[Any] | None = None
        if isinstance(address, str):
            self._connection = psycopg.connect(address, autocommit=True)
            self._connection.adapters.register_loader("json", TextLoader)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement. A file is let go of at once, so that the next server has to recover it by itself."""
        if self._connection is None:
            with closing(sqlite3.connect(self.address, isolation_level=None, timeout=10)) as connection:
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
    """So many servers that answer, on an empty SQLite file or PostgreSQL database that is gone afterwards."""
    environment = {
        "RICORDO_EMBEDDING": "none",  # each start would load the model anew
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
            environment |= {"RICORDO_DATABASE_URL": address, "RICORDO_DATABASE_CONNECTIONS": str(CONNECTIONS)}
        helper = Helper(__name__, "ricordo.llm.providers")
        stack.callback(helper.close)
        servers = [CrashServer(helper, folder / f"server-{number}", environment) for number in range(count)]
        tables = Tables(address or servers[0].database)
        stack.callback(tables.close)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        yield servers, tables
