"""Who may come in: whoever has a key; where there are no keys only this machine, and no web page of another origin."""

import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import orjson
from starlette._utils import get_route_path
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ricordo.api.authentication import CALL, Authentication
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.settings import LOOPBACK, Settings

# What anybody may ask for, and which must not wait for the database.
_HEALTH = ("/v1/health", "/v1/health/")
# What anybody may see: that a server is here and how to talk to it.
OPEN_PATHS = ("/", *_HEALTH)
# git sends a key as the password of any user, and only after it was asked for one.
_GIT_PATH = re.compile(r"/users/[^/]+/memory\.git/")
# A login's key, which a browser sends by itself.
COOKIE = "ricordo_session"
# Names the user that a service or the administrator acts for.
USER_HEADER = b"x-ricordo-user"
_SAFE = ("GET", "HEAD", "OPTIONS")
_Refusal = tuple[int, str]


class Guard:
    """Finds out who a request is from before any route sees it, and refuses whoever has no key where one is needed.

    Without keys a browser is the only way in from outside: a page of another origin, or a name that was made to point here
    (DNS rebinding). Both are refused by their Origin and Host. With the cookie of a login only pages of this server may write.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        authentication: Authentication,
        open_paths: Iterable[str] = (),
        login: str = "",
    ) -> None:
        self._app = app
        self._login = login
        self._open_paths = frozenset((*OPEN_PATHS, *open_paths))
        self._authentication = authentication
        self._hosts = {*LOOPBACK, settings.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        # What this server asks of itself has its caller's scope already.
        if scope["type"] == "http" and REQUEST_SCOPE not in scope and (refusal := await self._refusal(scope)):
            status, detail = refusal
            if status == 401 and self._login and _is_navigation(scope):
                await self._to_login(scope)(scope, receive, send)
                return
            asks = status == 401 and _GIT_PATH.match(get_route_path(scope))
            headers = {"www-authenticate": 'Basic realm="Ricordo", charset="UTF-8"'} if asks else None
            await refuse(status, detail, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> _Refusal | None:
        headers = scope["headers"]
        runtime: Any = getattr(scope["app"].state, "runtime", None)
        path = get_route_path(scope) or "/"  # without the path below which a proxy or another app serves this one
        is_open = path in self._open_paths
        key = _key(_header(headers, b"authorization"), is_git=bool(_GIT_PATH.match(path)))
        # The program of a tool is nobody else, also where others need no key.
        is_tool = key.startswith(CALL)
        if local := None if is_tool else await self._authentication.local(runtime, asks=path not in _HEALTH):
            scope[REQUEST_SCOPE] = local
            return self._foreign(scope)
        cookie = "" if key else _cookie(_header(headers, b"cookie"))
        is_from_elsewhere = not _is_own_page(headers) and (cookie or (is_open and _is_page(headers)))
        if is_from_elsewhere and scope["method"] not in _SAFE:
            return 403, "With a login only pages of this server may write. Programs send a key instead."
        if is_open and not cookie:
            return None
        if key or cookie:
            is_near, address = _is_near(scope), (scope.get("client") or ("",))[0]
            await self._authentication.slow_down(address, key or cookie)
            scope[REQUEST_SCOPE] = await self._authentication.scope_of(runtime, key or cookie, is_near=is_near)
            if scope[REQUEST_SCOPE] is None:
                self._authentication.note_failure(address)
        if scope.get(REQUEST_SCOPE) is None and not is_open:
            why = "This key is unknown, expired or revoked. " if key or cookie else ""
            return 401, f"{why}Send this server's key as `Authorization: Bearer …`; letta-client takes it as api_key."
        return None

    def _to_login(self, scope: Scope) -> Response:
        asked = "/"
        if scope["method"] == "GET":  # what a form sent is gone, and its address may show nothing
            query = scope["query_string"].decode("latin-1")
            asked = quote(get_route_path(scope) or "/") + (f"?{query}" if query else "")
        address = f"{scope.get('root_path', '').rstrip('/')}{self._login}?next={quote(asked, safe='')}"
        return RedirectResponse(address, 303, {"Cache-Control": "no-store"})

    def _foreign(self, scope: Scope) -> _Refusal | None:
        headers = scope["headers"]
        if _is_passed_on(headers):
            return 403, "A proxy passes on requests of other machines, and this server has no key. Set RICORDO_API_KEY."
        host = _header(headers, b"host").decode("latin-1")
        if _hostname(host) not in self._hosts:
            sentence = f'This server is not known as "{_hostname(host)}".'
            return 403, f"{sentence} Use http://127.0.0.1, or set RICORDO_API_KEY."
        origin = _header(headers, b"origin").decode("latin-1")
        if origin and _split(origin).netloc != host:
            return 403, f"Pages of {origin} may not use this server; only its own may, and programs."
        return None


def _is_navigation(scope: Scope) -> bool:
    """Whether a browser opens a page, or sends the form of one."""
    headers = scope["headers"]
    mode = _header(headers, b"sec-fetch-mode")
    asks_page = mode == b"navigate" or (not mode and _header(headers, b"accept").startswith(b"text/html"))
    return scope["method"] in ("GET", "POST") and asks_page


def refuse(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps({"detail": detail}), status, headers, "application/json")


def _is_near(scope: Scope) -> bool:
    """Whether the caller is on this machine."""
    client, server = scope.get("client") or ("",), scope.get("server") or ("",)
    return client[0] in LOOPBACK or client[0].startswith("127.") or (client[0] != "" and client[0] == server[0])


def _is_passed_on(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a proxy says that another machine asks."""
    named = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
    return any(each.strip() not in LOOPBACK for each in named.split(",")) if named else False


def _is_own_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a browser says that a page of this very server sends this (Fetch Metadata, or else Origin)."""
    if site := _header(headers, b"sec-fetch-site"):
        return site == b"same-origin"
    origin = _header(headers, b"origin").decode("latin-1")
    return bool(origin) and _split(origin).netloc == _header(headers, b"host").decode("latin-1")


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether some page sends this, and no program."""
    return bool(_header(headers, b"sec-fetch-site") or _header(headers, b"origin"))


def _key(credential: bytes, *, is_git: bool) -> str:
    """The key in an Authorization header; empty where there is none."""
    scheme, _, given = credential.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return given.decode("utf-8", "replace")
        case b"basic" if is_git:
            try:
                return b64decode(given, validate=True).partition(b":")[2].decode("utf-8", "replace")
            except ValueError:
                return ""
    return ""


def _cookie(header: bytes) -> str:
    # The standard library stops reading at the first cookie that is not as it should be, which may be another server's.
    return cookie_parser(header.decode("latin-1")).get(COOKIE, "")


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _hostname(host: str) -> str:
    return _split(f"//{host}").hostname or ""


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # an address like "[::1" names nobody
        return urlsplit("")
