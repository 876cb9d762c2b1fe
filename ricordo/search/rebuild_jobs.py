"""Building a partition's index anew while it is searched: words and vectors, or vectors alone.

Both are jobs: they may be killed anywhere and run again.
"""

from ricordo.domain.job import Job, Report
from ricordo.errors import Conflict
from ricordo.search import partitions, rebuild
from ricordo.search.index_jobs import Indexing
from ricordo.search.partitions import Home
from ricordo.search.rebuild import new_name

# Before every document: the earliest time and number there are.
_START = (-(2**63), 0)


async def reindex(indexing: Indexing, job: Job, report: Report) -> None:
    """Index all documents of the partition anew, with their vectors, and let that take the place of what serves."""
    store, owner_id = indexing.store, str(job.payload["owner_id"])
    await _drop_remains(indexing, owner_id)
    home = await store.read(lambda tx: partitions.home_of(tx, owner_id))
    if home is None:
        return
    handle = indexing.wanted_model(home.embedding)
    documents = await store.read(lambda tx: rebuild.count_documents(tx, owner_id))
    total = documents * (2 if handle else 1)
    seen = await _build(indexing, owner_id, total, report)
    if handle:
        await _embed(indexing, home, owner_id, handle, lambda done, _: report(min(documents + done, total), total))
    await store.write(lambda tx: rebuild.take_over(tx, owner_id, seen))
    await _drop_remains(indexing, owner_id)
    report(total, total)


async def reembed(indexing: Indexing, job: Job, report: Report) -> None:
    """Make all vectors of the partition anew; the old ones serve until the last is made."""
    store, owner_id = indexing.store, str(job.payload["owner_id"])
    home = await store.read(lambda tx: partitions.home_of(tx, owner_id))
    handle = indexing.wanted_model(home.embedding) if home else None
    if home is None or handle is None:
        return
    await store.write(lambda tx: partitions.drop_vectors_of(tx, owner_id, new_name(handle)))
    if await store.read(lambda tx: rebuild.serving_model(tx, owner_id)) is None:
        # None serve, so there is nothing to stand behind.
        await store.write(lambda tx: partitions.drop_vectors_of(tx, owner_id, handle))
        await indexing.embed(job, report)
        return
    index, is_done = indexing.index_of(home), False
    while not is_done and (batch := await indexing.next_batch(owner_id, new_name(handle))):
        vectors, size = await indexing.vectors_for(batch, owner_id, handle, index)
        try:
            is_done = await store.write(
                lambda tx, batch=batch, vectors=vectors, size=size: rebuild.add_new_vectors(  # type: ignore[misc]
                    tx, batch, vectors, size, handle
                )
            )
        except Conflict:
            continue  # somebody tidied these vectors away, as some that no model of ours has: they are begun anew
        report(min(batch.start + len(batch.documents), batch.total), batch.total)


async def _build(indexing: Indexing, owner_id: str, total: int, report: Report) -> list[int]:
    """Fill the new index with words; returns the rows of the owner's buffer that it holds already."""
    store, done, after = indexing.store, 0, _START
    seen: list[int] = []
    threads = await store.read(lambda tx: rebuild.threads_of(tx, owner_id))
    while portion := await store.read(lambda tx, after=after: rebuild.read_portion(tx, owner_id, after, threads)):  # type: ignore[misc]
        await store.write(lambda tx, portion=portion: rebuild.add_portion(tx, owner_id, portion))  # type: ignore[misc]
        seen += portion.seen
        done += len(portion.entries)
        after = portion.after
        report(min(done, total), total)
    return seen


async def _embed(indexing: Indexing, home: Home, owner_id: str, handle: str, report: Report) -> None:
    """Give vectors to all documents of the new index."""
    index = indexing.index_of(home)
    while batch := await indexing.next_batch(new_name(owner_id), handle):
        vectors, size = await indexing.vectors_for(batch, owner_id, handle, index)
        await indexing.store.write(
            lambda tx, batch=batch, vectors=vectors, size=size: partitions.add_vectors(tx, batch, vectors, size)  # type: ignore[misc]
        )
        report(batch.start + len(batch.documents), batch.total)


async def _drop_remains(indexing: Indexing, owner_id: str) -> None:
    while await indexing.store.write(lambda tx: rebuild.drop_remains(tx, owner_id)):
        pass
