"""What a page of each list costs over HTTP, on a server with 10,000 agents and 100,000 messages.

`python -m bench.lists` measures this alone, in about two minutes. How many statements each takes is counted by
`tests/api/test_lists.py`.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx2

from bench import report
from bench.pages import filled
from bench.report import Figure
from bench.servers import Server, model_server

PAGE = 50
_ROUNDS, _SETTLES, _BUDGET = 21, 5, 20


def lists(document: dict[str, Any]) -> Iterator[str]:
    """The paths of the document's lists that can be asked for with an agent's id at most."""
    for path, operations in document["paths"].items():
        operation = operations.get("get", {})
        answer = operation.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
        is_list = answer.get("schema", {}).get("type") == "array"
        named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        if is_list and named <= {"agent_id"}:
            yield path


def measure(server: Server) -> list[Figure]:
    """The median time of a page of each list, the slowest first."""
    found: list[tuple[float, str, int]] = []
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        document = http.get("/openapi.json").json()
        long = http.get("/v1/agents/", params={"limit": 1}).json()[0]["id"]
        time.sleep(_SETTLES)
        for path in lists(document):
            asked, times = path.replace("{agent_id}", long), []
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                answer = http.get(asked, params={"limit": PAGE})
                times.append((time.perf_counter() - began) * 1000)
            if answer.status_code == 200:
                found.append((statistics.median(times), path, len(answer.json())))
        health = [_seconds(http) for _ in range(_ROUNDS)]
    figures = [
        Figure(f"GET {path} ({count} of them)", wall, "ms", _BUDGET)
        for wall, path, count in sorted(found, reverse=True)
    ]
    return [*figures, Figure("yardstick: one health request", statistics.median(health) * 1000, "ms")]


def _seconds(http: httpx2.Client) -> float:
    began = time.perf_counter()
    http.get("/v1/health/")
    return time.perf_counter() - began


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.lists", description=__doc__).parse_args()
    with model_server() as model_url, filled(model_url) as server:
        figures = measure(server)
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
