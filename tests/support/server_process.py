"""Servers as separate processes: `make run`, and servers for campaigns of kills.

The helper of `ready` forks a server at each start, so a restart takes a tenth of a second. The
server is the real command, and a kill is a real SIGKILL. Plugins are loaded by a real entry point
on its path.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx2

from tests.support.canaries import CANARY
from tests.support.ready import ROOT, Command, Helper

CAN_FORK = hasattr(os, "fork")
LIMIT = 180.0  # seconds; the machine may be busy


class ServerProcess:
    """A server that the helper forks, on a folder and a free port.

    It runs the plugin (`package.module:name`), if there is one.
    """

    def __init__(
        self, helper: Helper, folder: Path, environment: Mapping[str, str], plugin: str | None
    ) -> None:
        self.database = folder / "data" / "ricordo.db"
        self.log = folder / "server.log"
        self.starts: list[float] = []
        self._helper, self._folder, self._port = helper, folder, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._environment = _environment(
            environment, *([_installed(folder, plugin)] if plugin else [])
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        began = time.monotonic()
        arguments = ["serve", "--port", str(self._port), "--data-dir", str(self.database.parent)]
        with Path(os.devnull).open() as nothing, self.log.open("a") as log:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            self._process = Command(
                self._helper.path, arguments, self._folder, self._environment, streams
            )
        wait_until_up(self.url, lambda: self.log_text()[-2000:])
        self.starts.append(time.monotonic() - began)

    def kill(self) -> None:
        code = self.stop(signal.SIGKILL)
        assert code == -signal.SIGKILL, f"The server ended by itself:\n{self.log_text()[-2000:]}"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.pid, how)
        code = self._process.wait()
        assert CANARY not in self.log_text().lower(), "a text of a person is in the log"
        return code

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class MadeServer:
    """A server as its user starts it: `make run`.

    Port and data folder stay the same from one start to the next.
    """

    def __init__(self, data_dir: Path, **environment: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {
            "RICORDO_DATA_DIR": str(data_dir),
            "RICORDO_PORT": str(port),
            "RICORDO_LOG_LEVEL": "info",
        }
        self._environment = _environment(given | environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A separate session, so that a kill reaches the server and not only make.
        self._process = subprocess.Popen(
            ["make", "run"],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until_up(self.url, lambda: f"code {self._process and self._process.poll()}")

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, how)
            self._process.wait(LIMIT)
            self._process = None

    def __enter__(self) -> "MadeServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)


def wait_until_up(url: str, tell: Callable[[], str]) -> None:
    """Wait until a server answers at this address.

    If no server answers in time, the error contains the result of `tell`.
    """
    limit = time.monotonic() + LIMIT
    host, _, port = url.removeprefix("http://").partition(":")
    while not _listens(host, int(port)):  # a connection takes 1% of a request's time
        time.sleep(0.005)
        assert time.monotonic() < limit, f"The server did not start: {tell()}"
    with httpx2.Client(trust_env=False) as http:
        while True:
            try:
                if http.get(f"{url}/v1/health/").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.005)
            assert time.monotonic() < limit, f"The server did not start: {tell()}"


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _installed(folder: Path, plugin: str) -> Path:
    """Make a folder that contains the plugin like an installed package."""
    place = folder / "plugins"
    info = place / "ricordo_campaign-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ricordo-campaign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ricordo.plugins]\ncampaign = {plugin}\n")
    return place


def _environment(added: Mapping[str, str], *paths: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RICORDO_") and not name.endswith(("_API_KEY", "_BASE_URL"))
    }
    path = os.pathsep.join(map(str, (ROOT, *paths)))
    quiet = {
        "PYTHONPATH": path,
        "RICORDO_FIND_LOCAL_MODELS": "false",
        "RICORDO_LOG_LEVEL": "warning",
        "RICORDO_PICTURE_TEXT": "off",
    }
    return kept | quiet | dict(added)
