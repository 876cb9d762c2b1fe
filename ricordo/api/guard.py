"""The guard of the server, before all routes.

It admits callers that have a key. If there are no keys, it admits only this machine, and no web
page of another origin.
"""

import re
from base64 import b64decode
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import orjson
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.authentication import Authentication, RequestLimits
from ricordo.api.bodies import limit_body
from ricordo.domain.ids import pattern
from ricordo.domain.scope import REQUEST_SCOPE, Reach
from ricordo.domain.scope import Scope as Caller
from ricordo.errors import Unavailable, database_summary
from ricordo.sandbox import program_keys
from ricordo.secret import OPERATOR
from ricordo.settings import LOOPBACK, Settings
from ricordo.storage import conversations, runs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import TOKEN

# Open routes that must answer without the database.
_HEALTH = ("/v1/health", "/v1/health/", "/v1/health/live", "/v1/health/ready", "/health")
# Open routes that tell a client that a server runs, and how to use it.
OPEN_PATHS = ("/", "/v1/health", "/v1/health/")
_FIRST_NAME = re.compile(r"/v1/([^/]+)")
# OpenAI's paths of models. Letta's API begins some paths in the same way: `/v1/models/` with a
# final slash, and the list of embedding models.
_OPENAI_MODELS = re.compile(r"/v1/models(?:$|/(?!embedding(?:/|$))[^/])")
# The key in a request's ASGI scope for the names that begin paths of other APIs than OpenAI's.
_OWN_NAMES = "ricordo.own_names"
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}
_NOT_NOW = "{} Your key cannot be checked. Try again in a moment; the server's log has the reason."
# Seconds until a retry, if no better value is known.
RETRY_AFTER = "5"
# git sends a key as a password, with any user name, and only after an answer of 401.
_GIT_PATH = re.compile(r"/users/[^/]+/memory\.git/")
# The cookie with the session token of a login.
COOKIE = "ricordo_session"
# The header that names the user for whom a service or the administrator acts. A header holds ASCII,
# so clients percent-encode the name (`quote` in Python, `encodeURIComponent` in JavaScript).
USER_HEADER = b"x-ricordo-user"
_TOO_OFTEN = "This key was used too often within a minute. Wait {} s, or ask for a higher limit."
_OWN_PAGES_ONLY = (
    "With a login's cookie only pages of this server may write. Programs must send a key."
)
_SEND_KEY = "Send this server's key as `Authorization: Bearer …`; letta-client takes it as api_key."
_SAFE = ("GET", "HEAD", "OPTIONS")
_Refusal = tuple[int, str]
# The key in the ASGI scope under which `call.py` finds the allowed fields of a body.
FIELDS = "ricordo.fields"
# Headers in which proxies name the client's address; `Forwarded` (RFC 7239) has a different form.
_CLIENT_HEADERS = frozenset(
    (
        b"x-forwarded-for",
        b"x-real-ip",
        b"cf-connecting-ip",
        b"true-client-ip",
        b"x-client-ip",
        b"fastly-client-ip",
    )
)
_PROXY_HEADERS = _CLIENT_HEADERS | {b"via", b"forwarded"}
_FORWARDED_FOR = re.compile(rb'for\s{0,9}=\s{0,9}("[^"]*"|[^;,\s]*)', re.IGNORECASE)


class _BrowserRoute(NamedTuple):
    """A route that tokens of browsers may use.

    `access` is the needed right; `query` and `fields` are the allowed query parameters and fields
    of the body.
    """

    access: str
    method: str
    path: re.Pattern[str]
    query: frozenset[str]
    fields: frozenset[str]


