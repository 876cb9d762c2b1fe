"""The cost of a page of each list, with 10,000 agents and 100,000 messages.

`python -m bench.lists` measures this alone, in about two minutes.
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

_PAGE, _ROUNDS, _BUDGET = 50, 7, 20
_SETTLES = 5  # seconds for the work after a start
_SCHEDULE = {
    "messages": [{"role": "user", "content": "Later."}],
    "schedule": {"type": "recurring", "cron_expression": "0 0 1 1 *"},
}


def add(http: httpx2.Client) -> dict[str, str]:
    """Add a page of rows of each kind that `bench.pages` does not add.

    Return the values of route parameters: one object of each kind.
    """

    def ask(method: str, path: str, body: Any = None, **given: Any) -> Any:
        return http.request(method, path, json=body, **given).raise_for_status().json()

    def first(path: str, **query: Any) -> Any:
        return ask("GET", path, params={"limit": 1, **query})[0]

    # The agent with 10,000 messages is the newest, so it is listed first. The other agents are
    # copies, and have the creation time of their original.
    agent = first("/v1/agents/")["id"]
    ask("PATCH", f"/v1/agents/{agent}", {"enable_sleeptime": True})
    archive = ask("POST", "/v1/archives/", {"name": "Books"})["id"]
    ask("PATCH", f"/v1/agents/{agent}/archives/attach/{archive}")
    passages = [
        {"text": f"Passage {number}.", "tags": [f"tag {number}"]} for number in range(_PAGE)
    ]
    ask("POST", f"/v1/archives/{archive}/passages/batch", {"passages": passages})
    block = ask("POST", "/v1/blocks/", {"label": "shared", "value": "0"})["id"]
    folder = ask("POST", "/v1/folders/", {"name": "course"})["id"]
    identity = first("/v1/identities/")["id"]
    others = ask("GET", "/v1/agents/", params={"limit": _PAGE, "after": agent})
    for number, other in enumerate(others):
        place = f"/v1/agents/{other['id']}"
        ask("PATCH", place, {"tags": [f"tag {number}"]})
        ask("PATCH", f"{place}/core-memory/blocks/attach/{block}")
        ask("PATCH", f"{place}/archives/attach/{archive}")
        ask("PATCH", f"/v1/blocks/{block}", {"value": str(number)})
        ask("POST", f"/v1/agents/{agent}/schedule", _SCHEDULE)
    ask("PATCH", f"/v1/identities/{identity}", {"agent_ids": [other["id"] for other in others]})
    for number in range(_PAGE):
        ask("POST", f"/v1/folders/{folder}/upload", files={"file": (f"{number}.txt", b"Tea.")})
        ask("POST", "/v1/archives/", {"name": f"Archive {number}"})
        ask("POST", "/v1/folders/", {"name": f"Folder {number}"})
        source = f"def tool_{number}():\n    'A tool.'"
        ask(
            "PATCH",
            f"/v1/agents/{agent}/tools/attach/{ask('POST', '/v1/tools/', {'source_code': source})['id']}",
        )
        conversation = ask("POST", "/v1/conversations/", {}, params={"agent_id": agent})["id"]
    said = [{"role": "user", "content": f"{number} tea"} for number in range(_PAGE)]
    body = {"messages": said, "conversation_id": conversation}
    ask("POST", f"/v1/agents/{agent}/messages/import", body)
    ask("PATCH", f"/v1/agents/{agent}/folders/attach/{folder}")
    run = first("/v1/runs/", agent_id=agent)["id"]
    step = first(f"/v1/runs/{run}/steps")["id"]
    return {
        **{"agent_id": agent, "archive_id": archive, "block_id": block, "folder_id": folder},
        **{
            "identity_id": identity,
            "run_id": run,
            "step_id": step,
            "user_id": "person 0",
            "label": "notes",
        },
        "conversation_id": conversation,
        "sandbox_config_id": ask("GET", "/v1/sandbox-config/")[0]["id"],
    }


def lists(document: Any) -> Iterator[tuple[str, dict[str, int]]]:
    """Return the paths of lists in the document, each with its query.

    A list returns an array, or a page of at most `limit` items.
    """
    for path, item in document["paths"].items():
        operation = item.get("get", {})
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        is_limited = any(given["name"] == "limit" for given in operation.get("parameters", ()))
        if (
            is_limited
            or content.get("application/json", {}).get("schema", {}).get("type") == "array"
        ):
            yield path, {"limit": _PAGE} if is_limited else {}


def measure(server: Server) -> Iterator[Figure]:
    """Measure a page of each list, unless its path names a message or an MCP server.

    Lists of guardians are left out too, since the bench has no guardian.
    """
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        values = add(http)
        time.sleep(_SETTLES)
        for path, query in lists(http.get("/openapi.json").json()):
            if path.startswith("/v1/guardian/"):
                continue
            try:
                url = path.format(**values)
            except KeyError:
                continue
            times = []
            caller = {"x-ricordo-user": values["user_id"]} if path.startswith("/api/you") else {}
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                answer = http.get(url, params=query, headers=caller)
                times.append((time.perf_counter() - began) * 1000)
                if answer.status_code != 200:
                    raise RuntimeError(f"{url} answered {answer.status_code}: {answer.text[:300]}")
            found = answer.json()
            many = (
                len(found)
                if isinstance(found, list)
                else max(map(len, filter(_is_list, found.values())), default=0)
            )
            yield Figure(f"list: {path}, {many}", statistics.median(times), "ms", _BUDGET)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.lists", description=__doc__).parse_args()
    with model_server() as model_url, filled(model_url) as server:
        figures = list(measure(server))
    report.show(figures)
    print(f"Kept in {report.keep(figures)}")


if __name__ == "__main__":
    main()
