"""Vectors of a partition by position: how they are stored, and the nearest of them to a query's.

Few are compared exactly. Of many, a first look compares one bit a dimension, the second half of them only where the first
half is promising, and the best thousand are compared exactly.
Vectors are a cache: they can be dropped and rebuilt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, func, select, update

from ricordo.errors import Conflict
from ricordo.search import fusion, reader
from ricordo.search.partition_view import PartitionView
from ricordo.search.partitions import NEW, EmbeddingBatch, lock_partition, partition_of
from ricordo.search.scoring import Bools, Floats, Integers
from ricordo.search.vector_index import VectorRecord
from ricordo.search.write_buffer import kind_of
from ricordo.storage.engine.repository import Appending
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.core_tables import (
    messages,
    passages,
    search_documents,
    search_partitions,
    search_vectors,
)

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
# What all share is computed again when they grew by this factor.
_GROWTH = 1.1
# So many are made ready at a time: what that needs beside them stays small.
_AT_ONCE = 4096

_JSON = messages.c.parts.type
_READ = (
    select(search_vectors)
    .where(
        search_vectors.c.partition.op("IN")(each(bindparam("partitions", type_=_JSON))),
        search_vectors.c.embedding.op("IN")(each(bindparam("embeddings", type_=_JSON))),
        search_vectors.c.chunk >= bindparam("since"),
    )
    .order_by(search_vectors.c.partition, search_vectors.c.chunk)
)
_IDS = each(bindparam("ids", type_=_JSON))
_DOCUMENTS = {
    "messages": select(*(column for column in messages.c if column.name != "parts")).where(
        messages.c.seq.op("IN")(_IDS)
    ),
    "passages": select(passages).where(passages.c.seq.op("IN")(_IDS)),
}
_OF_MODEL = (
    search_vectors.c.partition == bindparam("partition"),
    search_vectors.c.embedding == bindparam("embedding"),
)
# Vectors are stored in the order of positions, so the last chunk tells how many there are.
_LAST_STORED = (
    select(
        search_vectors.c.chunk,
        search_vectors.c.dimensions,
        func.length(search_vectors.c.data).label("size"),
    )
    .where(*_OF_MODEL)
    .order_by(search_vectors.c.chunk.desc())
    .limit(1)
)
_SOME_DOCUMENTS = (
    select(search_documents.c.data)
    .where(
        search_documents.c.partition == bindparam("partition"),
        search_documents.c.chunk >= bindparam("first"),
        search_documents.c.chunk <= bindparam("last"),
    )
    .order_by(search_documents.c.chunk)
)
_APPEND = Appending(search_vectors)
_DELETE = delete(search_vectors).where(*_OF_MODEL)
_RENAME = (
    update(search_vectors)
    .where(
        search_vectors.c.partition == bindparam("in_partition"),
        search_vectors.c.embedding == bindparam("from_name"),
    )
    .values(embedding=bindparam("to_name"))
)
_SERVE = (
    update(search_partitions)
    .where(search_partitions.c.seq == bindparam("partition"))
    .values({name: bindparam(f"new_{name}") for name in ("embedding", "vectors", "generation")})
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
        return sum(
            array.nbytes for array in (self.rows, self.scales, self.bits) if array is not None
        )

    def floats(self, chosen: Any) -> Floats:
        if self.scales is None:
            return np.asarray(self.rows[chosen], dtype=np.float32)
        return np.asarray(self.rows[chosen] * self.scales[chosen, None], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class ShownVectors:
    """The vectors at these positions (ascending) of a partition: those that a user may see, and what they share."""

    vectors: Vectors
    positions: Integers
    common: fusion.CommonDirections | None


def vectors_from(new: npt.NDArray[Any], known: Vectors | None = None) -> Vectors:
    """Ready to be searched: these, behind `known` ones. What they share is computed again as `shared_by` says."""
    count = len(new) + (len(known) if known else 0)
    if count <= FEW:
        floats = new.astype(np.float32)
        together = Vectors(
            np.concatenate([known.rows, floats]) if known else floats, None, None, None, 0
        )
    else:
        before = (known,) if known and known.scales is not None else ()
        parts = [known.rows, new] if known and known.scales is None else [new]
        made = [_as_bytes(part) for part in parts]
        rows = np.concatenate([*(old.rows for old in before), *(rows for rows, _ in made)])
        scales = np.concatenate([*(old.scales for old in before), *(scales for _, scales in made)])
        together = Vectors(rows, scales, None, None, 0)
    counted = shared_by(count)
    if known is None or counted != known.counted:
        common, held = _common_of(together, np.arange(counted)), None
    else:
        common, held = known.common, known.bits
    if count <= FEW:
        return replace(together, common=common, counted=counted)
    start = 0 if held is None else held.shape[1]
    parts = [
        _beyond(together.floats(slice(at, at + _AT_ONCE)), common)
        for at in range(start, count, _AT_ONCE)
    ]
    bits = np.concatenate(
        [*([] if held is None else [held]), *(np.ascontiguousarray(part.T) for part in parts)],
        axis=1,
    )
    return replace(together, bits=bits, common=common, counted=counted)


def shared_by(count: int) -> int:
    """Return how many of so many vectors tell what all share: fewer by at most a tenth, so that it seldom changes.

    It depends on nothing else, or scores would tell when a server was started, and who wrote since.
    """
    if count < fusion.LEAST_SAMPLE:
        return count
    return min(count, math.ceil(_GROWTH ** math.floor(math.log(count, _GROWTH))))


def _common_of(vectors: Vectors, positions: Integers) -> fusion.CommonDirections | None:
    """Return what the vectors at these positions share, from a sample of them."""
    sample = vectors.floats(positions[:: max(1, len(positions) // fusion.MOST_SAMPLE)])
    return fusion.common_of(sample[sample.any(axis=1)])


def part_of(
    cache: reader.IndexCache, partition: reader.PartitionRow, vectors: Vectors, view: PartitionView
) -> Vectors | ShownVectors:
    """Return those of a partition's vectors whose documents are in the view."""
    if view.shown is None:
        return vectors
    positions = view.shown[: int(np.searchsorted(view.shown, len(vectors)))]
    counted = shared_by(len(positions))
    if counted < fusion.LEAST_SAMPLE:
        return ShownVectors(vectors, positions, None)
    key, state = (
        ("common", (partition.seq, view.audience)),
        (partition.generation, partition.embedding, counted),
    )
    cached: tuple[Any, fusion.CommonDirections | None] | None = cache.partitions.get(key)
    if cached and cached[0] == state:
        return ShownVectors(vectors, positions, cached[1])
    common = _common_of(vectors, positions[:counted])
    cache.partitions.put(key, (state, common), 4 * (fusion.DIRECTIONS + 1) * vectors.rows.shape[1])
    return ShownVectors(vectors, positions, common)


