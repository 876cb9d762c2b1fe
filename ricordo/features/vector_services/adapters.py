"""Adapters to Turbopuffer, Pinecone and Qdrant over their official clients."""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, TypeVar

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.options import VectorSettings
from ricordo.features.vector_services.service import Condition, ServiceIndex, ServiceTimeouts
from ricordo.search.vector_index import VectorIndex, VectorRecord
from ricordo.settings import Settings

T = TypeVar("T")
_SCHEMA = {
    "created_at": "int",
    "role": "string",
    "conversation": "string",
    "user_id": "string",
    "tags": "[]string",
}
_METRICS = ("cosine", "dotproduct")
_MOST_PREPARED = 10_000
# Fields by which searches filter. Without an index of the field, a server reads every point or
# refuses the request.
_INDEXED = {
    **dict.fromkeys(("role", "conversation", "user_id", "tags"), "keyword"),
    "created_at": "integer",
}


class TurbopufferIndex(ServiceIndex):
    """Vectors at Turbopuffer.

    Each partition and model has a namespace, which its first write creates. `TURBOPUFFER_API_KEY`
    and `TURBOPUFFER_REGION` (or `TURBOPUFFER_BASE_URL`) configure the service; archives choose it
    as `tpuf`. The client's telemetry stays off.
    """

    name = "tpuf"
    OPERATORS = {  # noqa: RUF012 - a constant
        "in": "In",
        "any": "ContainsAny",
        "eq": "Eq",
        "gte": "Gte",
        "lte": "Lte",
    }
    TITLE = "Turbopuffer"
    KEY_VARIABLE = "TURBOPUFFER_API_KEY"
    ADDRESS_VARIABLE = "TURBOPUFFER_REGION (or TURBOPUFFER_BASE_URL)"
    RETRIES = 3
    # The service accepts far more. But a body above a megabyte blocks the event loop, as a warning
    # of the client's HTTP library says.
    MOST_ITEMS = 5_000
    MOST_BYTES = 1024 * 1024 - 16 * 1024

    async def _open(self) -> Any:
        turbopuffer = await asyncio.to_thread(shared.library, "turbopuffer", "Turbopuffer")
        async with self._request(self._timeouts.write):
            return turbopuffer.AsyncTurbopuffer(
                api_key=self._key,
                base_url=self._address,
                max_retries=self.RETRIES,
                timeout=self._timeouts.write + 1,
                telemetry=False,
            )

    def _item(self, record: VectorRecord) -> dict[str, Any]:
        packed = b64encode(struct.pack(f"<{len(record.vector)}f", *record.vector)).decode()
        return {"id": record.document, "vector": packed, **record.fields()}

    async def _write(self, client: Any, namespace: str, items: list[dict[str, Any]]) -> None:
        space = client.namespace(namespace)
        self._require_done(
            await space.write(upsert_rows=items, distance_metric="cosine_distance", schema=_SCHEMA)
        )

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        self._require_done(await client.namespace(namespace).write(deletes=documents))

    async def _drop(self, client: Any, namespace: str) -> None:
        self._require_done(await client.namespace(namespace).delete_all())

    async def _query(
        self,
        client: Any,
        namespace: str,
        vector: list[float],
        *,
        limit: int,
        conditions: list[Condition],
    ) -> list[tuple[Any, Any]]:
        query: dict[str, Any] = {"rank_by": ("vector", "ANN", vector), "limit": limit}
        filters = [(name, self.OPERATORS[operator], value) for name, operator, value in conditions]
        if filters:
            query["filters"] = ("And", filters)
        answer = await client.namespace(namespace).query(**query, include_attributes=False)
        return [(row["id"], 1.0 - float(row["$dist"])) for row in answer.rows]

    def _require_done(self, answer: Any) -> None:
        # The status must say that the change is done, since a proxy may answer 200 to anything.
        if getattr(answer, "status", None) != "OK":
            raise self.unexpected_answer()

    def _is_absent(self, error: Exception) -> bool:
        return getattr(error, "status_code", None) == 404 and _body(error).get("status") == "error"

    def _translate(self, error: Exception) -> Unavailable | None:
        turbopuffer = shared.library("turbopuffer", "Turbopuffer")
        match error:
            case turbopuffer.APIStatusError():
                return self.refused(error.status_code, _body(error).get("error", ""))
            case turbopuffer.APIConnectionError():
                return self.unreachable()
            case turbopuffer.APIResponseValidationError():
                return self.unexpected_answer()
            case turbopuffer.TurbopufferError():
                return self.failed(str(error))
        return None


