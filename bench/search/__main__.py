"""`python -m bench.search` fills SQLite and PostgreSQL and searches them over HTTP.

One agent has 100,000 messages and one archive 100,000 passages; all others together have a million
rows. With `--quick` there are few rows; `--long` also searches a million passages in one archive.
"""

import argparse
import asyncio
import statistics
import time
from functools import partial
from typing import Any

import httpx2

from bench import report
from bench.report import Figure
from bench.search import asking, nearest
from bench.search.asking import Target, Times, post
from bench.search.filling import Filled, Wanted
from bench.search.places import Place, place
from bench.search.texts import Writer
from bench.servers import Server, model_server
from bench.turns import call_cost, create_agent, send
from bench.waiting import wait_for_index

P50, P95 = 10, 25
MEMORY = 450
BATCH = 500
TURNS = 30
_DAYS = {"start_date": "2020-01-01", "end_date": "2020-04-30"}
# The searches of messages and of passages: the name of each, and its fields besides the query.
FILTERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "messages": [
        ("as shipped", {}),
        ("words alone", {"search_mode": "fts"}),
        ("of one role", {"roles": ["user"]}),
        ("of four months", dict(_DAYS)),
        ("of one role, of four months", {"roles": ["assistant"], **_DAYS}),
    ],
    "passages": [
        ("as shipped", {}),
        ("words alone", {"search_mode": "fts"}),
        ("with one of two tags", {"tags": ["tag 3", "tag 4"]}),
        (
            "with both tags, of four months",
            {"tags": ["tag 3", "part 1"], "tag_match_mode": "all", **_DAYS},
        ),
    ],
}


async def measure_searches(
    place: Place, server: Server, wanted: Wanted, questions: list[str]
) -> list[Figure]:
    """Measure searches with each filter, then searches during writes.

    A health request is measured for comparison.
    """
    cpu = partial(place.cpu, server)
    agent, archive = {"agent_id": wanted.agent_id}, {"archive_id": wanted.archive_id}
    targets = [Target("messages", agent), Target("passages", archive)]
    async with _client(server) as client:
        health = await call_cost(client, f"{server.url}/v1/health/")
        figures = [Figure(f"{place.name}: yardstick: one health request", health, "ms")]
        for target in targets:
            for name, more in FILTERS[target.kind]:
                times = await asking.measure(client, cpu, target, questions, **more)
                figures += _figures(f"{place.name}: search {target.kind}, {name}", times, health)
        async with asking.writes(client, wanted.agent_id, wanted.archive_id) as took:
            for target in targets:
                times = await asking.measure(client, cpu, target, questions)
                figures += _figures(
                    f"{place.name}: search {target.kind} while others write", times, health
                )
        figures.append(
            Figure("  a message and a passage stored meanwhile", statistics.median(took), "ms")
        )
    return figures


async def measure_turns(place: Place, server: Server, large: str, rounds: int) -> list[Figure]:
    """Measure alternating turns on the large and on an empty agent, whose windows grow alike."""
    walls: dict[str, list[float]] = {"large": [], "empty": []}
    costs = {"large": 0.0, "empty": 0.0}
    async with _client(server) as client:
        agents = {"large": large, "empty": await create_agent(client, server)}
        for number in range(rounds):
            for name, agent in agents.items():
                before, began = place.cpu(server), time.perf_counter()
                await send(client, server, agent, "hello")
                if number:  # the first turn loads data for later ones
                    walls[name].append((time.perf_counter() - began) * 1000)
                    costs[name] += place.cpu(server) - before
    wall = {name: statistics.median(times) for name, times in walls.items()}
    return [
        Figure(
            f"{place.name}: turn on the large agent against one on an empty one",
            wall["large"] / wall["empty"],
            "times",
            1.5,
        ),
        Figure("  wall on the large one", wall["large"], "ms"),
        Figure("  wall on the empty one", wall["empty"], "ms"),
        Figure("  processor time, one against the other", costs["large"] / costs["empty"], "times"),
    ]


async def measure_inserts(place: Place, server: Server, count: int) -> list[Figure]:
    """Measure passages that are stored in batches, without an embedding model."""
    async with _client(server) as client:
        texts = Writer(7).texts(count)
        rate, cost = await asking.insert_rate(client, partial(place.cpu, server), texts, BATCH)
    return [
        Figure(
            f"{place.name}: passages stored in batches of {BATCH}",
            rate,
            "/s",
            2_000,
            more_is_better=True,
        ),
        Figure("  processor time for one, merges beside it", cost, "ms"),
    ]


