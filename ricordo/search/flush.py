"""Flushing: rows of the write buffer become postings and documents of their partition.

The data to write is computed first, in a transaction that only reads. So the database is locked
only during the write, under a lock on the partition's row. A deleted document and its words stay in
the buffer until every blob with the document is rewritten, in portions. The buffer's rows are
deleted last. So if a kill interrupts a deletion, the whole deletion is repeated.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, exists, select, update

from ricordo.search import reader, write_buffer
from ricordo.search.partitions import is_row, lock_partition, partition_of
from ricordo.search.vector_index import portions
from ricordo.search.vectors import VECTOR
from ricordo.search.write_buffer import LABEL, BufferRow
from ricordo.storage.engine.repository import Appending, Missing
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import (
    jobs,
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)

FLUSHED_AT_ONCE = 768
# The most different terms of one flush. The postings of each term are rewritten, so a flush takes
# fewer rows if their texts are long.
TERMS_WRITTEN_AT_ONCE = 14_000

_TIMES = [bytes((times,)) for times in range(256)]
_NEW_PARTITION = Missing(search_partitions)
_APPEND_POSTINGS = Appending(search_postings)
_APPEND_DOCUMENTS = Appending(search_documents)
_ADD_TERMS = Missing(search_terms)
_COUNTED = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(documents=bindparam("new_documents"))
)
assert reader.POSTING.itemsize == 5  # noqa: S101 - `_postings` writes such records by hand

# Limits of one transaction of a deletion: rows of the buffer, terms in one chunk (40 kB each), and
# chunks of documents.
ROWS_AT_ONCE = 200
TERMS_AT_ONCE = 100
_CHUNKS_AT_ONCE = 8

Positions = npt.NDArray[np.int64]
# A partition's number, its numbers of documents and deleted documents, and its generation; () if
# there is no partition.
State = tuple[int, ...]
# One portion of a deletion. It returns the number of documents that it marks as deleted, or None if
# it changes no blob.
Step = Callable[[Transaction], int | None]

_Json = jobs.c.payload.type
_CHANGE = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(deleted=bindparam("new_deleted"), generation=bindparam("new_generation"))
)
_DOCUMENTS = (
    select(search_documents.c.chunk, search_documents.c.data)
    .where(search_documents.c.partition == bindparam("partition"))
    .order_by(search_documents.c.chunk)
)
_SOME_DOCUMENTS = _DOCUMENTS.where(
    search_documents.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json)))
)
_SOME_POSTINGS = select(search_postings.c.term, search_postings.c.data).where(
    search_postings.c.partition == bindparam("partition"),
    search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    search_postings.c.chunk == bindparam("chunk"),
)
_VECTORS = select(
    search_vectors.c.embedding, search_vectors.c.data, search_vectors.c.dimensions
).where(
    search_vectors.c.partition == bindparam("partition"),
    search_vectors.c.chunk == bindparam("chunk"),
)
_PATCH_VECTORS, _PATCH_DOCUMENTS, _PATCH_POSTINGS = (
    update(table).where(is_row(table)).values(data=bindparam("new_data"))
    for table in (search_vectors, search_documents, search_postings)
)
_DELETE_POSTINGS = delete(search_postings).where(is_row(search_postings))
_DELETE_TERMS = delete(search_terms).where(
    is_row(search_terms),
    ~exists().where(
        search_postings.c.partition == search_terms.c.partition,
        search_postings.c.term == search_terms.c.term,
    ),
)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a write buffer in the form in which they are flushed.

    `partition` is the partition's row when they were packed, or None. `rows` are the numbers of the
    buffer's rows, and `added` is the number of new positions. `postings` and `documents` are rows
    for the partition's tables, and `words` are the words of the new documents.
    """

    owner_id: str
    partition: Any
    rows: tuple[int, ...]
    added: int
    postings: list[tuple[str, int, bytes]]
    documents: list[dict[str, Any]]
    words: set[str]


def pack_rows(tx: Transaction, owner_id: str, limit: int = FLUSHED_AT_ONCE) -> PackedRows | None:
    """Pack the oldest rows of the owner's buffer, at most `limit`.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        limit: The most rows of the buffer.

    Returns:
        The rows for the index; None if the buffer is empty, or begins with the deletion of a
            flushed document.
    """
    partition = partition_of(tx, owner_id)
    rows, added = _rows_of_one_flush(write_buffer.oldest(tx, owner_id, limit))
    if not rows:
        return None
    position = partition.documents if partition else 0
    postings = _postings(added, position)
    records = reader.document_records(added)
    return PackedRows(
        owner_id=owner_id,
        partition=partition,
        rows=tuple([row.seq for row in rows]),
        added=len(records),
        postings=postings,
        documents=reader.chunks_of(records, position, reader.DOCUMENT_CHUNK) if added else [],
        words={term for term, _, _ in postings if not term.startswith(LABEL)},
    )


