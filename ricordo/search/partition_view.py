"""What a search sees of a partition: its flushed documents and its write buffer as one row of arrays, cached.

The rows of the buffer that were read are cached with the view: the next search reads only new ones. A user's search gets
a view that holds only what this user may see. So nobody's scores depend on what is hidden from them: neither the rarity
of words, nor the usual length of texts, nor the neighbours of a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from sys import intern
from typing import Any

import numpy as np

from ricordo.domain.scope import NOBODY
from ricordo.search import reader, scoring
from ricordo.search.scoring import Bools, Integers, Posting, Spread
from ricordo.search.write_buffer import ROLES, BufferRow, fingerprint, unpack

# The posting of a term that at least this share of the documents hold, as a speaker's name, is spread once and cached.
SPREAD_SHARE = 1 / 16
LEAST_SPREAD = 4096
MOST_SPREADS = 4
# The memory of a view for each document beside its record: its documents, their layout, and spreads; and for a term in the buffer.
_BESIDE = 48 + 5 * MOST_SPREADS
_BESIDE_TERM = 100
# And of a part of a view for each document of the whole: its place.
_BESIDE_HIDDEN = 8


_numbers = count()


@dataclass(frozen=True)
class PartitionView:
    """A partition's documents by position; `buffered` are terms not flushed yet, `spreads` those of frequent terms.

    Where documents are left out, `shown` holds the partition's positions of those that are here, `places` the position here
    of each of the partition's (-1: left out), and `audience` says for whom; else these are None.
    """

    records: reader.Documents
    alive: Bools
    buffered: Sequence[tuple[int, Mapping[str, int]]]
    roles: frozenset[str]
    shown: Integers | None = None
    places: Integers | None = None
    audience: tuple[str, ...] | None = None
    spreads: dict[str, Spread] = field(default_factory=dict)
    version: int = field(default_factory=_numbers.__next__)

    @cached_property
    def documents(self) -> scoring.DocumentColumns:
        # A view of which only a user's part is searched never needs them.
        return scoring.documents_of(self.records, self.alive)

    def placed(self, posting: Posting) -> Posting:
        """Return a posting of the partition as positions of this view, without documents left out."""
        if self.places is None:
            return posting
        positions = self.places.take(posting.positions)
        chosen = positions >= 0
        return replace(reader.some_of(posting, chosen), positions=positions[chosen])

    def posting(self, flushed: Posting, term: str) -> Posting:
        """The term's posting in all documents, ascending as far as documents were flushed in order."""
        together = reader.joined_postings([flushed, self.posting_in_buffer(term)])
        # Deleted documents leave the postings later; until then they are skipped here.
        return (
            together
            if self.documents.is_whole
            else reader.some_of(together, self.alive[together.positions])
        )

    def posting_in_buffer(self, term: str) -> Posting:
        found = [(position, terms[term]) for position, terms in self.buffered if term in terms]
        return (
            reader.posting_of(np.array(found, dtype=reader.POSTING)) if found else reader.NO_POSTING
        )

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
    cache: reader.IndexCache,
    partition: reader.PartitionRow | None,
    flushed: reader.Documents,
    buffer: Sequence[Any],
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
    size = (
        view.records.nbytes
        + _BESIDE * len(view.records)
        + _BESIDE_TERM * sum(len(t) for _, t in rows.values())
    )
    cache.partitions.put(key, (state, rows, view), size)
    return view


def _read(row: Any) -> tuple[BufferRow, Mapping[str, int]]:
    read = unpack(row.partition, row.number, row.data)
    # The counts say it all, and views share the words that most of them hold: a cached row takes half of the memory.
    counts = {intern(term): times for term, times in reader.occurrences(read).items()}
    return replace(read, speaker=[], text=[], labels=[]), counts


