"""Routes that cost little until they are used, and that answer what their functions return.

A module of routes is imported when a path of its own is first requested: the routes are a third of all that is imported, and
few are ever requested, so this saves each server a second at its start and 25 MB. A route is known by its path and methods, and
built at its first request: FastAPI reads its signature and makes validators for its input, some milliseconds each. Whether a
path is served, and by what, is decided by the routes alone: the table only says which modules must be imported before a path is
matched. `tests/api/test_lazy_routes.py` compares the table with the routes.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from importlib import import_module
from inspect import iscoroutinefunction, signature
from time import perf_counter
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette._utils import get_route_path
from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.routing import Match, compile_path, get_name
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.answers import (
    AnswerBudget,
    answer,
    budget_of,
    counted_answer,
    made_answer,
    read_answer,
    release_answer,
)
from ricordo.api.bodies import LARGE_BODIES, MOST_BYTES, read_large
from ricordo.api.guard import USER_HEADER, refuse
from ricordo.api.models.base import RefusalResponse, maker
from ricordo.api.models.warnings import with_warnings
from ricordo.api.openapi_document import OpenApiDocument
from ricordo.domain.request_counts import RequestCounts
from ricordo.domain.scope import ADMIN, IMPERSONATE, REQUEST_SCOPE
from ricordo.domain.scope import Scope as Caller
from ricordo.domain.text import normal_name, normal_text
from ricordo.offload import SMALL, offload

E = TypeVar("E", bound=Callable[..., Any])
# What only an escaped letter beyond ASCII or carriage return holds.
_MAY_BE_ODD = re.compile(rb"%(?:[89a-fA-F][0-9a-fA-F]|0[dD])|[\x80-\xff]")
# Every route may refuse; a class of codes, because which ones it gives depends on what is wrong.
REFUSALS: Mapping[int | str, dict[str, Any]] = {
    "4XX": {"model": RefusalResponse, "description": "Refused: `detail` says why and what to do"}
}


@dataclass(frozen=True, slots=True)
class LazyRouter:
    """The `router` of a module that is imported when one of its paths is first requested.

    `paths` are what its paths begin with, where * is one component: `/users/*/remotes`. They may match more than the routes do.
    One that `is_first` is matched before the core's routes, one of which has an id in the place of its name. The paths that are
    `open`, each of them whole, the guard lets pass without a key, also on a server that needs one. `login` is the page to which
    it sends a browser that has none. A request to a path of `resources` without a key is refused with the path of its metadata,
    by which a program finds out how to get a token (RFC 9728).
    """

    module: str
    paths: tuple[str, ...]
    is_first: bool = False
    open: tuple[str, ...] = ()
    login: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)

    def pattern(self) -> re.Pattern[str]:
        ways = "|".join(re.escape(path).replace(r"\*", "[^/]+") for path in self.paths)
        return re.compile(f"(?:{ways})(?:/|$)" if self.paths != ("/",) else "/$")


# In the order in which they are matched.
CORE_ROUTES: tuple[LazyRouter, ...] = (
    LazyRouter("ricordo.api.server", ("/v1/health", "/v1/models")),
    LazyRouter("ricordo.api.agents", ("/v1/agents",)),
    LazyRouter("ricordo.api.messages", ("/v1/agents/*/messages", "/v1/agents/*/reset-messages")),
    # Each route that is matched before takes its time: a search is short enough for that to count.
    LazyRouter(
        "ricordo.api.search",
        (
            "/v1/messages/search",
            "/v1/agents/messages/search",
            "/v1/passages/search",
            "/v1/agents/*/messages/import",
        ),
    ),
    LazyRouter(
        "ricordo.api.conversations",
        ("/v1/conversations", "/v1/agents/*/recompile", "/v1/agents/*/summarize"),
    ),
    LazyRouter("ricordo.api.block_proposals", ("/v1/blocks/*/diffs",)),
    LazyRouter("ricordo.api.blocks", ("/v1/blocks", "/v1/agents/*/core-memory")),
    LazyRouter("ricordo.api.tools", ("/v1/tools", "/v1/agents/*/tools")),
    LazyRouter("ricordo.api.stored_streams", ("/v1/runs/*/stream", "/v1/conversations/*/stream")),
    LazyRouter("ricordo.api.providers", ("/v1/providers",)),
    LazyRouter("ricordo.api.runs", ("/v1/runs", "/v1/steps", "/v1/messages")),
    LazyRouter("ricordo.api.jobs", ("/v1/jobs",)),
    LazyRouter(
        "ricordo.api.archives",
        ("/v1/archives", "/v1/agents/*/archives", "/v1/agents/*/archival-memory"),
    ),
)
# A block's label may hold slashes: what can follow one is matched before the label itself, and features before both.
LABEL_ROUTES: tuple[LazyRouter, ...] = (
    LazyRouter("ricordo.api.proposals", ("/users/*",)),
    LazyRouter("ricordo.api.users", ("/users/*/blocks",)),
)
# A turn needs these: they are imported before the first answer.
AT_START = (
    "ricordo.api.server",
    "ricordo.api.agents",
    "ricordo.api.messages",
    "ricordo.api.stored_streams",
)


# Items of a list whose answer is made beside the event loop.
_MANY = 64
# Routes belong to modules, and several apps of one process may build them at once.
_BUILDING = threading.RLock()
_IMPORTING = threading.Lock()


class LazyRoute(APIRoute):
    """A route that is built at its first request, or when anything is asked of it that only a built one knows."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        self.given: dict[str, Any] = given
        self.is_built = False
        # By what a request is matched.
        self.methods = {method.upper() for method in given.get("methods") or ["GET"]}
        self.path, self.endpoint = (
            path,
            _answering(endpoint, given.get("response_model"), self.methods),
        )
        self.name = given.get("name") or get_name(endpoint)
        # One of these the caller must have; None until the router says so, empty where anybody may call it.
        self.scopes: tuple[str, ...] | None = getattr(endpoint, "scopes", None)
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._match_whole_paths()
        self._begin = path.partition("{")[0]

    def _match_whole_paths(self) -> None:
        # The framework's $ matches before a last line feed too, so that the list would answer for the id "\n".
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the request; most of the hundreds of routes are ruled out by what their path begins with."""
        # "In": a proxy's path may stand before it.
        return super().matches(scope) if self._begin in scope["path"] else (Match.NONE, {})

    def build(self) -> None:
        """Make the route whole; nothing where it is already."""
        with _BUILDING:
            if not self.is_built:
                self.is_built = True
                try:
                    super().__init__(self.path, self.endpoint, **self.given)
                    self._match_whole_paths()
                except BaseException:
                    self.is_built = False
                    raise

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond, field = super().get_route_handler(), self.body_field
        if field is None:
            return respond
        check = partial(field.validate, loc=("body",))

        async def read_and_respond(request: Request) -> Response:
            await read_large(request, check)
            return await respond(request)

        return read_and_respond

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := refusal_of(scope, self.scopes):
            await refuse(*refusal)(scope, receive, send)
            return
        self.build()
        try:
            await LARGE_BODIES.serve(super().handle, scope, receive, with_warnings(send))
        finally:
            release_answer(scope)

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not there yet.
        if name.startswith("__"):
            raise AttributeError(f"A route has no {name}.")
        with _BUILDING:
            if not self.__dict__.get("is_built", True):
                self.build()
        if name not in self.__dict__:
            raise AttributeError(f"A route has no {name}.")
        return self.__dict__[name]


def _answering(endpoint: Callable[..., Any], model: Any, methods: set[str]) -> Callable[..., Any]:
    """Return the endpoint as one that gives a whole response, made by its response model of what the endpoint returns.

    An endpoint that is no coroutine takes a transaction and `context`: with GET it reads, with any other method it writes.
    """
    make = maker(model)
    is_async, only_reads = iscoroutinefunction(endpoint), methods == {"GET"}

    @wraps(endpoint)
    async def respond(**given: Any) -> Response:
        if not is_async and only_reads:
            request = given["context"].request
            work = partial(_called, endpoint, given)
            return await read_answer(
                budget_of(request.app), request.scope, given["context"].store, work, make
            )
        if is_async:
            made = await endpoint(**given)
        else:
            made = await given["context"].store.write(lambda tx: endpoint(tx, **given))
        context = given.get("context")
        if make and not isinstance(made, Response):
            is_long = isinstance(made, list | tuple) and len(made) > _MANY
            made = await offload(partial(make, made), SMALL + 1) if is_long else make(made)
        if context is None:
            return made if isinstance(made, Response) else answer(made)
        finish = counted_answer if isinstance(made, Response) else made_answer
        return await finish(
            budget_of(context.request.app), context.request.scope, made, reads=only_reads
        )

    known = signature(endpoint)
    parameters = [parameter for name, parameter in known.parameters.items() if name != "tx"]
    respond.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    return respond


def _called(endpoint: Callable[..., Any], given: Mapping[str, Any], tx: Any) -> Any:
    return endpoint(tx, **given)


def needs(*scopes: str) -> Callable[[E], E]:
    """Return a decorator that says which scopes a route needs, one of them; none: anybody may call it, without a key too."""

    def mark(endpoint: E) -> E:
        endpoint.scopes = scopes  # type: ignore[attr-defined]
        return endpoint

    return mark


def refusal_of(scope: Scope, needed: tuple[str, ...] | None) -> tuple[int, str] | None:
    """Why this caller may not call the route; before its body is read, and anything is looked up."""
    if not needed and needed is not None:
        return None
    caller: Caller | None = scope.get(REQUEST_SCOPE)
    if caller is None:
        return 401, "This server needs a key. Send it as `Authorization: Bearer …`."
    if not caller.may(*(needed or (ADMIN,))):
        wanted = " or ".join(needed or (ADMIN,))
        return (
            403,
            f"This key lacks the scope {wanted}. Ask an administrator for a key that has it.",
        )
    if any(name.lower() == USER_HEADER for name, _ in scope["headers"]) and not caller.may(
        IMPERSONATE
    ):
        return 403, "This key may not act for other users. Leave out the header x-ricordo-user."
    user = scope.get("path_params", {}).get("user_id")
    if (
        user is not None
        and caller.role == "user"
        and user not in (caller.user_id, caller.identifier)
    ):
        return 404, f'There is no user "{user[:80]}". Check the name.'
    return None


class Routes(APIRouter):
    """The routes of one module, in the order they are asked in.

    `scope` is the family of scopes that they need: `<scope>:read` with GET, `<scope>:write` with any other method. A route that
    needs others says so with `needs`, and each must say it where there is no family.
    """

    def __init__(
        self,
        prefix: str = "",
        tags: list[str] | None = None,
        *,
        scope: str | None = None,
        include_in_schema: bool = True,
    ) -> None:
        self._family = scope
        super().__init__(
            prefix=prefix,
            tags=cast(list[str | Enum] | None, tags),
            include_in_schema=include_in_schema,
            responses=dict(REFUSALS),
            route_class=LazyRoute,
        )

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().add_api_route(path, endpoint, **given)
        route = self.routes[-1]
        if isinstance(route, LazyRoute) and route.scopes is None:
            if self._family is None:
                raise TypeError(
                    f"The route {path} needs a scope: `Routes(…, scope=…)`, or `@needs(…)` at its function."
                )
            route.scopes = (f"{self._family}:{'read' if route.methods == {'GET'} else 'write'}",)
            needs(*route.scopes)(route.endpoint)  # where another router includes this one


def _import(module: str) -> list[Any]:
    """Return the routes of a module. One is imported at a time: two threads inside one package may each find it half made."""
    with _IMPORTING:
        return list(import_module(module).router.routes)


class LazyRoutes:
    """The routes of one app, of which some modules may not be imported yet. `routes` is the app's own list, kept in their order."""

    def __init__(self, routes: MutableSequence[Any], features: Sequence[LazyRouter] = ()) -> None:
        first = [router for router in features if router.is_first]
        rest = [router for router in features if not router.is_first]
        self.table = (*first, *CORE_ROUTES, *rest, *LABEL_ROUTES)
        self._routes = routes
        self._begin = len(routes)  # the framework's own routes come first, those of plugins last
        self._loaded: dict[str, list[Any]] = {}
        self._waiting = {router.module: router.pattern() for router in self.table}
        for module in AT_START:
            self._add(module, _import(module))

    async def load_for(self, path: str) -> None:
        """Import what may answer the path: in a thread, since a large one takes a fourth of a second."""
        for module in [module for module, pattern in self._waiting.items() if pattern.match(path)]:
            self._add(module, await asyncio.to_thread(_import, module))

    def load_all(self) -> None:
        for module in list(self._waiting):
            self._add(module, _import(module))

    def _add(self, module: str, routes: list[Any]) -> None:
        with _BUILDING:  # the document may be asked for in another thread
            if self._waiting.pop(module, None) is None:
                return
            end = self._begin + sum(map(len, self._loaded.values()))
            self._loaded[module] = routes
            self._routes[self._begin : end] = [
                route for router in self.table for route in self._loaded.get(router.module, ())
            ]


