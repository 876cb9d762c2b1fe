"""The adapters to Turbopuffer, Pinecone and Qdrant, each through the service's official client."""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, TypeVar

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import Condition, ServiceIndex, ServiceTimeouts
from ricordo.search.vector_index import VectorRecord

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
# A server that filters by a field without an index reads every point, and a strict one refuses.
_INDEXED = {
    **dict.fromkeys(("role", "conversation", "user_id", "tags"), "keyword"),
    "created_at": "integer",
}


class TurbopufferIndex(ServiceIndex):
    """Vectors at Turbopuffer, through its official client: a namespace for each partition and model, made by its first write.

    `TURBOPUFFER_API_KEY` and `TURBOPUFFER_REGION` (or `TURBOPUFFER_BASE_URL`) configure it; archives choose it as `tpuf`. The
    client's telemetry stays off.
    """

    name = "tpuf"
    OPERATORS = {"in": "In", "any": "ContainsAny", "eq": "Eq", "gte": "Gte", "lte": "Lte"}  # noqa: RUF012 - constant
    TITLE, KEY_VARIABLE = "Turbopuffer", "TURBOPUFFER_API_KEY"
    ADDRESS_VARIABLE = "TURBOPUFFER_REGION (or TURBOPUFFER_BASE_URL)"
    RETRIES = 3
    # The service takes far more, but a body beyond a megabyte holds up the event loop, of which the client's HTTP library warns.
    MOST_ITEMS, MOST_BYTES = 5_000, 1024 * 1024 - 16 * 1024

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
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> list[tuple[Any, Any]]:
        question: dict[str, Any] = {"rank_by": ("vector", "ANN", vector), "limit": limit}
        if found := [(name, self.OPERATORS[operator], value) for name, operator, value in wanted]:
            question["filters"] = ("And", found)
        answer = await client.namespace(namespace).query(**question, include_attributes=False)
        return [(row["id"], 1.0 - float(row["$dist"])) for row in answer.rows]

    def _require_done(self, answer: Any) -> None:
        # A change counts only where the service says so: a proxy may answer 200 to anything.
        if getattr(answer, "status", None) != "OK":
            raise self.unexpected_answer()

    def _is_absent(self, error: Exception) -> bool:
        return getattr(error, "status_code", None) == 404 and _body(error).get("status") == "error"

    def _translated(self, error: Exception) -> Unavailable | None:
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
    return {str(name): str(value) for name, value in body.items()} if isinstance(body, dict) else {}


