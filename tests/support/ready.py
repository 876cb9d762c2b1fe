"""`ricordo` without its second of imports: `python -S ready.py <socket> arguments…` is a process like the command's own.

It hands its arguments, its folder, its environment and its three streams to a helper that has imported everything, and the
helper forks a process that is the command: real code, real exit. What is sent to the first, a signal or a kill, reaches the
other. For tests of what commands do; how a new process starts is tested by those that start one.

With `-c` and a program it is `python -c` in the same way, for programs that the docs show.
"""

import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STREAMS = (0, 1, 2)
LONGEST = 1_000_000  # bytes of arguments and environment


class Helper:
    """The helper; `command` is what to run in place of `ricordo`. It ends with this process or by `close`.

    It imports `modules` too, for programs that need them.
    """

    def __init__(self, *modules: str) -> None:
        from tempfile import TemporaryDirectory  # slow, and `_ask` does without

        self._folder = TemporaryDirectory(prefix="ricordo-")  # a socket's path may have about a hundred characters
        self.path = f"{self._folder.name}/ready"
        self.command = [sys.executable, "-S", "-E", __file__, self.path]
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(self.path)
            door.listen()
            # Its input ends with this process, and it ends with its input; Ctrl-C at the terminal is not for it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ready", str(door.fileno()), *modules],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                pass_fds=[door.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


class Command:
    """A process that the helper at this socket forks."""

    def __init__(
        self, path: str, arguments: list[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(path)
        order = json.dumps([arguments, str(folder), dict(environment)]).encode()
        socket.send_fds(self._line, [len(order).to_bytes(4, "big")], streams)
        self._line.sendall(order)
        self.pid = int.from_bytes(self._line.recv(4), "big")

    def wait(self) -> int:
        """The exit code; minus the signal that ended it."""
        with self._line:
            return int.from_bytes(self._line.recv(4), "big", signed=True)


def _ask(path: str, arguments: list[str]) -> int:
    """The process that the test started: its exit code is the command's."""
    command = Command(path, arguments, Path.cwd(), os.environ, STREAMS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(command.pid, number))
    code = command.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _wait_for_orders(door: socket.socket) -> list[str] | None:
    """Fork a process for each order. Returns the arguments in that process, and None in the helper when it is over."""
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, door, *running.values()], [], [], 0.01 if running else None)
        if sys.stdin in ready:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return None
        if door in ready:
            line, _ = door.accept()
            arguments = _fork(line, running, door)
            if arguments is not None:
                return arguments
        for pid, line in list(running.items()):
            if line in ready:  # nothing is ever said there: whoever asked is gone
                os.kill(pid, signal.SIGKILL)
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if line not in ready:
                    line.sendall(code.to_bytes(4, "big", signed=True))
                running.pop(pid).close()


def _fork(line: socket.socket, running: dict[int, socket.socket], door: socket.socket) -> list[str] | None:
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


def _import_everything() -> None:
    for found in pkgutil.walk_packages(importlib.import_module("ricordo").__path__, "ricordo."):
        if not found.name.endswith((".__main__", ".child")):  # these run when they are imported
            importlib.import_module(found.name)


def _obey() -> None:
    import gc

    from ricordo.cli import app

    _import_everything()
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # what is shared with the commands stays shared
    with socket.socket(fileno=int(sys.argv[1])) as door:
        arguments = _wait_for_orders(door)
    if arguments is not None:
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        if arguments[0] == "-c":
            exec(arguments[1], {"__name__": "__main__"})  # noqa: S102 - the program of a test
        else:
            app(arguments, prog_name="ricordo")


if __name__ == "__main__":
    if __package__:
        _obey()
    else:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
