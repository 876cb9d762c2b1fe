"""A child process that is started without a copy of the server's memory.

uvloop forks the whole server for each, which takes tens of milliseconds in which the loop stands still; `subprocess` does not.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from typing import IO, Any

PIPE, STDOUT = subprocess.PIPE, subprocess.STDOUT


class Child:
    """A running program, with those of its streams that are pipes, as `asyncio.subprocess.Process` has them."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []
        # What a stream that is only written has beside it, for as long as it is open.
        self._nothing = asyncio.StreamReader()
        self._ended = asyncio.create_task(self._follow())
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def connect(self, limit: int) -> None:
        """Open its pipes; a line of what it says may have so many bytes."""
        self.stdout = await self._reader(self._process.stdout, limit)
        self.stderr = await self._reader(self._process.stderr, limit)
        if self._process.stdin:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(self._nothing), self._process.stdin
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
        """Return its exit code, less than zero for the number of the signal that ended it."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Close its pipes, also those that nobody has read to their end."""
        for transport in self._transports:
            transport.close()

    async def _follow(self) -> int:
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # of another system, or an old kernel
            return await asyncio.to_thread(self._process.wait)
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
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
    **given: Any,
) -> Child:
    """Start a program, whose standard streams are pipes; `given` are parameters of `subprocess.Popen`."""
    process = subprocess.Popen(  # noqa: ASYNC220, S603 - it takes a millisecond, and the commands are ours
        command,
        bufsize=0,
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        **given,
    )
    child = Child(process)
    try:
        await child.connect(limit)
    except BaseException:
        child.kill()
        child.close()
        raise
    return child
