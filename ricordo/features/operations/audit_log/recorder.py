"""What of a request is recorded: each that changed something but a turn, and each that was refused with 401 or 403.

The end of an answer is sent once its row is committed, so that what was confirmed is in the log, also after a kill. Rows of
requests that end at the same time are one transaction.
"""

import asyncio
import re
import time
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.guard import USER_HEADER
from ricordo.api.paths import route_path
from ricordo.domain.scope import ACTING_SCOPE, RECORDED_SCOPE, REQUEST_SCOPE
from ricordo.domain.scope import Scope as Caller
from ricordo.features.operations.audit_log.queries import AuditDraft
from ricordo.features.operations.audit_log.service import AuditWriter

_SAFE = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403)
_FAULTY, _INTERNAL = range(400, 500), 500
# Only ids: labels and names are words of users.
_ID = re.compile(
    r"(?:[a-z_]+-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{40}|\d{1,19}"
)
# What people say to agents: runs are the record of that, and most requests.
_TURN = re.compile(
    r".*/messages(?:/stream|/async)?|/v1/(?:chat/completions|responses)|/chat/stream"
)
_PLAIN = re.compile(r"[a-z][a-z0-9._-]{0,39}")
_MOST_READ = 64 * 1024
# Refusals of one caller that are recorded each, within so many seconds. After them a row stands for more and more.
_MOST_REFUSALS, _WINDOW, _MOST_CALLERS = 32, 60.0, 10_000
# What the page or the tool whose request asks this server again learns of what was recorded for it.
_INNER: ContextVar[list[str] | None] = ContextVar("ricordo_audit_inner", default=None)


class AuditRecorder:
    """Passes requests on, and records how they ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._writer = AuditWriter()
        self._refusals: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; its last piece of an answer waits for the row."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outer = _INNER.get() if REQUEST_SCOPE in scope else None
        recorded: list[str] = []
        status, is_looked_at, stored = 0, False, None

        async def record_and_send(message: Message) -> None:
            nonlocal status, is_looked_at, stored
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                if not is_looked_at:
                    is_looked_at = True
                    stored = self._record(scope, status, message.get("body", b""), recorded, outer)
                if stored is not None and not message.get("more_body"):
                    await stored
            await send(message)

        token = _INNER.set(recorded)
        try:
            await self._app(scope, receive, record_and_send)
        except Exception:
            if (
                not is_looked_at
                and (failed := self._record(scope, _INTERNAL, b"", recorded, outer)) is not None
            ):
                await failed
            raise
        finally:
            _INNER.reset(token)

    def _record(
        self, scope: Scope, status: int, body: bytes, recorded: list[str], outer: list[str] | None
    ) -> "asyncio.Future[None] | None":
        named = scope.get(RECORDED_SCOPE)
        is_refused = status in _REFUSED or (named is not None and status in _FAULTY)
        is_change = named is not None if RECORDED_SCOPE in scope else _changes(scope, status)
        if not is_refused and (recorded or not is_change):
            return None
        if outer is not None and scope["method"] in _SAFE:
            return None  # a page that leaves a part out
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
        """For how many refusals since the last row this one stands; 0 where it gets no row, as many do that come at once."""
        now = time.monotonic()
        since, count = self._refusals.get(caller, (now, 0))
        if now - since > _WINDOW:
            since, count = now, 0
        count += 1
        self._refusals[caller] = since, count
        self._refusals.move_to_end(caller)
        if len(self._refusals) > _MOST_CALLERS:
            self._refusals.popitem(last=False)
        if count <= _MOST_REFUSALS:
            return 1
        return count // 2 if count & (count - 1) == 0 else 0  # 64, 128, 256 …


def _changes(scope: Scope, status: int) -> bool:
    route = scope.get("route")
    if scope["method"] in _SAFE or route is None or status in _FAULTY:
        return False
    if scope["method"] == "POST" and _TURN.fullmatch(route.path):
        return False
    scopes = getattr(route, "scopes", None)
    # Searches and the like are sent with POST; tools over MCP may write.
    return not scopes or route.path == "/mcp" or not all(one.endswith(":read") for one in scopes)


def draft_of(scope: Scope, status: int, body: bytes, now: int) -> AuditDraft:
    """Return what is recorded of a request: no name, no label and nothing of its content."""
    caller: Caller | None = scope.get(RECORDED_SCOPE) or scope.get(REQUEST_SCOPE)
    acting: Caller | None = scope.get(ACTING_SCOPE)
    given: dict[str, Any] = scope.get("path_params") or {}
    objects = {
        name: str(value)
        for name, value in given.items()
        if name != "user_id" and _ID.fullmatch(str(value))
    }
    if not objects and (made := _made(body)):
        objects = {"id": made}
    draft = AuditDraft(f"{scope['method']} {_route_of(scope)}", status, now, objects=objects)
    draft.address = (scope.get("client") or ("",))[0]
    if caller:
        draft.organization_id, draft.user_id = caller.organization_id, caller.user_id
        draft.key_id, draft.role = caller.key_id, caller.role
        draft.for_user = acting.subject if acting else _named(scope)
        draft.for_user = draft.for_user or given.get("user_id")
        if draft.for_user == caller.user_id:
            draft.for_user = None
    return draft


def _named(scope: Scope) -> str | None:
    return next(
        (value.decode("latin-1") for name, value in scope["headers"] if name == USER_HEADER), None
    )


def _route_of(scope: Scope) -> str:
    """The template of the route; of a request that reached none the beginning of its path, where no names are."""
    if route := scope.get("route"):
        return str(route.path_format)
    pieces = route_path(scope).strip("/").split("/")
    shown = pieces[: 2 if pieces[0] in ("v1", "ui") else 1]
    return (
        "/"
        + "/".join(piece if _PLAIN.fullmatch(piece) else "…" for piece in shown)
        + ("/…" if pieces[2:] else "")
    )


def _made(body: bytes) -> str | None:
    """The id of what a request made, as its answer says."""
    if not body.startswith(b"{") or len(body) > _MOST_READ:
        return None
    try:
        id = orjson.loads(body).get("id")
    except ValueError:
        return None
    return id if isinstance(id, str) and _ID.fullmatch(id) else None
