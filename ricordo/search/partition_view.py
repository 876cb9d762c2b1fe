"""A partition as one search sees it: its flushed documents and its buffer as one row of arrays, with postings for a query's terms.

The last view of a partition is kept. Where documents came since, or were flushed, it goes on from there; where some are
deleted, it is made anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ricordo.search import scoring
from ricordo.search.cache import IndexCache
from ricordo.search.reader import PartitionRow, cache_documents, decoded, joined_postings, some_of
from ricordo.search.records import (
    POSTING,
    Documents,
    Postings,
    document_records,
    occurrences,
    read_documents,
)
from ricordo.search.scoring import Posting, Spread
from ricordo.search.write_buffer import ROLES, BufferRow, unpack

Bools = npt.NDArray[np.bool_]
# A term that at least this share of the documents hold, as the name of who speaks, is worked out for all of them and kept.
SPREAD_SHARE = 1 / 16
LEAST_SPREAD = 4096
MOST_SPREADS = 4
_NO_POSTINGS = np.empty(0, dtype=POSTING)
# What a view takes for each document beside its record: its documents and their layout, and its spreads.
_BESIDE = 48 + 5 * MOST_SPREADS


@dataclass(frozen=True, slots=True)
class PartitionView:
    """All documents of a partition that may be found, by position; `buffer` holds the postings of those that are not flushed yet.

    None has another role than `roles`. `spreads` are of terms asked for that many hold; they go with the view.
    """

    records: Documents
    documents: scoring.Documents
    buffer: Mapping[str, Postings]
    roles: frozenset[str]
    spreads: dict[str, Spread] = field(default_factory=dict)

    @property
    def alive(self) -> Bools:
        """Which positions hold a document that is still there."""
        return self.documents.alive

    def posting(self, flushed: Posting, term: str) -> Posting:
        """Where the term stands, in ascending position as far as documents were flushed in order."""
        waiting = self.waiting(term)
        together = joined_postings([flushed, waiting]) if waiting else flushed
        # Postings of documents that are deleted leave the blobs with the next flush; until then they are passed over here.
        return together if self.documents.is_whole else some_of(together, self.alive[together.positions])

    def spread(self, posting: Posting, term: str) -> Posting:
        """The posting of a term of this view, worked out for all documents where so many hold it that this is worth keeping."""
        if len(posting.positions) < max(SPREAD_SHARE * len(self.records), LEAST_SPREAD):
            return posting
        spread = self.spreads.get(term)
        if spread is None:
            spread = self.spreads[term] = scoring.spread_of(self.documents, posting)
            for oldest in list(self.spreads)[:-MOST_SPREADS]:
                self.spreads.pop(oldest, None)
        return replace(posting, spread=spread)

    def waiting(self, term: str) -> Posting | None:
        """Where the term stands in the buffer."""
        records = self.buffer.get(term)
        return None if records is None else decoded({0: records.tobytes()})


@dataclass(frozen=True, slots=True)
class _CachedView:
    """A view, and what it was made of: so many flushed documents, and rows of the buffer by their numbers.

    `partition` is None before the first flush. `is_plain` says that each of these rows is one more document, in their order.
    """

    partition: int | None
    generation: int
    flushed: int
    rows: tuple[int, ...]
    is_plain: bool
    view: PartitionView


def view_of(
    cache: IndexCache, partition: PartitionRow | None, records: Documents, buffer: Sequence[Any]
) -> PartitionView:
    """The view of one partition, from its flushed documents and the rows of its buffer."""
    place = ("view", partition.owner_id if partition else buffer[0].name)
    number, generation = (partition.seq, partition.generation) if partition else (None, 0)
    rows = tuple([row.partition for row in buffer])
    known: _CachedView | None = cache.partitions.get(place)
    if known and (known.partition not in (number, None) or known.generation != generation):
        known = None
    if known and (known.flushed, known.rows) == (len(records), rows):
        return known.view
    view, is_plain = (known and _continued(known, records, buffer, rows)) or _made(records, buffer)
    kept = _CachedView(number, generation, len(records), rows, is_plain, view)
    cache.partitions.put(place, kept, view.records.nbytes + _BESIDE * len(view.records))
    if partition:
        cache_documents(cache, partition, view.records[: len(records)])
    return view


def _made(flushed: Documents, buffer: Sequence[Any]) -> tuple[PartitionView, bool]:
    rows = [unpack(row.partition, row.number, row.data) for row in buffer]
    came: dict[int, BufferRow] = {}
    deleted: set[int] = set()
    for row in rows:
        if not row.is_deleted:
            came[row.document] = row
        elif came.pop(row.document, None) is None:
            deleted.add(row.document)
    added = list(came.values())
    records = np.concatenate([flushed, document_records(added)]) if added else flushed
    alive = records["alive"] == 1
    if deleted:
        alive[: len(flushed)] &= ~np.isin(flushed["number"], list(deleted))
    view = PartitionView(records, scoring.documents_of(records, alive), _postings(added, len(flushed)), _roles(records))
    return view, len(added) == len(rows)


def _continued(
    known: _CachedView, flushed: Documents, buffer: Sequence[Any], numbers: tuple[int, ...]
) -> tuple[PartitionView, bool] | None:
    """The cached view with the documents that came since; None where more happened than that."""
    view, count = known.view, len(flushed)
    overlap = min(count, len(view.records))
    taken = overlap - known.flushed
    waiting = known.rows[max(taken, 0) :]
    if taken < 0 or (count > known.flushed and not known.is_plain) or numbers[: len(waiting)] != waiting:
        return None
    if flushed[known.flushed : overlap].tobytes() != view.records[known.flushed : overlap].tobytes():
        return None
    rows = [unpack(row.partition, row.number, row.data) for row in buffer[len(waiting) :]]
    held = set(view.records["number"][count:].tolist())
    if any(row.is_deleted for row in rows) or len(held | {row.document for row in rows}) < len(held) + len(rows):
        return None
    new = joined([flushed[overlap:], document_records(rows)])
    documents, records = view.documents, view.records
    if len(new):
        records = joined([records, new])
        alive = np.append(view.alive, np.ones(len(new), dtype=np.bool_))
        documents = scoring.documents_of(records, alive)
    postings = _beyond(view.buffer, count) if taken else dict(view.buffer)
    for term, found in _postings(rows, len(records) - len(rows)).items():
        postings[term] = joined([postings[term], found]) if term in postings else found
    return PartitionView(records, documents, postings, view.roles | _roles(new)), known.is_plain


def _roles(records: Documents) -> frozenset[str]:
    """The roles that these have."""
    counted = np.bincount(records["role"], minlength=len(ROLES))
    return frozenset(role for role, count in zip(ROLES, counted.tolist(), strict=True) if count)


def _postings(rows: Sequence[BufferRow], position: int) -> dict[str, Postings]:
    """Where terms stand in these rows, the first of which has this position."""
    postings: dict[str, list[tuple[int, int]]] = {}
    for here, row in enumerate(rows, position):
        for term, times in occurrences(row).items():
            postings.setdefault(term, []).append((here, times))
    return {term: np.array(found, dtype=POSTING) for term, found in postings.items()}


def _beyond(buffer: Mapping[str, Postings], position: int) -> dict[str, Postings]:
    """The postings of documents from this position on: the others were flushed."""
    left = {term: found for term, found in buffer.items() if found["position"][-1] >= position}
    return {term: found[found["position"] >= position] for term, found in left.items()}


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Postings (or records of another kind) one after the other; as bytes, since field by field takes ten times as long."""
    held = [array for array in arrays if len(array)]
    if len(held) < 2:
        return held[0] if held else (arrays[0] if arrays else _NO_POSTINGS)
    return np.frombuffer(b"".join([array.tobytes() for array in held]), dtype=held[0].dtype)


