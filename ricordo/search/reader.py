"""The blobs of the index, and the reads of a search.

One statement reads the partitions, their buffers and the postings of a query. A second one reads
what has changed in cached partitions. A search is one transaction, so it sees a concurrent flush
completely or not at all. A process caches what it read. A cached entry names the partition's
number, its generation and its number of flushed documents. Within a generation, flushes only
append. Every search reads the partition's row, which shows whether another process has flushed,
deleted or rebuilt something.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import LargeBinary, bindparam, cast, literal, null, select, union_all

from ricordo.search.scoring import PART_SHIFT, Posting
from ricordo.search.write_buffer import BufferRow
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.message_cache import MessageCache
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
        ("length", "<u2"),  # words of the text or part
        ("version", "<u2"),  # of the text, see `BufferRow`
        ("role", "u1"),
        ("alive", "u1"),
        ("form", "u1"),  # see `scoring.py`
    ]
)
# `times` is the number of occurrences in the text, at most 127. The highest bit is set if the
# speaker's name contains the term.
POSTING = np.dtype([("position", "<u4"), ("times", "u1")])
NAMED = 0x80
MOST_TIMES = 0x7F
# Entries in a chunk. A chunk is the content of one row, and an update rewrites the whole chunk.
DOCUMENT_CHUNK = 1024
POSTING_CHUNK = 8192
VECTOR_CHUNK = 256

Documents = npt.NDArray[np.void]
Postings = npt.NDArray[np.void]

# Memory limit in bytes for partitions and for the postings of their terms.
PARTITIONS_LIMIT = 224 * 1024 * 1024
TERMS_LIMIT = 32 * 1024 * 1024
# The most cached words of vocabularies, at some 100 bytes each.
WORDS_LIMIT = 100_000
# A search through more partitions than this does not cache its terms, since there would be too
# many.
_MAX_CACHED_OWNERS = 8

_Json = jobs.c.payload.type
_OWNERS = each(bindparam("owners", type_=_Json))
_TERMS = each(bindparam("terms", type_=_Json))
_THESE = each(bindparam("partitions", type_=_Json))
# The parts of `_INDEX`.
_PARTITIONS = 0
_BUFFER = 1
_POSTINGS = 2
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
    """Return the records of these rows, in order: one for each part of a text.

    Args:
        rows: Rows of a buffer that add documents.
    """
    records = [
        (
            row.document,
            row.created_at,
            row.conversation,
            row.user,
            length,
            row.version,
            row.role,
            True,
            form,
        )
        for row in rows
        for length, form in zip(row.lengths, _forms(row), strict=True)
    ]
    return np.array(records, dtype=DOCUMENT)


def _forms(row: BufferRow) -> list[int]:
    """Return the `form` of each part of a text.

    A question mark at the end marks only the last part.
    """
    if len(row.lengths) == 1:
        return [int(row.asks)]
    forms = [number << PART_SHIFT for number in range(1, len(row.lengths) + 1)]
    forms[-1] |= row.asks
    return forms


def occurrences_by_part(row: BufferRow) -> list[dict[str, int]]:
    """Return the terms in each part of a text, with their counts.

    Each part also has the terms of the speaker's name, and the labels.

    Args:
        row: A row of the buffer. An uncut text gives one part.
    """
    if len(row.lengths) == 1:
        return [occurrences(row)]
    ends = list(accumulate(row.lengths))
    return [
        occurrences(replace(row, text=row.text[end - length : end]))
        for length, end in zip(row.lengths, ends, strict=True)
    ]


def occurrences(row: BufferRow) -> dict[str, int]:
    """Return the terms of a row with their `times`; labels are included.

    Args:
        row: A row of a buffer.
    """
    counts: dict[str, int] = dict(Counter(row.text))
    if len(row.text) > MOST_TIMES:
        counts = {term: min(times, MOST_TIMES) for term, times in counts.items()}
    for term in row.speaker:
        counts[term] = counts.get(term, 0) | NAMED
    if row.labels:
        return counts | dict.fromkeys(row.labels, 1)
    return counts


def chunks_of(rows: npt.NDArray[Any], position: int, size: int) -> list[dict[str, Any]]:
    """Cut new rows into pieces at the boundaries of chunks.

    Each piece is to be appended to the stored part of its chunk, which is empty for a new chunk.

    Args:
        rows: Entries of the partition, such as documents or vectors.
        position: The position of the first row in the partition.
        size: The number of entries in a chunk, such as `DOCUMENT_CHUNK`.

    Returns:
        The pieces in order, each with the number of its `chunk` and its `data` as bytes.
    """
    end = position + len(rows)
    cuts = [position, *range((position // size + 1) * size, end, size), end]
    return [
        {"chunk": start // size, "data": rows[start - position : stop - position].tobytes()}
        for start, stop in pairwise(cuts)
        if stop > start
    ]


def read_documents(data: bytes) -> Documents:
    """Return the records of a chunk as an array that cannot be changed.

    Args:
        data: The chunk's bytes, as they are stored.
    """
    return np.frombuffer(data, dtype=DOCUMENT)


def read_postings(data: bytes) -> Postings:
    """Return the occurrences of a chunk as an array that cannot be changed.

    Args:
        data: The chunk's bytes, as they are stored.
    """
    return np.frombuffer(data, dtype=POSTING)


class SizedCache:
    """A cache of limited total size that drops the least recently used entries.

    `group` returns the group of a key. A new entry does not push out entries of its own group, even
    if the cache is then too large.
    """

    def __init__(self, limit: int, group: Callable[[Any], Any] = lambda key: key) -> None:
        self._limit = limit
        self._group = group
        self._entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """Return the entry of this key, or None, and mark it as used.

        Args:
            key: The key with which it was put.
        """
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Any, entry: Any, size: int) -> None:
        """Cache this entry, and drop others if the cache is too large.

        Args:
            key: Any hashable key; its former entry is replaced.
            entry: The entry, which must not change later.
            size: Its size in the unit of the cache's limit: bytes, or words of a vocabulary.
        """
        with self._lock:
            self._size += size - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (entry, size)
            group = self._group(key)
            while self._size > self._limit:
                oldest = next(
                    (other for other in self._entries if self._group(other) != group), None
                )
                if oldest is None:
                    return
                self._size -= self._entries.pop(oldest)[1]


class IndexCache:
    """The caches of one database's index.

    They hold partitions, terms by owner and term, and vocabularies by partition.
    """

    def __init__(self) -> None:
        self.partitions = SizedCache(PARTITIONS_LIMIT, group=itemgetter(1))
        self.terms = SizedCache(TERMS_LIMIT)
        self.words = SizedCache(WORDS_LIMIT)


def shared_cache(tx: Transaction) -> IndexCache:
    """Return the index cache that all transactions of a store share; create it if missing.

    Args:
        tx: The transaction.
    """
    cache: IndexCache = tx.cache.setdefault(IndexCache, IndexCache())
    return cache


def drop_caches(tx: Transaction) -> None:
    """Drop the texts that this process caches: words of the index, and messages in windows.

    Args:
        tx: A transaction of the store whose caches are dropped.
    """
    tx.cache.pop(IndexCache, None)
    tx.cache.pop(MessageCache, None)


def cache_of(tx: Transaction) -> IndexCache:
    """Return the shared cache, or an empty one in a transaction that has written.

    Such a transaction also sees rows that may be rolled back.

    Args:
        tx: The transaction that reads the index.
    """
    if tx.has_written:
        return IndexCache()
    return shared_cache(tx)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """The row of a partition, as a search reads it.

    Attributes:
        owner_id: The agent or archive.
        seq: The number of the partition.
        documents: The number of flushed positions; each part of a text has one.
        generation: A number that rises with each change other than an append, e.g. a deletion.
        vectors: The number of positions that the model `embedding` has embedded.
        embedding: The handle of the model whose vectors searches use; None: there are none.
    """

    owner_id: str
    seq: int
    documents: int
    generation: int
    vectors: int
    embedding: str | None

    @property
    def state(self) -> tuple[int, int, int]:
        """The state of the partition. Cached postings from another state are read again."""
        return self.seq, self.generation, self.documents


@dataclass(slots=True)
class Snapshot:
    """The rows that a search reads.

    Buffers are by owner, documents by partition, and postings by partition and term.
    """

    partitions: list[PartitionRow] = field(default_factory=list)
    buffers: dict[str, list[Any]] = field(default_factory=dict)
    documents: dict[int, Documents] = field(default_factory=dict)
    postings: dict[tuple[int, str], Posting] = field(default_factory=dict)


def _cached_postings(
    cache: IndexCache, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[Any, Posting]]:
    """Return the cached postings, each with its partition's state, by owner and term."""
    postings: dict[tuple[str, str], tuple[Any, Posting]] = {}
    for key in keys:
        if entry := cache.terms.get(key):
            postings[key] = entry
    return postings


