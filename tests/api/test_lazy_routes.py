"""Modules that come in late: what they answer, in what order, and what the document says are as if all had been there."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Response
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import Match

from ricordo.api.errors import install_error_handlers
from ricordo.api.routing import (
    AT_START,
    CORE_ROUTES,
    LABEL_ROUTES,
    Application,
    LazyRoute,
    LazyRouter,
    Routes,
)
from ricordo.app import create_app
from ricordo.errors import Invalid
from ricordo.features import FEATURES
from ricordo.plugins import Plugins, load_plugins
from ricordo.settings import ProviderSettings, Settings
from tests.seams.http import AsCaller

FEATURE_ROUTES = tuple(
    router for router in load_plugins(FEATURES).routes() if isinstance(router, LazyRouter)
)
TABLE = (*CORE_ROUTES, *FEATURE_ROUTES, *LABEL_ROUTES)


@pytest.fixture
def app(tmp_path: Path) -> Application:
    return create_app(Settings(data_dir=tmp_path), ProviderSettings.model_construct())


@pytest.fixture(scope="module")
def eager() -> FastAPI:
    """An app whose routes are all made at once, by the framework's own means."""
    made = create_app(Settings(data_dir=Path("unused")), ProviderSettings.model_construct())
    app = FastAPI(
        title=made.title,
        version=made.version,
        description=made.description,
        docs_url=None,
        redoc_url=None,
    )
    install_error_handlers(app)
    for lazy in sorted(TABLE, key=lambda one: not one.is_first):
        router = APIRouter()
        for route in __import__(lazy.module, fromlist=["router"]).router.routes:
            given = route.given if isinstance(route, LazyRoute) else {"include_in_schema": False}
            router.routes.append(APIRoute(route.path, route.endpoint, **given))
        app.include_router(router)
    return app


def table(app: FastAPI) -> list[Any]:
    return [
        (route.path, sorted(route.methods or ()), route.name)
        for route in iter_route_contexts(app.routes)
    ]


def paths_of(module: str) -> Iterator[str]:
    """Paths that the module's routes match, with and without a slash at the end: the framework redirects one to the other."""
    for route in __import__(module, fromlist=["router"]).router.routes:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        yield from {path, path.rstrip("/") or "/", f"{path.rstrip('/')}/"}


def test_the_table_of_routes_and_the_document_are_those_of_an_app_that_made_all_at_once(
    app: Application, eager: FastAPI
) -> None:
    assert len(table(app)) < len(table(eager)) / 2

    document = app.openapi()

    assert table(app) == table(eager)
    assert document == eager.openapi()


async def test_the_order_is_the_same_whatever_is_asked_for_first(
    app: Application, eager: FastAPI
) -> None:
    app.include_router(APIRouter())  # as a plugin's routes, which come last
    after = app.routes[-1]

    for lazy in reversed(TABLE):
        await app.lazy_routes.load_for(lazy.paths[0].replace("*", "x"))
        assert any(
            route.endpoint.__module__ == lazy.module
            for route in app.routes
            if isinstance(route, APIRoute)
        )

    assert app.routes.pop() is after
    assert table(app) == table(eager)


def test_most_routes_are_ruled_out_before_their_expressions_are_tried(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.lazy_routes.load_all()
    tried: list[str] = []
    matches = APIRoute.matches
    monkeypatch.setattr(
        APIRoute, "matches", lambda self, scope: tried.append(self.path) or matches(self, scope)
    )
    for path, most in (
        ("/chat/stream", 5),
        ("/ricordo/chat/stream", 5),
        ("/v1/agents/x/messages", 120),
    ):
        root = "/ricordo" if path.startswith("/ricordo") else ""
        scope = {"type": "http", "method": "POST", "path": path, "root_path": root, "headers": []}
        found = [
            route
            for route in app.routes
            if isinstance(route, LazyRoute) and route.matches(scope)[0] == Match.FULL
        ]
        assert found, path
        assert len(tried) <= most, tried
        tried.clear()


def test_every_path_of_a_module_brings_it_in() -> None:
    """A route that the table forgot would answer 404 until something else brought its module in."""
    for lazy in TABLE:
        pattern = lazy.pattern()
        assert [path for path in paths_of(lazy.module) if not pattern.match(path)] == [], (
            lazy.module
        )


async def test_a_request_has_only_what_may_answer_it_loaded(
    app: Application, tmp_path: Path
) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1"
    ) as client:
        before = table(app)
        unknown = await client.get("/v1/nothing")
        assert (unknown.status_code, table(app)) == (404, before)

        refused = await client.put("/v1/jobs/x/cancel")
        outer = FastAPI()
        outer.mount("/ricordo", app)  # which has its modules loaded there too
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(outer), base_url="http://127.0.0.1"
        ) as mounted:
            assert (await mounted.put("/ricordo/v1/providers/x/refresh")).status_code == 405

    assert (refused.status_code, "There is no route PUT /v1/jobs/x/cancel" in refused.text) == (
        405,
        True,
    )
    new = {path for path, _, _ in table(app)} - {path for path, _, _ in before}
    jobs = {path.removeprefix("/v1/jobs/") for path in new if path.startswith("/v1/jobs/")}
    assert jobs == {"", "active", "queue", "{job_id}", "{job_id}/cancel"}
    assert len(new - {path for path in new if path.startswith("/v1/providers/")}) == len(jobs)
    locked = create_app(
        Settings(data_dir=tmp_path, api_key="secret"), ProviderSettings.model_construct()
    )
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(locked), base_url="http://127.0.0.1"
    ) as client:
        assert (await client.get("/v1/jobs/")).status_code == 401
    assert len(locked.routes) == len(before), "who may not come in has nothing loaded"


