"""`python -m bench` measures turns, start, memory, pages and lists in about ten minutes.

The campaigns are tests: `make soak`.
"""

import argparse
import asyncio

import httpx2

from bench import lists, pages, process, report
from bench.files import file_costs
from bench.keys import OPERATOR, key_costs
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.tools import tool_costs
from bench.turns import call_cost, plain_turns, throughput


async def measure_turns(model_url: str, server: Server, rounds: int) -> list[Figure]:
    """The costs of turns without the model's time, beside a small request of the same run."""
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx2.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
        await plain_turns(
            client, server, window=10, rounds=3
        )  # the first turns load what is loaded on first use
        model = await call_cost(
            client, f"{model_url}/chat/completions", body={"model": "bench", "messages": []}
        )
        health = await call_cost(client, f"{server.url}/v1/health/")
        ten = await plain_turns(client, server, window=10, rounds=rounds)
        sixty = await plain_turns(client, server, window=60, rounds=max(3, rounds // 4))
        edit = await plain_turns(client, server, window=10, rounds=rounds, text="edit")
        rates = {
            agents: await throughput(client, server, agents=agents, turns=384)
            for agents in (1, 8, 32)
        }
    wall = ten.wall_median - model
    return [
        Figure("plain turn, 10 messages: wall without the model", wall, "ms", 10),
        Figure("  the fastest one", ten.wall_min - model, "ms"),
        Figure("  processor time in the server", ten.cpu_median, "ms", 7),
        Figure("  smallest round", ten.cpu_min, "ms"),
        Figure("plain turn, 60 messages: wall without the model", sixty.wall_median - model, "ms"),
        Figure("  processor time in the server", sixty.cpu_median, "ms", 9),
        Figure(
            "turn with a memory edit (2 steps): wall without the model",
            edit.wall_median - 2 * model,
            "ms",
        ),
        Figure("  processor time in the server", edit.cpu_median, "ms"),
        Figure("turns a second, 1 agent", rates[1], "/s"),
        Figure("turns a second, 8 agents at once", rates[8], "/s", 130, more_is_better=True),
        Figure("turns a second, 32 agents at once", rates[32], "/s", 130, more_is_better=True),
        Figure("yardstick: one health request", health, "ms"),
        Figure("yardstick: one call to the model", model, "ms"),
        Figure("plain turn in health requests", wall / health, "times"),
    ]


def measure_process(model_url: str) -> list[Figure]:
    """The costs of starting, and the size of the base."""
    return [
        Figure("start to the first healthy answer", process.start_seconds(model_url), "s", 1.2),
        Figure("import ricordo: processor time", process.import_cpu(), "s", 0.3),
        Figure("ricordo --help: processor time", process.help_cpu(), "s", 0.3),
        Figure("installed packages, base", process.base_packages(), "", 70),
    ]


def measure(rounds: int) -> list[Figure]:
    """Measure everything."""
    with model_server() as model_url:
        figures = measure_process(model_url)
        with ricordo(model_url) as server:
            at_start = server.memory()
            figures += asyncio.run(measure_turns(model_url, server, rounds))
        with ricordo(model_url) as keyless, ricordo(model_url, RICORDO_API_KEY=OPERATOR) as locked:
            figures += asyncio.run(_keys(keyless, locked))
        with ricordo(model_url) as server:
            asyncio.run(_two_hundred_turns(server))
            figures.append(Figure("resident memory at start", at_start, "MB"))
            figures.append(Figure("resident memory after 200 turns", server.memory(), "MB", 120))
        with pages.filled(model_url) as server:
            figures += pages.measure(server)
            figures += lists.measure(server)
        figures += tool_costs(model_url)
        figures += file_costs(model_url)
    return figures


async def _keys(keyless: Server, locked: Server) -> list[Figure]:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        return await key_costs(client, keyless, locked)


async def _two_hundred_turns(server: Server) -> None:
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        await throughput(client, server, agents=8, turns=200)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=20, help="how often each turn figure is measured"
    )
    options = parser.parse_args()
    figures = measure(options.rounds)
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
