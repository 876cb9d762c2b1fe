"""Query parameters over the whole document: none is accepted and then ignored, and no misspelt user is an empty memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from ricordo.api.call import IGNORED_QUERIES
from tests.seams.http import refused
from tests.seams.people import OPERATOR, World, open_world
from tests.seams.routes import QUERIES, fill

Wire = dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("parameters")) as opened:
        yield opened


def operations(world: World, place: str) -> Iterator[tuple[str, str, str]]:
    """Every method, path and name of a parameter in this place."""
    for path, item in world.server.app.openapi()["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == place:
                    yield method.upper(), path, parameter["name"]


def test_a_user_who_is_not_there_is_not_found_wherever_one_is_asked_for(world: World) -> None:
    values = {**world.own, **world.shared}
    asked = 0
    for place in ("path", "query"):
        for method, path, name in operations(world, place):
            if name == "user_id" and method == "GET":
                query = fill(dict(QUERIES.get(path, {})), values)
                named = {**values, "user_id": "nobody"} if place == "path" else values
                query |= {"user_id": "nobody"} if place == "query" else {}
                answer = world.send(OPERATOR, method, fill(path, named), params=query)
                assert refused(answer, 404) == 'NOT_FOUND: There is no user "nobody". Check the name.', path
                asked += 1
    assert asked > 30


def test_a_query_parameter_that_a_route_does_not_know_is_refused_by_name(world: World) -> None:
    for path in ("/v1/agents/", "/v1/tools/count", "/v1/jobs/", "/v1/blocks/", "/users/ada/blocks"):
        told = refused(world.send(OPERATOR, "GET", path, params={"limt": "1"}), 422)
        assert "The query parameter limt is not supported" in told, path
    for name in IGNORED_QUERIES:
        assert world.send(OPERATOR, "GET", "/v1/agents/", params={name: "x"}).status_code == 200