def _read_snapshot(
    tx: Transaction, owners: Sequence[str], terms: Sequence[str]
) -> tuple[Snapshot, dict[tuple[int, str | None], dict[int, bytes]]]:
    """Read the partitions and buffers of these owners, and the chunks of the terms' postings."""
    snapshot = Snapshot()
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_INDEX, {"owners": list(owners), "terms": terms}):
        if row.part == _PARTITIONS:
            snapshot.partitions.append(
                PartitionRow(
                    owner_id=row.name,
                    seq=row.partition,
                    documents=row.number,
                    generation=row.generation,
                    vectors=row.vectors,
                    embedding=row.embedding,
                )
            )
        elif row.part == _BUFFER:
            snapshot.buffers.setdefault(row.name, []).append(row)
        else:
            chunks.setdefault((row.partition, row.name), {})[row.number] = row.data
    for rows in snapshot.buffers.values():
        rows.sort(key=lambda row: row.partition)
    return snapshot, chunks


def read_index(tx: Transaction, owners: Sequence[str], terms: Sequence[str]) -> Snapshot:
    """Read the partitions, buffers and documents of these owners, and the terms' postings.

    It takes two statements at most.

    Args:
        tx: The transaction.
        owners: The distinct ids of agents or archives; those without an index are left out.
        terms: Terms as the index stores them: words, and labels as `label_term` returns them.
    """
    cache = cache_of(tx)
    is_cacheable = len(owners) <= _MAX_CACHED_OWNERS
    postings = _cached_postings(cache, product(owners, terms) if is_cacheable else ())
    missing = [
        term
        for term in dict.fromkeys(terms)
        if any((owner, term) not in postings for owner in owners)
    ]
    snapshot, chunks = _read_snapshot(tx, owners, missing)
    stale = [
        (partition, term)
        for partition in snapshot.partitions
        for term in terms
        if term not in missing and postings[partition.owner_id, term][0] != partition.state
    ]
    chunks |= _read_changes(tx, cache, snapshot, stale)
    for partition, term in [*stale, *product(snapshot.partitions, missing)]:
        posting = decoded(chunks.get((partition.seq, term), {}))
        entry = (partition.state, posting)
        postings[partition.owner_id, term] = entry
        if is_cacheable:
            # An entry takes some 600 bytes more than its arrays.
            size = 600 + posting.positions.nbytes + posting.times.nbytes + posting.named.nbytes
            cache.terms.put((partition.owner_id, term), entry, size)
    for partition, term in product(snapshot.partitions, terms):
        _, posting = postings[partition.owner_id, term]
        if len(posting.positions):
            snapshot.postings[partition.seq, term] = posting
    return snapshot


