"""The write buffer of the index: documents that are stored but not flushed yet.

They can already be searched. Each document is one row, so any number of them is indexed by one
statement. A deletion is a row too; it contains the words to remove. A row's data is a header of
fixed size and then UTF-8 fields separated by NUL: the speaker's terms, the text's terms, the
labels. In the terms of a long text, a line end separates the parts (see `text_parts.py`).
"""

import logging
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

from sqlalchemy import LargeBinary, String, Table, bindparam, cast, delete, func, insert, select

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.search.text_parts import MOST_CHARACTERS, parts_of
from ricordo.search.words import is_question, terms
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import messages, passages, search_buffer

log = logging.getLogger(__name__)
FLUSH = "search.flush"
# With this number of rows in the buffer, a search takes about a millisecond longer. So a flush is
# due at once. A shorter buffer is flushed soon after its first row, because only flushed documents
# get stored vectors.
LONG_BUFFER = 256
# Within QUICK_WINDOW a process adds at most QUICK_FLUSHES jobs with the short delay. That is two a
# second, more than a quiet server ever adds. Further jobs get the longer delay.
FLUSH_DELAY = 30 * SECOND
QUICK_DELAY = SECOND // 2
QUICK_WINDOW = 5 * SECOND
QUICK_FLUSHES = 10
_QUICK = "quick flushes of the search index"
MOST_OWNERS = 10_000  # the most owners for which a process counts written rows
ROLES = ("", "system", "user", "assistant", "tool", "approval", "summary")
# A label is a term that cannot occur in a text. It finds the documents that are marked with it.
LABEL = "\x01"
_MAX_TERM_BYTES = 512
# The most terms of a text that are indexed.
MOST_WORDS = 20_000
# PostgreSQL clears deleted rows too late: with 100,000 of them in the buffer, a search took 20 ms
# longer. So a process vacuums the buffer after this many deletions, unless another process is doing
# it.
ROWS_BETWEEN_VACUUMS = 5_000
_VACUUM = "VACUUM (SKIP_LOCKED, ANALYZE) search_buffer"
_HEADER = struct.Struct("<??BqQQI")
_SEQS = each(bindparam("seqs", type_=messages.c.parts.type))
_OLDEST = (
    select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data)
    .where(search_buffer.c.owner_id == bindparam("owner_id"))
    .order_by(search_buffer.c.seq)
    .limit(bindparam("limit"))
)
_COUNT = select(func.count().label("rows")).where(search_buffer.c.owner_id == bindparam("owner_id"))
_COUNT_THESE = select(func.count().label("rows")).where(search_buffer.c.seq.op("IN")(_SEQS))
_DELETE = delete(search_buffer).where(search_buffer.c.seq.op("IN")(_SEQS))


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A document to index or to delete.

    Attributes:
        id: The id of the message or passage.
        created_at: Its time in microseconds UTC.
        conversation: The conversation of a message, or the text to which passages belong, by its id
            or fingerprint.
        user_id: The user that it is about; None for none.
        speaker: The name of its speaker; "": unknown.
        labels: Tags by which it is filtered.
    """

    id: str
    text: str
    created_at: int
    conversation: str | int = ""
    user_id: str | None = None
    role: str = ""
    speaker: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A row of the buffer.

    Attributes:
        seq: The number of the row.
        document: The number of the message or passage.
        is_deleted: The row removes the document.
        asks: The text ends with a question mark.
        role: The index of the role in `ROLES`.
        conversation: The fingerprint of the conversation; 0: none.
        user: The fingerprint of the user; 0: none.
        version: A checksum of 16 bits that distinguishes an edited text from the old one.
        lengths: The numbers of terms in the text's parts; an uncut text has one number.
        speaker: The terms of the speaker's name.
        text: The terms of all parts, in order.
    """

    seq: int
    document: int
    is_deleted: bool
    asks: bool
    role: int
    created_at: int
    conversation: int
    user: int
    version: int
    lengths: tuple[int, ...]
    speaker: list[str]
    text: list[str]
    labels: list[str]


def _insert_from(documents: Table) -> Any:
    """Return the statement that adds a row.

    The database assigns document numbers, so the statement looks them up.
    """
    owner_id = bindparam("owner_id", type_=String)
    data = bindparam("data", type_=LargeBinary)
    row = select(cast(owner_id, String), documents.c.seq, cast(data, LargeBinary)).where(
        documents.c.id == bindparam("document_id")
    )
    return insert(search_buffer).from_select(["owner_id", "document", "data"], row)


