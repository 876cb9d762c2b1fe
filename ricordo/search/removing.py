"""Taking documents out of a partition, however many, without holding up others who write.

A deleted document waits in the buffer, with its words, until every blob that knows of it is written anew. What is written is worked
out in transactions that only read, a portion at a time, and its rows leave the buffer last: after a kill all of it is done again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, exists, select, update

from ricordo.search import clearing
from ricordo.search.records import (
    DOCUMENT_CHUNK,
    POSTING_CHUNK,
    VECTOR_CHUNK,
    occurrences,
    read_documents,
    read_postings,
)
from ricordo.search.vectors import VECTOR
from ricordo.search.write_buffer import BufferRow, unpack
from ricordo.storage.search_tables import (
    search_buffer,
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

# What one transaction writes at most: rows, and bytes in them.
ROWS_AT_ONCE = 200
BYTES_AT_ONCE = 1_000_000
_TERMS_READ = 100
_CHUNKS_AT_ONCE = 8

T = TypeVar("T")
# Number, documents, documents deleted, and generation of a partition; () where there is none.
State = tuple[int, ...]

_Json = jobs.c.payload.type
_PARTITION = select(search_partitions).where(search_partitions.c.owner_id == bindparam("owner_id"))
_PARTITION_HELD = _PARTITION.with_for_update()
_OLDEST = (
    select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data)
    .where(search_buffer.c.owner_id == bindparam("owner_id"))
    .order_by(search_buffer.c.seq)
    .limit(bindparam("most"))
)
_DELETE_BUFFER = delete(search_buffer).where(search_buffer.c.seq.op("IN")(each(bindparam("seqs", type_=_Json))))
_CHANGED = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(deleted=bindparam("new_deleted"), generation=bindparam("new_generation"))
)
_DOCUMENTS = (
    select(search_documents.c.chunk, search_documents.c.data)
    .where(search_documents.c.partition == bindparam("partition"))
    .order_by(search_documents.c.chunk)
)
_SOME_DOCUMENTS = _DOCUMENTS.where(search_documents.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))))
_POSTINGS = select(search_postings.c.term, search_postings.c.chunk, search_postings.c.data).where(
    search_postings.c.partition == bindparam("partition"),
    search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    search_postings.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_VECTORS = select(search_vectors.c.embedding, search_vectors.c.chunk, search_vectors.c.dimensions).where(
    search_vectors.c.partition == bindparam("partition"),
    search_vectors.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_VECTOR = (
    (search_vectors.c.partition == bindparam("in_partition"))
    & (search_vectors.c.embedding == bindparam("in_embedding"))
    & (search_vectors.c.chunk == bindparam("in_chunk"))
)
_ONE_VECTOR = select(search_vectors.c.data, search_vectors.c.dimensions).where(_VECTOR)
_PATCH_VECTORS = update(search_vectors).where(_VECTOR).values(data=bindparam("new_data"))
_PATCH_DOCUMENTS = (
    update(search_documents)
    .where(search_documents.c.partition == bindparam("in_partition"), search_documents.c.chunk == bindparam("in_chunk"))
    .values(data=bindparam("new_data"))
)
_POSTING = (
    (search_postings.c.partition == bindparam("in_partition"))
    & (search_postings.c.term == bindparam("in_term"))
    & (search_postings.c.chunk == bindparam("in_chunk"))
)
_SHORTEN_POSTINGS = update(search_postings).where(_POSTING).values(data=bindparam("new_data"))
_DELETE_POSTINGS = delete(search_postings).where(_POSTING)
_DELETE_TERMS = delete(search_terms).where(
    search_terms.c.partition == bindparam("in_partition"),
    search_terms.c.term == bindparam("in_term"),
    ~exists().where(
        search_postings.c.partition == search_terms.c.partition, search_postings.c.term == search_terms.c.term
    ),
)


# Writes something to a partition that is held; returns how many documents went with that.
Write = Callable[[Transaction, Any], int]


@dataclass(frozen=True, slots=True, eq=False)
class Leaving:
    """Documents that leave a partition: their rows in the buffer, where they stand, and the terms that know of them.

    `partition` is the partition's number, None where nothing was flushed yet.
    """

    owner_id: str
    partition: int | None
    rows: tuple[int, ...]
    positions: npt.NDArray[np.int64]
    terms: tuple[str, ...]

    def steps(self) -> "Iterator[Step]":
        """What is to be done, in order. Each step may be done twice, and none may be left out."""
        for chunks in _portions(_chunks(self.positions, DOCUMENT_CHUNK), _CHUNKS_AT_ONCE):
            yield _Bury(self, chunks)
        for terms in _portions(self.terms, _TERMS_READ):
            yield _Shorten(self, terms)
        for chunk in _chunks(self.positions, VECTOR_CHUNK):
            yield _Blank(self, chunk)
        for rows in _portions(self.rows, ROWS_AT_ONCE):
            yield _Forget(self, rows)

    def within(self, chunk: int, size: int) -> npt.NDArray[np.int64]:
        """The places of the documents in one chunk of this size."""
        is_here: npt.NDArray[np.bool_] = self.positions // size == chunk
        places: npt.NDArray[np.int64] = self.positions[is_here] % size
        return places


@dataclass(frozen=True, slots=True)
class Made:
    """What a step will write, each in a transaction of its own, as it was worked out when the partition was in this state."""

    state: State
    writes: Sequence[Write]


class Step:
    """One portion of the work."""

    def __init__(self, leaving: Leaving) -> None:
        self.leaving = leaving

    def make(self, tx: Transaction) -> Made | None:
        """Work out what is to be written. None where the partition was built anew or dropped: then what is left begins anew."""
        partition = tx.first(_PARTITION, {"owner_id": self.leaving.owner_id})
        if (partition.seq if partition else None) != self.leaving.partition:
            return None
        return Made(_state(partition), list(self._writes(tx)))

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        raise NotImplementedError


def leaving(tx: Transaction, owner_id: str, most: int) -> Leaving | None:
    """The documents to take out of a partition, by the oldest rows of its buffer, at most so many; None where there are none.

    The more there are, the more words they share, and each blob is written anew once for all of them.
    """
    deleted: dict[int, list[BufferRow]] = {}
    added: set[int] = set()
    for found in tx.all(_OLDEST, {"owner_id": owner_id, "most": most}):
        row = unpack(found.seq, found.document, found.data)
        if not row.is_deleted:
            added.add(row.document)
        elif row.document not in added:  # else it came and went within the buffer, which a flush settles
            deleted.setdefault(row.document, []).append(row)
    if not deleted:
        return None
    rows = [row for some in deleted.values() for row in some]
    partition = tx.first(_PARTITION, {"owner_id": owner_id})
    positions = _positions(tx, partition.seq, list(deleted)) if partition else np.zeros(0, dtype=np.int64)
    # As flushes call them: labels are terms too.
    terms = {term for row in rows for term in occurrences(row)} if len(positions) else set()
    seqs = tuple([row.seq for row in rows])
    return Leaving(owner_id, partition.seq if partition else None, seqs, positions, tuple(sorted(terms)))


def write(tx: Transaction, owner_id: str, state: State, write: Write) -> State | None:
    """Write something that was made in this state; returns the state after it. None, and nothing is done, where it is another."""
    partition = tx.first(_PARTITION_HELD, {"owner_id": owner_id})
    if _state(partition) != state:
        return None
    deleted = write(tx, partition)
    if partition is None:
        return state
    values = {
        "partition": partition.seq,
        "new_deleted": partition.deleted + deleted,
        "new_generation": partition.generation + 1,
    }
    tx.run(_CHANGED, values)
    return (partition.seq, partition.documents, partition.deleted + deleted, partition.generation + 1)


class _Bury(Step):
    """Mark documents as deleted."""

    def __init__(self, leaving: Leaving, chunks: Sequence[int]) -> None:
        super().__init__(leaving)
        self._chunks = chunks

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        patches: list[dict[str, Any]] = []
        count = 0
        partition = self.leaving.partition
        for row in tx.all(_SOME_DOCUMENTS, {"partition": partition, "chunks": list(self._chunks)}):
            records = read_documents(row.data).copy()
            places = self.leaving.within(row.chunk, DOCUMENT_CHUNK)
            count += int(records["alive"][places].sum())
            records["alive"][places] = 0
            patches.append({"in_partition": partition, "in_chunk": row.chunk, "new_data": records.tobytes()})

        def write(tx: Transaction, _partition: Any) -> int:
            tx.run(_PATCH_DOCUMENTS, patches)
            return count

        yield write


class _Shorten(Step):
    """Take documents out of the postings of some terms; a word that nobody says any more leaves the vocabulary too."""

    def __init__(self, leaving: Leaving, terms: Sequence[str]) -> None:
        super().__init__(leaving)
        self._terms = terms

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        masks = _masks(self.leaving.positions)
        shorter: list[dict[str, Any]] = []
        empty: list[dict[str, Any]] = []
        size = 0
        wanted = {"partition": self.leaving.partition, "terms": list(self._terms), "chunks": sorted(masks)}
        for row in tx.all(_POSTINGS, wanted):
            records = read_postings(row.data)
            kept = records[~masks[row.chunk][records["position"] % POSTING_CHUNK]]
            if len(kept) == len(records):
                continue
            key = {"in_partition": self.leaving.partition, "in_term": row.term, "in_chunk": row.chunk}
            if len(kept):
                shorter.append({**key, "new_data": kept.tobytes()})
                size += len(row.data)
            else:
                empty.append(key)
            if size > BYTES_AT_ONCE or len(shorter) + 2 * len(empty) >= ROWS_AT_ONCE:
                yield _rewriting(shorter, empty)
                shorter, empty, size = [], [], 0
        if shorter or empty:
            yield _rewriting(shorter, empty)


class _Blank(Step):
    """Clear the vectors of documents."""

    def __init__(self, leaving: Leaving, chunk: int) -> None:
        super().__init__(leaving)
        self._chunk = chunk

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        for row in tx.all(_VECTORS, {"partition": self.leaving.partition, "chunks": [self._chunk]}):
            yield self._clearing(row.embedding)

    def _clearing(self, embedding: str) -> Write:
        places = self.leaving.within(self._chunk, VECTOR_CHUNK)

        def write(tx: Transaction, partition: Any) -> int:
            # Read here: vectors come without a change of the partition.
            key = {"in_partition": partition.seq, "in_embedding": embedding, "in_chunk": self._chunk}
            if row := tx.first(_ONE_VECTOR, key):
                vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
                vectors[places[places < len(vectors)]] = 0
                tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})
            return 0

        return write


class _Forget(Step):
    """Let rows leave the buffer: nothing in the partition knows of these documents any more."""

    def __init__(self, leaving: Leaving, rows: Sequence[int]) -> None:
        super().__init__(leaving)
        self._rows = rows

    def _writes(self, _tx: Transaction) -> Iterator[Write]:
        def write(tx: Transaction, _partition: Any) -> int:
            tx.run(_DELETE_BUFFER, {"seqs": list(self._rows)})
            clearing.note(tx, len(self._rows))
            return 0

        yield write


def _rewriting(shorter: list[dict[str, Any]], empty: list[dict[str, Any]]) -> Write:
    def write(tx: Transaction, _partition: Any) -> int:
        tx.run(_SHORTEN_POSTINGS, shorter)
        tx.run(_DELETE_POSTINGS, empty)
        tx.run(_DELETE_TERMS, [{"in_partition": key["in_partition"], "in_term": key["in_term"]} for key in empty])
        return 0

    return write


def _positions(tx: Transaction, partition: int, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where these documents stand, or stood before a kill, in the order of the positions."""
    wanted = np.array(numbers, dtype=np.int64)
    found = [
        row.chunk * DOCUMENT_CHUNK + np.flatnonzero(np.isin(read_documents(row.data)["number"], wanted))
        for row in tx.all(_DOCUMENTS, {"partition": partition})
    ]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _masks(positions: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.bool_]]:
    """By posting chunk, which places in it are among these positions."""
    masks: dict[int, npt.NDArray[np.bool_]] = {}
    for chunk in _chunks(positions, POSTING_CHUNK):
        masks[chunk] = np.zeros(POSTING_CHUNK, dtype=np.bool_)
        masks[chunk][positions[positions // POSTING_CHUNK == chunk] % POSTING_CHUNK] = True
    return masks


def _chunks(positions: npt.NDArray[np.int64], size: int) -> list[int]:
    """The chunks of this size in which these positions lie."""
    chunks: list[int] = np.unique(positions // size).tolist()
    return chunks


def _state(partition: Any) -> State:
    return () if partition is None else (partition.seq, partition.documents, partition.deleted, partition.generation)


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
