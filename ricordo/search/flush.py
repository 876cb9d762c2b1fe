"""Flushing: rows of the write buffer become postings and documents of their partition, and what they delete is taken out.

What a flush writes is worked out before, in a transaction that only reads: so the database is locked for as long as writing
takes, under a lock on the partition's row, and no longer. A deleted document waits in the buffer, with its
words, until every blob that holds it is rewritten, in portions; the buffer's rows go last, so that after a kill all of it is done
again.
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
# Of long texts fewer: what takes time is each different word, whose postings are written anew.
TERMS_WRITTEN_AT_ONCE = 14_000

_TIMES = [bytes((times,)) for times in range(256)]
_NEW_PARTITION = Missing(search_partitions)
_APPEND_POSTINGS, _APPEND_DOCUMENTS = Appending(search_postings), Appending(search_documents)
_ADD_TERMS = Missing(search_terms)
_COUNTED = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(documents=bindparam("new_documents"))
)
assert reader.POSTING.itemsize == 5  # noqa: S101 - `_postings` writes such records by hand

# What one transaction of a deletion rewrites at most: rows of the buffer, terms in one chunk of 40 kB each, chunks of documents.
ROWS_AT_ONCE = 200
TERMS_AT_ONCE = 100
_CHUNKS_AT_ONCE = 8

Positions = npt.NDArray[np.int64]
# The number, documents, deleted documents and generation of a partition; () where there is none.
State = tuple[int, ...]
# Does one portion of a deletion; returns how many documents it marks as deleted, None where it changes no blob.
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
    """Rows of a write buffer, packed: the `partition` as it was, their numbers, rows for its tables, and new `words`."""

    owner_id: str
    partition: Any
    rows: tuple[int, ...]
    added: int
    postings: list[tuple[str, int, bytes]]
    documents: list[dict[str, Any]]
    words: set[str]


def pack_rows(tx: Transaction, owner_id: str, most: int = FLUSHED_AT_ONCE) -> PackedRows | None:
    """Pack the oldest rows of the owner's buffer, at most so many; None where there is none, or a deletion comes first."""
    partition = partition_of(tx, owner_id)
    rows, added = _settled(write_buffer.oldest(tx, owner_id, most))
    if not rows:
        return None
    position = partition.documents if partition else 0
    postings = _postings(added, position)
    return PackedRows(
        owner_id,
        partition,
        tuple([row.seq for row in rows]),
        len(added),
        postings,
        reader.chunks_of(reader.document_records(added), position, reader.DOCUMENT_CHUNK)
        if added
        else [],
        {term for term, _, _ in postings if not term.startswith(LABEL)},
    )


def write_rows(tx: Transaction, packed: PackedRows) -> bool:
    """Write what was packed, under a lock on the partition; False, with nothing written, where the partition has changed."""
    # The lock comes first, so that a second writer sees what the first has written.
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
        [{"partition": seq, "term": t, "chunk": c, "data": d} for t, c, d in packed.postings],
    )
    _add_words(tx, partition, packed.words)
    tx.run(_APPEND_DOCUMENTS, [{"partition": seq, **chunk} for chunk in packed.documents])
    write_buffer.delete_rows(tx, packed.rows)
    tx.run(_COUNTED, {"partition": seq, "new_documents": partition.documents + packed.added})
    return True


def _settled(rows: Sequence[BufferRow]) -> tuple[list[BufferRow], list[BufferRow]]:
    """The first rows that one transaction should write, up to a flushed document's deletion, and what they add on balance."""
    added: dict[int, BufferRow] = {}
    words = set[str]()
    for count, row in enumerate(rows):
        words.update(row.text)
        if (row.is_deleted and row.document not in added) or (
            count and len(words) > TERMS_WRITTEN_AT_ONCE
        ):
            return list(rows[:count]), list(added.values())
        if row.is_deleted:
            del added[row.document]
        else:
            added[row.document] = row
    return list(rows), list(added.values())


