"""Vectors of a partition by position, and the nearest of them to a query's.

Few are compared exactly. Of many, a first look compares one bit a dimension, the second half of them only where the first
half is promising, and the best thousand are compared exactly.
Vectors are a cache: they can be dropped and rebuilt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, select

from ricordo.search import fusion
from ricordo.search.cache import cache_of
from ricordo.search.reader import PartitionRow
from ricordo.search.records import VECTOR_CHUNK
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import jobs
from ricordo.storage.schema.search_tables import search_vectors

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
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
# So many are made ready at a time: what that needs beside them stays small.
_AT_ONCE = 4096

_Json = jobs.c.payload.type
_VECTORS = (
    select(search_vectors)
    .where(
        search_vectors.c.partition.op("IN")(each(bindparam("partitions", type_=_Json))),
        search_vectors.c.embedding.op("IN")(each(bindparam("embeddings", type_=_Json))),
        search_vectors.c.chunk >= bindparam("since"),
    )
    .order_by(search_vectors.c.partition, search_vectors.c.chunk)
)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of the first documents of a partition, one a row, each of length 1; zeros where a document is deleted.

    Of few, `rows` are floats. Of many they are bytes, which times `scales` are the numbers, and `bits` says in which dimensions
    each lies beyond the mean, sixty-four to a word, a row for each word. `common` is what the first `counted` of them share.
    """

    rows: npt.NDArray[Any]
    scales: Floats | None
    bits: npt.NDArray[np.uint64] | None
    common: fusion.CommonDirections | None
    counted: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.rows, self.scales, self.bits) if array is not None)

    def floats(self, chosen: Any) -> Floats:
        if self.scales is None:
            return np.asarray(self.rows[chosen], dtype=np.float32)
        return np.asarray(self.rows[chosen] * self.scales[chosen, None], dtype=np.float32)


def vectors_from(new: npt.NDArray[Any], known: Vectors | None = None) -> Vectors:
    """Ready to be searched: these, behind `known` ones. What they share is computed again when they grew by a tenth."""
    count = len(new) + (len(known) if known else 0)
    if count <= FEW:
        floats = new.astype(np.float32)
        together = Vectors(np.concatenate([known.rows, floats]) if known else floats, None, None, None, 0)
    else:
        before = (known,) if known and known.scales is not None else ()
        parts = [known.rows, new] if known and known.scales is None else [new]
        made = [_as_bytes(part) for part in parts]
        rows = np.concatenate([*(old.rows for old in before), *(rows for rows, _ in made)])
        scales = np.concatenate([*(old.scales for old in before), *(scales for _, scales in made)])
        together = Vectors(rows, scales, None, None, 0)
    if known is None or count > known.counted * 1.1:
        sample = together.floats(slice(None, None, max(1, count // fusion.MOST_SAMPLE)))
        common, counted, held = fusion.common_of(sample[sample.any(axis=1)]), count, None
    else:
        common, counted, held = known.common, known.counted, known.bits
    if count <= FEW:
        return replace(together, common=common, counted=counted)
    start = 0 if held is None else held.shape[1]
    parts = [_beyond(together.floats(slice(at, at + _AT_ONCE)), common) for at in range(start, count, _AT_ONCE)]
    bits = np.concatenate(
        [*([] if held is None else [held]), *(np.ascontiguousarray(part.T) for part in parts)], axis=1
    )
    return replace(together, bits=bits, common=common, counted=counted)


def _as_bytes(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], Floats]:
    """Each row in 255 steps, and how large a step is: half the memory of half floats, and less than half the time to compare."""
    found = np.empty(rows.shape, dtype=np.int8)
    scales: Floats = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE].astype(np.float32)
        scale = np.maximum(some.max(axis=1), -some.min(axis=1)) / np.float32(127)
        scales[start : start + _AT_ONCE] = scale
        some /= np.where(scale > 0, scale, np.float32(1))[:, None]
        np.rint(some, out=some)
        found[start : start + _AT_ONCE] = some
    return found, scales


def similarities(vectors: Vectors, query: Floats, may: Bools | None, also: Bools) -> fusion.Similarities:
    """How near documents are to the query, beyond what all are near to: of those for which that was computed.

    `may` says by position which may be found, all without it; those in `also` are computed whatever the first look says of them.
    """
    count = min(len(vectors), len(also))
    if not count or vectors.rows.shape[1] != len(query):
        return fusion.NO_SIMILARITIES
    asked = fusion.focus(query, vectors.common)
    if vectors.scales is None:
        return fusion.Similarities(np.arange(count), vectors.rows[:count] @ asked)
    chosen = also[:count].copy()
    chosen[_first_look(vectors, asked, count, may)] = True
    positions = np.flatnonzero(chosen)
    values: Floats = np.empty(len(positions), dtype=np.float32)
    for start in range(0, len(positions), _COMPARED_AT_ONCE):
        some = positions[start : start + _COMPARED_AT_ONCE]
        rows = vectors.rows.take(some, axis=0).astype(np.float32)
        np.matmul(rows, asked, out=values[start : start + _COMPARED_AT_ONCE])
    values *= vectors.scales.take(positions)
    return fusion.Similarities(positions, values)


def read_vectors(tx: Transaction, partitions: Sequence[PartitionRow]) -> dict[int, Vectors]:
    """The vectors of each partition that has some, by its number. Only those that were added since the last search are read."""
    cache = cache_of(tx).partitions
    known: dict[int, Vectors] = {}
    wanted = [partition for partition in partitions if partition.embedding and partition.vectors]
    for partition in wanted:
        cached: tuple[Any, Vectors] | None = cache.get(("vectors", partition.seq))
        if cached and cached[0] == (partition.generation, partition.embedding) and len(cached[1]) <= partition.vectors:
            known[partition.seq] = cached[1]
    behind = [partition for partition in wanted if len(known.get(partition.seq, ())) < partition.vectors]
    if not behind:
        return known
    since = min(len(known.get(partition.seq, ())) for partition in behind) // VECTOR_CHUNK
    chunks: dict[tuple[int, str], list[Any]] = {}
    embeddings = sorted({str(partition.embedding) for partition in behind})
    values = {"partitions": [partition.seq for partition in behind], "embeddings": embeddings, "since": since}
    for row in tx.all(_VECTORS, values):
        new = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions)
        chunks.setdefault((row.partition, row.embedding), []).append(new)
    for partition in behind:
        if parts := chunks.get((partition.seq, str(partition.embedding))):
            before = known.get(partition.seq)
            new = np.concatenate(parts)[len(before or ()) - since * VECTOR_CHUNK :]
            vectors = known[partition.seq] = vectors_from(new, before)
            version = (partition.generation, partition.embedding)
            cache.put(("vectors", partition.seq), (version, vectors), vectors.nbytes)
    return known


def _first_look(vectors: Vectors, asked: Floats, count: int, may: Bools | None) -> Positions:
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
    further = apart.take(near).astype(np.uint16)
    for number in range(half, len(word)):
        further += np.bitwise_count(vectors.bits[number].take(near) ^ word[number])
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
    # Bytes are counted quickest; the largest number is for vectors that are skipped.
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


def _beyond(rows: Floats, common: fusion.CommonDirections | None) -> npt.NDArray[np.uint64]:
    return _packed(rows > (np.float32(0) if common is None else common.mean))


def _packed(signs: Bools) -> npt.NDArray[np.uint64]:
    bits = np.packbits(signs, axis=1)
    padding = -bits.shape[1] % 8
    return (np.pad(bits, ((0, 0), (0, padding))) if padding else bits).view(np.uint64)
