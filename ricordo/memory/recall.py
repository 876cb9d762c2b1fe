"""Recall: what was ever said with an agent, found by words, roles and dates."""

from dataclasses import dataclass

from ricordo.domain.message import Message
from ricordo.domain.passage import Passage, Relevance
from ricordo.storage import archives, messages, search
from ricordo.storage.search import MessageFilter, PassageFilter
from ricordo.storage.store import Transaction


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message with the reason it was found."""

    message: Message
    relevance: Relevance


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage with the reason it was found."""

    passage: Passage
    relevance: Relevance


def find_messages(tx: Transaction, query: str, wanted: MessageFilter, limit: int) -> list[FoundMessage]:
    """The best matching messages, best first."""
    hits = {hit.id: hit.relevance for hit in search.find_messages(tx, query, wanted, limit)}
    return [FoundMessage(message, hits[message.id]) for message in messages.by_ids(tx, list(hits))]


def find_passages(tx: Transaction, query: str, wanted: PassageFilter, limit: int) -> list[FoundPassage]:
    """The best matching passages, best first; none where there is no archive."""
    if not wanted.archive_ids:
        return []
    hits = {hit.id: hit.relevance for hit in search.find_passages(tx, query, wanted, limit)}
    return [FoundPassage(passage, hits[passage.id]) for passage in archives.passages_by_ids(tx, list(hits))]
