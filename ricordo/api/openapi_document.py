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
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

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

    async def text(self) -> bytes:
        """Return the document in JSON.

        It is built once for all callers, outside the event loop.
        """
        if self._making is None or (self._making.done() and self._has_failed(self._making)):
            self._making = asyncio.create_task(asyncio.to_thread(make_in_child, self._make))
        return await asyncio.shield(self._making)

    @staticmethod
    def _has_failed(task: "asyncio.Task[bytes]") -> bool:
        return task.cancelled() or task.exception() is not None


def make_in_child(make: Callable[[], bytes]) -> bytes:
    """Return the result of `make` in a child process, or in this process if forking fails.

    Args:
        make: Builds the document. It runs in the child, and again here if the child fails.
    """
    reason = "this system cannot fork safely"
    if MAY_FORK:
        try:
            return _read_child(make)
        except (OSError, EOFError, TimeoutError) as error:
            reason = str(error)
    _log.info("the OpenAPI document is made in the server's own process", extra={"reason": reason})
    return make()


def _read_child(make: Callable[[], bytes]) -> bytes:
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
            child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if child == 0:
        _write_and_exit(make, writer)
    os.close(writer)
    try:
        document = _read(reader, time.monotonic() + _PATIENCE)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
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
