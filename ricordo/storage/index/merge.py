"""Merging: rows of the tail become postings and documents of their space, in the order in which they were written.

A merge is one short transaction, under a lock on the space's row.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, exists, select, update

from ricordo.storage.index import clearing
from ricordo.storage.index.packing import (
    DOCUMENT_CHUNK,
    POSTING,
    POSTING_CHUNK,
    VECTOR_CHUNK,
    chunks_of,
    document_records,
    occurrences,
    read_documents,
    read_postings,
)
from ricordo.storage.index.tables import (
    search_documents,
    search_postings,
    search_spaces,
    search_tail,
    search_terms,
    search_vectors,
)
from ricordo.storage.index.tail import LABEL, TailRow, unpack
from ricordo.storage.index.upsert import Appending, Missing
from ricordo.storage.index.vectors import VECTOR
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

MERGED_AT_ONCE = 256
# Taking a document out rewrites a blob for each of its words, so fewer of them make a transaction as long.
TAKEN_OUT_AT_ONCE = 64
WORDS_AT_ONCE = 12_000

_TIMES = [bytes((times,)) for times in range(256)]
_Json = jobs.c.payload.type
_SPACE = select(search_spaces).where(search_spaces.c.owner_id == bindparam("owner_id")).with_for_update()
_NEW_SPACE = Missing(search_spaces)
_TAIL = (
    select(search_tail.c.seq, search_tail.c.document, search_tail.c.data)
    .where(search_tail.c.owner_id == bindparam("owner_id"))
    .order_by(search_tail.c.seq)
    .limit(bindparam("most"))
)
_DELETE_TAIL = delete(search_tail).where(search_tail.c.seq.op("IN")(each(bindparam("seqs", type_=_Json))))
_APPEND_POSTINGS, _APPEND_DOCUMENTS = Appending(search_postings), Appending(search_documents)
_ADD_TERMS = Missing(search_terms)
_COUNTED = (
    update(search_spaces)
    .where(search_spaces.c.seq == bindparam("space"))
    .values(documents=bindparam("new_documents"), gone=bindparam("new_gone"), generation=bindparam("new_generation"))
)
_DOCUMENTS = (
    select(search_documents.c.chunk, search_documents.c.data)
    .where(search_documents.c.space == bindparam("space"))
    .order_by(search_documents.c.chunk)
)
_SOME_POSTINGS = select(search_postings.c.term, search_postings.c.chunk, search_postings.c.data).where(
    search_postings.c.space == bindparam("space"),
    search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
    search_postings.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_THIS_POSTING = (
    (search_postings.c.space == bindparam("in_space"))
    & (search_postings.c.term == bindparam("in_term"))
    & (search_postings.c.chunk == bindparam("in_chunk"))
)
_SHORTEN_POSTINGS = update(search_postings).where(_THIS_POSTING).values(data=bindparam("new_data"))
_DELETE_POSTINGS = delete(search_postings).where(_THIS_POSTING)
_DELETE_TERMS = delete(search_terms).where(
    search_terms.c.space == bindparam("in_space"),
    search_terms.c.term == bindparam("in_term"),
    ~exists().where(search_postings.c.space == search_terms.c.space, search_postings.c.term == search_terms.c.term),
)
_PATCH_DOCUMENTS = (
    update(search_documents)
    .where(search_documents.c.space == bindparam("in_space"), search_documents.c.chunk == bindparam("in_chunk"))
    .values(data=bindparam("new_data"))
)
_SOME_VECTORS = select(search_vectors).where(
    search_vectors.c.space == bindparam("space"),
    search_vectors.c.chunk.op("IN")(each(bindparam("chunks", type_=_Json))),
)
_PATCH_VECTORS = (
    update(search_vectors)
    .where(
        search_vectors.c.space == bindparam("in_space"),
        search_vectors.c.embedding == bindparam("in_embedding"),
        search_vectors.c.chunk == bindparam("in_chunk"),
    )
    .values(data=bindparam("new_data"))
)


def merge(tx: Transaction, kind: str, owner_id: str, most: int = MERGED_AT_ONCE) -> int:
    """Pack the oldest rows of the space's tail, at most so many; returns how many there were."""
    # The lock comes first: whoever waited for it must see the tail that the other left.
    space = tx.first(_SPACE, {"owner_id": owner_id})
    found = tx.all(_TAIL, {"owner_id": owner_id, "most": most})
    if not found:
        return 0
    if space is None:
        tx.run(_NEW_SPACE, {"owner_id": owner_id, "kind": kind})
        return merge(tx, kind, owner_id, most)
    rows = _some([unpack(row.seq, row.document, row.data) for row in found])
    added, removed = _settle(rows)
    gone = _take_out(tx, space.seq, removed) if removed else 0
    _append(tx, space.seq, space.documents, added)
    tx.run(_DELETE_TAIL, {"seqs": [row.seq for row in rows]})
    clearing.note(tx, len(rows))
    tx.run(
        _COUNTED,
        {
            "space": space.seq,
            "new_documents": space.documents + len(added),
            "new_gone": space.gone + gone,
            "new_generation": space.generation + (1 if gone else 0),
        },
    )
    return len(rows)


