"""Turns a second of 1, 2 and 4 servers on one PostgreSQL: `python -m bench.scale_servers`.

It takes two minutes. All processes share the machine. So a machine with few processors shows what a
turn costs the server and the database. It does not show the limit of the database. The last figures
divide the two processor times of a turn. They say how many servers one database can serve.
"""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass

import httpx2
import psutil

from bench.postgres import ON_DISK
from bench.report import Figure, Report
from bench.search.database_cpu import database_cpu
from bench.search.places import Place, place
from bench.servers import Server, model_server
from bench.turns import create_agent, send

SERVERS = (1, 2, 4)
_CLIENTS, _TURNS, _WARM = 16, 480, 96


@dataclass(frozen=True)
class Load:
    """The cost of turns: wall seconds, CPU seconds of the servers, and of PostgreSQL."""

    turns: int
    wall: float
    servers: float
    database: float

    @property
    def rate(self) -> float:
        """Turns a second."""
        return self.turns / self.wall

    @property
    def share(self) -> float:
        """The database's part of the processor time of Ricordo and PostgreSQL."""
        return self.database / (self.servers + self.database)


async def _turns(servers: list[Server], agents: list[str], count: int) -> None:
    """Take turns with as many clients as there are agents, each on one server."""
    limits = httpx2.Limits(max_connections=_CLIENTS, max_keepalive_connections=_CLIENTS)
    async with httpx2.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:

        async def talk(number: int) -> None:
            server = servers[number % len(servers)]
            for _ in range(count // len(agents)):
                await send(client, server, agents[number], "hello")

        await asyncio.gather(*(talk(number) for number in range(len(agents))))


async def _agents(server: Server) -> list[str]:
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
        return [await create_agent(client, server) for _ in range(_CLIENTS)]


def measure_servers(where: Place, model_url: str, count: int) -> Load:
    """Run this number of servers, and measure turns of new agents on all of them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(where.server(model_url)) for _ in range(count)]
        agents = asyncio.run(_agents(servers[0]))
        asyncio.run(_turns(servers, agents, _WARM))
        used = sum(server.cpu() for server in servers)
        database = database_cpu(psutil.Process())
        began = time.perf_counter()
        asyncio.run(_turns(servers, agents, _TURNS))
        return Load(
            _TURNS,
            time.perf_counter() - began,
            sum(server.cpu() for server in servers) - used,
            database_cpu(psutil.Process()) - database,
        )


def measure(report: Report) -> None:
    """Measure each number of servers, and compute figures for machines with one processor each."""
    loads: list[Load] = []
    with model_server() as model_url, place("postgres", ON_DISK) as where:
        for count in SERVERS:
            report.begin(f"{count} servers, {_CLIENTS} clients, {_TURNS} turns")
            load = measure_servers(where, model_url, count)
            loads.append(load)
            report.add(
                [
                    Figure("turns a second", load.rate, "/s"),
                    Figure("  to those of one server", load.rate / loads[0].rate, "times"),
                    Figure(
                        "  processor time of the servers", load.servers / load.turns * 1e3, "ms"
                    ),
                    Figure(
                        "  processor time of PostgreSQL", load.database / load.turns * 1e3, "ms"
                    ),
                    Figure("  PostgreSQL's share of both", load.share, ""),
                ]
            )
    last = loads[-1]
    report.begin("what follows")
    report.add(
        [
            Figure("processors of servers to one of PostgreSQL", last.servers / last.database, ""),
            Figure("turns a second of one processor of servers", last.turns / last.servers, "/s"),
            Figure("turns a second of one of PostgreSQL", last.turns / last.database, "/s"),
        ]
    )


def main() -> None:
    """Measure and print."""
    report = Report()
    measure(report)
    report.end()


if __name__ == "__main__":
    main()
