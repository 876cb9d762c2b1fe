"""Child processes that start without a copy of the server's memory.

uvloop forks the whole server for each process. That would block the event loop for tens of
milliseconds. `subprocess` does not copy the server's memory.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from typing import IO, Any

PIPE = subprocess.PIPE
STDOUT = subprocess.STDOUT


class Child:
    """A running program and its piped streams, like `asyncio.subprocess.Process`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []
        # asyncio wants a reader even for a stream that is only written, as long as it is open.
        self._unused_reader = asyncio.StreamReader()
        self._exit = asyncio.create_task(self._follow())
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def connect(self, limit: int) -> None:
        """Open the pipes; `limit` is the longest output line in bytes."""
        self.stdout = await self._reader(self._process.stdout, limit)
        self.stderr = await self._reader(self._process.stderr, limit)
        if self._process.stdin:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(self._unused_reader), self._process.stdin
            )
            self._transports.append(transport)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)

    async def _reader(self, pipe: IO[bytes] | None, limit: int) -> asyncio.StreamReader | None:
        if pipe is None:
            return None
        reader = asyncio.StreamReader(limit)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Return the exit code. After a fatal signal it is the signal's number, negated."""
        return await asyncio.shield(self._exit)

    def close(self) -> None:
        """Close the pipes, even if output is unread."""
        for transport in self._transports:
            transport.close()

    async def _follow(self) -> int:
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # on another system, or with an old kernel
            return await asyncio.to_thread(self._process.wait)
        loop = asyncio.get_running_loop()
        is_over = asyncio.Event()
        loop.add_reader(descriptor, is_over.set)
        try:
            await is_over.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.wait()


async def start_child(
    command: Sequence[str],
    *,
    stderr: int = PIPE,
    limit: int = 1 << 16,
    pass_fds: Sequence[int] = (),
    **popen_options: Any,
) -> Child:
    """Start a program whose standard streams are pipes.

    Args:
        command: The program and its arguments.
        stderr: PIPE, or STDOUT to join the errors with the output.
        limit: The longest output line in bytes that `readline` accepts.
        pass_fds: Descriptors that stay open in the program. The caller closes its copies.
        **popen_options: Further parameters of `subprocess.Popen`, such as `env` and `cwd`.

    Raises:
        OSError: The program cannot be started.
    """
    # This call takes a millisecond, and the commands come from the server itself.
    process = subprocess.Popen(  # noqa: ASYNC220, S603
        command,
        bufsize=0,
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        **popen_options,
    )
    child = Child(process)
    try:
        await child.connect(limit)
    except BaseException:
        child.kill()
        child.close()
        raise
    return child
