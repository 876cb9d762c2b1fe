"""Record each request that changed something or was refused.

A refusal has the status 401 or 403. In a login or an OAuth request of a known user it may have any
status from 400 to 499. Turns that begin are not recorded.

An answer is completed only after its row is committed. So a confirmed change is in the log even
after a kill. Rows of requests that end at the same time are written in one transaction.
"""

import asyncio
import re
import time
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.guard import named_user, route_path
from ricordo.domain.scope import ACTING_SCOPE, RECORDED_SCOPE, REQUEST_SCOPE
from ricordo.domain.scope import Scope as Caller
from ricordo.features.operations.audit_log.queries import AuditDraft
from ricordo.features.operations.audit_log.service import AuditWriter

_SAFE = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403)
_CLIENT_ERRORS = range(400, 500)
_INTERNAL_ERROR = 500
# Only ids are recorded, since users choose labels and names.
_ID = re.compile(
    r"(?:[a-z_]+-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|[0-9a-f]{40}|\d{1,19}"
)
# Routes that start turns are skipped, since runs already record them.
_TURN = re.compile(
    r".*/messages(?:/stream|/async)?|/v1/(?:chat/completions|responses)|/chat/stream"
)
_PLAIN = re.compile(r"[a-z][a-z0-9._-]{0,39}")
_MAX_READ_BYTES = 64 * 1024
# Within a window, each of a caller's first refusals gets a row. Later rows each count several
# refusals.
_SINGLE_REFUSALS = 32
_WINDOW_SECONDS = 60.0
_MAX_CALLERS = 10_000
# The actions of inner requests, which a page or tool sends to this server.
_INNER: ContextVar[list[str] | None] = ContextVar("ricordo_audit_inner", default=None)


class AuditRecorder:
    """Middleware that records the outcome of requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._writer = AuditWriter()
        self._refusals: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; the last part of its answer waits for the row."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outer = _INNER.get() if REQUEST_SCOPE in scope else None
        recorded: list[str] = []
        status = 0
        has_body = False
        commit: asyncio.Future[None] | None = None

        async def record_and_send(message: Message) -> None:
            nonlocal status, has_body, commit
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                if not has_body:
                    has_body = True
                    commit = self._record(
                        scope, status, message.get("body", b""), recorded=recorded, outer=outer
                    )
                if commit is not None and not message.get("more_body"):
                    await commit
            await send(message)

        token = _INNER.set(recorded)
        try:
            await self._app(scope, receive, record_and_send)
        except Exception:
            if not has_body:
                failure = self._record(scope, _INTERNAL_ERROR, b"", recorded=recorded, outer=outer)
                if failure is not None:
                    await failure
            raise
        finally:
            _INNER.reset(token)

    def _record(
        self,
        scope: Scope,
        status: int,
        body: bytes,
        *,
        recorded: list[str],
        outer: list[str] | None,
    ) -> "asyncio.Future[None] | None":
        """Record the request if necessary; return a future that is done when its row is committed.

        `recorded` has the actions of its inner requests. `outer` is the list of the outer request,
        if there is one.
        """
        caller = scope.get(RECORDED_SCOPE)
        is_refused = status in _REFUSED or (caller is not None and status in _CLIENT_ERRORS)
        if RECORDED_SCOPE in scope:
            is_change = caller is not None
        else:
            is_change = _changes(scope, status)
        if not is_refused and (recorded or not is_change):
            return None
        if outer is not None and scope["method"] in _SAFE:
            return None  # an inner request of a page was refused, so the page left out that part
        runtime = getattr(scope["app"].state, "runtime", None)
        if runtime is None:
            return None
        draft = draft_of(scope, status, body, runtime.store.clock.now())
        if is_refused:
            draft.repeats = self._repeats(draft.key_id or draft.address)
            if draft.repeats == 0:
                return None
        if outer is not None:
            outer.append(draft.action)
        return self._writer.add(runtime.store, draft)

    def _repeats(self, caller: str) -> int:
        """Return the number of refusals that this row counts; 0 if no row is written.

        Many refusals of one caller within a window share a row, at the 64th, the 128th, the 256th
        and so on.
        """
        now = time.monotonic()
        since, count = self._refusals.get(caller, (now, 0))
        if now - since > _WINDOW_SECONDS:
            since = now
            count = 0
        count += 1
        self._refusals[caller] = since, count
        self._refusals.move_to_end(caller)
        if len(self._refusals) > _MAX_CALLERS:
            self._refusals.popitem(last=False)
        if count <= _SINGLE_REFUSALS:
            return 1
        is_power_of_two = count & (count - 1) == 0
        return count // 2 if is_power_of_two else 0


def _changes(scope: Scope, status: int) -> bool:
    route = scope.get("route")
    if scope["method"] in _SAFE or route is None or status in _CLIENT_ERRORS:
        return False
    if scope["method"] == "POST" and _TURN.fullmatch(route.path):
        return False
    scopes = getattr(route, "scopes", None)
    if not scopes or route.path == "/mcp":  # tools over MCP may write
        return True
    # Searches and similar requests use POST but change nothing.
    return not all(name.endswith(":read") for name in scopes)


def draft_of(scope: Scope, status: int, body: bytes, now: int) -> AuditDraft:
    """Return the draft of a request's row, without names, labels and content.

    Args:
        scope: The request's ASGI scope after its route was found and its caller authenticated.
        status: The HTTP status of the answer.
        body: The first bytes of the answer. The id of a created object is read from them.
        now: The time in microseconds.
    """
    caller: Caller | None = scope.get(RECORDED_SCOPE) or scope.get(REQUEST_SCOPE)
    acting: Caller | None = scope.get(ACTING_SCOPE)
    path_parameters: dict[str, Any] = scope.get("path_params") or {}
    objects = {
        name: str(parameter)
        for name, parameter in path_parameters.items()
        if name != "user_id" and _ID.fullmatch(str(parameter))
    }
    if not objects and (created_id := _created_id(body)):
        objects = {"id": created_id}
    draft = AuditDraft(f"{scope['method']} {_route_of(scope)}", status, now, objects=objects)
    draft.address = (scope.get("client") or ("",))[0]
    if caller:
        draft.organization_id = caller.organization_id
        draft.user_id = caller.user_id
        draft.key_id = caller.key_id
        draft.role = caller.role
        if acting:
            draft.for_user = acting.subject
        else:
            draft.for_user = named_user(scope["headers"])
        draft.for_user = draft.for_user or path_parameters.get("user_id")
        if draft.for_user == caller.user_id:
            draft.for_user = None
    return draft


def _route_of(scope: Scope) -> str:
    """Return the template of a request's route.

    Without a route, return the beginning of the path, which contains no names.
    """
    if route := scope.get("route"):
        return str(route.path_format)
    pieces = route_path(scope).strip("/").split("/")
    if pieces[0] in ("v1", "ui"):
        first_pieces = pieces[:2]
    else:
        first_pieces = pieces[:1]
    path = "/".join(piece if _PLAIN.fullmatch(piece) else "…" for piece in first_pieces)
    if pieces[2:]:
        return f"/{path}/…"
    return f"/{path}"


def _created_id(body: bytes) -> str | None:
    """Return the id of a created object from the request's answer."""
    if not body.startswith(b"{") or len(body) > _MAX_READ_BYTES:
        return None
    try:
        created_id = orjson.loads(body).get("id")
    except ValueError:
        return None
    if isinstance(created_id, str) and _ID.fullmatch(created_id):
        return created_id
    return None
