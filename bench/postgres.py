"""The cost of requests on PostgreSQL: `python -m bench.postgres`, in half a minute.

One client reads, makes and deletes an agent, and takes a plain turn, one after the other. The
model's time is subtracted. PostgreSQL writes to the disk at each commit.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx2
import psutil

from bench.report import Figure, Report
from bench.search.database_cpu import database_cpu
from bench.search.places import place
from bench.servers import Server, model_server
from bench.turns import call_cost, create_agent, send

ON_DISK = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "256MB",
    "max_connections": "100",
}
_READ_MS, _TURN_MS = 3, 9
# PostgreSQL makes generic plans after five uses of a prepared statement by a connection.
_WARM, _ROUNDS = 20, 75
_PLANNED = 60  # requests before the measurement, for all connections of the server


async def _cost(work: Callable[[], Awaitable[object]], warm: int = _WARM) -> tuple[float, float]:
    """Return the median wall time, and PostgreSQL's mean processor time, in milliseconds.

    The system counts processor time in steps of ten milliseconds.
    """
    for _ in range(warm):
        await work()
    walls: list[float] = []
    used = database_cpu(psutil.Process())
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        await work()
        walls.append((time.perf_counter() - began) * 1000)
    database = (database_cpu(psutil.Process()) - used) / _ROUNDS * 1000
    return statistics.median(walls), database


async def measure(report: Report, model_url: str, server: Server) -> None:
    """Measure each request."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
        body = {"model": "bench", "messages": []}
        model = await call_cost(client, f"{model_url}/chat/completions", body=body)
        health = await call_cost(client, f"{server.url}/v1/health/")
        report.add(
            [
                Figure("yardstick: one health request", health, "ms"),
                Figure("yardstick: one call to the model", model, "ms"),
            ]
        )
        agents = [await create_agent(client, server) for _ in range(3)]
        made: list[str] = []

        async def read() -> None:
            (await client.get(f"/v1/agents/{agents[0]}")).raise_for_status()

        async def turn() -> None:
            await send(client, server, agents[1], "hello")
            await client.patch(f"/v1/agents/{agents[1]}/reset-messages", json={})

        async def reset() -> None:
            await client.patch(f"/v1/agents/{agents[2]}/reset-messages", json={})

        async def make() -> None:
            made.append(await create_agent(client, server))

        async def delete() -> None:
            (await client.delete(f"/v1/agents/{made.pop()}")).raise_for_status()

        wall, database = await _cost(read, _PLANNED)
        report.add(_figures("reading an agent", wall, database, _READ_MS))
        with_reset = await _cost(turn, _PLANNED)
        alone = await _cost(reset)
        wall, database = with_reset[0] - alone[0] - model, with_reset[1] - alone[1]
        report.add(_figures("a plain turn, without the model", wall, database, _TURN_MS))
        report.add(_figures("making an agent", *await _cost(make)))
        report.add(_figures("deleting an agent", *await _cost(delete)))


def _figures(
    name: str, wall: float, database: float, budget: float | None = None
) -> tuple[Figure, Figure]:
    return (
        Figure(name, wall, "ms", budget),
        Figure("  processor time of PostgreSQL", database, "ms"),
    )


def main() -> None:
    """Measure and print."""
    report = Report()
    report.begin("requests on PostgreSQL")
    with (
        model_server() as model_url,
        place("postgres", ON_DISK) as where,
        where.server(model_url) as server,
    ):
        asyncio.run(measure(report, model_url, server))
    report.end()


if __name__ == "__main__":
    main()
