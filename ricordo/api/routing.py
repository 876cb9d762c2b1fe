"""Routers whose routes require scopes, and the application that serves them.

Each module has one `router`, made with `Routes`. All modules are imported when the server starts,
and all servers of a process share their route objects. A route's function returns a value. The
route writes the answer, and opens a transaction if the function takes one.
"""

import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial, wraps
from importlib import import_module
from inspect import iscoroutinefunction, signature
from time import perf_counter
from typing import Any, ClassVar, TypeVar, cast, get_args
from urllib.parse import parse_qsl, urlencode

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.convertors import Convertor
from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.routing import BaseRoute, Match, Route, compile_path
from starlette.types import Message, Receive, Scope, Send

from ricordo.api.answers import (
    TICKET,
    AnswerBudget,
    answer,
    budget_of,
    counted_answer,
    made_answer,
    read_answer,
)
from ricordo.api.bodies import LARGE, LARGE_BODIES, MOST_BYTES, CountedBody, read_and_respond
from ricordo.api.guard import RETRY_AFTER, USER_HEADER, refuse, route_path
from ricordo.api.models.base import RefusalResponse, maker
from ricordo.api.models.warnings import REASONS, header_of
from ricordo.api.openapi_document import OpenApiDocument
from ricordo.domain.request_counts import RequestCounts
from ricordo.domain.scope import ADMIN, IMPERSONATE, REQUEST_SCOPE
from ricordo.domain.scope import Scope as Caller
from ricordo.domain.text import normal_name, normal_text
from ricordo.offload import SMALL, offload

E = TypeVar("E", bound=Callable[..., Any])
# Matches bytes beyond ASCII, escaped or not, and escaped carriage returns. Only these may change in
# normal form.
_MAY_BE_ODD = re.compile(rb"%(?:[89a-fA-F][0-9a-fA-F]|0[dD])|[\x80-\xff]")
# The refusals of every route in the document, as a class of status codes, since the code depends on
# the error.
REFUSALS: Mapping[int | str, dict[str, Any]] = {
    "4XX": {"model": RefusalResponse, "description": "Refused: `detail` has the reason and advice"}
}
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
# Monitors and load balancers often ask for these paths with HEAD. Other routes refuse HEAD, as in
# FastAPI.
_WITH_HEAD = frozenset(
    ("/", "/health", "/v1/health", "/v1/health/", "/v1/health/live", "/v1/health/ready")
)
# The answer to a longer list is made outside the event loop.
_MANY = 64


class ValidatedRoute(APIRoute):
    """FastAPI's part of a route: it validates the request and calls the endpoint."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, with long bodies decoded outside the event loop."""
        respond, field = super().get_route_handler(), self.body_field
        if field is None:
            return respond
        return partial(read_and_respond, respond, partial(field.validate, loc=("body",)))


