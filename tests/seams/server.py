"""The real app on a loopback port in a thread, with a scripted model.

In a test: `server.says("Hello.")`, then `server.client().agents.messages.create(...)`. Without a
line the model says "ok".
"""

import asyncio
import socket
import threading
from collections import defaultdict, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
import httpx2
import orjson
import uvicorn
from fastapi import FastAPI
from letta_client import AsyncLetta, Letta
from letta_client._base_client import AsyncHttpxClientWrapper, SyncHttpxClientWrapper
from letta_client._models import validate_type
from letta_client.pagination import AsyncArrayPage, SyncArrayPage
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import text
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.models.base import RefusalResponse
from ricordo.app import create_app
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.scope import Role
from ricordo.domain.scope import Scope as Asking
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.scripted import Line, ScriptedEmbedder, ScriptedModel, call
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import keys
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import KeyDraft
from tests.seams.waiting import LIMIT

__all__ = ["LIMIT", "call"]  # For tests that import this module.
T = TypeVar("T")
MODEL = "scripted/model"
PIECES = "scripted/pieces"
_NONE_IDLE = httpx.Limits(max_connections=100, max_keepalive_connections=0)
Answer = Callable[[ModelRequest], Line | Awaitable[Line]]


class _StrictPages:
    """Checks the items of pages, which the client does not check even in strict mode."""

    def _process_response_data(self, *, data: Any, cast_to: Any, response: Any) -> Any:
        if isinstance(cast_to, type) and issubclass(cast_to, SyncArrayPage | AsyncArrayPage):
            (item,) = cast_to.__pydantic_generic_metadata__["args"]
            validate_type(type_=list[item], value=data)
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)  # type: ignore[misc]


class StrictLetta(_StrictPages, Letta):
    """The official client, strict about pages too."""


class StrictAsyncLetta(_StrictPages, AsyncLetta):
    """The official asynchronous client, strict about pages too."""


class PieceModel:
    """A model that streams the pieces that a test chose, and then the reply."""

    def __init__(self) -> None:
        self.answers: deque[tuple[Sequence[Chunk], ModelReply]] = deque()

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(PIECES, "scripted", "pieces", "openai")

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        chunks, reply = self.answers.popleft()
        for chunk in chunks if request.stream else ():
            yield chunk
        yield reply


class Gate:
    """A model's answer that waits until the test opens the gate.

    `server.answers_with(gate)`, then `gate.wait()`.
    """

    def __init__(self, server: "ServerInThread", line: Line = "Here I am.") -> None:
        self._server = server
        self._line = line
        self._asked = threading.Event()
        self._opened = asyncio.Event()

    async def __call__(self, _request: ModelRequest) -> Line:
        self._asked.set()
        await self._opened.wait()
        return self._line

    def wait(self) -> None:
        assert self._asked.wait(LIMIT), "the model was not asked in time"

    def open(self) -> None:
        self._server.loop.call_soon_threadsafe(self._opened.set)


# All responses with a status from 500 on that a server may give. Each row has the status, the
# beginning of the response, and the reason why it is not a bug of the server. Any other such
# response fails the test, at the latest when its server stops.
CAUSES: tuple[tuple[int, str, str], ...] = (
    (504, '{"error":{"type":"llm_timeout"', "the model's provider took too long"),
    (500, '{"error":{"type":"llm_empty_response"', "the model answered nothing, several times"),
    (500, '{"error":{"type":"llm_error"', "the model's provider failed"),
    (
        500,
        '{"detail":"No tool may be called after ',
        "the agent's tool rules leave nothing to do, though something has to be done",
    ),
    (502, '{"error":{"type":"mcp_connection_error"', "an MCP server failed"),
    (502, '{"detail":"The login provider', "the operator's login provider failed"),
    (502, "<!doctype html>", "a page tells what failed behind it, such as a model's provider"),
    (503, '{"detail":"The server is shutting down.', "it was told to stop"),
    (503, '{"detail":"Honcho at ', "the operator's Honcho does not answer"),
    (
        503,
        '{"detail":"The server is reading too many large requests',
        "clients sent more at once than it takes into memory",
    ),
    (
        503,
        '{"detail":"The server is sending too many large answers',
        "clients asked for more at once than it keeps in memory",
    ),
)


