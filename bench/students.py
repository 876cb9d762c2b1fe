"""The cost of a class: 200 students talk with one tutor at once by `/chat/stream`.

They take 2,000 turns, and plain agents take as many in the same run. The plain agents are on a
separate server, so each server's memory comes from its own work. `python -m bench.students`
measures this alone, in about a minute.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx2

from bench import report
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.turns import create_agent, send, send_streamed

STUDENTS, EACH = 200, 10  # turns of each student
_MEMORY, _SHARE, _MORE = 200, 0.8, 2
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


async def measure(course: Server, plain: Server) -> list[Figure]:
    """Return turns a second, processor time and memory, for the course and plain agents."""
    limits = httpx2.Limits(max_connections=STUDENTS, max_keepalive_connections=STUDENTS)
    async with (
        httpx2.AsyncClient(
            base_url=course.url, timeout=120, limits=limits, trust_env=False
        ) as to_course,
        httpx2.AsyncClient(
            base_url=plain.url, timeout=120, limits=limits, trust_env=False
        ) as to_plain,
    ):
        (await to_course.put("/v1/courses/essay", json={"source": _COURSE})).raise_for_status()
        agents = [await create_agent(to_plain, plain) for _ in range(STUDENTS)]
        students = [_Student(f"student-{number}") for number in range(STUDENTS)]
        of_plain, of_streamed, of_course = _Cost(), _Cost(), _Cost()
        # The kinds alternate, so that all of them run under the same load of the machine.
        for _ in range(EACH):
            await of_plain.add(plain, *(send(to_plain, plain, agent, "hello") for agent in agents))
            await of_streamed.add(
                plain, *(send_streamed(to_plain, plain, agent, "hello") for agent in agents)
            )
            await of_course.add(course, *(student.talk(to_course) for student in students))
    waits = [wait for student in students for wait in student.waits]
    turns = EACH * STUDENTS
    return [
        Figure(f"turns a second, {STUDENTS} students of one course", turns / of_course.wall, "/s"),
        Figure(f"turns a second, {STUDENTS} plain agents", turns / of_plain.wall, "/s"),
        Figure(
            "  students in plain ones",
            of_plain.wall / of_course.wall,
            "times",
            _SHARE,
            more_is_better=True,
        ),
        Figure(
            "  students in plain ones that are streamed too",
            of_streamed.wall / of_course.wall,
            "times",
        ),
        Figure("processor time of a plain turn", of_plain.cpu / turns * 1000, "ms"),
        Figure(
            "  more where it is streamed", (of_streamed.cpu - of_plain.cpu) / turns * 1000, "ms"
        ),
        Figure(
            "  more for a student's", (of_course.cpu - of_plain.cpu) / turns * 1000, "ms", _MORE
        ),
        Figure("a student's wait for an answer, median", statistics.median(waits) * 1000, "ms"),
        Figure("resident memory, students", course.memory(), "MB", _MEMORY),
        Figure("  plain agents", plain.memory(), "MB"),
    ]


@dataclass
class _Cost:
    """Wall seconds, and CPU seconds of the server."""

    wall: float = 0.0
    cpu: float = 0.0

    async def add(self, server: Server, *turns: Coroutine[Any, Any, None]) -> None:
        began, used = time.perf_counter(), server.cpu()
        await asyncio.gather(*turns)
        self.wall += time.perf_counter() - began
        self.cpu += server.cpu() - used


@dataclass
class _Student:
    """A student's chat. A client sends all messages so far with each request."""

    name: str
    waits: list[float] = field(default_factory=list)
    _said: list[dict[str, str]] = field(default_factory=list)

    async def talk(self, client: httpx2.AsyncClient) -> None:
        """Say something, and wait for the answer.

        Raises RuntimeError if the answer is an error or incomplete.
        """
        self._said.append({"role": "user", "content": "hello"})
        began = time.perf_counter()
        chat = {"user_id": self.name, "chat_id": "1", "messages": self._said}
        answer = await client.post("/chat/stream", json=chat)
        self.waits.append(time.perf_counter() - began)
        if (
            answer.status_code != 200
            or '"type":"done"' not in answer.text
            or '"type":"error"' in answer.text
        ):
            raise RuntimeError(
                f"{self.name} was answered {answer.status_code}: {answer.text[-500:]}"
            )
        words = [
            line.partition('"content":"')[2].rpartition('"')[0]
            for line in answer.text.splitlines()
            if '"type":"message"' in line
        ]
        self._said.append({"role": "assistant", "content": "".join(words)})


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.students", description=__doc__).parse_args()
    with model_server() as model_url, ricordo(model_url) as course, ricordo(model_url) as plain:
        figures = asyncio.run(measure(course, plain))
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
