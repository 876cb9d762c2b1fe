"""Which module answers which paths. A module is imported when a path of its own is first asked for, or behind the start.

That is what lets a server answer a second after it was called: the routes of everything are a third of all that is imported, and
few of them are asked for at once. Whether a path is served, and by what, is decided by the routes alone: the table only says
which modules have to be there before they are asked, and `tests/api/test_faces.py` holds it to the routes.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, MutableSequence
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from ricordo.api.routing import LateRoute

log = logging.getLogger(__name__)
# In the order in which they are asked: each with what its paths begin with, where * is one piece between slashes.
FACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ricordo.api.health", ("/v1/health",)),
    ("ricordo.api.agents", ("/v1/agents",)),
    ("ricordo.api.messages", ("/v1/agents/*/messages", "/v1/agents/*/reset-messages")),
    # Every route that is asked before takes its time: a search is short enough for that to count.
    ("ricordo.api.searching", ("/v1/messages/search", "/v1/agents/messages/search", "/v1/passages/search")),
    ("ricordo.api.conversations", ("/v1/conversations", "/v1/agents/*/recompile")),
    ("ricordo.api.compacting", ("/v1/agents/*/summarize", "/v1/conversations/*/compact")),
    ("ricordo.api.context", ("/v1/agents/*/context",)),
    ("ricordo.api.blocks", ("/v1/blocks", "/v1/agents/*/core-memory")),
    ("ricordo.api.tools", ("/v1/tools", "/v1/agents/*/tools")),
    ("ricordo.api.archival", ("/v1/agents/*/archival-memory",)),
    ("ricordo.api.models", ("/v1/models",)),
    ("ricordo.api.run_stream", ("/v1/runs/*/stream", "/v1/conversations/*/stream")),
    ("ricordo.api.providers", ("/v1/providers",)),
    ("ricordo.api.runs", ("/v1/runs",)),
    ("ricordo.api.steps", ("/v1/steps",)),
    ("ricordo.api.telemetry", ("/v1/steps/*/trace", "/v1/telemetry", "/v1/runs/*/trace")),
    ("ricordo.api.ledger", ("/v1/ledger", "/v1/agents/*/budget")),
    ("ricordo.api.jobs", ("/v1/jobs",)),
    ("ricordo.api.archives", ("/v1/archives", "/v1/agents/*/archives")),
    ("ricordo.api.importing", ("/v1/agents/*/messages/import",)),
    # A block's label may hold slashes: what can stand behind one is looked for before the label itself.
    ("ricordo.api.exporting", ("/users/*/export",)),
    ("ricordo.api.remotes", ("/users/*/remotes",)),
    ("ricordo.api.lineage", ("/v1/messages/*/memory",)),
    ("ricordo.api.versions", ("/v1/blocks/*",)),
    ("ricordo.api.proposals", ("/users/*",)),
    ("ricordo.api.users", ("/users/*/blocks",)),
    ("ricordo.api.erasure", ("/users/*", "/v1/receipts")),
    ("ricordo.api.git_http", ("/users/*/memory.git",)),
    ("ricordo.web.home", ("/",)),
)
# What a turn needs is there before the first answer.
AT_START = ("ricordo.api.health", "ricordo.api.agents", "ricordo.api.messages", "ricordo.api.run_stream")
# Seconds: how long the first requests are left alone, and the least pause between two pieces of getting ready.
_FIRST_PAUSE, _PAUSE = 0.1, 0.01


class Faces:
    """The routes of one app, of which some modules may still be missing. `routes` is the app's own list, kept in their order."""

    def __init__(self, routes: MutableSequence[Any]) -> None:
        self._routes = routes
        self._begin = len(routes)  # before ours stands what the framework itself answers, behind them what plugins do
        self._loaded: dict[str, list[Any]] = {}
        self._waiting = {module: pattern_of(beginnings) for module, beginnings in FACES}
        for module in AT_START:
            self._load(module)

    def load_for(self, path: str) -> None:
        """Have what may answer this path."""
        for module in [module for module, pattern in self._waiting.items() if pattern.match(path)]:
            self._load(module)

    def load_all(self) -> None:
        """Have everything, as the document of all routes needs."""
        for module in list(self._waiting):
            self._load(module)

    async def get_ready(self) -> None:
        """Bring in what is missing and build every route, in short pieces with pauses, so that nobody pays who asks later."""
        await asyncio.sleep(_FIRST_PAUSE)
        try:
            for _ in self._pieces():
                await asyncio.sleep(_PAUSE)
        except Exception:
            # Whoever asks for these routes hears it too; all others are served.
            log.exception("routes could not be made ready")

    def _pieces(self) -> Iterator[None]:
        for module, _ in FACES:
            if module in self._waiting:
                self._load(module)
                yield
            for route in self._loaded[module]:
                if isinstance(route, LateRoute) and not route.is_built:
                    route.build()
                    yield

    def _load(self, module: str) -> None:
        router = import_module(module).router
        end = self._begin + sum(map(len, self._loaded.values()))
        self._loaded[module] = list(router.routes)
        del self._waiting[module]
        self._routes[self._begin : end] = [route for name, _ in FACES for route in self._loaded.get(name, ())]


class Application(FastAPI):
    """An app of these faces; its document has every route, also of modules that nobody asked for yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.faces = Faces(self.router.routes)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        self.faces.load_all()
        return super().openapi()


class LateFaces:
    """Has the modules that may answer a request loaded before it is routed."""

    def __init__(self, app: ASGIApp, faces: Faces) -> None:
        self._app = app
        self._faces = faces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            self._faces.load_for(get_route_path(scope))  # without what another app has this one mounted under
        await self._app(scope, receive, send)


def pattern_of(beginnings: tuple[str, ...]) -> re.Pattern[str]:
    """What the paths of a face look like; a superset of what its routes match."""
    ways = "|".join(re.escape(beginning).replace(r"\*", "[^/]+") for beginning in beginnings)
    return re.compile(f"(?:{ways})(?:/|$)" if beginnings != ("/",) else "/$")
