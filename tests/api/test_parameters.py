"""Query parameters of the whole document.

No parameter is accepted and then ignored. A misspelt user gets an error, not an empty memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ricordo.api.call import IGNORED_QUERIES
from ricordo.domain.ids import new_id
from ricordo.domain.run import Run
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.storage import runs
from ricordo.storage.engine.store import Transaction
from tests.campaigns.sizes import short_and_long
from tests.seams.http import refused
from tests.seams.people import EVERY_USERS, OPERATOR, World, open_world
from tests.seams.routes import QUERIES, fill
from tests.seams.server import MODEL
from tests.seams.waiting import wait_for

Wire = dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("parameters")) as opened:
        yield opened


def operations(world: World, place: str) -> Iterator[tuple[str, str, str]]:
    """Return every method, path and parameter name of this kind."""
    for path, item in world.server.app.openapi()["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == place:
                    yield method.upper(), path, parameter["name"]


def test_an_unknown_user_is_not_found_on_every_route(world: World) -> None:
    values = {**world.own, **world.shared}
    asked = 0
    for place in ("path", "query"):
        for method, path, name in operations(world, place):
            if name == "user_id" and method == "GET":
                query = fill(dict(QUERIES.get(path, {})), values)
                named = {**values, "user_id": "nobody"} if place == "path" else values
                query |= {"user_id": "nobody"} if place == "query" else {}
                answer = world.send(OPERATOR, method, fill(path, named), params=query)
                assert (
                    refused(answer, 404) == 'NOT_FOUND: There is no user "nobody". Check the name.'
                ), path
                asked += 1
    assert asked > 30


def test_a_query_parameter_that_a_route_does_not_know_is_refused_by_name(world: World) -> None:
    for path in ("/v1/agents/", "/v1/tools/count", "/v1/jobs/", "/v1/blocks/", "/users/ada/blocks"):
        told = refused(world.send(OPERATOR, "GET", path, params={"limt": "1"}), 422)
        assert "The query parameter limt is not supported" in told, path
    for name in IGNORED_QUERIES:
        assert world.send(OPERATOR, "GET", "/v1/agents/", params={name: "x"}).status_code == 200


# Values that may make a difference, besides existing ids; `WITH` has values that a parameter
# requires.
TRIED: dict[str, tuple[str, ...]] = {
    "limit": ("1", "2"),
    "order": ("asc", "desc"),
    "user_id": ("nobody",),
    "statuses": ("completed", "failed", "running"),
    "exclude_tool_types": (
        "ricordo_core",
        "letta_core",
        "ricordo_sleeptime_core",
        "letta_sleeptime_core",
    ),
}
DATES = ("2000-01-01", "2040-01-01")
TRIED |= {
    "as_of": DATES,
    "format": ("toml",),
    "tokens": ("50", "20000"),
    "question": ("Does she study geology?",),
}
WITH: dict[str, Wire] = {
    "question": {"tokens": "50"},
    "match_all_tags": {"tags": ["one", "two"]},
    "tag_match_mode": {"tags": ["one", "two"]},
    "order": {"limit": "2"},
    "ascending": {"limit": "2"},
}
# Parameters that cannot make a difference here, with the reason.
NO_DIFFERENCE: dict[str, str] = {
    "onlineOnly": "there are no environments to choose from",
    "source": "there are no environments to choose from",
    "userId": "there are no environments to choose from",
    "order_by": "takes one value, which is the default; of agents and conversations more: tests/storage",
    "weeks": "counts what students showed of skills: tests/features/tutor/learning/test_served.py",
    "sort_by": "shows where agents have run: tests/api/test_agents.py",
    "use_assistant_message": "is for agents that speak by calls: tests/behaviour/test_heartbeat_agents.py",
    "assistant_message_tool_name": "is for agents that speak by calls: tests/behaviour/test_heartbeat_agents.py",
    "assistant_message_tool_kwarg": "is for agents that speak by calls: tests/behaviour/test_heartbeat_agents.py",
}
# Parameters of every list; with one item they make no difference.
OF_LISTS = ("limit", "order", "ascending", "before", "after")
FEW = 4  # the number of values that are tried for such a list


def list_in(answer: Any) -> Any:
    """Return the response's list: the response itself, or its first member that is a list."""
    if not isinstance(answer, dict):
        return answer
    return next((one for one in answer.values() if isinstance(one, list)), None)


def tried(world: World, name: str, schema: Wire, base: Any) -> list[str]:
    """Return values of a parameter that may show whether it is read."""
    text = str(schema)
    # The first value occurs nowhere, so it shows at once whether the filter works.
    found = [
        "zebra",
        *TRIED.get(name, ()),
    ]
    found += ["true", "false"] if "boolean" in text else ["1", "2"] if "integer" in text else []
    found += schema.get("enum") or next(
        (one["enum"] for one in schema.get("anyOf", ()) if "enum" in one), []
    )
    listed = list_in(base)
    if (
        name in ("before", "after", "cursor")
        and isinstance(listed, list)
        and listed
        and "id" in listed[0]
    ):
        found += [listed[0]["id"], listed[-1]["id"]]
    if "date" in name or name in ("from", "to"):
        found += DATES
    is_free = "'string'" in text and "'enum'" not in text  # other schemas do not accept an id
    return [*found, *({**world.own, **world.shared}.values() if is_free else ())]


