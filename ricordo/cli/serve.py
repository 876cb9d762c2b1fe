"""`ricordo serve`: runs the app under uvicorn, says where it is, and ends without cutting off who is being answered."""

import asyncio
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.app import create_app, finish_turns
from ricordo.cli.listening import EVERY_ADDRESS, address_of
from ricordo.errors import RicordoError
from ricordo.llm.model_lists import PROBE_SECONDS
from ricordo.llm.registry import LIBRARIAN
from ricordo.logs import set_up_logs
from ricordo.runtime import Runtime
from ricordo.settings import ProviderSettings, Settings

log = logging.getLogger(__name__)
# When the turns have ended, their streams need only a moment to say so.
_STREAMS_SECONDS = 2
_DEFAULT_PORT = 8283


def serve(settings: Settings, providers: ProviderSettings, sockets: Sequence[socket.socket]) -> None:
    """Run the server on these sockets until it is told to stop. Raises RicordoError where it cannot start."""
    set_up_logs(settings.log_level, settings.log_format)
    port = sockets[0].getsockname()[1]
    try:
        app = create_app(settings.model_copy(update={"port": port}), providers)
        server = Server(app, settings, announce=lambda runtime: _announce(runtime, port))
        # What was imported stays: the collector, which the command switched off while it came in, need not look at it again.
        gc.freeze()
        gc.enable()
        # No other task of this program may start a loop: the runner is the whole of its life.
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.live(sockets))
    except RicordoError:
        raise
    except Exception as error:
        log.exception("server failed")
        raise typer.Exit(1) from error


class Server(uvicorn.Server):
    """uvicorn with the app's own opening and closing around it, so that what fails there is an error of ours and no log line."""

    def __init__(self, app: FastAPI, settings: Settings, *, announce: Callable[[Runtime], None] | None = None) -> None:
        entry: ASGIApp = RequestLog(app) if settings.log_level == "debug" else app
        super().__init__(
            uvicorn.Config(
                entry,
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                server_header=False,
                # Whoever is told to be the caller by a proxy on this machine; no setting of uvicorn's widens that.
                forwarded_allow_ips=["127.0.0.1", "::1"],
                timeout_graceful_shutdown=_STREAMS_SECONDS,
            )
        )
        self._app = app
        self._announce = announce
        self._announcing: asyncio.Task[None] | None = None

    async def live(self, sockets: Sequence[socket.socket]) -> None:
        """Open the app, serve until `should_exit`, close the app."""
        async with self._app.router.lifespan_context(self._app):
            await self.serve(list(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        if self._announce:
            self._announcing = asyncio.create_task(self._say_where(self._announce))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new turn, let the running ones end within the grace, then close every connection."""
        if self._announcing:
            self._announcing.cancel()
        # The app would do this too, but only once the turns' streams are closed, which wait for them.
        await finish_turns(self._app.state.runtime, must_hurry=lambda: self.force_exit)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the server well, and that is success; uvicorn would raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _say_where(self, announce: Callable[[Runtime], None]) -> None:
        # The line names the model, and the app is looking for model servers just now.
        await asyncio.wait({self._app.state.looking}, timeout=PROBE_SECONDS * 2)
        announce(self._app.state.runtime)


class RequestLog:
    """One line a request, at debug: no query string, as that may hold what somebody searches for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, then write its line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fields: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": None}

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields["status"] = message["status"]
            await send(message)

        started = time.monotonic()
        try:
            await self._app(scope, receive, note)
        finally:
            fields["milliseconds"] = round((time.monotonic() - started) * 1000, 1)
            log.debug("request", extra=fields)


def _announce(runtime: Runtime, port: int) -> None:
    settings, model = runtime.settings, runtime.models.default_handle()
    address = address_of(settings.host, port)
    if settings.host in EVERY_ADDRESS:
        address += " (and at this machine's other addresses)"
    hint = " (built in, no language model; see `ricordo doctor`)" if model == LIBRARIAN else ""
    if model == LIBRARIAN and not runtime.models.has_default():
        model, hint = "none", " (no model is configured; see `ricordo doctor`)"
    where = "" if port == _DEFAULT_PORT else f" --server {address_of(settings.host, port)}"
    typer.echo(f"Ricordo is at {address} — data in {settings.data_dir} — model: {model}{hint}")
    typer.echo(f"Talk to it with `ricordo chat{where}`; stop it with Ctrl-C.")
