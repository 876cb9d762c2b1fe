"""What a search sees of a partition: its flushed documents and its write buffer as one row of arrays, cached.

The rows of the buffer that were read are cached with the view: the next search reads only new ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any

import numpy as np

from ricordo.search import reader, scoring
from ricordo.search.scoring import Bools, Posting, Spread
from ricordo.search.write_buffer import ROLES, BufferRow, unpack

# The posting of a term that at least this share of the documents hold, as a speaker's name, is spread once and cached.
SPREAD_SHARE = 1 / 16
LEAST_SPREAD = 4096
MOST_SPREADS = 4
# The memory of a view for each document beside its record: its documents, their layout, and spreads; and for a term in the buffer.
_BESIDE = 48 + 5 * MOST_SPREADS
_BESIDE_TERM = 100


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition's documents by position; `buffered` are terms not flushed yet, `spreads` those of frequent terms."""

    records: reader.Documents
    documents: scoring.DocumentColumns
    buffered: Sequence[tuple[int, Mapping[str, int]]]
    roles: frozenset[str]
    spreads: dict[str, Spread] = field(default_factory=dict)

    @property
    def alive(self) -> Bools:
        return self.documents.alive

    def posting(self, flushed: Posting, term: str) -> Posting:
        """The term's posting in all documents, ascending as far as documents were flushed in order."""
        together = reader.joined_postings([flushed, self.posting_in_buffer(term)])
        # Deleted documents leave the postings later; until then they are skipped here.
        return together if self.documents.is_whole else reader.some_of(together, self.alive[together.positions])

    def posting_in_buffer(self, term: str) -> Posting:
        found = [(position, terms[term]) for position, terms in self.buffered if term in terms]
        return reader.posting_of(np.array(found, dtype=reader.POSTING)) if found else reader.NO_POSTING

    def spread(self, posting: Posting, term: str) -> Posting:
        """The posting of a term of this view, spread over all documents where so many hold it that this is worth caching."""
        if len(posting.positions) < max(SPREAD_SHARE * len(self.records), LEAST_SPREAD):
            return posting
        spread = self.spreads.get(term)
        if spread is None:
            spread = self.spreads[term] = scoring.spread_of(self.documents, posting)
            for oldest in list(self.spreads)[:-MOST_SPREADS]:
                self.spreads.pop(oldest, None)
        return replace(posting, spread=spread)


# What a view was made of: the partition's number, generation and flushed documents, and rows of the buffer; and the view.
_Rows = Mapping[int, tuple[BufferRow, Mapping[str, int]]]
_CachedView = tuple[tuple[int | None, int, int], _Rows, PartitionView]


def view_of(
    cache: reader.IndexCache, partition: reader.PartitionRow | None, flushed: reader.Documents, buffer: Sequence[Any]
) -> PartitionView:
    """The view of one partition, from its flushed documents and the rows of its buffer."""
    key = ("view", partition.owner_id if partition else buffer[0].name)
    state = (partition.seq, partition.generation, len(flushed)) if partition else (None, 0, 0)
    cached: _CachedView | None = cache.partitions.get(key)
    known = cached[1] if cached else {}
    if cached and cached[0] == state and list(known) == [row.partition for row in buffer]:
        return cached[2]
    rows = {row.partition: known.get(row.partition) or _read(row) for row in buffer}
    view = _view(flushed, list(rows.values()))
    size = view.records.nbytes + _BESIDE * len(view.records) + _BESIDE_TERM * sum(len(t) for _, t in rows.values())
    cache.partitions.put(key, (state, rows, view), size)
    return view


def _read(row: Any) -> tuple[BufferRow, Mapping[str, int]]:
    read = unpack(row.partition, row.number, row.data)
    # The counts say it all, and views share the words that most of them hold: a cached row takes half of the memory.
    counts = {intern(term): times for term, times in reader.occurrences(read).items()}
    return replace(read, speaker=[], text=[], labels=[]), counts


def _view(flushed: reader.Documents, rows: Sequence[tuple[BufferRow, Mapping[str, int]]]) -> PartitionView:
    added: dict[int, tuple[BufferRow, Mapping[str, int]]] = {}
    deleted: set[int] = set()
    for row, terms in rows:
        if not row.is_deleted:
            added[row.document] = (row, terms)
        elif added.pop(row.document, None) is None:
            deleted.add(row.document)
    records = joined([flushed, reader.document_records([row for row, _ in added.values()])])
    alive = records["alive"] == 1
    if deleted:
        alive[: len(flushed)] &= ~np.isin(flushed["number"], list(deleted))
    counted = np.bincount(records["role"], minlength=len(ROLES)).tolist()
    roles = frozenset(role for role, count in zip(ROLES, counted, strict=True) if count)
    buffered = list(enumerate((terms for _, terms in added.values()), len(flushed)))
    return PartitionView(records, scoring.documents_of(records, alive), buffered, roles)


def joined(arrays: Sequence[reader.Documents]) -> reader.Documents:
    """Records one after the other; as bytes, since field by field takes ten times as long."""
    filled = [array for array in arrays if len(array)]
    return (
        reader.read_documents(b"".join([array.tobytes() for array in filled]))
        if len(filled) > 1
        else (filled or arrays)[0]
    )


def join_views(cache: reader.IndexCache, owners: Sequence[str], views: Sequence[PartitionView]) -> PartitionView:
    """Several partitions as one, in their order: searched together, they share what makes a word rare."""
    if len(views) == 1:
        return views[0]
    key = ("joined views", tuple(owners))
    known = cache.partitions.get(key)
    if known and all(before is view for before, view in zip(known[0], views, strict=True)):
        same: PartitionView = known[1]
        return same
    starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
    records = joined([reader.read_documents(b""), *(view.records for view in views)])
    alive = np.concatenate([np.empty(0, dtype=np.bool_), *(view.alive for view in views)])
    placed = zip(views, starts, strict=False)
    buffered = [(start + position, terms) for view, start in placed for position, terms in view.buffered]
    roles = frozenset[str]().union(*(view.roles for view in views))
    together = PartitionView(records, scoring.documents_of(records, alive), buffered, roles)
    cache.partitions.put(key, (tuple(views), together), records.nbytes + _BESIDE * len(records))
    return together
