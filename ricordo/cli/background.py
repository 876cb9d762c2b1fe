"""A server in a thread of this process, on a free port of this machine, for the duration of a chat."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ricordo.app import create_app
from ricordo.cli.serve import Server
from ricordo.cli.sockets import address_of, listening
from ricordo.errors import Conflict
from ricordo.logs import set_up_logs
from ricordo.settings import ProviderSettings, Settings


@contextmanager
def background_server(settings: Settings, providers: ProviderSettings) -> Iterator[str]:
    """Run a server and yield its address. Raises its error if it cannot start, such as Conflict for a folder in use."""
    # Only errors of the server are shown in a chat.
    set_up_logs("error" if settings.log_level == "info" else settings.log_level, settings.log_format)
    with listening("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        settings = settings.model_copy(update={"host": "127.0.0.1", "port": port})
        server = _Running(settings, providers, sockets)
        try:
            server.begin()
            yield address_of("127.0.0.1", port)
        finally:
            server.end()


class _Running:
    """A server in its own thread."""

    def __init__(self, settings: Settings, providers: ProviderSettings, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        self._is_settled = threading.Event()
        self._failure: BaseException | None = None
        app = create_app(settings, providers)
        self._server = Server(app, settings, announce=lambda _runtime: self._is_settled.set())
        self._thread = threading.Thread(target=self._live, name="server")

    def begin(self) -> None:
        """Return when it answers; raises its error if it cannot start."""
        self._thread.start()
        self._is_settled.wait()
        if isinstance(self._failure, Conflict):
            raise Conflict(f"{self._failure} To talk with that server, name its address by --server.")
        if self._failure:
            raise self._failure

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(self._server.live(self._sockets))
        except BaseException as failure:
            self._failure = failure
        finally:
            self._is_settled.set()
