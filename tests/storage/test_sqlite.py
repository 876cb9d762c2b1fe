"""The SQLite store: units of work, many callers, the lock of a folder, and kills."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, NotFound, Unavailable
from ricordo.search.index import insert_messages
from ricordo.settings import Settings
from ricordo.storage import agents, blocks, messages
from ricordo.storage.engine import sqlite as sqlite_engine
from ricordo.storage.engine.database import read_beside
from ricordo.storage.engine.sqlite import SqliteStore, lock_file, open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import messages as messages_table
from tests.seams import make
from tests.seams.stores import LIMIT

DATABASES = ("sqlite",)
on_posix = pytest.mark.skipif(os.name != "posix", reason="file modes are a matter of POSIX")


def count_messages(tx: Transaction) -> int:
    return int(tx.all(select(func.count()).select_from(messages_table))[0][0])


async def test_foreign_keys_are_enforced(store: SqliteStore) -> None:
    orphan = make.message(make.agent())
    with pytest.raises(Exception, match="FOREIGN KEY"):
        await store.write(lambda tx: insert_messages(tx, [orphan]))
    assert await store.read(count_messages) == 0


async def test_concurrent_read_modify_writes_lose_no_update(
    store: SqliteStore, scope: Scope
) -> None:
    (block,) = await make.stored_blocks(store, make.block(value="0"))

    def add_one(tx: Transaction) -> bool:
        now = blocks.get(tx, scope, block.id)
        return (
            blocks.write(tx, now, str(int(now.value) + 1), make.change_metadata("user-1"))
            is not None
        )

    assert all(await asyncio.gather(*(store.write(add_one) for _ in range(50))))
    after = await store.read(lambda tx: blocks.get(tx, scope, block.id))
    assert (after.value, after.version) == ("50", 51)


async def test_a_write_locks_out_other_programs_from_its_start(
    store: SqliteStore, tmp_path: Path
) -> None:
    """If another program could write first, a unit that reads could fail at its first write."""

    def work(tx: Transaction) -> str:
        count_messages(tx)
        with closing(sqlite3.connect(tmp_path / "ricordo.db", timeout=0)) as other:
            try:
                other.execute("DELETE FROM users")
            except sqlite3.OperationalError as error:
                return str(error)
            return "written"

    assert await store.write(work) == "database is locked"
    assert await store.read(work) == "written"


async def test_a_second_server_on_the_folder_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "ricordo.db"
    with pytest.raises(
        Conflict,
        match=r"Another Ricordo server is using .*ricordo\.db\. Stop it, or choose another",
    ):
        open_sqlite(path)
    assert await store.read(count_messages) == 0


async def test_a_server_waits_for_a_lock_that_is_held_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ricordo doctor` holds the lock while it looks for missing writes."""
    monkeypatch.setattr(sqlite_engine, "_CHECK_SECONDS", LIMIT)
    path = tmp_path / "ricordo.db"
    lock = lock_file(path)
    release = threading.Timer(0.1, lock.release)
    release.start()
    await open_sqlite(path).close()
    release.join()


async def test_a_closed_folder_can_be_opened_again_with_its_data(
    tmp_path: Path, scope: Scope
) -> None:
    path = tmp_path / "What? #1 100% 名前 ';" / "ricordo.db"
    store = open_sqlite(path)
    state = await make.stored_agent(store, tags=["tea"])
    await store.close()
    assert not path.with_name("ricordo.db-wal").exists()
    store = open_sqlite(path)
    assert await store.read(lambda tx: agents.load_whole(tx, scope, state.agent.id)) == state
    await store.close()


@on_posix
async def test_the_folder_and_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ricordo.db"
    store = open_sqlite(path)
    await make.stored_agent(store)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    await store.close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {"ricordo.db", "ricordo.db-wal", "ricordo.db-shm"} <= set(modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_folder_that_cannot_be_created_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match=r"cannot be made.*Choose another RICORDO_DATA_DIR"):
        open_sqlite(tmp_path / "file" / "data" / "ricordo.db")


def test_a_file_that_is_no_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "ricordo.db"
    path.write_bytes(b"Dear diary, " * 500)
    for _ in range(2):  # the second time shows that the lock was released
        with pytest.raises(Unavailable, match=r"ricordo\.db cannot be opened"):
            open_sqlite(path)
    assert path.read_bytes() == b"Dear diary, " * 500


