"""`ricordo` without its second of imports, for tests of commands.

`python -S ready.py <socket> arguments…` behaves like the command. It passes its arguments, its
folder, its environment and its three streams to a helper. The helper is a fork of the tests that
has imported everything. The helper forks a process that runs the real command, with its real exit
code. Signals to the first process are passed on. `Helper.run` does the same without a process in
between. `-c` and a program run like `python -c`, for programs in the docs. Tests of the start of a
process do not use this module.
"""

import json
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parent.parent.parent
STREAMS = (0, 1, 2)
LONGEST = 1_000_000  # bytes of arguments and environment
LIMIT = 300.0  # seconds that a command may take on a busy machine


class Helper:
    """The helper; `command` runs instead of `ricordo`.

    It ends with this process. `fork_helper` forks it from this process; otherwise it is started as
    a new process.
    """

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory  # a slow import that `_ask` does not need

        # The path of a socket may have about a hundred characters.
        self._folder = TemporaryDirectory(prefix="ricordo-")
        self.path = f"{self._folder.name}/ready"
        self.command = [sys.executable, "-S", "-E", __file__, self.path]
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.path)
        self._door.listen()
        # The helper's input ends with this process, and then the helper ends too.
        self._end, self._alive = os.pipe()

    def fork(self) -> None:
        """Fork the helper.

        Cleanup of this process never runs in it, and its forks leave by `os._exit`.
        """
        with warnings.catch_warnings():
            # Python warns of forks in a process with threads. These threads hold no lock of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid:
            os.close(self._end)
            self._door.close()
            return
        code = 1
        try:
            os.setsid()  # Ctrl-C at the terminal must not end the helper
            os.close(self._alive)
            os.dup2(self._end, 0)
            warnings.resetwarnings()
            warnings.simplefilter("ignore")
            code = _obey(self._door, self._folder.name)
        finally:
            os._exit(code)

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], said: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with this standard input."""
        import subprocess  # a slow import that `_ask` does not need
        from tempfile import TemporaryFile

        with (
            TemporaryFile("w+") as given,
            TemporaryFile("w+") as shown,
            TemporaryFile("w+") as errors,
        ):
            given.write(said)
            given.seek(0)
            streams = (given.fileno(), shown.fileno(), errors.fileno())
            code = Command(self.path, list(arguments), folder, environment, streams).wait()
            for file in (shown, errors):
                file.seek(0)
            return subprocess.CompletedProcess(
                ["ricordo", *arguments], code, shown.read(), errors.read()
            )

    def close(self) -> None:
        os.close(self._alive)
        os.waitpid(self._pid, 0)
        self._folder.cleanup()


_helpers: list[Helper] = []


def fork_helper() -> None:
    """Fork the helper, which has imported the tests' needs, before there are threads."""
    if hasattr(os, "fork") and not _helpers:
        _helpers.append(Helper())
        _helpers[0].fork()


def helper() -> Helper:
    """Return the helper of this process."""
    fork_helper()
    return _helpers[0]


def close_helper() -> None:
    """End the helper of this process, if it has one."""
    while _helpers:
        _helpers.pop().close()


class Command:
    """A process that the helper at this socket forks."""

    def __init__(
        self,
        path: str,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str],
        streams: Sequence[int],
    ) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(LIMIT)
        self._line.connect(path)
        order = json.dumps([arguments, str(folder), dict(environment)]).encode()
        socket.send_fds(self._line, [len(order).to_bytes(4, "big")], streams)
        self._line.sendall(order)
        self.pid = int.from_bytes(self._line.recv(4), "big")

    def wait(self) -> int:
        """Return the exit code, which is negative if a signal ended the process."""
        with self._line:
            answer = self._line.recv(4)
        if len(answer) < 4:
            raise RuntimeError(
                "The helper has ended. Its last output is on the standard error of the tests."
            )
        return int.from_bytes(answer, "big", signed=True)


def _ask(path: str, arguments: list[str]) -> int:
    """Run in the process that the test started: its exit code is the command's."""
    command = Command(path, arguments, Path.cwd(), os.environ, STREAMS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(command.pid, number))
    code = command.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _wait_for_orders(door: socket.socket) -> list[str] | None:
    """Fork a process for each order.

    Returns the arguments in that process, and None in the helper when it is over.
    """
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, door, *running.values()], [], [], 0.01 if running else None)
        if 0 in ready:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return None
        if door in ready:
            line, _ = door.accept()
            arguments = _fork(line, running, door)
            if arguments is not None:
                return arguments
        for pid, line in list(running.items()):
            if line in ready:  # Nothing is ever sent there: the caller is gone.
                os.kill(pid, signal.SIGKILL)
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if line not in ready:
                    line.sendall(code.to_bytes(4, "big", signed=True))
                running.pop(pid).close()


def _fork(
    line: socket.socket, running: dict[int, socket.socket], door: socket.socket
) -> list[str] | None:
    size, streams, _, _ = socket.recv_fds(line, 4, len(STREAMS))
    wanted, order = int.from_bytes(size, "big"), b""
    while len(order) < wanted:
        order += line.recv(min(wanted - len(order), LONGEST))
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        line.sendall(pid.to_bytes(4, "big"))
        running[pid] = line
        return None
    for each in (line, door, *running.values()):
        each.close()
    for stream, place in zip(streams, STREAMS, strict=True):
        os.dup2(stream, place)
        os.close(stream)
    arguments, folder, environment = json.loads(order)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["ricordo", *arguments]
    return list(arguments)


def _obey(door: socket.socket, folder: str) -> int:
    """Fork processes until the input ends.

    Returns the exit code of this process, which may be one of the forks.
    """
    import gc
    import threading

    from tests.support import warm

    ready, _, _ = select.select([0, door], [], [])
    if 0 in ready:
        return 0  # no test needed the helper
    if not warm.is_warm():
        warm.warm_up(Path(folder))
    gc.freeze()  # Memory that is shared with the commands stays shared.
    with door:
        arguments = _wait_for_orders(door)
    if arguments is None:
        return 0
    code = _run(arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def _run(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    import traceback

    from ricordo.cli import app

    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if arguments[0] == "-c":
            exec(arguments[1], {"__name__": "__main__"})  # noqa: S102 - the program of a test
        else:
            app(arguments, prog_name="ricordo")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_ask(sys.argv[1], sys.argv[2:]))
