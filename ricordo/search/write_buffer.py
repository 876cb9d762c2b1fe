"""The write buffer of the index: a document waits there, searchable, from the transaction that stores it until it is flushed.

One row a document, so that indexing costs one statement however many there are. A deletion is a row too, with the words to take
out. A row's data is a header of fixed size, then UTF-8 parts separated by NUL: the speaker's terms, the text's terms, the labels.
"""

import logging
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import LargeBinary, String, Table, bindparam, cast, delete, func, insert, select

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.search.words import is_question, terms
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import messages, passages, search_buffer

log = logging.getLogger(__name__)
FLUSH = "search.flush"
# So many rows cost a search about a millisecond more, so then a flush is due at once; else soon after the first row, as only what
# is flushed is found by its meaning. A process asks for so many quick flushes within the longer while, and then for later ones.
LONG_BUFFER = 256
FLUSH_DELAY = 30 * SECOND
QUICK_DELAY = SECOND // 2
QUICK_FLUSHES = 10
_QUICK = "quick flushes of the search index"
MOST_OWNERS = 10_000  # whose written rows a process counts
ROLES = ("", "system", "user", "assistant", "tool", "approval", "summary")
# A label is a term that no text can hold: it finds documents by what they are marked with.
LABEL = "\x01"
_MOST_TERM = 512
# So much of one text is indexed: a whole book in one message must not hold up everybody who writes.
MOST_CHARACTERS = 200_000
MOST_WORDS = 20_000
# PostgreSQL clears deleted rows by itself too late: with 100,000 of them in the buffer a search took 20 ms more. So a process
# clears the buffer when it has deleted so many; it skips what another clears already.
ROWS_BETWEEN_VACUUMS = 5_000
_VACUUM = "VACUUM (SKIP_LOCKED, ANALYZE) search_buffer"
_HEADER = struct.Struct("<??BqQQI")
_SEQS = each(bindparam("seqs", type_=messages.c.parts.type))
_OLDEST = (
    select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data)
    .where(search_buffer.c.owner_id == bindparam("owner_id"))
    .order_by(search_buffer.c.seq)
    .limit(bindparam("most"))
)
_COUNT = select(func.count().label("rows")).where(search_buffer.c.owner_id == bindparam("owner_id"))
_COUNT_THESE = select(func.count().label("rows")).where(search_buffer.c.seq.op("IN")(_SEQS))
_DELETE = delete(search_buffer).where(search_buffer.c.seq.op("IN")(_SEQS))


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A document to index or to delete: `conversation` (or its fingerprint) and `user_id` are filters, `speaker` may be empty."""

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
    """A row of the buffer: `seq` is the row's own number, `document` that of the message or passage."""

    seq: int
    document: int
    is_deleted: bool
    asks: bool
    role: int
    created_at: int
    conversation: int
    user: int
    length: int
    speaker: list[str]
    text: list[str]
    labels: list[str]


def _insert_from(documents: Table) -> Any:
    """Document numbers are given by the database, so they are looked up by the statement itself."""
    owner_id, data = bindparam("owner_id", type_=String), bindparam("data", type_=LargeBinary)
    row = select(cast(owner_id, String), documents.c.seq, cast(data, LargeBinary)).where(
        documents.c.id == bindparam("document_id")
    )
    return insert(search_buffer).from_select(["owner_id", "document", "data"], row)


_INSERTS: Mapping[str, Any] = {
    "messages": _insert_from(messages),
    "passages": _insert_from(passages),
}


def kind_of(owner_id: str) -> str:
    """What kind of documents a partition holds, by the id of its owner."""
    return "messages" if owner_id.startswith("agent-") else "passages"


def put(
    tx: Transaction, owner_id: str, entries: Sequence[IndexEntry], *, is_deleted: bool = False
) -> None:
    if entries:
        values = [
            {"owner_id": owner_id, "document_id": e.id, "data": pack(e, is_deleted=is_deleted)}
            for e in entries
        ]
        tx.run(_INSERTS[kind_of(owner_id)], values)


