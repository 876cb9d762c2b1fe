"""Views of a partition: its flushed documents and write buffer as arrays.

A short text has one position. A long text has one position for each of its parts (see
`text_parts.py`).

Views are cached together with the buffer rows that they contain, so the next search decodes only
new rows. A user's search gets a view that holds only the documents that this user may see. So
hidden documents influence no user's scores. They change neither the rarity of words, nor the mean
length of texts, nor the neighbours of a turn.
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

# A speaker's name, for example, may occur in many documents. If a term occurs in at least this
# share of them, and in at least LEAST_SPREAD documents, its posting is spread once and cached. A
# view caches the spreads of at most MOST_SPREADS terms.
SPREAD_SHARE = 1 / 16
LEAST_SPREAD = 4096
MOST_SPREADS = 4
# Bytes that a view needs for each document besides its record: columns, layout, neighbours and
# spreads.
BYTES_PER_DOCUMENT = 64 + 5 * MOST_SPREADS
# Bytes for each term of each document in the buffer.
_BYTES_PER_TERM = 100
# Bytes that a part of a view needs for each document of the whole view: its position in the part.
_BYTES_PER_HIDDEN = 8


_numbers = count()


@dataclass(frozen=True)
class PartitionView:
    """A partition's documents by position.

    Attributes:
        records: The documents (n,), of which those in the buffer come last.
        alive: Marks the documents that are not deleted (n,).
        buffered: The terms of each position that is not flushed yet.
        roles: The roles of the documents.
        partition_positions: For a user's part of a view: the position of each document in the
            partition. None for a whole view.
        view_positions: For a part: the position in the view of each document of the partition; -1
            if it is left out. None for a whole view.
        audience: For a part: the owner, the user and the conversation of the search. None for a
            whole view.
        spreads: The spreads of frequent terms, which are added on demand.
        version: A number that no other view of this process has.
    """

    records: reader.Documents
    alive: Bools
    buffered: Sequence[tuple[int, Mapping[str, int]]]
    roles: frozenset[str]
    partition_positions: Integers | None = None
    view_positions: Integers | None = None
    audience: tuple[str, ...] | None = None
    spreads: dict[str, Spread] = field(default_factory=dict)
    version: int = field(default_factory=_numbers.__next__)

    @cached_property
    def documents(self) -> scoring.DocumentColumns:
        # Computed on demand, since a view is often searched only through its parts.
        return scoring.documents_of(self.records, self.alive)

    def placed(self, posting: Posting) -> Posting:
        """Return a posting of the partition with positions of this view.

        Documents that the view leaves out are dropped.
        """
        if self.view_positions is None:
            return posting
        positions = self.view_positions.take(posting.positions)
        is_in_view = positions >= 0
        return replace(reader.some_of(posting, is_in_view), positions=positions[is_in_view])

    def posting(self, flushed: Posting, term: str) -> Posting:
        """Return the term's posting in all documents of the view.

        The positions of flushed documents come first, then those of documents in the buffer.
        """
        posting = reader.joined_postings([flushed, self.posting_in_buffer(term)])
        if self.documents.is_whole:
            return posting
        # Skip deleted documents until they are removed from the postings.
        return reader.some_of(posting, self.alive[posting.positions])

    def posting_in_buffer(self, term: str) -> Posting:
        records = [(position, terms[term]) for position, terms in self.buffered if term in terms]
        if not records:
            return reader.NO_POSTING
        return reader.posting_of(np.array(records, dtype=reader.POSTING))

    def spread(self, posting: Posting, term: str) -> Posting:
        """Return the term's posting, with its cached spread if the term is frequent."""
        if len(posting.positions) < max(SPREAD_SHARE * len(self.records), LEAST_SPREAD):
            return posting
        spread = self.spreads.get(term)
        if spread is None:
            spread = self.spreads[term] = scoring.spread_of(self.documents, posting)
            for oldest in list(self.spreads)[:-MOST_SPREADS]:
                self.spreads.pop(oldest, None)
        return replace(posting, spread=spread)


# A row of the buffer, with the terms of each part of its text.
_ReadRow = tuple[BufferRow, list[Mapping[str, int]]]
_Rows = Mapping[int, _ReadRow]
# A view with its sources: the partition's number, its generation, its number of flushed documents,
# and the rows of the buffer.
_CachedView = tuple[tuple[int | None, int, int], _Rows, PartitionView]


def view_of(
    cache: reader.IndexCache,
    partition: reader.PartitionRow | None,
    flushed: reader.Documents,
    buffer: Sequence[Any],
) -> PartitionView:
    """Return the view of one partition's flushed documents and buffer rows.

    Args:
        cache: It holds earlier views. A new view is added.
        partition: The partition's row; None if nothing is flushed yet. In that case `buffer` must
            not be empty.
        flushed: The records of the flushed documents.
        buffer: The rows of the owner's write buffer in their order, as `reader.read_index` returns
            them.
    """
    key = ("view", partition.owner_id if partition else buffer[0].name)
    state = (partition.seq, partition.generation, len(flushed)) if partition else (None, 0, 0)
    cached: _CachedView | None = cache.partitions.get(key)
    cached_rows = cached[1] if cached else {}
    if cached and cached[0] == state and list(cached_rows) == [row.partition for row in buffer]:
        return cached[2]
    rows = {row.partition: cached_rows.get(row.partition) or _read(row) for row in buffer}
    view = _view(flushed, list(rows.values()))
    term_count = sum(len(terms) for _, parts in rows.values() for terms in parts)
    size = (
        view.records.nbytes + BYTES_PER_DOCUMENT * len(view.records) + _BYTES_PER_TERM * term_count
    )
    cache.partitions.put(key, (state, rows, view), size)
    return view