class PineconeIndex(ServiceIndex):
    """Vectors in one Pinecone index that its owner made, and in it a namespace for each partition and model.

    `PINECONE_API_KEY` and `PINECONE_INDEX_HOST` configure it; archives choose it as `pinecone`. The index must rank by cosine or
    dot product and have the dimension of the embedding model. What was written may take Pinecone some seconds to find. The
    official client tries again by itself after 429 and 5xx.
    """

    name = "pinecone"
    OPERATORS = {"in": "$in", "any": "$in", "eq": "$eq", "gte": "$gte", "lte": "$lte"}  # noqa: RUF012
    TITLE, KEY_VARIABLE, ADDRESS_VARIABLE = "Pinecone", "PINECONE_API_KEY", "PINECONE_INDEX_HOST"
    # Pinecone takes a thousand vectors or two megabytes a request; some room is left for what surrounds them.
    MOST_ITEMS, MOST_BYTES = 1_000, 2 * 1024 * 1024 - 64 * 1024

    async def _open(self) -> Any:
        # Its package imports its parts when they are asked for, so the part is asked for here, in the thread.
        pinecone_index = await asyncio.to_thread(
            lambda: shared.library("pinecone", "Pinecone").AsyncIndex
        )
        async with self._request(self._timeouts.search):
            index = pinecone_index(
                host=self._address, api_key=self._key, timeout=self._timeouts.write + 1
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
            raise self.unexpected_answer()
        if metric not in (None, *_METRICS):
            raise Unavailable(
                f'The Pinecone index at PINECONE_INDEX_HOST ranks by "{metric}". Make one that ranks by cosine, '
                "with the dimension of your embedding model, and set its host."
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
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> list[tuple[Any, Any]]:
        found = [{name: {self.OPERATORS[operator]: value}} for name, operator, value in wanted]
        filters = {"$and": found} if found else None
        answer = await client.query(vector=vector, top_k=limit, namespace=namespace, filter=filters)
        return [(match.id, match.score) for match in answer.matches]

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


class QdrantIndex(ServiceIndex):
    """Vectors in Qdrant: a collection for each partition and model, at `location`, an address or a folder or `:memory:`.

    `QDRANT_URL` (with `QDRANT_API_KEY`) names a server, `QDRANT_PATH` a folder for the client's local mode, which needs no server
    and is meant for some ten thousand vectors; archives choose it as `qdrant`.
    """

    name = "qdrant"
    TITLE, KEY_VARIABLE = "Qdrant", "QDRANT_API_KEY"
    MOST_ITEMS, MOST_BYTES = 1_000, 8 * 1024 * 1024  # a server takes 32 MB by default

    def __init__(
        self,
        location: str,
        api_key: str | None = None,
        *,
        prefix: str = shared.DEFAULT_PREFIX,
        timeouts: ServiceTimeouts | None = None,
    ) -> None:
        self._is_local = not location.startswith(("http://", "https://"))
        self.ADDRESS_VARIABLE = "QDRANT_PATH" if self._is_local else "QDRANT_URL"
        super().__init__(api_key or "", location, prefix=prefix, timeouts=timeouts)
        self._prepared: set[str] = set()
        # The local mode blocks while it works, and its files belong to the thread that opened them.
        self._thread = ThreadPoolExecutor(1, "qdrant") if self._is_local else None

    async def close(self) -> None:
        """Close the client, and its folder where it has one."""
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
        """Keep these; the first vector decides the collection's dimension."""
        models = shared.library("qdrant_client.models", "Qdrant")
        structs = [models.PointStruct(**item) for item in items]
        for _ in range(2):
            await self._prepare(client, namespace, len(items[0]["vector"]))
            if await _where_it_is(client, namespace, client.upsert(namespace, structs)):
                return
            self._prepared.discard(namespace)  # another process dropped it after we had prepared it
        raise self.failed(f"collection {namespace} was dropped while it was written")

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        await _where_it_is(client, namespace, client.delete(namespace, documents))

    async def _drop(self, client: Any, namespace: str) -> None:
        self._prepared.discard(namespace)
        await client.delete_collection(namespace)

    async def _query(
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> list[tuple[Any, Any]]:
        asking = client.query_points(
            namespace, query=vector, query_filter=_filter(wanted), limit=limit, with_payload=False
        )
        answer = await _where_it_is(client, namespace, asking)
        return [(point.id, point.score) for point in answer.points] if answer is not None else []

    async def _prepare(self, client: Any, collection: str, dimension: int) -> None:
        """Make the collection and its indexes, once a process; to make them again, or at the same time, is fine."""
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
        for field, kind in {} if self._is_local else _INDEXED.items():
            await client.create_payload_index(collection, field, models.PayloadSchemaType(kind))
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        self._prepared.add(collection)

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it here, or for the local mode in its thread with a loop of its own."""
        if not self._thread:
            return await work()

        async def whole() -> T:
            return await work()

        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: asyncio.run(whole())
        )

    async def _open(self) -> Any:
        qdrant_client = await asyncio.to_thread(shared.library, "qdrant_client", "Qdrant")
        place = self._address
        options: dict[str, Any] = (
            {"path": place}
            if self._is_local
            else {"url": place, "timeout": ceil(self._timeouts.write) + 1}
        )
        if place == ":memory:":
            options = {"location": place}
        if self._key and not self._is_local:
            options["api_key"] = self._key

        async def opened() -> Any:
            # The check of versions would call the server from a thread of its own, unasked.
            return qdrant_client.AsyncQdrantClient(**options, check_compatibility=False)

        async with self._request(self._timeouts.write):
            return await self._run(opened)

    def _translated(self, error: Exception) -> Unavailable | None:
        exceptions = shared.library("qdrant_client.http.exceptions", "Qdrant")
        exhausted = shared.library(
            "qdrant_client.common.client_exceptions", "Qdrant"
        ).ResourceExhaustedResponse
        match error:
            case exceptions.UnexpectedResponse():
                return self.refused(error.status_code or 0, _said(error))
            case exhausted():
                return self.refused(429)
            case exceptions.ResponseHandlingException():
                # The client wraps what it could not send and what it could not read in one class.
                is_answered = isinstance(error.source, ValueError)
                return self.unexpected_answer() if is_answered else self.unreachable()
        # The local mode is an engine in this process: files, locks, arrays and SQLite fail in their own ways.
        return self.failed(f"{type(error).__name__}: {error}") if self._is_local else None


async def _where_it_is(client: Any, collection: str, asking: Awaitable[T]) -> T | None:
    """The answer, or None where there is no such collection, which the client tells in a different way in each mode."""
    try:
        return await asking
    except Exception:
        if await client.collection_exists(collection):
            raise
        return None


def _said(error: Any) -> str:
    """The server's own sentence in an error's body, where it is one of Qdrant's."""
    try:
        said = error.structured()["status"]["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(said)


def _filter(wanted: list[Condition]) -> Any:
    models = shared.library("qdrant_client.models", "Qdrant")
    must = []
    for name, operator, value in wanted:
        if operator == "eq":
            must.append(models.FieldCondition(key=name, match=models.MatchValue(value=value)))
        elif operator in ("in", "any"):
            must.append(models.FieldCondition(key=name, match=models.MatchAny(any=value)))
        else:
            must.append(models.FieldCondition(key=name, range=models.Range(**{operator: value})))
    return models.Filter(must=must) if must else None
