"""One search from its query to its hits: read the index, score words and vectors, filter, and take the best.

A partition's flushed documents and its write buffer are seen as one row of arrays. The last view of a partition is cached, with
the rows of the buffer that were read: the next search reads only new ones.

Statements: one for the partitions, buffers and those postings that are not cached; one where documents were flushed, and
one where vectors came, since the last search; one more where a word of the query is nowhere and is looked for inside other
words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import numpy as np
from sqlalchemy import String, bindparam, select
from sqlalchemy import cast as cast_to
from sqlalchemy import or_ as any_of

from ricordo.domain.clock import SECOND
from ricordo.domain.passage import Relevance
from ricordo.domain.scope import NOBODY
from ricordo.search import fusion, scoring
from ricordo.search.dates import QUERY_LENGTH, named_times
from ricordo.search.fusion import Similarities
from ricordo.search.index import MessageFilter, PassageFilter, Query, SearchHit, SearchResult
from ricordo.search.reader import (
    NO_POSTING,
    POSTING,
    Documents,
    IndexCache,
    PartitionRow,
    cache_of,
    decoded,
    document_records,
    joined_postings,
    occurrences,
    posting_of,
    read_documents,
    read_index,
    some_of,
)
from ricordo.search.scoring import Bools, Floats, Integers, Posting, Spread
from ricordo.search.vectors import Vectors, read_vectors, similarities
from ricordo.search.words import infix, other_forms, query_terms, related_terms
from ricordo.search.write_buffer import ROLES, BufferRow, fingerprint, label_term, unpack
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import jobs, search_postings, search_terms

MOST_INFIXES = 8
MOST_VARIANTS = 64
# A word inside another, inflected otherwise or near in meaning is a weaker sign than the word itself.
VARIANT_WEIGHT = 0.5
# Of so many best hits by words the similarity is always computed, whatever the first look at the vectors says.
COMPARED = 1000
_DAY = 24 * 60 * 60 * SECOND
# The posting of a term that at least this share of the documents hold, as a speaker's name, is spread once and cached.
SPREAD_SHARE = 1 / 16
LEAST_SPREAD = 4096
MOST_SPREADS = 4
# The memory of a view for each document beside its record: its documents, their layout, and spreads; and for a term in the buffer.
_BESIDE = 48 + 5 * MOST_SPREADS
_BESIDE_TERM = 100


@dataclass(frozen=True, slots=True)
class PartitionView:
    """All documents of a partition that may be found, by position; `buffered` are the terms of the last of them, not flushed yet.

    Their roles are among `roles`. `spreads` are of terms asked for that many documents hold.
    """

    records: Documents
    documents: scoring.DocumentColumns
    buffered: Sequence[tuple[int, Mapping[str, int]]]
    roles: frozenset[str]
    spreads: dict[str, Spread] = field(default_factory=dict)

    @property
    def alive(self) -> Bools:
        return self.documents.alive

    def posting(self, flushed: Posting, term: str) -> Posting:
        """The term's posting in all documents, ascending as far as documents were flushed in order."""
        together = joined_postings([flushed, self.posting_in_buffer(term)])
        # Deleted documents leave the postings later; until then they are skipped here.
        return together if self.documents.is_whole else some_of(together, self.alive[together.positions])

    def posting_in_buffer(self, term: str) -> Posting:
        found = [(position, terms[term]) for position, terms in self.buffered if term in terms]
        return posting_of(np.array(found, dtype=POSTING)) if found else NO_POSTING

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
    cache: IndexCache, partition: PartitionRow | None, flushed: Documents, buffer: Sequence[Any]
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
    return read, occurrences(read)


def _view(flushed: Documents, rows: Sequence[tuple[BufferRow, Mapping[str, int]]]) -> PartitionView:
    added: dict[int, tuple[BufferRow, Mapping[str, int]]] = {}
    deleted: set[int] = set()
    for row, terms in rows:
        if not row.is_deleted:
            added[row.document] = (row, terms)
        elif added.pop(row.document, None) is None:
            deleted.add(row.document)
    records = joined([flushed, document_records([row for row, _ in added.values()])])
    alive = records["alive"] == 1
    if deleted:
        alive[: len(flushed)] &= ~np.isin(flushed["number"], list(deleted))
    counted = np.bincount(records["role"], minlength=len(ROLES)).tolist()
    roles = frozenset(role for role, count in zip(ROLES, counted, strict=True) if count)
    buffered = list(enumerate((terms for _, terms in added.values()), len(flushed)))
    return PartitionView(records, scoring.documents_of(records, alive), buffered, roles)


