"""Recall: search of all messages and passages, by words, by meaning, or by both; and passages that say the same as a new text.

The query is embedded and outside indexes are asked before the transaction, in which nothing waits. Where either fails, the search
goes on with words alone: a provider that is down makes answers poorer, never none.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeVar

from ricordo.domain.message import Message
from ricordo.domain.passage import Archive, Passage, Relevance
from ricordo.domain.scope import NOBODY
from ricordo.errors import RicordoError
from ricordo.llm.chat import KnowsWords
from ricordo.llm.registry.models import Embedders
from ricordo.memory.working_memory import PassageDraft
from ricordo.search import index
from ricordo.search.index import MessageFilter, PassageFilter, Query, SearchMode, SearchResult
from ricordo.search.vector_index import VectorFilter, VectorIndex
from ricordo.search.words import QUESTION_LENGTH, terms
from ricordo.search.write_buffer import MOST_CHARACTERS
from ricordo.storage import archives, messages
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", MessageFilter, PassageFilter)
_MOST_CACHED = 256
_RELATED_LENGTH = (
    2_000  # characters of a query in which words are looked for that have others near in meaning
)
# An outside index is asked for more than a page, since words have their say in the order too, and for as many at every page.
_FROM_OUTSIDE = 100


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message with the reason it was found, and the turn before it where that was asked for."""

    message: Message
    relevance: Relevance
    before: Message | None = None


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage with the reason it was found."""

    passage: Passage
    relevance: Relevance


class Recall:
    """Search over everything that is kept."""

    def __init__(
        self,
        store: Store,
        embedders: Embedders,
        indexes: Mapping[str, VectorIndex] | None = None,
        *,
        messages_index: str | None = None,
    ) -> None:
        self._store = store
        self._embedders = embedders
        self._indexes = indexes or {}
        self._messages_index = messages_index
        self._query_vectors: OrderedDict[tuple[str, bytes], Sequence[float]] = OrderedDict()

    async def messages(
        self,
        query: str,
        wanted: MessageFilter | Callable[[Transaction], MessageFilter],
        limit: int,
        mode: SearchMode = "hybrid",
        offset: int = 0,
    ) -> list[FoundMessage]:
        """The best messages behind the first `offset`, else the newest; `wanted` may be a function that makes the filter."""
        asked = await self._ask(query, mode)
        if self._messages_index in self._indexes:
            wanted = await self._filter_of(wanted)
            # Such an index knows one conversation or all; what does not belong to the fork is left out below.
            conversation = None if wanted.shared else wanted.conversation_id
            outside = VectorFilter(
                wanted.roles,
                conversation,
                _users(wanted.subject_id),
                (),
                False,
                wanted.start,
                wanted.end,
            )
            asked = await self._ask_outside(
                asked, dict.fromkeys(wanted.agent_ids, self._messages_index), outside
            )

        def find(tx: Transaction, asked: Query) -> tuple[SearchResult, list[FoundMessage]]:
            found = index.find_messages(tx, asked, _filter_of(tx, wanted), limit, offset)
            numbers = dict.fromkeys(
                n for hit in found.hits for n in (hit.document, hit.before) if n is not None
            )
            read = {message.seq: message for message in messages.by_numbers(tx, list(numbers))}
            return found, [
                FoundMessage(read[hit.document], hit.relevance, read.get(hit.before or 0))
                for hit in found.hits
                if hit.document in read
            ]

        return await self._find(asked, find)

    async def passages(
        self,
        query: str,
        wanted: PassageFilter | Callable[[Transaction], PassageFilter],
        limit: int,
        mode: SearchMode = "hybrid",
        offset: int = 0,
    ) -> list[FoundPassage]:
        """The best passages, the newest for no word, none without an archive; `wanted` and `offset` as for messages."""
        if isinstance(wanted, PassageFilter) and not wanted.archive_ids:
            return []
        asked = await self._ask(query, mode)
        if self._indexes:
            wanted = await self._filter_of(wanted)
            owners = wanted.archive_ids
            kept_in = await self._store.read(lambda tx: archives.vector_dbs(tx, owners))
            outside = VectorFilter(
                (),
                None,
                _users(wanted.subject_id),
                wanted.tags,
                wanted.all_tags,
                wanted.start,
                wanted.end,
            )
            asked = await self._ask_outside(asked, kept_in, outside)

        def find(tx: Transaction, asked: Query) -> tuple[SearchResult, list[FoundPassage]]:
            found = index.find_passages(tx, asked, _filter_of(tx, wanted), limit, offset)
            why = {hit.document: hit.relevance for hit in found.hits}
            return found, [
                FoundPassage(p, why[p.seq]) for p in archives.passages_by_numbers(tx, list(why))
            ]

        return await self._find(asked, find)

    async def _filter_of(self, wanted: F | Callable[[Transaction], F]) -> F:
        return await self._store.read(wanted) if callable(wanted) else wanted

    async def _find(
        self, asked: Query, find: Callable[[Transaction, Query], tuple[SearchResult, T]]
    ) -> T:
        found, results = await self._store.read(lambda tx: find(tx, asked))
        more = await self._embed(asked.text, found.missing) if found.missing else {}
        if not more:
            return results
        # A partition whose vectors are of another model than the default, as while they are changed: ask again, with its own.
        again = replace(asked, vectors={**asked.vectors, **more})
        return (await self._store.read(lambda tx: find(tx, again)))[1]

    async def _ask(self, text: str, mode: SearchMode) -> Query:
        text = text[:QUESTION_LENGTH]
        default = self._embedders.default_handle()
        if mode == "fts" or default is None or not text.strip():
            return Query(text, mode)
        return Query(
            text,
            mode,
            await self._embed(text, [default]),
            related=await self._related(text, default),
        )

    async def _related(self, text: str, handle: str) -> Mapping[str, Sequence[str]]:
        try:
            embedder = self._embedders.get(handle)
            return (
                await embedder.related(text[:_RELATED_LENGTH])
                if isinstance(embedder, KnowsWords)
                else {}
            )
        except RicordoError:
            return {}  # `_embed` has said why

    async def _embed(
        self, text: str, handles: Sequence[str] | frozenset[str]
    ) -> dict[str, Sequence[float]]:
        vectors: dict[str, Sequence[float]] = {}
        # A query may be long, so of many of them only digests are kept.
        digest = blake2b(text.encode("utf-8", "surrogatepass")).digest()
        for handle in handles:
            key = (handle, digest)
            if key not in self._query_vectors:
                try:
                    self._query_vectors[key] = (
                        await self._embedders.get(handle).embed([text], purpose="query")
                    )[0]
                except RicordoError as error:
                    log.warning(
                        "searching by words alone", extra={"embedding": handle, "reason": error}
                    )
                    continue
                while len(self._query_vectors) > _MOST_CACHED:
                    self._query_vectors.popitem(last=False)
            vectors[handle] = self._query_vectors[key]
        return vectors

    async def _ask_outside(
        self, asked: Query, kept_in: Mapping[str, str | None], wanted: VectorFilter
    ) -> Query:
        nearest: dict[str, Sequence[tuple[int, float]]] = {}
        for partition, name in kept_in.items():
            index = self._indexes.get(name or "")
            if index is None or asked.mode == "fts":
                continue
            for model, vector in asked.vectors.items():
                try:
                    nearest[partition] = await index.search(
                        partition, model, vector, _FROM_OUTSIDE, wanted
                    )
                except RicordoError as error:
                    log.warning("searching by words alone", extra={"index": name, "reason": error})
        return replace(asked, nearest=nearest)


def _filter_of(tx: Transaction, wanted: F | Callable[[Transaction], F]) -> F:
    return wanted(tx) if callable(wanted) else wanted


def _users(subject_id: str | None) -> tuple[str, ...]:
    """Whom a document may be about that this subject sees, as outside indexes keep it; empty for anybody."""
    if subject_id is None:
        return ()
    return ("",) if subject_id == NOBODY else ("", subject_id)


# Of all words of two texts, as many are in both.
NEARLY_THE_SAME = 0.8
_LOOKED_AT = 10


@dataclass(frozen=True, slots=True)
class Likeness:
    """The text most like another: `is_same` but for white space, `is_kept` with all the other's tags too."""

    existing: Passage | PassageDraft
    is_same: bool = False
    is_kept: bool = False


