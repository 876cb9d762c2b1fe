"""The cost of a turn over HTTP.

The bench measures wall time, processor time of the server, and turns a second with many agents at
once.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass

import httpx2

from bench.servers import Server

_FRESH_AFTER = 6
# After three turns a window of about 10 messages has 8 to 14.
TURNS_AN_AGENT = 3
_BLOCKS = [
    {"label": "persona", "value": "You keep what people tell you. " * 20},
    {"label": "human", "value": "Her name is Ada."},
]


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a turn: wall time at the client, and processor time of the server.

    The wall times are of all turns. A processor time is the average of the three turns of a round.
    """

    wall_min: float
    wall_median: float
    cpu_min: float
    cpu_median: float


async def plain_turns(
    client: httpx2.AsyncClient, server: Server, *, window: int, rounds: int, text: str = "hello"
) -> Cost:
    """Measure turns with about `window` messages in context, with one agent after the other."""
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(rounds):
        agent = await create_agent(client, server)
        for _ in range((window - 2) // 2):
            await send(client, server, agent, "warming up")
        before = server.cpu()
        for _ in range(TURNS_AN_AGENT):
            began = time.perf_counter()
            await send(client, server, agent, text)
            walls.append((time.perf_counter() - began) * 1000)
        cpus.append((server.cpu() - before) / TURNS_AN_AGENT * 1000)
    return Cost(min(walls), statistics.median(walls), min(cpus), statistics.median(cpus))


async def throughput(
    client: httpx2.AsyncClient, server: Server, *, agents: int, turns: int
) -> float:
    """Return turns a second of this many agents at once.

    Each has a client that waits for its answer. After a few turns a client continues with a new
    agent, so that windows stay at about 10 messages.
    """
    each = max(1, turns // agents // _FRESH_AFTER)
    shares = [[await create_agent(client, server) for _ in range(each)] for _ in range(agents)]

    async def talk(share: list[str]) -> None:
        for agent in share:
            for _ in range(_FRESH_AFTER):
                await send(client, server, agent, "hello")

    began = time.perf_counter()
    await asyncio.gather(*(talk(share) for share in shares))
    return each * agents * _FRESH_AFTER / (time.perf_counter() - began)


async def call_cost(
    client: httpx2.AsyncClient, url: str, *, calls: int = 300, body: object = None
) -> float:
    """Return the median wall milliseconds of one small request, for comparison in the same run."""
    walls = []
    for _ in range(calls):
        began = time.perf_counter()
        response = await (client.post(url, json=body) if body else client.get(url))
        response.raise_for_status()
        walls.append((time.perf_counter() - began) * 1000)
    return statistics.median(walls)


async def create_agent(client: httpx2.AsyncClient, server: Server) -> str:
    """Make an agent with two blocks and the default tools; return its id."""
    body = {"model": "openai/bench", "memory_blocks": _BLOCKS}
    response = await client.post(f"{server.url}/v1/agents/", json=body)
    response.raise_for_status()
    return str(response.json()["id"])


async def send(client: httpx2.AsyncClient, server: Server, agent: str, text: str) -> None:
    """Take one turn; raise unless the answer is complete."""
    body = {"messages": [{"role": "user", "content": text}]}
    response = await client.post(f"{server.url}/v1/agents/{agent}/messages", json=body)
    response.raise_for_status()


async def send_streamed(client: httpx2.AsyncClient, server: Server, agent: str, text: str) -> None:
    """Take one turn that streams tokens; raise unless the answer is complete."""
    body = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
    response = await client.post(f"{server.url}/v1/agents/{agent}/messages/stream", json=body)
    if response.status_code != 200 or not response.text.endswith("data: [DONE]\n\n"):
        raise RuntimeError(
            f"The stream was answered {response.status_code}: {response.text[-500:]}"
        )
