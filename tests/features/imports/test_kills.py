"""An import whose process is killed, again and again, ends with what one that was not killed has: nothing lost, nothing twice."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.settings import Settings
from ricordo.storage.engine.database import open_store
from tests.cli.conftest import environment
from tests.support import postgres
from tests.support.letta_database import fill

# Of each table, what an import decides: no times of this run, and no ids that are made by chance.
_CONTENT = {
    "messages": "SELECT id, conversation_id, role, parts, otid, created_at FROM messages WHERE role <> 'system'"
    " ORDER BY created_at, seq",
    "prompts": "SELECT conversation_id FROM messages WHERE role = 'system' ORDER BY conversation_id",
    "passages": "SELECT id, archive_id, text, metadata, created_at FROM passages WHERE archive_id LIKE 'archive-%' ORDER BY id",
    "tags": "SELECT passage_id, tag FROM passages_tags ORDER BY passage_id",
    "archives": "SELECT id, name, passage_count, tags FROM archives ORDER BY id",
    "blocks": "SELECT id, label, value, version FROM blocks ORDER BY id",
    "commits": "SELECT count(*) FROM commits",
    "agents": "SELECT id, name, model, agent_type FROM agents ORDER BY id",
    "conversations": "SELECT id, message_count, last_message_at FROM conversations ORDER BY id",
    "windows": "SELECT window FROM conversations ORDER BY id",
    "links": "SELECT agent_id, label FROM agents_blocks ORDER BY agent_id, label",
    "files": "SELECT id, name, folder_id FROM files ORDER BY id",
    "users": "SELECT identifier FROM users ORDER BY identifier",
    "tools": "SELECT name, source_code FROM tools ORDER BY name",
    "items": "SELECT id, outcome FROM imported_items ORDER BY id",
}


@pytest.fixture
def url() -> Iterator[str]:
    made = postgres.server().new_database(empty=True)
    yield made
    postgres.server().drop(made)


def start(folder: Path, url: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ricordo.cli", "import", "letta", "--database", url]
    report = folder.with_suffix(".json")
    return subprocess.Popen(
        [*command, "--report", str(report)],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(folder: Path, url: str) -> Any:
    process = start(folder, url)
    _, told = process.communicate(timeout=240)
    assert process.returncode == 0, told.decode()
    return json.loads(folder.with_suffix(".json").read_text())


def content(folder: Path) -> dict[str, Any]:
    store = open_store(Settings(data_dir=folder, find_local_models=False))
    try:
        with store.engine.connect() as connection:
            found = {name: [tuple(row) for row in connection.execute(text(sql))] for name, sql in _CONTENT.items()}
    finally:
        store._close()
    # A window begins with a prompt of our own.
    found["windows"] = [(json.loads(row[0])[1:],) for row in found["windows"]]
    return found


def killed_and_run(tmp_path: Path, url: str, kills: int, luck: random.Random) -> None:
    began = time.monotonic()
    report = run(tmp_path / "whole", url)
    lasted = time.monotonic() - began
    folder = tmp_path / "killed"
    has_left_off = 0
    for _ in range(kills):
        process = start(folder, url)
        try:
            process.wait(luck.uniform(0.3, 1.0) * lasted)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            has_left_off += 1
        process.communicate()
    assert has_left_off, "no process was killed in time"
    assert run(folder, url) == report
    whole, after = content(tmp_path / "whole"), content(folder)
    for name, rows in whole.items():
        assert after[name] == rows, name
    assert len({row[0] for row in after["messages"]}) == len(after["messages"]) > 0


@pytest.mark.campaign
def test_a_killed_import_goes_on(tmp_path: Path, url: str) -> None:
    fill(url, messages=300, passages=120).connection.close()
    killed_and_run(tmp_path, url, 3, random.Random())  # noqa: S311 - when to kill is no secret


@pytest.mark.soak
def test_a_long_import_is_killed_often(tmp_path: Path, url: str) -> None:
    fill(url, messages=3_000, passages=1_000).connection.close()
    killed_and_run(tmp_path, url, 12, random.Random())  # noqa: S311