def _read(row: Any) -> _ReadRow:
    buffer_row = unpack(row.partition, row.number, row.data)
    # Counts replace the lists of terms, and views share interned terms. This halves the memory of a
    # cached row.
    counts: list[Mapping[str, int]] = [
        {intern(term): times for term, times in part.items()}
        for part in reader.occurrences_by_part(buffer_row)
    ]
    return replace(buffer_row, speaker=[], text=[], labels=[]), counts


def _view(flushed: reader.Documents, rows: Sequence[_ReadRow]) -> PartitionView:
    added: dict[int, _ReadRow] = {}
    deleted: set[int] = set()
    for row, parts in rows:
        if not row.is_deleted:
            added[row.document] = (row, parts)
        elif added.pop(row.document, None) is None:
            deleted.add(row.document)
    records = joined([flushed, reader.document_records([row for row, _ in added.values()])])
    alive = records["alive"] == 1
    if deleted:
        alive[: len(flushed)] &= ~np.isin(flushed["number"], list(deleted))
    all_parts = (terms for _, parts in added.values() for terms in parts)
    buffered = list(enumerate(all_parts, len(flushed)))
    return PartitionView(records, alive, buffered, _roles_of(records))


def view_for(
    cache: reader.IndexCache,
    owner_id: str,
    view: PartitionView,
    subject_id: str | None,
    own_conversation: str | None,
) -> PartitionView:
    """Return the part of a view that the user of a search may see.

    Args:
        cache: It holds earlier parts. A new part is added.
        owner_id: The owner of the partition.
        view: The whole view.
        subject_id: The user, as in `MessageFilter`: None sees all, and NOBODY only shared
            documents.
        own_conversation: A conversation of which the user may see everything; None: there is none.
    """
    if subject_id is None:
        return view
    audience = (owner_id, subject_id, own_conversation or "")
    key = ("view for", audience)
    cached: tuple[int, PartitionView] | None = cache.partitions.get(key)
    if cached and cached[0] == view.version:
        return cached[1]
    is_visible = view.records["user"] == 0
    if subject_id != NOBODY:
        is_visible |= view.records["user"] == fingerprint(subject_id)
    if own_conversation is not None:
        is_own = view.records["conversation"] == fingerprint(own_conversation)
        # Most conversations contain nothing about other users. Such conversations of one user share
        # one view.
        if not (is_own & view.alive & ~is_visible).any():
            part = view_for(cache, owner_id, view, subject_id, None)
            cache.partitions.put(key, (view.version, part), 0)
            return part
        is_visible |= is_own
    is_visible &= view.alive
    if is_visible.all():
        part = view
        size = 0
    else:
        part = _part_of(view, is_visible, audience)
        size = (
            part.records.nbytes
            + BYTES_PER_DOCUMENT * len(part.records)
            + _BYTES_PER_HIDDEN * len(view.records)
        )
    cache.partitions.put(key, (view.version, part), size)
    return part


def _part_of(view: PartitionView, is_visible: Bools, audience: tuple[str, ...]) -> PartitionView:
    """Return a view of these documents alone."""
    partition_positions = np.flatnonzero(is_visible)
    view_positions: Integers = np.full(len(is_visible), -1, dtype=np.int64)
    view_positions[partition_positions] = np.arange(len(partition_positions))
    records = view.records[partition_positions]
    buffered = [
        (int(view_positions[position]), terms)
        for position, terms in view.buffered
        if is_visible[position]
    ]
    return PartitionView(
        records=records,
        alive=np.ones(len(partition_positions), dtype=np.bool_),
        buffered=buffered,
        roles=_roles_of(records),
        partition_positions=partition_positions,
        view_positions=view_positions,
        audience=audience,
    )


def _roles_of(records: reader.Documents) -> frozenset[str]:
    counts = np.bincount(records["role"], minlength=len(ROLES)).tolist()
    return frozenset(role for role, count in zip(ROLES, counts, strict=True) if count)


def joined(arrays: Sequence[reader.Documents]) -> reader.Documents:
    """Concatenate records as bytes, which is ten times as fast as joining each field."""
    filled = [array for array in arrays if len(array)]
    if len(filled) > 1:
        return reader.read_documents(b"".join([array.tobytes() for array in filled]))
    return (filled or arrays)[0]


def join_views(
    cache: reader.IndexCache, owners: Sequence[str], views: Sequence[PartitionView]
) -> PartitionView:
    """Return several partitions as one, in their order.

    In a joint search, a word has one rarity for all of them.

    Args:
        cache: It holds earlier joined views. A new one is added.
        owners: The owners of the partitions.
        views: The views of the same partitions, in the same order.
    """
    if len(views) == 1:
        return views[0]
    # The key names the audiences of the views, not the user. So users who see whole views share one
    # joined view.
    audiences = tuple(view.audience for view in views)
    key = ("joined views", (tuple(owners), audiences))
    cached = cache.partitions.get(key)
    if cached and all(before is view for before, view in zip(cached[0], views, strict=True)):
        joined_view: PartitionView = cached[1]
        return joined_view
    starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
    records = joined([reader.read_documents(b""), *(view.records for view in views)])
    alive = np.concatenate([np.empty(0, dtype=np.bool_), *(view.alive for view in views)])
    buffered = [
        (start + position, terms)
        for view, start in zip(views, starts, strict=False)
        for position, terms in view.buffered
    ]
    roles = frozenset[str]().union(*(view.roles for view in views))
    joined_view = PartitionView(records, alive, buffered, roles)
    size = records.nbytes + BYTES_PER_DOCUMENT * len(records)
    cache.partitions.put(key, (tuple(views), joined_view), size)
    return joined_view
