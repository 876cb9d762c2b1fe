"""Deletion from the index in small writes.

Nothing of a deleted text is left, and nothing else is lost, even after a kill.
"""

from collections.abc import Sequence

import pytest
from sqlalchemy import text

from ricordo.search import index
from ricordo.search.flush import next_deletion
from ricordo.search.index import MessageFilter, Query
from ricordo.search.partitions import partition_of
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stores import flush

AGENT = make.agent(id="agent-1")


async def filled(store: SqliteStore, count: int = 40) -> list[str]:
    """Make an agent with `count` flushed messages, each with a unique word.

    Returns their ids.
    """
    await make.stored_agent(store, AGENT)
    new = [
        make.message(AGENT, f"Tea and rain, only{number} indeed", id=f"message-{number}")
        for number in range(count)
    ]
    await make.stored_messages(store, *new)
    await store.write(flush_all)
    return [one.id for one in new]


def flush_all(tx: Transaction) -> None:
    while flush(tx, AGENT.id):
        pass


async def forget(store: SqliteStore, ids: Sequence[str]) -> None:
    """Delete messages, so that they wait for removal from the index."""

    def work(tx: Transaction) -> None:
        index.unindex_messages(tx, ids)
        for id in ids:
            tx.run(text("DELETE FROM messages WHERE id = :id"), {"id": id})

    await store.write(work)


async def run_deletions(store: SqliteStore, most_writes: int = 10_000) -> int:
    """Unindex the deleted messages with at most this number of writes; return the count."""
    writes = 0
    while deletion := await store.read(lambda tx: next_deletion(tx, AGENT.id, 4096)):
        for step in deletion.steps():
            if writes == most_writes:
                return writes
            assert await store.write(lambda tx, d=deletion, s=step: d.run(tx, s))  # type: ignore[misc]
            writes += 1
    return writes


async def hits(store: SqliteStore, words: str) -> set[str]:
    """Return the messages that these words find."""

    def work(tx: Transaction) -> set[str]:
        found = index.find_messages(tx, Query(words), MessageFilter((AGENT.id,)), 100)
        numbers = {hit.document for hit in found.hits}
        return {
            row.id for row in tx.all(text("SELECT id, seq FROM messages")) if row.seq in numbers
        }

    return await store.read(work)


async def terms(store: SqliteStore) -> set[str]:
    rows = await store.read(
        lambda tx: tx.all(
            text("SELECT term FROM search_postings UNION SELECT term FROM search_terms")
        )
    )
    return {row.term for row in rows}


@pytest.mark.parametrize("kills_after", [0, 1, 2, 3, 10_000])
async def test_a_deleted_text_leaves_nothing_even_after_a_kill_and_the_rest_is_found(
    store: SqliteStore, kills_after: int
) -> None:
    ids = await filled(store)
    await forget(store, ids[:25])
    await run_deletions(store, kills_after)
    assert await hits(store, "tea") == set(ids[25:])
    await run_deletions(store)
    assert {term for term in await terms(store) if term.startswith("only")} == {
        f"only{n}" for n in range(25, 40)
    }
    assert await hits(store, "rain") == set(ids[25:])
    assert await hits(store, "only7") == set()
    partition = await store.read(lambda tx: partition_of(tx, AGENT.id))
    assert (partition.documents, partition.deleted) == (40, 25)
    assert await store.read(lambda tx: tx.all(text("SELECT * FROM search_buffer"))) == []


async def test_a_document_deleted_in_the_buffer_is_left_to_a_flush(
    store: SqliteStore,
) -> None:
    ids = await filled(store)
    await make.stored_messages(store, make.message(AGENT, "Tea in the buffer", id="message-new"))
    await forget(store, ["message-new", ids[0]])
    deletion = await store.read(lambda tx: next_deletion(tx, AGENT.id, 4096))
    assert len(deletion.rows) == 1
    await run_deletions(store)
    await store.write(flush_all)
    assert await hits(store, "tea") == set(ids[1:])


async def test_a_rewritten_text_is_found_only_by_its_new_words(store: SqliteStore) -> None:
    ids = await filled(store)

    def rewrite(tx: Transaction) -> None:
        index.unindex_messages(tx, ids[:1])
        tx.run(text("UPDATE messages SET text = 'Coffee now' WHERE id = 'message-0'"))
        rows = tx.all(text("SELECT * FROM messages WHERE id = 'message-0'"))
        index.index_messages(tx, [row._asdict() for row in rows])

    await store.write(rewrite)
    await run_deletions(store)
    await store.write(flush_all)
    assert await hits(store, "only0") == set()
    assert "message-0" in await hits(store, "coffee")  # other messages are found too


async def test_a_deletion_writes_nothing_if_the_partition_was_rebuilt(
    store: SqliteStore,
) -> None:
    ids = await filled(store)
    await forget(store, ids[:3])
    deletion = await store.read(lambda tx: next_deletion(tx, AGENT.id, 4096))
    assert deletion is not None
    await store.write(lambda tx: tx.run(text("UPDATE search_partitions SET seq = seq + 1")))
    assert not await store.write(lambda tx: deletion.run(tx, next(deletion.steps())))
    await store.write(lambda tx: tx.run(text("UPDATE search_partitions SET seq = seq - 1")))
    await run_deletions(store)
    assert await hits(store, "tea") == set(ids[3:])
