"""Pinecone as a vector index: one index that its owner made, and in it a namespace for each partition and model.

`PINECONE_API_KEY` and `PINECONE_INDEX_HOST` configure it; archives choose it as `pinecone`. The index must rank by cosine or dot
product and have the dimension of the embedding model. What was written may take Pinecone some seconds to find.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import ServiceIndex, ServiceTimeouts, VectorService
from ricordo.search.vector_index import VectorFilter, VectorRecord

# Pinecone takes a thousand vectors or two megabytes a request; some room is left for what surrounds them.
_MOST_VECTORS, _MOST_BYTES = 1_000, 2 * 1024 * 1024 - 64 * 1024
_OPERATORS = {"in": "$in", "any": "$in", "eq": "$eq", "gte": "$gte", "lte": "$lte"}
_METRICS = ("cosine", "dotproduct")


class PineconeIndex(ServiceIndex):
    """Vectors in a Pinecone index, through the official client, which tries again by itself after 429 and 5xx."""

    name = "pinecone"

    def __init__(
        self, api_key: str, host: str, *, prefix: str = shared.DEFAULT_PREFIX, timeouts: ServiceTimeouts | None = None
    ) -> None:
        service = VectorService("Pinecone", host, "PINECONE_API_KEY", "PINECONE_INDEX_HOST", api_key)
        super().__init__(service, prefix, timeouts)

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these, in as many requests as Pinecone's limits need."""
        namespace = self._namespace_of(partition, model)
        for vectors in shared.by_size(map(_vector, shared.latest(records)), _MOST_VECTORS, _MOST_BYTES):
            index = await self._opened()
            async with self._request(self._timeouts.write):
                await index.upsert(vectors=vectors, namespace=namespace)

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        for ids in shared.slices([str(document) for document in documents], _MOST_VECTORS):
            await self._delete(partition, model, ids)

    async def drop(self, partition: str, model: str) -> None:
        await self._delete(partition, model, None)

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents, 10,000 at most."""
        if limit < 1:
            return []
        index = await self._opened()
        async with self._request(self._timeouts.search):
            answer = await index.query(
                vector=shared.floats(vector),
                top_k=min(limit, shared.MOST_RESULTS),
                namespace=self._namespace_of(partition, model),
                filter=_filter(wanted),
            )
        try:
            return shared.ranked((int(match.id), float(match.score)) for match in answer.matches)
        except ValueError:
            raise self._service.unexpected_answer() from None

    async def _delete(self, partition: str, model: str, ids: list[str] | None) -> None:
        namespace = self._namespace_of(partition, model)
        index = await self._opened()
        async with self._request(self._timeouts.write):
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
        async with self._request(self._timeouts.search):
            index = pinecone_index(
                host=self._service.address, api_key=self._service.key, timeout=self._timeouts.write + 1
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
            raise self._service.unexpected_answer()
        if metric not in (None, *_METRICS):
            raise Unavailable(
                f'The Pinecone index at PINECONE_INDEX_HOST ranks by "{metric}". Make one that ranks by cosine, '
                "with the dimension of your embedding model, and set its host."
            )

    def _translated(self, error: Exception) -> Unavailable | None:
        errors = shared.library("pinecone.errors", "Pinecone")
        match error:
            case errors.ApiError():
                return self._service.refused(error.status_code, error.message)
            case errors.PineconeConnectionError():
                return self._service.unreachable()
            case errors.ResponseParsingError():
                return self._service.unexpected_answer()
            case errors.PineconeError():
                return self._service.failed(str(error))
        return None


def _index_class() -> Any:
    # Its package imports its parts when they are asked for, so the part is asked for here, in the conversation.
    return shared.library("pinecone", "Pinecone").AsyncIndex


def _vector(record: VectorRecord) -> dict[str, Any]:
    metadata = record.fields()
    if not record.tags:
        del metadata["tags"]
    return {"id": str(record.document), "values": shared.floats(record.vector), "metadata": metadata}


def _filter(wanted: VectorFilter) -> dict[str, Any] | None:
    found = [{name: {_OPERATORS[operator]: value}} for name, operator, value in shared.conditions(wanted)]
    return {"$and": found} if found else None


def _is_unknown_namespace(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 404 and "namespace" in str(getattr(error, "message", "")).lower()
