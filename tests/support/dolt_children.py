"""Processes of doltlite that start a hundred times as fast: forks of one that has loaded it.

`python -I dolt_children.py <child.py> <descriptor of a socket>` is that process. It gets the path
of a file, and the descriptor at which the fork has to answer. It returns the fork's id. It ends
when the socket is closed.
"""

import atexit
import contextlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

LONGEST = 10_000  # bytes of a path
READY = b"ready"


class ForkedChild:
    """A fork with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor: int | None = None
        with contextlib.suppress(ProcessLookupError):  # the process has already ended
            self._descriptor = os.pidfd_open(pid)

    def kill(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self._descriptor is None:
            return
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("doltlite", timeout or 0)
        os.close(self._descriptor)
        self._descriptor = None


@cache
def _forking(child: Path) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", __file__, str(child), str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
    assert ours.recv(len(READY)) == READY, "doltlite could not be loaded"

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def fork_child(child: Path, path: Path, pipe: int) -> ForkedChild:
    """Fork a process of doltlite on this file, which answers at this descriptor."""
    forking = _forking(child)
    socket.send_fds(forking, [os.fsencode(path)], [pipe])
    return ForkedChild(int(forking.recv(LONGEST)))


def _fork_for_all(child: str, descriptor: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
    main = runpy.run_path(child, run_name="child")["main"]
    asking = socket.socket(fileno=descriptor)
    asking.send(READY)
    while True:
        path, pipes, _, _ = socket.recv_fds(asking, LONGEST, 1)
        if not path:
            return
        pid = os.fork()
        if pid == 0:
            asking.close()
            sys.argv[1:] = [os.fsdecode(path), str(pipes[0])]
            try:
                main()
            finally:
                os._exit(0)
        os.close(pipes[0])
        asking.send(str(pid).encode())


if __name__ == "__main__":
    _fork_for_all(sys.argv[1], int(sys.argv[2]))
