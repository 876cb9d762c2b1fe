"""Reading the index: one statement for the spaces, their tails and the postings of a query, one for what changed since the last.

All of a search happens in one transaction, so a merge beside it is seen whole or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import LargeBinary, bindparam, cast, literal, null, select, union_all

from ricordo.search.cache import Known, Memory, memory_of
from ricordo.search.records import (
    DOCUMENT_CHUNK,
    MOST_TIMES,
    NAMED,
    POSTING_CHUNK,
    Documents,
    read_documents,
    read_postings,
)
from ricordo.search.scoring import Posting
from ricordo.storage.search_tables import search_documents, search_postings, search_spaces, search_tail
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

# Of a search through more spaces than so many, terms are not remembered: there would be too many of them.
MOST_REMEMBERED = 8

_Json = jobs.c.payload.type
_OWNERS = each(bindparam("owners", type_=_Json))
_SPACES, _TAIL, _POSTINGS, _DOCUMENTS = 0, 1, 2, 3
_NEVER = 2**40  # no chunk has such a number
_INDEX = union_all(
    select(
        literal(_SPACES).label("part"),
        search_spaces.c.owner_id.label("name"),
        search_spaces.c.seq.label("space"),
        search_spaces.c.documents.label("number"),
        search_spaces.c.generation,
        search_spaces.c.vectors,
        search_spaces.c.embedding,
        cast(null(), LargeBinary).label("data"),
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
_THESE = each(bindparam("spaces", type_=_Json))
_CHANGED = union_all(
    select(
        literal(_DOCUMENTS).label("part"),
        search_documents.c.space,
        null().label("term"),
        search_documents.c.chunk,
        search_documents.c.data,
    ).where(search_documents.c.space.op("IN")(_THESE), search_documents.c.chunk >= bindparam("documents_since")),
    select(
        literal(_POSTINGS),
        search_postings.c.space,
        search_postings.c.term,
        search_postings.c.chunk,
        search_postings.c.data,
    ).where(
        search_postings.c.space.op("IN")(_THESE),
        search_postings.c.term.op("IN")(each(bindparam("terms", type_=_Json))),
        search_postings.c.chunk >= bindparam("postings_since"),
    ),
)
_NOWHERE = Posting(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.bool_))


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
    """What one search reads: the spaces there are, the rows of their tails by owner, merged documents and postings.

    `documents` go by the number of the space, `postings` by that and the term; a term that stands nowhere has none.
    """

    spaces: list[SpaceRow] = field(default_factory=list)
    tails: dict[str, list[Any]] = field(default_factory=dict)
    documents: dict[int, Documents] = field(default_factory=dict)
    postings: dict[tuple[int, str], Posting] = field(default_factory=dict)


def read_index(tx: Transaction, owners: Sequence[str], terms: Sequence[str]) -> Snapshot:
    """The spaces of these owners with their tails and documents, and the postings of these terms: two statements at most."""
    memory = memory_of(tx)
    remembers = len(owners) <= MOST_REMEMBERED
    known = memory.terms.known(owners, terms) if remembers else {}
    asked = [term for term in dict.fromkeys(terms) if any((owner, term) not in known for owner in owners)]
    snapshot = Snapshot()
    chunks: dict[tuple[int, str], dict[int, bytes]] = {}
    for row in tx.all(_INDEX, {"owners": list(owners), "terms": asked}):
        if row.part == _SPACES:
            snapshot.spaces.append(
                SpaceRow(row.name, row.space, row.number, row.generation, row.vectors, row.embedding)
            )
        elif row.part == _TAIL:
            snapshot.tails.setdefault(row.name, []).append(row)
        else:
            chunks.setdefault((row.space, row.name), {})[row.number] = row.data
    for rows in snapshot.tails.values():
        rows.sort(key=lambda row: row.space)
    new = {
        (space.owner_id, term): _known(space, decoded(chunks.get((space.seq, term), {})))
        for space in snapshot.spaces
        for term in asked
    }
    known |= new
    stale = _stale(snapshot.spaces, known)
    snapshot.documents = _documents_of(memory, snapshot.spaces)
    new |= _read_changes(tx, memory, snapshot, stale)
    if remembers:
        memory.terms.keep(new)
    known |= new
    for space in snapshot.spaces:
        for term in terms:
            posting = _up_to(known[space.owner_id, term], space.documents)
            if len(posting.positions):
                snapshot.postings[space.seq, term] = posting
    return snapshot


def keep_documents(memory: Memory, space: SpaceRow, records: Documents) -> None:
    """Remember these as the merged documents of the space."""
    memory.put(("documents", space.seq), (space.generation, records), records.nbytes)


def decoded(chunks: Mapping[int, bytes]) -> Posting:
    """The postings in these chunks of one term, which come in any order."""
    if not chunks:
        return _NOWHERE
    records = read_postings(b"".join(chunks[number] for number in sorted(chunks)))
    times = records["times"]
    return Posting(records["position"].astype(np.int64), times & np.uint8(MOST_TIMES), times >= NAMED)


def joined_postings(parts: Sequence[Posting]) -> Posting:
    """Postings one after the other, as one term's."""
    held = [part for part in parts if len(part.positions)]
    if len(held) < 2:
        return held[0] if held else _NOWHERE
    return Posting(
        np.concatenate([part.positions for part in held]),
        np.concatenate([part.times for part in held]),
        np.concatenate([part.named for part in held]),
    )


