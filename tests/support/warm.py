"""Preparation that all servers and tests need, done once before processes are forked.

A worker or a command that is forked afterwards imports nothing again, and compiles no statement.
"""

import pkgutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ricordo.features
from ricordo import offload
from ricordo.app import load_plugins
from tests.seams.server import MODEL, serving
from tests.support import sharing

_folders: list[Path] = []


def is_warm() -> bool:
    """Return whether this process, or the one it was forked from, was prepared."""
    return bool(_folders)


def warm_up(folder: Path) -> None:
    """Prepare the work that the servers of one process share, and run one server.

    Args:
        folder: An empty folder, which stays until the forks have ended.
    """
    _folders.append(folder)
    sharing.share(pytest.MonkeyPatch(), folder)
    load_plugins(ricordo.features.FEATURES).tools()
    for name in _modules_of_a_server(ricordo.features.__path__):
        import_module(name)
    _live_once(folder / "once")


@settings(max_examples=50, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(), st.integers(), st.floats())
def generate_once(_text: str, _number: int, _fraction: float) -> None:
    """Generate inputs once, so that hypothesis has made its lists of characters."""


def _live_once(folder: Path) -> None:
    """Let a server handle one conversation and end, so that statements are already compiled."""
    folder.mkdir()
    with serving(folder) as server, server.http() as http:
        blocks = [{"label": "human", "value": "Nobody is known yet."}]
        made = http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": blocks}).json()
        http.post(f"/v1/agents/{made['id']}/messages", json={"input": "Hello."})
        http.get("/v1/agents/")
        http.get("/v1/runs/", params={"active": True})
    # A fork would wait for these threads, which exist only in this process.
    offload._THREADS.shutdown()
    offload._THREADS = ThreadPoolExecutor(2, "offload")
    assert threading.active_count() == 1, (
        f"fork only without other threads: {threading.enumerate()}"
    )


def _modules_of_a_server(features: Iterable[str]) -> Iterator[str]:
    """Yield the modules that a server and its command import."""
    yield from (
        "ricordo.cli.serve",
        "ricordo.api.server",
        "ricordo.api.agents",
        "uvloop",
        "uvicorn.lifespan.on",
    )
    yield from ("httpcore2", "h2.connection", "truststore")
    for module in pkgutil.walk_packages(features, "ricordo.features."):
        if module.name.endswith(
            (".jobs", ".service", ".queries", ".options", ".recorder", ".sync", ".sleeptime")
        ):
            yield module.name
