"""The table of routes: its order, its document, the imports of a start, and routes of plugins."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Response
from starlette.routing import Match, Route

from ricordo.api.core_routers import CORE_ROUTERS, LABEL_ROUTERS
from ricordo.api.routing import Application, GuardedRoute, Routes
from ricordo.app import create_app
from ricordo.errors import Invalid
from ricordo.features import FEATURES
from ricordo.offload import import_in_thread
from ricordo.pages import statics
from ricordo.plugins import Plugins, load_plugins
from ricordo.settings import ProviderSettings, Settings
from tests.seams.http import AsCaller


@pytest.fixture(scope="module")
def app() -> Application:
    return new_app()


def new_app(**settings: Any) -> Application:
    options = Settings(data_dir=Path("unused"), find_local_models=False, **settings)
    app = create_app(options, ProviderSettings.model_construct())
    assert isinstance(app, Application)
    return app


def client_of(app: FastAPI) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1", follow_redirects=False
    )


def guarded(app: FastAPI) -> list[GuardedRoute]:
    return [route for route in app.routes if isinstance(route, GuardedRoute)]


def scope_of(path: str, method: str, root: str = "") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "root_path": root, "headers": []}


def first_match(app: FastAPI, path: str, method: str) -> Any:
    scope = scope_of(path, method)
    return next((route for route in app.routes if route.matches(scope)[0] == Match.FULL), None)


def test_the_document_has_every_public_route_and_no_other(app: Application) -> None:
    shown = {
        (route.path_format, method.lower())
        for route in guarded(app)
        if route.include_in_schema
        for method in route.methods
    }
    documented = {
        (path, method) for path, item in app.openapi()["paths"].items() for method in item
    }

    assert documented == shown
    assert len(shown) > 300


def test_the_document_names_the_models_of_responses_and_refusals(app: Application) -> None:
    responses = app.openapi()["paths"]["/v1/agents/{agent_id}"]["get"]["responses"]
    schemas = {
        status: response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for status, response in responses.items()
    }

    assert schemas["200"] == "AgentResponse"
    assert schemas["4XX"] == "RefusalResponse"


def test_every_route_matches_its_own_path_first(app: Application) -> None:
    """A route hidden by another one would never be called."""
    hidden = []
    for route in guarded(app):
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        for method in route.methods:
            first = first_match(app, path, method)
            # Two features may define the same path, so that either of them can be missing.
            if first is None or first.path != route.path:
                hidden.append((method, route.path, first.path if first else None))

    assert hidden == []


def test_labels_with_slashes_and_names_in_place_of_ids_match_the_right_route(
    app: Application,
) -> None:
    expected = {
        ("GET", "/v1/messages/batches"): "/v1/messages/batches",
        ("GET", "/v1/messages/batches/x"): "/v1/messages/batches/{batch_id}",
        ("GET", "/v1/messages/x"): "/v1/messages/{message_id}",
        ("GET", "/users/ada/blocks/notes/of/today"): "/users/{user_id}/blocks/{label:path}",
        ("GET", "/users/ada/blocks/notes/today/history"): (
            "/users/{user_id}/blocks/{label:path}/history"
        ),
        ("GET", "/ui/nothing/here"): "/ui/{rest:path}",
        ("GET", "/openapi.json"): "/openapi.json",
    }

    matched = {key: first_match(app, key[1], key[0]) for key in expected}

    assert {key: getattr(route, "path", None) for key, route in matched.items()} == expected


def test_a_path_that_ends_in_a_line_feed_matches_only_the_route_with_an_id(
    app: Application,
) -> None:
    answering = {
        route.path
        for route in guarded(app)
        if route.matches(scope_of("/v1/agents/\n", "GET"))[0] == Match.FULL
    }

    assert answering == {"/v1/agents/{agent_id}"}


async def test_an_unknown_path_is_404_and_an_unknown_method_405_also_when_mounted(
    app: Application,
) -> None:
    outer = FastAPI()
    outer.mount("/ricordo", app)
    async with client_of(app) as client, client_of(outer) as mounted:
        unknown = await client.get("/v1/nothing")
        refused = await client.put("/v1/jobs/x/cancel")
        below = await mounted.put("/ricordo/v1/providers/x/refresh")

    assert (unknown.status_code, refused.status_code, below.status_code) == (404, 405, 405)
    assert "There is no route PUT /v1/jobs/x/cancel" in refused.text


def test_most_routes_are_ruled_out_without_trying_their_expressions(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    matches = Route.matches
    monkeypatch.setattr(
        Route, "matches", lambda self, scope: tried.append(self.path) or matches(self, scope)
    )
    for path, most in (
        ("/chat/stream", 5),
        ("/ricordo/chat/stream", 5),
        ("/v1/agents/x/messages", 120),
    ):
        root = "/ricordo" if path.startswith("/ricordo") else ""
        scope = scope_of(path, "POST", root)
        assert any(route.matches(scope)[0] == Match.FULL for route in guarded(app)), path
        assert len(tried) <= most, tried
        tried.clear()


def test_all_servers_of_a_process_share_their_routes(app: Application) -> None:
    assert [id(route) for route in guarded(app)] == [id(route) for route in guarded(new_app())]


def test_every_router_of_the_core_and_the_features_is_included(app: Application) -> None:
    modules = [name for name in load_plugins(FEATURES).routes() if isinstance(name, str)]
    routers = [sys.modules[name].router for name in modules] + [
        *CORE_ROUTERS,
        statics.router,
        *LABEL_ROUTERS,
    ]
    expected = {id(route) for router in routers for route in router.routes}

    assert {id(route) for route in guarded(app)} == expected
    assert len(modules) == len(set(modules))


def test_every_open_path_matches_a_route_without_scopes(app: Application) -> None:
    routers = [
        sys.modules[name].router
        for name in load_plugins(FEATURES).routes()
        if isinstance(name, str)
    ]
    for router in routers:
        for path in router.open_paths:
            routes = [
                route
                for route in router.routes
                if route.path_regex.match(path) and route.scopes == ()
            ]
            assert routes, path


async def test_a_route_answers_validates_and_refuses_unknown_paths() -> None:
    routes, app = Routes(prefix="/things", scope="agents"), FastAPI()
    app.add_middleware(AsCaller)

    @routes.get("/{thing_id}", response_model=int)
    async def show(thing_id: int) -> int:
        return thing_id

    app.router.routes.extend(routes.routes)
    async with client_of(app) as client:
        answers = [await client.get(path) for path in ("/things/5", "/things/x", "/elsewhere")]

    assert [answer.status_code for answer in answers] == [200, 422, 404]
    assert answers[0].json() == 5


async def test_a_server_that_fails_leaves_no_task_running(tmp_path: Path) -> None:
    app = create_app(
        Settings(data_dir=tmp_path, find_local_models=False), ProviderSettings.model_construct()
    )

    async def live() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            raise OSError("The socket is gone.")

    with pytest.raises(OSError, match="gone"):
        await live()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_module_imported_by_several_requests_at_once_is_complete_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.02)\nrouter = 'whole'\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    modules = await asyncio.gather(*(import_in_thread("slow_to_import") for _ in range(8)))

    assert {module.router for module in modules} == {"whole"}
    assert isinstance(sys.modules.pop("slow_to_import"), ModuleType)


# Makes an app and starts it, and prints the modules that were imported by then.
PROGRAM = """
import asyncio, sys, tempfile
from pathlib import Path
from ricordo.app import create_app
from ricordo.settings import ProviderSettings, Settings

