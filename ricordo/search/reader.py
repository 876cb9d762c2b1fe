"""Reads the index: one statement for the partitions, their buffers and the postings of a query, one for what changed since.

All of a search happens in one transaction, so a flush beside it is seen whole or not at all. What a process has read is cached by
the number and the generation of a partition, and by how many documents were flushed: within a generation, flushes only append. So
what another process flushed, deleted or rebuilt is noticed by the partition's row, which every search reads.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
from sqlalchemy import LargeBinary, bindparam, cast, literal, null, select, union_all

from ricordo.search.records import DOCUMENT_CHUNK, MOST_TIMES, NAMED, Documents, Postings, read_documents, read_postings
from ricordo.search.scoring import Posting
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import jobs
from ricordo.storage.schema.search_tables import search_buffer, search_documents, search_partitions, search_postings

# Bytes of memory for partitions and for the postings of terms in them, and how many words of vocabularies, at some 100 bytes each.
PARTITIONS_LIMIT = 224 * 1024 * 1024
TERMS_LIMIT = 32 * 1024 * 1024
WORDS_LIMIT = 100_000
# The terms of a search through more partitions than this are not cached: there would be too many of them.
_MOST_CACHED = 8

_Json = jobs.c.payload.type
_OWNERS = each(bindparam("owners", type_=_Json))
_PARTITIONS, _BUFFER, _POSTINGS = 0, 1, 2
_NEVER = 2**40  # no chunk has such a number
_INDEX = union_all(
    select(
        literal(_PARTITIONS).label("part"),
        search_partitions.c.owner_id.label("name"),
        search_partitions.c.seq.label("partition"),
        search_partitions.c.documents.label("number"),
        search_partitions.c.generation,
        search_partitions.c.vectors,
        search_partitions.c.embedding,
        cast(null(), LargeBinary).label("data"),
    ).where(search_partitions.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_BUFFER),
        search_buffer.c.owner_id,
        search_buffer.c.seq,
        search_buffer.c.document,
        literal(0),
        literal(0),
        null(),
        search_buffer.c.data,
    ).where(search_buffer.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_POSTINGS),
        search_postings.c.term,
        search_postings.c.partition,
        search_postings.c.chunk,
        literal(0),
        literal(0),
        null(),
        search_postings.c.data,
    ).where(
        search_postings.c.partition.in_(
            select(search_partitions.c.seq).where(search_partitions.c.owner_id.op("IN")(_OWNERS))
        ),
        search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    ),
)
_THESE = each(bindparam("partitions", type_=_Json))
_CHANGED = union_all(
    select(search_documents.c.partition, null().label("term"), search_documents.c.chunk, search_documents.c.data).where(
        search_documents.c.partition.op("IN")(_THESE), search_documents.c.chunk >= bindparam("since")
    ),
    select(search_postings.c.partition, search_postings.c.term, search_postings.c.chunk, search_postings.c.data).where(
        search_postings.c.partition.op("IN")(_THESE),
        search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    ),
)
NO_POSTING = Posting(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.bool_))


class SizedCache:
    """Values by key, up to a total size; the least recently used are dropped first. A value is replaced, never changed.

    Values whose keys have the same `group` are used together, so none of them is dropped for another.
    """

    def __init__(self, limit: int, group: Callable[[Any], Any] = lambda key: key) -> None:
        self._limit = limit
        self._group = group
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """The value of this key, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Cache this value of so many bytes."""
        with self._lock:
            self._size += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (value, size)
            group = self._group(key)
            while self._size > self._limit:
                oldest = next((other for other in self._values if self._group(other) != group), None)
                if oldest is None:
                    return
                self._size -= self._values.pop(oldest)[1]


class IndexCache:
    """The caches of one database's index: of partitions, of terms by owner and term, and of vocabularies by partition."""

    def __init__(self) -> None:
        self.partitions = SizedCache(PARTITIONS_LIMIT, group=itemgetter(1))
        self.terms = SizedCache(TERMS_LIMIT)
        self.words = SizedCache(WORDS_LIMIT)


@dataclass(frozen=True, slots=True)
class CachedPosting:
    """The posting of a term in the flushed documents of a partition, when there were so many of them in this generation."""

    partition: int
    generation: int
    documents: int
    posting: Posting

    def is_of(self, partition: Any) -> bool:
        state = (partition.seq, partition.generation, partition.documents)
        return (self.partition, self.generation, self.documents) == state

    @property
    def nbytes(self) -> int:
        """The memory it takes, with 600 bytes beside its arrays."""
        posting = self.posting
        return 600 + posting.positions.nbytes + posting.times.nbytes + posting.named.nbytes


def shared_cache(tx: Transaction) -> IndexCache:
    cache: IndexCache = tx.cache.setdefault(IndexCache, IndexCache())
    return cache


def cache_of(tx: Transaction) -> IndexCache:
    """The same; an empty one where the transaction has written, and so sees what may be rolled back."""
    return IndexCache() if tx.has_written else shared_cache(tx)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition's row as a search reads it. `vectors` is how many of its documents are embedded, by the model `embedding`."""

    owner_id: str
    seq: int
    documents: int
    generation: int
    vectors: int
    embedding: str | None


