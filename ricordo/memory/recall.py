"""Recall: search messages and passages by words, by meaning, or by both.

It also finds passages that say the same thing as a new text.

The query is embedded, and external indexes are asked, before the transaction, so nothing waits
inside it. If either fails, the search uses words alone. If a provider is down, results get worse
but are not empty.
"""

import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeVar

from ricordo.domain.egress import DEFAULT_NETWORKS, Clearance, Destination, LocalNetworks, permits
from ricordo.domain.message import Message
from ricordo.domain.passage import Archive, Passage, Relevance
from ricordo.domain.scope import NOBODY
from ricordo.errors import RicordoError
from ricordo.llm.chat import KnowsWords
from ricordo.llm.egress import Payer, embed
from ricordo.llm.registry.models import Embedders
from ricordo.memory.edits import PassageDraft
from ricordo.search import index
from ricordo.search.index import (
    MessageFilter,
    NewText,
    PassageFilter,
    Query,
    SearchMode,
    SearchResult,
)
from ricordo.search.text_parts import MOST_CHARACTERS, part_of_text
from ricordo.search.vector_index import VectorFilter, VectorIndex
from ricordo.search.words import QUESTION_LENGTH, query_terms, terms
from ricordo.storage import archives, messages
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", MessageFilter, PassageFilter)
_CACHE_SIZE = 256
# The number of cached vectors of new texts, which a search embeds before the index's job does.
_NEW_CACHE_SIZE = 2_000
# Only these characters of a query get related words.
_RELATED_LENGTH = 2_000
# Ask an external index for more hits than a page has, since words also influence the order. Use the
# same number for every page.
_OUTSIDE_LIMIT = 100


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message with its relevance, and the turn before it if requested.

    `excerpt` is the part of a long message that matches best; None for a short one. `in_picture`:
    a word of the query is only in the text of a picture.
    """

    message: Message
    relevance: Relevance
    before: Message | None = None
    excerpt: str | None = None
    in_picture: bool = False


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage with its relevance.

    `excerpt` is the part of a long passage that matches best; None for a short one.
    """

    passage: Passage
    relevance: Relevance
    excerpt: str | None = None


def is_in_picture(message: Message, query: str) -> bool:
    """Return whether a word of the query is in the text of a picture, but not in the message.

    Args:
        message: The message with its pictures' texts.
        query: The words or the question.
    """
    picture_text = " ".join(picture.text or "" for picture in message.pictures)
    if not picture_text:
        return False
    results = " ".join(part.content for part in message.tool_returns)
    found = {*query_terms(query)} & {*terms(picture_text)}
    return bool(found - {*terms(f"{message.spoken} {results}")})


@dataclass(frozen=True, slots=True)
class _OutsideSearch:
    """A search of external indexes.

    Attributes:
        index_names: The external index of each partition; None for a partition without one.
        conditions: The filter.
    """

    index_names: Mapping[str, str | None]
    conditions: VectorFilter


@dataclass(frozen=True, slots=True)
class VectorCache:
    """Vectors of recent queries and new texts, for all searches of a server."""

    queries: OrderedDict[tuple[str, bytes], Sequence[float]] = field(default_factory=OrderedDict)
    new_texts: dict[NewText, Sequence[float]] = field(default_factory=dict)