class Application(FastAPI):
    """An app with lazy routes. Its document has every route, also of modules that were not requested yet.

    `base` is the path below which a proxy serves it; the proxy takes it off, or leaves it.
    """

    def __init__(
        self,
        features: Sequence[LazyRouter] = (),
        base: str = "",
        answers: AnswerBudget | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._base = base
        self.lazy_routes = LazyRoutes(self.router.routes, features)
        self.request_counts = RequestCounts()
        self.answers = answers or AnswerBudget()
        self._document_lock = threading.Lock()
        self._document = OpenApiDocument(self._make_document)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _normalise_address(scope)
        if self._base and scope["type"] == "http":
            is_whole = f"{scope['path']}/".startswith(f"{self._base}/")
            scope["root_path"] = self._base
            scope["path"] = scope["path"] if is_whole else f"{self._base}{scope['path']}"
        if scope["type"] == "http" and (path := get_route_path(scope)).startswith("/latest/"):
            # Another name of /v1, as in the retired Letta V1 server.
            scope["path"] = f"{scope['path'].removesuffix(path)}/v1{path.removeprefix('/latest')}"
        if (
            scope["type"] != "http" or REQUEST_SCOPE in scope
        ):  # what this server asks of itself is no traffic
            await super().__call__(scope, receive, send)
            return
        began = perf_counter()
        statuses: list[int] = []
        try:
            await super().__call__(scope, receive, _explaining(scope, receive, send, statuses))
        finally:
            self.request_counts.note(scope, next(iter(statuses), 0), perf_counter() - began)

    def setup(self) -> None:
        """Serve the document; the framework would make it and write it on the event loop, which takes seconds."""
        self.add_route(
            "/openapi.json", self._answer_document, name="openapi", include_in_schema=False
        )

    def openapi(self) -> dict[str, Any]:
        """Return the document, which takes seconds and stays in memory: a server asks `document` for it."""
        with self._document_lock:
            self.lazy_routes.load_all()
            return super().openapi()

    def _make_document(self) -> bytes:
        before = self.openapi_schema
        try:
            return orjson.dumps(self.openapi())
        finally:
            self.openapi_schema = before

    async def document(self) -> dict[str, Any]:
        """Return the document, read from its bytes: it is large, so nobody keeps it."""
        text = await self._document.text()
        return cast("dict[str, Any]", await offload(lambda: orjson.loads(text), len(text)))

    async def _answer_document(self, request: Request) -> Response:
        text = await self._document.text()
        if base := request.scope.get("root_path", "").rstrip("/"):
            servers = orjson.dumps({"servers": [{"url": base}]})
            text = servers.removesuffix(b"}") + b"," + text.removeprefix(b"{")
        return Response(text, media_type="application/json")


def _normalise_address(scope: Scope) -> None:
    """Put path and query into the normal form of names and text, in which everything is stored, before anyone reads them."""
    if not scope["path"].isascii():
        scope["path"] = normal_name(scope["path"])
    query: bytes = scope["query_string"]
    # Only what is escaped can be in another form; servers pass no other bytes.
    if _MAY_BE_ODD.search(query):
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        normal = [(name, normal_text(value)) for name, value in pairs]
        # One that is normal stays to the byte: a page leads back to the very address that was asked for.
        if normal != pairs:
            scope["query_string"] = urlencode(normal).encode()


def _explaining(scope: Scope, receive: Receive, send: Send, statuses: list[int]) -> Send:
    """Return what sends an answer, and notes its status.

    Of a body that is too long it says how long one may be, which the framework does not.
    """
    is_answered = False

    async def explain(message: Message) -> None:
        nonlocal is_answered
        if "status" in message:
            statuses.append(message["status"])
        if message.get("status") == 413:
            is_answered = True
            most = scope.get(MAX_BODY_SIZE_SCOPE_KEY, 0) // 1024**2
            words = (
                f"The request is longer than {most} MB. Send less, or raise RICORDO_MAX_BODY_MB."
            )
            if (own := scope.get(MOST_BYTES)) and own < most * 1024**2:
                words = f"The request is longer than the {own:,} bytes that this key may send at once. Send less."
            await refuse(413, words, {"connection": "close"}, path=get_route_path(scope))(
                scope, receive, send
            )
        elif not is_answered:
            await send(message)

    return explain


class LazyRoutesMiddleware:
    """Imports the modules that may answer a request before it is routed."""

    def __init__(self, app: ASGIApp, lazy_routes: LazyRoutes) -> None:
        self._app = app
        self._lazy_routes = lazy_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            # Without the path under which a proxy or another app serves this one.
            await self._lazy_routes.load_for(get_route_path(scope) or "/")
        await self._app(scope, receive, send)
