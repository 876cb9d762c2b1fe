"""A server as its user starts it: `make run`, to be killed and started again."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

ROOT = Path(__file__).parent.parent.parent
START_LIMIT = 30.0  # seconds


class ServerProcess:
    """`make run` on a port and a data folder that stay the same from one start to the next."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        clean = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        self._environment = clean | {
            "RICORDO_DATA_DIR": str(data_dir),
            "RICORDO_PORT": str(self.port),
            "RICORDO_FIND_LOCAL_MODELS": "false",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return once it answers."""
        # A session of its own, so that a kill reaches the server and not only make.
        self._process = subprocess.Popen(
            ["make", "run"], cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the server ended with code {self._process.returncode}"
            try:
                if httpx2.get(f"{self.url}/v1/health/", trust_env=False).status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.02)
        raise AssertionError("the server did not answer in time")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, how)
            self._process.wait(START_LIMIT)
            self._process = None


@contextmanager
def server_process(data_dir: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server that is running, and stopped on leaving."""
    server = ServerProcess(data_dir, **environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
