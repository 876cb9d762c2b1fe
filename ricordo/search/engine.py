"""One search from its query to its hits: read the index, score words and vectors, filter, and take the best.

Statements: one for the partitions, buffers and those postings that are not cached; one where documents were flushed, and
one where vectors came, since the last search; one more where a word of the query is nowhere and is looked for inside other
words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import pairwise
from operator import itemgetter, or_
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
from ricordo.search.partition_view import join_views, view_for, view_of
from ricordo.search.reader import (
    PartitionRow,
    cache_of,
    decoded,
    joined_postings,
    read_documents,
    read_index,
    some_of,
)
from ricordo.search.scoring import Bools, Floats, Integers, Posting
from ricordo.search.vectors import (
    ShownVectors,
    Vectors,
    part_of,
    read_vectors,
    similarities,
    similarities_shown,
)
from ricordo.search.words import infix, other_forms, query_terms, related_terms
from ricordo.search.write_buffer import ROLES, fingerprint, label_term
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import jobs, search_postings, search_terms

MOST_INFIXES = 8
MOST_VARIANTS = 64
MOST_SHARED_VARIANTS = 1024
SPOKEN = ("user", "assistant")
# A word inside another, inflected otherwise or near in meaning is a weaker sign than the word itself.
VARIANT_WEIGHT = 0.5
# Of so many best hits by words the similarity is always computed, whatever the first look at the vectors says.
COMPARED = 1000
_DAY = 24 * 60 * 60 * SECOND


def find(
    tx: Transaction,
    owners: Sequence[str],
    query: Query,
    wanted: MessageFilter | PassageFilter,
    limit: int,
    offset: int = 0,
) -> SearchResult:
    """The best documents of these partitions that meet the conditions, behind the first `offset` of them."""
    owners = tuple(dict.fromkeys(owners))
    if not owners or limit < 1:
        return SearchResult()
    words = query_terms(query.text)
    forms = [*other_forms(query.text), *related_terms(query.related, words)]
    search = _Search(
        tx, owners, [*words, *forms, *(label_term(tag) for tag in wanted.tags)], wanted
    )
    may = search.allowed(wanted)
    if not words:
        same = np.ones(len(search.view.records), dtype=np.float32)
        newest = search.best(same, may, wanted, offset + limit)[offset:]
        return SearchResult(
            tuple(SearchHit(int(search.view.records["number"][p]), Relevance(0.0)) for p in newest)
        )
    postings, most = search.postings_of(words, forms, wanted)
    documents = search.view.documents
    lexical = scoring.lexical(documents, postings if query.mode != "vector" else [])
    similar, missing = (
        search.similar(query, may, lexical) if query.mode != "fts" else (None, frozenset[str]())
    )
    if query.mode == "vector" and similar is None:
        # Nothing is embedded, or no model can be asked: words are better than no answer.
        lexical = scoring.lexical(documents, postings)
    times = _times(query.text[:QUERY_LENGTH], tx.clock.now() // _DAY)
    scored = fusion.fuse(
        documents, lexical, similar, times, fusion.speaks(documents, postings), may
    )
    best = search.best(scored, may, wanted, offset + limit)[offset:]
    ranks = fusion.ranks(best, may, lexical, similar)
    mode = query.mode if similar is not None or query.mode == "fts" else "fts"
    before = search.before(best, wanted)
    hits = [
        SearchHit(
            int(search.view.records["number"][p]),
            Relevance(
                round(float(scored[p]), 6),
                by_words,
                by_vector,
                mode,
                _share(lexical[p], most),
                search.cosine(query, p),
            ),
            before.get(p),
        )
        for p, (by_words, by_vector) in zip(best.tolist(), ranks, strict=True)
    ]
    return SearchResult(tuple(hits), missing)


def _share(score: Any, most: float) -> float:
    return round(min(float(score) / most, 1.0), 3) if most else 0.0


class _Search:
    """What one search has read, of each partition only what its user may see."""

    def __init__(
        self,
        tx: Transaction,
        owners: Sequence[str],
        terms: Sequence[str],
        wanted: MessageFilter | PassageFilter,
    ) -> None:
        self._tx = tx
        snapshot = read_index(tx, owners, terms)
        self._partitions = snapshot.partitions
        self._rows = rows = {partition.owner_id: partition for partition in snapshot.partitions}
        cache = cache_of(tx)
        self._owners = [owner for owner in owners if owner in rows or owner in snapshot.buffers]
        empty = read_documents(b"")
        flushed = {row.owner_id: snapshot.documents[row.seq] for row in snapshot.partitions}
        self._views = views = [
            view_for(
                cache,
                owner,
                view_of(
                    cache,
                    rows.get(owner),
                    flushed.get(owner, empty),
                    snapshot.buffers.get(owner, []),
                ),
                wanted.subject_id,
                wanted.own_conversation,
            )
            for owner in self._owners
        ]
        self._starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
        self.view = join_views(cache, self._owners, views)
        self._postings = snapshot.postings
        self._vectors: Mapping[int, Vectors] = {}

    def posting(self, term: str) -> Posting:
        flushed = [
            (s, self._postings[s.seq, term])
            for s in self._partitions
            if (s.seq, term) in self._postings
        ]
        return self.view.posting(self._placed(flushed), term)

    def _placed(self, found: Sequence[tuple[PartitionRow, Posting]]) -> Posting:
        """The postings of several partitions as positions in the joined view."""
        placed = []
        for partition, posting in found:
            number = self._owners.index(partition.owner_id)
            start, visible = self._starts[number], self._views[number].placed(posting)
            placed.append(
                replace(visible, positions=visible.positions + start) if start else visible
            )
        return joined_postings(placed)

    def allowed(self, wanted: MessageFilter | PassageFilter) -> Bools | None:
        """Which positions meet the other conditions; None for all, where nothing is deleted."""
        # Most filters by role leave nothing out.
        roles = wanted.roles if any(role not in wanted.roles for role in self.view.roles) else ()
        values = (wanted.conversation_id, wanted.start, wanted.end)
        running = self._running(wanted)
        if (
            self.view.documents.is_whole
            and not (roles or wanted.tags or len(running))
            and values == (None,) * 3
        ):
            return None
        records = self.view.records
        may = self.view.alive.copy()
        may[running] = False
        if wanted.conversation_id is not None:
            held = records["conversation"] == fingerprint(wanted.conversation_id)
            for conversation, newest in wanted.shared:
                held |= (records["conversation"] == fingerprint(conversation)) & (
                    records["number"] <= newest
                )
            may &= held
        if roles:
            own = records["role"]
            may &= reduce(
                or_, [own == ROLES.index(role) for role in self.view.roles & set(roles)], np.False_
            )
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

    def _running(self, wanted: MessageFilter | PassageFilter) -> Integers:
        """The positions of what was said in the turn that searches."""
        if wanted.turn_began is None or wanted.own_conversation is None:
            return np.empty(0, dtype=np.int64)
        records = self.view.records
        new: Integers = np.flatnonzero(records["created_at"] >= wanted.turn_began)
        own: Integers = new[records["conversation"][new] == fingerprint(wanted.own_conversation)]
        return own

    def best(
        self, scores: Floats, may: Bools | None, wanted: MessageFilter | PassageFilter, count: int
    ) -> Integers:
        """Return the positions of the best, best first; with `own_first` those that are the user's before shared ones."""
        documents = self.view.documents
        if not wanted.own_first or wanted.subject_id in (None, NOBODY):
            return fusion.top(documents, scores, may, count)
        allowed = self.view.alive if may is None else may
        is_own = self.view.records["user"] == fingerprint(wanted.subject_id)
        is_shared = ~is_own
        for start, end in pairwise(self._starts) if len(self._owners) > 1 else ():
            if not is_own[start:end].any():
                is_shared[start:end] = False
        own = fusion.top(documents, scores, allowed & is_own, count)
        shared = fusion.top(documents, scores, allowed & is_shared, count)
        return np.concatenate([own, shared])[:count]

    def before(self, best: Integers, wanted: MessageFilter | PassageFilter) -> dict[int, int]:
        """The number of the turn before each of these positions, where there is one and the filter's users may see it."""
        if isinstance(wanted, PassageFilter) or not wanted.reads_before or not len(best):
            return {}
        may = self.allowed(replace(wanted, roles=SPOKEN))
        slot = self.view.documents.layout.slot
        linked = best[slot[best] < self.view.documents.layout.alone]
        # So far away, over results of tools, there is never another session: see `scoring`.
        sought = slot[linked][:, None] - np.arange(1, scoring.REACH + 1)
        found = np.flatnonzero(np.isin(slot, sought) & (self.view.alive if may is None else may))
        numbers = dict(
            zip(slot[found].tolist(), self.view.records["number"][found].tolist(), strict=True)
        )
        nearest = (
            (p, next((numbers[s] for s in row if s in numbers), None))
            for p, row in zip(linked.tolist(), sought.tolist(), strict=True)
        )
        return {p: number for p, number in nearest if number is not None}

    def cosine(self, query: Query, position: int) -> float | None:
        """How near the document at this position is to the query in meaning; None where that is not known."""
        place = int(np.searchsorted(self._starts, position, side="right")) - 1
        owner, own = self._owners[place], position - self._starts[place]
        if owner in query.nearest:
            found = dict(query.nearest[owner]).get(int(self.view.documents.number[position]))
            return None if found is None or math.isnan(found) else round(found, 3)
        partition = self._rows.get(owner)
        vectors = self._vectors.get(partition.seq) if partition else None
        shown = self._views[place].shown
        own = own if shown is None else int(shown[own])
        if partition is None or vectors is None or own >= len(vectors):
            return None
        asked = np.asarray(query.vectors[str(partition.embedding)], dtype=np.float32)
        row = vectors.floats(slice(own, own + 1))[0]
        return round(float(row @ asked), 3) if len(row) == len(asked) else None

    def postings_of(
        self, words: Sequence[str], forms: Sequence[str], wanted: MessageFilter | PassageFilter
    ) -> tuple[list[Posting], float]:
        """The postings of words and their forms (parts of others if unknown), and the score of a text with each once."""
        running = self._running(wanted)
        found = {word: self._spread(word, running) for word in words}
        most = sum(
            scoring.rarity(self.view.documents, len(posting.positions))
            for posting in found.values()
        )
        known = [posting for posting in found.values() if len(posting.positions)]
        absent = [word for word, posting in found.items() if not len(posting.positions)]
        variants = [*self._variants(absent), *(self._spread(form, running) for form in forms)]
        known += [
            replace(posting, weight=VARIANT_WEIGHT)
            for posting in variants
            if len(posting.positions)
        ]
        return known, most

    def _spread(self, term: str, running: Integers) -> Posting:
        posting = self.view.spread(self.posting(term), term)
        if posting.spread is None and len(running):
            # What is asked must not lift the turns around it either.
            posting = some_of(posting, np.isin(posting.positions, running, invert=True))
        return posting

    def _variants(self, absent: Sequence[str]) -> list[Posting]:
        """The postings of words that hold an absent one, one for each absent word: parts of compounds, beginnings of words."""
        inner = [part for word in absent if (part := infix(word))][:MOST_INFIXES]
        if not inner:
            return []
        waiting = dict.fromkeys(
            term for _, terms in self.view.buffered for term in terms if term[0] > "\x1f"
        )
        flushed = self._read_variants(inner)
        together = []
        for part in inner:
            placed = self._placed_variants(flushed.get(part, []))
            holding = sorted(term for term in waiting if part in term)[:MOST_VARIANTS]
            posting = joined_postings([placed, *map(self.view.posting_in_buffer, holding)])
            posting = some_of(posting, self.view.alive[posting.positions])
            if len(posting.positions):
                together.append(_once(posting))
        return together

    def _placed_variants(self, terms: Sequence[tuple[str, PartitionRow, Posting]]) -> Posting:
        """Return the first terms that a visible document holds, as one posting: others' words must not crowd them out."""
        chosen: dict[str, list[Posting]] = {}
        for term, partition, posting in sorted(terms, key=itemgetter(0)):
            placed = self._placed([(partition, posting)])
            if len(placed.positions) and (term in chosen or len(chosen) < MOST_VARIANTS):
                chosen.setdefault(term, []).append(placed)
        return joined_postings([posting for postings in chosen.values() for posting in postings])

    def _read_variants(
        self, inner: Sequence[str]
    ) -> dict[str, list[tuple[str, PartitionRow, Posting]]]:
        by_seq = {partition.seq: partition for partition in self._partitions}
        found: dict[str, list[tuple[str, PartitionRow, Posting]]] = {}
        # Of a vocabulary that holds others' words too, more of them are looked through.
        most = (
            MOST_VARIANTS
            if all(view.shown is None for view in self._views)
            else MOST_SHARED_VARIANTS
        )
        parts = {f"part{i}": part for i, part in enumerate(inner)}
        values = {"partitions": list(by_seq), "most": most * len(inner), **parts}
        for row in self._tx.all(_containing(len(inner)), values):
            for part in inner:
                if part in row.term:
                    found.setdefault(part, []).append(
                        (row.term, by_seq[row.partition], decoded({0: row.data}))
                    )
        return found

    def similar(
        self, query: Query, may: Bools | None, lexical: Floats
    ) -> tuple[Similarities | None, frozenset[str]]:
        """Cosine similarities, None where nothing is embedded; and the models that should have embedded the query."""
        missing = {
            s.embedding
            for s in self._partitions
            if s.embedding and s.vectors and s.embedding not in query.vectors
        }
        usable = [
            partition for partition in self._partitions if partition.embedding in query.vectors
        ]
        vectors = self._vectors = read_vectors(self._tx, usable)
        parts = []
        for place, owner in enumerate(self._owners):
            start = self._starts[place]
            here = slice(start, self._starts[place + 1])
            partition = self._rows.get(owner)
            if owner in query.nearest:
                found = _from_outside(self.view.documents.number[here], query.nearest[owner])
            elif partition and partition.seq in vectors:
                asked = np.asarray(query.vectors[str(partition.embedding)], dtype=np.float32)
                part = part_of(
                    cache_of(self._tx), partition, vectors[partition.seq], self._views[place]
                )
                found = _compare(part, asked, None if may is None else may[here], lexical[here])
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