def similarities_shown(
    shown: ShownVectors, query: Floats, may: Bools | None, also: Bools
) -> fusion.Similarities:
    """Compare as `similarities` does; positions, `may` and `also` count only the documents shown."""
    vectors, positions = shown.vectors, shown.positions
    count = len(positions)
    if not count or vectors.rows.shape[1] != len(query):
        return fusion.NO_SIMILARITIES
    asked = fusion.focus(query, shown.common)
    if vectors.scales is None:
        return fusion.Similarities(np.arange(count), (vectors.rows @ asked).take(positions))
    if count <= FEW:
        return fusion.Similarities(np.arange(count), _compared(vectors, asked, positions))
    allowed = np.zeros(len(vectors), dtype=np.bool_)
    allowed[positions] = True if may is None else may[:count]
    chosen = also[:count].copy()
    chosen[np.searchsorted(positions, _first_look(vectors, asked, len(vectors), allowed))] = True
    found = np.flatnonzero(chosen)
    return fusion.Similarities(found, _compared(vectors, asked, positions[found]))


def _compared(vectors: Vectors, asked: Floats, positions: Integers) -> Floats:
    """Return the similarities of many vectors' rows at these positions."""
    values: Floats = np.empty(len(positions), dtype=np.float32)
    for start in range(0, len(positions), _COMPARED_AT_ONCE):
        some = positions[start : start + _COMPARED_AT_ONCE]
        rows = vectors.rows.take(some, axis=0).astype(np.float32)
        np.matmul(rows, asked, out=values[start : start + _COMPARED_AT_ONCE])
    if vectors.scales is not None:
        values *= vectors.scales.take(positions)
    return values


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