class GuardedRoute(Route):
    """A route that only callers with one of its scopes may call.

    FastAPI builds a validator for each parameter. For all routes, this takes a quarter of the time
    of a server's start. So FastAPI's part of a route, `api_route`, is made at its first request.
    FastAPI gets no response model, since the model's own `of` makes the answer. Only the document
    shows the model.
    """

    validated_class: ClassVar[type[APIRoute]] = ValidatedRoute

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        response_model: Any = None,
        responses: dict[int | str, dict[str, Any]] | None = None,
        methods: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        # Starlette's `__init__` is not called. It would compile the path's expression, and answer
        # HEAD for each GET, which FastAPI does not.
        verbs = {method.upper() for method in methods or ["GET"]}
        self.path = path
        self.endpoint = _responding(endpoint, response_model, reads=verbs == {"GET"})
        self.name = endpoint.__name__
        self.include_in_schema = options.get("include_in_schema", True)
        self.methods = verbs
        # None until the router sets the scopes of its family. Empty if every caller may call it.
        self.scopes: tuple[str, ...] | None = getattr(endpoint, "scopes", None)
        # Without a model, FastAPI passes a placeholder that only the document understands.
        if isinstance(response_model, DefaultPlaceholder):
            self.response_model = None
        else:
            self.response_model = response_model
        self._documented_model = response_model
        self._begin = path.partition("{")[0]
        self._options = {**options, "methods": verbs}
        self._responses = responses

    @cached_property
    def _compiled_path(self) -> tuple[re.Pattern[str], str, dict[str, Convertor[Any]]]:
        return compile_path(self.path)

    @cached_property
    def path_regex(self) -> re.Pattern[str]:  # type: ignore[override]
        """The expression of the path, compiled when a request may match for the first time."""
        return self._compiled_path[0]

    @cached_property
    def path_format(self) -> str:  # type: ignore[override]
        """The path without the types of its parameters."""
        return self._compiled_path[1]

    @cached_property
    def param_convertors(self) -> dict[str, Convertor[Any]]:  # type: ignore[override]
        """Functions that read the path's parameters, by name."""
        return self._compiled_path[2]

    @cached_property
    def api_route(self) -> APIRoute:
        """FastAPI's part of the route."""
        _build_validators(self.endpoint)
        return self.validated_class(self.path, self.endpoint, response_model=None, **self._options)

    @property
    def dependant(self) -> Dependant:
        """The parameters of the endpoint."""
        return self.api_route.dependant

    def documented(self) -> APIRoute:
        """Return the route for the document, with the models of its answers."""
        _build_validators(self.endpoint)
        return APIRoute(
            self.path,
            self.endpoint,
            response_model=self._documented_model,
            responses=self._responses,
            **self._options,
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the request; the beginning of the path excludes most of the hundreds of routes."""
        # The test is "in", because a proxy's prefix may precede the path.
        if self._begin not in scope["path"]:
            return Match.NONE, {}
        match, child_scope = super().matches(scope)
        # The framework's $ also matches before a final line feed, so an id that is a line feed
        # would reach the list's route.
        if scope["path"].endswith("\n") and not self.path_regex.fullmatch(route_path(scope)):
            return Match.NONE, {}
        if match != Match.NONE:
            child_scope["route"] = self
        return match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the caller, or answer.

        Args:
            scope: The ASGI scope, in which the guard has put the caller's scope.
            receive: The `receive` of ASGI. The bytes of a large body count toward the limit of all
                bodies.
            send: The `send` of ASGI. The answer gets a header with the warnings of the request.
        """
        if refusal := refusal_of(scope, self.scopes):
            await refuse(*refusal, scope=scope)(scope, receive, send)
            return
        body = CountedBody(receive, LARGE_BODIES)
        reasons: dict[str, dict[str, None]] = {}
        REASONS.set(reasons)

        async def send_answer(message: Message) -> None:
            if body.size > LARGE:
                body.release()
            if reasons and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], header_of(reasons)]}
            await send(message)

        try:
            await self.api_route.handle(scope, body, send_answer)
        finally:
            if body.size > LARGE:
                body.release()
            if TICKET in scope:
                scope[TICKET].release()


def _build_validators(endpoint: Callable[..., Any]) -> None:
    """Build the validators of the endpoint's request models, which are deferred until now.

    FastAPI builds its own validator from each model while it silences some warnings of pydantic.
    With a deferred model it would build this validator later, and the warnings would appear.
    """
    for parameter in signature(endpoint).parameters.values():
        for model in _models_in(parameter.annotation):
            model.model_config["defer_build"] = False
            model.model_rebuild()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _responding(endpoint: Callable[..., Any], model: Any, *, reads: bool) -> Callable[..., Any]:
    """Return the endpoint as a coroutine that writes its response with the response model.

    An endpoint that is not a coroutine takes a transaction and `context`. With GET it reads, with
    other methods it writes.
    """
    make = maker(model)
    is_async = iscoroutinefunction(endpoint)

    @wraps(endpoint)
    async def respond(**arguments: Any) -> Response:
        if not is_async and reads:
            request = arguments["context"].request
            work = partial(endpoint, **arguments)
            return await read_answer(
                budget_of(request.app), request.scope, arguments["context"].store, work, make
            )
        if is_async:
            result = await endpoint(**arguments)
        else:
            result = await arguments["context"].store.write(lambda tx: endpoint(tx, **arguments))
        is_small = isinstance(result, Response) and len(getattr(result, "body", b"")) <= SMALL
        if is_small:
            return cast(Response, result)
        context = arguments.get("context")
        if make and not isinstance(result, Response):
            is_long = isinstance(result, list | tuple) and len(result) > _MANY
            if is_long:
                result = await offload(partial(make, result), SMALL + 1)
            else:
                result = make(result)
        if context is None:
            if isinstance(result, Response):
                return result
            return answer(result)
        finish = counted_answer if isinstance(result, Response) else made_answer
        return await finish(
            budget_of(context.request.app), context.request.scope, result, reads=reads
        )

    if not is_async:
        # Bind the transaction, so that FastAPI reads only the parameters after it.
        respond.__wrapped__ = partial(endpoint, None)
    return respond