_PAGE = "?before ?after ?limit ?order ?order_by ?ascending"
_SEND = (
    "messages input max_steps use_assistant_message assistant_message_tool_name assistant_message_tool_kwarg streaming"
    " include_return_message_types stream_tokens include_pings background client_tools enable_thinking"
    " include_compaction_messages"
)
# Each row has the right, the method and the path, then the allowed query parameters (with ?) and
# body fields. Parameters that name other objects (agents, blocks, users, models, addresses) are not
# allowed, except `agent_id`, which is checked.
_BROWSER_ROUTES = """
read_agent GET /v1/agents/<agent>
read_agent GET /v1/agents/<agent>/core-memory/blocks ?PAGE
read_agent GET /v1/agents/<agent>/core-memory/blocks/[^/]+
write_agent PATCH /v1/agents/<agent> name description system tags metadata
write_agent PATCH /v1/agents/<agent>/core-memory/blocks/[^/]+ value description
read_messages GET /v1/agents/<agent>/messages ?PAGE ?use_assistant_message ?include_return_message_types
read_messages GET /v1/conversations/ ?agent_id ?limit ?before ?after ?order ?order_by
read_messages GET /v1/conversations/<conversation>
read_messages GET /v1/conversations/<conversation>/messages ?PAGE ?include_return_message_types
read_messages POST /v1/conversations/<conversation>/stream starting_after include_pings poll_interval batch_size run_id otid
read_messages GET /v1/runs/<run>
read_messages GET /v1/runs/<run>/messages ?PAGE
read_messages GET /v1/runs/<run>/usage
read_messages POST /v1/runs/<run>/stream starting_after include_pings poll_interval batch_size
write_messages POST /v1/agents/<agent>/messages(/stream|/async)? SEND
write_messages POST /v1/agents/<agent>/messages/cancel run_ids
write_messages POST /v1/conversations/ ?agent_id summary description
write_messages POST /v1/conversations/<conversation>/messages SEND
write_messages POST /v1/conversations/<conversation>/cancel
"""
_IDS = {"agent": "agent", "conversation": "conv", "run": "run"}


def _read_browser_route(line: str) -> _BrowserRoute:
    for name, kind in _IDS.items():
        line = line.replace(f"<{name}>", f"(?P<{name}>{pattern(kind)[1:-1]})")
    access, method, path, *names = line.replace("?PAGE", _PAGE).replace("SEND", _SEND).split()
    query = frozenset(name[1:] for name in names if name[0] == "?")
    fields = frozenset(name for name in names if name[0] != "?")
    return _BrowserRoute(access, method, re.compile(path), query, fields)


BROWSER_ROUTES = tuple(map(_read_browser_route, _BROWSER_ROUTES.strip().splitlines()))