_INSERTS: Mapping[str, Any] = {
    "messages": _insert_from(messages),
    "passages": _insert_from(passages),
}


def kind_of(owner_id: str) -> str:
    """Return the kind of a partition's documents, by the id of its owner.

    Args:
        owner_id: The id of an agent or an archive, perhaps with a suffix.

    Returns:
        "messages" or "passages".
    """
    if owner_id.startswith("agent-"):
        return "messages"
    return "passages"


def put(
    tx: Transaction, owner_id: str, entries: Sequence[IndexEntry], *, is_deleted: bool = False
) -> None:
    """Add entries to the owner's buffer, from which a flush moves them to the index.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        entries: The entries; without any, nothing happens.
        is_deleted: The entries are to be removed from the index.
    """
    if entries:
        rows = [
            {
                "owner_id": owner_id,
                "document_id": entry.id,
                "data": pack(entry, is_deleted=is_deleted),
            }
            for entry in entries
        ]
        tx.run(_INSERTS[kind_of(owner_id)], rows)


def flush_when_due(tx: Transaction, owner_id: str, organization_id: str, rows: int) -> None:
    """If a flush of the owner's buffer is due, add a job for it.

    A long buffer is flushed at once. A short buffer is flushed soon if this process adds few jobs.
    Otherwise it is flushed later, since one flush of many rows costs less than many small ones.

    Args:
        tx: The transaction that wrote the rows.
        owner_id: The agent or archive.
        organization_id: The owner's organization, which gets the job.
        rows: The number of rows that were just added to the buffer.
    """
    # For each owner: the rows that this process has written since it last added a job, and that
    # job's time. A count that is too low is harmless, since a sweep finds the rest.
    written: dict[str, tuple[int, int]] = tx.cache.setdefault(flush_when_due, {})
    quick_jobs: deque[int] = tx.cache.setdefault(_QUICK, deque(maxlen=QUICK_FLUSHES))
    earlier_rows, due_at = written.get(owner_id, (0, 0))
    now = tx.clock.now()
    if due_at > now + FLUSH_DELAY or (quick_jobs and quick_jobs[-1] > now):
        # The clock was set back.
        due_at = 0
        quick_jobs.clear()
    count = earlier_rows + rows
    is_long = count >= LONG_BUFFER
    is_quick = len(quick_jobs) < QUICK_FLUSHES or now - quick_jobs[0] >= QUICK_WINDOW
    not_before = now if is_long else now + (QUICK_DELAY if is_quick else FLUSH_DELAY)
    # A waiting job with the long delay is moved forward.
    is_due = is_long or now >= due_at or (is_quick and due_at > not_before)
    if is_due:
        hurries = is_long or is_quick
        is_new = add_flush_job(
            tx, owner_id, organization_id, not_before=not_before, hurries=hurries
        )
        # If a job already waited, it may flush before `not_before`. Then `due_at` is 0, so that
        # later rows add a job again.
        due_at = not_before if is_new and not is_long else 0
        if is_long or is_new:
            count = 0 if is_long else rows

    def remember() -> None:
        if is_due and is_quick:
            quick_jobs.append(now)
        written.pop(owner_id, None)
        written[owner_id] = (count, due_at)
        while len(written) > MOST_OWNERS:
            # Forget the owner whose last write is the oldest. Its next write adds a job again.
            del written[next(iter(written))]

    tx.after_commit.append(remember)


def add_flush_job(
    tx: Transaction,
    owner_id: str,
    organization_id: str,
    *,
    not_before: int = 0,
    hurries: bool = True,
) -> bool:
    """Add a job that flushes this buffer; return False if one already waits.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        organization_id: The owner's organization, which gets the job.
        not_before: The earliest time of the flush in microseconds UTC; 0: now.
        hurries: A waiting job that would run later is moved forward to `not_before`.
    """
    job = Job(
        FLUSH,
        organization_id,
        {"owner_id": owner_id},
        key=owner_id,
        is_single=True,
        not_before=not_before,
    )
    added = jobs.add(tx, job)
    if added is None and hurries:
        jobs.make_due(tx, FLUSH, owner_id, not_before)
    return added is not None


def oldest(tx: Transaction, owner_id: str, limit: int) -> list[BufferRow]:
    """Return the owner's oldest rows.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
        limit: The most rows.
    """
    rows = tx.all(_OLDEST, {"owner_id": owner_id, "limit": limit})
    return [unpack(row.seq, row.document, row.data) for row in rows]


