"""The cost of each page on a large server.

It has 10,000 agents, 100,000 messages, 2,000 people, and 500 proposals that wait.

`python -m bench.pages` measures this alone, in about two minutes.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import bindparam, insert, select, update

from bench import report
from bench.report import Figure
from bench.search.copying import Copies
from bench.servers import Server, model_server, ricordo
from bench.turns import create_agent, send
from bench.waiting import wait_for_index
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.memory import user_memory
from ricordo.pages.statics import STATIC, TYPES
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    agents_tools,
    conversations,
    messages,
    runs,
    steps,
)
from tests.support.browser import open_browser, visit

AGENTS, MESSAGES, PEOPLE, PROPOSALS = 10_000, 100_000, 2_000, 500
_LONG, _EACH = 10_000, 9  # messages of one long conversation, and of each other agent
_ROUNDS, _SEED = 11, 15
_SETTLES = 5  # seconds for the work after a start
_BUDGET, _STATIC_BUDGET, _PAINT_BUDGET = 30, 150, 500
_PAINTED = """() => new Promise((tell) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) tell(one.startTime);
}).observe({ type: "paint", buffered: true }))"""
_WORDS = "tea chess river proofs evening walks books garden music trains paint bread".split()
_AGENT = Actor("agent", "agent-bench", "Bench")


async def fill(model_url: str, folder: Path) -> None:
    """Fill two agents with messages, copy the first, and store people's memory."""
    with (
        ricordo(model_url, folder) as server,
        httpx2.Client(base_url=server.url, timeout=60) as http,
    ):
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            template, long = await create_agent(client, server), await create_agent(client, server)
            for agent in (template, long):
                for text in ("hello", "edit"):
                    await send(client, server, agent, text)
        count = len(http.get(f"/v1/agents/{template}/messages", params={"limit": 100}).json())
        _import(http, template, max(0, _EACH - count))
        for _ in range(_LONG // 1000):
            _import(http, long, 1000)
        wait_for_index(http)
    store = open_sqlite(folder / "ricordo.db")
    chance = random.Random(_SEED)
    for first in range(1, AGENTS - 1, 500):
        numbers = range(first, min(first + 500, AGENTS - 1))
        await store.write(lambda tx, numbers=numbers: copy_agents(tx, template, numbers))  # type: ignore[misc]
    for first in range(0, PEOPLE, 500):
        people = range(first, min(first + 500, PEOPLE))
        await store.write(lambda tx, people=people: remember(tx, people, chance))  # type: ignore[misc]
    await store.close()


def _import(http: httpx2.Client, agent: str, count: int) -> None:
    chance = random.Random(f"{agent}{count}")
    said = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": f"{number} {' '.join(chance.choices(_WORDS, k=12))}",
        }
        for number in range(count)
    ]
    if said:
        http.post(f"/v1/agents/{agent}/messages/import", json={"messages": said}).raise_for_status()


def copy_agents(tx: Transaction, template: str, numbers: range) -> None:
    """Copy the agent with its messages, index, tools, and newest run with its steps."""
    tools = [
        row.tool_id
        for row in tx.all(select(agents_tools).where(agents_tools.c.agent_id == template))
    ]
    (run, *_) = tx.all(select(runs).where(runs.c.agent_id == template).order_by(runs.c.seq.desc()))
    taken = tx.all(select(steps).where(steps.c.run_id == run.id))
    for number in numbers:
        Copies(template, number).of_agent(tx)
    copied = tx.all(
        select(agents.c.id, conversations.c.id.label("conversation"))
        .join(conversations, conversations.c.agent_id == agents.c.id)
        .order_by(agents.c.seq.desc())
        .limit(len(numbers))
    )
    tx.run(
        insert(agents_tools),
        [{"agent_id": row.id, "tool_id": tool} for row in copied for tool in tools],
    )
    made: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for row in copied:
        where = {"id": new_id("run"), "agent_id": row.id, "conversation_id": row.conversation}
        of_run = where | {"run_id": where["id"]}
        made.append(
            (_new(run, where), [_new(step, of_run | {"id": new_id("step")}) for step in taken])
        )
    tx.run(insert(runs), [one for one, _ in made])
    # Each copied message belongs to the run of its agent.
    changed = update(messages).where(
        messages.c.agent_id == bindparam("of_agent"), messages.c.run_id.is_not(None)
    )
    tx.run(
        changed.values(run_id=bindparam("made_by")),
        [{"of_agent": one["agent_id"], "made_by": one["id"]} for one, _ in made],
    )
    tx.run(insert(steps), [step for _, some in made for step in some])


