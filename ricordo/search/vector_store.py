"""Storing vectors behind a search that goes on: which documents have none yet, adding theirs, and changing to another model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import bindparam, func, select, update

from ricordo.errors import Conflict
from ricordo.search.query import Batch
from ricordo.search.records import DOCUMENT_CHUNK, VECTOR_CHUNK, Documents, chunks_of, read_documents
from ricordo.search.vectors import VECTOR
from ricordo.storage.repository import Appending
from ricordo.storage.search_tables import search_documents, search_partitions, search_vectors
from ricordo.storage.store import Transaction

_PARTITION = select(search_partitions).where(search_partitions.c.owner_id == bindparam("owner_id"))
_PARTITION_HELD = _PARTITION.with_for_update()
# Vectors are stored in the order of positions, so the last chunk tells how many there are.
_LAST_STORED = (
    select(search_vectors.c.chunk, search_vectors.c.dimensions, func.length(search_vectors.c.data).label("size"))
    .where(search_vectors.c.partition == bindparam("partition"), search_vectors.c.embedding == bindparam("embedding"))
    .order_by(search_vectors.c.chunk.desc())
    .limit(1)
)
_SOME_DOCUMENTS = (
    select(search_documents.c.data)
    .where(
        search_documents.c.partition == bindparam("partition"),
        search_documents.c.chunk >= bindparam("first"),
        search_documents.c.chunk <= bindparam("last"),
    )
    .order_by(search_documents.c.chunk)
)
_APPEND = Appending(search_vectors)
_SERVE = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(
        embedding=bindparam("new_embedding"), vectors=bindparam("new_vectors"), generation=bindparam("new_generation")
    )
)


def next_batch(tx: Transaction, owner_id: str, embedding: str, most: int) -> Batch | None:
    """The next documents to embed with this model; None where all flushed ones have their vectors."""
    partition = tx.first(_PARTITION, {"owner_id": owner_id})
    if partition is None:
        return None
    start = _stored(tx, partition.seq, embedding)[0]
    if start >= partition.documents:
        return None
    records = _records(tx, partition, start, most)
    documents = tuple(int(r["number"]) if r["alive"] else None for r in records)
    return Batch(owner_id, partition.kind, embedding, start, documents, partition.documents)


def add_vectors(tx: Transaction, batch: Batch, vectors: Mapping[int, Sequence[float]], size: int) -> bool:
    """Store vectors of a batch by the numbers of its documents, zeros for those without; True where the model now serves.

    A partition's first model serves from its first vector on, a later one takes over when it has them all. Raises Conflict where
    someone else stored them meanwhile, or where the model's vectors have changed their size.
    """
    partition = tx.first(_PARTITION_HELD, {"owner_id": batch.owner_id})
    stored, dimensions = _stored(tx, partition.seq, batch.embedding) if partition else (-1, 0)
    if partition is None or stored != batch.start or (stored and dimensions != size):
        raise Conflict("These vectors do not continue what is stored. Go on from there, or drop the vectors first.")
    # Read again: what was deleted since must not leave a vector.
    records = _records(tx, partition, batch.start, len(batch.documents))
    rows = np.zeros((len(records), size), dtype=VECTOR)
    for place, record in enumerate(records):
        if record["alive"] and (vector := vectors.get(int(record["number"]))) is not None:
            rows[place] = vector
    values = {"partition": partition.seq, "embedding": batch.embedding, "dimensions": size}
    tx.run(_APPEND, [{**values, **chunk} for chunk in chunks_of(rows, batch.start, VECTOR_CHUNK)])
    count = stored + len(rows)
    serves = partition.embedding in (None, batch.embedding) or count >= partition.documents
    if serves:
        serve(tx, partition, batch.embedding, count)
    return serves


def serve(tx: Transaction, partition: Any, embedding: str | None, count: int) -> None:
    """Let searches of the partition, whose row was read for update, use so many vectors of this model."""
    generation = partition.generation + (embedding != partition.embedding and partition.embedding is not None)
    values = {"new_embedding": embedding, "new_vectors": count, "new_generation": generation}
    tx.run(_SERVE, {"partition": partition.seq, **values})


def _records(tx: Transaction, partition: Any, start: int, most: int) -> Documents:
    first, last = start // DOCUMENT_CHUNK, (min(start + most, partition.documents) - 1) // DOCUMENT_CHUNK
    rows = tx.all(_SOME_DOCUMENTS, {"partition": partition.seq, "first": first, "last": last})
    return read_documents(b"".join(row.data for row in rows))[start - first * DOCUMENT_CHUNK :][:most]


def _stored(tx: Transaction, partition: int, embedding: str) -> tuple[int, int]:
    """How many vectors of the model there are, and their dimensions."""
    row = tx.first(_LAST_STORED, {"partition": partition, "embedding": embedding})
    if row is None:
        return 0, 0
    return row.chunk * VECTOR_CHUNK + row.size // (VECTOR.itemsize * row.dimensions), row.dimensions
