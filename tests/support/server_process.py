"""Servers as processes of their own: `make run`, and for campaigns one that can be killed and is back at once.

A helper process imports everything once and forks a server whenever one is wanted, so that a restart takes a tenth of a second;
the server itself is the real command, and a kill is a real SIGKILL. Plugins come in by a real entry point on its path.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx2

ROOT = Path(__file__).parent.parent.parent
CAN_FORK = hasattr(os, "fork")
LIMIT = 30.0  # seconds


class ServerProcess:
    """A server on a folder and a free port. `plugin` is an object reference, as `package.module:name`.

    One that is made `beside` another has its helper, and with it the same environment and plugin.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, plugin: str, beside: "ServerProcess | None" = None
    ) -> None:
        self.database = folder / "data" / "ricordo.db"
        self.log = folder / "server.log"
        self.starts: list[float] = []
        self._folder = folder
        self._port = free_port()
        self.pid = 0
        self._helper: subprocess.Popen[str] = beside._helper if beside else _helper(folder, environment, plugin)
        self._asking: threading.Lock = beside._asking if beside else threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        began = time.monotonic()
        self.pid = int(self._ask(f"start {self._port} {self._folder / 'data'} {self.log}"))
        wait_until_up(self.url, lambda: self.log_text()[-2000:])
        self.starts.append(time.monotonic() - began)

    def kill(self) -> None:
        """Kill the server in whatever it is doing, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        pid, self.pid = self.pid, 0
        status = int(self._ask(f"wait {pid}"))
        assert os.WIFSIGNALED(status), f"The server ended by itself:\n{self.log_text()[-2000:]}"

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        status = int(self._ask(f"wait {self.pid}"))
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End the helper, and with it a server that still runs."""
        if self.pid:
            self.kill()
        self._helper.stdin.close()  # type: ignore[union-attr]
        self._helper.wait(LIMIT)
        self._helper.stdout.close()  # type: ignore[union-attr]

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, order: str) -> str:
        stdin, stdout = self._helper.stdin, self._helper.stdout
        assert stdin
        assert stdout
        with self._asking:
            stdin.write(order + "\n")
            stdin.flush()
            return stdout.readline()


class MadeServer:
    """A server as its user starts it: `make run`, on a port and a data folder that stay the same from one start to the next."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {"RICORDO_DATA_DIR": str(data_dir), "RICORDO_PORT": str(port), "RICORDO_LOG_LEVEL": "info"}
        self._environment = _environment(given | environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return once it answers."""
        # A session of its own, so that a kill reaches the server and not only make.
        self._process = subprocess.Popen(
            ["make", "run"], cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        wait_until_up(self.url, lambda: f"code {self._process and self._process.poll()}")

    def end(self, how: signal.Signals) -> None:
        """Send a signal to it, and wait until it has ended."""
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
    """Return once a server answers there; what `tell` says goes with the failure where none does in time."""
    limit = time.monotonic() + LIMIT
    with httpx2.Client(trust_env=False) as http:
        while True:
            try:
                if http.get(f"{url}/v1/health/").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.005)
            assert time.monotonic() < limit, f"The server did not start: {tell()}"


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _helper(folder: Path, environment: Mapping[str, str], plugin: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.server_process"],
        cwd=folder,  # no .env lies there
        env=_environment(environment, _installed(folder, plugin)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _installed(folder: Path, plugin: str) -> Path:
    """A folder that holds the plugin as an installed package would be."""
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
    quiet = {"PYTHONPATH": path, "RICORDO_FIND_LOCAL_MODELS": "false", "RICORDO_LOG_LEVEL": "warning"}
    return kept | quiet | dict(added)


def _obey() -> None:
    """The helper: reads orders, forks servers, tells how they ended; ends with its input."""
    logging.disable()
    asyncio.run(_rehearse())
    logging.disable(logging.NOTSET)
    gc.freeze()  # what is shared with the servers stays shared
    running: set[int] = set()
    try:
        for line in sys.stdin:
            order, *words = line.split()
            if order == "start":
                answer = _fork(*words)
                running.add(answer)
            else:
                answer = os.waitpid(int(words[0]), 0)[1]
                running.discard(int(words[0]))
            print(answer, flush=True)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)


async def _rehearse() -> None:
    """Live through one turn, so that every server to come has its imports behind it."""
    import ricordo.cli.serve  # noqa: F401 - what a server imports on its way
    from ricordo.app import create_app
    from ricordo.settings import ProviderSettings, Settings

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder), find_local_models=False), ProviderSettings())
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            agent = (await http.post("/v1/agents/", json={"model": "ricordo/librarian"})).json()["id"]
            message = {"role": "user", "content": "I like tea."}
            answer = await http.post(f"/v1/agents/{agent}/messages", json={"messages": [message]})
            assert answer.status_code == 200, answer.text


def _fork(port: str, data_dir: str, log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    from ricordo.cli import app

    with open(os.devnull) as nothing, open(log, "a") as lines:  # noqa: PTH123 - descriptors are wanted here
        os.dup2(nothing.fileno(), 0)
        os.dup2(lines.fileno(), 1)
        os.dup2(lines.fileno(), 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a fresh one: the helper has read from the old one
    code = 1
    try:
        app(["serve", "--port", port, "--data-dir", data_dir])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _obey()
