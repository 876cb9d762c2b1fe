"""Database files that are renamed, replaced or removed stop a server's writes.

Acknowledged writes are kept.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.seams.http import ok, refused
from tests.seams.server import MODEL, serving


def move_away(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.away"))


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name(f"{path.name}.copy"))
    move_away(path)
    path.with_name(f"{path.name}.copy").rename(path)


CHANGES: tuple[Callable[[Path], None], ...] = (move_away, replace_by_a_copy)
FILES = ("ricordo.db", "ricordo.db-wal", "ricordo.db-shm")


def test_replaced_or_removed_database_files_stop_writes_until_restored(tmp_path: Path) -> None:
    acknowledged = []
    with serving(tmp_path) as server, server.http() as http:
        for change in CHANGES:
            for name in FILES:
                acknowledged.append(
                    ok(http.post("/v1/agents/", json={"model": MODEL, "name": name}))["id"]
                )
                path = tmp_path / name
                change(path)
                said = refused(http.get("/v1/health/ready"), 503)
                assert "files were renamed, replaced or removed" in str(said)
                assert str(tmp_path) not in str(said)
                said = refused(http.post("/v1/agents/", json={"model": MODEL, "name": "lost"}), 503)
                assert "Stop the server, put the files back, then start it." in str(said)
                ok(http.get("/v1/health/live"))
                path.with_name(f"{name}.away").replace(path)
                ok(http.get("/v1/health/ready"))
        server.faults.clear()
    with serving(tmp_path) as server, server.http() as http:
        agents = {
            agent["id"]: agent["name"]
            for agent in ok(http.get("/v1/agents/", params={"limit": 100}))
        }
    assert set(agents) >= set(acknowledged)
    assert "lost" not in agents.values()


def test_a_stopping_server_keeps_files_that_replaced_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite deletes `-wal` by its name when the last connection is closed."""
    monkeypatch.setattr("ricordo.background.worker._SAVE_DELAYS", (0.0, 0.01))
    with serving(tmp_path) as server, server.http() as http:
        agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
        for name in FILES:
            replace_by_a_copy(tmp_path / name)
    assert all((tmp_path / name).exists() for name in FILES)
    for name in FILES:
        (tmp_path / f"{name}.away").replace(tmp_path / name)
    with serving(tmp_path) as server, server.http() as http:
        assert ok(http.get(f"/v1/agents/{agent}"))["id"] == agent