def flush_when_due(tx: Transaction, owner_id: str, organization_id: str, rows: int) -> None:
    """Add a job that flushes the owner's buffer, where one is due now that so many rows were added.

    At once for a long buffer, soon while this process asks for few flushes, and after a while where it asks for many, since many
    rows together cost less than a few at a time.
    """
    # How many rows this process wrote for an owner since it last added a job, and when that one is due: too few is harmless, a
    # sweep finds what was missed.
    written: dict[str, tuple[int, int]] = tx.cache.setdefault(flush_when_due, {})
    asked: deque[int] = tx.cache.setdefault(_QUICK, deque(maxlen=QUICK_FLUSHES))
    before, due_at = written.get(owner_id, (0, 0))
    now = tx.clock.now()
    if due_at > now + FLUSH_DELAY or (asked and asked[-1] > now):  # the clock was set back
        due_at = 0
        asked.clear()
    count = before + rows
    is_long = count >= LONG_BUFFER
    is_quick = len(asked) < QUICK_FLUSHES or now - asked[0] >= FLUSH_DELAY
    not_before = now + (QUICK_DELAY if is_quick else FLUSH_DELAY)
    if is_long:
        not_before = now
    after = (count, due_at)
    # One that was put off while there was much to do is brought forward.
    is_asked = is_long or now >= due_at or (is_quick and due_at > not_before)
    if is_asked:
        is_new = add_flush_job(
            tx, owner_id, organization_id, not_before=not_before, hurries=is_long or is_quick
        )
        # Rows that come after a flush which comes sooner than in that while must ask again.
        after = (
            0 if is_long else rows if is_new else count,
            not_before if is_new and not is_long else 0,
        )

    def note() -> None:
        if is_asked and is_quick:
            asked.append(now)
        written.pop(owner_id, None)
        written[owner_id] = after
        while len(written) > MOST_OWNERS:
            del written[
                next(iter(written))
            ]  # the one that wrote longest ago; it asks for a job once more

    tx.after_commit.append(note)


def add_flush_job(
    tx: Transaction,
    owner_id: str,
    organization_id: str,
    *,
    not_before: int = 0,
    hurries: bool = True,
) -> bool:
    """Add a job that flushes this buffer, and return True; where one waits already and it `hurries`, let it come no later."""
    job = Job(
        FLUSH,
        organization_id,
        {"owner_id": owner_id},
        owner_id,
        is_single=True,
        not_before=not_before,
    )
    added = jobs.add(tx, job)
    if added is None and hurries:
        jobs.make_due(tx, FLUSH, owner_id, not_before)
    return added is not None


def oldest(tx: Transaction, owner_id: str, most: int) -> list[BufferRow]:
    """The owner's oldest rows, at most so many."""
    rows = tx.all(_OLDEST, {"owner_id": owner_id, "most": most})
    return [unpack(row.seq, row.document, row.data) for row in rows]


def count(tx: Transaction, owner_id: str) -> int:
    return int(tx.first(_COUNT, {"owner_id": owner_id}).rows)


def has_all(tx: Transaction, seqs: Sequence[int]) -> bool:
    return int(tx.first(_COUNT_THESE, {"seqs": list(seqs)}).rows) == len(seqs)


def delete_rows(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete these rows; after the commit, vacuum the table on PostgreSQL where many were deleted by now."""
    tx.run(_DELETE, {"seqs": list(seqs)})
    if tx.connection.dialect.name != "postgresql":
        return
    counted: dict[str, int] = tx.cache.setdefault("deleted rows of the write buffer", {})
    cursor: Any = tx.connection.connection.cursor

    def vacuum() -> None:
        counted["rows"] = counted.get("rows", 0) + len(seqs)
        if counted["rows"] < ROWS_BETWEEN_VACUUMS:
            return
        counted["rows"] = 0
        try:
            cursor().execute(_VACUUM)
        except Exception as error:
            log.warning("the search index's buffer was not cleared", extra={"reason": error})

    tx.after_commit.append(vacuum)


def pack(entry: IndexEntry, *, is_deleted: bool = False) -> bytes:
    """The data of an entry's row."""
    words = terms(entry.text[:MOST_CHARACTERS])[:MOST_WORDS]
    header = _HEADER.pack(
        is_deleted,
        is_question(entry.text),
        ROLES.index(entry.role) if entry.role in ROLES else 0,
        entry.created_at,
        fingerprint(entry.conversation),
        fingerprint(entry.user_id),
        len(words),
    )
    parts = [
        " ".join(terms(entry.speaker)),
        " ".join(words),
        *(label_term(label) for label in entry.labels),
    ]
    return header + "\0".join(parts).encode()


def unpack(seq: int, document: int, data: bytes) -> BufferRow:
    """The row of which `pack` made the data."""
    is_deleted, asks, role, created_at, conversation, user, length = _HEADER.unpack_from(data)
    speaker, text, *labels = data[_HEADER.size :].decode().split("\0")
    words = speaker.split(), text.split(), labels
    return BufferRow(
        seq, document, is_deleted, asks, role, created_at, conversation, user, length, *words
    )


def fingerprint(name: str | int | None) -> int:
    """Sixty-four bits that stand for an id in a filter; 0 for none. A fingerprint is returned as it is."""
    if isinstance(name, int):
        return name
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") if name else 0


def label_term(label: str) -> str:
    name = label.encode()
    is_plain = len(name) <= _MOST_TERM and "\0" not in label
    return LABEL + (label if is_plain else "\x02" + blake2b(name, digest_size=24).hexdigest())