def _compare(
    vectors: Vectors | ShownVectors, asked: Floats, may: Bools | None, lexical: Floats
) -> Similarities:
    least = fusion.bar(lexical, COMPARED) if len(lexical) > COMPARED else 0
    hits = lexical >= least if least > 0 else lexical > 0
    also = hits if may is None else hits & may
    if isinstance(vectors, ShownVectors):
        return similarities_shown(vectors, asked, may, also).rounded()
    return similarities(vectors, asked, may, also).rounded()


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
    return Similarities(
        places, np.array([values[number] for number in numbers[places].tolist()], dtype=np.float32)
    )


@lru_cache(maxsize=MOST_INFIXES)
def _containing(count: int) -> Any:
    """The postings of terms that hold one of so many parts."""
    parts = [cast_to(bindparam(f"part{i}"), String) for i in range(count)]
    held = any_of(*(search_terms.c.term.contains(part) for part in parts))
    partitions = each(bindparam("partitions", type_=jobs.c.payload.type))
    terms = (
        select(search_terms.c.partition, search_terms.c.term)
        .where(search_terms.c.partition.op("IN")(partitions), held)
        .order_by(search_terms.c.partition, search_terms.c.term)
        .limit(bindparam("most"))
        .subquery()
    )
    return select(search_postings.c.partition, search_postings.c.term, search_postings.c.data).join(
        terms,
        (search_postings.c.partition == terms.c.partition)
        & (search_postings.c.term == terms.c.term),
    )
