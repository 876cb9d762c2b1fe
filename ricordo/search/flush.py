"""Flushing: rows of the buffer become postings and documents of their partition, in the order in which they were written.

What is written is worked out before, in a transaction that only reads: so the database is held for as long as writing takes,
under a lock on the partition's row, and no longer.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, exists, func, select, update

from ricordo.search import clearing
from ricordo.search.records import (
    DOCUMENT_CHUNK,
    POSTING,
    POSTING_CHUNK,
    VECTOR_CHUNK,
    chunks_of,
    document_records,
    occurrences,
    read_documents,
    read_postings,
)
from ricordo.search.vectors import VECTOR
from ricordo.search.write_buffer import LABEL, BufferRow, unpack
from ricordo.storage.repository import Appending, Missing
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

FLUSHED_AT_ONCE = 768
# Taking a document out rewrites a blob for each of its words, so fewer of them make a transaction as long.
TAKEN_OUT_AT_ONCE = 64
WORDS_AT_ONCE = 17_000
# So many words of all partitions together a process remembers as known; they take some 100 bytes each.
MOST_WORDS_KNOWN = 100_000

_TIMES = [bytes((times,)) for times in range(256)]
_Json = jobs.c.payload.type
_PARTITION_READ = select(search_partitions).where(search_partitions.c.owner_id == bindparam("owner_id"))
_PARTITION = _PARTITION_READ.with_for_update()
_NEW_PARTITION = Missing(search_partitions)
_BUFFER = (
    select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data)
    .where(search_buffer.c.owner_id == bindparam("owner_id"))
    .order_by(search_buffer.c.seq)
    .limit(bindparam("most"))
)
_WAITING = select(func.count().label("rows")).where(search_buffer.c.seq.op("IN")(each(bindparam("seqs", type_=_Json))))
_WAITING_OF = select(func.count().label("rows")).where(search_buffer.c.owner_id == bindparam("owner_id"))
_DELETE_BUFFER = delete(search_buffer).where(search_buffer.c.seq.op("IN")(each(bindparam("seqs", type_=_Json))))
_APPEND_POSTINGS, _APPEND_DOCUMENTS = Appending(search_postings), Appending(search_documents)
_ADD_TERMS = Missing(search_terms)
_COUNTED = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(
        documents=bindparam("new_documents"), deleted=bindparam("new_deleted"), generation=bindparam("new_generation")
    )
)
_DOCUMENTS = (
    select(search_documents.c.chunk, search_documents.c.data)
    .where(search_documents.c.partition == bindparam("partition"))
    .order_by(search_documents.c.chunk)
)
_SOME_POSTINGS = select(search_postings.c.term, search_postings.c.chunk, search_postings.c.data).where(
    search_postings.c.partition == bindparam("partition"),
    search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    search_postings.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_THIS_POSTING = (
    (search_postings.c.partition == bindparam("in_partition"))
    & (search_postings.c.term == bindparam("in_term"))
    & (search_postings.c.chunk == bindparam("in_chunk"))
)
_SHORTEN_POSTINGS = update(search_postings).where(_THIS_POSTING).values(data=bindparam("new_data"))
_DELETE_POSTINGS = delete(search_postings).where(_THIS_POSTING)
_DELETE_TERMS = delete(search_terms).where(
    search_terms.c.partition == bindparam("in_partition"),
    search_terms.c.term == bindparam("in_term"),
    ~exists().where(
        search_postings.c.partition == search_terms.c.partition, search_postings.c.term == search_terms.c.term
    ),
)
_PATCH_DOCUMENTS = (
    update(search_documents)
    .where(search_documents.c.partition == bindparam("in_partition"), search_documents.c.chunk == bindparam("in_chunk"))
    .values(data=bindparam("new_data"))
)
_SOME_VECTORS = select(search_vectors).where(
    search_vectors.c.partition == bindparam("partition"),
    search_vectors.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_PATCH_VECTORS = (
    update(search_vectors)
    .where(
        search_vectors.c.partition == bindparam("in_partition"),
        search_vectors.c.embedding == bindparam("in_embedding"),
        search_vectors.c.chunk == bindparam("in_chunk"),
    )
    .values(data=bindparam("new_data"))
)


class _Vocabularies:
    """Words that stand in the vocabularies of partitions, so that they need not be written again; the least used go first."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, tuple[int, set[str]]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def beyond(self, partition: int, generation: int, words: set[str]) -> set[str]:
        """Those of these words that are not known to stand there."""
        with self._lock:
            known, held = self._held.get(partition, (generation, set[str]()))
            return words - held if known == generation else words

    def add(self, partition: int, generation: int, words: set[str]) -> None:
        """These stand there now as well."""
        with self._lock:
            known, before = self._held.pop(partition, (generation, set[str]()))
            self._count -= len(before)
            together = before | words if known == generation else set(words)
            if len(together) > MOST_WORDS_KNOWN:
                together = set(words)
            self._held[partition] = generation, together
            self._count += len(together)
            while self._count > MOST_WORDS_KNOWN and len(self._held) > 1:
                self._count -= len(self._held.popitem(last=False)[1][1])


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of a buffer, packed but not written: `partition` as it was, rows by their numbers, and what they become.

    `postings` and `documents` are rows of their tables without the partition, `words` the terms that go into the vocabulary.
    """

    kind: str
    owner_id: str
    partition: Any
    rows: tuple[int, ...]
    added: int
    removed: tuple[BufferRow, ...]
    postings: list[tuple[str, int, bytes]]
    documents: list[dict[str, Any]]
    words: set[str]


def packed(tx: Transaction, kind: str, owner_id: str, most: int = FLUSHED_AT_ONCE) -> Packed | None:
    """Read and pack the oldest rows of the partition's buffer, at most so many; None where there is none."""
    partition = tx.first(_PARTITION_READ, {"owner_id": owner_id})
    found = tx.all(_BUFFER, {"owner_id": owner_id, "most": most})
    if not found:
        return None
    rows = _some([unpack(row.seq, row.document, row.data) for row in found])
    added, removed = _settle(rows)
    position = partition.documents if partition else 0
    postings = _postings(added, position)
    return Packed(
        kind,
        owner_id,
        partition,
        tuple([row.seq for row in rows]),
        len(added),
        tuple(removed),
        postings,
        chunks_of(document_records(added), position, DOCUMENT_CHUNK) if added else [],
        {term for term, _, _ in postings if not term.startswith(LABEL)},
    )