def write_rows(tx: Transaction, packed: PackedRows) -> bool:
    """Write packed rows under a lock on the partition.

    Args:
        tx: The transaction.
        packed: The rows, perhaps packed in an earlier transaction.

    Returns:
        False, without writing, if the partition or the buffer has changed since the rows were
        packed.
    """
    # Lock before reading, so that a second writer sees the rows of the first.
    partition = lock_partition(tx, packed.owner_id)
    if partition is None and packed.partition is None:
        tx.run(
            _NEW_PARTITION,
            {"owner_id": packed.owner_id, "kind": write_buffer.kind_of(packed.owner_id)},
        )
        partition = lock_partition(tx, packed.owner_id)
        if partition.documents or partition.deleted:
            return False
    elif _state(partition) != _state(packed.partition):
        return False
    if not write_buffer.has_all(tx, packed.rows):
        return False
    seq = partition.seq
    tx.run(
        _APPEND_POSTINGS,
        [
            {"partition": seq, "term": term, "chunk": chunk, "data": content}
            for term, chunk, content in packed.postings
        ],
    )
    _add_words(tx, partition, packed.words)
    tx.run(_APPEND_DOCUMENTS, [{"partition": seq, **chunk} for chunk in packed.documents])
    write_buffer.delete_rows(tx, packed.rows)
    tx.run(_COUNTED, {"partition": seq, "new_documents": partition.documents + packed.added})
    return True


def _rows_of_one_flush(rows: Sequence[BufferRow]) -> tuple[list[BufferRow], list[BufferRow]]:
    """Return the rows for one flush, and those of them whose documents are added.

    The rows end before the first deletion of a document that was flushed earlier, or before the row
    with which they would have too many different terms.
    """
    added: dict[int, BufferRow] = {}
    terms = set[str]()
    for count, row in enumerate(rows):
        terms.update(row.text)
        if (row.is_deleted and row.document not in added) or (
            count and len(terms) > TERMS_WRITTEN_AT_ONCE
        ):
            return list(rows[:count]), list(added.values())
        if row.is_deleted:
            del added[row.document]
        else:
            added[row.document] = row
    return list(rows), list(added.values())