class CheckedAnswers:
    """Replaces undocumented JSON by a response with status 500.

    JSON is undocumented if a field is missing, unknown or of another type. `faults` collects these
    responses, and responses from 500 on that none of the CAUSES explains.
    """

    def __init__(self, app: ASGIApp, faults: list[str]) -> None:
        self._app, self._faults = app, faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}
        body = b""

        async def check(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and (
                message["status"] >= 500
                or (b"content-type", b"application/json") in message["headers"]
            ):
                start = message
            elif not start:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    fault = _fault(scope, start["status"], body)
                    headers = [] if fault else start["headers"]
                    status = 500 if fault else start["status"]
                    if status >= 500:
                        self._note(scope, status, fault or body)
                    await send({**start, "headers": headers, "status": status})
                    await send({"type": "http.response.body", "body": fault or body})

        await self._app(scope, receive, check if scope["type"] == "http" else send)

    def _note(self, scope: Scope, status: int, body: bytes) -> None:
        answer = body.decode(errors="replace")
        if not any(status == known and answer.startswith(begin) for known, begin, _ in CAUSES):
            query = scope["query_string"].decode()
            self._faults.append(
                f"{scope['method']} {scope['path']}?{query}: {status} {answer[:1000]}"
            )


def _fault(scope: Scope, status: int, body: bytes) -> bytes:
    documented = getattr(scope.get("route"), "response_model", None) if status == 200 else None
    # OAuth's errors are texts (RFC 6749 5.2).
    has_own_form = body.startswith((b"<!doctype html>", b'{"jsonrpc":', b'{"error":"'))
    model = documented if status < 400 else None if has_own_form else RefusalResponse
    try:
        if model is not None:
            _adapter(model).validate_json(body, strict=True)
    except ValidationError as error:
        return str(error).encode()
    return b""


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


class ServerInThread:
    """A running server: `app` is the app, `url` its address.

    `says` and `answers_with` set the model's answers.
    """

    def __init__(
        self, data_dir: Path, *, providers: ProviderSettings | None = None, **settings: Any
    ) -> None:
        self._lines: deque[Line] = deque()
        self._answer: Answer | None = None
        self.model = ScriptedModel(self._next_line)
        self.pieces = PieceModel()
        small = ScriptedModel(self._next_line, name="small", context_window=16_000)
        self.embedder = ScriptedEmbedder()
        models: list[ChatModel | Embedder] = [self.model, small, self.pieces, self.embedder]
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        given = {
            "find_local_models": False,
            "api_key": None,
            "model": None,
            "host": "127.0.0.1",
            "port": port,
        } | settings
        self.settings = Settings(data_dir=data_dir, **given)
        # Built without reading the environment, so that no key of the person who runs the tests is
        # ever used.
        configured = providers or ProviderSettings.model_construct()
        self.app: FastAPI = create_app(self.settings, configured, extra_models=models)
        self.faults: list[str] = []
        """The responses that must never occur.

        A test that provokes one takes it with `provoked`.
        """
        self.url = f"http://127.0.0.1:{port}"
        checked = CheckedAnswers(self.app, self.faults)
        config = uvicorn.Config(
            checked,
            lifespan="on",
            log_config=None,
            access_log=False,
            ws="none",
            # Longer than clients keep a connection, as in `ricordo serve`. Otherwise the server
            # could close a connection just as a slow test uses it again.
            timeout_keep_alive=75,
        )
        self._config, self._server = config, uvicorn.Server(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop, "the server is not running"
        return self._loop

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = self.app.state.runtime
        return runtime

    def says(self, *lines: Line) -> None:
        self._lines.extend(lines)

    def answers_with(self, answer: Answer) -> None:
        """Let a function of the request give the model's answers, in the server's loop."""
        self._answer = answer

    def forget(self) -> None:
        """Go back to a model that answers "ok", and forget its requests."""
        self._lines.clear()
        self._answer = None
        self.model.requests.clear()
        self.pieces.answers.clear()

    def client(self, **options: Any) -> StrictLetta:
        """Return the official client in strict mode.

        It does not retry unless told to. It keeps no idle connections: a client that a test does
        not close may be collected in a cycle, and Python then may warn of its open sockets.
        """
        connections = SyncHttpxClientWrapper(limits=_NONE_IDLE, timeout=LIMIT)
        return StrictLetta(**{"http_client": connections} | self._strictly(options))

    def async_client(self, **options: Any) -> StrictAsyncLetta:
        connections = AsyncHttpxClientWrapper(limits=_NONE_IDLE, timeout=LIMIT)
        return StrictAsyncLetta(**{"http_client": connections} | self._strictly(options))

    def _strictly(self, options: dict[str, Any]) -> dict[str, Any]:
        fixed = {"base_url": self.url, "api_key": None, "max_retries": 0, "timeout": LIMIT}
        return fixed | {"_strict_response_validation": True} | options

    def http(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=LIMIT, trust_env=False, **options)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT)

    def read(self, work: Callable[[Transaction], T]) -> T:
        return self.run(self.runtime.store.read(work))

    def write(self, work: Callable[[Transaction], T]) -> T:
        return self.run(self.runtime.store.write(work))

    def key(self, user: str | None = None, role: Role = "user", **draft: Any) -> str:
        """Make a key of this user, or of a service."""
        secret, made = (
            Secret(self.settings.data_dir).derive("api keys"),
            KeyDraft(f"{user}'s" if user else role, role, user, **draft),
        )
        return self.write(lambda tx: keys.create(tx, Asking(), secret, made))[1]

    def provoked(self) -> list[str]:
        """Return and clear the faults so far, which this test caused on purpose."""
        faults = self.faults.copy()
        self.faults.clear()
        return faults

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table.

        Equal numbers before and after mean that nothing was left half done.
        """
        tables = self.read(
            lambda tx: tx.all(
                text("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            )
        )
        # Jobs and the index change in the background, and refused requests are recorded too.
        moving = ("jobs", "sqlite_sequence", "search_", "audit_")
        names = [row.name for row in tables if not row.name.startswith(moving)]
        counts = " UNION ALL ".join(
            f"SELECT '{name}' AS name, count(*) AS rows FROM \"{name}\""  # noqa: S608
            for name in names
        )
        return {row.name: row.rows for row in self.read(lambda tx: tx.all(text(counts)))}

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(LIMIT), "the server did not start in time"
        assert self._server.started, "the server could not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(LIMIT)
        self._socket.close()
        assert not self._thread.is_alive(), "the server did not stop in time"
        assert not self.faults, "\n".join(self.faults)

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._config.get_loop_factory()) as runner:
                runner.run(self._live())
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event to wait for
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving

    def _next_line(self, request: ModelRequest) -> Line | Awaitable[Line]:
        if self._answer:
            return self._answer(request)
        return self._lines.popleft() if self._lines else "ok"


@contextmanager
def serving(data_dir: Path, **settings: Any) -> Iterator[ServerInThread]:
    server = ServerInThread(data_dir, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def sums_of(events: Iterable[Any]) -> dict[str, str]:
    """Return the sums of all deltas: texts, signatures, arguments by call, and results."""
    sums: dict[str, str] = defaultdict(str)
    for event in events:
        kind = event["message_type"] if isinstance(event, dict) else ""
        if kind in ("assistant_message", "reasoning_message"):
            sums[f"{event['id']} {kind}"] += event.get("content") or event.get("reasoning") or ""
            sums[f"{event['id']} {kind} proof"] += event.get("signature") or ""
        elif kind == "tool_call_message":
            for call in (
                event["tool_calls"]
                if isinstance(event["tool_calls"], list)
                else [event["tool_calls"]]
            ):
                sums[call["tool_call_id"]] += call.get("arguments", "")
        elif kind == "tool_return_message":
            sums[event["id"]] += event["tool_return"]
    return sums


def events_of(body: str) -> list[tuple[str | None, Any]]:
    """Return server-sent events as (name, decoded value) pairs."""
    pairs: list[tuple[str | None, Any]] = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        pairs.append((fields.get("event"), data if data == "[DONE]" else orjson.loads(data)))
    return pairs