def _body(error: Exception) -> dict[str, str]:
    body = getattr(error, "body", None)
    if not isinstance(body, dict):
        return {}
    return {str(name): str(value) for name, value in body.items()}


class PineconeIndex(ServiceIndex):
    """Vectors in one Pinecone index that its owner created.

    Each partition and model has a namespace in it. `PINECONE_API_KEY` and `PINECONE_INDEX_HOST`
    configure the service; archives choose it as `pinecone`. The index must rank by cosine or dot
    product and have the dimension of the embedding model. Pinecone may need some seconds to find
    new vectors. The official client retries after 429 and 5xx.
    """

    name = "pinecone"
    OPERATORS = {  # noqa: RUF012 - a constant
        "in": "$in",
        "any": "$in",
        "eq": "$eq",
        "gte": "$gte",
        "lte": "$lte",
    }
    TITLE = "Pinecone"
    KEY_VARIABLE = "PINECONE_API_KEY"
    ADDRESS_VARIABLE = "PINECONE_INDEX_HOST"
    # Pinecone accepts a thousand vectors or two megabytes in a request, including the rest of the
    # body.
    MOST_ITEMS = 1_000
    MOST_BYTES = 2 * 1024 * 1024 - 64 * 1024

    async def _open(self) -> Any:
        # The package imports a class when the class is first used, which blocks. So the first use
        # is in a thread.
        pinecone_index = await asyncio.to_thread(
            lambda: shared.library("pinecone", "Pinecone").AsyncIndex
        )
        async with self._request(self._timeouts.search):
            index = pinecone_index(
                host=self._address, api_key=self._key, timeout=self._timeouts.write + 1
            )
            try:
                stats = await index.describe_index_stats()
                self._require_similarity(stats.metric, stats.dimension)
            except BaseException:
                await index.close()
                raise
        return index

    def _require_similarity(self, metric: str | None, dimension: int | None) -> None:
        """Raise Unavailable if the index does not rank vectors by similarity.

        An index that ranks by distance would return the worst first, and an index without a
        dimension holds no vectors.
        """
        if dimension is None:
            raise self.unexpected_answer()
        if metric not in (None, *_METRICS):
            raise Unavailable(
                f'The Pinecone index at PINECONE_INDEX_HOST ranks by "{metric}". Make one that '
                "ranks by cosine, with the dimension of your embedding model, and set its host."
            )

    def _item(self, record: VectorRecord) -> dict[str, Any]:
        metadata = {
            name: value for name, value in record.fields().items() if name != "tags" or value
        }
        return {
            "id": str(record.document),
            "values": shared.floats(record.vector),
            "metadata": metadata,
        }

    async def _write(self, client: Any, namespace: str, items: list[dict[str, Any]]) -> None:
        await client.upsert(vectors=items, namespace=namespace)

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        await client.delete(ids=[str(document) for document in documents], namespace=namespace)

    async def _drop(self, client: Any, namespace: str) -> None:
        await client.delete_namespace(name=namespace)

    async def _query(
        self,
        client: Any,
        namespace: str,
        vector: list[float],
        *,
        limit: int,
        conditions: list[Condition],
    ) -> list[tuple[Any, Any]]:
        filters = [
            {name: {self.OPERATORS[operator]: value}} for name, operator, value in conditions
        ]
        answer = await client.query(
            vector=vector,
            top_k=limit,
            namespace=namespace,
            filter={"$and": filters} if filters else None,
        )
        return [(match.id, match.score) for match in answer.matches]

    def _is_absent(self, error: Exception) -> bool:
        message = str(getattr(error, "message", ""))
        return getattr(error, "status_code", None) == 404 and "namespace" in message.lower()

    def _translate(self, error: Exception) -> Unavailable | None:
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