def shows_difference(world: World, path: str, name: str, schema: Wire) -> bool | None:
    """Return whether some value of the parameter changes the response.

    None if the list has at most one item.
    """
    values = {**world.own, **world.shared}
    query = fill(dict(QUERIES.get(path, {})), values) | WITH.get(name, {})
    base = world.send(
        OPERATOR,
        "GET",
        fill(path, values),
        params={one: query[one] for one in query if one != name},
    )
    assert base.status_code in (200, 400, 422), (path, base.text)
    shown = (
        base.json()
        if base.status_code == 200 and base.headers["content-type"] == "application/json"
        else None
    )
    listed = list_in(shown)
    has_few = name in OF_LISTS and isinstance(listed, list) and len(listed) < 2
    values_tried = tried(world, name, schema, shown)
    for value in values_tried[:FEW] if has_few else values_tried:
        answer = world.send(OPERATOR, "GET", fill(path, values), params=query | {name: value})
        if answer.status_code in (200, 304, 404) and (answer.status_code, answer.content) != (
            base.status_code,
            base.content,
        ):
            return True
    return None if has_few else False


def open_files(world: World) -> None:
    """Let the agent have an open file and a closed one of a folder that is everybody's."""
    agent = f"/v1/agents/{world.shared['agent_id']}"
    folder = world.ask(OPERATOR, "POST", "/v1/folders/", json={"name": "Shelf"})["id"]
    world.ask(OPERATOR, "PATCH", f"{agent}/folders/attach/{folder}")
    for name in ("one.txt", "two.txt"):
        file = world.ask(
            OPERATOR, "POST", f"/v1/folders/{folder}/upload", files={"file": (name, b"One.")}
        )["id"]
        place = f"/v1/folders/{folder}/files/{file}"
        wait_for(
            lambda place=place: (
                world.ask(OPERATOR, "GET", place)["processing_status"] == "completed"
            )
        )  # type: ignore[misc]
        world.ask(OPERATOR, "PATCH", f"{agent}/files/{file}/open")
    world.ask(OPERATOR, "PATCH", f"{agent}/files/{file}/close")


@contextmanager
def open_run(world: World) -> Iterator[str]:
    """Keep a run of Ada's open within the block, as if another server ran it; yield its id."""

    def begin(tx: Transaction) -> Run:
        run = runs.get(tx, Scope(LOCAL_ORGANIZATION), world.own["run_id"])
        lease = {"lease_token": new_id("lease"), "lease_expires_at": 2**52}
        begun = replace(
            run, id=new_id("run"), status="running", stop_reason=None, ended_at=None, **lease
        )
        runs.open_run(tx, begun)
        return begun

    run = world.server.write(begin)
    yield run.id
    world.server.write(lambda tx: runs.end(tx, run.ended("cancelled", tx.clock.now())))


def test_an_open_run_is_listed_only_for_its_user_and_the_administrator(world: World) -> None:
    bea = world.key("bea", scopes=EVERY_USERS)
    queries: list[Wire] = [{}, {"agent_id": world.shared["agent_id"]}, {"background": "true"}]
    with open_run(world) as run:
        for query in queries:
            listed = {
                key: [
                    one["id"]
                    for one in world.send(key, "GET", "/v1/runs/active", params=query).json()
                ]
                for key in (world.ada, OPERATOR, bea)
            }
            assert listed == {world.ada: [run], OPERATOR: [run], bea: []}, query
    assert world.send(OPERATOR, "GET", "/v1/runs/active").json() == []


@pytest.mark.parametrize("share", short_and_long(3, 1))
def test_every_query_parameter_changes_a_response(world: World, share: int) -> None:
    """The suite tests the parameters that all lists have with only a third of the lists."""
    for path, body in (
        ("/v1/agents/", {"model": MODEL, "tags": ["one"]}),
        ("/v1/blocks/", {"label": "tagged", "value": "", "tags": ["one"]}),
        (
            fill("/v1/agents/{agent_id}/archival-memory", world.shared | world.own),
            {"text": "A vuqkzoqada.", "tags": ["one"]},
        ),
    ):
        assert world.send(OPERATOR, "POST", path, json=body).status_code == 200
    open_files(world)
    world.new_schedule(OPERATOR)  # a second object of each kind, so that lists have an order
    world.new_token(OPERATOR)
    world.new_batch()
    world.new_student("cyd")
    world.new_task("second", world.shared["agent_id"])
    groups: Wire = {
        "agent_ids": [world.shared["agent_id"]],
        "description": "Hidden.",
        "hidden": True,
    }
    assert world.send(OPERATOR, "POST", "/v1/groups/", json=groups).status_code == 200
    place = f"/v1/groups/{world.shared['group_id']}/messages"
    assert world.send(OPERATOR, "POST", place, json={"input": "Hello all."}).status_code == 200
    document = world.server.app.openapi()["paths"]
    chosen = {*list(document)[::share]}
    shown: dict[str, int] = {}
    idle, few = [], set()
    with open_run(world):
        for method, path, name in operations(world, "query"):
            if method != "GET" or name in NO_DIFFERENCE or path == "/v1/environments":
                continue
            if name in OF_LISTS and path not in chosen:
                continue
            schema = next(
                one["schema"] for one in document[path]["get"]["parameters"] if one["name"] == name
            )
            match shows_difference(world, path, name, schema):
                case True:
                    shown[name] = shown.get(name, 0) + 1
                case None:
                    few.add((path, name))
                case False:
                    idle.append((path, name))
    assert idle == []
    assert all(shown[name] > 10 / share for name in OF_LISTS), shown
    assert len(few) < 75, sorted({path for path, _ in few})
