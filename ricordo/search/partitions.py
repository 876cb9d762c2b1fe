"""Partitions of the index: their rows, owners, jobs and purge."""

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
# The suffix in the name of an index, or of a model's vectors, that is built to replace another.
NEW = "#new"
# The rows in one portion of a purge. A row of the index is a blob of some kilobytes.
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
    .limit(bindparam("limit"))
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
    """Return the condition that a row has the primary key in the parameters `in_<column>`.

    Args:
        table: A table of the index.
    """
    return and_(*(column == bindparam(f"in_{column.name}") for column in table.primary_key.columns))


def _some(table: Table, column: str) -> tuple[Any, Any]:
    """Return two statements: one selects the keys of some rows, the other deletes a row."""
    keys = select(*(part.label(f"in_{part.name}") for part in table.primary_key.columns))
    some_keys = keys.where(table.c[column] == bindparam(column)).limit(PORTION)
    return some_keys, delete(table).where(is_row(table))


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
    """Consecutive positions that lack a vector of this model, from position `start` on.

    `documents` has the number of each document, and the number of its part (0: uncut). None marks
    a deleted document. `total` is the number of flushed positions in the partition. A search makes
    such a batch also of new texts, with `start` 0 and their number as `total`.
    """

    owner_id: str
    embedding: str
    start: int
    documents: tuple[tuple[int, int] | None, ...]
    total: int


def owner_of(tx: Transaction, owner_id: str) -> Any:
    """Return the organization_id, embedding and vector_db of a partition's owner.

    Args:
        tx: The transaction.
        owner_id: The agent or archive. A name with the suffix `NEW` has no owner.

    Returns:
        A row, in which an agent's vector_db is None; None for a purged owner. A deleted owner that
        is not purged yet has the organization of deleted rows.
    """
    return tx.first(_OWNER, {"owner_id": owner_id})


def partition_of(tx: Transaction, owner_id: str) -> Any:
    """Return the row of the owner's partition; None before the first flush.

    Args:
        tx: The transaction.
        owner_id: The agent or archive, perhaps with the suffix `NEW`.
    """
    return tx.first(_PARTITION, {"owner_id": owner_id})


def lock_partition(tx: Transaction, owner_id: str) -> Any:
    """Lock the owner's partition until the transaction ends; return its row or None.

    Args:
        tx: The transaction.
        owner_id: The agent or archive, perhaps with the suffix `NEW`.
    """
    return tx.first(_PARTITION_LOCKED, {"owner_id": owner_id})


def models_of(tx: Transaction, owner_id: str) -> list[str]:
    """Return the handles of the models of which the owner's partition has vectors.

    A handle has the suffix `NEW` if its vectors will replace those of the same model once they are
    complete.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
    """
    return [row.embedding for row in tx.all(_MODELS, {"owner_id": owner_id})]


def purge_portion(tx: Transaction, owner_id: str) -> bool:
    """Delete up to 200 rows of the owner's buffer or partition.

    The partition itself is deleted last.

    Args:
        tx: The transaction.
        owner_id: The agent or archive, perhaps with the suffix `NEW`.

    Returns:
        True if there may be more to delete.
    """
    if _purge(tx, _SOME_OF_BUFFER, {"owner_id": owner_id}):
        return True
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return False
    for statements in _SOME_OF_PARTITION:
        if _purge(tx, statements, {"partition": partition.seq}):
            return True
    tx.run(_DELETE_PARTITION, {"partition": partition.seq})
    return False


def _purge(tx: Transaction, statements: tuple[Any, Any], parameters: dict[str, Any]) -> bool:
    select_keys, delete_row = statements
    keys = [row._asdict() for row in tx.all(select_keys, parameters)]
    tx.run(delete_row, keys)
    return bool(keys)


def owner_ids(tx: Transaction, after: str, limit: int) -> list[str]:
    """Return the sorted ids of owners with a partition or a buffer.

    Args:
        tx: The transaction.
        after: The last id of the portion before; "" for the first portion.
        limit: The most ids.
    """
    return [row.owner_id for row in tx.all(_SOME_OWNER_IDS, {"after": after, "limit": limit})]


def add_embed_job(tx: Transaction, organization_id: str, owner_id: str) -> None:
    """Add a job that embeds the partition's documents, if none waits.

    Args:
        tx: The transaction.
        organization_id: The owner's organization.
        owner_id: The agent or archive.
    """
    job = Job(
        EMBED, organization_id, {"owner_id": owner_id}, key=f"{EMBED}:{owner_id}", is_single=True
    )
    jobs.add(tx, job)


def add_missing_jobs(
    tx: Transaction, owner_ids: Sequence[str], choose_model: Callable[[str | None], str | None]
) -> None:
    """Add jobs for missing flushes and vectors of these partitions.

    Args:
        tx: The transaction.
        owner_ids: Agents and archives; purged ones are ignored.
        choose_model: Returns the model for an owner's embedding; None: no vectors.
    """
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
        partition = partitions.get(owner_id)
        model = choose_model(owner.embedding)
        if partition is None or model is None:
            continue
        if partition.embedding != model or partition.vectors < partition.documents:
            add_embed_job(tx, owner.organization_id, owner_id)
