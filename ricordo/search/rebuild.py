"""Building the index of a partition anew behind the one that serves, from the messages and passages themselves.

The new index grows under a name of its own, and at the end takes the owner's in one transaction. What is written meanwhile waits in
the owner's buffer: flushes are held off by the job's key. Of that buffer the rows go which the new index has seen already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, func, select, tuple_, union_all, update

from ricordo.domain.job import Job
from ricordo.search import partitions, write_buffer
from ricordo.search.dropping import drop_portion
from ricordo.search.index import message_entry, passage_entry, tags_of
from ricordo.search.query import Batch
from ricordo.search.write_buffer import Entry
from ricordo.storage import jobs
from ricordo.storage.deletion import DELETED
from ricordo.storage.search_tables import search_buffer, search_partitions, search_vectors
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents, archives, messages, passages
from ricordo.storage.tables import jobs as jobs_table

REINDEX = "search.reindex"
REEMBED = "search.reembed"
AT_ONCE = 500

_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
_OWNERS = union_all(
    select(agents.c.id, agents.c.organization_id).where(agents.c.organization_id != DELETED),
    select(archives.c.id, archives.c.organization_id).where(archives.c.organization_id != DELETED),
).subquery()
_SOME_OWNERS = (
    select(_OWNERS.c.id, _OWNERS.c.organization_id)
    .where(_OWNERS.c.id > bindparam("after"))
    .order_by(_OWNERS.c.id)
    .limit(bindparam("most"))
)


def _after(table: Any) -> Any:
    return tuple_(table.c.created_at, table.c.seq) > tuple_(bindparam("created_at"), bindparam("seq"))


_OF_AGENT = (messages.c.agent_id == bindparam("owner_id")) & (messages.c.text != "")
_OF_ARCHIVE = passages.c.archive_id == bindparam("owner_id")
# In the order of an index that both tables have.
_PORTIONS = {
    "messages": select(messages)
    .where(_OF_AGENT, _after(messages))
    .order_by(messages.c.created_at, messages.c.seq)
    .limit(bindparam("most")),
    "passages": select(passages)
    .where(_OF_ARCHIVE, _after(passages))
    .order_by(passages.c.created_at, passages.c.seq)
    .limit(bindparam("most")),
}
_COUNTS = {
    "messages": select(func.count().label("documents")).select_from(messages).where(_OF_AGENT),
    "passages": select(func.count().label("documents")).select_from(passages).where(_OF_ARCHIVE),
}
_WAITING = select(search_buffer.c.seq).where(
    search_buffer.c.owner_id == bindparam("owner_id"), search_buffer.c.document.op("IN")(_IDS)
)
_WAITING_JOB = select(jobs_table).where(
    jobs_table.c.kind == bindparam("kind"),
    jobs_table.c.key == bindparam("key"),
    jobs_table.c.status == "waiting",
    jobs_table.c.is_single,
)
_JOBS = select(jobs_table).where(jobs_table.c.id.op("IN")(_IDS))
_DROP_SEEN = delete(search_buffer).where(search_buffer.c.seq.op("IN")(_IDS))
# Whoever deletes an owner changes its row first, so holding that keeps it from being deleted.
_OWNER_HELD = {
    kind: select(table.c.id).where(table.c.id == bindparam("owner_id")).with_for_update(key_share=True)
    for kind, table in (("messages", agents), ("passages", archives))
}
_RENAME = (
    update(search_partitions)
    .where(search_partitions.c.owner_id == bindparam("from_name"))
    .values(owner_id=bindparam("to_name"), generation=bindparam("new_generation"))
)
_RENAME_MODEL = (
    update(search_vectors)
    .where(
        search_vectors.c.partition == bindparam("in_partition"), search_vectors.c.embedding == bindparam("from_name")
    )
    .values(embedding=bindparam("to_name"))
)


@dataclass(frozen=True, slots=True)
class Portion:
    """Documents to index, the rows of the owner's buffer that they make needless, and where the next portion begins."""

    entries: Sequence[Entry]
    seen: Sequence[int]
    after: tuple[int, int]


def new_name(name: str) -> str:
    """What the new index of an owner, or the new vectors of a model, are called until they serve."""
    return f"{name}#new"


def old_name(owner_id: str) -> str:
    """What an index is called that serves no more and is being deleted."""
    return f"{owner_id}#old"


def some_owners(tx: Transaction, after: str, most: int = AT_ONCE) -> list[tuple[str, str]]:
    """Agents and archives, each with its organisation, in the order of their ids."""
    return [(row.id, row.organization_id) for row in tx.all(_SOME_OWNERS, {"after": after, "most": most})]


