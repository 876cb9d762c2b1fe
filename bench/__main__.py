"""`python -m bench` measures turns, start, memory, pages, lists, tools and files in five minutes.

It prints each figure as soon as it is measured, and MISSED where a budget is missed. The campaigns
are tests: `make soak`.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx2

from bench import lists, pages, process
from bench.files import A_FEW, file_costs
from bench.keys import OPERATOR, key_costs
from bench.report import Figure, Report, keep
from bench.servers import Server, model_server, ricordo
from bench.tools import tool_costs
from bench.turns import Cost, call_cost, plain_turns, throughput

_AT_ONCE = (1, 8, 32)  # agents


async def measure_turns(model_url: str, server: Server, rounds: int) -> AsyncIterator[Figure]:
    """Yield the costs of turns without the model's time, and of a small request in the same run."""
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx2.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
        # The first turns load data that later ones use.
        await plain_turns(client, server, window=10, rounds=3)
        body = {"model": "bench", "messages": []}
        model = await call_cost(client, f"{model_url}/chat/completions", body=body)
        health = await call_cost(client, f"{server.url}/v1/health/")
        yield Figure("yardstick: one health request", health, "ms")
        yield Figure("yardstick: one call to the model", model, "ms")
        ten = await plain_turns(client, server, window=10, rounds=rounds)
        for figure in _of_ten(ten, model, health):
            yield figure
        sixty = await plain_turns(client, server, window=60, rounds=max(3, rounds // 4))
        yield Figure(
            "plain turn, 60 messages: wall without the model", sixty.wall_median - model, "ms"
        )
        yield Figure("  processor time in the server", sixty.cpu_median, "ms", 9)
        edit = await plain_turns(client, server, window=10, rounds=rounds, text="edit")
        wall = edit.wall_median - 2 * model
        yield Figure("turn with a memory edit (2 steps): wall without the model", wall, "ms")
        yield Figure("  processor time in the server", edit.cpu_median, "ms")
        for agents in _AT_ONCE:
            rate = await throughput(client, server, agents=agents, turns=384)
            budget = 130 if agents > 1 else None
            yield Figure(
                f"turns a second, {agents} at once", rate, "/s", budget, more_is_better=True
            )


def _of_ten(ten: Cost, model: float, health: float) -> Iterator[Figure]:
    """Yield the figures of plain turns with ten messages."""
    wall = ten.wall_median - model
    yield Figure("plain turn, 10 messages: wall without the model", wall, "ms", 10)
    yield Figure("  the fastest one", ten.wall_min - model, "ms")
    yield Figure("  processor time in the server", ten.cpu_median, "ms", 7)
    yield Figure("  smallest round", ten.cpu_min, "ms")
    yield Figure("  in health requests", wall / health, "times")


def measure_process(model_url: str) -> Iterator[Figure]:
    """Yield the costs of starting, and the size of the base."""
    yield Figure("start to the first healthy answer", process.start_seconds(model_url), "s", 1.2)
    yield Figure("import ricordo: processor time", process.import_cpu(), "s", 0.3)
    yield Figure("ricordo --help: processor time", process.help_cpu(), "s", 0.3)
    yield Figure("installed packages, base", process.base_packages(), "", 70)


def measure(report: Report, rounds: int) -> None:
    """Measure everything."""
    with model_server() as model_url:
        report.begin("the start")
        report.add(measure_process(model_url))
        with ricordo(model_url) as server:
            report.add([Figure("resident memory at start", server.memory(), "MB")])
            report.begin("turns")
            asyncio.run(_add_turns(report, model_url, server, rounds))
        report.begin("keys")
        with ricordo(model_url) as keyless, ricordo(model_url, RICORDO_API_KEY=OPERATOR) as locked:
            report.add(asyncio.run(_keys(keyless, locked)))
        with ricordo(model_url) as server:
            asyncio.run(_two_hundred_turns(server))
            report.add([Figure("resident memory after 200 turns", server.memory(), "MB", 120)])
        report.begin("tools")
        report.add(tool_costs(model_url))
        report.begin(f"{A_FEW} files")
        report.add(file_costs(model_url, A_FEW))
        report.begin("pages and lists; filling a server with 10,000 agents comes first")
        with pages.filled(model_url) as server:
            report.add(pages.measure(server))
            report.add(lists.measure(server))


async def _add_turns(report: Report, model_url: str, server: Server, rounds: int) -> None:
    async for figure in measure_turns(model_url, server, rounds):
        report.add([figure])


async def _keys(keyless: Server, locked: Server) -> list[Figure]:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        return await key_costs(client, keyless, locked)


async def _two_hundred_turns(server: Server) -> None:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        await throughput(client, server, agents=8, turns=200)


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=20, help="how often each turn figure is measured"
    )
    options = parser.parse_args()
    report = Report()
    measure(report, options.rounds)
    report.end()
    print(f"Kept in {keep(report.figures)}")


if __name__ == "__main__":
    main()