def joined(arrays: Sequence[Documents]) -> Documents:
    """Records one after the other; as bytes, since field by field takes ten times as long."""
    filled = [array for array in arrays if len(array)]
    return read_documents(b"".join([array.tobytes() for array in filled])) if len(filled) > 1 else (filled or arrays)[0]


def join_views(cache: IndexCache, owners: Sequence[str], views: Sequence[PartitionView]) -> PartitionView:
    """Several partitions as one, in their order: searched together, they share what makes a word rare."""
    if len(views) == 1:
        return views[0]
    key = ("joined views", tuple(owners))
    known = cache.partitions.get(key)
    if known and all(before is view for before, view in zip(known[0], views, strict=True)):
        same: PartitionView = known[1]
        return same
    starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
    records = joined([read_documents(b""), *(view.records for view in views)])
    alive = np.concatenate([np.empty(0, dtype=np.bool_), *(view.alive for view in views)])
    placed = zip(views, starts, strict=False)
    buffered = [(start + position, terms) for view, start in placed for position, terms in view.buffered]
    roles = frozenset[str]().union(*(view.roles for view in views))
    together = PartitionView(records, scoring.documents_of(records, alive), buffered, roles)
    cache.partitions.put(key, (tuple(views), together), records.nbytes + _BESIDE * len(records))
    return together