def _new(row: Any, changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row._mapping.items() if name != "seq"} | changes


def remember(tx: Transaction, people: range, chance: random.Random) -> None:
    """Give each of these people two blocks, and every fourth a proposal that waits."""
    for number in people:
        memory = user_memory.open_memory(tx, Scope(), f"person {number}", makes=True)
        for label in ("human", "notes"):
            lines = [f"{line} {' '.join(chance.choices(_WORDS, k=10))}" for line in range(12)]
            user_memory.put(
                tx, memory, label, "\n".join(lines), Actor("user", memory.user.id, memory.user.name)
            )
        if number % (PEOPLE // PROPOSALS) == 0:
            user_memory.propose_edit(tx, memory, "notes", lines[0], "Changed.", _AGENT)


def pages(http: httpx2.Client) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of a large page of each kind."""

    def first(path: str, **query: Any) -> Any:
        return http.get(path, params={"limit": 1, **query}).raise_for_status().json()[0]

    long = first("/v1/agents/")["id"]  # the newest: copies have an older time
    agent = f"/ui/agents/{long}"
    run, job = first("/v1/runs/", agent_id=long)["id"], first("/v1/jobs/")["id"]
    waiting = first("/users/person 0/diffs")["id"]
    home = "/ui/people/person 0"
    block = f"{home}/blocks/human"
    yield from (
        *(("home", "/"), ("agents", "/ui/agents"), ("agents by a word", "/ui/agents?q=bench")),
        *(("a chat of 10,000 messages", f"{agent}/chat"), ("an agent's memory", f"{agent}/memory")),
        *(("its context window", f"{agent}/context"), ("its archive", f"{agent}/archive")),
        *(
            ("its settings", f"{agent}/settings"),
            ("people", "/ui/people"),
            ("people by a word", "/ui/people?q=1999"),
        ),
        *(
            ("a person's memory", home),
            ("a block's editor", f"{block}?edit=1"),
            ("history", f"{block}/history"),
        ),
        *(("blame", f"{block}/blame"), ("a proposal", f"/ui/proposals/{waiting}")),
        *(
            ("search", "/ui/search?q=tea+and+chess"),
            ("runs", "/ui/runs"),
            ("a run", f"/ui/runs/{run}"),
        ),
        *(("jobs", "/ui/jobs"), ("a job", f"/ui/jobs/{job}"), ("models", "/ui/models")),
        *(("settings", "/ui/settings"), ("login", "/ui/login")),
    )


def measure(server: Server) -> Iterator[Figure]:
    """Measure each page's processor time in the server, and two pages in a browser."""
    walls: dict[str, float] = {}
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        time.sleep(_SETTLES)
        for name, path in pages(http):
            costs = []
            for _ in range(_ROUNDS):
                before, began = server.cpu(), time.perf_counter()
                answer = http.get(path)
                costs.append(((server.cpu() - before) * 1000, (time.perf_counter() - began) * 1000))
                if answer.status_code != 200:
                    raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:300]}")
            cpu, walls[name] = (statistics.median(one) for one in zip(*costs, strict=True))
            yield Figure(f"page: {name}, {len(answer.content) // 1000} kB", cpu, "ms", _BUDGET)
        weight = sum(len(http.get(f"{STATIC}/{name}").content) for name in TYPES) / 1000
    slowest = max(walls, key=lambda name: walls[name])
    yield Figure(f"slowest page: wall ({slowest})", walls[slowest], "ms")
    yield Figure("all pages: wall, on average", statistics.mean(walls.values()), "ms")
    yield Figure("styles and scripts of the pages", weight, "kB", _STATIC_BUDGET)
    yield from _paints(server)


def _paints(server: Server) -> Iterator[Figure]:
    """Yield a browser's times to the first paint, with an empty cache each time."""
    with open_browser() as browser:
        for name, path in (("home", "/"), ("agents", "/ui/agents")):
            times = []
            for _ in range(5):
                with visit(browser, server.url) as visitor:
                    page = visitor.see(path)
                    times.append(float(page.evaluate(_PAINTED)))
            painted = statistics.median(times)
            yield Figure(f"first paint of a page: {name}", painted, "ms", _PAINT_BUDGET)


@contextmanager
def filled(model_url: str) -> Iterator[Server]:
    """A server on a folder that `fill` filled."""
    with tempfile.TemporaryDirectory(prefix="ricordo-pages-") as folder:
        asyncio.run(fill(model_url, Path(folder)))
        with ricordo(model_url, Path(folder)) as server:
            yield server


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__).parse_args()
    with model_server() as model_url, filled(model_url) as server:
        figures = list(measure(server))
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
