"""The sandbox for programs of users and models.

Each call is confined and limited, and ends together with everything that it started.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ricordo.errors import Forbidden, Invalid, RicordoError, Unavailable
from ricordo.sandbox.backends import Backend, Confinement, candidates, exposed, why_none
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.process import Output, SandboxProcess, feed, start
from ricordo.sandbox.program_keys import ProgramKeys
from ricordo.sandbox.proxy import serve
from ricordo.sandbox.slots import Slot, Slots
from ricordo.sandbox.watch import processes_of_user, watch
from ricordo.settings import Settings
from ricordo.storage.engine.work_folders import SANDBOX, WorkFolder, open_work_folder

StoppedBy = Literal["", "time", "cpu", "memory", "output"]
_WARM = 2  # waiting processes per environment
_ENVIRONMENTS = 4  # environments with waiting processes
_LONGEST_OUTPUT = 20_000  # characters of each stream in a tool's report
_IDLE = 300.0  # seconds after which a waiting process ends
# Several calls may run as one user. The limit on that user's processes has room for this many calls
# with all their processes.
_CALLS_OF_USER = 4
_UNSEEN = 0.3  # seconds of processor time that a program may use after the last measurement
_CPU_EXITS = (128 + 24, 128 + 9)  # exit codes of a program that reached its limit of processor time


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The resources that a call may use.

    Attributes:
        memory_mb: MiB of memory of all its processes together.
        cpu_seconds: Seconds of processor time; 0: no limit.
        seconds: Seconds from its start to its end; 0: no limit, as for long-lived programs.
        processes: Processes at the same time.
        open_files: Open files of one process.
        file_mb: MiB of a file, and of the whole workspace.
        output_kb: KiB of all its output together.
    """

    memory_mb: int = 512
    cpu_seconds: int = 30
    seconds: float = 60
    processes: int = 64
    open_files: int = 256
    file_mb: int = 100
    output_kb: int = 1024


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """One program to run in a separate workspace.

    Attributes:
        argv: The program and its arguments.
        stdin: The bytes of its standard input.
        environment: Its variables, besides HOME, TMPDIR, LANG, PATH and those of a proxy. They
            replace these.
        files: The content of files in the workspace, by relative path.
        readable: Folders that it can read, at their paths.
        has_network: It may reach public addresses, by a proxy.
        may_call_server: An address of this server, such as http://127.0.0.1:8283, that the program
            may reach by the proxy. "" allows none.
        server_key: The API key that its requests to the server carry; "": none.
        limits: The resources that it may use.
        on_output: Gets the name "stdout" or "stderr" with each piece of output, as it comes.
    """

    argv: Sequence[str] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    readable: Sequence[Path] = ()
    has_network: bool = False
    may_call_server: str = ""
    server_key: str = ""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    on_output: Callable[[str, bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The end of a program.

    Attributes:
        exit_code: As a shell reports it: 128 plus the number of a fatal signal.
        seconds: The time from its start to its end.
        stopped_by: The limit that it reached; "": none.
        answer: Its output on descriptor 3.
        reason: A sentence about the limit; "": it was not stopped.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    stopped_by: StoppedBy = ""
    answer: bytes = b""
    reason: str = ""


def report_of(result: SandboxResult, *, exit_code: int = 0, error: str = "") -> dict[str, Any]:
    """Return the result of a tool that ran a program, without empty parts.

    Args:
        result: The output, of which each stream is cut to 20,000 characters. Its exit code is not
            used.
        exit_code: The exit code to report; 0 if the program did not fail by it.
        error: A sentence about the failure. With 0 and "" the report says that the program
            succeeded.
    """
    report: dict[str, Any] = {"status": "error" if error or exit_code else "success"}
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        text = output.decode("utf-8", "replace").rstrip("\n")
        if len(text) > _LONGEST_OUTPUT:
            text = f"{text[:_LONGEST_OUTPUT]}… [cut: {len(text)} characters]"
        if text:
            report[name] = text
    if exit_code:
        report["exit_code"] = exit_code
    if error:
        report["error"] = error.strip()
    return report


class Sandbox:
    """Runs programs in the best backend that this machine supports.

    No process is started and no folder is created before the first call. `keys` are the keys with
    which running programs may call the server.
    """

    def __init__(self, settings: Settings, sandbox_settings: SandboxSettings | None = None) -> None:
        self.keys = ProgramKeys()
        self._data_dir = settings.data_dir
        self._sandbox_settings = sandbox_settings or SandboxSettings()
        self._backend: Backend | None = None
        self._problem: str | None = None
        self._starting = asyncio.Lock()
        self._slots = Slots(self._sandbox_settings.sandbox_calls)
        self._warm: dict[Confinement, list[asyncio.Task[SandboxProcess]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._workspaces: WorkFolder | None = None

    @property
    def name(self) -> str:
        """The name of the backend in use, "" if none works.

        Before the first call it is the backend that would be tried first.
        """
        if self._problem:
            return ""
        if self._backend:
            return self._backend.name
        backends = candidates(self._sandbox_settings.sandbox, self._data_dir)
        return backends[0].name if backends else ""

    @property
    def has_network(self) -> bool:
        """True if the operator allows programs a network."""
        return self._sandbox_settings.sandbox_network

    def why_not(self) -> str | None:
        """Return the reason why code cannot run on this machine; None if it can.

        The reason says what the operator can do.
        """
        if self._problem or self._backend:
            return self._problem
        if candidates(self._sandbox_settings.sandbox, self._data_dir):
            return None
        return why_none(self._sandbox_settings.sandbox)

    async def run(self, call: SandboxCall) -> SandboxResult:
        """Run a program to its end.

        Raises:
            Invalid: The call names no program, or a file outside the workspace.
            Unavailable: Code cannot run on this machine, or too many programs are running.
            Forbidden: The call asks for a network that the operator does not allow.
        """
        if not call.argv:
            raise Invalid("Name the program to run.")
        confinement = self._confinement(call, Path(sys.executable), sees_packages=False)
        async with self._slot(call) as slot:
            process = await self._wait_for(asyncio.create_task(self._start(confinement)))
            process.slot = slot
            return await self._finish(process, call, "")

    async def run_python(
        self, program: str, request: bytes, python: Path | None = None, **call_options: Any
    ) -> SandboxResult:
        """Run Python in a waiting process.

        Args:
            program: The text of the main module. It reads the request from standard input, and
                writes its answer to file descriptor 3.
            request: The bytes of its standard input.
            python: The interpreter; None: that of the server.
            **call_options: Fields of SandboxCall.

        Raises:
            Invalid: A file of the call lies outside the workspace.
            Unavailable: Code cannot run on this machine, or too many programs are running.
            Forbidden: The call asks for a network that the operator does not allow.
        """
        call = SandboxCall(stdin=request, **call_options)
        confinement = self._confinement(call, python or Path(sys.executable), sees_packages=True)
        async with self._slot(call) as slot:
            process = await self._take(confinement)
            process.slot = slot
            return await self._finish(process, call, program)

    @asynccontextmanager
    async def open(self, call: SandboxCall, program: str = "") -> AsyncIterator[SandboxProcess]:
        """Run a program until the block ends, with everything that it started.

        The program counts for RICORDO_SANDBOX_CALLS if its limits have `seconds`. The caller limits
        the number of long-lived programs, and ends a program after `seconds`.

        Args:
            call: The call, whose `argv` is not used if `program` is given.
            program: The text of a Python program, in place of `call.argv`. It can write to
                descriptor 3, which `process.answer` reads.

        Raises:
            Invalid: A file of the call lies outside the workspace.
            Unavailable: Code cannot run on this machine, or too many programs are running.
            Forbidden: The call asks for a network that the operator does not allow.
        """
        if not call.limits.seconds:
            async with self._opened(call, program) as process:
                yield process
            return
        async with self._slot(call) as slot, self._opened(call, program) as process:
            process.slot = slot
            yield process

    @asynccontextmanager
    async def _opened(self, call: SandboxCall, program: str) -> AsyncIterator[SandboxProcess]:
        confinement = self._confinement(call, Path(sys.executable), sees_packages=bool(program))
        if program:
            process = await self._take(confinement)
        else:
            process = await self._wait_for(asyncio.create_task(self._start(confinement)))
        watching = None
        try:
            async with self._network(process, call, program):
                watching = asyncio.create_task(watch(process, call.limits))
                watching.add_done_callback(lambda _: process.kill())
                yield process
        finally:
            if watching:
                watching.cancel()
            await process.end()

    async def close(self) -> None:
        """End the waiting processes, and delete the workspaces."""
        waiting = [task for tasks in self._warm.values() for task in tasks]
        self._warm.clear()
        await asyncio.gather(*map(_end_of, waiting), *self._ending)
        if self._workspaces:
            workspaces = self._workspaces
            self._workspaces = None
            await asyncio.to_thread(workspaces.close)

    @asynccontextmanager
    async def _slot(self, call: SandboxCall) -> AsyncIterator[Slot]:
        slot = Slot(self._slots)
        await slot.take(call.limits.seconds)
        try:
            yield slot
        finally:
            slot.close()

    def _confinement(self, call: SandboxCall, python: Path, *, sees_packages: bool) -> Confinement:
        if call.has_network and not self._sandbox_settings.sandbox_network:
            raise Forbidden(
                "Programs in the sandbox have no network. The operator allows it with "
                "RICORDO_SANDBOX_NETWORK=true."
            )
        has_sockets = call.has_network or bool(call.may_call_server)
        readable = tuple(path.absolute() for path in call.readable)
        return Confinement(python, sees_packages, readable, has_sockets, call.limits.file_mb)

    async def _start(self, confinement: Confinement) -> SandboxProcess:
        backend = self._backend or await self._choose()
        if confinement.has_sockets and not backend.has_network:
            raise Unavailable(
                "The sandbox of this machine, Landlock, has no network. The operator can install "
                "bubblewrap."
            )
        if backend.name == "landlock" and (folder := exposed(confinement, self._data_dir)):
            raise Unavailable(
                f"The data folder {self._data_dir} is inside {folder}, which programs in the "
                "sandbox can read. Move it to another folder."
            )
        process = await start(backend, confinement, self._folder() if backend.is_shared else None)
        try:
            await process.wait_until_ready()
        except BaseException:
            await process.end()
            raise
        return process

    async def _choose(self) -> Backend:
        """Return the first backend that can start a process here.

        Raises Unavailable if none can.
        """
        async with self._starting:
            if self._backend:
                return self._backend
            tried: dict[str, str] = {}
            for backend in candidates(self._sandbox_settings.sandbox, self._data_dir):
                confinement = Confinement(Path(sys.executable))
                process = None
                try:
                    process = await start(
                        backend, confinement, self._folder() if backend.is_shared else None
                    )
                    await process.wait_until_ready()
                    self._backend = backend
                    self._problem = None
                    return backend
                except RicordoError as error:
                    tried[backend.name] = f"does not work ({error})"
                finally:
                    if process:
                        await process.end()
            self._problem = why_none(self._sandbox_settings.sandbox, tried)
            raise Unavailable(self._problem)

    def _folder(self) -> Path:
        """Return the folder of this sandbox's workspaces."""
        if self._workspaces is None:
            # Not in the data folder, since programs run as other users, who may not enter it.
            parent = Path(tempfile.gettempdir())
            self._workspaces = open_work_folder(
                self._data_dir, SANDBOX, location=parent, mode=0o711
            )
        return self._workspaces.path

    async def _take(self, confinement: Confinement) -> SandboxProcess:
        """Return a waiting process, or else a new process.

        Another process is started and waits for the next call.
        """
        if confinement not in self._warm and len(self._warm) >= _ENVIRONMENTS:
            for task in self._warm.pop(next(iter(self._warm))):
                self._end_later(task)
        waiting = self._warm.pop(confinement, [])
        self._warm[confinement] = waiting  # now the most recently used
        while waiting:
            with contextlib.suppress(RicordoError):
                process = await self._wait_for(waiting.pop(0))
                if process.is_running:
                    self._refill(confinement)
                    return process
                await process.end()
        process = await self._wait_for(asyncio.create_task(self._start(confinement)))
        self._refill(confinement)
        return process

    async def _wait_for(self, starting: asyncio.Task[SandboxProcess]) -> SandboxProcess:
        """Return the process that a task starts.

        A start is never interrupted. If the call is cancelled meanwhile, the process is ended
        later.
        """
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._end_later(starting)
            raise

    def _end_later(self, starting: asyncio.Task[SandboxProcess]) -> None:
        ending = asyncio.create_task(_end_of(starting))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _refill(self, confinement: Confinement) -> None:
        waiting = self._warm.get(confinement)
        while waiting is not None and len(waiting) < _WARM:
            task = asyncio.create_task(self._start(confinement))
            waiting.append(task)
            asyncio.get_running_loop().call_later(_IDLE, self._forget, confinement, task)

    def _forget(self, confinement: Confinement, task: asyncio.Task[SandboxProcess]) -> None:
        waiting = self._warm.get(confinement, [])
        if task in waiting:
            waiting.remove(task)
            self._end_later(task)

    @asynccontextmanager
    async def _network(
        self, process: SandboxProcess, call: SandboxCall, program: str
    ) -> AsyncIterator[None]:
        """Send the call, and serve its proxy until the block ends."""
        limits = call.limits
        has_proxy = call.has_network or bool(call.may_call_server)
        process_limits = {
            "memory": limits.memory_mb * 2**20,
            "cpu_seconds": limits.cpu_seconds,
            "open_files": limits.open_files,
            "processes": limits.processes + self._room_of_others(process, limits),
            "file": limits.file_mb * 2**20,
        }
        listener = await process.send(call, program, process_limits, has_proxy=has_proxy)
        if listener is None:
            yield
            return
        async with serve(
            listener,
            is_open=call.has_network,
            server=call.may_call_server,
            key=call.server_key,
            waiting=process.waiting,
        ):
            yield

    def _room_of_others(self, process: SandboxProcess, limits: SandboxLimits) -> int:
        """Return the number of other processes that the kernel's limit must allow.

        The limit counts all processes of a user. Other calls of the same user have processes too,
        and may start more. `watch` limits the processes of this call.
        """
        if not process.workspace or os.geteuid() == 0:
            return 0
        return processes_of_user() + limits.processes * min(
            self._sandbox_settings.sandbox_calls, _CALLS_OF_USER
        )

    async def _finish(
        self, process: SandboxProcess, call: SandboxCall, program: str
    ) -> SandboxResult:
        """Send the process its call, and follow it to its end."""
        start_time = time.monotonic()
        collected = Output(call)
        stopped_by: StoppedBy = ""
        time_limit = asyncio.timeout(call.limits.seconds or None)
        try:
            async with (
                time_limit,
                self._network(process, call, program),
            ):
                watching = asyncio.create_task(watch(process, call.limits))
                stream_tasks = [
                    asyncio.create_task(feed(process, call.stdin)),
                    *(
                        asyncio.create_task(collected.read(process, name))
                        for name in ("stdout", "stderr", "answer")
                    ),
                ]
                exit_task = asyncio.create_task(process.process.wait())
                try:
                    end_tasks: list[asyncio.Future[Any]] = [exit_task, watching, collected.full]
                    await asyncio.wait(end_tasks, return_when=asyncio.FIRST_COMPLETED)
                    if collected.full.done():
                        stopped_by = "output"
                    elif watching.done():
                        stopped_by = watching.result()
                    process.kill()
                    await asyncio.gather(*stream_tasks[1:], exit_task)
                finally:
                    for task in (*stream_tasks, watching, exit_task):
                        task.cancel()
        except TimeoutError:
            if not time_limit.expired():
                raise
            stopped_by = "time"
        finally:
            process.kill()
            code = 137
            with contextlib.suppress(asyncio.CancelledError):
                code = await asyncio.shield(process.wait())
            await process.end()
        seconds = time.monotonic() - start_time
        if collected.full.done():
            stopped_by = "output"
        elif not stopped_by and call.limits.cpu_seconds and code in _CPU_EXITS:
            # The program reached its limit of processor time if the last measurement was near it.
            # A program that was killed for another reason had used less.
            is_spent = process.cpu_used + _UNSEEN >= call.limits.cpu_seconds
            if code == _CPU_EXITS[0] or is_spent:
                stopped_by = "cpu"
            else:
                stopped_by = ""
        return SandboxResult(
            exit_code=code,
            stdout=bytes(collected.parts["stdout"]),
            stderr=bytes(collected.parts["stderr"]),
            seconds=seconds,
            stopped_by=stopped_by,
            answer=bytes(collected.parts["answer"]),
            reason=_reason(stopped_by, call.limits),
        )


def _reason(stopped_by: StoppedBy, limits: SandboxLimits) -> str:
    if not stopped_by:
        return ""
    reasons = {
        "time": f"it ran for more than {limits.seconds:g} seconds",
        "cpu": f"it used more than {limits.cpu_seconds} seconds of processor time",
        "memory": f"it used more than {limits.memory_mb} MB of memory, {limits.processes} "
        f"processes or {limits.file_mb} MB of files",
        "output": f"it wrote more than {limits.output_kb} kB of output",
    }
    return f"The program was stopped: {reasons[stopped_by]}."


async def _end_of(task: asyncio.Task[SandboxProcess]) -> None:
    with contextlib.suppress(RicordoError, OSError):
        await (await task).end()


def examine_sandbox(settings: Settings) -> str:
    """Start the sandbox once, and return its line for `ricordo doctor`.

    A warning begins with an exclamation mark.
    """

    async def attempt() -> str:
        sandbox = Sandbox(settings)
        try:
            await sandbox.run(SandboxCall(("true",)))
        except RicordoError as error:
            return f"!{error}"
        finally:
            await sandbox.close()
        if sandbox.name == "none":
            return (
                "!none: code of users and models can read and change what this server can "
                "(RICORDO_SANDBOX)"
            )
        if SandboxSettings().sandbox_network:
            network = "with network"
        else:
            network = "without network"
        return f"{sandbox.name}, {network}"

    return asyncio.run(attempt())