async def passages_like(
    recall: Recall, archives: Sequence[Archive], text: str, subject_id: str | None = None
) -> list[Passage]:
    """The passages of these archives that the subject sees and that may be like the text: those its own words find first."""
    wanted = PassageFilter(tuple(archive.id for archive in archives), subject_id=subject_id)
    found = await recall.passages(text, wanted, _LOOKED_AT, "fts") if archives else []
    return [hit.passage for hit in found]


def most_alike(
    text: str, tags: Sequence[str], existing: Iterable[Passage | PassageDraft]
) -> Likeness | None:
    """The text that says the same, or nearly the same in most of its words; None where there is none."""
    words, plain = set(terms(text[:MOST_CHARACTERS])), text.split()
    best: tuple[float, Likeness] | None = None
    for other in existing:
        if other.text.split() == plain:
            is_kept = set(tags) <= set(other.tags)
            overlap, likeness = 2.0 + is_kept, Likeness(other, is_same=True, is_kept=is_kept)
        else:
            theirs = set(terms(other.text[:MOST_CHARACTERS]))
            overlap, likeness = len(words & theirs) / max(len(words | theirs), 1), Likeness(other)
        if overlap >= NEARLY_THE_SAME and (best is None or overlap > best[0]):
            best = overlap, likeness
    return best[1] if best else None