def named_user(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the user that the headers of a request name; None if they name no one.

    Names in raw UTF-8 or Latin-1, as curl and some clients send them, are read too.

    Args:
        headers: The names, in lower case, and the contents, as in an ASGI scope.
    """
    for name, sent in headers:
        if name == USER_HEADER:
            try:
                return unquote(sent.decode(), errors="strict")
            except UnicodeDecodeError:
                return sent.decode("latin-1")
    return None


def route_path(scope: Scope) -> str:
    """Return the request's path below the prefix of a proxy or of an outer app."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and f"{path}/".startswith(f"{root}/"):
        return path.removeprefix(root)
    return path


class Guard:
    """Identifies the caller before any route, and refuses callers without a needed key.

    Without keys, an attacker reaches this server only through a browser. The attacker uses a page
    of another origin, or a host name that was made to point here (DNS rebinding). Both are detected
    by their Origin and Host headers and refused. With a login's cookie, only pages of this server
    may write.

    Refusals below `/v1/` have OpenAI's form too, except below `own_names`: the first names of the
    routes that are not OpenAI's. So a path of OpenAI's API that is not served has it as well.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        authentication: Authentication,
        open_paths: Iterable[str] = (),
        login: str = "",
        resources: Mapping[str, str] | None = None,
        own_names: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._own_names = frozenset(own_names)
        self._resources = resources or {}
        self._login = login
        self._open_paths = frozenset((*OPEN_PATHS, *open_paths))
        self._authentication = authentication
        self._hosts = {*LOOPBACK, settings.host}
        self._limits = RequestLimits(settings)
        self._max_body_bytes = settings.key_max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        scope[_OWN_NAMES] = self._own_names
        # A request that this server sends to itself already has its caller's scope.
        if scope["type"] != "http" or REQUEST_SCOPE in scope:
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and (preflight := _preflight(scope)):
            await preflight(scope, receive, send)
            return
        path = route_path(scope) or "/"
        try:
            refusal = await self._identify(scope, path)
            caller = scope.get(REQUEST_SCOPE)
            if caller and caller.limits and path not in self._open_paths:
                if seconds := self._limits.count(caller.limits):
                    await _too_often(seconds, scope)(scope, receive, send)
                    return
                if max_bytes := caller.limits.max_body_bytes or self._max_body_bytes:
                    receive = limit_body(scope, receive, max_bytes)
            if caller and caller.reach:
                send = _readable(scope, caller.reach, send)
                refusal = refusal or await _token_refusal(scope, caller, caller.reach)
        except Unavailable as error:
            # The error's text may name files, and the caller is unknown.
            refusal = 503, _NOT_NOW.format(database_summary(error))
        app = self._answer_to(scope, path, refusal) if refusal else self._app
        await app(scope, receive, send)

    def _answer_to(self, scope: Scope, path: str, refusal: _Refusal) -> ASGIApp:
        """Return the answer to a refused request; a browser without a key is sent to the login."""
        status, detail = refusal
        if status != 401:
            return refuse(status, detail, scope=scope)
        if self._login and _is_navigation(scope):
            return self._to_login(scope)
        return refuse(status, detail, self._challenge(scope, path), scope=scope)

    def _challenge(self, scope: Scope, path: str) -> dict[str, str] | None:
        """Return the path's header that tells a client how to log in, if there is one."""
        if metadata := self._resources.get(path):
            address = f"{str(Request(scope).base_url).rstrip('/')}{metadata}"
            return {"www-authenticate": f'Bearer resource_metadata="{address}"'}
        if _GIT_PATH.match(path):
            return {"www-authenticate": 'Basic realm="Ricordo", charset="UTF-8"'}
        return None

    async def _identify(self, scope: Scope, path: str) -> _Refusal | None:
        """Record the caller's scope, or return the reason why the caller is refused.

        `path` lacks the prefix under which a proxy or another app serves this app.
        """
        # If a header is repeated, the first one counts.
        headers: dict[bytes, bytes] = dict(reversed(list(scope["headers"])))
        runtime: Any = getattr(scope["app"].state, "runtime", None)
        key = ""
        if credential := headers.get(b"authorization"):
            key = _key(credential, is_git=bool(_GIT_PATH.match(path)))
        # Tools' programs, and pages with a token, are never the local user, even on a server
        # without keys.
        is_never_local = key.startswith((program_keys.PREFIX, TOKEN))
        if self._authentication.may_be_local and not is_never_local:
            local = await self._authentication.local(runtime, asks=path not in _HEALTH)
            if local:
                scope[REQUEST_SCOPE] = local
                return self._foreign_refusal(scope, headers)
        cookie = "" if key or path in _HEALTH else _cookie(headers.get(b"cookie", b""))
        is_open = path in self._open_paths
        is_page = headers.get(b"sec-fetch-site") or headers.get(b"origin")
        is_of_browser = cookie or (is_open and is_page)
        if is_of_browser and scope["method"] not in _SAFE and not _is_own_page(headers):
            return 403, _OWN_PAGES_ONLY
        if is_open and not cookie:
            return None
        if not (key or cookie):
            return 401, _SEND_KEY
        key = key or cookie
        address = (scope.get("client") or ("",))[0]
        is_near = key.startswith(OPERATOR) and _is_near(scope)
        caller = await self._authentication.scope_of(runtime, key, address, is_near=is_near)
        scope[REQUEST_SCOPE] = caller
        if caller is None:
            self._authentication.note_failure(address)
        if caller or is_open:
            return None
        return 401, f"This key is unknown, expired or revoked. {_SEND_KEY}"

    def _to_login(self, scope: Scope) -> Response:
        target = "/"
        # After a form was sent, the login leads to the start page: the form's content would be
        # lost, and its address may be no page.
        if scope["method"] == "GET":
            query = scope["query_string"].decode("latin-1")
            target = quote(route_path(scope) or "/") + (f"?{query}" if query else "")
        root = scope.get("root_path", "").rstrip("/")
        address = f"{root}{self._login}?next={quote(target, safe='')}"
        return RedirectResponse(address, 303, {"Cache-Control": "no-store"})

    def _foreign_refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> _Refusal | None:
        """Refuse a request without a key that may come from another origin.

        Returns None if the request is allowed.
        """
        if not _PROXY_HEADERS.isdisjoint(headers) and _is_forwarded(scope["headers"]):
            return (
                403,
                "This request came through a proxy from another machine, and this server has no key. Set RICORDO_API_KEY.",
            )
        host = headers.get(b"host", b"").decode("latin-1")
        hostname = _split(f"//{host}").hostname or ""
        if hostname not in self._hosts:
            sentence = f'This server is not known as "{hostname}".'
            return 403, f"{sentence} Use http://127.0.0.1, or set RICORDO_API_KEY."
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _split(origin).netloc != host:
            return (
                403,
                f"Pages of {origin} may not use this server. Only its own pages and programs may.",
            )
        return None


def _first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the request's headers by name; of a repeated one, the first."""
    return dict(reversed(list(scope["headers"])))


def _browser_route_of(method: str, path: str) -> tuple[_BrowserRoute | None, dict[str, str]]:
    """Return the row of BROWSER_ROUTES for this request, or None, and the ids in its path."""
    matches = (
        (route, route.path.fullmatch(path)) for route in BROWSER_ROUTES if route.method == method
    )
    return next(((route, match.groupdict()) for route, match in matches if match), (None, {}))


async def _token_refusal(scope: Scope, caller: Caller, reach: Reach) -> _Refusal | None:
    """Return the refusal of a token's request; None if the request is allowed.

    A request outside of BROWSER_ROUTES is refused before its body is read.
    """
    if reach.path:
        if route_path(scope) == reach.path:
            return None
        return 403, f"This token is only for {reach.path}. Use a key for other paths."
    if not _is_from(scope, reach):
        return (
            403,
            f"This token is only for pages of {reach.origin}. Ask for a token for this page's address.",
        )
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    route, ids = _browser_route_of(scope["method"], route_path(scope))
    if route is None:
        return (
            403,
            "A browser token may not use this route. docs/operate/access-tokens.md lists the routes that it may use.",
        )
    if unknown := [name for name, _ in query if name not in route.query]:
        return (
            403,
            f"With a browser token, the query parameter {unknown[0][:80]} cannot be used. Leave it out.",
        )
    agents = [agent_id for name, agent_id in query if name == "agent_id"]
    if ids:
        store = scope["app"].state.runtime.store
        agents = [await store.read(lambda tx: _agent_of(tx, caller, ids))]
    if len(agents) != 1 or (agents[0], route.access) not in reach.agents:
        return (
            404,
            f"This token does not have {route.access} for this object. Check the id, or ask for "
            "another token.",
        )
    scope[FIELDS] = route.fields
    return None


def _agent_of(tx: Transaction, caller: Caller, ids: dict[str, str]) -> str | None:
    """Return the agent of a path, which has the id of an agent, a conversation or a run.

    Returns None if there is no such conversation or run.
    """
    if id := ids.get("conversation"):
        conversation = conversations.get(tx, id)
        if conversation:
            return conversation.agent_id
        return None
    if id := ids.get("run"):
        run = runs.find(tx, caller, id)
        return run.agent_id if run else None
    return ids["agent"]


def _is_from(scope: Scope, reach: Reach) -> bool:
    """Return whether the request comes from the token's origin, or from no page at all."""
    origins = [header.decode("latin-1") for name, header in scope["headers"] if name == b"origin"]
    return all(origin_of(origin) == reach.origin for origin in origins)


def origin_of(url: str) -> str:
    """Return an address's origin as browsers write it, without a default port.

    The result is empty if the scheme is neither http nor https, or if the address is malformed or
    has a user name or password.
    """
    parts = _split(url)
    try:
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.password:
        return ""
    if ":" in parts.hostname:
        host = f"[{parts.hostname}]"
    else:
        host = parts.hostname
    if port in (None, _PORTS[parts.scheme]):
        return f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{host}:{port}"


def _preflight(scope: Scope) -> Response | None:
    """Return the answer to a CORS preflight request for a route in BROWSER_ROUTES; None for others.

    The answer grants no rights, since a page can only read answers to requests with a token.
    """
    request_headers = _first_headers(scope)
    method = request_headers.get(b"access-control-request-method", b"").decode("latin-1")
    path = route_path(scope)
    is_known = any(
        route.method == method and route.path.fullmatch(path) for route in BROWSER_ROUTES
    )
    if not is_known:
        return None
    requested_headers = request_headers.get(b"access-control-request-headers", b"")
    headers = {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": method,
        "access-control-allow-headers": requested_headers.decode("latin-1"),
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=headers)


def _readable(scope: Scope, reach: Reach, send: Send) -> Send:
    """Return a `send` whose answers can be read by pages of the token's origin."""
    origin = _first_headers(scope).get(b"origin")
    if not origin or not _is_from(scope, reach):
        return send

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_readable


def _is_navigation(scope: Scope) -> bool:
    """Return whether a browser opens a page or submits a page's form."""
    headers = _first_headers(scope)
    mode = headers.get(b"sec-fetch-mode")
    asks_page = mode == b"navigate" or (
        not mode and headers.get(b"accept", b"").startswith(b"text/html")
    )
    return scope["method"] in ("GET", "POST") and asks_page


def refuse(
    status: int, detail: str, headers: dict[str, str] | None = None, *, scope: Scope | None = None
) -> Response:
    """Return a refusal as a response, with `error` if OpenAI's clients may call the path.

    Args:
        status: The HTTP status.
        detail: The sentence for people.
        headers: Further headers.
        scope: The ASGI scope of the request; None for a route that is not OpenAI's.
    """
    content = with_openai_error({"detail": detail}, status, scope)
    return Response(orjson.dumps(content), status, headers, "application/json")


def with_openai_error(content: dict[str, Any], status: int, scope: Scope | None) -> dict[str, Any]:
    """Return the refusal, with OpenAI's form under `error` if the path may be one of OpenAI's API.

    Args:
        content: The refusal, whose `detail` is the sentence for people. It is not changed.
        status: The HTTP status, which decides OpenAI's type of the error.
        scope: The ASGI scope of the request, which has reached the guard; None for a route that is
            not OpenAI's.
    """
    if not scope or not _may_be_openais(route_path(scope), scope.get(_OWN_NAMES, ())):
        return content
    return content | openai_error(content["detail"], openai_type(status))


def _may_be_openais(path: str, own_names: Container[str]) -> bool:
    name = _FIRST_NAME.match(path)
    if name is None:
        return False
    return name[1] not in own_names or _OPENAI_MODELS.match(path) is not None


def openai_type(status: int) -> str:
    """Return OpenAI's name for a refusal with this status."""
    return _OPENAI_TYPES.get(status, "invalid_request_error")


def openai_error(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return a refusal in OpenAI's form.

    Args:
        message: The sentence for people.
        kind: OpenAI's type of the error, such as "authentication_error".
        param: The field of the request that is wrong, or None.
        code: OpenAI's code, such as "model_not_found", or None.
    """
    # A name from the request may hold a lone surrogate.
    text = message.encode("utf-8", "replace").decode()
    return {"error": {"type": kind, "message": text, "param": param, "code": code}}


def _too_often(seconds: int, scope: Scope) -> Response:
    return refuse(429, _TOO_OFTEN.format(seconds), {"retry-after": str(seconds)}, scope=scope)


def _is_near(scope: Scope) -> bool:
    """Return whether the caller is on this machine."""
    client, *_ = scope.get("client") or ("",)
    server, *_ = scope.get("server") or ("",)
    if client in LOOPBACK or client.startswith("127."):
        return True
    return client != "" and client == server


def _is_forwarded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a proxy forwarded the request from another or an unknown machine."""
    lists = [header for name, header in headers if name in _CLIENT_HEADERS]
    for name, header in headers:
        if name == b"forwarded":
            lists += _FORWARDED_FOR.findall(header)
    addresses = [
        _bare_address(address) for part in lists for address in part.decode("latin-1").split(",")
    ]
    if not addresses:
        return any(name in (b"via", b"forwarded") for name, _ in headers)
    return any(address not in LOOPBACK for address in addresses)


def _bare_address(text: str) -> str:
    """Return an address without blanks, quotes, brackets and port."""
    text = text.strip().strip('"')
    inside, bracket, _ = text.removeprefix("[").partition("]")
    if bracket:
        return inside
    host, _, port = text.rpartition(":")
    if host.count(".") == 3 and port.isdecimal():
        return host
    return text


def _is_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of this server sent the request, by Fetch Metadata or Origin."""
    if site := headers.get(b"sec-fetch-site"):
        return site == b"same-origin"
    origin = headers.get(b"origin", b"").decode("latin-1")
    return bool(origin) and _split(origin).netloc == headers.get(b"host", b"").decode("latin-1")


def _key(credential: bytes, *, is_git: bool) -> str:
    """Return the key in an Authorization header; empty without one."""
    scheme, _, parameters = credential.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return parameters.decode("utf-8", "replace")
        case b"basic" if is_git:
            try:
                return (
                    b64decode(parameters, validate=True)
                    .partition(b":")[2]
                    .decode("utf-8", "replace")
                )
            except ValueError:
                return ""
    return ""


def _cookie(header: bytes) -> str:
    # Parse cookies here, since the standard library stops at the first malformed one, which another
    # server may have set.
    return cookie_parser(header.decode("latin-1")).get(COOKIE, "")


_PORTS = {"http": 80, "https": 443}


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a malformed address such as "[::1"
        return urlsplit("")
