"""Imports that are killed again and again.

In the end they have the same rows as an import without kills: nothing lost, nothing twice.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.settings import Settings
from ricordo.storage.engine.database import open_store
from tests.cli.conftest import environment
from tests.features.processes import KilledCommand
from tests.support import postgres
from tests.support.letta_database import fill
from tests.support.ready import Helper

# The columns that an import sets, without times of this run and random ids.
_CONTENT = {
    "messages": "SELECT id, conversation_id, role, parts, otid, created_at FROM messages WHERE role <> "
    "'system' ORDER BY created_at, seq",
    "prompts": "SELECT conversation_id FROM messages WHERE role = 'system' ORDER BY conversation_id",
    "passages": "SELECT id, archive_id, text, metadata, created_at FROM passages WHERE archive_id LIKE "
    "'archive-%' ORDER BY id",
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


class Importer:
    """Imports a database of the retired server into one of ours, with the command."""

    def __init__(self, helper: Helper, folder: Path, url: str) -> None:
        self.folder, self._helper, self._url = folder, helper, url

    def start(self) -> KilledCommand:
        self._report.unlink(missing_ok=True)
        command = ("import", "letta", "--database", self._url, "--report", str(self._report))
        return KilledCommand(
            self._helper, command, self.folder.with_suffix(".work"), environment(self.folder)
        )

    def run(self) -> Any:
        self.start().finish()
        return json.loads(self._report.read_text())

    def count(self) -> int:
        """Return the number of messages imported so far."""
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as rows,
        ):
            return int(rows.execute("SELECT count(*) FROM messages").fetchone()[0])
        return 0

    @property
    def _database(self) -> Path:
        return self.folder / "ricordo.db"

    @property
    def _report(self) -> Path:
        return self.folder.with_suffix(".json")


def content(folder: Path) -> dict[str, Any]:
    store = open_store(Settings(data_dir=folder, find_local_models=False))
    try:
        with store.engine.connect() as connection:
            found = {
                name: [tuple(row) for row in connection.execute(text(sql))]
                for name, sql in _CONTENT.items()
            }
    finally:
        store._close()
    # A window begins with this server's prompt.
    found["windows"] = [(json.loads(row[0])[1:],) for row in found["windows"]]
    return found


def killed_and_run(helper: Helper, tmp_path: Path, url: str, kills: int) -> None:
    """Kill the import at the start, and again after each part of the work.

    Then let it end.
    """
    whole, killed = (
        Importer(helper, tmp_path / "whole", url),
        Importer(helper, tmp_path / "killed", url),
    )
    report = whole.run()
    most = whole.count()
    was_running = []
    for number in range(kills):
        process, part = killed.start(), most * number // kills
        was_running.append(process.kill_once(lambda part=part: killed.count() >= part))  # type: ignore[misc]
    assert any(was_running)
    assert killed.run() == report
    wanted, after = content(whole.folder), content(killed.folder)
    for name, rows in wanted.items():
        assert after[name] == rows, name
    assert len({row[0] for row in after["messages"]}) == len(after["messages"]) > 0


@pytest.mark.campaign
def test_a_killed_import_continues_when_run_again(tmp_path: Path, url: str, helper: Helper) -> None:
    fill(url, messages=300, passages=120).connection.close()
    killed_and_run(helper, tmp_path, url, 3)


@pytest.mark.soak
def test_a_long_import_is_killed_often(tmp_path: Path, url: str, helper: Helper) -> None:
    fill(url, messages=3_000, passages=1_000).connection.close()
    killed_and_run(helper, tmp_path, url, 12)