def find(
    tx: Transaction, owners: Sequence[str], query: Query, wanted: MessageFilter | PassageFilter, limit: int
) -> SearchResult:
    """The best documents of these partitions that meet the conditions."""
    owners = tuple(dict.fromkeys(owners))
    if not owners or limit < 1:
        return SearchResult()
    words = query_terms(query.text)
    forms = [*other_forms(query.text), *related_terms(query.related, words)]
    search = _Search(tx, owners, [*words, *forms, *(label_term(tag) for tag in wanted.tags)])
    may = search.allowed(wanted)
    if not words:
        return SearchResult(tuple(_newest(search.view, may, limit)))
    postings = search.postings_of(words, forms)
    documents = search.view.documents
    lexical = scoring.lexical(documents, postings if query.mode != "vector" else [])
    similar, missing = search.similar(query, may, lexical) if query.mode != "fts" else (None, frozenset[str]())
    if query.mode == "vector" and similar is None:
        # Nothing is embedded, or no model can be asked: words are better than no answer.
        lexical = scoring.lexical(documents, postings)
    times = _times(query.text[:QUERY_LENGTH], tx.clock.now() // _DAY)
    scored = fusion.fuse(documents, lexical, similar, times, fusion.speaks(documents, postings), may)
    best = fusion.top(documents, scored, may, limit)
    ranks = fusion.ranks(best, may, lexical, similar)
    mode = query.mode if similar is not None or query.mode == "fts" else "fts"
    hits = [
        SearchHit(
            int(search.view.records["number"][p]), Relevance(round(float(scored[p]), 6), by_words, by_vector, mode)
        )
        for p, (by_words, by_vector) in zip(best.tolist(), ranks, strict=True)
    ]
    return SearchResult(tuple(hits), missing)


class _Search:
    """What one search has read."""

    def __init__(self, tx: Transaction, owners: Sequence[str], terms: Sequence[str]) -> None:
        self._tx = tx
        snapshot = read_index(tx, owners, terms)
        self._partitions = snapshot.partitions
        self._rows = rows = {partition.owner_id: partition for partition in snapshot.partitions}
        cache = cache_of(tx)
        self._owners = [owner for owner in owners if owner in rows or owner in snapshot.buffers]
        empty = read_documents(b"")
        flushed = {row.owner_id: snapshot.documents[row.seq] for row in snapshot.partitions}
        views = [
            view_of(cache, rows.get(owner), flushed.get(owner, empty), snapshot.buffers.get(owner, []))
            for owner in self._owners
        ]
        self._starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
        self.view = join_views(cache, self._owners, views)
        self._postings = snapshot.postings

    def posting(self, term: str) -> Posting:
        flushed = [(s, self._postings[s.seq, term]) for s in self._partitions if (s.seq, term) in self._postings]
        return self.view.posting(self._placed(flushed), term)

    def _placed(self, found: Sequence[tuple[PartitionRow, Posting]]) -> Posting:
        """The postings of several partitions as positions in the joined view."""
        placed = []
        for partition, posting in found:
            start = self._starts[self._owners.index(partition.owner_id)]
            placed.append(replace(posting, positions=posting.positions + start) if start else posting)
        return joined_postings(placed)

    def allowed(self, wanted: MessageFilter | PassageFilter) -> Bools | None:
        """Which positions meet the conditions; None for all, where nothing is deleted."""
        # Most filters by role leave nothing out.
        roles = wanted.roles if any(role not in wanted.roles for role in self.view.roles) else ()
        values = (wanted.conversation_id, wanted.subject_id, wanted.start, wanted.end)
        if self.view.documents.is_whole and not (roles or wanted.tags) and values == (None,) * 4:
            return None
        records = self.view.records
        may = self.view.alive.copy()
        if wanted.conversation_id is not None:
            held = records["conversation"] == fingerprint(wanted.conversation_id)
            for conversation, newest in wanted.shared:
                held |= (records["conversation"] == fingerprint(conversation)) & (records["number"] <= newest)
            may &= held
        if wanted.subject_id is not None:
            seen = records["user"] == 0
            if wanted.subject_id != NOBODY:
                seen |= records["user"] == fingerprint(wanted.subject_id)
            if wanted.own_conversation is not None:
                seen |= records["conversation"] == fingerprint(wanted.own_conversation)
            may &= seen
        if roles:
            own = records["role"]
            may &= reduce(or_, [own == ROLES.index(role) for role in self.view.roles & set(roles)], np.False_)
        if wanted.start is not None:
            may &= records["created_at"] >= wanted.start
        if wanted.end is not None:
            may &= records["created_at"] <= wanted.end
        if wanted.tags:
            tags = set(wanted.tags)
            carried = np.zeros(len(may), dtype=np.int64)
            for tag in tags:
                carried[self.posting(label_term(tag)).positions] += 1
            may &= carried >= (len(tags) if wanted.all_tags else 1)
        # Without a mask everything is quicker.
        return None if self.view.documents.is_whole and may.all() else may

    def postings_of(self, words: Sequence[str], forms: Sequence[str]) -> list[Posting]:
        """The postings of these words and of other forms of them; a word in no document is looked for as part of others."""
        found = {word: self.view.spread(self.posting(word), word) for word in words}
        known = [posting for posting in found.values() if len(posting.positions)]
        absent = [word for word, posting in found.items() if not len(posting.positions)]
        variants = [*self._variants(absent), *(self.view.spread(self.posting(form), form) for form in forms)]
        return known + [replace(posting, weight=VARIANT_WEIGHT) for posting in variants if len(posting.positions)]

    def _variants(self, absent: Sequence[str]) -> list[Posting]:
        """The postings of words that hold an absent one, one for each absent word: parts of compounds, beginnings of words."""
        inner = [part for word in absent if (part := infix(word))][:MOST_INFIXES]
        if not inner:
            return []
        waiting = dict.fromkeys(term for _, terms in self.view.buffered for term in terms if term[0] > "\x1f")
        flushed = self._read_variants(inner)
        together = []
        for part in inner:
            placed = self._placed(flushed.get(part, []))
            holding = [term for term in waiting if part in term][:MOST_VARIANTS]
            posting = joined_postings([placed, *map(self.view.posting_in_buffer, holding)])
            posting = some_of(posting, self.view.alive[posting.positions])
            if len(posting.positions):
                together.append(_once(posting))
        return together

    def _read_variants(self, inner: Sequence[str]) -> dict[str, list[tuple[PartitionRow, Posting]]]:
        by_seq = {partition.seq: partition for partition in self._partitions}
        found: dict[str, list[tuple[PartitionRow, Posting]]] = {}
        values = {"partitions": list(by_seq), **{f"part{i}": part for i, part in enumerate(inner)}}
        for row in self._tx.all(_containing(len(inner)), values):
            for part in inner:
                if part in row.term:
                    found.setdefault(part, []).append((by_seq[row.partition], decoded({0: row.data})))
        return found

    def similar(self, query: Query, may: Bools | None, lexical: Floats) -> tuple[Similarities | None, frozenset[str]]:
        """Cosine similarities, None where nothing is embedded; and the models that should have embedded the query."""
        missing = {
            s.embedding for s in self._partitions if s.embedding and s.vectors and s.embedding not in query.vectors
        }
        usable = [partition for partition in self._partitions if partition.embedding in query.vectors]
        vectors = read_vectors(self._tx, usable)
        parts = []
        for place, owner in enumerate(self._owners):
            start = self._starts[place]
            here = slice(start, self._starts[place + 1])
            partition = self._rows.get(owner)
            if owner in query.nearest:
                found = _from_outside(self.view.documents.number[here], query.nearest[owner])
            elif partition and partition.seq in vectors:
                asked = np.asarray(query.vectors[str(partition.embedding)], dtype=np.float32)
                found = _compare(vectors[partition.seq], asked, None if may is None else may[here], lexical[here])
            else:
                continue
            parts.append(Similarities(found.positions + start, found.values) if start else found)
        similar = fusion.joined(parts)
        if not self.view.documents.is_whole:
            similar = similar.where(self.view.alive)
        return (similar if len(similar) else None), frozenset(filter(None, missing))


@lru_cache(maxsize=256)
def _times(text: str, day: int) -> list[tuple[int, int]]:
    return named_times(text, day * _DAY)


def _once(posting: Posting) -> Posting:
    order = np.lexsort((posting.times, posting.named, posting.positions))
    positions = posting.positions[order]
    return some_of(posting, order[np.append(positions[1:] != positions[:-1], True)])


def _compare(vectors: Vectors, asked: Floats, may: Bools | None, lexical: Floats) -> Similarities:
    least = fusion.bar(lexical, COMPARED) if len(lexical) > COMPARED else 0
    hits = lexical >= least if least > 0 else lexical > 0
    return similarities(vectors, asked, may, hits if may is None else hits & may)


def _from_outside(numbers: Integers, nearest: Sequence[tuple[int, float]]) -> Similarities:
    """The similarities by position that an outside index gave by the numbers of documents."""
    values = {number: similarity for number, similarity in nearest if not math.isnan(similarity)}
    known = np.array(sorted(values), dtype=np.int64)
    # Where nothing was changed the numbers ascend: looking through a million of them would take as long as all the rest.
    if (numbers[1:] > numbers[:-1]).all():
        places = np.searchsorted(numbers, known)
        places = places[places < len(numbers)]
        places = places[np.isin(numbers[places], known)]
    else:
        places = np.flatnonzero(np.isin(numbers, known))
    return Similarities(places, np.array([values[number] for number in numbers[places].tolist()], dtype=np.float32))


def _newest(view: PartitionView, may: Bools | None, limit: int) -> list[SearchHit]:
    best = fusion.top(view.documents, np.ones(len(view.records), dtype=np.float32), may, limit)
    return [SearchHit(int(view.records["number"][position]), Relevance(0.0)) for position in best]


@lru_cache(maxsize=MOST_INFIXES)
def _containing(count: int) -> Any:
    """The postings of terms that hold one of so many parts."""
    parts = [cast_to(bindparam(f"part{i}"), String) for i in range(count)]
    held = any_of(*(search_terms.c.term.contains(part) for part in parts))
    partitions = each(bindparam("partitions", type_=jobs.c.payload.type))
    terms = (
        select(search_terms.c.partition, search_terms.c.term)
        .where(search_terms.c.partition.op("IN")(partitions), held)
        .limit(MOST_VARIANTS * count)
        .subquery()
    )
    return select(search_postings.c.partition, search_postings.c.term, search_postings.c.data).join(
        terms, (search_postings.c.partition == terms.c.partition) & (search_postings.c.term == terms.c.term)
    )
