"""Rules for both stores: units are whole, reads see one moment, closing waits."""

import asyncio
import logging
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.search.index import insert_messages
from ricordo.storage import agents
from ricordo.storage.engine import repository
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import SqlStore, Transaction
from ricordo.storage.schema.core_tables import messages
from tests.conftest import LOG_UNLOCKED_CHANGE
from tests.seams import make
from tests.support.postgres import server

LIMIT = 60  # seconds


def count_messages(tx: Transaction) -> int:
    return int(tx.all(select(func.count()).select_from(messages))[0][0])


async def test_a_unit_that_raises_leaves_nothing_and_a_read_cannot_write(
    store: SqlStore, scope: Scope
) -> None:
    def work(tx: Transaction) -> None:
        agents.insert_one(tx, make.agent(), ["tea"])
        assert agents.count(tx, scope) == 1
        raise LookupError("something else went wrong")

    with pytest.raises(LookupError, match="something else"):
        await store.write(work)
    for _ in range(3):
        with pytest.raises(Exception, match="no_such_table"):
            await store.write(lambda tx: tx.connection.execute(text("SELECT * FROM no_such_table")))
    with pytest.raises(Exception, match=r"read-?only"):
        await store.read(lambda tx: agents.insert_one(tx, make.agent(), []))
    with pytest.raises(NotFound, match="Agent with ID agent-x not found"):
        await store.read(lambda tx: agents.load(tx, scope, "agent-x"))
    await make.stored_agent(store)
    assert await store.read(lambda tx: (agents.count(tx, scope), make.tags_in_use(tx))) == (1, [])


async def test_a_read_sees_one_snapshot_while_others_write(store: SqlStore) -> None:
    agent = (await make.stored_agent(store)).agent
    loop = asyncio.get_running_loop()

    def read_twice(tx: Transaction) -> tuple[int, int]:
        before = count_messages(tx)
        asyncio.run_coroutine_threadsafe(
            make.stored_messages(store, make.message(agent)), loop
        ).result(LIMIT)
        return before, count_messages(tx)

    assert await store.read(read_twice) == (1, 1)
    assert await store.read(count_messages) == 2


async def test_close_waits_for_running_units(database: str, tmp_path: Path) -> None:
    url = server().new_database() if database == "postgresql" else ""

    def opened() -> SqliteStore | PostgresStore:
        return (
            open_postgres(url, connections=2, backups=tmp_path)
            if url
            else open_sqlite(tmp_path / "ricordo.db")
        )

    store = opened()
    agent = (await make.stored_agent(store)).agent
    entered = threading.Event()

    def slow(tx: Transaction) -> None:
        entered.set()
        time.sleep(0.05)
        insert_messages(tx, [make.message(agent)])

    writing = asyncio.create_task(store.write(slow))
    assert await asyncio.to_thread(entered.wait, LIMIT)
    await store.close()
    await writing
    store = opened()
    assert await store.read(count_messages) == 2
    await store.close()
    if url:
        server().drop(url)


async def test_a_slow_write_is_logged_with_its_name(
    store: SqlStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.storage.engine.store.SLOW_WRITE", 0)

    def slow(tx: Transaction) -> None: ...

    with caplog.at_level(logging.WARNING, "ricordo.storage.engine.store"):
        await store.write(slow)
        await store.write(partial(lambda _text, tx: slow(tx), "what Ada said"))
    assert "slow" in str(caplog.records[0].__dict__["work"])
    assert "lambda" in str(caplog.records[1].__dict__["work"])
    assert "Ada" not in str(caplog.records[1].__dict__)


async def test_a_running_server_logs_a_change_without_a_lock_and_stores_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repository, "report_unlocked_change", LOG_UNLOCKED_CHANGE)
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: agents.update(tx, replace(agent, description="Changed.")))
    assert [record.message for record in caplog.records] == ["a row was changed without a lock"]
    stored = await store.read(lambda tx: agents.load(tx, Scope(), agent.id))
    assert stored.agent.description == "Changed."


async def test_a_change_without_a_lock_fails_under_the_tests(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    with pytest.raises(RuntimeError, match="A row of agents was not locked before its change"):
        await store.write(lambda tx: agents.update(tx, replace(agent, description="Changed.")))
