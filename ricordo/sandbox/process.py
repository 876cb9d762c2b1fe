"""One process in the sandbox, from its start until its last child has ended."""

import asyncio
import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ricordo.errors import Invalid, Unavailable
from ricordo.sandbox.backends import Backend, Confinement, some_user
from ricordo.sandbox.child import Child, start_child
from ricordo.sandbox.slots import Slot
from ricordo.storage.engine.work_folders import remove_tree

if TYPE_CHECKING:
    from ricordo.sandbox.service import SandboxCall

_READY = 20.0  # seconds for a process to be confined and ready
_CHUNK = 1 << 16  # bytes
_LINE = 1 << 26  # the longest line of output in bytes


@cache
def program_beside(module: str) -> str:
    """Return the text of `program.py` in a module's folder.

    The text is for the sandbox's `run_python` and `open`.

    Args:
        module: The module's `__file__`.
    """
    return Path(module).with_name("program.py").read_text("utf-8")


@dataclass(eq=False)
class SandboxProcess:
    """A running program, its streams, and its control socket.

    Attributes:
        process: The started process: bubblewrap, or the launcher.
        control: The socket by which the call is sent.
        answer: Reads descriptor 3 of the program.
        workspace: The workspace on disk; None if it is in memory.
        cpu_used: Seconds of processor time, as last measured.
        slot: The slot of a program that counts for the limit on running programs.
    """

    process: Child
    control: socket.socket
    answer: asyncio.StreamReader
    workspace: Path | None
    _life: FileIO | None
    _status: FileIO | None
    _transports: list[asyncio.BaseTransport] = field(default_factory=list)
    cpu_used: float = 0
    slot: Slot | None = None
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
        """Wait until the process is confined.

        Raises:
            Unavailable: The process ended early, or took too long. The message has the last line of
                its standard error.
        """
        loop = asyncio.get_running_loop()
        ready = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_READY):
                ready = await loop.sock_recv(self.control, 1)
        if not ready:
            self.kill()
            lines = (await self.stderr.read()).decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1] if lines else "no answer"
            raise Unavailable(f"The sandbox could not start: {reason}")

    async def send(
        self, call: "SandboxCall", program: str, limits: dict[str, int], *, has_proxy: bool
    ) -> socket.socket | None:
        """Send the call, which names the program that the process becomes.

        Args:
            call: The program, its files and its environment. Its limits are not used here.
            program: The text of a Python program, or "" to run `call.argv`.
            limits: The limits that the launcher sets: `memory` and `file` in bytes, `cpu_seconds`,
                `open_files` and `processes`.
            has_proxy: The launcher opens a listening socket in the network of the sandbox.

        Returns:
            That socket, for a proxy; None without a proxy.

        Raises:
            Invalid: A file of the call lies outside the workspace.
            Unavailable: The process ended before its program began, or no socket came in time.
        """
        files = [(_plain_path(path), content) for path, content in call.files.items()]
        request = {
            "argv": list(call.argv),
            "program": program,
            "environment": dict(call.environment),
            "limits": limits,
            "files": [(path, len(content)) for path, content in files],
            "has_proxy": has_proxy,
        }
        head = json.dumps(request).encode()
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):  # the process was killed, which is reported when it ends
            await loop.sock_sendall(self.control, struct.pack(">I", len(head)) + head)
            for _, content in files:
                await loop.sock_sendall(self.control, content)
        if has_proxy:
            return await self._listener()
        return None

    async def _listener(self) -> socket.socket:
        """Receive the listening socket in the network of the sandbox.

        Raises Unavailable if none comes.
        """
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.control, readable.set)
        try:
            async with asyncio.timeout(_READY):
                await readable.wait()
        except TimeoutError as error:
            raise Unavailable(
                f"The sandbox could not start: it opened no network within {_READY:g} seconds."
            ) from error
        finally:
            loop.remove_reader(self.control)
        descriptors: list[int] = []
        with suppress(ConnectionError):
            _, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        if not descriptors:
            raise Unavailable("The sandbox could not start: it ended before its program.")
        return socket.socket(fileno=descriptors[0])

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Do not count the program for the limit while it waits for the server's answer."""
        async with self.slot.left() if self.slot else nullcontext():
            yield

    async def wait(self) -> int:
        """Return the exit code as a shell reports it.

        For a process that a signal ended, it is 128 plus the signal's number.
        """
        await self.process.wait()
        code = self.process.returncode or 0
        if self._status is not None:
            status_text = self._status.read(16)
            if status_text:
                code = int(status_text)
            else:
                code = -signal.SIGKILL
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        # A process that bubblewrap has just started does not yet end with its parent. But it ends
        # if its control socket closes before a call arrives.
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                # The whole group ends at once, even during a fork. In a process namespace,
                # everything else ends with the first process.
                os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process, wait for its end, and delete its workspace."""
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
            for pipe_end in (self._life, self._status):
                if pipe_end is not None:
                    pipe_end.close()
            if self.workspace:
                await asyncio.to_thread(_remove, self.workspace)


def _remove(workspace: Path) -> None:
    """Remove a workspace, with folders of any depth.

    Parts that cannot be removed are left to the next sweep.
    """
    with suppress(OSError):
        remove_tree(workspace)


async def start(
    backend: Backend, confinement: Confinement, workspaces: Path | None
) -> SandboxProcess:
    """Start a process that waits for a call.

    Args:
        backend: The way to confine it.
        confinement: The fixed conditions of the process.
        workspaces: The folder in which a shared backend gets a new workspace. Other backends need
            none.

    Returns:
        The process, which may still fail: call `wait_until_ready` next.

    Raises:
        Unavailable: The process cannot be started, for example since the disk is full.
    """
    with ExitStack() as on_failure, ExitStack() as passed:
        try:
            process = await _start(backend, confinement, workspaces, on_failure, passed)
        except OSError as error:
            raise Unavailable(
                f"The sandbox could not start: {error.strerror or type(error).__name__}."
            ) from error
        on_failure.pop_all()
    return process


async def _start(
    backend: Backend,
    confinement: Confinement,
    workspaces: Path | None,
    on_failure: ExitStack,
    passed: ExitStack,
) -> SandboxProcess:
    """Start the process, as `start` describes.

    Each descriptor, folder and process is registered as soon as it exists.

    Args:
        backend: The way to confine it.
        confinement: The fixed conditions of the process.
        workspaces: The folder of the workspaces, or None.
        on_failure: Changed here: it closes and deletes the parts of the process after a failure.
        passed: Changed here: it closes the descriptors that only the started process needs.
    """
    control, launcher_control = socket.socketpair()
    on_failure.callback(control.close)
    passed.callback(launcher_control.close)
    control.setblocking(False)
    answer_end, answer = _open_pipe(on_failure, passed)
    channels = {"control": launcher_control.fileno(), "answer": answer.fileno()}
    life = status_end = None
    workspace = None
    user = 0 if backend.name == "none" else some_user()
    if backend.is_shared and workspaces:
        life_end, life = _open_pipe(passed, on_failure)
        status_end, status = _open_pipe(on_failure, passed)
        channels |= {"life": life_end.fileno(), "status": status.fileno()}
        workspace = Path(tempfile.mkdtemp(dir=workspaces))
        on_failure.callback(_remove, workspace)
        if user:
            os.chown(workspace, user, user)
    with ExitStack() as written:
        rules, rules_end = _open_pipe(passed, written)
        rules_end.write(backend.filter_of(confinement))
    process = await start_child(
        backend.command(
            confinement, channels | {"user": user}, rules.fileno(), workspace or Path("/")
        ),
        env={},
        cwd=workspace or "/",
        limit=_LINE,
        start_new_session=True,
        pass_fds=[*channels.values(), rules.fileno()],
    )
    on_failure.callback(process.close)
    on_failure.callback(process.kill)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), answer_end
    )
    return SandboxProcess(
        process,
        control,
        reader,
        workspace=workspace,
        _life=life,
        _status=status_end,
        _transports=[transport],
    )


def _open_pipe(readers: ExitStack, writers: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the ends of a new pipe, to read and to write, which these stacks close."""
    reader, writer = os.pipe()
    return (
        readers.enter_context(os.fdopen(reader, "rb", 0)),
        writers.enter_context(os.fdopen(writer, "wb", 0)),
    )


