"""Removing all traces of deleted rows from the database's files, and searching copies."""

from pathlib import Path

import pytest
from sqlalchemy import text

from ricordo.storage import scrub
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.support import postgres
from tests.support.canaries import CANARY, in_files, in_heap


async def test_deleted_text_stays_in_the_files_until_they_are_scrubbed(
    store: SqliteStore, tmp_path: Path, database: str
) -> None:
    agent = (await make.stored_agent(store)).agent
    await make.stored_messages(
        store, *(make.message(agent, f"{CANARY} {n} " * 50) for n in range(200))
    )
    for table in ("messages", "search_buffer", "jobs"):
        await store.write(lambda tx, table=table: tx.run(text(f"DELETE FROM {table}")))  # type: ignore[misc]  # noqa: S608
    assert files(tmp_path, database)

    left = await scrub.scrub(store, ["messages"])

    assert files(tmp_path, database) == []
    assert [sentence for sentence in left if "log of changes" not in sentence] == []


async def test_a_too_large_table_is_skipped_and_named(
    store: SqliteStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "MOST_REWRITTEN", 0)
    left = await scrub.scrub(store, ["messages"])
    named = [sentence for sentence in left if "VACUUM FULL messages" in sentence]
    assert len(named) == (1 if database == "postgresql" else 0)


async def test_a_scrub_restores_the_settings_of_connections(
    store: SqliteStore, database: str
) -> None:
    await scrub.scrub(store, [])
    statement = "PRAGMA temp_store" if database == "sqlite" else "SHOW lock_timeout"

    def setting(tx: Transaction) -> object:
        return tx.all(text(statement))[0][0]

    assert await store.write(setting) == (2 if database == "sqlite" else "10s")


async def test_a_database_copy_can_be_checked_for_a_user(
    store: SqliteStore, tmp_path: Path, database: str
) -> None:
    if database != "sqlite":
        pytest.skip("copies are files of SQLite")
    agent = (await make.stored_agent(store)).agent
    await make.stored_messages(store, make.message(agent, "Tea.", sender_id="user-ada"))
    path = tmp_path / "ricordo.db"
    assert scrub.holds(path, "user-ada") is True
    assert scrub.holds(path, "user-bob") is False
    (tmp_path / "other.db").write_text(
        "This is no database at all, but it is as long as one might be. " * 40
    )
    assert scrub.holds(tmp_path / "other.db", "user-ada") is None
    assert scrub.holds(tmp_path / "missing.db", "user-ada") is None


def files(folder: Path, database: str) -> list[str]:
    return (
        in_files(folder) if database == "sqlite" else in_heap(postgres.server().shared_database())
    )
