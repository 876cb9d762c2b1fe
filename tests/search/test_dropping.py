"""Forgetting a whole partition of the index and nothing of the others."""

from sqlalchemy import text

from ricordo.search.dropping import PORTION, drop_portion, models_of
from ricordo.search.flush import flush
from ricordo.search.index import insert_passages
from ricordo.search.vector_store import add_vectors, next_batch
from ricordo.storage.sqlite import SqliteStore
from tests.support import make

TABLES = ("search_partitions", "search_buffer", "search_documents", "search_postings", "search_terms", "search_vectors")


async def rows(store: SqliteStore) -> dict[str, int]:
    """How many rows each table of the index has."""
    counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in TABLES)  # noqa: S608
    return {row.name: row.n for row in await store.read(lambda tx: tx.all(text(counts)))}


async def stored_partition(store: SqliteStore) -> str:
    """The owner of a partition that is partly flushed, with vectors and with a buffer."""
    archive = await make.stored_archive(store, (await make.stored_agent(store)).agent)
    new = [make.passage(archive, f"tea number {number}") for number in range(PORTION + 50)]
    await store.write(lambda tx: insert_passages(tx, archive, new))
    await store.write(lambda tx: flush(tx, "passages", archive.id, 30))
    batch = await store.read(lambda tx: next_batch(tx, archive.id, "scripted/embedder", 10))
    assert batch is not None
    vectors = {number: [1.0, 0.0] for number in batch.documents if number is not None}
    await store.write(lambda tx: add_vectors(tx, batch, vectors, 2))
    return archive.id


async def test_a_partition_goes_whole_and_in_portions_and_the_others_stay(store: SqliteStore) -> None:
    await stored_partition(store)
    before = await rows(store)
    assert 0 not in before.values()
    owner_id = await stored_partition(store)
    assert await store.read(lambda tx: models_of(tx, owner_id)) == ["scripted/embedder"]

    steps = 1
    while await store.write(lambda tx: drop_portion(tx, owner_id)):
        steps += 1
        after = await rows(store)
        assert all(before[name] <= after[name] for name in TABLES)

    assert steps > len(TABLES)
    assert await rows(store) == before
    assert await store.read(lambda tx: models_of(tx, owner_id)) == []


async def test_a_partition_that_never_was_is_dropped_at_once(store: SqliteStore) -> None:
    assert not await store.write(lambda tx: drop_portion(tx, "archive-unknown"))