def some_of(posting: Posting, chosen: Any) -> Posting:
    """Those of a term's postings that a slice, an array of places or a mask chooses."""
    return replace(
        posting, positions=posting.positions[chosen], times=posting.times[chosen], named=posting.named[chosen]
    )


def _known(space: SpaceRow, posting: Posting) -> Known:
    return Known(space.seq, space.generation, space.documents, posting)


def _up_to(known: Known, documents: int) -> Posting:
    """Without what was merged after the snapshot: another search may have seen more."""
    if known.documents <= documents:
        return known.posting
    return some_of(known.posting, slice(0, int(np.searchsorted(known.posting.positions, documents))))


def _stale(spaces: Sequence[SpaceRow], known: Mapping[tuple[str, str], Known]) -> dict[tuple[SpaceRow, str], Known]:
    """What is remembered of terms and is not all that there is now; without any postings where it is of no use."""
    stale: dict[tuple[SpaceRow, str], Known] = {}
    rows = {space.owner_id: space for space in spaces}
    for (owner, term), before in known.items():
        space = rows.get(owner)
        if space is None:
            continue
        if (before.space, before.generation) != (space.seq, space.generation):
            stale[space, term] = Known(space.seq, space.generation, 0, _NOWHERE)
        elif before.documents < space.documents:
            stale[space, term] = before
    return stale


def _documents_of(memory: Memory, spaces: Sequence[SpaceRow]) -> dict[int, Documents]:
    """The merged documents of each space as far as they are remembered, by its number."""
    known: dict[int, Documents] = {}
    for space in spaces:
        generation, records = memory.get(("documents", space.seq)) or (None, read_documents(b""))
        known[space.seq] = records[: space.documents] if generation == space.generation else records[:0]
    return known


def _read_changes(
    tx: Transaction, memory: Memory, snapshot: Snapshot, terms: Mapping[tuple[SpaceRow, str], Known]
) -> dict[tuple[str, str], Known]:
    """Bring documents and terms up to date with one statement, if anything is missing; returns the terms it read on."""
    documents = {s.seq: s for s in snapshot.spaces if len(snapshot.documents[s.seq]) < s.documents}
    if not (documents or terms):
        return {}
    since = min((len(snapshot.documents[space]) // DOCUMENT_CHUNK for space in documents), default=_NEVER)
    postings_since = min((known.documents // POSTING_CHUNK for known in terms.values()), default=_NEVER)
    values = {
        "spaces": sorted({*documents, *(space.seq for space, _ in terms)}),
        "terms": sorted({term for _, term in terms}),
        "documents_since": since,
        "postings_since": postings_since,
    }
    chunks: dict[tuple[int, str | None], dict[int, bytes]] = {}
    for row in tx.all(_CHANGED, values):
        chunks.setdefault((row.space, row.term), {})[row.chunk] = row.data
    for space in documents.values():
        parts = chunks.get((space.seq, None), {})
        data = b"".join(parts[number] for number in sorted(parts))
        before = snapshot.documents[space.seq][: since * DOCUMENT_CHUNK]
        records = np.concatenate([before, read_documents(data)])[: space.documents]
        snapshot.documents[space.seq] = records
        keep_documents(memory, space, records)
    read: dict[tuple[str, str], Known] = {}
    first = postings_since * POSTING_CHUNK
    for (space, term), known in terms.items():
        kept = some_of(known.posting, slice(0, int(np.searchsorted(known.posting.positions, first))))
        read[space.owner_id, term] = _known(space, joined_postings([kept, decoded(chunks.get((space.seq, term), {}))]))
    return read