def _some(rows: list[TailRow]) -> list[TailRow]:
    """As many of the first rows as one transaction should work on, one at least."""
    gone = words = 0
    for count, row in enumerate(rows):
        gone += row.is_gone
        words += len(row.text)
        if count and (gone > TAKEN_OUT_AT_ONCE or words > WORDS_AT_ONCE):
            return rows[:count]
    return rows


def _settle(rows: Iterable[TailRow]) -> tuple[list[TailRow], list[TailRow]]:
    """What is to be added and what taken out; a document that came and went within these rows is neither."""
    added: dict[int, TailRow] = {}
    removed: list[TailRow] = []
    for row in rows:
        if not row.is_gone:
            added[row.document] = row
        elif added.pop(row.document, None) is None:
            removed.append(row)
    return list(added.values()), removed


def _append(tx: Transaction, space: int, position: int, rows: Sequence[TailRow]) -> None:
    if not rows:
        return
    chunks: dict[int, defaultdict[str, bytearray]] = {}
    for here, row in enumerate(rows, position):
        postings = chunks.setdefault(here // POSTING_CHUNK, defaultdict(bytearray))
        place = here.to_bytes(4, "little")
        for term, times in occurrences(row).items():
            postings[term] += place + _TIMES[times]
    # In the order of the key, so that each page of the table is visited once.
    for chunk, postings in chunks.items():
        tx.run(
            _APPEND_POSTINGS,
            [{"space": space, "term": t, "chunk": chunk, "data": bytes(d)} for t, d in sorted(postings.items())],
        )
    words = sorted({term for postings in chunks.values() for term in postings if not term.startswith(LABEL)})
    tx.run(_ADD_TERMS, [{"space": space, "term": term} for term in words])
    records = document_records(list(rows))
    tx.run(_APPEND_DOCUMENTS, [{"space": space, **chunk} for chunk in chunks_of(records, position, DOCUMENT_CHUNK)])


def _take_out(tx: Transaction, space: int, removed: Sequence[TailRow]) -> int:
    """Take documents out of every blob that knows of them; returns how many were there."""
    chunks = {row.chunk: row.data for row in tx.all(_DOCUMENTS, {"space": space})}
    numbers = {row.document: row for row in removed}
    places: dict[int, TailRow] = {}
    for chunk, data in chunks.items():
        records = read_documents(data).copy()
        found = np.flatnonzero((records["alive"] == 1) & np.isin(records["number"], list(numbers)))
        if len(found):
            places |= {chunk * DOCUMENT_CHUNK + int(i): numbers[int(records["number"][i])] for i in found}
            records["alive"][found] = 0
            tx.run(_PATCH_DOCUMENTS, {"in_space": space, "in_chunk": chunk, "new_data": records.tobytes()})
    if places:
        _take_out_postings(tx, space, places)
        _clear_vectors(tx, space, list(places))
    return len(places)


def _take_out_postings(tx: Transaction, space: int, places: Mapping[int, TailRow]) -> None:
    terms: set[str] = set()
    leaving: dict[int, npt.NDArray[np.bool_]] = {}
    for position, row in places.items():
        terms |= occurrences(row).keys()
        chunk = position // POSTING_CHUNK
        leaving.setdefault(chunk, np.zeros(POSTING_CHUNK, dtype=np.bool_))[position % POSTING_CHUNK] = True
    shorter, empty = [], []
    for row in tx.all(_SOME_POSTINGS, {"space": space, "terms": sorted(terms), "chunks": sorted(leaving)}):
        records = read_postings(row.data)
        kept = records[~leaving[row.chunk][records["position"] % POSTING_CHUNK]]
        key = {"in_space": space, "in_term": row.term, "in_chunk": row.chunk}
        if not len(kept):
            empty.append(key)
        elif len(kept) < len(records):
            shorter.append({**key, "new_data": kept.tobytes()})
    tx.run(_SHORTEN_POSTINGS, shorter)
    tx.run(_DELETE_POSTINGS, empty)
    # A word that nobody says any more must not stay in the vocabulary either.
    tx.run(_DELETE_TERMS, [{"in_space": space, "in_term": key["in_term"]} for key in empty])


def _clear_vectors(tx: Transaction, space: int, positions: Sequence[int]) -> None:
    chunks = sorted({position // VECTOR_CHUNK for position in positions})
    for row in tx.all(_SOME_VECTORS, {"space": space, "chunks": chunks}):
        vectors = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions).copy()
        within = [p % VECTOR_CHUNK for p in positions if p // VECTOR_CHUNK == row.chunk]
        vectors[[place for place in within if place < len(vectors)]] = 0
        key = {"in_space": space, "in_embedding": row.embedding, "in_chunk": row.chunk}
        tx.run(_PATCH_VECTORS, {**key, "new_data": vectors.tobytes()})


assert POSTING.itemsize == 5  # noqa: S101 - `_append` writes such records by hand
