"""Reads the index: one statement for the partitions, their buffers and the postings of a query, one for what changed since.

All of a search happens in one transaction, so a flush beside it is seen whole or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from sqlalchemy import LargeBinary, bindparam, cast, literal, null, select, union_all

from ricordo.search.cache import CachedPosting, IndexCache, cache_of
from ricordo.search.records import (
    DOCUMENT_CHUNK,
    MOST_TIMES,
    NAMED,
    POSTING_CHUNK,
    Documents,
    read_documents,
    read_postings,
)
from ricordo.search.scoring import Posting
from ricordo.storage.search_tables import search_buffer, search_documents, search_partitions, search_postings
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

# The terms of a search through more partitions than this are not cached: there would be too many of them.
_MOST_CACHED = 8

_Json = jobs.c.payload.type
_OWNERS = each(bindparam("owners", type_=_Json))
_PARTITIONS, _BUFFER, _POSTINGS, _DOCUMENTS = 0, 1, 2, 3
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
    select(
        literal(_DOCUMENTS).label("part"),
        search_documents.c.partition,
        null().label("term"),
        search_documents.c.chunk,
        search_documents.c.data,
    ).where(search_documents.c.partition.op("IN")(_THESE), search_documents.c.chunk >= bindparam("documents_since")),
    select(
        literal(_POSTINGS),
        search_postings.c.partition,
        search_postings.c.term,
        search_postings.c.chunk,
        search_postings.c.data,
    ).where(
        search_postings.c.partition.op("IN")(_THESE),
        search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
        search_postings.c.chunk >= bindparam("postings_since"),
    ),
)
NO_POSTING = Posting(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.bool_))


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
    chunks: dict[tuple[int, str], dict[int, bytes]] = {}
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
    new = {
        (partition.owner_id, term): _cached(partition, decoded(chunks.get((partition.seq, term), {})))
        for partition in snapshot.partitions
        for term in missing
    }
    known |= new
    snapshot.documents = {partition.seq: _cached_documents(cache, partition) for partition in snapshot.partitions}
    new |= _read_changes(tx, cache, snapshot, _stale(snapshot.partitions, known))
    if len(owners) <= _MOST_CACHED:
        for key, cached in new.items():
            cache.terms.put(key, cached, cached.nbytes)
    known |= new
    for partition in snapshot.partitions:
        for term in terms:
            posting = _up_to(known[partition.owner_id, term], partition.documents)
            if len(posting.positions):
                snapshot.postings[partition.seq, term] = posting
    return snapshot


def cache_documents(cache: IndexCache, partition: PartitionRow, records: Documents) -> None:
    """Cache these as the flushed documents of the partition."""
    cache.partitions.put(("documents", partition.seq), (partition.generation, records), records.nbytes)


def decoded(chunks: Mapping[int, bytes]) -> Posting:
    """The postings in these chunks of one term, which come in any order."""
    if not chunks:
        return NO_POSTING
    records = read_postings(b"".join(chunks[number] for number in sorted(chunks)))
    times = records["times"]
    return Posting(records["position"].astype(np.int64), times & np.uint8(MOST_TIMES), times >= NAMED)


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
    """Those of a term's postings that a slice, an array of places or a mask chooses."""
    return replace(
        posting, positions=posting.positions[chosen], times=posting.times[chosen], named=posting.named[chosen]
    )


def _before(posting: Posting, position: int) -> Posting:
    return some_of(posting, slice(0, int(np.searchsorted(posting.positions, position))))


def _cached(partition: PartitionRow, posting: Posting) -> CachedPosting:
    return CachedPosting(partition.seq, partition.generation, partition.documents, posting)


def _up_to(known: CachedPosting, documents: int) -> Posting:
    """Without what was flushed after the snapshot: another search may have seen more."""
    return known.posting if known.documents <= documents else _before(known.posting, documents)


def _stale(
    partitions: Sequence[PartitionRow], known: Mapping[tuple[str, str], CachedPosting]
) -> dict[tuple[PartitionRow, str], CachedPosting]:
    """The cached postings that are not all there is now; without any positions where they are of no use."""
    stale: dict[tuple[PartitionRow, str], CachedPosting] = {}
    rows = {partition.owner_id: partition for partition in partitions}
    for (owner, term), before in known.items():
        partition = rows.get(owner)
        if partition is None:
            continue
        if (before.partition, before.generation) != (partition.seq, partition.generation):
            stale[partition, term] = CachedPosting(partition.seq, partition.generation, 0, NO_POSTING)
        elif before.documents < partition.documents:
            stale[partition, term] = before
    return stale


def _cached_documents(cache: IndexCache, partition: PartitionRow) -> Documents:
    """The flushed documents of a partition as far as they are cached."""
    generation, records = cache.partitions.get(("documents", partition.seq)) or (None, read_documents(b""))
    documents: Documents = records[: partition.documents] if generation == partition.generation else records[:0]
    return documents


def _read_changes(
    tx: Transaction, cache: IndexCache, snapshot: Snapshot, terms: Mapping[tuple[PartitionRow, str], CachedPosting]
) -> dict[tuple[str, str], CachedPosting]:
    """Bring documents and terms up to date with one statement, if anything is missing; returns the terms it read on."""
    documents = {s.seq: s for s in snapshot.partitions if len(snapshot.documents[s.seq]) < s.documents}
    if not (documents or terms):
        return {}
    since = min((len(snapshot.documents[seq]) // DOCUMENT_CHUNK for seq in documents), default=_NEVER)
    postings_since = min((known.documents // POSTING_CHUNK for known in terms.values()), default=_NEVER)
    values = {
        "partitions": sorted({*documents, *(partition.seq for partition, _ in terms)}),
        "terms": sorted({term for _, term in terms}),
        "documents_since": since,
        "postings_since": postings_since,
    }
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_CHANGED, values):
        chunks.setdefault((row.partition, row.term), {})[row.chunk] = row.data
    for partition in documents.values():
        parts = chunks.get((partition.seq, None), {})
        data = b"".join(parts[number] for number in sorted(parts))
        before = snapshot.documents[partition.seq][: since * DOCUMENT_CHUNK]
        records = np.concatenate([before, read_documents(data)])[: partition.documents]
        snapshot.documents[partition.seq] = records
        cache_documents(cache, partition, records)
    read: dict[tuple[str, str], CachedPosting] = {}
    for (partition, term), known in terms.items():
        kept = _before(known.posting, postings_since * POSTING_CHUNK)
        added = decoded(chunks.get((partition.seq, term), {}))
        read[partition.owner_id, term] = _cached(partition, joined_postings([kept, added]))
    return read
