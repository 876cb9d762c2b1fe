"""Pinecone as a vector index: one index that its owner made, and in it a namespace for each space and model.

`PINECONE_API_KEY` and `PINECONE_INDEX_HOST` configure it; archives choose it as `pinecone`. The index must rank by cosine or dot
product and have the dimension of the embedding model. What was written may take Pinecone some seconds to find.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ricordo.errors import Unavailable
from ricordo.integrations.vector_service import (
    DEFAULT_PREFIX,
    MOST_RESULTS,
    OpenedOnce,
    Patience,
    Service,
    by_size,
    floats,
    latest,
    library,
    namespace_of,
    ranked,
    slices,
)
from ricordo.search.vector_index import VectorFilter, VectorRecord

# Pinecone takes a thousand vectors or two megabytes a request; some room is left for what surrounds them.
_MOST_VECTORS, _MOST_BYTES = 1_000, 2 * 1024 * 1024 - 64 * 1024
_METRICS = ("cosine", "dotproduct")


class PineconeIndex:
    """Vectors in a Pinecone index, through the official client, which tries again by itself after 429 and 5xx."""

    name = "pinecone"

    def __init__(
        self, api_key: str, host: str, *, prefix: str = DEFAULT_PREFIX, patience: Patience | None = None
    ) -> None:
        self._service = Service("Pinecone", host, "PINECONE_API_KEY", "PINECONE_INDEX_HOST", api_key)
        self._prefix = prefix
        self._patience = patience or Patience()
        self._index: OpenedOnce[Any] = OpenedOnce("Pinecone", self._open, lambda index: index.close())

    async def upsert(self, space: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these, in as many requests as Pinecone's limits need."""
        namespace = namespace_of(self._prefix, space, model)
        for vectors in by_size(map(_vector, latest(records)), _MOST_VECTORS, _MOST_BYTES):
            index = await self._index.get()
            async with self._service.asked(self._patience.write, self._in_our_words):
                await index.upsert(vectors=vectors, namespace=namespace)

    async def remove(self, space: str, model: str, documents: Sequence[int]) -> None:
        """Forget these documents."""
        for ids in slices([str(document) for document in documents], _MOST_VECTORS):
            await self._forget(space, model, ids)

    async def drop(self, space: str, model: str) -> None:
        """Forget the whole namespace."""
        await self._forget(space, model, None)

    async def search(
        self, space: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents, 10,000 at most."""
        if limit < 1:
            return []
        index = await self._index.get()
        async with self._service.asked(self._patience.search, self._in_our_words):
            answer = await index.query(
                vector=floats(vector),
                top_k=min(limit, MOST_RESULTS),
                namespace=namespace_of(self._prefix, space, model),
                filter=_filter(wanted),
            )
        try:
            return ranked((int(match.id), float(match.score)) for match in answer.matches)
        except ValueError:
            raise self._service.unlike_itself() from None

    async def close(self) -> None:
        """Let go of connections."""
        await self._index.close()

    async def _forget(self, space: str, model: str, ids: list[str] | None) -> None:
        namespace = namespace_of(self._prefix, space, model)
        index = await self._index.get()
        async with self._service.asked(self._patience.write, self._in_our_words):
            try:
                if ids is None:
                    await index.delete_namespace(name=namespace)
                else:
                    await index.delete(ids=ids, namespace=namespace)
            except Exception as error:
                if not _is_unknown_namespace(error):
                    raise

    async def _open(self) -> Any:
        pinecone_index = await asyncio.to_thread(_index_class)
        async with self._service.asked(self._patience.search, self._in_our_words):
            index = pinecone_index(
                host=self._service.place, api_key=self._service.key, timeout=self._patience.write + 1
            )
            try:
                stats = await index.describe_index_stats()
                self._require_likeness(stats.metric, stats.dimension)
            except BaseException:
                await index.close()
                raise
        return index

    def _require_likeness(self, metric: str | None, dimension: int | None) -> None:
        """An index that ranks by distance would return the worst first, and one without a dimension is none for vectors."""
        if dimension is None:
            raise self._service.unlike_itself()
        if metric not in (None, *_METRICS):
            raise Unavailable(
                f'The Pinecone index at PINECONE_INDEX_HOST ranks by "{metric}". Make one that ranks by cosine, '
                "with the dimension of your embedding model, and set its host."
            )

    def _in_our_words(self, error: Exception) -> Unavailable | None:
        errors = library("pinecone.errors", "Pinecone", "pinecone")
        match error:
            case errors.ApiError():
                return self._service.refused(error.status_code, error.message)
            case errors.PineconeConnectionError():
                return self._service.unreachable()
            case errors.ResponseParsingError():
                return self._service.unlike_itself()
            case errors.PineconeError():
                return self._service.failed(str(error))
        return None


def _index_class() -> Any:
    # Its package imports its parts when they are asked for, so the part is asked for here, in the thread.
    return library("pinecone", "Pinecone", "pinecone").AsyncIndex


def _vector(record: VectorRecord) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "created_at": record.created_at,
        "role": record.role,
        "thread": record.thread,
        "user_id": record.user_id,
    }
    if record.tags:
        metadata["tags"] = list(record.tags)
    return {"id": str(record.document), "values": floats(record.vector), "metadata": metadata}


def _filter(wanted: VectorFilter) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = []
    if wanted.roles:
        conditions.append({"role": {"$in": list(wanted.roles)}})
    if wanted.thread is not None:
        conditions.append({"thread": {"$eq": wanted.thread}})
    if wanted.user_id is not None:
        conditions.append({"user_id": {"$eq": wanted.user_id}})
    if wanted.all_tags:
        conditions += [{"tags": {"$in": [tag]}} for tag in wanted.tags]
    elif wanted.tags:
        conditions.append({"tags": {"$in": list(wanted.tags)}})
    if wanted.start is not None:
        conditions.append({"created_at": {"$gte": wanted.start}})
    if wanted.end is not None:
        conditions.append({"created_at": {"$lte": wanted.end}})
    return {"$and": conditions} if conditions else None


def _is_unknown_namespace(error: Exception) -> bool:
    """Whether this is Pinecone's own 404 about a namespace, and not that of some other server at a wrong address."""
    return getattr(error, "status_code", None) == 404 and "namespace" in str(getattr(error, "message", "")).lower()
