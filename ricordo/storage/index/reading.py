"""Reading the index: one statement for the spaces, their tails and the postings of a query; what a process remembers of a space.

All of a search happens in one transaction, so a merge beside it is seen whole or not at all.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import bindparam, literal, null, select, union_all

from ricordo.storage.index.packing import DOCUMENT_CHUNK, Documents, Postings, read_documents, read_postings
from ricordo.storage.index.tables import search_documents, search_postings, search_spaces, search_tail
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

MEMORY = 256 * 1024 * 1024  # bytes that a process spends on what it remembers of all spaces

_Json = jobs.c.payload.type
_OWNERS = each(bindparam("owners", type_=_Json))
_SPACES, _TAIL, _POSTINGS = 0, 1, 2
_INDEX = union_all(
    select(
        literal(_SPACES).label("part"),
        search_spaces.c.owner_id.label("name"),
        search_spaces.c.seq.label("space"),
        search_spaces.c.documents.label("number"),
        search_spaces.c.generation,
        search_spaces.c.vectors,
        search_spaces.c.embedding,
        null().label("data"),
    ).where(search_spaces.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_TAIL),
        search_tail.c.owner_id,
        search_tail.c.seq,
        search_tail.c.document,
        literal(0),
        literal(0),
        null(),
        search_tail.c.data,
    ).where(search_tail.c.owner_id.op("IN")(_OWNERS)),
    select(
        literal(_POSTINGS),
        search_postings.c.term,
        search_postings.c.space,
        search_postings.c.chunk,
        literal(0),
        literal(0),
        null(),
        search_postings.c.data,
    ).where(
        search_postings.c.space.in_(select(search_spaces.c.seq).where(search_spaces.c.owner_id.op("IN")(_OWNERS))),
        search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    ),
)
_DOCUMENTS = (
    select(search_documents)
    .where(search_documents.c.space.op("IN")(each(bindparam("spaces", type_=_Json))))
    .where(search_documents.c.chunk >= bindparam("since"))
    .order_by(search_documents.c.space, search_documents.c.chunk)
)


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """A space as its row says it is now. `vectors` is how many of its documents are embedded, with the model `embedding`."""

    owner_id: str
    seq: int
    documents: int
    generation: int
    vectors: int
    embedding: str | None


@dataclass(slots=True)
class Snapshot:
    """What one search reads: the spaces there are, the rows of their tails by owner, postings by space and term."""

    spaces: list[SpaceRow] = field(default_factory=list)
    tails: dict[str, list[Any]] = field(default_factory=dict)
    postings: dict[int, dict[str, Postings]] = field(default_factory=dict)


class Memory:
    """What this process remembers of spaces, the least used forgotten first. What is in it never changes, it is replaced."""

    def __init__(self, most: int = MEMORY) -> None:
        self._most = most
        self._held: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """What is remembered under this key, or None."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Any, value: Any, size: int) -> None:
        """Remember this, which takes so many bytes."""
        with self._lock:
            self._size += size - self._held.pop(key, (None, 0))[1]
            self._held[key] = (value, size)
            # What is known of one space is used together, so a part of it never makes room for another.
            others = [other for other in self._held if other[1] != key[1]] if self._size > self._most else []
            for other in others:
                if self._size > self._most:
                    self._size -= self._held.pop(other)[1]


def memory_of(tx: Transaction) -> Memory:
    """This process's memory of the database's spaces; an empty one where the transaction sees what may be rolled back."""
    if tx.has_written:
        return Memory()
    memory: Memory = tx.memory.setdefault(Memory, Memory())
    return memory


def read_index(tx: Transaction, owners: Sequence[str], terms: Iterable[str]) -> Snapshot:
    """The spaces of these owners with their tails, and the postings of these terms: one statement."""
    snapshot = Snapshot()
    chunks: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for row in tx.all(_INDEX, {"owners": list(owners), "terms": list(terms)}):
        if row.part == _SPACES:
            snapshot.spaces.append(
                SpaceRow(row.name, row.space, row.number, row.generation, row.vectors, row.embedding)
            )
        elif row.part == _TAIL:
            snapshot.tails.setdefault(row.name, []).append(row)
        else:
            chunks.setdefault((row.space, row.name), []).append((row.number, row.data))
    for (space, term), parts in chunks.items():
        data = b"".join(data for _, data in sorted(parts))
        snapshot.postings.setdefault(space, {})[term] = read_postings(data)
    for rows in snapshot.tails.values():
        rows.sort(key=lambda row: row.space)
    return snapshot


def read_all_documents(tx: Transaction, spaces: Sequence[SpaceRow]) -> dict[int, Documents]:
    """The merged documents of each space, by its number. Only what was merged since the last search is read, if anything was."""
    memory = memory_of(tx)
    known = {space.seq: memory.get(("documents", space.seq)) for space in spaces}
    current: dict[int, Documents] = {}
    stale: dict[int, Documents] = {}
    for space in spaces:
        generation, records = known[space.seq] or (None, read_documents(b""))
        if generation != space.generation:
            records = records[:0]
        if len(records) == space.documents and generation == space.generation:
            current[space.seq] = records
        else:
            stale[space.seq] = records
    if stale:
        current |= _read_on(tx, stale)
        for space in spaces:
            if space.seq in stale:
                current[space.seq] = current[space.seq][: space.documents]
                keep_documents(memory, space, current[space.seq])
    return current


def keep_documents(memory: Memory, space: SpaceRow, records: Documents) -> None:
    """Remember these as the merged documents of the space."""
    memory.put(("documents", space.seq), (space.generation, records), records.nbytes)


def _read_on(tx: Transaction, stale: dict[int, Documents]) -> dict[int, Documents]:
    since = min(len(records) for records in stale.values()) // DOCUMENT_CHUNK
    chunks: dict[int, list[bytes]] = {space: [] for space in stale}
    for row in tx.all(_DOCUMENTS, {"spaces": list(stale), "since": since}):
        chunks[row.space].append(row.data)
    before = since * DOCUMENT_CHUNK
    return {
        space: np.concatenate([records[:before], read_documents(b"".join(chunks[space]))])
        for space, records in stale.items()
    }
