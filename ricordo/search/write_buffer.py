"""The buffer of the search index: a document waits there, searchable, from the transaction that stores it until a flush packs it.

One row a document, so that indexing costs one statement however many there are. A deletion is a row too, with the words to take
out. A row's data is a header of fixed size, then UTF-8 parts parted by NUL: the speaker's terms, the text's terms, the labels.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import LargeBinary, String, Table, bindparam, cast, insert, select

from ricordo.search.words import is_question, terms
from ricordo.storage.search_tables import search_buffer
from ricordo.storage.store import Transaction
from ricordo.storage.tables import messages, passages

ROLES = ("", "system", "user", "assistant", "tool", "approval", "summary")
# A label is a term that no text can hold: it finds documents by what they are marked with.
LABEL = "\x01"
_MOST_TERM = 512
# So much of one text is indexed: a whole book in one message must not hold up everybody who writes.
MOST_CHARACTERS = 200_000
MOST_WORDS = 20_000
_HEADER = struct.Struct("<??BqQQI")


@dataclass(frozen=True, slots=True)
class Entry:
    """A document to be indexed, or taken out: `thread` (or its fingerprint) and `user_id` are filters, `speaker` may be empty."""

    id: str
    text: str
    created_at: int
    thread: str | int = ""
    user_id: str | None = None
    role: str = ""
    speaker: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferRow:
    """A row of the buffer, read back. `seq` is the row's own, `document` the number of the message or passage."""

    seq: int
    document: int
    is_deleted: bool
    asks: bool
    role: int
    created_at: int
    thread: int
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


_INSERTS: Mapping[str, Any] = {"messages": _insert_from(messages), "passages": _insert_from(passages)}


def put(tx: Transaction, kind: str, owner_id: str, entries: Sequence[Entry], *, is_deleted: bool = False) -> None:
    """Add one row for each entry, or for each that is to be taken out; the documents must still stand in their table."""
    if entries:
        values = [{"owner_id": owner_id, "document_id": e.id, "data": pack(e, is_deleted=is_deleted)} for e in entries]
        tx.run(_INSERTS[kind], values)


def pack(entry: Entry, *, is_deleted: bool = False) -> bytes:
    """The data of an entry's row."""
    words = terms(entry.text[:MOST_CHARACTERS])[:MOST_WORDS]
    header = _HEADER.pack(
        is_deleted,
        is_question(entry.text),
        ROLES.index(entry.role) if entry.role in ROLES else 0,
        entry.created_at,
        fingerprint(entry.thread),
        fingerprint(entry.user_id),
        len(words),
    )
    parts = [" ".join(terms(entry.speaker)), " ".join(words), *(label_term(label) for label in entry.labels)]
    return header + "\0".join(parts).encode()


def unpack(seq: int, document: int, data: bytes) -> BufferRow:
    """The row of which `pack` made the data."""
    is_deleted, asks, role, created_at, thread, user, length = _HEADER.unpack_from(data)
    speaker, text, *labels = data[_HEADER.size :].decode().split("\0")
    return BufferRow(
        seq,
        document,
        is_deleted,
        asks,
        role,
        created_at,
        thread,
        user,
        length,
        speaker.split(),
        text.split(),
        labels,
    )


def fingerprint(name: str | int | None) -> int:
    """Sixty-four bits that stand for an id in a filter; 0 for none, and what is a fingerprint already stays one."""
    if isinstance(name, int):
        return name
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") if name else 0


def label_term(label: str) -> str:
    """The term of a label; one that is very long, or holds what parts the labels, is told apart by its digest."""
    name = label.encode()
    is_plain = len(name) <= _MOST_TERM and "\0" not in label
    return LABEL + (label if is_plain else "\x02" + blake2b(name, digest_size=24).hexdigest())
