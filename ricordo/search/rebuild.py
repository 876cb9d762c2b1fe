"""Rebuild a partition's index, or its vectors alone, while it is searched.

The new index is built from the messages and passages, under a temporary name. At the end it gets
the owner's name, in one transaction. Documents that are written meanwhile wait in the owner's write
buffer. A rebuild and a flush have the same job key, so they never run at the same time. Rows of the
buffer that the new index already contains are deleted. Both rebuilds are jobs, which may be killed
at any point and run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, select, tuple_, union_all, update

from ricordo.domain.job import Job, Report
from ricordo.search import partitions, write_buffer
from ricordo.search.index import message_entry, passage_entry, tags_of
from ricordo.search.partitions import NEW
from ricordo.search.write_buffer import IndexEntry
from ricordo.storage import jobs
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import (
    agents,
    archives,
    messages,
    passages,
    search_buffer,
    search_documents,
    search_partitions,
)
from ricordo.storage.schema.core_tables import jobs as jobs_table

if TYPE_CHECKING:
    from ricordo.search.indexer import Indexer

REINDEX = "search.reindex"
REEMBED = "search.reembed"
AT_ONCE = 500

_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
_OWNERS = union_all(
    *(
        select(table.c.id, table.c.organization_id).where(table.c.organization_id != DELETED)
        for table in (agents, archives)
    )
).subquery()
_SOME_OWNERS = (
    select(_OWNERS.c.id, _OWNERS.c.organization_id)
    .where(_OWNERS.c.id > bindparam("after"))
    .order_by(_OWNERS.c.id)
    .limit(bindparam("limit"))
)


_DOCUMENTS = {
    "messages": (
        messages,
        (messages.c.agent_id == bindparam("owner_id")) & (messages.c.text != ""),
    ),
    "passages": (passages, passages.c.archive_id == bindparam("owner_id")),
}
# The database has an index in this order on both tables.
_PORTIONS = {
    kind: select(table)
    .where(
        condition,
        tuple_(table.c.created_at, table.c.seq) > tuple_(bindparam("created_at"), bindparam("seq")),
    )
    .order_by(table.c.created_at, table.c.seq)
    .limit(bindparam("limit"))
    for kind, (table, condition) in _DOCUMENTS.items()
}
_COUNTS = {
    kind: select(func.count().label("documents")).select_from(table).where(condition)
    for kind, (table, condition) in _DOCUMENTS.items()
}
_WAITING = select(search_buffer.c.seq).where(
    search_buffer.c.owner_id == bindparam("owner_id"), search_buffer.c.document.op("IN")(_IDS)
)
_WAITING_JOB = jobs.ROWS.select.where(
    jobs_table.c.kind == bindparam("kind"),
    jobs_table.c.key == bindparam("key"),
    jobs_table.c.status == "waiting",
    jobs_table.c.is_single,
)
# A deletion changes the owner's row first, so locking that row prevents it.
_OWNER_LOCKED = {
    kind: select(table.c.id)
    .where(table.c.id == bindparam("owner_id"))
    .with_for_update(key_share=True)
    for kind, table in (("messages", agents), ("passages", archives))
}
_RENAME = (
    update(search_partitions)
    .where(search_partitions.c.owner_id == bindparam("from_name"))
    .values(owner_id=bindparam("to_name"), generation=bindparam("new_generation"))
)
_RECORDS = (
    select(search_documents.c.data)
    .join(search_partitions, search_partitions.c.seq == search_documents.c.partition)
    .where(search_partitions.c.owner_id == bindparam("owner_id"))
)
_OLD = "#old"
# The key before every document: the lowest possible time and number.
_START = (-(2**63), 0)


@dataclass(frozen=True, slots=True)
class RebuildPortion:
    """Documents to index, and the key after which the next portion begins.

    `buffer_seqs` are rows of the owner's buffer for the same documents.
    """

    entries: Sequence[IndexEntry]
    buffer_seqs: Sequence[int]
    after: tuple[int, int]


def some_owners(tx: Transaction, after: str, limit: int = AT_ONCE) -> list[tuple[str, str]]:
    """Return agents and archives with their organizations, ordered by id.

    Args:
        tx: The transaction.
        after: The last id of the portion before; "" for the first portion.
        limit: The most owners.
    """
    rows = tx.all(_SOME_OWNERS, {"after": after, "limit": limit})
    return [(row.id, row.organization_id) for row in rows]


def add_job(
    tx: Transaction, owner_id: str, organization_id: str, *, vectors_only: bool = False
) -> Job:
    """Add a job that rebuilds a partition, and return it or one that already waits.

    A job that was postponed to another day becomes due.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        organization_id: The owner's organization, which gets the job.
        vectors_only: Only the texts are embedded again; their words stay as they are.
    """
    kind = REEMBED if vectors_only else REINDEX
    added = jobs.add(
        tx, Job(kind, organization_id, {"owner_id": owner_id}, key=owner_id, is_single=True)
    )
    if not added:
        jobs.make_due(tx, kind, owner_id)
    return added or jobs.ROWS.all(tx, _WAITING_JOB, {"kind": kind, "key": owner_id})[0]


def postponed_owners(tx: Transaction, done: Sequence[Job]) -> list[str]:
    """Return the owners of those jobs that were postponed to another day, so a job waits again.

    Args:
        tx: The transaction.
        done: Jobs of `add_job` that have ended.
    """
    return [
        job.payload["owner_id"]
        for job in done
        if jobs.ROWS.all(tx, _WAITING_JOB, {"kind": job.kind, "key": job.key})
    ]


def read_jobs(tx: Transaction, ids: Sequence[str]) -> list[Job]:
    """Return the jobs with these ids; deleted ones are missing.

    Args:
        tx: The transaction.
        ids: The jobs.
    """
    return jobs.ROWS.by_ids(tx, ids)


def count_documents(tx: Transaction, owner_id: str) -> int:
    """Return the number of messages or passages that the owner's index should have.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
    """
    rows = tx.all(_COUNTS[write_buffer.kind_of(owner_id)], {"owner_id": owner_id})
    return int(rows[0].documents)


def conversations_of(tx: Transaction, owner_id: str) -> dict[int, int]:
    """Return the conversations of passages by document.

    Only the old index has this information. Its damaged chunks are left out.

    Args:
        tx: The transaction.
        owner_id: An archive; for an agent the result is empty.

    Returns:
        Fingerprints of conversations by the passage's number; 0 for no conversation.
    """
    # Imports numpy, which a server loads at its first search or flush.
    from ricordo.search.reader import DOCUMENT, read_documents

    conversations: dict[int, int] = {}
    if write_buffer.kind_of(owner_id) == "messages":
        return conversations
    for row in tx.all(_RECORDS, {"owner_id": owner_id}):
        if len(row.data) % DOCUMENT.itemsize == 0:
            records: Any = read_documents(row.data)
            conversations |= zip(
                records["number"].tolist(), records["conversation"].tolist(), strict=True
            )
    waiting = write_buffer.oldest(tx, owner_id, write_buffer.count(tx, owner_id))
    return conversations | {row.document: row.conversation for row in waiting if not row.is_deleted}


def read_portion(
    tx: Transaction, owner_id: str, after: tuple[int, int], conversations: Mapping[int, int]
) -> RebuildPortion | None:
    """Return the next documents of the partition; None after the last.

    The documents and the buffer must be read in one snapshot of the database.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        after: The time (microseconds UTC) and the number of the last document of the portion
            before.
        conversations: The conversations of passages by document, as `conversations_of` returns
            them.
    """
    kind = write_buffer.kind_of(owner_id)
    created_at, seq = after
    rows = tx.all(
        _PORTIONS[kind],
        {"owner_id": owner_id, "created_at": created_at, "seq": seq, "limit": AT_ONCE},
    )
    if not rows:
        return None
    waiting = tx.all(_WAITING, {"owner_id": owner_id, "ids": [row.seq for row in rows]})
    if kind == "messages":
        entries = [message_entry(row._asdict()) for row in rows]
    else:
        tags = tags_of(tx, [row.id for row in rows])
        entries = [
            passage_entry(row, tags.get(row.id, ()), conversations.get(row.seq, row.id))
            for row in rows
        ]
    return RebuildPortion(
        entries, [row.seq for row in waiting], (rows[-1].created_at, rows[-1].seq)
    )


def add_portion(tx: Transaction, owner_id: str, portion: RebuildPortion) -> None:
    """Add the documents to the new index.

    Args:
        tx: The transaction.
        owner_id: The agent or archive, not the name of the new index.
        portion: The documents, as `read_portion` returned them.
    """
    # Imports numpy, which a server loads at its first search or flush.
    from ricordo.search.flush import pack_rows, write_rows

    write_buffer.put(tx, owner_id + NEW, portion.entries)
    while packed := pack_rows(tx, owner_id + NEW):
        write_rows(tx, packed)


def drop_remains(tx: Transaction, owner_id: str) -> bool:
    """Delete a portion of the unfinished and of the old index of an owner.

    Args:
        tx: The transaction.
        owner_id: The agent or archive, whose index in use stays.

    Returns:
        True if there may be more to delete. Then call it again, in another transaction.
    """
    return partitions.purge_portion(tx, owner_id + NEW) or partitions.purge_portion(
        tx, owner_id + _OLD
    )


def take_over(tx: Transaction, owner_id: str, buffer_seqs: Sequence[int]) -> None:
    """Replace the index by the new one, except if the owner was deleted.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        buffer_seqs: Rows of the write buffer that the new index already contains. They are deleted.
    """
    tx.lock(_OWNER_LOCKED[write_buffer.kind_of(owner_id)], {"owner_id": owner_id})
    owner = partitions.owner_of(tx, owner_id)
    if owner is None or owner.organization_id == DELETED:
        return
    old = partitions.lock_partition(tx, owner_id)
    generation = old.generation + 1 if old else 1
    write_buffer.delete_rows(tx, buffer_seqs)
    for from_name, to_name in ((owner_id, owner_id + _OLD), (owner_id + NEW, owner_id)):
        tx.run(_RENAME, {"from_name": from_name, "to_name": to_name, "new_generation": generation})


async def reindex(indexer: "Indexer", job: Job, report: Report) -> None:
    """Rebuild the partition's index with its vectors, then replace the old one.

    Args:
        indexer: The indexer with the job's fenced store.
        job: A job of the kind `REINDEX`. Its payload names the partition's `owner_id`.
        report: Gets the number of finished steps, and the number of all. If a model is configured,
            each document is two steps: it is indexed, then embedded. While it embeds, each part of
            a long text counts as a step.
    """
    store = indexer.store
    owner_id = str(job.payload["owner_id"])
    await _drop_remains(indexer, owner_id)
    owner = await store.read(lambda tx: partitions.owner_of(tx, owner_id))
    if owner is None:
        return
    handle = indexer.choose_model(owner.embedding)
    documents = await store.read(lambda tx: count_documents(tx, owner_id))
    total = documents * (2 if handle else 1)
    buffer_seqs: list[int] = []
    indexed = 0
    after = _START
    conversations = await store.read(lambda tx: conversations_of(tx, owner_id))
    while portion := await store.read(
        lambda tx, after=after: read_portion(tx, owner_id, after, conversations)  # type: ignore[misc]
    ):
        await store.write(lambda tx, portion=portion: add_portion(tx, owner_id, portion))  # type: ignore[misc]
        buffer_seqs += portion.buffer_seqs
        indexed += len(portion.entries)
        after = portion.after
        report(min(indexed, total), total)
    if handle:
        await indexer.make_vectors(owner_id + NEW, handle, owner, report, documents)
    await store.write(lambda tx: take_over(tx, owner_id, buffer_seqs))
    await _drop_remains(indexer, owner_id)
    report(total, total)


async def reembed(indexer: "Indexer", job: Job, report: Report) -> None:
    """Embed all texts of the partition again.

    Searches use the old vectors until the last new vector is made.

    Args:
        indexer: The indexer with the job's fenced store.
        job: A job of the kind `REEMBED`. Its payload names the partition's `owner_id`.
        report: Gets the number of embedded positions, and the number of all. Each part of a text
            has a position.
    """
    # Imports numpy, which a server loads at its first search or flush.
    from ricordo.search.vectors import drop_vectors

    store = indexer.store
    owner_id = str(job.payload["owner_id"])
    owner = await store.read(lambda tx: partitions.owner_of(tx, owner_id))
    if owner:
        handle = indexer.choose_model(owner.embedding)
    else:
        handle = None
    if owner is None or handle is None:
        return
    await store.write(lambda tx: drop_vectors(tx, owner_id, handle + NEW))
    partition = await store.read(lambda tx: partitions.partition_of(tx, owner_id))
    if partition is None or partition.embedding is None:
        # No vectors are in use, so there are none to replace.
        await store.write(lambda tx: drop_vectors(tx, owner_id, handle))
        await indexer.embed(job, report)
        return
    await indexer.make_vectors(owner_id, handle + NEW, owner, report)


async def _drop_remains(indexer: "Indexer", owner_id: str) -> None:
    while await indexer.store.write(lambda tx: drop_remains(tx, owner_id)):
        pass
