"""A server attacked over HTTP while another client asks for its health."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.support.health_probe import HealthProbe
from tests.support.model_server import Answer, ModelServer, completion
from tests.support.ready import Helper
from tests.support.server_process import ServerProcess

LIMIT = 120.0  # seconds
ATTACKER = "127.0.0.2"  # A separate address, since connections are counted by address.


@dataclass
class AttackedServer:
    """A running server, its model, and a client of it.

    After an attack, `probe` and `most_added_mb` show its cost.
    """

    process: ServerProcess
    model: ModelServer
    http: httpx2.AsyncClient
    folder: Path
    client_timeout: float  # seconds
    is_long: bool = False
    probe: HealthProbe = field(init=False)
    _first_mb: int = field(init=False)

    def __post_init__(self) -> None:
        self._first_mb = self._memory("VmHWM")

    @property
    def port(self) -> int:
        return int(self.process.url.rpartition(":")[2])

    @property
    def most_added_mb(self) -> int:
        """Return the largest amount of memory that the server had so far, beyond its start.

        A fork begins with all memory of its parent.
        """
        return self._memory("VmHWM") - self._first_mb

    @property
    def resident_mb(self) -> int:
        """Return the server's memory now."""
        return self._memory("VmRSS")

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))

    def size(self, short: int, long: int) -> int:
        """Return how much to send: just over the limit, or many times more in the long form."""
        return long if self.is_long else short

    async def agent(self, **more: Any) -> str:
        answer = await self.http.post(
            "/v1/agents/", json={"model": "openai/scripted-1", "name": "Nina", **more}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def say(self, agent: str, text: str = "Hello.") -> httpx2.Response:
        return await self.http.post(f"/v1/agents/{agent}/messages", json={"input": text})

    async def answers(self, *answers: str | Answer) -> httpx2.Response:
        """Let the model answer a new agent with this; return the response to the user."""
        agent = await self.agent()
        self.model.clear()
        self.model.push(
            *(completion(answer) if isinstance(answer, str) else answer for answer in answers)
        )
        return await self.say(agent)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection of the attacker."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ATTACKER, 0))

    async def wire(self, *pieces: bytes, pause: float = 0) -> bytes:
        """Send exactly these bytes; return the response until the server closes the connection."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
            return await asyncio.wait_for(reader.read(), LIMIT)
        except ConnectionError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def attacked_server(
    helper: Helper, folder: Path, client_timeout: float = 2, embedding: str = "none"
) -> AsyncIterator[AttackedServer]:
    async with ModelServer(keeps=False) as model:
        given = {
            "OPENAI_API_KEY": "attacked",
            "OPENAI_BASE_URL": model.url,
            "RICORDO_EMBEDDING": embedding,
        }
        process = ServerProcess(
            helper, folder, given | {"RICORDO_CLIENT_TIMEOUT": str(client_timeout)}, None
        )
        process.start()
        try:
            async with httpx2.AsyncClient(
                base_url=process.url, timeout=LIMIT, trust_env=False
            ) as http:
                yield AttackedServer(process, model, http, folder, client_timeout)
        finally:
            process.stop()


@asynccontextmanager
async def probed(server: AttackedServer) -> AsyncIterator[None]:
    """Ask for the server's health while the block runs."""
    server.probe = HealthProbe(server.port)
    async with server.probe:
        yield
