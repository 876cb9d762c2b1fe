"""The search index as the rest of the package uses it: store and index, take out, find.

A partition is all that one search looks through, named by its owner: an agent's messages, an archive's passages. Filters apply
before the limit; a query is data, never syntax. How the index works is in the other modules of this folder; most need numpy,
which a start does not wait for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sqlalchemy import bindparam, select

from ricordo.domain.message import Message
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
# "Anna Bell: I like tea" was said by Anna Bell. At most three words, or any sentence with a colon would name a speaker.
_SPEAKER = re.compile(r"\s*([^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,2}): ")


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: `vectors` by model, `nearest` documents of an outside index by partition, and `related` words."""

    text: str
    mode: SearchMode = "hybrid"
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    related: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages of these agents may be found. Times are microseconds, both ends included; empty means: any.

    `subject_id` as in a Scope: None for all, NOBODY for those about no user, a user's id for these and those about this
    user; those of `own_conversation` may be found besides, whoever they are about, but not those that are as new as
    `turn_began`, where it is given: what is in view needs no search, and a question would be the best answer to itself. With
    `reads_before` each hit tells the turn before it. With `own_first` what is about the subject comes before what is about
    no user, and of several agents those that hold nothing of the subject are left out. `shared` is what a conversation that
    was forked shares with others: their ids, each with the seq of the last message (see `conversations.shared_by`).
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
    """Which passages of these archives may be found; times and `subject_id` as for messages."""

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
    """One result: the number (`seq`), why it was found, and the turn right `before` it, if that may be seen too."""

    document: int
    relevance: Relevance
    before: int | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best hits, best first. `missing` names the models whose vector of the query would have been needed as well."""

    hits: tuple[SearchHit, ...] = ()
    missing: frozenset[str] = frozenset()


def insert_messages(tx: Transaction, new: Sequence[Message]) -> None:
    if new:
        index_messages(tx, [row for row in messages.insert_all(tx, new) if row["text"]])


def insert_archive(
    tx: Transaction, archive: Archive, *, owner: str | None = None, holding: Sequence[Passage] = ()
) -> Archive:
    """Store a new archive of an agent with its first passages, and index them; returns it with count and tags."""
    stored = archives.redacted(holding)
    after = archives.insert_one(tx, archive, owner=owner, new_passages=stored)
    index_passages(tx, stored)
    return after


def insert_passages(
    tx: Transaction, archive: Archive, new: Sequence[Passage], *, attached_to: str | None = None
) -> Archive:
    """Store and index passages of one archive; returns it as it is then. Raises NotFound where it is gone or not attached."""
    after, stored = archives.insert_passages(tx, archive, new, attached_to=attached_to)
    index_passages(tx, stored)
    return after


def delete_passage(
    tx: Transaction, scope: Scope, attached: Sequence[Archive], passage_id: str
) -> None:
    archive, passage = archives.lock_passage(tx, scope, attached, passage_id)
    unindex_passages(tx, [passage_id])
    archives.delete_passage(tx, archive, passage)


def index_messages(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    _put(tx, [(row["agent_id"], row["organization_id"], message_entry(row)) for row in rows])


def index_passages(tx: Transaction, new: Sequence[Passage]) -> None:
    """Index stored passages in their transaction; those stored together are parts of one text, and lift each other's hits."""
    entries = [
        (one.archive_id, one.organization_id, passage_entry(one, one.tags, new[0].id))
        for one in new
    ]
    _put(tx, entries)


def unindex_messages(tx: Transaction, ids: Sequence[str]) -> None:
    rows = tx.all(_INDEXED_MESSAGES, {"ids": list(ids)})
    entries = [(row.agent_id, row.organization_id, message_entry(row._asdict())) for row in rows]
    _put(tx, entries, is_deleted=True)


def unindex_passages(tx: Transaction, ids: Sequence[str]) -> None:
    """Take these passages out of the index, before they are deleted."""
    tags = tags_of(tx, ids)
    rows = tx.all(_INDEXED_PASSAGES, {"ids": list(ids)})
    entries = [
        (row.archive_id, row.organization_id, passage_entry(row, tags.get(row.id, ()), row.id))
        for row in rows
    ]
    _put(tx, entries, is_deleted=True)


def tags_of(tx: Transaction, ids: Sequence[str]) -> dict[str, list[str]]:
    """The tags of these passages, by the ids of those that have some."""
    tags: dict[str, list[str]] = {}
    for row in tx.all(_LABELS, {"ids": list(ids)}):
        tags.setdefault(row.passage_id, []).append(row.tag)
    return tags


def find_messages(
    tx: Transaction, query: Query, wanted: MessageFilter, limit: int, offset: int = 0
) -> SearchResult:
    """The best matching messages behind the first `offset`; a query without a word gives the newest."""
    from ricordo.search import engine

    return engine.find(tx, wanted.agent_ids, query, wanted, limit, offset)


def find_passages(
    tx: Transaction, query: Query, wanted: PassageFilter, limit: int, offset: int = 0
) -> SearchResult:
    """The best matching passages behind the first `offset`; a query without a word gives the newest."""
    from ricordo.search import engine

    return engine.find(tx, wanted.archive_ids, query, wanted, limit, offset)


def message_entry(row: Mapping[str, Any]) -> IndexEntry:
    speaker, conversation = row["name"] or "", row["conversation_id"]
    return IndexEntry(
        row["id"],
        row["text"],
        row["created_at"],
        conversation,
        row["user_id"],
        row["role"],
        speaker,
    )


def passage_entry(passage: Any, tags: Sequence[str], conversation: str | int) -> IndexEntry:
    """How a passage is indexed, given as a value or a row; passages of one conversation count as parts of one text."""
    said = _SPEAKER.match(passage.text)
    about = passage.id, passage.text, passage.created_at, conversation, passage.user_id
    return IndexEntry(*about, speaker=said[1] if said else "", labels=tuple(tags))


def _put(
    tx: Transaction, entries: Sequence[tuple[str, str, IndexEntry]], *, is_deleted: bool = False
) -> None:
    """Add rows of documents, or of deletions, to the buffers of those who own these entries."""
    grouped: dict[tuple[str, str], list[IndexEntry]] = {}
    for owner_id, organization_id, entry in entries:
        grouped.setdefault((owner_id, organization_id), []).append(entry)
    for (owner_id, organization_id), some in grouped.items():
        write_buffer.put(tx, owner_id, some, is_deleted=is_deleted)
        write_buffer.flush_when_due(tx, owner_id, organization_id, len(some))