class QdrantIndex(ServiceIndex):
    """Vectors in Qdrant, with a collection for each partition and model.

    `location` is an address, a folder, or `:memory:`. `QDRANT_URL` (with `QDRANT_API_KEY`) names a
    server. `QDRANT_PATH` names a folder for the client's local mode, which needs no server and is
    meant for some ten thousand vectors. Archives choose the service as `qdrant`.
    """

    name = "qdrant"
    TITLE = "Qdrant"
    KEY_VARIABLE = "QDRANT_API_KEY"
    MOST_ITEMS = 1_000
    MOST_BYTES = 8 * 1024 * 1024  # a server accepts 32 MB by default

    def __init__(
        self,
        location: str,
        api_key: str | None = None,
        *,
        prefix: str = shared.DEFAULT_PREFIX,
        timeouts: ServiceTimeouts | None = None,
    ) -> None:
        self._is_local = not location.startswith(("http://", "https://"))
        if self._is_local:
            self.ADDRESS_VARIABLE = "QDRANT_PATH"
        else:
            self.ADDRESS_VARIABLE = "QDRANT_URL"
        super().__init__(api_key or "", location, prefix=prefix, timeouts=timeouts)
        self._prepared: set[str] = set()
        # The local mode blocks while it works, and its files belong to the thread that opened them.
        self._thread = ThreadPoolExecutor(1, "qdrant") if self._is_local else None

    async def close(self) -> None:
        """Close the client, and its folder in local mode."""
        await super().close()
        if self._thread:
            self._thread.shutdown(wait=False)

    def _item(self, record: VectorRecord) -> dict[str, Any]:
        return {
            "id": record.document,
            "vector": shared.floats(record.vector),
            "payload": record.fields(),
        }

    async def _write(self, client: Any, namespace: str, items: list[dict[str, Any]]) -> None:
        """Store the points; the first vector decides the collection's dimension."""
        models = shared.library("qdrant_client.models", "Qdrant")
        structs = [models.PointStruct(**item) for item in items]
        for _ in range(2):
            await self._prepare(client, namespace, len(items[0]["vector"]))
            if await _if_present(client, namespace, client.upsert(namespace, structs)):
                return
            self._prepared.discard(namespace)  # another process dropped the collection meanwhile
        raise self.failed(f"collection {namespace} was dropped while it was written")

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        await _if_present(client, namespace, client.delete(namespace, documents))

    async def _drop(self, client: Any, namespace: str) -> None:
        self._prepared.discard(namespace)
        await client.delete_collection(namespace)

    async def _query(
        self,
        client: Any,
        namespace: str,
        vector: list[float],
        *,
        limit: int,
        conditions: list[Condition],
    ) -> list[tuple[Any, Any]]:
        query = client.query_points(
            namespace,
            query=vector,
            query_filter=_filter(conditions),
            limit=limit,
            with_payload=False,
        )
        answer = await _if_present(client, namespace, query)
        if answer is None:
            return []
        return [(point.id, point.score) for point in answer.points]

    async def _prepare(self, client: Any, collection: str, dimension: int) -> None:
        """Create the collection and its indexes, once in a process.

        A repeated call does no harm, nor does one by another process at the same time.
        """
        if collection in self._prepared:
            return
        models = shared.library("qdrant_client.models", "Qdrant")
        if not await client.collection_exists(collection):
            config = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
            try:
                await client.create_collection(collection, vectors_config=config)
            except Exception:
                if not await client.collection_exists(collection):
                    raise
        indexed = {} if self._is_local else _INDEXED
        for field, kind in indexed.items():
            await client.create_payload_index(collection, field, models.PayloadSchemaType(kind))
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        self._prepared.add(collection)

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work in this event loop, or in local mode in the client's thread.

        The thread runs a new event loop for each call.
        """
        if not self._thread:
            return await work()

        async def run() -> T:
            return await work()

        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: asyncio.run(run())
        )

    async def _open(self) -> Any:
        qdrant_client = await asyncio.to_thread(shared.library, "qdrant_client", "Qdrant")
        location = self._address
        options: dict[str, Any]
        if location == ":memory:":
            options = {"location": location}
        elif self._is_local:
            options = {"path": location}
        else:
            options = {"url": location, "timeout": ceil(self._timeouts.write) + 1}
            if self._key:
                options["api_key"] = self._key

        async def open_client() -> Any:
            # The client's check of versions would call the server from another thread.
            return qdrant_client.AsyncQdrantClient(**options, check_compatibility=False)

        async with self._request(self._timeouts.write):
            return await self._run(open_client)

    def _translate(self, error: Exception) -> Unavailable | None:
        exceptions = shared.library("qdrant_client.http.exceptions", "Qdrant")
        exhausted = shared.library(
            "qdrant_client.common.client_exceptions", "Qdrant"
        ).ResourceExhaustedResponse
        match error:
            case exceptions.UnexpectedResponse():
                return self.refused(error.status_code or 0, _message_of(error))
            case exhausted():
                return self.refused(429)
            case exceptions.ResponseHandlingException():
                # The client has one class for failed requests and unreadable responses.
                is_answered = isinstance(error.source, ValueError)
                if is_answered:
                    return self.unexpected_answer()
                return self.unreachable()
        # The local mode is an engine in this process. Its files, locks and arrays fail with many
        # kinds of errors.
        if self._is_local:
            return self.failed(f"{type(error).__name__}: {error}")
        return None


async def _if_present(client: Any, collection: str, query: Awaitable[T]) -> T | None:
    """Return the answer to a query; None if the collection is missing.

    The client reports a missing collection differently in each mode.
    """
    try:
        return await query
    except Exception:
        if await client.collection_exists(collection):
            raise
        return None


def _message_of(error: Any) -> str:
    """Return the server's message from an error's body, or ""."""
    try:
        message = error.structured()["status"]["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(message)


def _filter(conditions: list[Condition]) -> Any:
    models = shared.library("qdrant_client.models", "Qdrant")
    must = []
    for name, operator, value in conditions:
        if operator == "eq":
            must.append(models.FieldCondition(key=name, match=models.MatchValue(value=value)))
        elif operator in ("in", "any"):
            must.append(models.FieldCondition(key=name, match=models.MatchAny(any=value)))
        else:
            must.append(models.FieldCondition(key=name, range=models.Range(**{operator: value})))
    if must:
        return models.Filter(must=must)
    return None


def configured_indexes(_settings: Settings) -> list[VectorIndex]:
    """Return an index for each configured service.

    A service is called only if archives use it, or if the setting `message_vectors` names it.
    """
    settings = VectorSettings.current()
    indexes: list[VectorIndex] = []
    prefix = settings.namespace_prefix
    key = settings.turbopuffer_api_key
    if key and (settings.turbopuffer_region or settings.turbopuffer_base_url):
        address = (
            settings.turbopuffer_base_url
            or f"https://{settings.turbopuffer_region}.turbopuffer.com"
        )
        indexes.append(TurbopufferIndex(key.get_secret_value(), address, prefix=prefix))
    key = settings.pinecone_api_key
    host = settings.pinecone_index_host
    if key and host:
        indexes.append(PineconeIndex(key.get_secret_value(), host, prefix=prefix))
    location = settings.qdrant_url
    if not location and settings.qdrant_path:
        location = str(settings.qdrant_path)
    if location:
        key = settings.qdrant_api_key
        indexes.append(
            QdrantIndex(location, key.get_secret_value() if key else None, prefix=prefix)
        )
    return indexes
