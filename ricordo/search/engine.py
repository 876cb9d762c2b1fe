"""One search, from its query to its hits.

It reads the index, scores words and vectors, filters, and takes the best. One statement reads the
partitions, buffers and uncached postings. A second one is needed if partitions changed since the
last search, and a third one if vectors were stored since then. If a word of the query is unknown,
another statement looks for it inside other words. If texts have no vector yet, one more statement
for each partition reads them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from operator import itemgetter
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
from ricordo.search.index import (
    MessageFilter,
    NewText,
    PassageFilter,
    Query,
    SearchHit,
    SearchResult,
)
from ricordo.search.partition_view import join_views, view_for, view_of
from ricordo.search.partitions import EmbeddingBatch
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
    documents_of,
    part_of,
    read_vectors,
    similarities,
    similarities_shown,
)
from ricordo.search.words import (
    asks_for_summary,
    infix,
    other_forms,
    persons,
    query_terms,
    related_terms,
)
from ricordo.search.write_buffer import ROLES, fingerprint, label_term
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import jobs, search_postings, search_terms

# The most unknown words of a query that are looked for inside other words.
MOST_INFIXES = 8
# The most words of the index for each of them. More are read if some may be in hidden documents
# only.
MOST_VARIANTS = 64
MOST_SHARED_VARIANTS = 1024
SPOKEN = ("user", "assistant")
# The weight of weaker matches: inside a word, of another inflection, or of a related word.
VARIANT_WEIGHT = 0.5
# The number of best hits by words whose similarity is always computed. The first pass over the
# vectors may have left them out.
COMPARED = 1000
# The most texts without a vector, newest first, that a search embeds.
MOST_NEW_TEXTS = 50
_DAY = 24 * 60 * 60 * SECOND
_USER = ROLES.index("user")


def find(
    tx: Transaction,
    owners: Sequence[str],
    query: Query,
    filters: MessageFilter | PassageFilter,
    limit: int,
    offset: int = 0,
) -> SearchResult:
    """Return the best documents of these partitions that meet the filters.

    A query without a word returns the newest documents. With `query.mode` "vector", a search by
    words replaces the comparison of vectors if nothing is embedded, or if the query has no vector.

    Args:
        tx: The transaction.
        owners: The ids of the agents, or of the archives, whose partitions are searched. Repeated
            ids count once.
        query: The query, with its vectors.
        filters: The conditions, and the user whose data the hits may contain.
        limit: The most hits. Below 1 there are none.
        offset: The number of best documents to skip.

    Returns:
        The hits. If `new_texts` is not empty, there are no hits yet: embed these texts, and repeat
            the search with their vectors.
    """
    owners = tuple(dict.fromkeys(owners))
    if not owners or limit < 1:
        return SearchResult()
    terms = query_terms(query.text)
    variants = Variants(other_forms(query.text), related_terms(query.related, terms))
    search = _Search(tx, owners, [*terms, *variants.terms, *map(label_term, filters.tags)], filters)
    may = search.allowed(filters)
    if not terms:
        same = search.view.documents.best_parts(np.ones(len(search.view.records), np.float32))
        newest = search.best(same, may, filters, offset + limit)[offset:]
        return SearchResult(
            tuple(SearchHit(int(search.view.records["number"][p]), Relevance(0.0)) for p in newest)
        )
    missing = search.read_vectors(query) if query.mode != "fts" else {}
    if query.mode != "fts" and (new_texts := search.new_texts(query, may)):
        return SearchResult((), missing, new_texts)
    postings, most = search.postings_of(terms, variants, filters)
    documents = search.view.documents
    lexical = scoring.lexical(documents, postings if query.mode != "vector" else [])
    similar = search.similar(query, may, lexical) if query.mode != "fts" else None
    if query.mode == "vector" and similar is None:
        # Nothing is embedded, or no model can be asked. A search by words is better than no answer.
        lexical = scoring.lexical(documents, postings)
    times = _times(query.text[:QUERY_LENGTH], tx.clock.now() // _DAY)
    scored = fusion.fuse(
        documents,
        lexical,
        similar,
        times,
        fusion.speaks(documents, postings),
        may,
        search.own_bonus(query.text),
    )
    best = search.best(scored, may, filters, offset + limit)[offset:]
    lexical_of_texts = documents.text_scores(lexical)
    best_of_parts = documents.best_parts(lexical)
    similar_of_texts = similar.of_texts(documents) if similar is not None else None
    ranks = fusion.ranks(best, may, lexical_of_texts, similar_of_texts)
    if similar is not None or query.mode == "fts":
        mode = query.mode
    else:
        mode = "fts"
    before = search.before(best, filters)
    best_part = {p: search.best_part(p, lexical, similar) for p in best.tolist()}
    hits = [
        SearchHit(
            int(search.view.records["number"][p]),
            Relevance(
                round(float(scored[p]), 6),
                by_words,
                by_vector,
                mode,
                _share(best_of_parts[p], most),
                search.cosine(query, best_part[p]),
            ),
            before.get(p),
            int(search.view.records["form"][best_part[p]] >> scoring.PART_SHIFT),
        )
        for p, (by_words, by_vector) in zip(best.tolist(), ranks, strict=True)
    ]
    return SearchResult(tuple(hits), missing)


def _share(score: Any, most: float) -> float:
    if most:
        return round(min(float(score) / most, 1.0), 3)
    return 0.0


@dataclass(frozen=True, slots=True)
class Variants:
    """Terms that count less than the query's terms.

    `forms` are other inflections, and `related` are terms with a similar meaning.
    """

    forms: Sequence[str]
    related: Mapping[str, Sequence[str]]

    @property
    def terms(self) -> list[str]:
        return [*self.forms, *(term for terms in self.related.values() for term in terms)]


class _Search:
    """The data of one search, limited to documents that its user may see."""

    def __init__(
        self,
        tx: Transaction,
        owners: Sequence[str],
        terms: Sequence[str],
        filters: MessageFilter | PassageFilter,
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
                filters.subject_id,
                filters.own_conversation,
            )
            for owner in self._owners
        ]
        self._starts = np.cumsum([0, *(len(view.records) for view in views)]).tolist()
        self.view = join_views(cache, self._owners, views)
        self._postings = snapshot.postings
        self._vectors: Mapping[int, Vectors] = {}
        # The stored vectors of each owner's view, by the owner's index; None without vectors.
        self._stored: dict[int, Vectors | ShownVectors | None] = {}
        # Texts without a stored vector. `_newest` holds those that a search embeds, by the owner's
        # index and then by position. `_new` holds those whose vector came with the query, by
        # position.
        self._newest: dict[int, dict[int, NewText]] = {}
        self._new: dict[int, NewText] = {}
        self._query_vectors: dict[str, Floats] = {}

    def posting(self, term: str) -> Posting:
        flushed = [
            (s, self._postings[s.seq, term])
            for s in self._partitions
            if (s.seq, term) in self._postings
        ]
        return self.view.posting(self._placed(flushed), term)

    def _placed(self, postings: Sequence[tuple[PartitionRow, Posting]]) -> Posting:
        """Return the postings of several partitions as positions in the joined view."""
        placed = []
        for partition, posting in postings:
            number = self._owners.index(partition.owner_id)
            start, visible = self._starts[number], self._views[number].placed(posting)
            placed.append(
                replace(visible, positions=visible.positions + start) if start else visible
            )
        return joined_postings(placed)

    def allowed(self, filters: MessageFilter | PassageFilter) -> Bools | None:
        """Mark the positions that meet the filters; None if all do and none is deleted.

        The filter by user is not applied here, since the view contains only what the user may see.
        """
        # Most filters by role exclude nothing.
        if any(role not in filters.roles for role in self.view.roles):
            roles = filters.roles
        else:
            roles = ()
        limits = (filters.conversation_id, filters.start, filters.end)
        running = self._running(filters)
        if (
            self.view.documents.is_whole
            and not (roles or filters.tags or len(running))
            and limits == (None,) * 3
        ):
            return None
        records = self.view.records
        may = self.view.alive.copy()
        may[running] = False
        if filters.conversation_id is not None:
            may &= self._in_conversation(filters.conversation_id, filters.shared)
        if roles:
            may &= self._with_roles(self.view.roles & set(roles))
        if filters.start is not None:
            may &= records["created_at"] >= filters.start
        if filters.end is not None:
            may &= records["created_at"] <= filters.end
        if filters.tags:
            may &= self._with_tags(set(filters.tags), needs_all=filters.all_tags)
        # Without a mask everything is faster.
        if self.view.documents.is_whole and may.all():
            return None
        return may

    def _in_conversation(self, conversation_id: str, shared: Iterable[tuple[str, int]]) -> Bools:
        """Mark the conversation's messages, and those that it shares as a fork."""
        records = self.view.records
        in_conversation: Bools = records["conversation"] == fingerprint(conversation_id)
        for conversation, newest in shared:
            in_other = records["conversation"] == fingerprint(conversation)
            in_conversation |= in_other & (records["number"] <= newest)
        return in_conversation

    def _with_roles(self, roles: Set[str]) -> Bools:
        """Mark the messages with one of the roles."""
        document_roles = self.view.records["role"]
        with_role = np.zeros(len(document_roles), dtype=bool)
        for role in roles:
            with_role |= document_roles == ROLES.index(role)
        return with_role

    def _with_tags(self, tags: Set[str], *, needs_all: bool) -> Bools:
        """Mark the documents with one of the tags, or with all of them."""
        carried = np.zeros(len(self.view.records), dtype=np.int64)
        for tag in tags:
            carried[self.posting(label_term(tag)).positions] += 1
        return carried >= (len(tags) if needs_all else 1)

    def own_bonus(self, text: str) -> Floats | None:
        """Return bonuses for texts by users, for a query in which users ask about themselves."""
        speaks_of_asker, speaks_of_answer = persons(text)
        # A query for an agent's answer, or for a summary, prefers no texts by users.
        if not speaks_of_asker or speaks_of_answer or asks_for_summary(text):
            return None
        bonuses: Floats = (self.view.records["role"] == _USER) * np.float32(fusion.OWN_BONUS)
        return bonuses

    def _running(self, filters: MessageFilter | PassageFilter) -> Integers:
        """Return the positions of the messages in the turn that runs this search."""
        if filters.turn_began is None or filters.own_conversation is None:
            return np.empty(0, dtype=np.int64)
        records = self.view.records
        new: Integers = np.flatnonzero(records["created_at"] >= filters.turn_began)
        running: Integers = new[
            records["conversation"][new] == fingerprint(filters.own_conversation)
        ]
        return running

    def best(
        self, scores: Floats, may: Bools | None, filters: MessageFilter | PassageFilter, count: int
    ) -> Integers:
        """Return the positions of the best documents, best first.

        With `own_first`, documents about the user come before shared ones. If several partitions
        are searched, those without a document about the user are left out.
        """
        documents = self.view.documents
        if not filters.own_first or filters.subject_id in (None, NOBODY):
            return fusion.top(documents, scores, may, count)
        allowed = self.view.alive if may is None else may
        is_own = self.view.records["user"] == fingerprint(filters.subject_id)
        is_shared = ~is_own
        for start, end in pairwise(self._starts) if len(self._owners) > 1 else ():
            if not is_own[start:end].any():
                is_shared[start:end] = False
        own_best = fusion.top(documents, scores, allowed & is_own, count)
        shared_best = fusion.top(documents, scores, allowed & is_shared, count)
        return np.concatenate([own_best, shared_best])[:count]

    def best_part(self, start: int, lexical: Floats, similar: Similarities | None) -> int:
        """Return the position of the best part of the text that starts here."""
        positions = np.arange(start, self.view.documents.end_of(start))
        if len(positions) == 1:
            return start
        by_words = lexical[positions]
        score = by_words / (by_words.max() or 1)
        by_vector = similar.at(positions) if similar is not None else np.zeros(0)
        known = np.isfinite(by_vector)
        if known.any() and known.all():
            spread = by_vector.max() - by_vector.min()
            score *= 1 - fusion.SIMILARITY_SHARE
            score += fusion.SIMILARITY_SHARE * (by_vector - by_vector.min()) / (spread or 1)
        return start + int(np.argmax(score))

    def before(self, best: Integers, filters: MessageFilter | PassageFilter) -> dict[int, int]:
        """Return for each hit the number of the spoken turn before it, by the hit's position.

        A hit without such a turn is missing, and so is one whose turn the filters exclude.
        """
        if isinstance(filters, PassageFilter) or not filters.reads_before or not len(best):
            return {}
        records = self.view.records
        may = self.allowed(replace(filters, roles=SPOKEN))
        is_spoken = self.view.alive if may is None else may
        conversations = np.unique(records["conversation"][best])
        near = np.flatnonzero(self.view.alive & np.isin(records["conversation"], conversations))
        near = near[self.view.documents.first_of(near) == near]
        order = near[
            np.lexsort([records[name][near] for name in ("number", "created_at", "conversation")])
        ]
        places = {p: index for index, p in enumerate(order.tolist())}
        pairs = ((p, self._turn_before(order, places[p], is_spoken)) for p in best.tolist())
        return {p: number for p, number in pairs if number is not None}

    def _turn_before(self, order: Integers, index: int, is_spoken: Bools) -> int | None:
        """Return the number of the last spoken turn before this index in its session.

        Results of tools may lie between the two turns. Only the `scoring.REACH` messages before the
        index are examined.
        """
        records = self.view.records
        later = records[order[index]]
        if later["conversation"] == scoring.NO_CONVERSATION:
            return None
        for position in order[max(index - scoring.REACH, 0) : index][::-1].tolist():
            record = records[position]
            pause = later["created_at"] - record["created_at"]
            if record["conversation"] != later["conversation"] or pause > scoring.PAUSE:
                return None
            if is_spoken[position]:
                return int(record["number"])
            later = record
        return None

    def cosine(self, query: Query, position: int) -> float | None:
        """Return the cosine of the document and the query; None if unknown."""
        index = int(np.searchsorted(self._starts, position, side="right")) - 1
        owner = self._owners[index]
        if position in self._new:
            new = self._new[position]
            vector = np.asarray(query.new_vectors[new], dtype=np.float32)
            return round(float(vector @ self._query_vector(query, new.model)), 3)
        row_index = position - self._starts[index]
        nearest = self._nearest_outside(index, query)
        if nearest is not None:
            similarity = dict(nearest).get(int(self.view.documents.number[position]))
            if similarity is None or math.isnan(similarity):
                return None
            return round(similarity, 3)
        partition = self._rows.get(owner)
        if partition:
            vectors = self._vectors.get(partition.seq)
        else:
            vectors = None
        visible = self._views[index].partition_positions
        if visible is not None:
            row_index = int(visible[row_index])
        if partition is None or vectors is None or row_index >= len(vectors):
            return None
        query_vector = self._query_vector(query, str(partition.embedding))
        row = vectors.floats(slice(row_index, row_index + 1))[0]
        if len(row) == len(query_vector):
            return round(float(row @ query_vector), 3)
        return None

    def postings_of(
        self, terms: Sequence[str], variants: Variants, filters: MessageFilter | PassageFilter
    ) -> tuple[list[Posting], float]:
        """Return the postings of words and variants, and the score of a text with all words once.

        Words that no document has are looked for inside other words.
        """
        running = self._running(filters)
        by_word = {word: self._spread(word, running) for word in terms}
        best_score = sum(
            scoring.rarity(self.view.documents, len(posting.positions))
            for posting in by_word.values()
        )
        postings = [posting for posting in by_word.values() if len(posting.positions)]
        unknown = [word for word, posting in by_word.items() if not len(posting.positions)]
        weaker = [
            *self._variants(unknown),
            *(self._spread(form, running) for form in variants.forms),
            *(
                self._related(by_word[word], related, running)
                for word, related in variants.related.items()
            ),
        ]
        postings += [
            replace(posting, weight=VARIANT_WEIGHT) for posting in weaker if len(posting.positions)
        ]
        return postings, best_score

    def _related(self, word: Posting, related: Sequence[str], running: Integers) -> Posting:
        """Return the documents that have a related word instead of the word, as one posting.

        All related words together count as one word, and not more than the word itself.
        """
        times = np.zeros(len(self.view.records), dtype=np.uint8)
        for term in related:
            posting = self.posting(term)
            times[posting.positions] = np.maximum(times[posting.positions], posting.times)
        times[word.positions] = 0
        times[running] = 0
        positions = np.flatnonzero(times)
        is_named = np.zeros(len(positions), dtype=np.bool_)
        return Posting(positions, times[positions], is_named, least_count=len(word.positions))

    def _spread(self, term: str, running: Integers) -> Posting:
        posting = self.view.spread(self.posting(term), term)
        if posting.spread is None and len(running):
            # The question is in the running turn, and must not raise the scores of turns near it.
            posting = some_of(posting, np.isin(posting.positions, running, invert=True))
        return posting

    def _variants(self, absent: Sequence[str]) -> list[Posting]:
        """For each unknown word, return one posting of the words that contain it.

        These are compounds with the word and words that begin with it.
        """
        inner = [part for word in absent if (part := infix(word))][:MOST_INFIXES]
        if not inner:
            return []
        waiting = dict.fromkeys(
            term for _, terms in self.view.buffered for term in terms if term[0] > "\x1f"
        )
        flushed = self._read_variants(inner)
        joined = []
        for part in inner:
            placed = self._placed_variants(flushed.get(part, []))
            holding = sorted(term for term in waiting if part in term)[:MOST_VARIANTS]
            posting = joined_postings([placed, *map(self.view.posting_in_buffer, holding)])
            posting = some_of(posting, self.view.alive[posting.positions])
            if len(posting.positions):
                joined.append(_without_duplicates(posting))
        return joined

    def _placed_variants(self, terms: Sequence[tuple[str, PartitionRow, Posting]]) -> Posting:
        """Return the alphabetically first variants as one posting, at most `MOST_VARIANTS` terms.

        Variants that occur only in hidden documents do not count toward the limit.
        """
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
        by_part: dict[str, list[tuple[str, PartitionRow, Posting]]] = {}
        # The vocabulary also contains words of hidden documents, so more of it is read.
        if all(view.partition_positions is None for view in self._views):
            limit = MOST_VARIANTS
        else:
            limit = MOST_SHARED_VARIANTS
        parts = {f"part{i}": part for i, part in enumerate(inner)}
        parameters = {"partitions": list(by_seq), "limit": limit * len(inner), **parts}
        for row in self._tx.all(_containing(len(inner)), parameters):
            for part in inner:
                if part in row.term:
                    by_part.setdefault(part, []).append(
                        (row.term, by_seq[row.partition], decoded({0: row.data}))
                    )
        return by_part

    def read_vectors(self, query: Query) -> dict[str, list[str]]:
        """Read the stored vectors; return the models for which the query has no vector.

        Each model's handle is returned with the owners of its vectors.
        """
        usable = [
            partition for partition in self._partitions if partition.embedding in query.vectors
        ]
        self._vectors = read_vectors(self._tx, usable)
        for index, owner in enumerate(self._owners):
            partition = self._rows.get(owner)
            if self._nearest_outside(index, query) is not None:
                continue
            if partition and partition.seq in self._vectors:
                self._stored[index] = part_of(
                    cache_of(self._tx), partition, self._vectors[partition.seq], self._views[index]
                )
            elif partition is None or partition.embedding is None:
                self._stored[index] = None
        missing: dict[str, list[str]] = {}
        for row in self._partitions:
            if row.embedding and row.vectors and row.embedding not in query.vectors:
                missing.setdefault(row.embedding, []).append(row.owner_id)
        return missing

    def similar(self, query: Query, may: Bools | None, lexical: Floats) -> Similarities | None:
        """Return the similarities of documents to the query; None if nothing is embedded.

        Args:
            query: The query, with its vectors and the hits of external indexes.
            may: Marks the positions that the filters allow (n,); None allows all.
            lexical: The scores by words (n,). The best hits by words are always compared.
        """
        parts = []
        for index in range(len(self._owners)):
            start = self._starts[index]
            positions = slice(start, self._starts[index + 1])
            nearest = self._nearest_outside(index, query)
            if nearest is not None:
                similar_part = _from_outside(self.view.documents.number[positions], nearest)
            elif (stored := self._stored.get(index)) is not None:
                query_vector = self._query_vector(query, self._model(index, query))
                similar_part = _compare(
                    stored,
                    query_vector,
                    None if may is None else may[positions],
                    lexical[positions],
                )
                new_part = self._similar_new(query, index, stored.common)
                similar_part = fusion.joined([similar_part, new_part])
            elif index in self._stored:
                similar_part = self._similar_new(query, index, None)
            else:
                continue
            parts.append(
                Similarities(similar_part.positions + start, similar_part.values)
                if start
                else similar_part
            )
        similar = fusion.joined(parts)
        if not self.view.documents.is_whole:
            similar = similar.where(self.view.alive)
        return similar if len(similar) else None

    def _nearest_outside(self, index: int, query: Query) -> Sequence[tuple[int, float]] | None:
        """Return the hits of an external index for an owner; None if none was asked."""
        return query.nearest.get((self._owners[index], self._model(index, query)))

    def _query_vector(self, query: Query, model: str) -> Floats:
        vector = self._query_vectors.get(model)
        if vector is None:
            vector = self._query_vectors[model] = np.asarray(query.vectors[model], np.float32)
        return vector

    def _model(self, index: int, query: Query) -> str:
        """Return the model of an owner's vectors.

        If no vectors are stored, it is the first model of the query, or "" if there is none.
        """
        partition = self._rows.get(self._owners[index])
        return (partition.embedding if partition else None) or next(iter(query.vectors), "")

    def new_texts(self, query: Query, may: Bools | None) -> tuple[tuple[NewText, str], ...]:
        """Return the newest texts without any vector, each with the text to embed.

        Returns no texts if `query.sought_new` is set, since they were returned before.
        """
        texts: list[tuple[NewText, str]] = []
        for index in self._stored:
            model = self._model(index, query)
            self._newest[index] = self._newest_of(index, model, may) if model else {}
            by_part = {
                (new.document, new.part): new
                for new in self._newest[index].values()
                if new not in query.new_vectors
            }
            if not by_part or query.sought_new:
                continue
            batch = EmbeddingBatch(self._owners[index], model, 0, tuple(by_part), len(by_part))
            texts += [
                (by_part[record.document, record.part], text)
                for text, record in documents_of(
                    self._tx, batch, may_embed=partial(query.may_embed, model)
                )
            ]
        return tuple(texts[:MOST_NEW_TEXTS])

    def _newest_of(self, index: int, model: str, may: Bools | None) -> dict[int, NewText]:
        """Return an owner's newest texts without a stored vector, by position."""
        stored = self._stored[index]
        first = self._starts[index] + (len(stored) if stored is not None else 0)
        searched = slice(first, self._starts[index + 1])
        is_searched = self.view.alive[searched]
        if may is not None:
            is_searched = is_searched & may[searched]
        positions = np.flatnonzero(is_searched)[-MOST_NEW_TEXTS:] + first
        records = self.view.records[positions]
        fields = zip(
            records["number"].tolist(),
            (records["form"] >> scoring.PART_SHIFT).tolist(),
            records["version"].tolist(),
            records["length"].tolist(),
            strict=True,
        )
        return {
            position: NewText(model, *values)
            for position, values in zip(positions.tolist(), fields, strict=True)
        }

    def _similar_new(
        self, query: Query, index: int, common: fusion.CommonDirections | None
    ) -> Similarities:
        """Return the similarities of one owner's newest texts, whose vectors are in the query."""
        model = self._model(index, query)
        if not self._newest.get(index):
            return fusion.NO_SIMILARITIES
        focused_query = fusion.focus(self._query_vector(query, model), common)
        embedded = {
            position: new
            for position, new in self._newest[index].items()
            if len(query.new_vectors.get(new, ())) == len(focused_query)
        }
        if not embedded:
            return fusion.NO_SIMILARITIES
        self._new |= embedded
        vectors = np.array([query.new_vectors[new] for new in embedded.values()], dtype=np.float32)
        positions = np.array(list(embedded), dtype=np.int64) - self._starts[index]
        return Similarities(positions, vectors @ focused_query).rounded()


