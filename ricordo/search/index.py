"""The public part of the search index: store and index, unindex, find.

A partition holds an agent's messages or an archive's passages, and has the id of this owner as its
name. Filters apply before the limit. A query is plain text without a special syntax. The other
modules of this folder implement the index. Those that need numpy are imported at the first search
or flush, not at the server's start.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sqlalchemy import bindparam, select

from ricordo.domain.message import Message, Part
from ricordo.domain.passage import Archive, Passage, Relevance
from ricordo.domain.scope import Scope
from ricordo.search import write_buffer
from ricordo.search.write_buffer import IndexEntry
from ricordo.storage import archives, messages
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import messages as messages_table
from ricordo.storage.schema.core_tables import passages, passages_tags

SearchMode = Literal["hybrid", "vector", "fts"]

_IDS = each(bindparam("ids", type_=messages_table.c.parts.type))
_INDEXED_MESSAGES = select(
    *(column for column in messages_table.c if column.name != "parts")
).where(messages_table.c.id.op("IN")(_IDS), messages_table.c.text != "")
_INDEXED_PASSAGES = select(passages).where(passages.c.id.op("IN")(_IDS))
_LABELS = select(passages_tags.c.passage_id, passages_tags.c.tag).where(
    passages_tags.c.passage_id.op("IN")(_IDS)
)
_READ_PICTURES = "index.read_pictures"
# The speaker of "Anna Bell: I like tea" is Anna Bell. A name has at most three words. Otherwise any
# sentence with a colon would name a speaker.
_SPEAKER = re.compile(r"\s*([^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,2}): ")


@dataclass(frozen=True, slots=True)
class Query:
    """A query: its text and its meaning.

    Attributes:
        mode: Search by words ("fts"), by vectors ("vector"), or by both ("hybrid").
        vectors: The query's vector of each model, by the model's handle.
        nearest: The hits of an external index, by partition and model: numbers of documents with
            similarities.
        related: Words of similar meaning for each word of the query.
        new_vectors: Vectors of texts without a stored vector. An empty vector means that the text
            cannot be embedded.
        sought_new: Return hits even if there are further texts without a vector. If False, a search
            that meets such texts returns them and no hits.
        may_embed: Returns whether a model may see a text with this egress label.
    """

    text: str
    mode: SearchMode = "hybrid"
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    nearest: Mapping[tuple[str, str], Sequence[tuple[int, float]]] = field(default_factory=dict)
    related: Mapping[str, Sequence[str]] = field(default_factory=dict)
    new_vectors: Mapping["NewText", Sequence[float]] = field(default_factory=dict)
    sought_new: bool = False
    may_embed: Callable[[str, str | None], bool] = lambda _model, _label: True


@dataclass(frozen=True, slots=True)
class NewText:
    """A text that has no stored vector of the model.

    Attributes:
        model: The handle of the model.
        document: The number (`seq`) of the message or passage.
        part: The number of the part; 0 for an uncut text.
        version: With `length`, it distinguishes an edited text from the old one (see `BufferRow`).
        length: The number of terms in the part.
    """

    model: str
    document: int
    part: int
    version: int
    length: int


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter of messages of these agents; an empty field matches any.

    Attributes:
        subject_id: The user, as in a Scope: None selects all messages, and NOBODY selects messages
            about no user. A user's id selects messages about no user and about that user.
        start: The earliest time in microseconds UTC.
        end: The latest time in microseconds UTC.
        shared: The conversations whose messages a fork shares, each with the last shared seq (see
            `conversations.shared_by`).
        own_conversation: The conversation of the search. Its messages match whichever user they are
            about.
        turn_began: The start of the running turn in microseconds UTC. Later messages of
            `own_conversation` never match: they are in the window, and the question would be the
            best hit.
        reads_before: Return the turn before each hit too.
        own_first: Put messages about the subject before shared ones. If there are several agents,
            skip those without messages about the subject.
    """

    agent_ids: tuple[str, ...]
    conversation_id: str | None = None
    roles: tuple[str, ...] = ()
    subject_id: str | None = None
    start: int | None = None
    end: int | None = None
    shared: tuple[tuple[str, int], ...] = ()
    own_conversation: str | None = None
    turn_began: int | None = None
    reads_before: bool = False
    own_first: bool = False
    tags: ClassVar[tuple[str, ...]] = ()
    all_tags: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """A filter of passages of these archives; times and `subject_id` as for messages."""

    archive_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    subject_id: str | None = None
    start: int | None = None
    end: int | None = None
    conversation_id: ClassVar[None] = None
    roles: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[tuple[str, int], ...]] = ()
    own_conversation: ClassVar[None] = None
    turn_began: ClassVar[None] = None
    own_first: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One hit.

    Attributes:
        document: The number (`seq`) of the message or passage.
        before: The number of the spoken turn before the hit. None if there is none, if the caller
            may not see it, or if the filter does not ask for it (`reads_before`).
        part: The number of the best matching part of a long text; 0 for an uncut text (see
            `text_parts.py`).
    """

    document: int
    relevance: Relevance
    before: int | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best hits, best first.

    Attributes:
        missing: Models for which documents have a vector but the query has none, each with the
            owners of these documents.
        new_texts: Texts without a vector, each with the text to embed. If there are any, there are
            no hits, and the search must be repeated.
    """

    hits: tuple[SearchHit, ...] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    new_texts: tuple[tuple[NewText, str], ...] = ()


