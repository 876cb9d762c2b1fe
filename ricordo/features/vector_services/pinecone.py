"""Pinecone as a vector index: one index that its owner made, and in it a namespace for each partition and model.

`PINECONE_API_KEY` and `PINECONE_INDEX_HOST` configure it; archives choose it as `pinecone`. The index must rank by cosine or dot
product and have the dimension of the embedding model. What was written may take Pinecone some seconds to find.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import Condition, ServiceIndex
from ricordo.search.vector_index import VectorRecord

_OPERATORS = {"in": "$in", "any": "$in", "eq": "$eq", "gte": "$gte", "lte": "$lte"}
_METRICS = ("cosine", "dotproduct")


class PineconeIndex(ServiceIndex):
    """Vectors in a Pinecone index, through the official client, which tries again by itself after 429 and 5xx."""

    name = "pinecone"
    TITLE, KEY_VARIABLE, ADDRESS_VARIABLE = "Pinecone", "PINECONE_API_KEY", "PINECONE_INDEX_HOST"
    # Pinecone takes a thousand vectors or two megabytes a request; some room is left for what surrounds them.
    MOST_ITEMS, MOST_BYTES = 1_000, 2 * 1024 * 1024 - 64 * 1024

    async def _open(self) -> Any:
        pinecone_index = await asyncio.to_thread(_index_class)
        async with self._request(self._timeouts.search):
            index = pinecone_index(host=self._address, api_key=self._key, timeout=self._timeouts.write + 1)
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
            raise self.unexpected_answer()
        if metric not in (None, *_METRICS):
            raise Unavailable(
                f'The Pinecone index at PINECONE_INDEX_HOST ranks by "{metric}". Make one that ranks by cosine, '
                "with the dimension of your embedding model, and set its host."
            )

    def _item(self, record: VectorRecord) -> dict[str, Any]:
        metadata = {name: value for name, value in record.fields().items() if name != "tags" or value}
        return {"id": str(record.document), "values": shared.floats(record.vector), "metadata": metadata}

    async def _write(self, client: Any, namespace: str, items: list[dict[str, Any]]) -> None:
        await client.upsert(vectors=items, namespace=namespace)

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        await client.delete(ids=[str(document) for document in documents], namespace=namespace)

    async def _drop(self, client: Any, namespace: str) -> None:
        await client.delete_namespace(name=namespace)

    async def _query(
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> Any:
        found = [{name: {_OPERATORS[operator]: value}} for name, operator, value in wanted]
        filters = {"$and": found} if found else None
        return await client.query(vector=vector, top_k=limit, namespace=namespace, filter=filters)

    def _pairs(self, answer: Any) -> Iterable[tuple[Any, Any]]:
        return ((match.id, match.score) for match in answer.matches)

    def _is_absent(self, error: Exception) -> bool:
        said = str(getattr(error, "message", ""))
        return getattr(error, "status_code", None) == 404 and "namespace" in said.lower()

    def _translated(self, error: Exception) -> Unavailable | None:
        errors = shared.library("pinecone.errors", "Pinecone")
        match error:
            case errors.ApiError():
                return self.refused(error.status_code, error.message)
            case errors.PineconeConnectionError():
                return self.unreachable()
            case errors.ResponseParsingError():
                return self.unexpected_answer()
            case errors.PineconeError():
                return self.failed(str(error))
        return None


def _index_class() -> Any:
    # Its package imports its parts when they are asked for, so the part is asked for here, in the thread.
    return shared.library("pinecone", "Pinecone").AsyncIndex
