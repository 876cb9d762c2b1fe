"""What a class costs: 200 students at once with one tutor by `/chat/stream`, 2,000 turns, beside plain turns in the same run.

`python -m bench.students` measures this alone, in about a minute.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Coroutine
from typing import Any

import httpx2

from bench import report
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.turns import create_agent, send

STUDENTS, EACH = 200, 10  # turns of each
_MEMORY, _SHARE = 200, 0.8
_COURSE = """
[[agent]]
name = "coach"
model = "openai/bench"
instructions = "Coach the student."
workspace = "isolated"
[[block]]
label = "student"
[block.fields.name]
[block.fields.interests]
kind = "list"
[[block]]
label = "notes"
"""


async def measure(server: Server) -> list[Figure]:
    """Turns a second of plain agents and of the course, and what the server holds in memory."""
    limits = httpx2.Limits(max_connections=STUDENTS, max_keepalive_connections=STUDENTS)
    async with httpx2.AsyncClient(base_url=server.url, timeout=120, limits=limits, trust_env=False) as client:
        (await client.put("/v1/courses/essay", json={"source": _COURSE})).raise_for_status()
        agents = [await create_agent(client, server) for _ in range(STUDENTS)]
        # In turns, so that both meet the machine as it is: a run of plain turns before and after the class.
        before = await _rate(*(_plain(client, server, agent) for agent in agents))
        walls: list[float] = []
        course = await _rate(*(_student(client, f"student-{number}", walls) for number in range(STUDENTS)))
        most = server.memory()
        after = await _rate(*(_plain(client, server, agent) for agent in agents))
    plain = (before + after) / 2
    return [
        Figure(f"turns a second, {STUDENTS} students of one course", course, "/s"),
        Figure(f"turns a second, {STUDENTS} plain agents", plain, "/s"),
        Figure("  students in plain ones", course / plain, "times", _SHARE, more_is_better=True),
        Figure("a student's wait for an answer, median", statistics.median(walls) * 1000, "ms"),
        Figure("resident memory", most, "MB", _MEMORY),
    ]


async def _rate(*talks: Coroutine[Any, Any, None]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*talks)
    return len(talks) * EACH / (time.perf_counter() - began)


async def _plain(client: httpx2.AsyncClient, server: Server, agent: str) -> None:
    for _ in range(EACH):
        await send(client, server, agent, "hello")


async def _student(client: httpx2.AsyncClient, user: str, walls: list[float]) -> None:
    """One chat that goes on, as a client sends it: with all of its messages so far."""
    said: list[dict[str, str]] = []
    for _ in range(EACH):
        said.append({"role": "user", "content": "hello"})
        began = time.perf_counter()
        answer = await client.post("/chat/stream", json={"user_id": user, "chat_id": "1", "messages": said})
        walls.append(time.perf_counter() - began)
        if answer.status_code != 200 or '"type":"done"' not in answer.text or '"type":"error"' in answer.text:
            raise RuntimeError(f"{user} was answered {answer.status_code}: {answer.text[-500:]}")
        words = [
            line.partition('"content":"')[2].rpartition('"')[0]
            for line in answer.text.splitlines()
            if '"type":"message"' in line
        ]
        said.append({"role": "assistant", "content": "".join(words)})


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.students", description=__doc__).parse_args()
    with model_server() as model_url, ricordo(model_url) as server:
        figures = asyncio.run(measure(server))
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
