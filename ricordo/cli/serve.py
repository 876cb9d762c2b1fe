"""`ricordo serve`: runs the app under uvicorn, and prints its address.

Running turns may finish at shutdown. Commands that need a server but find none run one in a thread
of their process.
"""

import asyncio
import gc
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import typer
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.app import create_app, finish_turns
from ricordo.cli.client import set_up_quiet_logs
from ricordo.cli.connections import BoundedConnection
from ricordo.cli.heaps import limit_heaps
from ricordo.cli.screen import as_typed
from ricordo.cli.sockets import EVERY_ADDRESS, address_of, listening
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.domain.scope import Scope as CallerScope
from ricordo.errors import NO_ROOM, Conflict, RicordoError
from ricordo.llm.registry.default_model import DefaultModel
from ricordo.logs import REQUEST_RUNS, JsonFormatter, set_up_logs
from ricordo.runtime import Runtime
from ricordo.settings import ProviderSettings, Settings

log = logging.getLogger(__name__)
_QUIET_PATH = re.compile(r"/health(?:/|$)|/static/|/metrics$")
# Seconds for the streams to end after the turns have ended.
_STREAMS_SECONDS = 2
# Most clients keep a connection for 5 seconds for their next request. If the server kept it for
# less, it could close the connection while a request is on its way.
_KEPT_SECONDS = 75
_DEFAULT_PORT = 8283
# The start line waits this long for providers' lists of models; the server does not wait.
_LOOK_SECONDS = 1.0
_TURN_SECONDS = 0.001


def serve(
    settings: Settings, providers: ProviderSettings, sockets: Sequence[socket.socket]
) -> None:
    """Run the server on these sockets until it is stopped.

    Args:
        settings: The settings of the server; the port is that of the first socket.
        providers: The keys and addresses of model providers.
        sockets: Listening sockets, all with the same port.

    Raises:
        RicordoError: The server cannot start, or such an error stopped it.
        OSError: A file cannot be written, since the disk is full or read-only.
        typer.Exit: Another error stopped it, which is logged.
    """
    set_up_logs(settings.log_level, settings.log_format)
    limit_heaps()
    # Threads take turns of one millisecond instead of five. Some of them compare long texts, and
    # the event loop waits for its turn.
    sys.setswitchinterval(_TURN_SECONDS)
    port = sockets[0].getsockname()[1]
    try:
        app = create_app(settings.model_copy(update={"port": port}), providers)
        server = Server(
            app, settings, announce=lambda runtime: _announce(runtime, app.state.looking, port)
        )
        # The command switched the garbage collector off during imports. Exclude the imported
        # objects from collection.
        gc.freeze()
        gc.enable()
        _run(server, sockets)
    except RicordoError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        log.exception("server failed")
        raise typer.Exit(1) from error


@contextmanager
def background_server(settings: Settings, providers: ProviderSettings) -> Iterator[str]:
    """Run a server in a thread on a free port, and yield its address.

    The server is stopped when the block ends.

    Args:
        settings: The settings; the server has another host and port.
        providers: The keys and addresses of model providers.

    Raises:
        Conflict: Another program has the database open.
        RicordoError: The server cannot start for another reason.
    """
    set_up_quiet_logs(settings)
    is_settled = threading.Event()
    failure: list[BaseException] = []
    with listening("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        settings = settings.model_copy(update={"host": "127.0.0.1", "port": port})

        async def announce(_runtime: Runtime) -> None:
            is_settled.set()

        server = Server(create_app(settings, providers), settings, announce=announce)

        def live() -> None:
            try:
                _run(server, sockets)
            except BaseException as error:
                failure.append(error)
            finally:
                is_settled.set()

        thread = threading.Thread(target=live, name="server")
        try:
            thread.start()
            is_settled.wait()
            if failure and isinstance(failure[0], Conflict):
                raise Conflict(f"{failure[0]} To use that server, give its address with --server.")
            if failure:
                raise failure[0]
            yield address_of("127.0.0.1", port)
        finally:
            server.should_exit = True
            thread.join()


def _run(server: "Server", sockets: Sequence[socket.socket]) -> None:
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.live(sockets))