def similarities(
    vectors: Vectors, query: Floats, may: Bools | None, also: Bools
) -> fusion.Similarities:
    """How near documents are to the query beyond what all share: of those that `may` be found, and always those in `also`."""
    count = min(len(vectors), len(also))
    if not count or vectors.rows.shape[1] != len(query):
        return fusion.NO_SIMILARITIES
    asked = fusion.focus(query, vectors.common)
    if vectors.scales is None:
        return fusion.Similarities(np.arange(count), vectors.rows[:count] @ asked)
    chosen = also[:count].copy()
    chosen[_first_look(vectors, asked, count, may)] = True
    positions = np.flatnonzero(chosen)
    return fusion.Similarities(positions, _compared(vectors, asked, positions))


def read_vectors(tx: Transaction, partitions: Sequence[reader.PartitionRow]) -> dict[int, Vectors]:
    """The vectors of each partition that has some, by its number. Only those that were added since the last search are read."""
    cache = reader.cache_of(tx).partitions
    known: dict[int, Vectors] = {}
    wanted = [partition for partition in partitions if partition.embedding and partition.vectors]
    for partition in wanted:
        cached: tuple[Any, Vectors] | None = cache.get(("vectors", partition.seq))
        if (
            cached
            and cached[0] == (partition.generation, partition.embedding)
            and len(cached[1]) <= partition.vectors
        ):
            known[partition.seq] = cached[1]
    behind = [
        partition for partition in wanted if len(known.get(partition.seq, ())) < partition.vectors
    ]
    if not behind:
        return known
    since = min(len(known.get(partition.seq, ())) for partition in behind) // reader.VECTOR_CHUNK
    chunks: dict[tuple[int, str], list[Any]] = {}
    embeddings = sorted({str(partition.embedding) for partition in behind})
    values = {
        "partitions": [partition.seq for partition in behind],
        "embeddings": embeddings,
        "since": since,
    }
    for row in tx.all(_READ, values):
        new = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions)
        chunks.setdefault((row.partition, row.embedding), []).append(new)
    for partition in behind:
        if parts := chunks.get((partition.seq, str(partition.embedding))):
            before = known.get(partition.seq)
            new = np.concatenate(parts)[len(before or ()) - since * reader.VECTOR_CHUNK :]
            vectors = known[partition.seq] = vectors_from(new, before)
            version = (partition.generation, partition.embedding)
            cache.put(("vectors", partition.seq), (version, vectors), vectors.nbytes)
    return known


def _first_look(vectors: Vectors, asked: Floats, count: int, may: Bools | None) -> Integers:
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


def _apart(
    bits: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64], count: int
) -> npt.NDArray[Any]:
    """In how many of these dimensions each of the first vectors lies on another side of the mean than what is asked, (count,)."""
    # Bytes are counted quickest; the largest number is for vectors that are skipped.
    kind: Any = np.uint8 if len(word) <= 3 else np.uint16
    apart = np.empty(count, dtype=kind)
    differ, counts = (
        np.empty(_LOOKED_AT_ONCE, dtype=np.uint64),
        np.empty(_LOOKED_AT_ONCE, dtype=np.uint8),
    )
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


def next_batch(tx: Transaction, owner_id: str, embedding: str, most: int) -> EmbeddingBatch | None:
    """The next documents to embed with this model; None where all flushed ones have their vectors."""
    partition = partition_of(tx, owner_id)
    if partition is None:
        return None
    start = _stored(tx, partition.seq, embedding)[0]
    if start >= partition.documents:
        return None
    records = _records(tx, partition, start, most)
    documents = tuple(int(r["number"]) if r["alive"] else None for r in records)
    return EmbeddingBatch(owner_id, embedding, start, documents, partition.documents)


