"""What a database from before there were versions gets: a first version of every block, whatever it was called."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, event

from ricordo.domain.git_objects import tree_of
from ricordo.domain.git_reading import fits_git
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.memory.repository import refreshed
from ricordo.storage import migrations
from ricordo.storage.sqlite import open_sqlite
from tests.support.git import fsck, ids

LABELS = ["notes", "notes.md/x", "notes-md/x", ".git", "git~1/a", "courses/maths", "Café"]


def before_versions(path: Path) -> None:
    """A database of the schema before, with a chain of blocks and one attached to an agent."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    with engine.connect() as connection:
        migrations.migrate(connection, back_up=lambda _: None, migrations=migrations.MIGRATIONS[:5])
    engine.dispose()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(
            "INSERT INTO chains (id, organization_id, owner_kind, owner_id) VALUES ('chain-1', ?, 'agent', 'agent-1')",
            (LOCAL_ORGANIZATION,),
        )
        for number, label in enumerate(LABELS):
            raw.execute(
                'INSERT INTO blocks (id, organization_id, chain_id, label, value, "limit", policy, created_at, updated_at)'
                " VALUES (?, ?, 'chain-1', ?, ?, 100, 'direct', 1, 1)",
                (f"block-{number}", LOCAL_ORGANIZATION, label, f"Text {number}"),
            )


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(sql).fetchall()


async def test_every_block_gets_a_version_and_labels_that_git_refuses_get_near_ones(tmp_path: Path) -> None:
    path = tmp_path / "ricordo.db"
    before_versions(path)
    store = open_sqlite(path)
    clone = await refreshed(store, tmp_path / "clones", "chain-1")
    await store.close()
    assert (fsck(clone), len(ids(clone))) == ("", len(LABELS))
    labels = [label for (label,) in rows(path, "SELECT label FROM blocks ORDER BY seq")]
    assert labels == ["notes", "notes-md/x-2", "notes-md/x", "-git", "git-1/a", "courses/maths", "Café"]
    assert all(map(fits_git, labels))
    ((head, versions, files),) = rows(path, "SELECT head, versions, files FROM chains")
    blobs = {label: bytes.fromhex(blob) for label, (blob, _) in json.loads(files).items()}
    assert (set(blobs), versions) == (set(labels), len(LABELS))
    assert len(tree_of(blobs).bodies) == 4  # the root, and three folders
    assert rows(path, "SELECT id, label FROM commits ORDER BY number DESC LIMIT 1") == [(head, "Café")]
    assert [text for (text,) in rows(path, "SELECT value FROM blocks ORDER BY seq")] == [
        f"Text {number}" for number in range(len(LABELS))
    ]
