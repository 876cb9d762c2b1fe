"""The effect on other clients when one user sends the same request again and again.

For each costly request of memory, 20 connections send it without a pause. `python -m bench.pushes`
measures this alone, in about three minutes: the p99 of another client's health checks, and the
largest memory of the server.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from bench import report
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from tests.support.health_probe import HealthProbe

CONNECTIONS, SECONDS = 20, 8
_BUDGET, _MOST_MB = 50, 350
_KB = 1024
_LIMIT = {"limit": 2_000_000}


@dataclass
class Push:
    """One request that is sent again and again.

    `is_read` says whether the answers are read.
    """

    name: str
    path: str
    body: Any = None
    method: str = "GET"
    is_read: bool = True

    def wire(self, number: int) -> bytes:
        """Return the bytes of the request."""
        body = self.body(number) if callable(self.body) else self.body
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        return (
            f"{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            + content
        )


def _lines(number: int) -> str:
    return "".join(f"{number}{line:05}\n" for line in range(50_000))[: 490 * _KB]


def _json_text(number: int) -> str:
    return json.dumps({f"field {place}": f"value {number}" for place in range(13_000)})[: 490 * _KB]


def fill(url: str) -> list[Push]:
    """Store as much as the quotas allow, and return the requests."""
    with httpx2.Client(base_url=url, timeout=120, trust_env=False) as http:

        def ask(method: str, path: str, body: Any = None) -> Any:
            answer = http.request(method, path, json=body)
            answer.raise_for_status()
            return answer.json()

        for number in range(6):
            ask("PUT", "/users/ada/blocks/lines", {"body": _lines(number), **_LIMIT})
        for number in range(14):
            ask("PUT", f"/users/ada/blocks/more {number}", {"body": "é word " * 60_000, **_LIMIT})
        blocks = [
            ask(
                "POST",
                "/v1/blocks/",
                {"label": f"block_{number}", "value": "a word " * 70_000, **_LIMIT},
            )["id"]
            for number in range(16)
        ]
        made = [
            ask("POST", "/v1/agents/", {"name": f"a{number}", "block_ids": blocks})["id"]
            for number in range(25)
        ]
    agent = f"/v1/agents/{made[0]}"
    edit = {"old_string": "500001", "new_string": "1", "reasoning": "Shorter."}
    return [
        Push("the OpenAPI document", "/openapi.json"),
        Push("blame of 50,000 lines", "/users/ada/blocks/lines/blame"),
        Push("comparison of 50,000 lines", "/users/ada/blocks/lines/compare"),
        Push(
            "a JSON block of 490 kB",
            "/users/ada/blocks/json",
            lambda n: {"body": _json_text(n), **_LIMIT},
            "PUT",
        ),
        Push(
            "a JSON block of 20 MB",
            "/users/ada/blocks/huge",
            {"body": "{}, " * 5_000_000, **_LIMIT},
            "PUT",
        ),
        Push("an agent of 8 MB", agent),
        Push("its blocks", f"{agent}/core-memory/blocks"),
        Push("a list of 25 such agents", "/v1/agents/?limit=25"),
        Push("a list of blocks", "/v1/blocks/?limit=1000"),
        Push("a user's blocks", "/users/ada/blocks"),
        Push("proposals for a large block", "/users/ada/blocks/lines/propose", edit, "POST"),
        Push("a list of proposals", "/users/ada/diffs?limit=100"),
        Push("answers that nobody reads", agent, is_read=False),
    ]


async def _send(push: Push, port: int, number: int, end: float, heard: Counter[str]) -> None:
    """Send the request repeatedly on one connection, and read the answers or not."""
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        try:
            while time.monotonic() < end:
                writer.write(push.wire(number))
                if not push.is_read:
                    await asyncio.sleep(max(0.0, end - time.monotonic()))
                    return
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                heard[head[9:12].decode()] += 1
                left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
                while left:
                    left -= len(await reader.readexactly(min(left, 1 << 18)))
                if head[9:12] == b"503":
                    await asyncio.sleep(0.2)
        except (OSError, asyncio.IncompleteReadError):
            heard["closed"] += 1
        finally:
            writer.close()


async def measure_push(
    server: Server, push: Push, seconds: float
) -> tuple[float, float, Counter[str]]:
    """Return the p99 of health (ms), the largest memory (MB), and the statuses' counts."""
    port, heard, most = int(server.url.rpartition(":")[2]), Counter[str](), 0.0
    end = time.monotonic() + seconds
    async with HealthProbe(port) as probe:
        sending = [
            asyncio.create_task(_send(push, port, number, end, heard))
            for number in range(CONNECTIONS)
        ]
        while time.monotonic() < end:
            most = max(most, server.memory())
            await asyncio.sleep(0.05)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*sending), 60)
        most = max(most, server.memory())
    return probe.p99, most, heard


async def measure(
    server: Server, pushes: list[Push], seconds: float, show: Callable[[str], None]
) -> list[Figure]:
    """Measure health alone, and during each push."""
    async with HealthProbe(int(server.url.rpartition(":")[2])) as idle:
        await asyncio.sleep(3)
    figures = [Figure("another client's health, p99, with no push", idle.p99, "ms")]
    show(f"idle: {idle.p99:.0f} ms, {server.memory():.0f} MB")
    for push in pushes:
        p99, most, heard = await measure_push(server, push, seconds)
        show(f"{push.name}: p99 {p99:.0f} ms, {most:.0f} MB, answers {dict(heard)}")
        figures += [
            Figure(f"{push.name}: another client's health, p99", p99, "ms", _BUDGET),
            Figure("  most resident memory", most, "MB", _MOST_MB),
        ]
    return figures


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each is pushed")
    parser.add_argument("--only", default="", help="a piece of the names of those to push")
    given = parser.parse_args()
    with model_server() as model_url, ricordo(model_url) as server:
        pushes = [push for push in fill(server.url) if given.only in push.name]
        figures = asyncio.run(
            measure(server, pushes, given.seconds, lambda line: print(line, flush=True))
        )
        report.show(figures)


if __name__ == "__main__":
    main()
