"""Routes that are built late answer as those that are built at once do."""

import httpx2
import pytest
from fastapi import FastAPI, Response
from fastapi.exceptions import FastAPIError
from fastapi.routing import APIRoute

from ricordo.api.routing import LazyRoute, Routes


@pytest.fixture
def routes() -> Routes:
    """Two routes of one path."""
    routes = Routes(prefix="/things", tags=["things"])

    @routes.get("/{thing_id}", response_model=int)
    async def show(thing_id: int) -> Response:
        return Response(str(thing_id), media_type="application/json")

    @routes.delete("/{thing_id}", status_code=204, response_class=Response)
    async def delete(thing_id: int) -> None: ...

    return routes


@pytest.fixture
def client(routes: Routes) -> httpx2.AsyncClient:
    """A client of an app that has these routes as they are."""
    app = FastAPI()
    app.router.routes.extend(routes.routes)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")


def built(routes: Routes) -> list[bool]:
    """Which of them are built."""
    return [route.is_built for route in routes.routes if isinstance(route, LazyRoute)]


async def test_only_the_route_that_is_asked_for_is_built(routes: Routes, client: httpx2.AsyncClient) -> None:
    assert built(routes) == [False, False]

    answers = [await client.get("/things/5"), await client.get("/things/x"), await client.get("/elsewhere")]

    assert [answer.status_code for answer in answers] == [200, 422, 404]
    assert answers[0].json() == 5
    assert built(routes) == [True, False]


async def test_a_method_that_is_not_served_is_refused_by_its_path(client: httpx2.AsyncClient) -> None:
    refused = await client.put("/things/5")

    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


def test_whoever_asks_for_what_only_a_built_route_knows_gets_it(routes: Routes) -> None:
    first = routes.routes[0]
    assert isinstance(first, LazyRoute)

    assert first.response_model is int

    eager = APIRoute(first.path, first.endpoint, **first.given)
    assert {**vars(first), "app": None} == {**vars(eager), "app": None, "given": first.given, "is_built": True} | {
        name: vars(first)[name] for name in ("dependant", "response_field", "response_fields")
    }
    with pytest.raises(AttributeError, match="has no colour"):
        first.colour  # noqa: B018 - asking is the test


async def test_a_route_that_cannot_be_built_says_why_each_time(routes: Routes, client: httpx2.AsyncClient) -> None:
    """A second request would hear of an attribute that is missing, and nobody what the reason was."""
    first = routes.routes[0]
    assert isinstance(first, LazyRoute)
    first.given["response_model"] = type("Odd", (), {})

    for _ in range(2):
        with pytest.raises(FastAPIError, match="Invalid args for response field"):
            await client.get("/things/5")
