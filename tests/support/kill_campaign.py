"""Base of the campaigns of kills: servers are killed and started while clients talk.

A campaign is a subclass that defines the messages and the final checks.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx2

from tests.support.crash_servers import CrashServer, Tables, opened_servers
from tests.support.model_server import Answer, ModelServer, Seen

MODEL = "openai/scripted-large"
LIMIT = 240.0  # Seconds until everything is idle.
OPEN_RUNS = "SELECT id, status FROM runs WHERE ended_at IS NULL"
BEGUN_RUNS = f"{OPEN_RUNS} AND lease_token IS NOT NULL"
_SOON = 1_000_000  # microseconds
_START = 0.4  # seconds that a server takes to start on an idle machine
C = TypeVar("C", bound="KillCampaign")


@dataclass
class KillCampaign:
    """The servers with their clients, and the errors.

    `up` is cleared while the only server is down.
    """

    # `pause` is the range of seconds between two kills; `rest` selects rows that must be gone at
    # the end.
    pause: ClassVar[tuple[float, float]] = (0.02, 0.3)
    rest: ClassVar[tuple[str, ...]] = (BEGUN_RUNS,)
    # If True, the time for an answer begins at the last kill. On a busy machine perhaps no turn
    # finishes between two kills.
    is_patient: ClassVar[bool] = False

    servers: list[CrashServer]
    tables: Tables
    http: list[httpx2.AsyncClient]
    luck: random.Random
    faults: list[str] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    @property
    def slowness(self) -> float:
        """Return the slowdown compared with an idle machine.

        Pauses between kills grow with the slowdown, since turns take longer on a slow machine.
        """
        return max(1.0, max(server.starts[-1] for server in self.servers) / _START)

    def free_jobs(self, pid: int) -> None:
        """Free the locks and jobs of the killed process at once; leases are freed elsewhere."""

    def hasten(self) -> None:
        """Start work that waits for a later time, while everything becomes idle."""

    async def call(self, method: str, path: str, **asked: Any) -> Any:
        """Send a request that the server answers at once, and return the response."""
        answer = await self.http[0].request(method, path, **asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def new_agent(self, name: str, **fields: Any) -> Any:
        return await self.call("POST", "/v1/agents/", json={"name": name, "model": MODEL, **fields})

    async def settle(
        self,
        path: str,
        token: str,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a message until it is answered; return the answer, or None.

        The default message is the token.
        """
        body = {"messages": [{"role": "user", "content": text or token, "otid": f"otid-{token}"}]}
        deadline, last = time.monotonic() + LIMIT, ""
        while time.monotonic() < deadline:
            if self.is_patient and not self.is_over:
                deadline = time.monotonic() + LIMIT
            await self.up.wait()
            with suppress(httpx2.TransportError):
                answer = await self.luck.choice(self.http).post(path, json=body, headers=headers)
                if answer.status_code == 200:
                    return answer.json()
                last = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 409:
                    self.faults.append(f"{token}: {last}")
                    return None
            await asyncio.sleep(0.02)
        self.faults.append(f"{token} was never answered: {last}")
        return None

    async def kill(self, kills: int) -> None:
        """Kill a server and start it again, this number of times."""
        is_alone = len(self.servers) == 1
        for _ in range(kills):
            await asyncio.sleep(self.luck.uniform(*self.pause) * self.slowness)
            victim = self.luck.choice(self.servers)
            if is_alone:
                self.up.clear()
            pid = victim.pid
            await asyncio.to_thread(victim.kill)
            if not is_alone:
                # The dead server's work is free at once, and not only when its leases have expired.
                self.free_jobs(pid)
                sql = (
                    "UPDATE runs SET lease_expires_at = ? WHERE ended_at IS NULL AND lease_token "
                    "IS NOT NULL"
                )
                self.tables.rows(sql, time.time_ns() // 1000 + _SOON)
            await asyncio.to_thread(victim.start)
            self.up.set()
        self.is_over = True

    async def come_to_rest(self) -> None:
        deadline = time.monotonic() + LIMIT
        while left := [row for sql in self.rest for row in self.tables.rows(sql)]:
            if time.monotonic() > deadline:
                self.faults.append(f"it never came to rest: {left[:5]}")
                return
            self.hasten()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def begun(
    campaign: type[C], answer: Callable[[Seen], Answer], folder: Path, database: str, **fields: Any
) -> AsyncIterator[C]:
    """Open the servers of a campaign, two of them on PostgreSQL.

    Raises AssertionError with the errors at the end.
    """
    seed = random.randrange(10**6)  # noqa: S311
    count = 2 if database == "postgresql" else 1
    async with (
        ModelServer(
            lambda seen: models() if seen.method == "GET" else answer(seen), keeps=False
        ) as provider,
        opened_servers(folder, provider.url, count=count, database=database) as (servers, tables),
    ):
        clients = [
            httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False)
            for server in servers
        ]
        made = campaign(servers, tables, clients, random.Random(seed), **fields)  # noqa: S311
        made.up.set()
        yield made
        for client in clients:
            await client.aclose()
        for server in servers:
            await asyncio.to_thread(server.stop)
            made.faults += [line for line in server.log_text().splitlines() if "Traceback" in line]
    assert not made.faults, f"seed {seed}: {len(made.faults)} faults:\n" + "\n".join(
        made.faults[:12]
    )


def models() -> Answer:
    return Answer({"data": [{"id": MODEL.partition("/")[2], "context_length": 120_000}]})
