"""Flushing: rows of the write buffer become postings and documents of their partition, in the order in which they were written.

What is written is worked out before, in a transaction that only reads: so the database is locked for as long as writing takes,
under a lock on the partition's row, and no longer. Deletions of flushed documents are left to `deletion.py`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, update

from ricordo.search import write_buffer
from ricordo.search.partitions import lock_partition, partition_of
from ricordo.search.reader import (
    DOCUMENT_CHUNK,
    POSTING,
    POSTING_CHUNK,
    WORDS_LIMIT,
    chunks_of,
    document_records,
    occurrences,
    shared_cache,
)
from ricordo.search.write_buffer import LABEL, BufferRow
from ricordo.storage.engine.repository import Appending, Missing
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.search_tables import search_documents, search_partitions, search_postings, search_terms

FLUSHED_AT_ONCE = 768
_WORDS_AT_ONCE = 17_000

_TIMES = [bytes((times,)) for times in range(256)]
_NEW_PARTITION = Missing(search_partitions)
_APPEND_POSTINGS, _APPEND_DOCUMENTS = Appending(search_postings), Appending(search_documents)
_ADD_TERMS = Missing(search_terms)
_COUNTED = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values(documents=bindparam("new_documents"))
)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a write buffer, packed but not written: `partition` as it was, the rows' numbers, and what they become.

    `postings` and `documents` are rows of their tables without the partition, `words` the terms that go into the vocabulary.
    """

    kind: str
    owner_id: str
    partition: Any
    rows: tuple[int, ...]
    added: int
    postings: list[tuple[str, int, bytes]]
    documents: list[dict[str, Any]]
    words: set[str]


def pack_rows(tx: Transaction, kind: str, owner_id: str, most: int = FLUSHED_AT_ONCE) -> PackedRows | None:
    """Pack the oldest rows of the owner's buffer, at most so many; None where there is none, or a deletion comes first."""
    partition = partition_of(tx, owner_id)
    rows, added = _settled(write_buffer.oldest(tx, owner_id, most))
    if not rows:
        return None
    position = partition.documents if partition else 0
    postings = _postings(added, position)
    return PackedRows(
        kind,
        owner_id,
        partition,
        tuple([row.seq for row in rows]),
        len(added),
        postings,
        chunks_of(document_records(added), position, DOCUMENT_CHUNK) if added else [],
        {term for term, _, _ in postings if not term.startswith(LABEL)},
    )


def write_rows(tx: Transaction, packed: PackedRows) -> bool:
    """Write what was packed, under a lock on the partition; False, with nothing written, where the partition has changed."""
    # The lock comes first, so that a second writer sees what the first has written.
    partition = lock_partition(tx, packed.owner_id)
    if partition is None and packed.partition is None:
        tx.run(_NEW_PARTITION, {"owner_id": packed.owner_id, "kind": packed.kind})
        partition = lock_partition(tx, packed.owner_id)
        if partition.documents or partition.deleted:
            return False
    elif partition is None or packed.partition is None or _state(partition) != _state(packed.partition):
        return False
    if not write_buffer.has_all(tx, packed.rows):
        return False
    seq = partition.seq
    tx.run(_APPEND_POSTINGS, [{"partition": seq, "term": t, "chunk": c, "data": d} for t, c, d in packed.postings])
    _add_words(tx, partition, packed.words)
    tx.run(_APPEND_DOCUMENTS, [{"partition": seq, **chunk} for chunk in packed.documents])
    write_buffer.delete_rows(tx, packed.rows)
    tx.run(_COUNTED, {"partition": seq, "new_documents": partition.documents + packed.added})
    return True


def flush(tx: Transaction, kind: str, owner_id: str, most: int = FLUSHED_AT_ONCE) -> int:
    """Pack the oldest rows of the owner's buffer, at most so many, and write them; returns how many there were."""
    lock_partition(tx, owner_id)
    while packed := pack_rows(tx, kind, owner_id, most):
        if write_rows(tx, packed):
            return len(packed.rows)
    return 0


def _settled(rows: Sequence[BufferRow]) -> tuple[list[BufferRow], list[BufferRow]]:
    """The first rows, as many as one transaction should write, up to a deletion of a flushed document; and what they add.

    A document that is added and deleted within these rows is not written.
    """
    added: dict[int, BufferRow] = {}
    words = 0
    for count, row in enumerate(rows):
        words += len(row.text)
        if (row.is_deleted and row.document not in added) or (count and words > _WORDS_AT_ONCE):
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
        postings = chunks.setdefault(here // POSTING_CHUNK, defaultdict(bytearray))
        place = here.to_bytes(4, "little")
        for term, times in occurrences(row).items():
            postings[term] += place + _TIMES[times]
    # In this order each page of the table is visited once.
    return sorted([(term, chunk, bytes(data)) for chunk, terms in chunks.items() for term, data in terms.items()])


def _add_words(tx: Transaction, partition: Any, words: set[str]) -> None:
    """Add words to the partition's vocabulary, without those that are cached as being in it."""
    cache = shared_cache(tx).words
    generation, known = cache.get(partition.seq) or (partition.generation, frozenset[str]())
    if generation != partition.generation:
        known = frozenset()
    tx.run(_ADD_TERMS, [{"partition": partition.seq, "term": term} for term in sorted(words - known)])
    together = known | words
    if len(together) > WORDS_LIMIT:
        together = frozenset(words)
    tx.after_commit.append(lambda: cache.put(partition.seq, (partition.generation, together), len(together)))


def _state(partition: Any) -> tuple[int, int, int, int]:
    return partition.seq, partition.documents, partition.deleted, partition.generation


assert POSTING.itemsize == 5  # noqa: S101 - `_postings` writes such records by hand
