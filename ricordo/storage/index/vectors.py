"""Vectors of a space by position, and the nearest of them to a query's.

Few are compared exactly. Of many, a first look compares one bit a dimension, the second half of them only where the first
half is promising, and the best thousand are compared exactly.
Vectors are a cache: they can be dropped and rebuilt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, select

from ricordo.storage.index import fusion
from ricordo.storage.index.packing import VECTOR_CHUNK
from ricordo.storage.index.reading import SpaceRow
from ricordo.storage.index.remembering import memory_of
from ricordo.storage.index.tables import search_vectors
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import jobs

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

FEW = 8192
LOOKED_AT_AGAIN = 1000
# Of so many the second half of the bits is looked at too: with them 0.970 of the ten nearest are found, with all of them 0.972.
PROMISING = 16 * LOOKED_AT_AGAIN
VECTOR = np.dtype("<f2")
# From so many it is told which are promising.
_SAMPLE = 8192
# So many are compared at a time: what that needs stays in the processor's cache.
_LOOKED_AT_ONCE = 16_384
_COMPARED_AT_ONCE = 256
# Of a half float's bits, extended by copies of its sign and moved by 13: without the copies.
_SIGN_AND_REST = np.int32(0x0FFFE000 - 2**31)

_Json = jobs.c.payload.type
_VECTORS = (
    select(search_vectors)
    .where(
        search_vectors.c.space.op("IN")(each(bindparam("spaces", type_=_Json))),
        search_vectors.c.embedding.op("IN")(each(bindparam("embeddings", type_=_Json))),
        search_vectors.c.chunk >= bindparam("since"),
    )
    .order_by(search_vectors.c.space, search_vectors.c.chunk)
)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of the first documents of a space, one a row, each of length 1; zeros where a document is gone.

    `bits` says in which dimensions each lies beyond the mean, sixty-four to a word, a row for each word: only where there are many.
    `common` is what the first `counted` of them share.
    """

    rows: npt.NDArray[np.float16]
    exact: Floats | None
    bits: npt.NDArray[np.uint64] | None
    common: fusion.Common | None
    counted: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return sum(array.nbytes for array in (self.rows, self.exact, self.bits) if array is not None)