async def test_a_server_that_fails_leaves_no_task_behind(app: Application) -> None:
    async def live() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            raise OSError("The socket is gone.")

    with pytest.raises(OSError, match="gone"):
        await live()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_module_that_cannot_be_loaded_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = tuple(router for router in CORE_ROUTES if router.module in AT_START)
    monkeypatch.setattr(
        "ricordo.api.routing.CORE_ROUTES", (*few, LazyRouter("ricordo.api.missing", ("/x",)))
    )
    app = create_app(Settings(data_dir=tmp_path), ProviderSettings.model_construct())

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1"
    ) as client:
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match=r"ricordo\.api\.missing"):
                await client.get("/x")
        assert (await client.get("/v1/health/")).status_code == 200


async def test_two_that_ask_at_once_for_what_is_not_loaded_are_both_answered(
    app: Application,
) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1"
    ) as client:
        answers = await asyncio.gather(*(client.put("/v1/providers/x/refresh") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {405}


# Makes an app and starts it, and prints what was imported by then.
PROGRAM = """
import asyncio, sys, tempfile
from pathlib import Path
from ricordo.app import create_app
from ricordo.settings import ProviderSettings, Settings

settings = Settings(data_dir=Path(tempfile.mkdtemp()), find_local_models=False)
app = create_app(settings, ProviderSettings.model_construct())
print(*(route.module for route in app.lazy_routes.table if route.module in sys.modules))

async def live():
    async with app.router.lifespan_context(app):
        await asyncio.sleep(1)

asyncio.run(live())
print(*sorted({"numpy", "dulwich", "openai", "anthropic", "cryptography", "jinja2", "tokenizers"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def imported() -> list[list[str]]:
    """The routes that a new app has imported, and what a server that has started has."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    return [line.split() for line in done.stdout.split("\n")[:2]]


def test_an_app_that_was_made_has_imported_no_route_that_a_turn_does_not_need(
    imported: list[list[str]],
) -> None:
    """A module that imports another's routes would bring them into every start, unseen."""
    assert imported[0] == list(AT_START)


async def test_only_the_route_that_is_asked_for_is_built() -> None:
    routes, app = Routes(prefix="/things", scope="agents"), FastAPI()
    app.add_middleware(AsCaller)

    @routes.get("/{thing_id}", response_model=int)
    async def show(thing_id: int) -> int:
        return thing_id

    @routes.delete("/{thing_id}", status_code=204, response_class=Response)
    async def delete(thing_id: int) -> None: ...

    app.router.routes.extend(routes.routes)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as client:
        assert [route.is_built for route in routes.routes] == [False, False]  # type: ignore[attr-defined]
        answers = [await client.get(path) for path in ("/things/5", "/things/x", "/elsewhere")]

    assert [answer.status_code for answer in answers] == [200, 422, 404]
    assert answers[0].json() == 5
    assert [route.is_built for route in routes.routes] == [True, False]  # type: ignore[attr-defined]


def test_a_server_that_has_started_has_imported_nothing_that_only_some_requests_need(
    imported: list[list[str]],
) -> None:
    """numpy alone takes 12 MB and a tenth of a second; a feature's jobs once brought it into every start."""
    assert imported[1] == []


@pytest.mark.parametrize("how", ["route", "mount"])
async def test_a_plugins_route_that_no_scope_can_guard_is_refused_at_the_start(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = APIRouter()
    if how == "route":
        router.add_route("/bare", lambda _request: Response("bare"))
    else:
        router.mount("/bare", FastAPI())
    plugin = SimpleNamespace(routes=lambda: [router])
    monkeypatch.setattr("ricordo.app.load_plugins", lambda _: Plugins([("bare", plugin)]))
    app = create_app(
        Settings(data_dir=tmp_path, find_local_models=False), ProviderSettings.model_construct()
    )
    with pytest.raises(Invalid, match="Nobody is kept from a plugin's route /bare"):
        async with app.router.lifespan_context(app):
            pass