@lru_cache(maxsize=256)
def _times(text: str, day: int) -> list[tuple[int, int]]:
    return named_times(text, day * _DAY)


def _without_duplicates(posting: Posting) -> Posting:
    """Keep one entry for each position: one with a hit in a name, or the most occurrences."""
    order = np.lexsort((posting.times, posting.named, posting.positions))
    positions = posting.positions[order]
    return some_of(posting, order[np.append(positions[1:] != positions[:-1], True)])


def _compare(
    vectors: Vectors | ShownVectors, query_vector: Floats, may: Bools | None, lexical: Floats
) -> Similarities:
    threshold = fusion.bar(lexical, COMPARED) if len(lexical) > COMPARED else 0
    if threshold > 0:
        hits = lexical >= threshold
    else:
        hits = lexical > 0
    compared = hits if may is None else hits & may
    if isinstance(vectors, ShownVectors):
        return similarities_shown(vectors, query_vector, may, compared).rounded()
    return similarities(vectors, query_vector, may, compared).rounded()


def _from_outside(numbers: Integers, nearest: Sequence[tuple[int, float]]) -> Similarities:
    """Return the similarities of an external index, with positions instead of numbers."""
    similarities = {
        number: similarity for number, similarity in nearest if not math.isnan(similarity)
    }
    document_numbers = np.array(sorted(similarities), dtype=np.int64)
    # If no document was changed, the numbers ascend, and a binary search finds the positions.
    # Scanning a million numbers would take as long as all the rest of the search.
    if (numbers[1:] > numbers[:-1]).all():
        positions = np.searchsorted(numbers, document_numbers)
        positions = positions[positions < len(numbers)]
        positions = positions[np.isin(numbers[positions], document_numbers)]
    else:
        positions = np.flatnonzero(np.isin(numbers, document_numbers))
    return Similarities(
        positions,
        np.array(
            [similarities[number] for number in numbers[positions].tolist()], dtype=np.float32
        ),
    )


@lru_cache(maxsize=MOST_INFIXES)
def _containing(count: int) -> Any:
    """Return the statement for postings of terms that contain one of the parts."""
    parts = [cast_to(bindparam(f"part{i}"), String) for i in range(count)]
    contains_part = any_of(*(search_terms.c.term.contains(part) for part in parts))
    partitions = each(bindparam("partitions", type_=jobs.c.payload.type))
    terms = (
        select(search_terms.c.partition, search_terms.c.term)
        .where(search_terms.c.partition.op("IN")(partitions), contains_part)
        .order_by(search_terms.c.partition, search_terms.c.term)
        .limit(bindparam("limit"))
        .subquery()
    )
    return select(search_postings.c.partition, search_postings.c.term, search_postings.c.data).join(
        terms,
        (search_postings.c.partition == terms.c.partition)
        & (search_postings.c.term == terms.c.term),
    )