def join_views(cache: IndexCache, owners: Sequence[str], views: Sequence[PartitionView]) -> PartitionView:
    """Several partitions as one, in their order: searched together, they share what makes a word rare."""
    if len(views) == 1:
        return views[0]
    place = ("joined views", tuple(owners))
    known = cache.partitions.get(place)
    if known and all(before is view for before, view in zip(known[0], views, strict=True)):
        same: PartitionView = known[1]
        return same
    starts = np.cumsum([0, *(len(view.records) for view in views)])
    records = joined([read_documents(b""), *(view.records for view in views)])
    alive = np.concatenate([np.empty(0, dtype=np.bool_), *(view.alive for view in views)])
    buffer: dict[str, Postings] = {}
    for view, start in zip(views, starts, strict=False):
        for term, postings in view.buffer.items():
            placed = moved(postings, start)
            buffer[term] = joined([buffer[term], placed]) if term in buffer else placed
    together = PartitionView(
        records, scoring.documents_of(records, alive), buffer, frozenset[str]().union(*(view.roles for view in views))
    )
    cache.partitions.put(place, (tuple(views), together), records.nbytes + _BESIDE * len(records))
    return together


def moved(postings: Postings, start: int) -> Postings:
    """The postings of a partition whose documents begin at this position of a joined view."""
    placed = postings.copy()
    placed["position"] += np.uint32(start)
    return placed