def _read_changes(
    tx: Transaction,
    cache: IndexCache,
    snapshot: Snapshot,
    stale: Sequence[tuple[PartitionRow, str]],
) -> dict[tuple[int, str | None], dict[int, bytes]]:
    """Update the snapshot's documents, and read the chunks of stale postings.

    It takes one statement at most.
    """
    snapshot.documents = {
        partition.seq: _cached_documents(cache, partition) for partition in snapshot.partitions
    }
    outdated = [
        partition
        for partition in snapshot.partitions
        if len(snapshot.documents[partition.seq]) < partition.documents
    ]
    if not (outdated or stale):
        return {}
    since = min(
        (len(snapshot.documents[partition.seq]) // DOCUMENT_CHUNK for partition in outdated),
        default=_NEVER,
    )
    changed = {partition.seq for partition in outdated}
    changed |= {partition.seq for partition, _ in stale}
    parameters = {
        "partitions": sorted(changed),
        "terms": sorted({term for _, term in stale}),
        "since": since,
    }
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_CHANGED, parameters):
        chunks.setdefault((row.partition, row.term), {})[row.chunk] = row.data
    for partition in outdated:
        parts = chunks.get((partition.seq, None), {})
        old_records = snapshot.documents[partition.seq][: since * DOCUMENT_CHUNK]
        new_records = read_documents(b"".join(parts[number] for number in sorted(parts)))
        records = np.concatenate([old_records, new_records])[: partition.documents]
        snapshot.documents[partition.seq] = records
        cache.partitions.put(
            ("documents", partition.seq), (partition.generation, records), records.nbytes
        )
    return chunks


def _cached_documents(cache: IndexCache, partition: PartitionRow) -> Documents:
    cached: tuple[int, Documents] | None = cache.partitions.get(("documents", partition.seq))
    if cached is None or cached[0] != partition.generation:
        return read_documents(b"")
    return cached[1][: partition.documents]


def posting_of(records: Postings) -> Posting:
    """Return the posting of one term from its records.

    Args:
        records: The records as the index stores them.
    """
    times = records["times"]
    return Posting(
        records["position"].astype(np.int64), times & np.uint8(MOST_TIMES), times >= NAMED
    )


def decoded(chunks: Mapping[int, bytes]) -> Posting:
    """Return the posting of one term from its numbered chunks.

    Args:
        chunks: The chunks' bytes by number. Without any, the posting is empty.
    """
    data = b"".join(chunks[number] for number in sorted(chunks))
    if data:
        return posting_of(read_postings(data))
    return NO_POSTING


def joined_postings(parts: Sequence[Posting]) -> Posting:
    """Concatenate postings, without weights and spreads.

    A position occurs as often in the result as in the parts.

    Args:
        parts: The postings, in the order of the result: of one term in several partitions, for
            example, or of several terms.
    """
    filled = [part for part in parts if len(part.positions)]
    if len(filled) < 2:
        return filled[0] if filled else NO_POSTING
    return Posting(
        np.concatenate([part.positions for part in filled]),
        np.concatenate([part.times for part in filled]),
        np.concatenate([part.named for part in filled]),
    )


def some_of(posting: Posting, chosen: Any) -> Posting:
    """Return the posting with only some of its entries; its weight and its spread stay.

    Args:
        posting: The posting.
        chosen: A mask or indexes of the entries, as numpy takes them.
    """
    return replace(
        posting,
        positions=posting.positions[chosen],
        times=posting.times[chosen],
        named=posting.named[chosen],
    )
