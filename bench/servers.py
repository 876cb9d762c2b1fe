"""The processes of a bench: the model on loopback, and a Ricordo server on a separate folder."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import psutil

from tests.support.server_process import free_port


@dataclass(frozen=True)
class Server:
    """A running server.

    `started_in` is the time from its start to its first answer, in seconds.
    """

    url: str
    process: psutil.Process
    started_in: float

    def cpu(self) -> float:
        """Return the processor seconds so far, user and system.

        They are exact if the kernel counts nanoseconds.
        """
        threads = Path(f"/proc/{self.process.pid}/task")
        try:
            return (
                sum(
                    int((thread / "schedstat").read_text().split()[0])
                    for thread in threads.iterdir()
                )
                / 1e9
            )
        except OSError:
            times = self.process.cpu_times()
            return float(times.user + times.system)

    def memory(self) -> float:
        """Return the resident memory in megabytes."""
        return float(self.process.memory_info().rss) / 1e6


@contextmanager
def model_server() -> Iterator[str]:
    """Serve the benches' model; yield its address for OPENAI_BASE_URL."""
    with scripted_model("bench.model") as url:
        yield url


@contextmanager
def scripted_model(module: str) -> Iterator[str]:
    """Run a module that serves a model; yield the address that it prints."""
    with _process([sys.executable, "-m", module], stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield process.stdout.readline().decode().strip()


@contextmanager
def ricordo(model_url: str, data_dir: Path | None = None, **environment: str) -> Iterator[Server]:
    """Run a server with that model, on an empty folder by default.

    `environment` adds to the settings.
    """
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        port = free_port()
        variables = {
            **os.environ,
            "OPENAI_BASE_URL": model_url,
            "OPENAI_API_KEY": "bench",
            "RICORDO_FIND_LOCAL_MODELS": "false",
            "RICORDO_DATA_DIR": str(data_dir or folder),
            "RICORDO_LOG_LEVEL": "error",
            **environment,
        }
        command = [str(Path(sys.executable).with_name("ricordo")), "serve", "--port", str(port)]
        began = time.perf_counter()
        with _process(command, env=variables, stdout=subprocess.DEVNULL) as process:
            url = f"http://127.0.0.1:{port}"
            _wait_until_healthy(url, process)
            yield Server(url, psutil.Process(process.pid), time.perf_counter() - began)


@contextmanager
def _process(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300  # long enough for a busy machine
    with httpx2.Client() as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(
                    f"The server ended with code {process.returncode} before it answered."
                )
            try:
                if client.get(f"{url}/v1/health/").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.005)
    raise RuntimeError("The server did not answer within five minutes.")