def on_pictures(tx: Transaction, read: Callable[[Transaction, Message], None]) -> None:
    """Call `read` for each new message of this store that has pictures without a text.

    It runs in the transaction that stores the message.

    Args:
        tx: Any transaction of the store, in whose cache the function is stored.
        read: The function. It replaces an earlier one.
    """
    tx.cache[_READ_PICTURES] = read


def insert_messages(tx: Transaction, new: Sequence[Message]) -> None:
    """Store and index new messages.

    A picture without a text gets a job that reads it, if pictures are read.

    Args:
        tx: The transaction.
        new: The messages; without any, nothing happens.

    Raises:
        Collision: A message with the same id, or with the same otid in the conversation, is stored.
    """
    if new:
        rows = messages.insert_all(tx, new)
        _put(tx, [_placed(row) for row in rows if row["text"]])
        if read := tx.cache.get(_READ_PICTURES):
            for message in new:
                if any(picture.text is None for picture in message.pictures):
                    read(tx, message)


def insert_archive(
    tx: Transaction,
    archive: Archive,
    *,
    owner: str | None = None,
    new_passages: Sequence[Passage] = (),
) -> Archive:
    """Store a new archive with its first passages, and index these.

    Args:
        tx: The transaction.
        archive: The new archive; its count and tags are computed here.
        owner: The id of the agent that owns it and gets it attached; None attaches it to no agent.
        new_passages: Passages of this archive. Secrets in them are redacted before they are stored.

    Returns:
        The archive with the count and the tags of all these passages.
    """
    stored = archives.redacted(new_passages)
    stored_archive = archives.insert_one(tx, archive, owner=owner, new_passages=stored)
    index_passages(tx, stored)
    return stored_archive


def insert_passages(
    tx: Transaction, archive: Archive, new: Sequence[Passage], *, attached_to: str | None = None
) -> Archive:
    """Store and index passages of one archive, and return the archive's new state.

    Args:
        tx: The transaction.
        archive: The archive as the caller loaded it. It is locked and read again.
        new: The passages. Secrets are redacted, except in passages of a folder's archive.
        attached_to: An agent to which the archive must still be attached; None skips this check.

    Raises:
        NotFound: The archive was deleted, or is no longer attached to this agent.
    """
    changed_archive, stored = archives.insert_passages(tx, archive, new, attached_to=attached_to)
    index_passages(tx, stored)
    return changed_archive


def delete_passage(
    tx: Transaction, scope: Scope, attached: Sequence[Archive], passage_id: str
) -> None:
    """Delete a passage with its tags, and remove it from the index.

    Args:
        tx: The transaction.
        scope: The caller.
        attached: The archives in which the passage may be.
        passage_id: The passage.

    Raises:
        NotFound: The passage is in none of these archives, or the caller does not see it.
        Forbidden: The caller sees the passage but may not change it.
    """
    archive, passage = archives.lock_passage(tx, scope, attached, passage_id)
    unindex_passages(tx, [passage_id])
    archives.delete_passage(tx, archive, passage)