def needs(*scopes: str) -> Callable[[E], E]:
    """Return a decorator that names a route's scopes; a caller needs one of them.

    Without scopes, every caller may call the route, even without a key.
    """

    def mark(endpoint: E) -> E:
        endpoint.scopes = scopes  # type: ignore[attr-defined]
        return endpoint

    return mark


def refusal_of(scope: Scope, needed: tuple[str, ...] | None) -> tuple[int, str] | None:
    """Return the reason why this caller may not call the route: a status and a sentence.

    Call it before the body is read, and before any look-up.

    Args:
        scope: The ASGI scope, in which the guard has put the caller's scope.
        needed: Scopes of which the caller needs one. Empty: every caller may call the route. None:
            only administrators may.
    """
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
    """The routes of one module, in the order in which they are matched.

    Args:
        prefix: The common beginning of the paths of its routes.
        tags: Tags that group its routes in the document.
        scope: The family of scopes that its routes need: `<scope>:read` with GET, `<scope>:write`
            with any other method. A route that needs other scopes declares them with `needs`.
            Without a family, each route must do so.
        include_in_schema: Whether the document shows its routes.
        goes_first: Match its routes before the core's, because a core route would read a name in
            the path as an id.
        open_paths: Complete paths that the guard passes without a key, even on a server that needs
            keys.
        login_page: The path to which the guard sends a browser that has no key.
        resources: Paths of resources, each with the path of its metadata. If a request without a
            key is refused, the refusal names the metadata's path. There a program reads how to get
            a token (RFC 9728).
    """

    guarded_class: ClassVar[type[GuardedRoute]] = GuardedRoute

    def __init__(
        self,
        prefix: str = "",
        tags: list[str] | None = None,
        *,
        scope: str | None = None,
        include_in_schema: bool = True,
        goes_first: bool = False,
        open_paths: Sequence[str] = (),
        login_page: str = "",
        resources: Mapping[str, str] | None = None,
    ) -> None:
        self._family = scope
        self.goes_first = goes_first
        self.open_paths = tuple(open_paths)
        self.login_page = login_page
        self.resources = dict(resources or {})
        super().__init__(
            prefix=prefix,
            tags=cast(list[str | Enum] | None, tags),
            include_in_schema=include_in_schema,
            responses=dict(REFUSALS),
            route_class=cast(type[APIRoute], self.guarded_class),
        )

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route; it needs the scope of the family, or the scopes that its function declares.

        Args:
            path: The path below the common prefix.
            endpoint: The function of the route. A plain function gets a transaction first: a read
                with GET, otherwise a write.
            **options: Options of FastAPI.

        Raises:
            TypeError: No scope is known, or a plain function has no context.
        """
        if self._family is None and getattr(endpoint, "scopes", None) is None:
            raise TypeError(
                f"The route {path} needs a scope: `Routes(…, scope=…)`, or `@needs(…)` at its function."
            )
        if not iscoroutinefunction(endpoint) and "context" not in signature(endpoint).parameters:
            raise TypeError(
                f"The function of the route {path} is called with a transaction, so it needs a "
                "parameter `context: RequestContext`. If it needs no database, write it as `async "
                "def`."
            )
        super().add_api_route(path, endpoint, **options)
        route = self.routes[-1]
        if isinstance(route, GuardedRoute) and route.scopes is None:
            route.scopes = (f"{self._family}:{'read' if route.methods == {'GET'} else 'write'}",)
            # If another router includes this one, its copy of the route reads these scopes.
            needs(*route.scopes)(route.endpoint)


def load_router(module: str) -> APIRouter:
    """Import a module and return its `router`."""
    router: APIRouter = import_module(module).router
    return router


class Application(FastAPI):
    """The server's app.

    `base` is the path under which a proxy serves it. The proxy may remove it or keep it.
    """

    def __init__(
        self,
        base: str = "",
        answers: AnswerBudget | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._base = base
        self.request_counts = RequestCounts()
        self.answers = answers or AnswerBudget()
        self._document_lock = threading.Lock()
        self._document = OpenApiDocument(self._make_document)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_plain = scope["path"].isascii() and not _MAY_BE_ODD.search(scope["query_string"])
            if not is_plain:
                _normalise_address(scope)
        if self._base and scope["type"] == "http":
            is_whole = f"{scope['path']}/".startswith(f"{self._base}/")
            scope["root_path"] = self._base
            scope["path"] = scope["path"] if is_whole else f"{self._base}{scope['path']}"
        if scope["type"] == "http" and (path := route_path(scope)).startswith("/latest/"):
            # Another name of /v1, as in the retired Letta V1 server.
            scope["path"] = f"{scope['path'].removesuffix(path)}/v1{path.removeprefix('/latest')}"
        if (
            scope["type"] == "http"
            and scope["method"] == "HEAD"
            and route_path(scope) in _WITH_HEAD
        ):
            scope = {**scope, "method": "GET"}  # the web server leaves the body out
        if (
            scope["type"] != "http" or REQUEST_SCOPE in scope
        ):  # requests of this server to itself are not counted
            await super().__call__(scope, receive, send)
            return
        began = perf_counter()
        guarded_send = _GuardedSend(scope, receive, send)
        try:
            await super().__call__(scope, receive, guarded_send)
        finally:
            self.request_counts.note(scope, guarded_send.status, perf_counter() - began)

    def setup(self) -> None:
        """Add the route of the OpenAPI document.

        The framework's route would build it on the event loop, for seconds.
        """
        self.add_route(
            "/openapi.json", self._answer_document, name="openapi", include_in_schema=False
        )

    def openapi(self) -> dict[str, Any]:
        """Build and cache the OpenAPI document, which takes seconds.

        A server uses `document` instead.
        """
        with self._document_lock:
            if self.openapi_schema is None:
                self.openapi_schema = get_openapi(
                    title=self.title,
                    version=self.version,
                    openapi_version=self.openapi_version,
                    description=self.description,
                    routes=[_documented(route) for route in self.routes],
                )
            return self.openapi_schema

    def _make_document(self) -> bytes:
        before = self.openapi_schema
        try:
            return orjson.dumps(self.openapi())
        finally:
            self.openapi_schema = before

    async def document(self) -> dict[str, Any]:
        """Return the document, parsed from its bytes; it is large, so the object is not cached."""
        text = await self._document.text()
        return cast("dict[str, Any]", await offload(lambda: orjson.loads(text), len(text)))

    def stop_document(self) -> None:
        """Stop making the document, because the server stops."""
        self._document.stop()

    async def _answer_document(self, request: Request) -> Response:
        text = await self._document.text()
        if base := request.scope.get("root_path", "").rstrip("/"):
            servers = orjson.dumps({"servers": [{"url": base}]})
            text = servers.removesuffix(b"}") + b"," + text.removeprefix(b"{")
        return Response(text, media_type="application/json")


def _documented(route: BaseRoute) -> BaseRoute:
    if isinstance(route, GuardedRoute):
        return route.documented()
    return route


def _normalise_address(scope: Scope) -> None:
    """Put path and query into the normal form of names and texts, before anything reads them."""
    if not scope["path"].isascii():
        scope["path"] = normal_name(scope["path"])
    query: bytes = scope["query_string"]
    if _MAY_BE_ODD.search(query):
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        normal = [(name, normal_text(value)) for name, value in pairs]
        # Leave a normal query unchanged, since pages link back to the exact address of the request.
        if normal != pairs:
            scope["query_string"] = urlencode(normal).encode()


@dataclass(slots=True)
class _GuardedSend:
    """The `send` of a request, which records the answer's status and adds security headers.

    The headers stop browsers from guessing another file type, and caches from storing the answer.
    An answer with 503 also gets a time for a retry. The answer to a body that is too long states
    the limit, which the framework's answer lacks.

    Attributes:
        status: The answer's status; 0 until it begins.
        is_replaced: The answer that follows is dropped, since another one was sent in its place.
    """

    scope: Scope
    receive: Receive
    send: Send
    status: int = 0
    is_replaced: bool = False

    async def __call__(self, message: Message) -> None:
        if self.is_replaced:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status == 413:
                self.is_replaced = True
                await _too_long(self.scope)(self.scope, self.receive, self.send)
                return
            headers = message.get("headers", ())
            names = {name.lower() for name, _ in headers}
            missing = [pair for pair in _SECURITY_HEADERS if pair[0] not in names]
            if self.status == 503 and not names & {b"retry-after", b"x-should-retry"}:
                missing.append((b"retry-after", RETRY_AFTER.encode()))
            message = {**message, "headers": [*headers, *missing]}
        await self.send(message)


def _too_long(scope: Scope) -> Response:
    most = scope.get(MAX_BODY_SIZE_SCOPE_KEY, 0) // 1024**2
    message = f"The request is longer than {most} MB. Send less, or raise RICORDO_MAX_BODY_MB."
    if (key_limit := scope.get(MOST_BYTES)) and key_limit < most * 1024**2:
        message = f"The request is longer than the {key_limit:,} bytes that this key may send at once. Send less."
    headers = {"connection": "close"} | {
        name.decode(): text.decode() for name, text in _SECURITY_HEADERS
    }
    return refuse(413, message, headers, scope=scope)
