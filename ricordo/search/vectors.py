"""Store the vectors of a partition, and find those that are nearest to a query.

A partition is the index of one agent or archive. Its documents have positions, from 0 on, and the
vectors are stored in the order of these positions.

A few vectors are compared exactly. Of many vectors, a first pass compares one bit for each
dimension: half of the bits for all vectors, the other half only for promising ones. The best
thousand are then compared exactly. Vectors are a cache: they can be dropped and rebuilt.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, delete, func, select, update

from ricordo.errors import Conflict
from ricordo.search import fusion, reader
from ricordo.search.partition_view import PartitionView
from ricordo.search.partitions import NEW, EmbeddingBatch, lock_partition, partition_of
from ricordo.search.scoring import PART_SHIFT, Bools, Floats, Integers
from ricordo.search.text_parts import UNCUT, parts_of
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

# Up to this number, all vectors are compared exactly.
FEW = 8192
# The number of vectors that are compared exactly after the first pass.
COMPARED_EXACTLY = 1000
# The second half of the bits is compared for this many vectors. This finds 0.970 of the ten
# nearest; comparing all bits of all vectors finds 0.972.
PROMISING = 16 * COMPARED_EXACTLY
VECTOR = np.dtype("<f2")
# The first pass estimates the greatest distance of a promising vector from a sample of about this
# size.
_SAMPLE = 8192
# Vectors in one batch: of the first pass, and of the exact comparison. The arrays of a batch should
# stay in the processor's cache.
_BITS_AT_ONCE = 16_384
_COMPARED_AT_ONCE = 256
# The common directions (see `fusion.CommonDirections`) are computed again when the number of
# vectors has grown by this factor.
_GROWTH = 1.1
# Vectors are prepared in batches of this size, so that temporary arrays stay small.
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
# Vectors are stored in the order of positions, so the last chunk shows their number.
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
    """The vectors of the first documents of a partition, one in each row.

    A vector has length 1. The vector of a deleted document is zero.

    Attributes:
        rows: Floats (m, d) if there are few vectors; bytes (m, d) if there are many.
        scales: One factor for each row (m,): bytes times the factor are floats. None for floats.
        bits: One bit for each dimension of a vector: 1 if its number is above the mean in `common`
            (0 without one). Row i holds the bits of the dimensions 64 i to 64 i + 63, as one
            integer for each vector (d / 64, m). None for few vectors.
        common: The common directions of the first `counted` vectors; None if there are too few.
        counted: The number of vectors that give the common directions (see `common_count`).
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
        """Return some vectors as floats (k, d).

        Args:
            chosen: A slice, a mask or indexes of the rows, as numpy takes them.
        """
        if self.scales is None:
            return np.asarray(self.rows[chosen], dtype=np.float32)
        return np.asarray(self.rows[chosen] * self.scales[chosen, None], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class ShownVectors:
    """The vectors that a user may see, by ascending positions in a partition.

    `common` are their common directions.
    """

    vectors: Vectors
    positions: Integers
    common: fusion.CommonDirections | None

    def __len__(self) -> int:
        return len(self.positions)


def vectors_from(new: npt.NDArray[Any], earlier: Vectors | None = None) -> Vectors:
    """Prepare these vectors for searches, and append them to the earlier vectors.

    The common directions are computed again if the result of `common_count` changes.

    Args:
        new: Vectors of length 1 (m, d), as they are stored; zeros for deleted documents.
        earlier: The vectors of all positions before these; None if there are none.
    """
    vectors = _appended(new, earlier)
    counted = common_count(len(vectors))
    if earlier is not None and counted == earlier.counted:
        common = earlier.common
        bits = earlier.bits
    else:
        common = _common_of(vectors, np.arange(counted))
        bits = None
    if len(vectors) > FEW:
        bits = _extended_bits(vectors, bits, common)
    return replace(vectors, bits=bits, common=common, counted=counted)


def _appended(new: npt.NDArray[Any], earlier: Vectors | None) -> Vectors:
    """Return the earlier rows and then the new ones, without bits and common directions."""
    count = len(new) + (len(earlier) if earlier else 0)
    if count <= FEW:
        floats = new.astype(np.float32)
        if earlier:
            rows = np.concatenate([earlier.rows, floats])
        else:
            rows = floats
        return Vectors(rows, scales=None, bits=None, common=None, counted=0)
    parts = []
    if earlier is None:
        parts.append(_as_bytes(new))
    elif earlier.scales is None:
        parts += [_as_bytes(earlier.rows), _as_bytes(new)]
    else:
        parts += [(earlier.rows, earlier.scales), _as_bytes(new)]
    return Vectors(
        rows=np.concatenate([rows for rows, _ in parts]),
        scales=np.concatenate([scales for _, scales in parts]),
        bits=None,
        common=None,
        counted=0,
    )


def _extended_bits(
    vectors: Vectors,
    bits: npt.NDArray[np.uint64] | None,
    common: fusion.CommonDirections | None,
) -> npt.NDArray[np.uint64]:
    """Return the bits of all vectors.

    `bits` are those of the first vectors, which are already known.
    """
    parts = [] if bits is None else [bits]
    start = 0 if bits is None else bits.shape[1]
    for position in range(start, len(vectors), _AT_ONCE):
        floats = vectors.floats(slice(position, position + _AT_ONCE))
        parts.append(np.ascontiguousarray(_bits_above_mean(floats, common).T))
    return np.concatenate(parts, axis=1)


def common_count(count: int) -> int:
    """Return the number of vectors, of `count`, that give the common directions.

    It is the last number at which the common directions are computed again, at most a tenth below
    `count`. It depends on `count` alone, not on the contents of the cache. Otherwise scores would
    reveal when the server was started, and how much others wrote since.

    Args:
        count: The number of embedded positions that a search may see.
    """
    if count < fusion.LEAST_SAMPLE:
        return count
    return min(count, math.ceil(_GROWTH ** math.floor(math.log(count, _GROWTH))))


def _common_of(vectors: Vectors, positions: Integers) -> fusion.CommonDirections | None:
    """Return the common directions of some of the vectors at these positions."""
    sample = vectors.floats(positions[:: max(1, len(positions) // fusion.MOST_SAMPLE)])
    return fusion.common_of(sample[sample.any(axis=1)])


def part_of(
    cache: reader.IndexCache, partition: reader.PartitionRow, vectors: Vectors, view: PartitionView
) -> Vectors | ShownVectors:
    """Return the partition's vectors of the documents in the view.

    Args:
        cache: It holds the common directions of earlier searches. New ones are added.
        partition: The row of the partition.
        vectors: The vectors of the whole partition.
        view: A view of this partition, or a user's part of it.

    Returns:
        `vectors` for a whole view; for a part, the vectors with the positions that it shows.
    """
    if view.partition_positions is None:
        return vectors
    embedded_count = int(np.searchsorted(view.partition_positions, len(vectors)))
    positions = view.partition_positions[:embedded_count]
    counted = common_count(len(positions))
    if counted < fusion.LEAST_SAMPLE:
        return ShownVectors(vectors, positions, None)
    key = ("common", (partition.seq, view.audience))
    state = (partition.generation, partition.embedding, counted)
    cached: tuple[Any, fusion.CommonDirections | None] | None = cache.partitions.get(key)
    if cached and cached[0] == state:
        return ShownVectors(vectors, positions, cached[1])
    common = _common_of(vectors, positions[:counted])
    cache.partitions.put(key, (state, common), 4 * (fusion.DIRECTIONS + 1) * vectors.rows.shape[1])
    return ShownVectors(vectors, positions, common)


def similarities_shown(
    shown_vectors: ShownVectors, query: Floats, may: Bools | None, also: Bools
) -> fusion.Similarities:
    """Return the similarities of the shown documents, computed as in `similarities`.

    Positions in the result are indexes into the shown documents, not into the partition.

    Args:
        shown_vectors: The vectors of the documents that a user may see.
        query: The query's vector (d,), of length 1.
        may: Marks the documents of the view that the filters allow; None allows all.
        also: Marks documents of the view that are always compared.
    """
    vectors = shown_vectors.vectors
    positions = shown_vectors.positions
    count = len(positions)
    if not count or vectors.rows.shape[1] != len(query):
        return fusion.NO_SIMILARITIES
    focused_query = fusion.focus(query, shown_vectors.common)
    if vectors.scales is None:
        return fusion.Similarities(np.arange(count), (vectors.rows @ focused_query).take(positions))
    if count <= FEW:
        return fusion.Similarities(np.arange(count), _compared(vectors, focused_query, positions))
    allowed = np.zeros(len(vectors), dtype=np.bool_)
    allowed[positions] = True if may is None else may[:count]
    is_chosen = also[:count].copy()
    near = _nearest_by_bits(vectors, focused_query, len(vectors), allowed)
    is_chosen[np.searchsorted(positions, near)] = True
    chosen = np.flatnonzero(is_chosen)
    return fusion.Similarities(chosen, _compared(vectors, focused_query, positions[chosen]))


def _compared(vectors: Vectors, focused_query: Floats, positions: Integers) -> Floats:
    """Return the similarities of the vectors at these positions, computed in batches."""
    scores: Floats = np.empty(len(positions), dtype=np.float32)
    for start in range(0, len(positions), _COMPARED_AT_ONCE):
        batch = positions[start : start + _COMPARED_AT_ONCE]
        rows = vectors.rows.take(batch, axis=0).astype(np.float32)
        np.matmul(rows, focused_query, out=scores[start : start + _COMPARED_AT_ONCE])
    if vectors.scales is not None:
        scores *= vectors.scales.take(positions)
    return scores


def _as_bytes(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], Floats]:
    """Quantize each row to signed bytes; return the bytes and each row's scale.

    Bytes take half the memory of 16-bit floats, and are compared more than twice as fast.
    """
    bytes_of_rows = np.empty(rows.shape, dtype=np.int8)
    scales: Floats = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _AT_ONCE):
        batch = rows[start : start + _AT_ONCE].astype(np.float32)
        scale = np.maximum(batch.max(axis=1), -batch.min(axis=1)) / np.float32(127)
        scales[start : start + _AT_ONCE] = scale
        batch /= np.where(scale > 0, scale, np.float32(1))[:, None]
        np.rint(batch, out=batch)
        bytes_of_rows[start : start + _AT_ONCE] = batch
    return bytes_of_rows, scales


def similarities(
    vectors: Vectors, query: Floats, may: Bools | None, also: Bools
) -> fusion.Similarities:
    """Return the similarities of documents to the query.

    The vectors' common directions do not count. If there are few vectors, all are compared.
    Otherwise the nearest allowed ones are compared, and those that `also` marks.

    Args:
        vectors: The vectors of a partition's first documents.
        query: The query's vector (d,), of length 1. With another number of dimensions than the
            vectors, nothing is similar.
        may: Marks the documents that the filters allow (n,); None allows all.
        also: Marks documents that are always compared (n,).
    """
    count = min(len(vectors), len(also))
    if not count or vectors.rows.shape[1] != len(query):
        return fusion.NO_SIMILARITIES
    focused_query = fusion.focus(query, vectors.common)
    if vectors.scales is None:
        return fusion.Similarities(np.arange(count), vectors.rows[:count] @ focused_query)
    is_chosen = also[:count].copy()
    is_chosen[_nearest_by_bits(vectors, focused_query, count, may)] = True
    positions = np.flatnonzero(is_chosen)
    return fusion.Similarities(positions, _compared(vectors, focused_query, positions))


def _cached_vectors(
    cache: reader.SizedCache, partitions: Sequence[reader.PartitionRow]
) -> dict[int, Vectors]:
    vectors_by_partition: dict[int, Vectors] = {}
    for partition in partitions:
        cached: tuple[Any, Vectors] | None = cache.get(("vectors", partition.seq))
        version = (partition.generation, partition.embedding)
        if cached and cached[0] == version and len(cached[1]) <= partition.vectors:
            vectors_by_partition[partition.seq] = cached[1]
    return vectors_by_partition


def read_vectors(tx: Transaction, partitions: Sequence[reader.PartitionRow]) -> dict[int, Vectors]:
    """Return the vectors of the partitions, by the partition's number.

    A partition without vectors is missing. Only vectors added since the last search are read.

    Args:
        tx: The transaction.
        partitions: The partitions of one search.
    """
    cache = reader.cache_of(tx).partitions
    embedded = [partition for partition in partitions if partition.embedding and partition.vectors]
    vectors_by_partition = _cached_vectors(cache, embedded)
    cached_counts = {
        partition.seq: len(vectors_by_partition.get(partition.seq, ())) for partition in embedded
    }
    outdated = [
        partition for partition in embedded if cached_counts[partition.seq] < partition.vectors
    ]
    if not outdated:
        return vectors_by_partition
    since = min(cached_counts[partition.seq] for partition in outdated) // reader.VECTOR_CHUNK
    chunks: dict[tuple[int, str], list[Any]] = {}
    parameters = {
        "partitions": [partition.seq for partition in outdated],
        "embeddings": sorted({str(partition.embedding) for partition in outdated}),
        "since": since,
    }
    for row in tx.all(_READ, parameters):
        new = np.frombuffer(row.data, dtype=VECTOR).reshape(-1, row.dimensions)
        chunks.setdefault((row.partition, row.embedding), []).append(new)
    for partition in outdated:
        if parts := chunks.get((partition.seq, str(partition.embedding))):
            first_new = cached_counts[partition.seq] - since * reader.VECTOR_CHUNK
            vectors = vectors_from(
                np.concatenate(parts)[first_new:], vectors_by_partition.get(partition.seq)
            )
            vectors_by_partition[partition.seq] = vectors
            version = (partition.generation, partition.embedding)
            cache.put(("vectors", partition.seq), (version, vectors), vectors.nbytes)
    return vectors_by_partition


def _nearest_by_bits(
    vectors: Vectors, focused_query: Floats, count: int, may: Bools | None
) -> Integers:
    """Return the allowed positions whose bits are nearest to the query's, at most 1,000."""
    assert vectors.bits is not None  # noqa: S101 - many vectors always have them
    query_bits = _packed(focused_query[None, :] > 0)[0]
    half = (len(query_bits) + 1) // 2
    distances = _distances(vectors.bits[:half], query_bits[:half], count)
    if may is not None:
        distances[~may[:count]] = np.iinfo(distances.dtype).max
    if may is None:
        allowed_count = count
    else:
        allowed_count = int(np.count_nonzero(may[:count]))
    if not allowed_count:
        return np.empty(0, dtype=np.int64)
    # The speakers of a conversation alternate. An even step could therefore meet the turns of one
    # speaker only, and a filter may exclude them all. So the step is odd.
    sample = distances[:: (count // _SAMPLE) | 1]
    if allowed_count > PROMISING:
        share = PROMISING / count
    else:
        share = 1
    near = np.flatnonzero(distances <= _bound(sample, share))
    full_distances = distances.take(near).astype(np.uint16)
    for number in range(half, len(query_bits)):
        full_distances += np.bitwise_count(vectors.bits[number].take(near) ^ query_bits[number])
    limit = min(COMPARED_EXACTLY, len(near))
    bound = _bound(full_distances, limit / max(len(near), 1))
    nearer = near[full_distances < bound]
    equal = near[full_distances == bound]
    return np.concatenate([nearer, equal[: max(limit - len(nearer), 0)]])


def _bound(distances: npt.NDArray[Any], share: float) -> int:
    """Return the smallest distance up to which at least this share of the distances lies.

    The type's largest number marks skipped vectors. The result is always below it.
    """
    highest = int(np.iinfo(distances.dtype).max) - 1
    if share >= 1:
        return highest
    cumulated = np.cumsum(np.bincount(distances))
    return min(int(np.searchsorted(cumulated, share * len(distances))), highest)


def _distances(
    bits: npt.NDArray[np.uint64], query_bits: npt.NDArray[np.uint64], count: int
) -> npt.NDArray[Any]:
    """Return, for each of the first vectors, the number of bits that differ from the query's."""
    # Bytes are added up fastest. The type's largest number is reserved for skipped vectors.
    dtype: Any = np.uint8 if len(query_bits) <= 3 else np.uint16
    distances = np.empty(count, dtype=dtype)
    xor_buffer = np.empty(_BITS_AT_ONCE, dtype=np.uint64)
    count_buffer = np.empty(_BITS_AT_ONCE, dtype=np.uint8)
    for start in range(0, count, _BITS_AT_ONCE):
        batch = distances[start : start + _BITS_AT_ONCE]
        end = start + len(batch)
        differences = xor_buffer[: len(batch)]
        bit_counts = count_buffer[: len(batch)]
        for number, word in enumerate(query_bits):
            np.bitwise_xor(bits[number, start:end], word, out=differences)
            np.bitwise_count(differences, out=bit_counts)
            if number == 0:
                batch[:] = bit_counts
            else:
                batch += bit_counts
    return distances


def _bits_above_mean(
    rows: Floats, common: fusion.CommonDirections | None
) -> npt.NDArray[np.uint64]:
    return _packed(rows > (np.float32(0) if common is None else common.mean))


def _packed(signs: Bools) -> npt.NDArray[np.uint64]:
    bits = np.packbits(signs, axis=1)
    padding = -bits.shape[1] % 8
    if padding:
        bits = np.pad(bits, ((0, 0), (0, padding)))
    return bits.view(np.uint64)


def next_batch(tx: Transaction, owner_id: str, embedding: str, limit: int) -> EmbeddingBatch | None:
    """Return the next documents to embed with this model.

    Args:
        tx: The transaction.
        owner_id: The partition's name: its owner's id, perhaps with the suffix `NEW`.
        embedding: The handle of the model, perhaps with the suffix `NEW`.
        limit: The most positions; each part of a text has one.

    Returns:
        The batch; None if all flushed documents have their vectors.
    """
    partition = partition_of(tx, owner_id)
    if partition is None:
        return None
    start = _stored(tx, partition.seq, embedding)[0]
    if start >= partition.documents:
        return None
    records = _records(tx, partition, start, limit)
    documents = tuple(_part_at(record) if record["alive"] else None for record in records)
    return EmbeddingBatch(owner_id, embedding, start, documents, partition.documents)


def _part_at(record: np.void) -> tuple[int, int]:
    """Return the number of a record's document, and that of its part."""
    return int(record["number"]), int(record["form"]) >> PART_SHIFT


def add_vectors(
    tx: Transaction,
    batch: EmbeddingBatch,
    vectors: Mapping[tuple[int, int], Sequence[float]],
    size: int,
) -> bool:
    """Store the vectors of a batch.

    Searches use the vectors of a partition's first model at once. They use those of another model
    only when every flushed document has one.

    Args:
        tx: The transaction.
        batch: The positions, as `next_batch` returned them.
        vectors: The vectors by document and part, each of length 1. Missing ones are stored as
            zeros.
        size: The number of dimensions.

    Returns:
        True if these vectors have now replaced the old ones. That is so if the batch's model has
            the suffix `NEW`, and no position is left. Otherwise False.

    Raises:
        Conflict: Another process stored them meanwhile, the model's vectors have a new size, or the
            partition no longer exists.
    """
    partition = lock_partition(tx, batch.owner_id)
    stored = -1
    dimensions = 0
    if partition:
        stored, dimensions = _stored(tx, partition.seq, batch.embedding)
    if partition is None or stored != batch.start or (stored and dimensions != size):
        raise Conflict(
            "These vectors do not follow the stored ones. Continue after the last stored vector, "
            "or drop the vectors first."
        )
    # Read the records again, since a document that was deleted meanwhile must not keep a vector.
    records = _records(tx, partition, batch.start, len(batch.documents))
    rows = np.zeros((len(records), size), dtype=VECTOR)
    for index, record in enumerate(records):
        vector = vectors.get(_part_at(record))
        if record["alive"] and vector is not None:
            rows[index] = vector
    key = {"partition": partition.seq, "embedding": batch.embedding, "dimensions": size}
    chunks = reader.chunks_of(rows, batch.start, reader.VECTOR_CHUNK)
    tx.run(_APPEND, [{**key, **chunk} for chunk in chunks])
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


def documents_of(
    tx: Transaction,
    batch: EmbeddingBatch,
    *,
    in_parts: bool = True,
    may_embed: Callable[[str | None], bool] = lambda _label: True,
) -> list[tuple[str, VectorRecord]]:
    """Return each existing text of a batch, with a record that has no vector yet.

    The text of a message begins with its speaker's name.

    Args:
        tx: The transaction.
        batch: The documents and their parts; deleted ones are left out.
        in_parts: Return each part of a long text. If False, the whole text is returned once, under
            the number of its first part.
        may_embed: Returns whether a text with this egress label may be embedded. Refused texts are
            left out.
    """
    documents: list[tuple[str, VectorRecord]] = []
    kind = kind_of(batch.owner_id)
    parts: dict[int, list[int]] = {}
    for number, part in filter(None, batch.documents):
        parts.setdefault(number, []).append(part)
    for row in tx.all(_DOCUMENTS[kind], {"ids": list(parts)}):
        if not may_embed(row.egress):
            continue
        record = VectorRecord(row.seq, (), row.created_at, user_id=row.user_id or "")
        speaker = ""
        if kind == "passages":
            record = replace(record, tags=tuple(row.tags))
        else:
            speaker = f"{row.name}: " if row.name else ""
            record = replace(record, role=row.role, conversation=row.conversation_id)
        texts = parts_of(row.text)
        for part in parts[row.seq]:
            if part == UNCUT or (part == 1 and not in_parts):
                documents.append((speaker + row.text, replace(record, part=part)))
            elif in_parts and part <= len(texts):
                documents.append((speaker + texts[part - 1], replace(record, part=part)))
    return documents


def drop_vectors(tx: Transaction, owner_id: str, model: str) -> None:
    """Delete the vectors of one model.

    If searches use these vectors, they use words alone until new vectors exist.

    Args:
        tx: The transaction.
        owner_id: The partition's name: its owner's id, perhaps with the suffix `NEW`.
        model: The handle of the model, perhaps with the suffix `NEW`.
    """
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return
    tx.run(_DELETE, {"partition": partition.seq, "embedding": model})
    if partition.embedding == model:
        _serve(tx, partition, None, 0)


def _serve(
    tx: Transaction, partition: Any, embedding: str | None, count: int, *, is_other: bool = False
) -> None:
    """Make these vectors the ones that searches use.

    If the vectors replace others, a new generation makes all caches of the partition invalid.
    """
    is_other = is_other or (embedding != partition.embedding and partition.embedding is not None)
    tx.run(
        _SERVE,
        {
            "partition": partition.seq,
            "new_embedding": embedding,
            "new_vectors": count,
            "new_generation": partition.generation + is_other,
        },
    )


def _records(tx: Transaction, partition: Any, start: int, limit: int) -> reader.Documents:
    end = min(start + limit, partition.documents)
    first = start // reader.DOCUMENT_CHUNK
    last = (end - 1) // reader.DOCUMENT_CHUNK
    rows = tx.all(_SOME_DOCUMENTS, {"partition": partition.seq, "first": first, "last": last})
    records = reader.read_documents(b"".join(row.data for row in rows))
    offset = start - first * reader.DOCUMENT_CHUNK
    return records[offset : offset + limit]


def _stored(tx: Transaction, partition: int, embedding: str) -> tuple[int, int]:
    """Return the number of the model's vectors, and their dimensions."""
    row = tx.first(_LAST_STORED, {"partition": partition, "embedding": embedding})
    if row is None:
        return 0, 0
    in_last_chunk = row.size // (VECTOR.itemsize * row.dimensions)
    return row.chunk * reader.VECTOR_CHUNK + in_last_chunk, row.dimensions
