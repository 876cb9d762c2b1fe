"""Who may come in: whoever has the key where one is set; else only this machine, and no web page of another origin."""

import hmac
import re
from base64 import b64decode
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ricordo.settings import LOOPBACK, Settings

# What anybody may see: that a server is here and how to talk to it.
_OPEN_PATHS = ("/", "/v1/health", "/v1/health/")
# git sends a key as the password of any user, and only after it was asked for one.
_GIT_PATH = re.compile(r"/users/[^/]+/memory\.git/")


class Guard:
    """Checks every request before any route sees it.

    Without a key a browser is the only way in from outside: a page of another origin, or a name that was made to point here
    (DNS rebinding). Both are refused by their Origin and Host.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else None
        self._hosts = {*LOOPBACK, settings.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := self._refusal(scope):
            status, detail = refusal
            asks = status == 401 and _GIT_PATH.match(scope["path"])
            headers = {"www-authenticate": 'Basic realm="Ricordo", charset="UTF-8"'} if asks else None
            refused = Response(orjson.dumps({"detail": detail}), status, headers, "application/json")
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = scope["headers"]
        if self._key is not None:
            given = _key(_header(headers, b"authorization"), is_git=bool(_GIT_PATH.match(scope["path"])))
            if scope["path"] in _OPEN_PATHS or hmac.compare_digest(given, self._key):
                return None
            return 401, "Send this server's key as `Authorization: Bearer …`; letta-client takes it as api_key."
        host = _header(headers, b"host").decode("latin-1")
        if _hostname(host) not in self._hosts:
            sentence = f'This server is not known as "{_hostname(host)}".'
            return 403, f"{sentence} Use http://127.0.0.1, or set RICORDO_API_KEY."
        origin = _header(headers, b"origin").decode("latin-1")
        if origin and _split(origin).netloc != host:
            return 403, f"Pages of {origin} may not use this server; only its own may, and programs."
        return None


def _key(credential: bytes, *, is_git: bool) -> bytes:
    """The key in an Authorization header; empty where there is none."""
    scheme, _, given = credential.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return given
        case b"basic" if is_git:
            try:
                return b64decode(given, validate=True).partition(b":")[2]
            except ValueError:
                return b""
    return b""


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _hostname(host: str) -> str:
    return _split(f"//{host}").hostname or ""


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # an address like "[::1" names nobody
        return urlsplit("")
