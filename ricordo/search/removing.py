"""Taking documents out of a space, however many, without holding up others who write.

A deleted document waits in the tail, with its words, until every blob that knows of it is written anew. What is written is worked
out in transactions that only read, a portion at a time, and its rows leave the tail last: after a kill all of it is done again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, exists, select, update

from ricordo.search import clearing
from ricordo.search.records import (
    DOCUMENT_CHUNK,
    POSTING_CHUNK,
    VECTOR_CHUNK,
    occurrences,
    read_documents,
    read_postings,
)
from ricordo.search.vectors import VECTOR
from ricordo.search.write_buffer import TailRow, unpack
from ricordo.storage.search_tables import (
    search_documents,
    search_postings,
    search_spaces,
    search_tail,
    search_terms,
    search_vectors,
)
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

# What one transaction writes at most: rows, and bytes in them.
ROWS_AT_ONCE = 200
BYTES_AT_ONCE = 1_000_000
_TERMS_READ = 100
_CHUNKS_AT_ONCE = 8

T = TypeVar("T")
# Number, documents, documents gone, and generation of a space; () where there is none.
State = tuple[int, ...]

_Json = jobs.c.payload.type
_SPACE = select(search_spaces).where(search_spaces.c.owner_id == bindparam("owner_id"))
_SPACE_HELD = _SPACE.with_for_update()
_OLDEST = (
    select(search_tail.c.seq, search_tail.c.document, search_tail.c.data)
    .where(search_tail.c.owner_id == bindparam("owner_id"))
    .order_by(search_tail.c.seq)
    .limit(bindparam("most"))
)
_DELETE_TAIL = delete(search_tail).where(search_tail.c.seq.op("IN")(each(bindparam("seqs", type_=_Json))))
_CHANGED = (
    update(search_spaces)
    .where(search_spaces.c.seq == bindparam("space"))
    .values(gone=bindparam("new_gone"), generation=bindparam("new_generation"))
)
_DOCUMENTS = (
    select(search_documents.c.chunk, search_documents.c.data)
    .where(search_documents.c.space == bindparam("space"))
    .order_by(search_documents.c.chunk)
)
_SOME_DOCUMENTS = _DOCUMENTS.where(search_documents.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))))
_POSTINGS = select(search_postings.c.term, search_postings.c.chunk, search_postings.c.data).where(
    search_postings.c.space == bindparam("space"),
    search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    search_postings.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_VECTORS = select(search_vectors.c.embedding, search_vectors.c.chunk, search_vectors.c.dimensions).where(
    search_vectors.c.space == bindparam("space"),
    search_vectors.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_VECTOR = (
    (search_vectors.c.space == bindparam("in_space"))
    & (search_vectors.c.embedding == bindparam("in_embedding"))
    & (search_vectors.c.chunk == bindparam("in_chunk"))
)
_ONE_VECTOR = select(search_vectors.c.data, search_vectors.c.dimensions).where(_VECTOR)
_PATCH_VECTORS = update(search_vectors).where(_VECTOR).values(data=bindparam("new_data"))
_PATCH_DOCUMENTS = (
    update(search_documents)
    .where(search_documents.c.space == bindparam("in_space"), search_documents.c.chunk == bindparam("in_chunk"))
    .values(data=bindparam("new_data"))
)
_POSTING = (
    (search_postings.c.space == bindparam("in_space"))
    & (search_postings.c.term == bindparam("in_term"))
    & (search_postings.c.chunk == bindparam("in_chunk"))
)
_SHORTEN_POSTINGS = update(search_postings).where(_POSTING).values(data=bindparam("new_data"))
_DELETE_POSTINGS = delete(search_postings).where(_POSTING)
_DELETE_TERMS = delete(search_terms).where(
    search_terms.c.space == bindparam("in_space"),
    search_terms.c.term == bindparam("in_term"),
    ~exists().where(search_postings.c.space == search_terms.c.space, search_postings.c.term == search_terms.c.term),
)


# Writes something to a space that is held; returns how many documents went with that.
Write = Callable[[Transaction, Any], int]


@dataclass(frozen=True, slots=True, eq=False)
class Leaving:
    """Documents that leave a space: their rows in the tail, where they stand, and the terms that know of them.

    `space` is the space's number, None where nothing was merged yet.
    """

    owner_id: str
    space: int | None
    rows: tuple[int, ...]
    positions: npt.NDArray[np.int64]
    terms: tuple[str, ...]

    def steps(self) -> "Iterator[Step]":
        """What is to be done, in order. Each step may be done twice, and none may be left out."""
        for chunks in _portions(_chunks(self.positions, DOCUMENT_CHUNK), _CHUNKS_AT_ONCE):
            yield _Bury(self, chunks)
        for terms in _portions(self.terms, _TERMS_READ):
            yield _Shorten(self, terms)
        for chunk in _chunks(self.positions, VECTOR_CHUNK):
            yield _Blank(self, chunk)
        for rows in _portions(self.rows, ROWS_AT_ONCE):
            yield _Forget(self, rows)

    def within(self, chunk: int, size: int) -> npt.NDArray[np.int64]:
        """The places of the documents in one chunk of this size."""
        is_here: npt.NDArray[np.bool_] = self.positions // size == chunk
        places: npt.NDArray[np.int64] = self.positions[is_here] % size
        return places


@dataclass(frozen=True, slots=True)
class Made:
    """What a step will write, each in a transaction of its own, as it was worked out when the space was in this state."""

    state: State
    writes: Sequence[Write]


class Step:
    """One portion of the work."""

    def __init__(self, leaving: Leaving) -> None:
        self.leaving = leaving

    def make(self, tx: Transaction) -> Made | None:
        """Work out what is to be written. None where the space was built anew or dropped: then what is left begins anew."""
        space = tx.first(_SPACE, {"owner_id": self.leaving.owner_id})
        if (space.seq if space else None) != self.leaving.space:
            return None
        return Made(_state(space), list(self._writes(tx)))

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        raise NotImplementedError


def leaving(tx: Transaction, owner_id: str, most: int) -> Leaving | None:
    """The documents to take out of a space, by the oldest rows of its tail, at most so many; None where there are none.

    The more there are, the more words they share, and each blob is written anew once for all of them.
    """
    gone: dict[int, list[TailRow]] = {}
    added: set[int] = set()
    for found in tx.all(_OLDEST, {"owner_id": owner_id, "most": most}):
        row = unpack(found.seq, found.document, found.data)
        if not row.is_gone:
            added.add(row.document)
        elif row.document not in added:  # else it came and went within the tail, which a merge settles
            gone.setdefault(row.document, []).append(row)
    if not gone:
        return None
    rows = [row for some in gone.values() for row in some]
    space = tx.first(_SPACE, {"owner_id": owner_id})
    positions = _positions(tx, space.seq, list(gone)) if space else np.zeros(0, dtype=np.int64)
    # As merges call them: labels are terms too.
    terms = {term for row in rows for term in occurrences(row)} if len(positions) else set()
    seqs = tuple([row.seq for row in rows])
    return Leaving(owner_id, space.seq if space else None, seqs, positions, tuple(sorted(terms)))


def write(tx: Transaction, owner_id: str, state: State, write: Write) -> State | None:
    """Write something that was made in this state; returns the state after it. None, and nothing is done, where it is another."""
    space = tx.first(_SPACE_HELD, {"owner_id": owner_id})
    if _state(space) != state:
        return None
    gone = write(tx, space)
    if space is None:
        return state
    values = {"space": space.seq, "new_gone": space.gone + gone, "new_generation": space.generation + 1}
    tx.run(_CHANGED, values)
    return (space.seq, space.documents, space.gone + gone, space.generation + 1)


class _Bury(Step):
    """Mark documents as gone."""

    def __init__(self, leaving: Leaving, chunks: Sequence[int]) -> None:
        super().__init__(leaving)
        self._chunks = chunks

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        patches: list[dict[str, Any]] = []
        count = 0
        space = self.leaving.space
        for row in tx.all(_SOME_DOCUMENTS, {"space": space, "chunks": list(self._chunks)}):
            records = read_documents(row.data).copy()
            places = self.leaving.within(row.chunk, DOCUMENT_CHUNK)
            count += int(records["alive"][places].sum())
            records["alive"][places] = 0
            patches.append({"in_space": space, "in_chunk": row.chunk, "new_data": records.tobytes()})

        def write(tx: Transaction, _space: Any) -> int:
            tx.run(_PATCH_DOCUMENTS, patches)
            return count

        yield write


class _Shorten(Step):
    """Take documents out of the postings of some terms; a word that nobody says any more leaves the vocabulary too."""

    def __init__(self, leaving: Leaving, terms: Sequence[str]) -> None:
        super().__init__(leaving)
        self._terms = terms

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        masks = _masks(self.leaving.positions)
        shorter: list[dict[str, Any]] = []
        empty: list[dict[str, Any]] = []
        size = 0
        wanted = {"space": self.leaving.space, "terms": list(self._terms), "chunks": sorted(masks)}
        for row in tx.all(_POSTINGS, wanted):
            records = read_postings(row.data)
            kept = records[~masks[row.chunk][records["position"] % POSTING_CHUNK]]
            if len(kept) == len(records):
                continue
            key = {"in_space": self.leaving.space, "in_term": row.term, "in_chunk": row.chunk}
            if len(kept):
                shorter.append({**key, "new_data": kept.tobytes()})
                size += len(row.data)
            else:
                empty.append(key)
            if size > BYTES_AT_ONCE or len(shorter) + 2 * len(empty) >= ROWS_AT_ONCE:
                yield _rewriting(shorter, empty)
                shorter, empty, size = [], [], 0
        if shorter or empty:
            yield _rewriting(shorter, empty)


class _Blank(Step):
    """Clear the vectors of documents."""

    def __init__(self, leaving: Leaving, chunk: int) -> None:
        super().__init__(leaving)
        self._chunk = chunk

    def _writes(self, tx: Transaction) -> Iterator[Write]:
        for row in tx.all(_VECTORS, {"space": self.leaving.space, "chunks": [self._chunk]}):
            yield self._clearing(row.embedding)

    def _clearing(self, embedding: str) -> Write:
        places = self.leaving.within(self._chunk, VECTOR_CHUNK)

        def write(tx: Transaction, space: Any) -> int:
            # Read here: vectors come without a change of the space.
            key = {"in_space": space.seq, "in_embedding": embedding, "in_chunk": self._chunk}
            if row := tx.first(_ONE_VECTOR, key):
                vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
                vectors[places[places < len(vectors)]] = 0
                tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})
            return 0

        return write


class _Forget(Step):
    """Let rows leave the tail: nothing in the space knows of these documents any more."""

    def __init__(self, leaving: Leaving, rows: Sequence[int]) -> None:
        super().__init__(leaving)
        self._rows = rows

    def _writes(self, _tx: Transaction) -> Iterator[Write]:
        def write(tx: Transaction, _space: Any) -> int:
            tx.run(_DELETE_TAIL, {"seqs": list(self._rows)})
            clearing.note(tx, len(self._rows))
            return 0

        yield write


def _rewriting(shorter: list[dict[str, Any]], empty: list[dict[str, Any]]) -> Write:
    def write(tx: Transaction, _space: Any) -> int:
        tx.run(_SHORTEN_POSTINGS, shorter)
        tx.run(_DELETE_POSTINGS, empty)
        tx.run(_DELETE_TERMS, [{"in_space": key["in_space"], "in_term": key["in_term"]} for key in empty])
        return 0

    return write


def _positions(tx: Transaction, space: int, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where these documents stand, or stood before a kill, in the order of the positions."""
    wanted = np.array(numbers, dtype=np.int64)
    found = [
        row.chunk * DOCUMENT_CHUNK + np.flatnonzero(np.isin(read_documents(row.data)["number"], wanted))
        for row in tx.all(_DOCUMENTS, {"space": space})
    ]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _masks(positions: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.bool_]]:
    """By posting chunk, which places in it are among these positions."""
    masks: dict[int, npt.NDArray[np.bool_]] = {}
    for chunk in _chunks(positions, POSTING_CHUNK):
        masks[chunk] = np.zeros(POSTING_CHUNK, dtype=np.bool_)
        masks[chunk][positions[positions // POSTING_CHUNK == chunk] % POSTING_CHUNK] = True
    return masks


def _chunks(positions: npt.NDArray[np.int64], size: int) -> list[int]:
    """The chunks of this size in which these positions lie."""
    chunks: list[int] = np.unique(positions // size).tolist()
    return chunks


def _state(space: Any) -> State:
    return () if space is None else (space.seq, space.documents, space.gone, space.generation)


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
