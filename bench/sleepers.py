"""The effect of a sleeping agent on a user's turn.

`python -m bench.sleepers` alternates turns of two agents that differ only in one thing: one has a
sleeping agent. Between turns it waits for the sleeping agent's work, since no user waits for that.
"""

import asyncio
import statistics
import time

import httpx2

from bench.report import Figure, show
from bench.servers import Server, model_server, ricordo
from bench.turns import send

TURNS = 200
_TOOLS = ["conversation_search", "archival_memory_search"]
_BLOCKS = [
    {"label": "human", "value": "Her name is Ada."},
    {"label": "persona", "value": "You keep what people tell you."},
]


async def sleeptime_costs(server: Server, turns: int = TURNS) -> list[Figure]:
    """Measure a turn's wall time with and without a sleeping agent, and their quotients."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        agents = [await _create(client, server, has_sleeptime=is_on) for is_on in (False, True)]
        walls: list[list[float]] = [[], []]
        for number in range(turns + 10):
            for which in (0, 1) if number % 2 else (1, 0):
                began = time.perf_counter()
                await send(client, server, agents[which], f"message {number}")
                if number >= 10:
                    walls[which].append((time.perf_counter() - began) * 1000)
                await _rest(client, server)
    without, with_it = (statistics.median(one) for one in walls)
    means = [statistics.mean(sorted(one)[: int(len(one) * 0.9)]) for one in walls]
    return [
        Figure("turn of an agent without a sleeping agent: wall", without, "ms"),
        Figure("turn of an agent with one", with_it, "ms"),
        Figure("  the second divided by the first, median", with_it / without, "times", 1.05),
        Figure(
            "  the second divided by the first, mean of the faster nine tenths",
            means[1] / means[0],
            "times",
            1.05,
        ),
    ]


async def _create(client: httpx2.AsyncClient, server: Server, *, has_sleeptime: bool) -> str:
    body = {
        "model": "openai/bench",
        "memory_blocks": _BLOCKS,
        "enable_sleeptime": has_sleeptime,
        "include_base_tools": False,
        "tools": _TOOLS,
        "message_buffer_autoclear": True,
    }
    response = await client.post(f"{server.url}/v1/agents/", json=body)
    response.raise_for_status()
    return str(response.json()["id"])


async def _rest(client: httpx2.AsyncClient, server: Server) -> None:
    while (await client.get(f"{server.url}/v1/runs/", params={"active": True})).json():  # noqa: ASYNC110 - HTTP has no event
        await asyncio.sleep(0.01)


def main() -> None:
    """Measure and print."""
    with model_server() as model_url, ricordo(model_url) as server:
        show(asyncio.run(sleeptime_costs(server)))


if __name__ == "__main__":
    main()
