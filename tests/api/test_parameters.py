"""Query parameters over the whole document: none is accepted and then ignored, and no misspelt user is an empty memory."""

from collections.abc import Iterator
from typing import Any

import pytest

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