settings = Settings(data_dir=Path(tempfile.mkdtemp()), find_local_models=False)
app = create_app(settings, ProviderSettings.model_construct())

async def live():
    async with app.router.lifespan_context(app):
        await asyncio.sleep(1)

asyncio.run(live())
slow = {"numpy", "dulwich", "openai", "anthropic", "cryptography", "jinja2", "tokenizers", "mcp", "pydantic_ai"}
print(*sorted(slow & sys.modules.keys()))
"""


def test_a_started_server_has_not_imported_libraries_that_few_requests_need() -> None:
    """Numpy alone takes 12 MB and a tenth of a second, the MCP SDK 25 MB and two tenths."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )

    assert done.stdout.split() == []


@contextmanager
def offering(monkeypatch: pytest.MonkeyPatch, *routers: Any) -> Iterator[None]:
    plugin = SimpleNamespace(routes=lambda: [*routers])
    with monkeypatch.context() as patch:
        patch.setattr("ricordo.app.load_plugins", lambda _: Plugins([("theirs", plugin)]))
        yield


@pytest.mark.parametrize("how", ["route", "mount"])
def test_a_plugins_route_without_authentication_is_refused_at_start(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = APIRouter()
    if how == "route":
        router.add_route("/bare", lambda _request: Response("bare"))
    else:
        router.mount("/bare", FastAPI())

    with (
        offering(monkeypatch, router),
        pytest.raises(Invalid, match="The plugin's route /bare has no authentication"),
    ):
        new_app()


async def test_refusals_of_a_plugins_own_api_have_no_openai_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = APIRouter(prefix="/v1/theirs")
    router.get("/list")(lambda: [])

    with offering(monkeypatch, router):
        app = new_app(api_key="secret")

    async with client_of(app) as client:
        refusals = [(await client.get(f"/v1/{name}/x")).json() for name in ("theirs", "nobodys")]
    assert ["error" in refusal for refusal in refusals] == [False, True]


def test_a_plugins_router_can_go_first_and_the_fallback_route_goes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing() -> list[str]:
        return []

    first = Routes("/v1/agents/mine", scope="agents", goes_first=True)
    first.get("")(nothing)
    login = Routes(scope="agents", login_page="/enter", open_paths=("/enter",))
    login.get("/{rest:path}")(nothing)
    last = Routes("/last", scope="agents")
    last.get("")(nothing)

    with offering(monkeypatch, login, last, first):
        app = new_app()

    assert first_match(app, "/v1/agents/mine", "GET").path == "/v1/agents/mine"
    assert first_match(app, "/last", "GET").path == "/last"
    assert first_match(app, "/nothing", "GET").path == "/{rest:path}"