class Recall:
    """Search over all stored messages and passages, for one piece of work.

    `payer` pays for the embeddings of its searches. None: only a model that costs nothing may be
    used; any other raises RuntimeError.
    """

    def __init__(
        self,
        store: Store,
        embedders: Embedders,
        indexes: Mapping[str, VectorIndex] | None = None,
        *,
        payer: Payer | None,
        cache: VectorCache | None = None,
        messages_index: str | None = None,
        networks: LocalNetworks = DEFAULT_NETWORKS,
    ) -> None:
        self._store = store
        self._embedders = embedders
        self._indexes = indexes or {}
        self._messages_index = messages_index
        self._clearance = Clearance(networks)
        self._reader: Destination | None = None
        self.cache = cache or VectorCache()
        self.payer = payer

    def for_reader(self, clearance: Clearance, reader: Destination) -> "Recall":
        """Return this recall for results that this destination will read.

        Hits that the destination may not see are left out.

        Args:
            clearance: Records which hits were shown and which were left out.
            reader: The destination.
        """
        recall = copy(self)
        recall._clearance = clearance
        recall._reader = reader
        return recall

    def _is_readable(self, id: str, label: str | None, text: str) -> bool:
        """Return whether the reader may see a hit, and record the answer in the clearance."""
        if self._reader is None:
            return True
        return self._clearance.may_read(self._reader, id, label, text)

    def _may_embed(self, handle: str, label: str | None) -> bool:
        """Return whether the provider of an embedding model may see a text with this label."""
        if label is None:
            return True
        info = self._embedders.info(handle)
        return permits(label, self._clearance.networks.of_model(info))

    async def messages(
        self,
        query: str,
        message_filter: MessageFilter | Callable[[Transaction], MessageFilter],
        limit: int,
        mode: SearchMode = "hybrid",
        offset: int = 0,
    ) -> list[FoundMessage]:
        """Return the best messages after the first `offset`; the newest for an empty query.

        If the query cannot be embedded, the search uses words alone.

        Args:
            query: The words or the question.
            message_filter: The messages to search, or a function that builds the filter inside the
                transaction.
            limit: The most messages that are returned.
            mode: Whether to search by words, by meaning, or by both.
            offset: The number of best messages to skip.
        """
        outside = None
        if self._messages_index in self._indexes:
            message_filter = await self._filter_of(message_filter)
            # An external index can filter by one conversation only; messages outside the fork are
            # removed below.
            if message_filter.shared:
                conversation = None
            else:
                conversation = message_filter.conversation_id
            conditions = VectorFilter(
                roles=message_filter.roles,
                conversation=conversation,
                users=_users(message_filter.subject_id),
                tags=(),
                all_tags=False,
                start=message_filter.start,
                end=message_filter.end,
            )
            outside = _OutsideSearch(
                dict.fromkeys(message_filter.agent_ids, self._messages_index), conditions
            )
        search_query = await self._make_query(query, mode, outside)

        def find(tx: Transaction, search_query: Query) -> tuple[SearchResult, list[FoundMessage]]:
            search_result = index.find_messages(
                tx, search_query, _filter_of(tx, message_filter), limit, offset
            )
            numbers = dict.fromkeys(
                number
                for hit in search_result.hits
                for number in (hit.document, hit.before)
                if number is not None
            )
            messages_by_number = {
                message.seq: message for message in messages.by_numbers(tx, list(numbers))
            }
            readable = {
                number: message
                for number, message in messages_by_number.items()
                if self._is_readable(
                    message.id, message.egress, f"{message.text}\n{message.picture_text}".strip()
                )
            }
            return search_result, [
                FoundMessage(
                    readable[hit.document],
                    hit.relevance,
                    readable.get(hit.before or 0),
                    part_of_text(messages.indexed_text(messages_by_number[hit.document]), hit.part),
                    is_in_picture(readable[hit.document], query),
                )
                for hit in search_result.hits
                if hit.document in readable
            ]

        return await self._find(search_query, find, outside)

    async def passages(
        self,
        query: str,
        passage_filter: PassageFilter | Callable[[Transaction], PassageFilter],
        limit: int,
        mode: SearchMode = "hybrid",
        offset: int = 0,
    ) -> list[FoundPassage]:
        """Return the best passages after the first `offset`; the newest for an empty query.

        If the query cannot be embedded, the search uses words alone.

        Args:
            query: The words or the question.
            passage_filter: The passages to search, or a function that builds the filter inside the
                transaction. Without an archive no passage is found.
            limit: The most passages that are returned.
            mode: Whether to search by words, by meaning, or by both.
            offset: The number of best passages to skip.
        """
        if isinstance(passage_filter, PassageFilter) and not passage_filter.archive_ids:
            return []
        outside = None
        if self._indexes:
            passage_filter = await self._filter_of(passage_filter)
            owners = passage_filter.archive_ids
            index_names = await self._store.read(lambda tx: archives.vector_dbs(tx, owners))
            conditions = VectorFilter(
                roles=(),
                conversation=None,
                users=_users(passage_filter.subject_id),
                tags=passage_filter.tags,
                all_tags=passage_filter.all_tags,
                start=passage_filter.start,
                end=passage_filter.end,
            )
            outside = _OutsideSearch(index_names, conditions)
        search_query = await self._make_query(query, mode, outside)

        def find(tx: Transaction, search_query: Query) -> tuple[SearchResult, list[FoundPassage]]:
            search_result = index.find_passages(
                tx, search_query, _filter_of(tx, passage_filter), limit, offset
            )
            hits = {hit.document: hit for hit in search_result.hits}
            return search_result, [
                FoundPassage(
                    passage,
                    hits[passage.seq].relevance,
                    part_of_text(passage.text, hits[passage.seq].part),
                )
                for passage in archives.passages_by_numbers(tx, list(hits))
                if self._is_readable(passage.id, passage.egress, passage.text)
            ]

        return await self._find(search_query, find, outside)

    async def _filter_of(self, search_filter: F | Callable[[Transaction], F]) -> F:
        if callable(search_filter):
            return await self._store.read(search_filter)
        return search_filter

    async def _find(
        self,
        search_query: Query,
        find: Callable[[Transaction, Query], tuple[SearchResult, T]],
        outside: _OutsideSearch | None,
    ) -> T:
        search_result, hits = await self._store.read(lambda tx: find(tx, search_query))
        if search_result.missing:
            new_vectors = await self._embed(search_query.text, tuple(search_result.missing))
        else:
            new_vectors = {}
        await self._embed_new(search_result.new_texts)
        if not (new_vectors or search_result.new_texts):
            return hits
        # Search again, with vectors of new texts, or with the query embedded by another model. A
        # partition uses another model for example while its vectors are rebuilt.
        second_query = replace(
            search_query, vectors={**search_query.vectors, **new_vectors}, sought_new=True
        )
        second_query = await self._add_outside_hits(second_query, search_result.missing, outside)
        return (await self._store.read(lambda tx: find(tx, second_query)))[1]

    async def _make_query(
        self, text: str, mode: SearchMode, outside: _OutsideSearch | None
    ) -> Query:
        text = text[:QUESTION_LENGTH]
        default = self._embedders.default_handle()
        if mode == "fts" or default is None or not text.strip():
            return Query(text, mode)
        search_query = Query(
            text,
            mode,
            await self._embed(text, [default]),
            related=await self._related(text, default),
            new_vectors=self.cache.new_texts,
            may_embed=self._may_embed,
        )
        partitions = tuple(outside.index_names) if outside else ()
        return await self._add_outside_hits(search_query, {default: partitions}, outside)

    async def _related(self, text: str, handle: str) -> Mapping[str, Sequence[str]]:
        try:
            embedder = self._embedders.get(handle)
            if isinstance(embedder, KnowsWords):
                return await embedder.related(text[:_RELATED_LENGTH])
        except RicordoError:
            log.debug("no related words", extra={"embedding": handle})  # `_embed` logs the reason
        return {}

    async def _embed(self, text: str, handles: Sequence[str]) -> dict[str, Sequence[float]]:
        vectors: dict[str, Sequence[float]] = {}
        # A query may be long, so the cache keeps only digests as keys.
        digest = blake2b(text.encode("utf-8", "surrogatepass")).digest()
        for handle in handles:
            key = (handle, digest)
            if key not in self.cache.queries:
                try:
                    self.cache.queries[key] = (
                        await embed(
                            self._embedders.get(handle),
                            [text],
                            self._clearance,
                            self.payer,
                            purpose="query",
                        )
                    )[0]
                except RicordoError as error:
                    log.warning(
                        "searching by words only", extra={"embedding": handle, "reason": error}
                    )
                    continue
                while len(self.cache.queries) > _CACHE_SIZE:
                    self.cache.queries.popitem(last=False)
            vectors[handle] = self.cache.queries[key]
        return vectors

    async def _embed_new(self, new_texts: Sequence[tuple[NewText, str]]) -> None:
        """Embed texts that have no vector yet.

        The index's job embeds them later, and stores the vectors.
        """
        by_model: dict[str, list[tuple[NewText, str]]] = {}
        for new, text in new_texts:
            by_model.setdefault(new.model, []).append((new, text))
        for model, texts in by_model.items():
            vectors: Sequence[Sequence[float]] = [()] * len(texts)
            try:
                embedder = self._embedders.get(model)
                embedded = await embed(
                    embedder,
                    [text for _, text in texts],
                    self._clearance,
                    self.payer,
                    purpose="document",
                )
                # Searches compare the vectors many times. Arrays take a tenth of the memory and the
                # time of lists.
                vectors = [array("f", vector) for vector in embedded]
            except RicordoError as error:
                log.warning(
                    "new texts are only found by words",
                    extra={"embedding": model, "reason": error},
                )
            self.cache.new_texts.update(
                (new, vector) for (new, _), vector in zip(texts, vectors, strict=True)
            )
        for oldest in list(self.cache.new_texts)[:-_NEW_CACHE_SIZE]:
            self.cache.new_texts.pop(oldest, None)

    async def _add_outside_hits(
        self,
        search_query: Query,
        partitions: Mapping[str, Sequence[str]],
        outside: _OutsideSearch | None,
    ) -> Query:
        """Return the query with the hits of external indexes.

        An index is asked with the query's vector of each model that is named for a partition. The
        engine uses the hits of the model that made the partition's vectors.

        Args:
            search_query: The query, with its vectors.
            partitions: The partitions to search with each model, by the model's handle.
            outside: The external indexes; None if there are none.
        """
        if outside is None:
            return search_query
        nearest = dict(search_query.nearest)
        searches = [
            (partition, model, self._indexes.get(outside.index_names.get(partition) or ""))
            for model, owners in partitions.items()
            if model in search_query.vectors
            for partition in owners
        ]
        for partition, model, vector_index in searches:
            if vector_index is None:
                continue
            try:
                nearest[partition, model] = await vector_index.search(
                    partition,
                    model,
                    search_query.vectors[model],
                    _OUTSIDE_LIMIT,
                    outside.conditions,
                )
            except RicordoError as error:
                log.warning(
                    "searching by words only", extra={"index": vector_index.name, "reason": error}
                )
        return replace(search_query, nearest=nearest)