class Server(uvicorn.Server):
    """A uvicorn server that starts and stops the app itself.

    So failures of start and stop are raised instead of logged.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        *,
        announce: Callable[[Runtime], Awaitable[None]] | None = None,
    ) -> None:
        is_logged = settings.log_level in ("debug", "info")
        entry: ASGIApp = RequestLog(app) if is_logged else app
        super().__init__(
            uvicorn.Config(
                entry,
                http=cast(type[asyncio.Protocol], partial(BoundedConnection, settings)),
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                server_header=False,
                forwarded_allow_ips=settings.trusted_proxies,
                timeout_keep_alive=_KEPT_SECONDS,
                timeout_graceful_shutdown=_STREAMS_SECONDS,
            )
        )
        self._app = app
        self._announce = announce

    async def live(self, sockets: Sequence[socket.socket]) -> None:
        """Open the app, serve until the server is stopped, and close the app.

        Args:
            sockets: The listening sockets.
        """
        async with self._app.router.lifespan_context(self._app):
            await self.serve(list(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, then announce the server.

        Args:
            sockets: The listening sockets; None lets uvicorn open them.
        """
        await super().startup(sockets)
        if self._announce:
            await self._announce(self._app.state.runtime)

    async def on_tick(self, counter: int) -> bool:
        """End the connections of clients that are too slow, once a second.

        Args:
            counter: The number of the tick; there are ten a second.
        """
        if counter % 10 == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                cast(BoundedConnection, connection).sweep(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new turns, let running ones finish, then close all connections.

        Turns have the grace period of the settings.

        Args:
            sockets: The listening sockets, which are closed after the turns have ended.
        """
        # The app finishes turns too, but only after the streams are closed, and streams last as
        # long as their turns.
        await finish_turns(self._app.state.runtime, must_hurry=lambda: self.force_exit)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server on Ctrl-C and SIGTERM with success; uvicorn would raise them again.

        Args:
            sig: The number of the signal.
            frame: The frame that it interrupted, for uvicorn.
        """
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


class RequestLog:
    """A log line for each request: caller, route and outcome.

    It contains the route, but not the path or the query string, which may contain names or a
    search. Probes and the files of pages are logged at level debug.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        level = logging.DEBUG if _QUIET_PATH.search(scope.get("path", "")) else logging.INFO
        if scope["type"] != "http" or not log.isEnabledFor(level):
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        run_ids: list[str] = []
        REQUEST_RUNS.set(run_ids)
        started = time.monotonic()
        try:
            await self._app(scope, receive, note)
        finally:
            milliseconds = round((time.monotonic() - started) * 1000, 1)
            fields = {**_request_fields(scope), "status": status, "ms": milliseconds}
            if run_ids:
                fields["run"] = run_ids[0]
            log.log(level, "request", extra=fields)


def _request_fields(scope: Scope) -> dict[str, Any]:
    """Return the request's method, route, user and key as fields of the log line."""
    caller: CallerScope | None = scope.get(REQUEST_SCOPE)
    route = getattr(scope.get("route"), "path", None)
    fields: dict[str, Any] = {"method": scope["method"], "route": route or "none"}
    if caller:
        fields["user"] = caller.user_id
        if caller.key_id:
            fields["key"] = caller.key_name or caller.key_id
    return fields


def _print(line: str, *, as_json: bool) -> None:
    """Print a line for the operator, in the log's format."""
    if as_json:
        record = log.makeRecord(log.name, logging.INFO, __file__, 0, line, (), None)
        typer.echo(JsonFormatter().format(record))
    else:
        typer.echo(as_typed(line))


async def _announce(runtime: Runtime, looking: "asyncio.Task[DefaultModel]", port: int) -> None:
    # The line names the model, but the app may still be asking providers for their models.
    await asyncio.wait({looking}, timeout=_LOOK_SECONDS)
    settings = runtime.settings
    default = runtime.models.default()
    address = address_of(settings.host, port)
    if settings.host in EVERY_ADDRESS:
        address += " (and at this machine's other addresses)"
    pending = "" if looking.done() else "; providers are still asked"
    model = f"{default.handle} ({default.reason}{pending})"
    if default.handle == LIBRARIAN and not runtime.models.has_default():
        model = "none (no model is configured; see `ricordo doctor`)"
    option = "" if port == _DEFAULT_PORT else f" --server {address_of(settings.host, port)}"
    as_json = settings.log_format == "json"
    _print(
        f"Ricordo is at {address} — data in {settings.data_dir} — model: {model}", as_json=as_json
    )
    _print(f"Talk to it with `ricordo chat{option}`; stop it with Ctrl-C.", as_json=as_json)
    if fault := _embedding_fault(runtime):
        _print(fault, as_json=as_json)
    if looking.done():
        _print_default_model(default, looking, as_json=as_json)
    else:
        looking.add_done_callback(partial(_print_default_model, default, as_json=as_json))


def _embedding_fault(runtime: Runtime) -> str | None:
    """Return a sentence if RICORDO_EMBEDDING names a model that this server cannot use.

    No provider is asked, so a model that its provider lacks is not noticed.
    """
    handle = runtime.models.embedders.default_handle()
    if not handle or not runtime.settings.embedding:
        return None
    try:
        runtime.models.embedders.get(handle)
    except RicordoError as error:
        return f"RICORDO_EMBEDDING={handle} cannot be used, so search finds words only. {error}"
    return None


def _print_default_model(
    announced: DefaultModel, looking: "asyncio.Task[DefaultModel]", *, as_json: bool
) -> None:
    """Print the default model if it is not the announced one, then its fault or advice."""
    if looking.cancelled() or looking.exception():
        return
    default = looking.result()
    if default.handle != announced.handle:
        _print(f"New agents use the model {default.handle} ({default.reason}).", as_json=as_json)
    for line in default.lines:
        _print(line, as_json=as_json)
