"""Qdrant as a vector index: a collection for each partition and model, on a server or in a folder of this machine.

`QDRANT_URL` (with `QDRANT_API_KEY`) names a server, `QDRANT_PATH` a folder for the client's local mode, which needs no server and
is meant for some ten thousand vectors; archives choose it as `qdrant`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, TypeVar

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import Condition, ServiceIndex, ServiceTimeouts
from ricordo.search.vector_index import VectorRecord

T = TypeVar("T")
_MOST_PREPARED = 10_000
# A server that filters by a field without an index reads every point, and a strict one refuses.
_INDEXED = {**dict.fromkeys(("role", "conversation", "user_id", "tags"), "keyword"), "created_at": "integer"}


class QdrantIndex(ServiceIndex):
    """Vectors in Qdrant at `location`, an address or a folder or `:memory:`, through the official client."""

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
        return {"id": record.document, "vector": shared.floats(record.vector), "payload": record.fields()}

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
    ) -> Any:
        asking = client.query_points(
            namespace, query=vector, query_filter=_filter(wanted), limit=limit, with_payload=False
        )
        return await _where_it_is(client, namespace, asking)

    def _pairs(self, answer: Any) -> Iterable[tuple[Any, Any]]:
        return ((point.id, point.score) for point in answer.points)

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

        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: asyncio.run(whole()))

    async def _open(self) -> Any:
        qdrant_client = await asyncio.to_thread(shared.library, "qdrant_client", "Qdrant")
        place = self._address
        options: dict[str, Any] = (
            {"path": place} if self._is_local else {"url": place, "timeout": ceil(self._timeouts.write) + 1}
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
        exhausted = shared.library("qdrant_client.common.client_exceptions", "Qdrant").ResourceExhaustedResponse
        match error:
            case exceptions.UnexpectedResponse():
                return self.refused(error.status_code or 0, _said(error))
            case exhausted():
                return self.refused(429)
            case exceptions.ResponseHandlingException():
                # The client wraps what it could not send and what it could not read in one class.
                is_answered = isinstance(error.source, ValueError)
                return self.unexpected_answer() if is_answered else self.unreachable()
            case ValueError() | AssertionError() | AttributeError() if not self._is_local:
                return self.unexpected_answer()  # no JSON, or without what the client counts on
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