@dataclass(slots=True)
class Snapshot:
    """What one search reads: partitions, the rows of their buffers by owner, flushed documents and postings.

    `documents` go by the number of the partition, `postings` by that and the term; a term that is in no document has none.
    """

    partitions: list[PartitionRow] = field(default_factory=list)
    buffers: dict[str, list[Any]] = field(default_factory=dict)
    documents: dict[int, Documents] = field(default_factory=dict)
    postings: dict[tuple[int, str], Posting] = field(default_factory=dict)


def read_index(tx: Transaction, owners: Sequence[str], terms: Sequence[str]) -> Snapshot:
    """The partitions of these owners with their buffers and documents, and the postings of these terms: two statements at most."""
    cache = cache_of(tx)
    keys = product(owners, terms) if len(owners) <= _MOST_CACHED else ()
    known: dict[tuple[str, str], CachedPosting] = {key: found for key in keys if (found := cache.terms.get(key))}
    missing = [term for term in dict.fromkeys(terms) if any((owner, term) not in known for owner in owners)]
    snapshot = Snapshot()
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_INDEX, {"owners": list(owners), "terms": missing}):
        if row.part == _PARTITIONS:
            snapshot.partitions.append(
                PartitionRow(row.name, row.partition, row.number, row.generation, row.vectors, row.embedding)
            )
        elif row.part == _BUFFER:
            snapshot.buffers.setdefault(row.name, []).append(row)
        else:
            chunks.setdefault((row.partition, row.name), {})[row.number] = row.data
    for rows in snapshot.buffers.values():
        rows.sort(key=lambda row: row.partition)
    stale = [
        (partition, term)
        for partition in snapshot.partitions
        for term in terms
        if term not in missing and not known[partition.owner_id, term].is_of(partition)
    ]
    chunks |= _read_changes(tx, cache, snapshot, stale)
    new = [*stale, *((partition, term) for partition in snapshot.partitions for term in missing)]
    for partition, term in new:
        posting = decoded(chunks.get((partition.seq, term), {}))
        read = CachedPosting(partition.seq, partition.generation, partition.documents, posting)
        known[partition.owner_id, term] = read
        if len(owners) <= _MOST_CACHED:
            cache.terms.put((partition.owner_id, term), read, read.nbytes)
    for partition in snapshot.partitions:
        for term in terms:
            posting = known[partition.owner_id, term].posting
            if len(posting.positions):
                snapshot.postings[partition.seq, term] = posting
    return snapshot


def _read_changes(
    tx: Transaction, cache: IndexCache, snapshot: Snapshot, stale: Sequence[tuple[PartitionRow, str]]
) -> dict[tuple[int, str | None], dict[int, bytes]]:
    """Bring the documents of the snapshot up to date, and read the postings that are stale: with one statement, if any."""
    snapshot.documents = {partition.seq: _cached_documents(cache, partition) for partition in snapshot.partitions}
    behind = [p for p in snapshot.partitions if len(snapshot.documents[p.seq]) < p.documents]
    if not (behind or stale):
        return {}
    since = min((len(snapshot.documents[partition.seq]) // DOCUMENT_CHUNK for partition in behind), default=_NEVER)
    values = {
        "partitions": sorted({partition.seq for partition in (*behind, *(partition for partition, _ in stale))}),
        "terms": sorted({term for _, term in stale}),
        "since": since,
    }
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_CHANGED, values):
        chunks.setdefault((row.partition, row.term), {})[row.chunk] = row.data
    for partition in behind:
        parts = chunks.get((partition.seq, None), {})
        known = snapshot.documents[partition.seq][: since * DOCUMENT_CHUNK]
        read = read_documents(b"".join(parts[number] for number in sorted(parts)))
        records = snapshot.documents[partition.seq] = np.concatenate([known, read])[: partition.documents]
        cache.partitions.put(("documents", partition.seq), (partition.generation, records), records.nbytes)
    return chunks


def _cached_documents(cache: IndexCache, partition: PartitionRow) -> Documents:
    generation, records = cache.partitions.get(("documents", partition.seq)) or (None, read_documents(b""))
    documents: Documents = records[: partition.documents] if generation == partition.generation else records[:0]
    return documents


def posting_of(records: Postings) -> Posting:
    times = records["times"]
    return Posting(records["position"].astype(np.int64), times & np.uint8(MOST_TIMES), times >= NAMED)


def decoded(chunks: Mapping[int, bytes]) -> Posting:
    """The posting in these chunks of one term, which come in any order."""
    data = b"".join(chunks[number] for number in sorted(chunks))
    return posting_of(read_postings(data)) if data else NO_POSTING


def joined_postings(parts: Sequence[Posting]) -> Posting:
    """Postings one after the other, as one term's."""
    filled = [part for part in parts if len(part.positions)]
    if len(filled) < 2:
        return filled[0] if filled else NO_POSTING
    return Posting(
        np.concatenate([part.positions for part in filled]),
        np.concatenate([part.times for part in filled]),
        np.concatenate([part.named for part in filled]),
    )


def some_of(posting: Posting, chosen: Any) -> Posting:
    return replace(
        posting, positions=posting.positions[chosen], times=posting.times[chosen], named=posting.named[chosen]
    )