def write(tx: Transaction, packed: Packed) -> bool:
    """Write what was packed, under a lock on the partition; False, with nothing written, where the partition has changed."""
    # The lock comes first: whoever waited for it must see what the other left.
    partition = tx.first(_PARTITION, {"owner_id": packed.owner_id})
    if partition is None and packed.partition is None:
        tx.run(_NEW_PARTITION, {"owner_id": packed.owner_id, "kind": packed.kind})
        partition = tx.first(_PARTITION, {"owner_id": packed.owner_id})
        if partition.documents or partition.deleted:
            return False
    elif partition is None or packed.partition is None or _state(partition) != _state(packed.partition):
        return False
    if tx.first(_WAITING, {"seqs": list(packed.rows)}).rows < len(packed.rows):
        return False
    deleted = _take_out(tx, partition.seq, packed.removed) if packed.removed else 0
    # A word leaves the vocabulary only where documents are taken out, and that begins another generation.
    generation = partition.generation + (1 if deleted else 0)
    _append(tx, partition.seq, generation, packed)
    tx.run(_DELETE_BUFFER, {"seqs": list(packed.rows)})
    clearing.note(tx, len(packed.rows))
    tx.run(
        _COUNTED,
        {
            "partition": partition.seq,
            "new_documents": partition.documents + packed.added,
            "new_deleted": partition.deleted + deleted,
            "new_generation": generation,
        },
    )
    return True


def waiting(tx: Transaction, owner_id: str) -> int:
    """How many rows the partition's buffer has."""
    return int(tx.first(_WAITING_OF, {"owner_id": owner_id}).rows)


def flush(tx: Transaction, kind: str, owner_id: str, most: int = FLUSHED_AT_ONCE) -> int:
    """Pack the oldest rows of the partition's buffer, at most so many, and write them; returns how many there were."""
    tx.lock(_PARTITION, {"owner_id": owner_id})
    while found := packed(tx, kind, owner_id, most):
        if write(tx, found):
            return len(found.rows)
    return 0


def _state(partition: Any) -> tuple[int, int, int, int]:
    return partition.seq, partition.documents, partition.deleted, partition.generation


def _some(rows: list[BufferRow]) -> list[BufferRow]:
    """As many of the first rows as one transaction should work on, one at least."""
    deleted = words = 0
    for count, row in enumerate(rows):
        deleted += row.is_deleted
        words += len(row.text)
        if count and (deleted > TAKEN_OUT_AT_ONCE or words > WORDS_AT_ONCE):
            return rows[:count]
    return rows


