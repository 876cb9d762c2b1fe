"""A process that checks a server's health repeatedly, on a new connection each time.

`python -m tests.support.health_probe 8283` asks until its input ends. Then it prints the time of
each response as JSON.
"""

import asyncio
import json
import math
import select
import socket
import subprocess
import sys
import time
from types import TracebackType

from tests.support.ready import ROOT

_PAUSE, _LIMIT = 0.005, 30.0  # seconds
_REQUEST = b"GET /v1/health/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


class HealthProbe:
    """Checks the health while the block runs.

    Afterwards `milliseconds` has the time of each response, infinite for a missing one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.milliseconds: list[float] = []

    @property
    def p99(self) -> float:
        return sorted(self.milliseconds)[math.ceil(len(self.milliseconds) * 0.99) - 1]

    async def __aenter__(self) -> "HealthProbe":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-m", "tests.support.health_probe", str(self._port)]
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, limit=1 << 24, **pipes
        )
        await self._process.stdout.readline()  # the process has started
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        told, _ = await self._process.communicate(b"")
        self.milliseconds = json.loads(told)


def _ask(port: int) -> float:
    began, answer = time.perf_counter(), b""
    try:
        with socket.create_connection(("127.0.0.1", port), _LIMIT) as line:
            line.sendall(_REQUEST)
            while piece := line.recv(65536):
                answer += piece
    except OSError:
        return math.inf
    return (time.perf_counter() - began) * 1000 if answer.startswith(b"HTTP/1.1 200") else math.inf


def _ask_until_told(port: int) -> None:
    times = [_ask(port)]
    print(flush=True)
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        times.append(_ask(port))
    print(json.dumps(times))


if __name__ == "__main__":
    _ask_until_told(int(sys.argv[1]))
