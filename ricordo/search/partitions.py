"""Partitions of the index: their rows and owners, which of them need work, and the purge of a whole one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    String,
    Table,
    and_,
    bindparam,
    cast,
    delete,
    null,
    select,
    union_all,
)

from ricordo.domain.job import Job
from ricordo.search import write_buffer
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema import core_tables as tables

EMBED = "search.embed"
SWEEP = "search.sweep"
# What grows to replace an index, or the vectors of a model, has this behind its name.
NEW = "#new"
# A row of the index is a blob of some kilobytes, so a portion of them is smaller than one of messages.
PORTION = 200

_IDS = each(bindparam("ids", type_=tables.messages.c.parts.type))
_OWNER = union_all(
    select(
        tables.archives.c.organization_id,
        cast(tables.archives.c.embedding, String).label("embedding"),
        cast(tables.archives.c.vector_db, String).label("vector_db"),
    ).where(tables.archives.c.id == bindparam("owner_id")),
    select(tables.agents.c.organization_id, tables.agents.c.embedding, null()).where(
        tables.agents.c.id == bindparam("owner_id")
    ),
)
_PARTITION = select(tables.search_partitions).where(
    tables.search_partitions.c.owner_id == bindparam("owner_id")
)
_PARTITION_LOCKED = _PARTITION.with_for_update()
_MODELS = (
    select(tables.search_vectors.c.embedding)
    .join(
        tables.search_partitions,
        tables.search_partitions.c.seq == tables.search_vectors.c.partition,
    )
    .where(tables.search_partitions.c.owner_id == bindparam("owner_id"))
    .distinct()
)
_OWNER_IDS = union_all(
    select(tables.search_partitions.c.owner_id), select(tables.search_buffer.c.owner_id)
).subquery()
_SOME_OWNER_IDS = (
    select(_OWNER_IDS.c.owner_id)
    .where(_OWNER_IDS.c.owner_id > bindparam("after"))
    .distinct()
    .order_by(_OWNER_IDS.c.owner_id)
    .limit(bindparam("most"))
)
_PARTITIONS = select(tables.search_partitions).where(
    tables.search_partitions.c.owner_id.op("IN")(_IDS)
)
_BUFFERED = (
    select(tables.search_buffer.c.owner_id)
    .where(tables.search_buffer.c.owner_id.op("IN")(_IDS))
    .distinct()
)
_DELETE_PARTITION = delete(tables.search_partitions).where(
    tables.search_partitions.c.seq == bindparam("partition")
)


def is_row(table: Table) -> ColumnElement[bool]:
    return and_(*(column == bindparam(f"in_{column.name}") for column in table.primary_key.columns))


def _some(table: Table, column: str) -> tuple[Any, Any]:
    found = select(*(part.label(f"in_{part.name}") for part in table.primary_key.columns))
    return found.where(table.c[column] == bindparam(column)).limit(PORTION), delete(table).where(
        is_row(table)
    )


_SOME_OF_BUFFER = _some(tables.search_buffer, "owner_id")
_SOME_OF_PARTITION = [
    _some(table, "partition")
    for table in (
        tables.search_documents,
        tables.search_postings,
        tables.search_terms,
        tables.search_vectors,
    )
]


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """Documents in a row that have no vector of this model yet, from position `start`; None where one is deleted."""

    owner_id: str
    embedding: str
    start: int
    documents: tuple[int | None, ...]
    total: int


def owner_of(tx: Transaction, owner_id: str) -> Any:
    """Whose documents a partition holds: organization_id, the embedding model it names, and the vector_db; None where deleted."""
    return tx.first(_OWNER, {"owner_id": owner_id})


def partition_of(tx: Transaction, owner_id: str) -> Any:
    return tx.first(_PARTITION, {"owner_id": owner_id})


def lock_partition(tx: Transaction, owner_id: str) -> Any:
    return tx.first(_PARTITION_LOCKED, {"owner_id": owner_id})


def models_of(tx: Transaction, owner_id: str) -> list[str]:
    return [row.embedding for row in tx.all(_MODELS, {"owner_id": owner_id})]


def purge_portion(tx: Transaction, owner_id: str) -> bool:
    """Delete up to 200 rows of the owner's partition and buffer, at last the partition; returns whether there is more to delete."""
    if _purge(tx, _SOME_OF_BUFFER, {"owner_id": owner_id}):
        return True
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return False
    if any(
        _purge(tx, statements, {"partition": partition.seq}) for statements in _SOME_OF_PARTITION
    ):
        return True
    tx.run(_DELETE_PARTITION, {"partition": partition.seq})
    return False


def _purge(tx: Transaction, statements: tuple[Any, Any], values: dict[str, Any]) -> bool:
    find, delete_row = statements
    keys = [row._asdict() for row in tx.all(find, values)]
    tx.run(delete_row, keys)
    return bool(keys)


def owner_ids(tx: Transaction, after: str, most: int) -> list[str]:
    """The ids of those who have a partition or a buffer, in their order."""
    return [row.owner_id for row in tx.all(_SOME_OWNER_IDS, {"after": after, "most": most})]


def add_embed_job(tx: Transaction, organization_id: str, owner_id: str) -> None:
    """Add a job that embeds the partition's documents, unless one waits."""
    job = Job(
        EMBED, organization_id, {"owner_id": owner_id}, key=f"{EMBED}:{owner_id}", is_single=True
    )
    jobs.add(tx, job)


def add_missing_jobs(
    tx: Transaction, owner_ids: Sequence[str], wanted: Callable[[str | None], str | None]
) -> None:
    """Add jobs for the flushes and vectors that these partitions lack; `wanted` gives the model for what an owner names."""
    buffered = {row.owner_id for row in tx.all(_BUFFERED, {"ids": list(owner_ids)})}
    partitions: dict[str, Any] = {
        row.owner_id: row for row in tx.all(_PARTITIONS, {"ids": list(owner_ids)})
    }
    for owner_id in owner_ids:
        owner = owner_of(tx, owner_id)
        if owner is None:
            continue
        if owner_id in buffered:
            write_buffer.add_flush_job(tx, owner_id, owner.organization_id)
        partition, model = partitions.get(owner_id), wanted(owner.embedding)
        if (
            partition
            and model
            and (partition.embedding != model or partition.vectors < partition.documents)
        ):
            add_embed_job(tx, owner.organization_id, owner_id)