def index_messages(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Index stored messages.

    Args:
        tx: The transaction.
        rows: Rows of messages that are not in the index.
    """
    _put(tx, [_placed(row) for row in rows])


def index_passages(tx: Transaction, new: Sequence[Passage]) -> None:
    """Index stored passages in their transaction.

    Passages that are stored together count as parts of one text. So a hit in one of them also
    raises the scores of its neighbours.

    Args:
        tx: The transaction.
        new: The passages with their tags; without any, nothing happens.
    """
    entries = [
        (
            passage.archive_id,
            passage.organization_id,
            passage_entry(passage, passage.tags, new[0].id),
        )
        for passage in new
    ]
    _put(tx, entries)


def rewrite_message(
    tx: Transaction, message: Message, searched_parts: Sequence[Part] | None = None
) -> None:
    """Store another text of a message, and index it again.

    Args:
        tx: The transaction.
        message: The stored message with its new parts.
        searched_parts: The parts by which search finds the message; None: all.
    """
    unindex_messages(tx, [message.id])
    text = messages.rewrite_searchable(tx, message, searched_parts)
    if text:
        names = ("agent_id", "organization_id", "id", "created_at", "conversation_id")
        row = {name: getattr(message, name) for name in (*names, "user_id", "role", "name")}
        index_messages(tx, [{**row, "text": text}])


def rewrite_passage(tx: Transaction, passage: Passage) -> None:
    """Store another text of a passage, and index it again.

    Args:
        tx: The transaction.
        passage: The locked passage with its new text or metadata, without secrets.
    """
    unindex_passages(tx, [passage.id])
    archives.rewrite_passage(tx, passage)
    index_passages(tx, [passage])


def unindex_messages(tx: Transaction, ids: Sequence[str]) -> None:
    """Remove these messages from the index before their deletion or change.

    Args:
        tx: The transaction.
        ids: The messages, which are still stored. Those without a text are not in the index.
    """
    rows = tx.all(_INDEXED_MESSAGES, {"ids": list(ids)})
    _put(tx, [_placed(row._asdict()) for row in rows], is_deleted=True)


def unindex_passages(tx: Transaction, ids: Sequence[str]) -> None:
    """Remove these passages from the index before their deletion or change.

    Args:
        tx: The transaction.
        ids: The passages, which are still stored with their old texts and tags.
    """
    tags = tags_of(tx, ids)
    rows = tx.all(_INDEXED_PASSAGES, {"ids": list(ids)})
    entries = [
        (row.archive_id, row.organization_id, passage_entry(row, tags.get(row.id, ()), row.id))
        for row in rows
    ]
    _put(tx, entries, is_deleted=True)


def tags_of(tx: Transaction, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the tags of these passages by id; passages without tags are missing.

    Args:
        tx: The transaction.
        ids: The passages.
    """
    tags: dict[str, list[str]] = {}
    for row in tx.all(_LABELS, {"ids": list(ids)}):
        tags.setdefault(row.passage_id, []).append(row.tag)
    return tags


def find_messages(
    tx: Transaction, query: Query, filters: MessageFilter, limit: int, offset: int = 0
) -> SearchResult:
    """Return the best matching messages.

    A query without a word returns the newest.

    Args:
        tx: The transaction.
        query: The query, with its vectors.
        filters: The conditions, and the agents whose messages are searched.
        limit: The most hits.
        offset: The number of best messages to skip.
    """
    # Imports numpy, which a server loads at its first search or flush.
    from ricordo.search import engine

    return engine.find(tx, filters.agent_ids, query, filters=filters, limit=limit, offset=offset)


def find_passages(
    tx: Transaction, query: Query, filters: PassageFilter, limit: int, offset: int = 0
) -> SearchResult:
    """Return the best matching passages.

    A query without a word returns the newest.

    Args:
        tx: The transaction.
        query: The query, with its vectors.
        filters: The conditions, and the archives whose passages are searched.
        limit: The most hits.
        offset: The number of best passages to skip.
    """
    # Imports numpy, which a server loads at its first search or flush.
    from ricordo.search import engine

    return engine.find(tx, filters.archive_ids, query, filters=filters, limit=limit, offset=offset)


def message_entry(row: Mapping[str, Any]) -> IndexEntry:
    """Return the index entry of a message.

    Args:
        row: A row of a message with its searchable text.
    """
    return _placed(row)[2]


def _placed(row: Mapping[str, Any]) -> tuple[str, str, IndexEntry]:
    """Return the ids of a message's agent and organization, and its index entry."""
    entry = IndexEntry(
        row["id"],
        row["text"],
        row["created_at"],
        row["conversation_id"],
        row["user_id"],
        role=row["role"],
        speaker=row["name"] or "",
    )
    return row["agent_id"], row["organization_id"], entry


def passage_entry(passage: Any, tags: Sequence[str], conversation: str | int) -> IndexEntry:
    """Return the index entry of a passage or of its row.

    Args:
        passage: A `Passage`, or a row of the table `passages`.
        tags: The passage's tags, which become labels of the entry.
        conversation: The id of the first passage that was stored together with this one, or its
            fingerprint. Passages with the same one count as parts of one text.
    """
    speaker = _SPEAKER.match(passage.text)
    return IndexEntry(
        passage.id,
        passage.text,
        passage.created_at,
        conversation,
        passage.user_id,
        speaker=speaker[1] if speaker else "",
        labels=tuple(tags),
    )


def _put(
    tx: Transaction, entries: Sequence[tuple[str, str, IndexEntry]], *, is_deleted: bool = False
) -> None:
    """Add rows for documents, or for their deletion, to the owners' buffers."""
    grouped: dict[tuple[str, str], list[IndexEntry]] = {}
    for owner_id, organization_id, entry in entries:
        grouped.setdefault((owner_id, organization_id), []).append(entry)
    for (owner_id, organization_id), owner_entries in grouped.items():
        write_buffer.put(tx, owner_id, owner_entries, is_deleted=is_deleted)
        write_buffer.flush_when_due(tx, owner_id, organization_id, len(owner_entries))