def vectors_from(rows: npt.NDArray[np.float16], known: Vectors | None = None) -> Vectors:
    """Ready to be searched; `known` were the first of them. What they share is found anew when they grew by a tenth."""
    if known is None or len(rows) > known.counted * 1.1:
        sample = rows[:: max(1, len(rows) // fusion.MOST_SAMPLE)]
        common, counted, known = fusion.common_of(sample[sample.any(axis=1)]), len(rows), None
    else:
        common, counted = known.common, known.counted
    if len(rows) <= FEW:
        return Vectors(rows, rows.astype(np.float32), None, common, counted)
    new = np.ascontiguousarray(_beyond(rows[len(known) if known and known.bits is not None else 0 :], common).T)
    bits = np.concatenate([known.bits, new], axis=1) if known and known.bits is not None else new
    return Vectors(rows, None, bits, common, counted)


def similarities(
    vectors: Vectors, query: Floats, size: int, may: npt.NDArray[np.bool_] | None, also: Positions
) -> Floats:
    """How near each of `size` positions is to the query, beyond what all are near to: NaN where that was not computed.

    `may` says which positions may be found, all without it; those in `also` are computed whatever the first look says of them.
    """
    found: Floats = np.full(size, np.nan, dtype=np.float32)
    count = min(len(vectors), size)
    if not count or vectors.rows.shape[1] != len(query):
        return found
    asked = fusion.focus(query, vectors.common)
    if vectors.exact is not None:
        found[:count] = vectors.exact[:count] @ asked
        return found
    # Comparing some of them twice costs less than finding out which.
    chosen = np.concatenate([_first_look(vectors, asked, count, may), also[also < count]])
    for start in range(0, len(chosen), _COMPARED_AT_ONCE):
        some = chosen[start : start + _COMPARED_AT_ONCE]
        found[some] = _products(vectors.rows.take(some, axis=0), asked)
    return found


def read_vectors(tx: Transaction, spaces: Sequence[SpaceRow]) -> dict[int, Vectors]:
    """The vectors of each space that has some, by its number. Only what came since the last search is read, if anything did."""
    memory = memory_of(tx)
    current: dict[int, Vectors] = {}
    stale: dict[int, Vectors | None] = {}
    for space in spaces:
        if not (space.embedding and space.vectors):
            continue
        known = memory.get(("vectors", space.seq))
        if known and known[0] == (space.generation, space.embedding) and len(known[1]) <= space.vectors:
            if len(known[1]) == space.vectors:
                current[space.seq] = known[1]
            else:
                stale[space.seq] = known[1]
        else:
            stale[space.seq] = None
    if stale:
        wanted = [space for space in spaces if space.seq in stale]
        for space, rows in _read_on(tx, wanted, stale):
            vectors = current[space.seq] = vectors_from(rows, stale[space.seq])
            memory.put(("vectors", space.seq), ((space.generation, space.embedding), vectors), vectors.nbytes)
    return current


def _read_on(
    tx: Transaction, spaces: Sequence[SpaceRow], known: dict[int, Vectors | None]
) -> list[tuple[SpaceRow, Any]]:
    since = min(0 if vectors is None else len(vectors) // VECTOR_CHUNK for vectors in known.values())
    embeddings = sorted({str(space.embedding) for space in spaces})
    chunks: dict[tuple[int, str], list[Any]] = {}
    values = {"spaces": [space.seq for space in spaces], "embeddings": embeddings, "since": since}
    for row in tx.all(_VECTORS, values):
        new = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions)
        chunks.setdefault((row.space, row.embedding), []).append(new)
    together = []
    for space in spaces:
        parts = chunks.get((space.seq, str(space.embedding)), [])
        if before := known[space.seq]:
            parts = [before.rows[: since * VECTOR_CHUNK], *parts]
        if parts:
            together.append((space, np.concatenate(parts)))
    return together


def _first_look(vectors: Vectors, asked: Floats, count: int, may: npt.NDArray[np.bool_] | None) -> Positions:
    assert vectors.bits is not None  # noqa: S101 - many vectors always have them
    word = _packed(asked[None, :] > 0)[0]
    half = (len(word) + 1) // 2
    apart = _apart(vectors.bits[:half], word[:half], count)
    if may is not None:
        apart[~may[:count]] = np.iinfo(apart.dtype).max
    most = count if may is None else int(np.count_nonzero(may[:count]))
    if not most:
        return np.empty(0, dtype=np.int64)
    # An odd step, as turns of a talk alternate and a filter may leave out every other.
    few = apart[:: (count // _SAMPLE) | 1]
    near = np.flatnonzero(apart <= _bar(few, PROMISING / count if most > PROMISING else 1))
    rest = vectors.bits[half:, :count].take(near, axis=1)
    further = np.bitwise_count(rest ^ word[half:, None]).sum(axis=0, dtype=np.uint16)
    further += apart.take(near)
    most = min(LOOKED_AT_AGAIN, len(near))
    bar = _bar(further, most / max(len(near), 1))
    nearer, equal = near[further < bar], near[further == bar]
    return np.concatenate([nearer, equal[: max(most - len(nearer), 0)]])


def _bar(apart: npt.NDArray[Any], share: float) -> int:
    """What at least this share of these small numbers do not exceed, below the largest there may be: such are passed over."""
    most = int(np.iinfo(apart.dtype).max) - 1
    if share >= 1:
        return most
    return min(int(np.searchsorted(np.cumsum(np.bincount(apart)), share * len(apart))), most)


def _apart(bits: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64], count: int) -> npt.NDArray[Any]:
    """In how many of these dimensions each of the first vectors lies on another side of the mean than what is asked, (count,)."""
    # Bytes are counted quickest; a number that one cannot hold stands for vectors that are passed over.
    kind: Any = np.uint8 if len(word) <= 3 else np.uint16
    apart = np.empty(count, dtype=kind)
    differ, counts = np.empty(_LOOKED_AT_ONCE, dtype=np.uint64), np.empty(_LOOKED_AT_ONCE, dtype=np.uint8)
    for start in range(0, count, _LOOKED_AT_ONCE):
        here = apart[start : start + _LOOKED_AT_ONCE]
        different, counted = differ[: len(here)], counts[: len(here)]
        for number, asked_bits in enumerate(word):
            np.bitwise_xor(bits[number, start : start + len(here)], asked_bits, out=different)
            np.bitwise_count(different, out=counted)
            if number == 0:
                here[:] = counted
            else:
                here += counted
    return apart


def _products(rows: npt.NDArray[np.float16], asked: Floats) -> Floats:
    """Those of each row with what is asked.

    Numpy converts half floats one at a time. With its bits moved to where a float has them, each is the same number times 2**-112.
    """
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _SIGN_AND_REST
    products: Floats = bits.view(np.float32) @ (asked * np.float32(2.0**112))
    return products


def _beyond(rows: npt.NDArray[np.float16], common: fusion.Common | None) -> npt.NDArray[np.uint64]:
    return _packed(rows > (np.float16(0) if common is None else common.mean.astype(np.float16)))


def _packed(signs: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    bits = np.packbits(signs, axis=1)
    padding = -bits.shape[1] % 8
    return (np.pad(bits, ((0, 0), (0, padding))) if padding else bits).view(np.uint64)