def count(tx: Transaction, owner_id: str) -> int:
    """Return the number of rows in the owner's buffer.

    Args:
        tx: The transaction.
        owner_id: The agent or archive.
    """
    return int(tx.first(_COUNT, {"owner_id": owner_id}).rows)


def has_all(tx: Transaction, seqs: Sequence[int]) -> bool:
    """Return True if all of these rows are still in a buffer.

    Args:
        tx: The transaction.
        seqs: The numbers of the rows, each once.
    """
    return int(tx.first(_COUNT_THESE, {"seqs": list(seqs)}).rows) == len(seqs)


def delete_rows(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete these rows; vacuum the table after many deletions on PostgreSQL.

    Args:
        tx: The transaction.
        seqs: The numbers of the rows.
    """
    tx.run(_DELETE, {"seqs": list(seqs)})
    if tx.connection.dialect.name != "postgresql":
        return
    counter: dict[str, int] = tx.cache.setdefault("deleted rows of the write buffer", {})
    cursor: Any = tx.connection.connection.cursor

    def vacuum() -> None:
        counter["rows"] = counter.get("rows", 0) + len(seqs)
        if counter["rows"] < ROWS_BETWEEN_VACUUMS:
            return
        counter["rows"] = 0
        try:
            cursor().execute(_VACUUM)
        except Exception as error:
            log.warning("the search index's buffer was not cleared", extra={"reason": error})

    tx.after_commit.append(vacuum)


def pack(entry: IndexEntry, *, is_deleted: bool = False) -> bytes:
    """Return the data of an entry's row.

    Args:
        entry: The document with its text.
        is_deleted: The row removes the document from the index. It then also has the terms by which
            older versions indexed the text.
    """
    parts = _terms_by_part(entry.text)
    if is_deleted:
        parts.append(_terms_of_uncut(entry.text, parts))
    header = _HEADER.pack(
        is_deleted,
        is_question(entry.text),
        ROLES.index(entry.role) if entry.role in ROLES else 0,
        entry.created_at,
        fingerprint(entry.conversation),
        fingerprint(entry.user_id),
        crc32(entry.text.encode()),
    )
    fields = [
        " ".join(terms(entry.speaker)),
        "\n".join(" ".join(part) for part in parts),
        *(label_term(label) for label in entry.labels),
    ]
    return header + "\0".join(fields).encode()


def _terms_by_part(text: str) -> list[list[str]]:
    """Return the terms of each part of a text, at most `MOST_WORDS` in total."""
    remaining = MOST_WORDS
    terms_by_part = []
    for part in parts_of(text):
        part_terms = terms(part)[:remaining]
        remaining -= len(part_terms)
        terms_by_part.append(part_terms)
    return terms_by_part


def _terms_of_uncut(text: str, parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the terms that occur only in the uncut text.

    A cut may split a word, and an older version indexed all texts uncut.
    """
    known = {term for part in parts for term in part}
    return [term for term in terms(text[:MOST_CHARACTERS])[:MOST_WORDS] if term not in known]


def unpack(seq: int, document: int, data: bytes) -> BufferRow:
    """Return the row of packed data.

    Args:
        seq: The row's number in the buffer.
        document: The number of the message or passage.
        data: The bytes that `pack` made.
    """
    is_deleted, asks, role, created_at, conversation, user, checksum = _HEADER.unpack_from(data)
    speaker, text, *labels = data[_HEADER.size :].decode().split("\0")
    return BufferRow(
        seq=seq,
        document=document,
        is_deleted=is_deleted,
        asks=asks,
        role=role,
        created_at=created_at,
        conversation=conversation,
        user=user,
        version=checksum & 0xFFFF,
        lengths=tuple([len(part.split()) for part in text.split("\n")]),
        speaker=speaker.split(),
        text=text.split(),
        labels=labels,
    )


def fingerprint(name: str | int | None) -> int:
    """Return 64 bits for an id in a filter; 0 for none.

    An argument that is already a fingerprint is returned unchanged.

    Args:
        name: The id, or its fingerprint; None or "": none.
    """
    if isinstance(name, int):
        return name
    if not name:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def label_term(label: str) -> str:
    """Return the term under which the index has a label; a long label is hashed.

    Args:
        label: A label such as a tag.
    """
    encoded = label.encode()
    if len(encoded) <= _MAX_TERM_BYTES and "\0" not in label:
        return LABEL + label
    return LABEL + "\x02" + blake2b(encoded, digest_size=24).hexdigest()