class Output:
    """The collected output of a program, up to its limit."""

    def __init__(self, call: "SandboxCall") -> None:
        self.parts = {"stdout": bytearray(), "stderr": bytearray(), "answer": bytearray()}
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._remaining = call.limits.output_kb * 1024
        self._on_output = call.on_output

    async def read(self, process: SandboxProcess, name: str) -> None:
        """Collect one stream of the program until it ends.

        Bytes beyond the limit are dropped, and `full` is set.

        Args:
            process: The process, whose program runs.
            name: "stdout", "stderr" or "answer".
        """
        stream: asyncio.StreamReader = getattr(process, name)
        while chunk := await stream.read(_CHUNK):
            allowed = chunk[: self._remaining]
            self._remaining -= len(allowed)
            self.parts[name] += allowed
            if allowed and self._on_output and name != "answer":
                self._on_output(name, allowed)
            if len(allowed) < len(chunk) and not self.full.done():
                self.full.set_result(None)


async def feed(process: SandboxProcess, stdin: bytes) -> None:
    """Write these bytes to the program's standard input, and close the input.

    Args:
        process: The process, whose program runs.
        stdin: The bytes; b"" only closes the input. They are lost if the program ends before.
    """
    with suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


def _plain_path(path: str) -> str:
    """Return a file's path within the workspace. Raises Invalid if the path leads outside."""
    parts = Path(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise Invalid(f"A file of the sandbox must be within its workspace, and {path!r} is not.")
    return str(Path(*parts))