def _postings(rows: Sequence[BufferRow], position: int) -> list[tuple[str, int, bytes]]:
    """Return term, chunk and bytes of these rows' postings, in the order of the key.

    `position` is that of the first part of the first row.
    """
    chunks: dict[int, defaultdict[str, bytearray]] = {}
    parts = [part for row in rows for part in reader.occurrences_by_part(row)]
    for row_position, part in enumerate(parts, position):
        postings = chunks.setdefault(row_position // reader.POSTING_CHUNK, defaultdict(bytearray))
        encoded_position = row_position.to_bytes(4, "little")
        for term, times in part.items():
            postings[term] += encoded_position + _TIMES[times]
    # In this order, each page of the table is visited only once.
    return sorted(
        [
            (term, chunk, bytes(content))
            for chunk, terms in chunks.items()
            for term, content in terms.items()
        ]
    )


def _add_words(tx: Transaction, partition: Any, new_words: set[str]) -> None:
    """Add words to the partition's vocabulary, except those that the cache knows."""
    cache = reader.shared_cache(tx).words
    generation, known_words = cache.get(partition.seq) or (partition.generation, frozenset[str]())
    if generation != partition.generation:
        known_words = frozenset()
    tx.run(
        _ADD_TERMS,
        [{"partition": partition.seq, "term": term} for term in sorted(new_words - known_words)],
    )
    all_words = known_words | new_words
    if len(all_words) > reader.WORDS_LIMIT:
        all_words = frozenset(new_words)
    tx.after_commit.append(
        lambda: cache.put(partition.seq, (partition.generation, all_words), len(all_words))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Deletion:
    """Documents to delete: their buffer rows, positions and terms.

    `partition` is the partition's number; None if nothing is flushed.
    """

    owner_id: str
    partition: int | None
    documents: tuple[int, ...]
    rows: tuple[int, ...]
    positions: Positions
    terms: tuple[str, ...]

    def steps(self) -> Iterator[Step]:
        """Yield the steps of the deletion in order.

        A step may be repeated, but none may be omitted.
        """
        for chunks in portions(_chunks(self.positions, reader.DOCUMENT_CHUNK), _CHUNKS_AT_ONCE):
            yield partial(self._mark_documents, chunks)
        for chunk in _chunks(self.positions, reader.POSTING_CHUNK):
            for terms in portions(self.terms, TERMS_AT_ONCE):
                yield partial(self._rewrite_postings, chunk, terms)
        for chunk in _chunks(self.positions, reader.VECTOR_CHUNK):
            yield partial(self._clear_vectors, chunk)
        for rows in portions(self.rows, ROWS_AT_ONCE):
            yield partial(write_buffer.delete_rows, seqs=rows)

    def run(self, tx: Transaction, step: Step) -> bool:
        """Run one step of the deletion, under a lock on the partition.

        Args:
            tx: The transaction.
            step: One of `steps`.

        Returns:
            False, without a change, if the partition was created, rebuilt or purged meanwhile.
        """
        partition = lock_partition(tx, self.owner_id)
        if (partition.seq if partition else None) != self.partition:
            return False
        deleted = step(tx)
        if deleted is not None:
            after = {
                "new_deleted": partition.deleted + deleted,
                "new_generation": partition.generation + 1,
            }
            tx.run(_CHANGE, {"partition": partition.seq, **after})
        return True

    def _mark_documents(self, chunks: Sequence[int], tx: Transaction) -> int:
        patches: list[dict[str, Any]] = []
        count = 0
        for row in tx.all(_SOME_DOCUMENTS, {"partition": self.partition, "chunks": list(chunks)}):
            records = reader.read_documents(row.data).copy()
            positions = self._positions_in(row.chunk, reader.DOCUMENT_CHUNK)
            count += int(records["alive"][positions].sum())
            records["alive"][positions] = 0
            patches.append(
                {
                    "in_partition": self.partition,
                    "in_chunk": row.chunk,
                    "new_data": records.tobytes(),
                }
            )
        tx.run(_PATCH_DOCUMENTS, patches)
        return count

    def _rewrite_postings(self, chunk: int, terms: Sequence[str], tx: Transaction) -> int | None:
        """Remove the documents from the postings of these terms.

        A term without any documents is removed from the vocabulary.
        """
        is_deleted = np.zeros(reader.POSTING_CHUNK, dtype=np.bool_)
        is_deleted[self._positions_in(chunk, reader.POSTING_CHUNK)] = True
        shorter: list[dict[str, Any]] = []
        empty: list[dict[str, Any]] = []
        for row in tx.all(
            _SOME_POSTINGS, {"partition": self.partition, "terms": list(terms), "chunk": chunk}
        ):
            records = reader.read_postings(row.data)
            remaining = records[~is_deleted[records["position"] % reader.POSTING_CHUNK]]
            key = {"in_partition": self.partition, "in_term": row.term, "in_chunk": chunk}
            if not len(remaining):
                empty.append(key)
            elif len(remaining) < len(records):
                shorter.append({**key, "new_data": remaining.tobytes()})
        tx.run(_PATCH_POSTINGS, shorter)
        tx.run(_DELETE_POSTINGS, empty)
        tx.run(
            _DELETE_TERMS,
            [{"in_partition": key["in_partition"], "in_term": key["in_term"]} for key in empty],
        )
        if shorter or empty:
            return 0
        return None

    def _clear_vectors(self, chunk: int, tx: Transaction) -> int:
        positions = self._positions_in(chunk, reader.VECTOR_CHUNK)
        for row in tx.all(_VECTORS, {"partition": self.partition, "chunk": chunk}):
            vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
            vectors[positions[positions < len(vectors)]] = 0
            key = {"in_partition": self.partition, "in_embedding": row.embedding, "in_chunk": chunk}
            tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})
        return 0

    def _positions_in(self, chunk: int, size: int) -> Positions:
        positions: Positions = self.positions[self.positions // size == chunk] % size
        return positions


def next_deletion(tx: Transaction, owner_id: str, limit: int) -> Deletion | None:
    """Return the documents that the oldest rows of a buffer delete; None if there are none.

    Many documents are deleted at once, so that each blob is rewritten once.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        limit: The most rows of the buffer that are read.
    """
    deleted: dict[int, list[BufferRow]] = {}
    added: set[int] = set()
    for row in write_buffer.oldest(tx, owner_id, limit):
        if not row.is_deleted:
            added.add(row.document)
        elif row.document not in added:
            # A document that was added and deleted within the buffer is left to the flush.
            deleted.setdefault(row.document, []).append(row)
    if not deleted:
        return None
    rows = [row for some in deleted.values() for row in some]
    partition = partition_of(tx, owner_id)
    if partition:
        positions = _positions(tx, partition.seq, list(deleted))
    else:
        positions = np.zeros(0, dtype=np.int64)
    if len(positions):
        terms = {term for row in rows for term in reader.occurrences(row)}
    else:
        terms = set()
    seqs = tuple([row.seq for row in rows])
    number = partition.seq if partition else None
    return Deletion(
        owner_id=owner_id,
        partition=number,
        documents=tuple(deleted),
        rows=seqs,
        positions=positions,
        terms=tuple(sorted(terms)),
    )


def _positions(tx: Transaction, partition: int, numbers: Sequence[int]) -> Positions:
    """Return the positions of these documents, ascending.

    They include documents that a killed job has already marked as deleted.
    """
    document_numbers = np.array(numbers, dtype=np.int64)
    positions = [
        row.chunk * reader.DOCUMENT_CHUNK
        + np.flatnonzero(np.isin(reader.read_documents(row.data)["number"], document_numbers))
        for row in tx.all(_DOCUMENTS, {"partition": partition})
    ]
    if positions:
        return np.concatenate(positions)
    return np.zeros(0, dtype=np.int64)


def _chunks(positions: Positions, size: int) -> list[int]:
    chunks: list[int] = np.unique(positions // size).tolist()
    return chunks


def _state(partition: Any) -> State:
    if partition is None:
        return ()
    return (partition.seq, partition.documents, partition.deleted, partition.generation)