def add_vectors(
    tx: Transaction, batch: EmbeddingBatch, vectors: Mapping[int, Sequence[float]], size: int
) -> bool:
    """Store vectors of a batch by the numbers of its documents, zeros for those without.

    A partition's first model serves from its first vector on, a later one takes over when it has them all; new vectors of a model
    then replace its old ones, and this returns True. Raises Conflict where someone else stored them meanwhile, or where the
    model's vectors have changed their size.
    """
    partition = lock_partition(tx, batch.owner_id)
    stored, dimensions = _stored(tx, partition.seq, batch.embedding) if partition else (-1, 0)
    if partition is None or stored != batch.start or (stored and dimensions != size):
        raise Conflict(
            "These vectors do not continue what is stored. Go on from there, or drop the vectors first."
        )
    # Read again: what was deleted since must not leave a vector.
    records = _records(tx, partition, batch.start, len(batch.documents))
    rows = np.zeros((len(records), size), dtype=VECTOR)
    for place, record in enumerate(records):
        if record["alive"] and (vector := vectors.get(int(record["number"]))) is not None:
            rows[place] = vector
    values = {"partition": partition.seq, "embedding": batch.embedding, "dimensions": size}
    tx.run(
        _APPEND,
        [{**values, **chunk} for chunk in reader.chunks_of(rows, batch.start, reader.VECTOR_CHUNK)],
    )
    count = stored + len(rows)
    if partition.embedding not in (None, batch.embedding) and count < partition.documents:
        return False
    model = batch.embedding.removesuffix(NEW)
    is_replaced = model != batch.embedding
    if is_replaced:
        tx.run(_DELETE, {"partition": partition.seq, "embedding": model})
        tx.run(
            _RENAME, {"in_partition": partition.seq, "from_name": batch.embedding, "to_name": model}
        )
    _serve(tx, partition, model, count, is_other=is_replaced)
    return is_replaced


def documents_of(tx: Transaction, batch: EmbeddingBatch) -> list[tuple[str, VectorRecord]]:
    """The documents of a batch that are still there: the text to embed, with the name of who said it, and a record to fill."""
    found: list[tuple[str, VectorRecord]] = []
    kind = kind_of(batch.owner_id)
    for row in tx.all(
        _DOCUMENTS[kind], {"ids": [number for number in batch.documents if number is not None]}
    ):
        record = VectorRecord(row.seq, (), row.created_at, user_id=row.user_id or "")
        if kind == "passages":
            found.append((row.text, replace(record, tags=tuple(row.tags))))
        else:
            text = f"{row.name}: {row.text}" if row.name else row.text
            found.append((text, replace(record, role=row.role, conversation=row.conversation_id)))
    return found


def drop_vectors(tx: Transaction, owner_id: str, model: str) -> None:
    """Delete the vectors of one model. If it serves, searches go on with words alone until there are new ones."""
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return
    tx.run(_DELETE, {"partition": partition.seq, "embedding": model})
    if partition.embedding == model:
        _serve(tx, partition, None, 0)


def _serve(
    tx: Transaction, partition: Any, embedding: str | None, count: int, *, is_other: bool = False
) -> None:
    """Let these vectors serve; where they are other ones than before, what is cached of the partition is not used any more."""
    is_other = is_other or (embedding != partition.embedding and partition.embedding is not None)
    values = {
        "new_embedding": embedding,
        "new_vectors": count,
        "new_generation": partition.generation + is_other,
    }
    tx.run(_SERVE, {"partition": partition.seq, **values})


def _records(tx: Transaction, partition: Any, start: int, most: int) -> reader.Documents:
    first, last = (
        start // reader.DOCUMENT_CHUNK,
        (min(start + most, partition.documents) - 1) // reader.DOCUMENT_CHUNK,
    )
    rows = tx.all(_SOME_DOCUMENTS, {"partition": partition.seq, "first": first, "last": last})
    return reader.read_documents(b"".join(row.data for row in rows))[
        start - first * reader.DOCUMENT_CHUNK :
    ][:most]


def _stored(tx: Transaction, partition: int, embedding: str) -> tuple[int, int]:
    """How many vectors of the model there are, and their dimensions."""
    row = tx.first(_LAST_STORED, {"partition": partition, "embedding": embedding})
    if row is None:
        return 0, 0
    return row.chunk * reader.VECTOR_CHUNK + row.size // (
        VECTOR.itemsize * row.dimensions
    ), row.dimensions