def measure_place(
    place: Place,
    model_url: str,
    rows: int,
    others: int,
    searches: int,
    *,
    with_answers: bool = False,
) -> list[Figure]:
    """Measure everything on one database."""
    with place.server(model_url, RICORDO_EMBEDDING="none") as server:
        agent_id, archive_id = asyncio.run(_make_owners(server))
    wanted = Wanted(agent_id, archive_id, rows, others, with_answers=with_answers)
    filled = place.fill(wanted)
    figures = _filling_figures(place, wanted, filled)
    with place.server(model_url, RICORDO_EMBEDDING="none") as server:
        figures += asyncio.run(measure_inserts(place, server, min(20_000, rows)))
    with place.server(model_url) as server:
        _wait(server)
        place.clear()
        half = searches // 2
        questions = [*filled.questions[:half], *filled.questions[-half:]]
        figures += asyncio.run(measure_searches(place, server, wanted, questions))
        figures += asyncio.run(measure_turns(place, server, wanted.agent_id, TURNS))
        figures.append(
            Figure(f"{place.name}: resident memory of the server", server.memory(), "MB", MEMORY)
        )
    return figures


def measure_nearest(count: int) -> list[Figure]:
    """Compare a first pass over bits with an exact comparison, without server or database."""
    found = nearest.measure(count)
    if found is None:
        return []
    return [
        Figure(
            f"ten nearest of {count} vectors: recall against exact",
            found.recall,
            "",
            0.95,
            more_is_better=True,
        ),
        Figure("  one look, one conversation", found.took, "ms"),
        Figure("  against comparing all of them", found.took / found.exact_took, "times"),
    ]


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="with 5,000 rows beside 40,000: shows that all works, not how fast",
    )
    parser.add_argument(
        "--long", action="store_true", help="add a million passages in one archive on PostgreSQL"
    )
    parser.add_argument(
        "--answers",
        action="store_true",
        help="every second message has about 640 words, as a long answer",
    )
    parser.add_argument(
        "--only",
        choices=("sqlite", "postgres", "nearest", "switching", "million"),
        help="one part only",
    )
    parser.add_argument("--rows", type=int, help="rows of the large agent and of the large archive")
    parser.add_argument("--others", type=int, help="rows of others")
    options = parser.parse_args()
    rows = options.rows or (5_000 if options.quick else 100_000)
    others = (
        options.others if options.others is not None else (40_000 if options.quick else 1_000_000)
    )
    figures: list[Figure] = []
    with model_server() as model_url:
        for name in ("sqlite", "postgres"):
            if options.only in (None, name):
                with place(name) as here:
                    figures += measure_place(
                        here,
                        model_url,
                        rows,
                        others,
                        60 if options.quick else 200,
                        with_answers=options.answers,
                    )
        if options.only in (None, "nearest"):
            figures += measure_nearest(rows)
        if options.only in (None, "switching"):
            from bench.search.switching import measure_switching

            for name in ("sqlite", "postgres"):
                with place(name) as here:
                    figures += measure_switching(here, min(rows, 10_000))
        if options.only == "million" or (options.long and not options.only):
            from bench.search.million import SETTINGS, measure_million

            with place("postgres", SETTINGS) as here:
                figures += measure_million(here, model_url, options.rows or 1_000_000)
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


async def _make_owners(server: Server) -> tuple[str, str]:
    """Make the agent and its archive, which will be large."""
    async with _client(server) as client:
        agent = await create_agent(client, server)
        archive = str((await post(client, "/v1/archives/", {"name": "Large"}))["id"])
        attached = await client.patch(f"/v1/agents/{agent}/archives/attach/{archive}")
        attached.raise_for_status()
    return agent, archive


def _filling_figures(place: Place, wanted: Wanted, filled: Filled) -> list[Figure]:
    figures = [Figure(f"{place.name}: filled in", filled.seconds, "s")]
    for kind in wanted.kinds:
        cost = filled.indexed[kind] + filled.merged[kind]
        name = f"{place.name}: indexing one of {wanted.rows} {kind}: processor time"
        figures += [
            Figure(name, cost, "ms", 0.3),
            Figure("  of it merging", filled.merged[kind], "ms"),
            Figure("  storing it with its index, before merging", filled.stored[kind], "ms"),
            Figure("  bytes of its text", filled.text_bytes[kind], "B"),
            Figure("  bytes of its index, vectors included", filled.index_bytes[kind], "B"),
        ]
        if kind in filled.embedded:
            figures.append(Figure("  embedding it: processor time", filled.embedded[kind], "ms"))
        if filled.database[kind]:
            figures.append(Figure("  in PostgreSQL, for all of it", filled.database[kind], "ms"))
    figures.append(
        Figure("  the longest that a merge held the database: wall", filled.slowest_merge, "ms")
    )
    if filled.embedded_a_second:
        figures.append(Figure("  embedded", filled.embedded_a_second, "/s"))
    return figures


def _figures(name: str, times: Times, health: float) -> list[Figure]:
    return [
        Figure(f"{name}: p50", times.p50, "ms", P50),
        Figure("  p95", times.p95, "ms", P95),
        Figure("  processor time", times.cpu, "ms"),
        Figure("  in health requests", times.p50 / health, "times"),
    ]


def _wait(server: Server) -> None:
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        wait_for_index(client, 900)


def _client(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=120, trust_env=False)


if __name__ == "__main__":
    main()
