"""One process in the sandbox, from its start to the last of what it started."""

import asyncio
import json
import os
import signal
import socket
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ricordo.errors import Invalid, Unavailable
from ricordo.sandbox.backends import Backend, Confinement, some_user
from ricordo.sandbox.child import Child, start_child
from ricordo.storage.engine.work_folders import remove_tree

if TYPE_CHECKING:
    from ricordo.sandbox.service import SandboxCall

_READY = 20.0  # seconds for a process to be confined and ready
_CHUNK = 1 << 16  # bytes
_LINE = 1 << 26  # bytes of a line that a stream gives at once


@cache
def program_beside(module: str) -> str:
    """Return the text of `program.py` in the folder of this module (its `__file__`), for a sandbox's `run_python` and `open`."""
    return Path(module).with_name("program.py").read_text("utf-8")


@dataclass(eq=False)
class SandboxProcess:
    """A running program. `answer` gives what it writes to descriptor 3, and the streams of its own what they are named for."""

    process: Child
    control: socket.socket
    answer: asyncio.StreamReader
    workspace: Path | None
    _life: int | None
    _status: int | None
    _transports: list[asyncio.BaseTransport] = field(default_factory=list)
    cpu_used: float = 0  # seconds, as last looked at
    _is_over: bool = False

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self.process.stdin
        return self.process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self.process.stdout
        return self.process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        assert self.process.stderr
        return self.process.stderr

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def wait_until_ready(self) -> None:
        """Return once it is confined; raises Unavailable with its words where it ended before."""
        loop = asyncio.get_running_loop()
        ready = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_READY):
                ready = await loop.sock_recv(self.control, 1)
        if not ready:
            self.kill()
            said = (await self.stderr.read()).decode("utf-8", "replace").strip()
            raise Unavailable(
                f"The sandbox could not start: {said.splitlines()[-1] if said else 'no answer'}"
            )

    async def send(
        self, call: "SandboxCall", program: str, limits: dict[str, int], *, has_proxy: bool
    ) -> socket.socket | None:
        """Tell it what to become; returns the socket on which it expects a proxy, where it is to have one."""
        files = [(_plain_path(path), content) for path, content in call.files.items()]
        request = {
            **{
                "argv": list(call.argv),
                "program": program,
                "environment": dict(call.environment),
                "limits": limits,
            },
            **{"files": [(path, len(content)) for path, content in files], "has_proxy": has_proxy},
        }
        head = json.dumps(request).encode()
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):  # it was killed: its end says so
            await loop.sock_sendall(self.control, struct.pack(">I", len(head)) + head)
            for _, content in files:
                await loop.sock_sendall(self.control, content)
        return await self._listener() if has_proxy else None

    async def _listener(self) -> socket.socket:
        """The listening socket of the sandbox's own network, which it passes."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.control, readable.set)
        try:
            async with asyncio.timeout(_READY):
                await readable.wait()
        finally:
            loop.remove_reader(self.control)
        _, passed, _, _ = socket.recv_fds(self.control, 1, 1)
        if not passed:
            raise Unavailable("The sandbox could not start: it ended before its program.")
        return socket.socket(fileno=passed[0])

    async def wait(self) -> int:
        """Return the exit code, as a shell gives it: 128 and the signal's number for one that a signal ended."""
        await self.process.wait()
        code = self.process.returncode or 0
        if self._status is not None:
            said = os.read(self._status, 16)
            code = int(said) if said else -signal.SIGKILL
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """End it and everything it started."""
        # One that bubblewrap has just begun does not end with its parent yet, but for want of a call.
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                # Its group ends at once with what forks meanwhile; with a process namespace everything else ends with it.
                os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """End it, wait until nothing of it runs, and delete its workspace."""
        if self._is_over:
            return
        self._is_over = True
        self.kill()
        try:
            await self.process.wait()
        finally:
            self.control.close()
            self.stdin.close()
            self.process.close()
            for transport in self._transports:
                transport.close()
            for descriptor in (self._life, self._status):
                if descriptor is not None:
                    os.close(descriptor)
            if self.workspace:
                await asyncio.to_thread(_remove, self.workspace)


def _remove(workspace: Path) -> None:
    """Remove what a program left, however deep its folders are; what cannot be removed is left to the next sweep."""
    with suppress(OSError):
        remove_tree(workspace)


async def start(
    backend: Backend, confinement: Confinement, workspaces: Path | None
) -> SandboxProcess:
    """Start a process that waits for a call; a shared backend's has a folder of its own in `workspaces`."""
    opened: list[int] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    answer_end, answer = os.pipe()
    opened += [answer]
    user = 0 if backend.name == "none" else some_user()
    channels = {"control": theirs.fileno(), "answer": answer, "user": user}
    life = status_end = None
    workspace = None
    if backend.is_shared and workspaces:
        life_end, life = os.pipe()
        status_end, status = os.pipe()
        channels |= {"life": life_end, "status": status}
        opened += [life_end, status]
        workspace = Path(tempfile.mkdtemp(dir=workspaces))
        if user:
            os.chown(workspace, user, user)
    rules, written = os.pipe()
    opened.append(rules)
    try:
        os.write(written, backend.filter_of(confinement))
        os.close(written)
        command = backend.command(confinement, channels, rules, workspace or Path("/"))
        process = await start_child(
            command,
            env={},
            cwd=workspace or "/",
            limit=_LINE,
            start_new_session=True,
            pass_fds=[theirs.fileno(), *opened],
        )
    except BaseException:
        ours.close()
        for descriptor in (answer_end, life, status_end):
            if descriptor is not None:
                os.close(descriptor)
        if workspace:
            _remove(workspace)
        raise
    finally:
        theirs.close()
        for descriptor in opened:
            os.close(descriptor)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(answer_end, "rb", 0)
    )
    return SandboxProcess(process, ours, reader, workspace, life, status_end, [transport])


class Output:
    """What a program says, up to its limit."""

    def __init__(self, call: "SandboxCall") -> None:
        self.parts = {"stdout": bytearray(), "stderr": bytearray(), "answer": bytearray()}
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = call.limits.output_kb * 1024
        self._on_output = call.on_output

    async def read(self, process: SandboxProcess, name: str) -> None:
        stream: asyncio.StreamReader = getattr(process, name)
        while chunk := await stream.read(_CHUNK):
            kept = chunk[: self._left]
            self._left -= len(kept)
            self.parts[name] += kept
            if kept and self._on_output and name != "answer":
                self._on_output(name, kept)
            if len(kept) < len(chunk) and not self.full.done():
                self.full.set_result(None)


async def feed(process: SandboxProcess, data: bytes) -> None:
    """Write to its standard input, which ends there."""
    with suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
        process.stdin.close()


def _plain_path(path: str) -> str:
    """The path of a file within the workspace; raises Invalid where it leads out of it."""
    parts = Path(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise Invalid(
            f"A file of the sandbox has a path within its workspace, and {path!r} has not."
        )
    return str(Path(*parts))
