"""What flushes delete from the buffer does not stay in the way of searches."""

import pytest

from ricordo.search import clearing, index
from ricordo.search.flush import flush
from ricordo.search.index import MessageFilter, Query, insert_messages
from ricordo.storage.postgres import PostgresStore
from ricordo.storage.store import Store
from tests.conftest import BOTH
from tests.support import make

DATABASES = BOTH


async def test_a_flush_of_many_rows_clears_the_buffer_and_the_next_search_is_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "MANY", 4)
    agent = (await make.stored_agent(store)).agent
    for text in ("tea", "rain", "snow", "bread", "violin"):
        await store.write(lambda tx, text=text: insert_messages(tx, [make.message(agent, text)]))  # type: ignore[misc]
    assert await store.write(lambda tx: flush(tx, "messages", agent.id)) == 5
    if isinstance(store, PostgresStore):
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("SELECT pg_relation_size('search_buffer')").scalar_one()
        # Nothing is left of a table whose rows are all dead, once it is cleared.
        assert pages == 0
    found = await store.read(lambda tx: index.find_messages(tx, Query("tea"), MessageFilter((agent.id,)), 9))
    assert len(found.hits) >= 1


async def test_a_clearing_that_fails_undoes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing, "MANY", 1)
    monkeypatch.setattr(clearing, "_CLEAR", "VACUUM nowhere")
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: insert_messages(tx, [make.message(agent, "tea")]))
    assert await store.write(lambda tx: flush(tx, "messages", agent.id)) == 1
    await store.write(lambda tx: insert_messages(tx, [make.message(agent, "tea house")]))
    found = await store.read(lambda tx: index.find_messages(tx, Query("tea"), MessageFilter((agent.id,)), 9))
    assert len(found.hits) == 2