def _settle(rows: Iterable[BufferRow]) -> tuple[list[BufferRow], list[BufferRow]]:
    """What is to be added and what taken out; a document that came and went within these rows is neither."""
    added: dict[int, BufferRow] = {}
    removed: list[BufferRow] = []
    for row in rows:
        if not row.is_deleted:
            added[row.document] = row
        elif added.pop(row.document, None) is None:
            removed.append(row)
    return list(added.values()), removed


def _postings(rows: Sequence[BufferRow], position: int) -> list[tuple[str, int, bytes]]:
    """Term, chunk and data of the postings of these rows, the first of which has this position; in the order of the key."""
    chunks: dict[int, defaultdict[str, bytearray]] = {}
    for here, row in enumerate(rows, position):
        postings = chunks.setdefault(here // POSTING_CHUNK, defaultdict(bytearray))
        place = here.to_bytes(4, "little")
        for term, times in occurrences(row).items():
            postings[term] += place + _TIMES[times]
    # So that each page of the table is visited once.
    return sorted([(term, chunk, bytes(data)) for chunk, held in chunks.items() for term, data in held.items()])


def _append(tx: Transaction, partition: int, generation: int, packed: Packed) -> None:
    tx.run(
        _APPEND_POSTINGS, [{"partition": partition, "term": t, "chunk": c, "data": d} for t, c, d in packed.postings]
    )
    vocabularies: _Vocabularies = tx.cache.setdefault(_Vocabularies, _Vocabularies())
    words = vocabularies.beyond(partition, generation, packed.words)
    tx.run(_ADD_TERMS, [{"partition": partition, "term": term} for term in sorted(words)])
    tx.after_commit.append(lambda: vocabularies.add(partition, generation, words))
    tx.run(_APPEND_DOCUMENTS, [{"partition": partition, **chunk} for chunk in packed.documents])


def _take_out(tx: Transaction, partition: int, removed: Sequence[BufferRow]) -> int:
    """Take documents out of every blob that knows of them; returns how many were there."""
    chunks = {row.chunk: row.data for row in tx.all(_DOCUMENTS, {"partition": partition})}
    numbers = {row.document: row for row in removed}
    places: dict[int, BufferRow] = {}
    for chunk, data in chunks.items():
        records = read_documents(data).copy()
        found = np.flatnonzero((records["alive"] == 1) & np.isin(records["number"], list(numbers)))
        if len(found):
            places |= {chunk * DOCUMENT_CHUNK + int(i): numbers[int(records["number"][i])] for i in found}
            records["alive"][found] = 0
            tx.run(_PATCH_DOCUMENTS, {"in_partition": partition, "in_chunk": chunk, "new_data": records.tobytes()})
    if places:
        _take_out_postings(tx, partition, places)
        _clear_vectors(tx, partition, list(places))
    return len(places)


def _take_out_postings(tx: Transaction, partition: int, places: Mapping[int, BufferRow]) -> None:
    terms: set[str] = set()
    leaving: dict[int, npt.NDArray[np.bool_]] = {}
    for position, row in places.items():
        terms |= occurrences(row).keys()
        chunk = position // POSTING_CHUNK
        leaving.setdefault(chunk, np.zeros(POSTING_CHUNK, dtype=np.bool_))[position % POSTING_CHUNK] = True
    shorter, empty = [], []
    for row in tx.all(_SOME_POSTINGS, {"partition": partition, "terms": sorted(terms), "chunks": sorted(leaving)}):
        records = read_postings(row.data)
        kept = records[~leaving[row.chunk][records["position"] % POSTING_CHUNK]]
        key = {"in_partition": partition, "in_term": row.term, "in_chunk": row.chunk}
        if not len(kept):
            empty.append(key)
        elif len(kept) < len(records):
            shorter.append({**key, "new_data": kept.tobytes()})
    tx.run(_SHORTEN_POSTINGS, shorter)
    tx.run(_DELETE_POSTINGS, empty)
    # A word that nobody says any more must not stay in the vocabulary either.
    tx.run(_DELETE_TERMS, [{"in_partition": partition, "in_term": key["in_term"]} for key in empty])


def _clear_vectors(tx: Transaction, partition: int, positions: Sequence[int]) -> None:
    chunks = sorted({position // VECTOR_CHUNK for position in positions})
    for row in tx.all(_SOME_VECTORS, {"partition": partition, "chunks": chunks}):
        vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
        within = [p % VECTOR_CHUNK for p in positions if p // VECTOR_CHUNK == row.chunk]
        vectors[[place for place in within if place < len(vectors)]] = 0
        key = {"in_partition": partition, "in_embedding": row.embedding, "in_chunk": row.chunk}
        tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})


assert POSTING.itemsize == 5  # noqa: S101 - `_append` writes such records by hand
