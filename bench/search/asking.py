"""Searches over HTTP, one after the other: the time at the client, and the cost of the server."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

LIMIT = 10
_WARMING = 10
_WRITES_A_SECOND = 10


@dataclass(frozen=True)
class Times:
    """Milliseconds of a search.

    `p50` and `p95` are wall times at the client, `cpu` is the server's processor time.
    """

    p50: float
    p95: float
    cpu: float


@dataclass(frozen=True)
class Target:
    """The searched data: messages of an agent or passages of an archive.

    `owner` names the agent or the archive, as in a request.
    """

    kind: str
    owner: dict[str, str]

    async def ask(self, client: httpx2.AsyncClient, question: str, **more: Any) -> list[Any]:
        """Search once; raise unless there is an answer."""
        body = {"query": question, "limit": LIMIT, **self.owner, **more}
        hits: list[Any] = await post(client, f"/v1/{self.kind}/search", body)
        return hits


async def measure(
    client: httpx2.AsyncClient,
    cpu: Callable[[], float],
    target: Target,
    questions: Sequence[str],
    **more: Any,
) -> Times:
    """Ask every question once, after some warm-up.

    `cpu` returns the server's CPU seconds so far.
    """
    for question in questions[:_WARMING]:
        await target.ask(client, question, **more)
    walls = []
    before = cpu()
    for question in questions:
        began = time.perf_counter()
        await target.ask(client, question, **more)
        walls.append((time.perf_counter() - began) * 1000)
    each = (cpu() - before) / len(questions) * 1000
    return Times(statistics.median(walls), sorted(walls)[int(len(walls) * 0.95)], each)


@asynccontextmanager
async def writes(
    client: httpx2.AsyncClient, agent_id: str, archive_id: str
) -> AsyncIterator[list[float]]:
    """Store a message and a passage ten times a second within the block.

    Yields the milliseconds of each pair so far.
    """
    took: list[float] = []

    async def write() -> None:
        for number in itertools.count():
            text = (
                f"While others search, this is said for the {number}th time about tea and trains."
            )
            began = time.perf_counter()
            message = {"role": "user", "content": text, "name": "Ada"}
            await post(client, f"/v1/agents/{agent_id}/messages/import", {"messages": [message]})
            await post(
                client, f"/v1/archives/{archive_id}/passages", {"text": text, "tags": ["tag 3"]}
            )
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(max(0.0, 1 / _WRITES_A_SECOND - took[-1] / 1000))

    writing = asyncio.create_task(write())
    try:
        yield took
    finally:
        if writing.done():
            writing.result()
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


async def insert_rate(
    client: httpx2.AsyncClient, cpu: Callable[[], float], texts: Sequence[str], batch: int
) -> tuple[float, float]:
    """Measure passages a second into a new archive, and the server's time for each."""
    archive = (await post(client, "/v1/archives/", {"name": "In batches"}))["id"]
    # The first request creates objects that later requests use.
    await post(
        client,
        f"/v1/archives/{archive}/passages/batch",
        {"passages": [{"text": "The first of all."}]},
    )
    before, began = cpu(), time.perf_counter()
    for start in range(0, len(texts), batch):
        passages = [
            {"text": text, "tags": [f"tag {start % 7}"]} for text in texts[start : start + batch]
        ]
        await post(client, f"/v1/archives/{archive}/passages/batch", {"passages": passages})
    seconds = time.perf_counter() - began
    return len(texts) / seconds, (cpu() - before) / len(texts) * 1000


async def post(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """Return the answer to a request; raise if it is an error."""
    answer = await client.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()