def ask(tx: Transaction, owner_id: str, organization_id: str, *, vectors_only: bool = False) -> Job:
    """Ask for a new index of this partition, or new vectors; the job that does it. It excludes flushes of the partition."""
    kind = REEMBED if vectors_only else REINDEX
    added = jobs.add(tx, Job(kind, organization_id, {"owner_id": owner_id}, key=owner_id, is_single=True))
    return added or jobs.job_of(tx.first(_WAITING_JOB, {"kind": kind, "key": owner_id}))


def read_jobs(tx: Transaction, ids: Sequence[str]) -> list[Job]:
    """These jobs, as far as they are still there."""
    return [jobs.job_of(row) for row in tx.all(_JOBS, {"ids": list(ids)})]


def count_documents(tx: Transaction, owner_id: str) -> int:
    """How many documents the partition has to hold."""
    rows = tx.all(_COUNTS[partitions.kind_of(owner_id)], {"owner_id": owner_id})
    return int(rows[0].documents)


def threads_of(tx: Transaction, owner_id: str) -> Mapping[int, int]:
    """The threads of passages, as the present index says them; messages say theirs themselves."""
    if partitions.kind_of(owner_id) == "messages":
        return {}
    from ricordo.search import threads

    return threads.threads_of(tx, owner_id)


def read_portion(tx: Transaction, owner_id: str, after: tuple[int, int], threads: Mapping[int, int]) -> Portion | None:
    """The next documents of the partition; None after the last. To be read in one snapshot."""
    kind = partitions.kind_of(owner_id)
    created_at, seq = after
    rows = tx.all(_PORTIONS[kind], {"owner_id": owner_id, "created_at": created_at, "seq": seq, "most": AT_ONCE})
    if not rows:
        return None
    waiting = tx.all(_WAITING, {"owner_id": owner_id, "ids": [row.seq for row in rows]})
    entries = _messages(rows) if kind == "messages" else _passages(tx, rows, threads)
    return Portion(entries, [row.seq for row in waiting], (rows[-1].created_at, rows[-1].seq))


def add_portion(tx: Transaction, owner_id: str, portion: Portion) -> None:
    """Put the documents into the new index."""
    from ricordo.search.flush import flush

    kind, name = partitions.kind_of(owner_id), new_name(owner_id)
    write_buffer.put(tx, kind, name, portion.entries)
    while flush(tx, kind, name):
        pass


def drop_remains(tx: Transaction, owner_id: str) -> bool:
    """Delete some of an index that was not finished, or that serves no more; tells whether there is more to delete."""
    return drop_portion(tx, new_name(owner_id)) or drop_portion(tx, old_name(owner_id))


def take_over(tx: Transaction, owner_id: str, seen: Sequence[int]) -> None:
    """Let the new index serve, unless its owner is deleted; `seen` are the rows of the buffer that it holds already."""
    tx.lock(_OWNER_HELD[partitions.kind_of(owner_id)], {"owner_id": owner_id})
    home = partitions.home_of(tx, owner_id)
    if home is None or home.organization_id == DELETED:
        return
    old = partitions.lock_partition(tx, owner_id)
    generation = old.generation + 1 if old else 1
    tx.run(_DROP_SEEN, {"ids": list(seen)})
    for name, becomes in ((owner_id, old_name(owner_id)), (new_name(owner_id), owner_id)):
        tx.run(_RENAME, {"from_name": name, "to_name": becomes, "new_generation": generation})


def serving_model(tx: Transaction, owner_id: str) -> str | None:
    """The model whose vectors the partition is searched by."""
    partition = partitions.partition_of(tx, owner_id)
    return partition.embedding if partition else None


def add_new_vectors(
    tx: Transaction, batch: Batch, vectors: Mapping[int, Sequence[float]], size: int, handle: str
) -> bool:
    """Store vectors of a batch under the model's new name; True where they were the last, and took the place of the old ones.

    Raises Conflict as `indexed.add_vectors` does.
    """
    if not partitions.add_vectors(tx, batch, vectors, size):
        return False
    from ricordo.search import vector_store

    partition = partitions.lock_partition(tx, batch.owner_id)
    partitions.delete_vectors(tx, partition, handle)
    tx.run(_RENAME_MODEL, {"in_partition": partition.seq, "from_name": batch.embedding, "to_name": handle})
    vector_store.serve(tx, partition, handle, partition.vectors)
    return True


def _messages(rows: Sequence[Any]) -> list[Entry]:
    return [message_entry(row._asdict()) for row in rows]


def _passages(tx: Transaction, rows: Sequence[Any], threads: Mapping[int, int]) -> list[Entry]:
    tags = tags_of(tx, [row.id for row in rows])
    return [
        passage_entry(
            row.id, row.text, row.created_at, row.user_id, tuple(tags.get(row.id, ())), threads.get(row.seq, row.id)
        )
        for row in rows
    ]
