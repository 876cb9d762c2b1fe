"""A server inside this process, on a free port of this machine, for as long as a chat needs it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ricordo.app import create_app
from ricordo.cli.address import address_of
from ricordo.cli.serve import Server, listen
from ricordo.errors import Conflict
from ricordo.logs import set_up_logs
from ricordo.settings import ProviderSettings, Settings


@contextmanager
def background_server(settings: Settings, providers: ProviderSettings) -> Iterator[str]:
    """The address of a server that stops on leaving. Raises what kept it from starting, as Conflict for a folder in use."""
    # A chat shows what the agent says; of the server's own account only what went wrong belongs there.
    set_up_logs("error" if settings.log_level == "info" else settings.log_level, settings.log_format)
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    settings = settings.model_copy(update={"host": "127.0.0.1", "port": port})
    started = threading.Event()
    server = Server(create_app(settings, providers), settings, announce=lambda _runtime: started.set())
    failures: list[BaseException] = []

    def live() -> None:
        try:
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(server.live(sockets))
        except BaseException as failure:
            failures.append(failure)
        finally:
            started.set()

    thread = threading.Thread(target=live, name="server")
    thread.start()
    try:
        started.wait()
        if failures and isinstance(failures[0], Conflict):
            raise Conflict(f"{failures[0]} To talk with that server, name its address by --server.") from None
        if failures:
            raise failures[0]
        yield address_of("127.0.0.1", port)
    finally:
        server.should_exit = True
        thread.join()
        for listener in sockets:
            listener.close()
