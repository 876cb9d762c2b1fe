"""How the index is packed into blobs, and how a search reads it.

One statement reads the partitions, their buffers and the postings of a query, one what changed since. All of a search happens in
one transaction, so a flush beside it is seen whole or not at all. What a process has read is cached by the number and the
generation of a partition, and by how many documents were flushed: within a generation, flushes only append. So what another
process flushed, deleted or rebuilt is noticed by the partition's row, which every search reads.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import LargeBinary, bindparam, cast, literal, null, select, union_all

from ricordo.search.scoring import Posting
from ricordo.search.write_buffer import BufferRow
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import (
    jobs,
    search_buffer,
    search_documents,
    search_partitions,
    search_postings,
)

DOCUMENT = np.dtype(
    [
        ("number", "<i8"),  # seq of the message or passage
        ("created_at", "<i8"),  # microseconds UTC
        ("conversation", "<u8"),
        ("user", "<u8"),
        ("length", "<u4"),  # words of the text
        ("role", "u1"),
        ("alive", "u1"),
        ("asks", "u1"),  # the text ends with a question
    ]
)
# `times`: how often the text holds the term, at most 127; the highest bit says that the speaker's name holds it.
POSTING = np.dtype([("position", "<u4"), ("times", "u1")])
NAMED = 0x80
MOST_TIMES = 0x7F
# A chunk is what one update rewrites, and what one row holds.
DOCUMENT_CHUNK = 1024
POSTING_CHUNK = 8192
VECTOR_CHUNK = 256

Documents = npt.NDArray[np.void]
Postings = npt.NDArray[np.void]

# Bytes of memory for partitions and for the postings of terms in them, and how many words of vocabularies, at some 100 bytes each.
PARTITIONS_LIMIT = 224 * 1024 * 1024
TERMS_LIMIT = 32 * 1024 * 1024
WORDS_LIMIT = 100_000
# The terms of a search through more partitions than this are not cached: there would be too many of them.
_MOST_CACHED = 8

_Json = jobs.c.payload.type
_OWNERS, _TERMS, _THESE = (
    each(bindparam(name, type_=_Json)) for name in ("owners", "terms", "partitions")
)
_PARTITIONS, _BUFFER, _POSTINGS = 0, 1, 2
_NEVER = 2**40  # no chunk has such a number
_NONE = (literal(0), literal(0), null())
_INDEX = union_all(
    select(
        literal(_PARTITIONS).label("part"),
        search_partitions.c.owner_id.label("name"),
        search_partitions.c.seq.label("partition"),
        search_partitions.c.documents.label("number"),
        *(search_partitions.c[name] for name in ("generation", "vectors", "embedding")),
        cast(null(), LargeBinary).label("data"),
    ).where(search_partitions.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_BUFFER),
        *(search_buffer.c[name] for name in ("owner_id", "seq", "document")),
        *_NONE,
        search_buffer.c.data,
    ).where(search_buffer.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_POSTINGS),
        *(search_postings.c[name] for name in ("term", "partition", "chunk")),
        *_NONE,
        search_postings.c.data,
    ).where(
        search_postings.c.partition.in_(
            select(search_partitions.c.seq).where(search_partitions.c.owner_id.op("IN")(_OWNERS))
        ),
        search_postings.c.term.op("IN")(_TERMS),
    ),
)
_CHANGED = union_all(
    select(
        search_documents.c.partition,
        null().label("term"),
        search_documents.c.chunk,
        search_documents.c.data,
    ).where(
        search_documents.c.partition.op("IN")(_THESE),
        search_documents.c.chunk >= bindparam("since"),
    ),
    select(
        search_postings.c.partition,
        search_postings.c.term,
        search_postings.c.chunk,
        search_postings.c.data,
    ).where(search_postings.c.partition.op("IN")(_THESE), search_postings.c.term.op("IN")(_TERMS)),
)
NO_POSTING = Posting(
    np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.bool_)
)


def document_records(rows: list[BufferRow]) -> Documents:
    """The records of these rows, in their order."""
    values = [
        (
            row.document,
            row.created_at,
            row.conversation,
            row.user,
            row.length,
            row.role,
            1,
            row.asks,
        )
        for row in rows
    ]
    return np.array(values, dtype=DOCUMENT)


def occurrences(row: BufferRow) -> dict[str, int]:
    """The terms of a row, labels among them, each with its `times`."""
    counts: dict[str, int] = dict(Counter(row.text))
    if len(row.text) > MOST_TIMES:
        counts = {term: min(times, MOST_TIMES) for term, times in counts.items()}
    for term in row.speaker:
        counts[term] = counts.get(term, 0) | NAMED
    return counts | dict.fromkeys(row.labels, 1) if row.labels else counts


def chunks_of(rows: npt.NDArray[Any], position: int, size: int) -> list[dict[str, Any]]:
    """Rows, the first of them at this position, cut where a chunk ends: the number and data of each chunk's part."""
    end = position + len(rows)
    cuts = [position, *range((position // size + 1) * size, end, size), end]
    return [
        {"chunk": start // size, "data": rows[start - position : stop - position].tobytes()}
        for start, stop in pairwise(cuts)
        if stop > start
    ]


def read_documents(data: bytes) -> Documents:
    return np.frombuffer(data, dtype=DOCUMENT)


def read_postings(data: bytes) -> Postings:
    return np.frombuffer(data, dtype=POSTING)


class SizedCache:
    """Values by key up to a total size, the least recently used dropped first; those of one `group` together."""

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
                oldest = next(
                    (other for other in self._values if self._group(other) != group), None
                )
                if oldest is None:
                    return
                self._size -= self._values.pop(oldest)[1]


class IndexCache:
    """The caches of one database's index: of partitions, of terms by owner and term, and of vocabularies by partition."""

    def __init__(self) -> None:
        self.partitions = SizedCache(PARTITIONS_LIMIT, group=itemgetter(1))
        self.terms = SizedCache(TERMS_LIMIT)
        self.words = SizedCache(WORDS_LIMIT)


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

    @property
    def state(self) -> tuple[int, int, int]:
        """Postings of another state are read again."""
        return self.seq, self.generation, self.documents


@dataclass(slots=True)
class Snapshot:
    """What one search reads: partitions, buffers by owner, documents by partition, and postings by partition and term."""

    partitions: list[PartitionRow] = field(default_factory=list)
    buffers: dict[str, list[Any]] = field(default_factory=dict)
    documents: dict[int, Documents] = field(default_factory=dict)
    postings: dict[tuple[int, str], Posting] = field(default_factory=dict)


def read_index(tx: Transaction, owners: Sequence[str], terms: Sequence[str]) -> Snapshot:
    """The partitions of these owners with their buffers and documents, and the postings of these terms: two statements at most."""
    cache = cache_of(tx)
    keys = product(owners, terms) if len(owners) <= _MOST_CACHED else ()
    known: dict[tuple[str, str], tuple[Any, Posting]] = {
        key: found for key in keys if (found := cache.terms.get(key))
    }
    missing = [
        term for term in dict.fromkeys(terms) if any((owner, term) not in known for owner in owners)
    ]
    snapshot = Snapshot()
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_INDEX, {"owners": list(owners), "terms": missing}):
        if row.part == _PARTITIONS:
            snapshot.partitions.append(
                PartitionRow(
                    row.name, row.partition, row.number, row.generation, row.vectors, row.embedding
                )
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
        if term not in missing and known[partition.owner_id, term][0] != partition.state
    ]
    chunks |= _read_changes(tx, cache, snapshot, stale)
    new = [*stale, *((partition, term) for partition in snapshot.partitions for term in missing)]
    for partition, term in new:
        posting = decoded(chunks.get((partition.seq, term), {}))
        read = known[partition.owner_id, term] = partition.state, posting
        if len(owners) <= _MOST_CACHED:
            # Some 600 bytes are beside its arrays.
            size = 600 + posting.positions.nbytes + posting.times.nbytes + posting.named.nbytes
            cache.terms.put((partition.owner_id, term), read, size)
    for partition in snapshot.partitions:
        for term in terms:
            _, posting = known[partition.owner_id, term]
            if len(posting.positions):
                snapshot.postings[partition.seq, term] = posting
    return snapshot


def _read_changes(
    tx: Transaction,
    cache: IndexCache,
    snapshot: Snapshot,
    stale: Sequence[tuple[PartitionRow, str]],
) -> dict[tuple[int, str | None], dict[int, bytes]]:
    """Bring the documents of the snapshot up to date, and read the postings that are stale: with one statement, if any."""
    snapshot.documents = {
        partition.seq: _cached_documents(cache, partition) for partition in snapshot.partitions
    }
    behind = [p for p in snapshot.partitions if len(snapshot.documents[p.seq]) < p.documents]
    if not (behind or stale):
        return {}
    since = min(
        (len(snapshot.documents[partition.seq]) // DOCUMENT_CHUNK for partition in behind),
        default=_NEVER,
    )
    values = {
        "partitions": sorted(
            {partition.seq for partition in (*behind, *(partition for partition, _ in stale))}
        ),
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
        records = snapshot.documents[partition.seq] = np.concatenate([known, read])[
            : partition.documents
        ]
        cache.partitions.put(
            ("documents", partition.seq), (partition.generation, records), records.nbytes
        )
    return chunks


def _cached_documents(cache: IndexCache, partition: PartitionRow) -> Documents:
    generation, records = cache.partitions.get(("documents", partition.seq)) or (
        None,
        read_documents(b""),
    )
    documents: Documents = (
        records[: partition.documents] if generation == partition.generation else records[:0]
    )
    return documents


def posting_of(records: Postings) -> Posting:
    times = records["times"]
    return Posting(
        records["position"].astype(np.int64), times & np.uint8(MOST_TIMES), times >= NAMED
    )


def decoded(chunks: Mapping[int, bytes]) -> Posting:
    """The posting in these chunks of one term, which come in any order."""
    data = b"".join(chunks[number] for number in sorted(chunks))
    return posting_of(read_postings(data)) if data else NO_POSTING


def joined_postings(parts: Sequence[Posting]) -> Posting:
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
        posting,
        positions=posting.positions[chosen],
        times=posting.times[chosen],
        named=posting.named[chosen],
    )