def _postings(rows: Sequence[BufferRow], position: int) -> list[tuple[str, int, bytes]]:
    """Term, chunk and data of the postings of these rows, the first of which has this position; in the order of the key."""
    chunks: dict[int, defaultdict[str, bytearray]] = {}
    for here, row in enumerate(rows, position):
        postings = chunks.setdefault(here // reader.POSTING_CHUNK, defaultdict(bytearray))
        place = here.to_bytes(4, "little")
        for term, times in reader.occurrences(row).items():
            postings[term] += place + _TIMES[times]
    # In this order each page of the table is visited once.
    return sorted(
        [
            (term, chunk, bytes(data))
            for chunk, terms in chunks.items()
            for term, data in terms.items()
        ]
    )


def _add_words(tx: Transaction, partition: Any, words: set[str]) -> None:
    """Add words to the partition's vocabulary, without those that are cached as being in it."""
    cache = reader.shared_cache(tx).words
    generation, known = cache.get(partition.seq) or (partition.generation, frozenset[str]())
    if generation != partition.generation:
        known = frozenset()
    tx.run(
        _ADD_TERMS, [{"partition": partition.seq, "term": term} for term in sorted(words - known)]
    )
    together = known | words
    if len(together) > reader.WORDS_LIMIT:
        together = frozenset(words)
    tx.after_commit.append(
        lambda: cache.put(partition.seq, (partition.generation, together), len(together))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Deletion:
    """Documents to delete: their buffer rows, positions and terms; the `partition`'s number is None if nothing is flushed."""

    owner_id: str
    partition: int | None
    documents: tuple[int, ...]
    rows: tuple[int, ...]
    positions: Positions
    terms: tuple[str, ...]

    def steps(self) -> Iterator[Step]:
        """What is to be done, in order. Each step may be done twice, and none may be left out."""
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
        """Do one step; False, with nothing done, where the partition was rebuilt or purged meanwhile."""
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
        """Take the documents out of the postings of these terms; a word that no document has any more leaves the vocabulary."""
        is_deleted = np.zeros(reader.POSTING_CHUNK, dtype=np.bool_)
        is_deleted[self._positions_in(chunk, reader.POSTING_CHUNK)] = True
        shorter: list[dict[str, Any]] = []
        empty: list[dict[str, Any]] = []
        for row in tx.all(
            _SOME_POSTINGS, {"partition": self.partition, "terms": list(terms), "chunk": chunk}
        ):
            records = reader.read_postings(row.data)
            kept = records[~is_deleted[records["position"] % reader.POSTING_CHUNK]]
            key = {"in_partition": self.partition, "in_term": row.term, "in_chunk": chunk}
            if not len(kept):
                empty.append(key)
            elif len(kept) < len(records):
                shorter.append({**key, "new_data": kept.tobytes()})
        tx.run(_PATCH_POSTINGS, shorter)
        tx.run(_DELETE_POSTINGS, empty)
        tx.run(
            _DELETE_TERMS,
            [{"in_partition": key["in_partition"], "in_term": key["in_term"]} for key in empty],
        )
        return 0 if shorter or empty else None

    def _clear_vectors(self, chunk: int, tx: Transaction) -> int:
        positions = self._positions_in(chunk, reader.VECTOR_CHUNK)
        for row in tx.all(_VECTORS, {"partition": self.partition, "chunk": chunk}):
            vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
            vectors[positions[positions < len(vectors)]] = 0
            key = {"in_partition": self.partition, "in_embedding": row.embedding, "in_chunk": chunk}
            tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})
        return 0

    def _positions_in(self, chunk: int, size: int) -> Positions:
        found: Positions = self.positions[self.positions // size == chunk] % size
        return found


def next_deletion(tx: Transaction, owner_id: str, most: int) -> Deletion | None:
    """The documents to delete by a buffer's oldest rows, many at once so that each blob is rewritten once; None for none."""
    deleted: dict[int, list[BufferRow]] = {}
    added: set[int] = set()
    for row in write_buffer.oldest(tx, owner_id, most):
        if not row.is_deleted:
            added.add(row.document)
        elif (
            row.document not in added
        ):  # one that was added and deleted in the buffer is left to the flush
            deleted.setdefault(row.document, []).append(row)
    if not deleted:
        return None
    rows = [row for some in deleted.values() for row in some]
    partition = partition_of(tx, owner_id)
    positions = (
        _positions(tx, partition.seq, list(deleted)) if partition else np.zeros(0, dtype=np.int64)
    )
    terms = {term for row in rows for term in reader.occurrences(row)} if len(positions) else set()
    seqs, number = tuple([row.seq for row in rows]), partition.seq if partition else None
    return Deletion(owner_id, number, tuple(deleted), seqs, positions, tuple(sorted(terms)))


def _positions(tx: Transaction, partition: int, numbers: Sequence[int]) -> Positions:
    """The positions of these documents, ascending, of those too that a killed job marked as deleted."""
    wanted = np.array(numbers, dtype=np.int64)
    found = [
        row.chunk * reader.DOCUMENT_CHUNK
        + np.flatnonzero(np.isin(reader.read_documents(row.data)["number"], wanted))
        for row in tx.all(_DOCUMENTS, {"partition": partition})
    ]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _chunks(positions: Positions, size: int) -> list[int]:
    chunks: list[int] = np.unique(positions // size).tolist()
    return chunks


def _state(partition: Any) -> State:
    return (
        ()
        if partition is None
        else (partition.seq, partition.documents, partition.deleted, partition.generation)
    )