def _view(
    flushed: reader.Documents, rows: Sequence[tuple[BufferRow, Mapping[str, int]]]
) -> PartitionView:
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
    buffered = list(enumerate((terms for _, terms in added.values()), len(flushed)))
    return PartitionView(records, alive, buffered, _roles_of(records))


def view_for(
    cache: reader.IndexCache,
    owner_id: str,
    view: PartitionView,
    subject_id: str | None,
    own_conversation: str | None,
) -> PartitionView:
    """Return the part of a view that the user of a search may see; see `MessageFilter` for who that is."""
    if subject_id is None:
        return view
    audience = (owner_id, subject_id, own_conversation or "")
    key = ("view for", audience)
    cached: tuple[int, PartitionView] | None = cache.partitions.get(key)
    if cached and cached[0] == view.version:
        return cached[1]
    seen = view.records["user"] == 0
    if subject_id != NOBODY:
        seen |= view.records["user"] == fingerprint(subject_id)
    if own_conversation is not None:
        own = view.records["conversation"] == fingerprint(own_conversation)
        # Most conversations hold nothing of others: all of a user's share one view.
        if not (own & view.alive & ~seen).any():
            part = view_for(cache, owner_id, view, subject_id, None)
            cache.partitions.put(key, (view.version, part), 0)
            return part
        seen |= own
    seen &= view.alive
    if seen.all():
        part = view
        size = 0
    else:
        part = _part_of(view, seen, audience)
        size = (
            part.records.nbytes + _BESIDE * len(part.records) + _BESIDE_HIDDEN * len(view.records)
        )
    cache.partitions.put(key, (view.version, part), size)
    return part


def _part_of(view: PartitionView, is_seen: Bools, audience: tuple[str, ...]) -> PartitionView:
    """Return a view of these documents alone."""
    shown = np.flatnonzero(is_seen)
    places: Integers = np.full(len(is_seen), -1, dtype=np.int64)
    places[shown] = np.arange(len(shown))
    records = view.records[shown]
    buffered = [
        (int(places[position]), terms) for position, terms in view.buffered if is_seen[position]
    ]
    alive = np.ones(len(shown), dtype=np.bool_)
    return PartitionView(records, alive, buffered, _roles_of(records), shown, places, audience)


def _roles_of(records: reader.Documents) -> frozenset[str]:
    counted = np.bincount(records["role"], minlength=len(ROLES)).tolist()
    return frozenset(role for role, times in zip(ROLES, counted, strict=True) if times)


def joined(arrays: Sequence[reader.Documents]) -> reader.Documents:
    """Records one after the other; as bytes, since field by field takes ten times as long."""
    filled = [array for array in arrays if len(array)]
    return (
        reader.read_documents(b"".join([array.tobytes() for array in filled]))
        if len(filled) > 1
        else (filled or arrays)[0]
    )


def join_views(
    cache: reader.IndexCache, owners: Sequence[str], views: Sequence[PartitionView]
) -> PartitionView:
    """Several partitions as one, in their order: searched together, they share what makes a word rare."""
    if len(views) == 1:
        return views[0]
    # Grouped by whose it is, or the joined views of all users of these owners would be kept.
    audiences = tuple(view.audience for view in views)
    key = ("joined views", (tuple(owners), audiences))
    known = cache.partitions.get(key)
    if known and all(before is view for before, view in zip(known[0], views, strict=True)):
        same: PartitionView = known[1]
        return same
    starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
    records = joined([reader.read_documents(b""), *(view.records for view in views)])
    alive = np.concatenate([np.empty(0, dtype=np.bool_), *(view.alive for view in views)])
    placed = zip(views, starts, strict=False)
    buffered = [
        (start + position, terms) for view, start in placed for position, terms in view.buffered
    ]
    roles = frozenset[str]().union(*(view.roles for view in views))
    together = PartitionView(records, alive, buffered, roles)
    cache.partitions.put(key, (tuple(views), together), records.nbytes + _BESIDE * len(records))
    return together