async def test_full_durability_makes_sqlite_sync_every_commit(tmp_path: Path) -> None:
    found = []
    for durability in ("normal", "full"):
        store = open_sqlite(tmp_path / durability / "ricordo.db", durability=durability)
        found.append(
            await store.write(
                lambda tx: tx.connection.execute(text("PRAGMA synchronous")).scalar_one()
            )
        )
        assert (
            await store.read(
                lambda tx: tx.connection.execute(text("PRAGMA journal_mode")).scalar_one()
            )
            == "wal"
        )
        await store.close()
    assert found == [1, 2]


WRITE_UNTIL_KILLED = """
import asyncio, pathlib, sys
from ricordo.domain.message import Message, TextPart
from ricordo.domain.ids import new_id
from ricordo.search.index import insert_messages
from ricordo.settings import Settings
from ricordo.storage.engine.database import read_beside
from ricordo.storage.engine.sqlite import open_sqlite

async def main():
    store = open_sqlite(pathlib.Path(sys.argv[1]))
    agent, conversation, organization = sys.argv[2:]
    while True:
        one = Message(new_id("message"), agent, conversation, "user", (TextPart("kept"),), store.clock.now(),
                      organization_id=organization)
        await store.write(lambda tx: insert_messages(tx, [one]))
        print(one.id, flush=True)

asyncio.run(main())
"""


def write_until_killed(path: Path, *arguments: str, after: int) -> list[str]:
    """Run a child that prints each message's id once it is written; kill it after some lines."""
    command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        acknowledged = [child.stdout.readline().strip() for _ in range(after)]
        child.kill()
        acknowledged += child.stdout.read().split()
        child.wait(timeout=180)
    assert child.returncode == -signal.SIGKILL if os.name == "posix" else child.returncode != 0
    return [one for one in acknowledged if len(one) == len(new_id("message"))]


async def test_acknowledged_writes_survive_a_kill_of_the_process(
    tmp_path: Path, scope: Scope
) -> None:
    path = tmp_path / "ricordo.db"
    store = open_sqlite(path)
    state = await make.stored_agent(store)
    await store.close()
    names = (state.agent.id, state.conversation.id, state.agent.organization_id)
    acknowledged = await asyncio.to_thread(write_until_killed, path, *names, after=40)
    store = open_sqlite(path)
    kept = await store.read(lambda tx: messages.by_ids(tx, acknowledged))
    sound = await store.read(
        lambda tx: tx.connection.execute(text("PRAGMA integrity_check")).scalar_one()
    )
    await store.close()
    assert len(acknowledged) >= 40
    assert [one.id for one in kept] == acknowledged
    assert sound == "ok"


async def test_a_full_disk_is_a_clear_error_and_changes_nothing(store: SqliteStore) -> None:
    """SQLite's limit on pages simulates a full disk."""
    before = await store.read(lambda tx: tx.all(text("SELECT count(*) FROM organizations"))[0][0])
    await store.write(lambda tx: tx.all(text("PRAGMA max_page_count = 1")))
    big = "x" * 5_000_000
    fill = text(
        "INSERT INTO organizations (id, name, created_at) VALUES ('org-big', :name, 0)"
    ).bindparams(name=big)

    with pytest.raises(Unavailable, match="Nothing was changed"):
        await store.write(lambda tx: tx.run(fill))

    assert (
        await store.read(lambda tx: tx.all(text("SELECT count(*) FROM organizations"))[0][0])
        == before
    )


async def test_another_process_can_read_but_not_write_while_a_server_runs(
    tmp_path: Path,
) -> None:
    server = open_sqlite(tmp_path / "ricordo.db")
    with read_beside(Settings(data_dir=tmp_path)) as tx:
        assert tx.all(text("SELECT count(*) AS found FROM organizations"))[0].found == 1
        with pytest.raises(Conflict, match="Another Ricordo server"):
            open_sqlite(tmp_path / "ricordo.db")  # The server still holds its lock.
    with (
        pytest.raises(Unavailable, match="readonly"),
        read_beside(Settings(data_dir=tmp_path)) as tx,
    ):
        tx.run(text("DELETE FROM users"))
    await server.close()


async def test_reading_creates_no_database_and_refuses_another_schema(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(NotFound, match="There is no database"),
        read_beside(Settings(data_dir=tmp_path / "empty")),
    ):
        pass
    assert not (tmp_path / "empty").exists()
    server = open_sqlite(tmp_path / "ricordo.db")
    await server.write(lambda tx: tx.run(text("UPDATE schema_versions SET version = 99")))
    await server.close()
    with pytest.raises(Conflict, match="has schema 99"), read_beside(Settings(data_dir=tmp_path)):
        pass
