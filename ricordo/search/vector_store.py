"""Storage of vectors: which documents have none yet, their texts, adding vectors, and the change to another model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import bindparam, delete, func, select, update

from ricordo.errors import Conflict
from ricordo.search.partitions import lock_partition, partition_of
from ricordo.search.query import EmbeddingBatch
from ricordo.search.records import DOCUMENT_CHUNK, VECTOR_CHUNK, Documents, chunks_of, read_documents
from ricordo.search.vector_index import VectorRecord
from ricordo.search.vectors import VECTOR
from ricordo.storage.engine.repository import Appending
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import messages, passages
from ricordo.storage.schema.search_tables import search_documents, search_partitions, search_vectors

_IDS = each(bindparam("ids", type_=messages.c.parts.type))
_DOCUMENTS = {
    "messages": select(*(column for column in messages.c if column.name != "parts")).where(
        messages.c.seq.op("IN")(_IDS)
    ),
    "passages": select(passages).where(passages.c.seq.op("IN")(_IDS)),
}
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
_DELETE = delete(search_vectors).where(
    search_vectors.c.partition == bindparam("partition"), search_vectors.c.embedding == bindparam("embedding")
)
_RENAME = (
    update(search_vectors)
    .where(
        search_vectors.c.partition == bindparam("in_partition"), search_vectors.c.embedding == bindparam("from_name")
    )
    .values(embedding=bindparam("to_name"))
)
_SERVE = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(
        embedding=bindparam("new_embedding"), vectors=bindparam("new_vectors"), generation=bindparam("new_generation")
    )
)


def next_batch(tx: Transaction, owner_id: str, embedding: str, most: int) -> EmbeddingBatch | None:
    """The next documents to embed with this model; None where all flushed ones have their vectors."""
    partition = partition_of(tx, owner_id)
    if partition is None:
        return None
    start = _stored(tx, partition.seq, embedding)[0]
    if start >= partition.documents:
        return None
    records = _records(tx, partition, start, most)
    documents = tuple(int(r["number"]) if r["alive"] else None for r in records)
    return EmbeddingBatch(owner_id, partition.kind, embedding, start, documents, partition.documents)


def add_vectors(tx: Transaction, batch: EmbeddingBatch, vectors: Mapping[int, Sequence[float]], size: int) -> bool:
    """Store vectors of a batch by the numbers of its documents, zeros for those without; True where the model now serves.

    A partition's first model serves from its first vector on, a later one takes over when it has them all. Raises Conflict where
    someone else stored them meanwhile, or where the model's vectors have changed their size.
    """
    partition = lock_partition(tx, batch.owner_id)
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


def documents_of(tx: Transaction, batch: EmbeddingBatch) -> list[tuple[str, VectorRecord]]:
    """The documents of a batch that are still there: the text to embed, with the name of who said it, and a record to fill."""
    rows = tx.all(_DOCUMENTS[batch.kind], {"ids": [number for number in batch.documents if number is not None]})
    if batch.kind == "passages":
        return [
            (row.text, VectorRecord(row.seq, (), row.created_at, user_id=row.user_id or "", tags=tuple(row.tags)))
            for row in rows
        ]
    return [
        (
            f"{row.name}: {row.text}" if row.name else row.text,
            VectorRecord(row.seq, (), row.created_at, row.role, row.conversation_id, row.user_id or ""),
        )
        for row in rows
    ]


def drop_vectors(tx: Transaction, owner_id: str, model: str) -> None:
    """Delete the vectors of one model. If it serves, searches go on with words alone until there are new ones."""
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return
    tx.run(_DELETE, {"partition": partition.seq, "embedding": model})
    if partition.embedding == model:
        serve(tx, partition, None, 0)


def replace_vectors(
    tx: Transaction, batch: EmbeddingBatch, vectors: Mapping[int, Sequence[float]], size: int, model: str
) -> bool:
    """Store vectors of a batch under another name; once they are complete, put them in the place of this model's, and return True.

    Raises Conflict as `add_vectors` does.
    """
    if not add_vectors(tx, batch, vectors, size):
        return False
    partition = lock_partition(tx, batch.owner_id)
    tx.run(_DELETE, {"partition": partition.seq, "embedding": model})
    tx.run(_RENAME, {"in_partition": partition.seq, "from_name": batch.embedding, "to_name": model})
    serve(tx, partition, model, partition.vectors)
    return True


def serve(tx: Transaction, partition: Any, embedding: str | None, count: int) -> None:
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
