"""The OpenAPI document as bytes, made in a child process.

Building it takes seconds and 90 MB; the document has 1 MB. The child is a fork, because only a copy
of this process knows the routes of plugins and settings.
"""

import asyncio
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

from ricordo.errors import Unavailable

_log = logging.getLogger(__name__)
# On macOS a fork of a process with threads may fail in the system's own libraries.
MAY_FORK = hasattr(os, "fork") and sys.platform != "darwin"
# Seconds that the child may take. If another thread held a lock at the fork, the child waits for
# ever. On a busy machine, a sound child may need long too.
_PATIENCE = 300.0
_CHUNK = 1 << 20
_MOST_FILES = 1 << 16
# A mark that is written last, so that an incomplete document is detected.
_END = b"\0"


class OpenApiDocument:
    """The document's bytes, computed once, in a child process if possible."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._making: asyncio.Task[bytes] | None = None
        self._child = Child()

    async def text(self) -> bytes:
        """Return the document in JSON.

        It is built once for all callers, outside the event loop.
        """
        if self._making is None or (self._making.done() and self._has_failed(self._making)):
            self._child = Child()
            self._making = asyncio.create_task(
                asyncio.to_thread(make_in_child, self._make, self._child)
            )
        return await asyncio.shield(self._making)

    def stop(self) -> None:
        """Kill the child process, so that no thread waits for it when the server stops.

        Requests that wait for the document get Unavailable. A later request makes it again.
        """
        self._child.stop()

    @staticmethod
    def _has_failed(task: "asyncio.Task[bytes]") -> bool:
        return task.cancelled() or task.exception() is not None


class Child:
    """The child process of one document, which another thread may kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number: int | None = None
        self.is_stopped = False

    def note(self, number: int) -> None:
        """Note the process; it is killed at once if `stop` was called before.

        Args:
            number: The number of the process.
        """
        with self._lock:
            self._number = number
            if self.is_stopped:
                os.kill(number, signal.SIGKILL)

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            if self._number is not None:
                os.kill(self._number, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process if it still runs, and read its exit status."""
        with self._lock:  # afterwards, the number may belong to another process
            number = self._number
            self._number = None
            if number is None:
                return
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(number, 0)


def make_in_child(make: Callable[[], bytes], child: Child | None = None) -> bytes:
    """Return the result of `make` in a child process, or in this process if the child fails.

    Args:
        make: Builds the document. It runs in the child, and again here if the child fails.
        child: Records the process, so that another thread can kill it. None: a new record.

    Raises:
        Unavailable: The child was killed because the server stops.
    """
    child = child or Child()
    reason = "this system cannot fork safely"
    if MAY_FORK:
        try:
            return _read_child(make, child)
        except (OSError, EOFError, TimeoutError) as error:
            reason = str(error)
    if child.is_stopped:
        raise Unavailable("The server is shutting down. Try again when it is back.")
    _log.info("the OpenAPI document is made in the server's own process", extra={"reason": reason})
    return make()


def _read_child(make: Callable[[], bytes], child: Child) -> bytes:
    """Fork, and read the child's document.

    Raises:
        OSError, EOFError: if the child failed.
        TimeoutError: if it took too long.
    """
    reader, writer = os.pipe()
    try:
        with warnings.catch_warnings():
            # Newer versions of Python warn of a fork while threads run. The time limit below ends a
            # child that hangs.
            warnings.simplefilter("ignore", DeprecationWarning)
            number = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if number == 0:
        _write_and_exit(make, writer)
    os.close(writer)
    child.note(number)
    try:
        document = _read(reader, time.monotonic() + _PATIENCE)
    finally:
        os.close(reader)
        child.end()
    if not document.endswith(_END):
        raise EOFError("the child process failed")
    return bytes(document[: -len(_END)])


def _read(reader: int, deadline: float) -> bytearray:
    document = bytearray()
    # `select` would not accept file numbers above 1023.
    ready = select.poll()
    ready.register(reader, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise TimeoutError("the child process took too long")
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return document
        document += chunk


def _write_and_exit(make: Callable[[], bytes], writer: int) -> None:
    """Write the document, then end the child process without the server's cleanup."""
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # Close all other descriptors, or else connections that the server closes would stay open in
        # the child.
        os.closerange(3, writer)
        os.closerange(writer + 1, _MOST_FILES)
        gc.freeze()
        document = memoryview(make() + _END)
        while document:
            document = document[os.write(writer, document) :]
        status = 0
    finally:
        os._exit(status)