def _filter_of(tx: Transaction, search_filter: F | Callable[[Transaction], F]) -> F:
    if callable(search_filter):
        return search_filter(tx)
    return search_filter


def _users(subject_id: str | None) -> tuple[str, ...]:
    """Return the users whose documents this subject may see, as external indexes store them.

    An empty result allows documents of any user; the entry "" allows documents about no user.
    """
    if subject_id is None:
        return ()
    if subject_id == NOBODY:
        return ("",)
    return ("", subject_id)


# The share of all words of two texts that occur in both.
NEARLY_THE_SAME = 0.8
_CANDIDATE_LIMIT = 10


@dataclass(frozen=True, slots=True)
class Likeness:
    """The existing text that is most like another text.

    `is_same` is set if they differ only in white space, and `is_kept` if the existing text then
    also has all tags of the new one.
    """

    existing: Passage | PassageDraft
    is_same: bool = False
    is_kept: bool = False


async def passages_like(
    recall: Recall, archives: Sequence[Archive], text: str, subject_id: str | None = None
) -> list[Passage]:
    """Return passages of these archives that may be like the text.

    They are the first hits of a search for the text itself, by words.

    Args:
        recall: The search.
        archives: The archives to search.
        text: The new text.
        subject_id: The user whose passages and shared ones are found; None finds all.
    """
    passage_filter = PassageFilter(tuple(archive.id for archive in archives), subject_id=subject_id)
    if archives:
        hits = await recall.passages(text, passage_filter, _CANDIDATE_LIMIT, "fts")
    else:
        hits = []
    return [hit.passage for hit in hits]


def most_alike(
    text: str, tags: Sequence[str], existing: Iterable[Passage | PassageDraft]
) -> Likeness | None:
    """Return the equal text, or the text that shares the most words.

    Args:
        text: The new text.
        tags: The new text's tags. Of equal texts, one with all of them is preferred.
        existing: Stored passages and earlier drafts of the step.

    Returns:
        The most similar text; None if no text shares 80 percent of all words.
    """
    own_words = set(terms(text[:MOST_CHARACTERS]))
    plain_words = text.split()
    best: tuple[float, Likeness] | None = None
    for other in existing:
        if other.text.split() == plain_words:
            is_kept = set(tags) <= set(other.tags)
            overlap = 2.0 + is_kept
            likeness = Likeness(other, is_same=True, is_kept=is_kept)
        else:
            other_words = set(terms(other.text[:MOST_CHARACTERS]))
            overlap = len(own_words & other_words) / max(len(own_words | other_words), 1)
            likeness = Likeness(other)
        if overlap >= NEARLY_THE_SAME and (best is None or overlap > best[0]):
            best = overlap, likeness
    if best:
        return best[1]
    return None
