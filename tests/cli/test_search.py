"""`ricordo search reindex` restores a lost index.

It works on a database that no server uses, and on PostgreSQL also while servers run.
"""

import asyncio
from pathlib import Path

from sqlalchemy import delete, select

from ricordo.search import index
from ricordo.search.index import MessageFilter, Query
from ricordo.settings import Settings
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    search_buffer,
    search_documents,
    search_partitions,
    search_postings,
)
from tests.cli.conftest import Shell
from tests.seams import make
from tests.support import postgres

WORDS_ALONE = {"RICORDO_EMBEDDING": "none"}


def fill_and_damage(settings: Settings) -> list[str]:
    """Make a database with two agents whose index is lost; return their ids."""

    async def work() -> list[str]:
        store = open_store(settings)
        ids = []
        for name in ("Nina", "Otto"):
            state = await make.stored_agent(store, make.agent(name))
            await make.stored_messages(
                store, make.message(state.agent, f"{name} likes jasmine tea.")
            )
            ids.append(state.agent.id)

        def damage(tx: Transaction) -> None:
            for table in (search_partitions, search_buffer, search_documents, search_postings):
                tx.run(delete(table))

        await store.write(damage)
        await store.close()
        return ids

    return asyncio.run(work())


def found_in(settings: Settings, ids: list[str]) -> list[int]:

    async def work() -> list[int]:
        store = open_store(settings)
        found = [
            await store.read(
                lambda tx, id=id: index.find_messages(tx, Query("jasmine"), MessageFilter((id,)), 5)
            )  # type: ignore[misc]
            for id in ids
        ]
        left = await store.read(lambda tx: tx.all(select(search_partitions.c.owner_id)))
        assert {row.owner_id for row in left} <= set(ids)
        await store.close()
        return [len(one.hits) for one in found]

    return asyncio.run(work())


def at(shell: Shell, url: str | None = None) -> Settings:
    return Settings(data_dir=shell.data, database_url=url)


def test_a_lost_index_is_rebuilt(shell: Shell) -> None:
    ids = fill_and_damage(at(shell))
    assert found_in(at(shell), ids) == [0, 0]
    one = shell.run("search", "reindex", "--partition", ids[1], **WORDS_ALONE)
    assert one.returncode == 0, one.stderr
    assert "1 documents in 1 partitions" in one.stdout
    assert found_in(at(shell), ids) == [0, 1]
    every = shell.run("search", "reindex", **WORDS_ALONE)
    assert every.returncode == 0, every.stderr
    assert "indexed: 2 of 2\n" in every.stdout
    assert "The index is rebuilt." in every.stdout
    assert found_in(at(shell), ids) == [1, 1]


def test_a_reindex_works_with_a_running_server_on_postgresql(shell: Shell) -> None:
    url = postgres.server().new_database()
    try:
        ids = fill_and_damage(at(shell, url))
        with shell.serving(RICORDO_DATABASE_URL=url, **WORDS_ALONE):
            done = shell.run("search", "reindex", RICORDO_DATABASE_URL=url, **WORDS_ALONE)
        assert done.returncode == 0, done.stderr
        assert found_in(at(shell, url), ids) == [1, 1]
    finally:
        postgres.server().drop(url)


def test_an_impossible_reindex_is_refused_before_it_begins(shell: Shell) -> None:
    def refused(*arguments: str) -> str:
        done = shell.run("search", "reindex", *arguments, **WORDS_ALONE)
        assert done.returncode == 2
        return done.stderr

    assert "nothing to index" in refused()
    assert not Path(shell.data).exists()
    fill_and_damage(at(shell))
    assert "No agent and no archive has this id: agent-nobody" in refused(
        "--partition", "agent-nobody"
    )
    assert "There is no embedding model" in refused("--vectors-only")
