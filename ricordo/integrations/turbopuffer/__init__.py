"""Turbopuffer as a vector index: a namespace for each space and model, made by its first write.

`TURBOPUFFER_API_KEY` and `TURBOPUFFER_REGION` (or `TURBOPUFFER_BASE_URL`) configure it; archives choose it as `tpuf`.
"""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
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

_PLACE = "TURBOPUFFER_REGION (or TURBOPUFFER_BASE_URL)"
# The service takes far more, but a body beyond a megabyte holds up the event loop, of which the client's HTTP library warns.
_MOST_ROWS, _MOST_BYTES = 5_000, 1024 * 1024 - 16 * 1024
_SCHEMA = {"created_at": "int", "role": "string", "thread": "string", "user_id": "string", "tags": "[]string"}


class TurbopufferIndex:
    """Vectors at Turbopuffer, through its official client; the client's telemetry stays off."""

    name = "tpuf"

    def __init__(
        self,
        api_key: str,
        base_url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        patience: Patience | None = None,
        retries: int = 3,
    ) -> None:
        self._service = Service("Turbopuffer", base_url, "TURBOPUFFER_API_KEY", _PLACE, api_key)
        self._prefix = prefix
        self._patience = patience or Patience()
        self._retries = retries
        self._client: OpenedOnce[Any] = OpenedOnce("Turbopuffer", self._open, lambda client: client.close())

    @staticmethod
    def address(region: str) -> str:
        """Where the service is for a region, as aws-us-east-1."""
        return f"https://{region}.turbopuffer.com"

    async def upsert(self, space: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these, in as many requests as their size needs."""
        for rows in by_size(map(_row, latest(records)), _MOST_ROWS, _MOST_BYTES):
            namespace = await self._namespace(space, model)
            writing = partial(namespace.write, distance_metric="cosine_distance", schema=_SCHEMA)
            await self._change(partial(writing, upsert_rows=rows), may_be_absent=False)

    async def remove(self, space: str, model: str, documents: Sequence[int]) -> None:
        """Forget these documents."""
        for ids in slices(documents, _MOST_ROWS):
            namespace = await self._namespace(space, model)
            await self._change(partial(namespace.write, deletes=ids), may_be_absent=True)

    async def drop(self, space: str, model: str) -> None:
        """Forget the whole namespace."""
        namespace = await self._namespace(space, model)
        await self._change(namespace.delete_all, may_be_absent=True)

    async def search(
        self, space: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents, 10,000 at most; Turbopuffer searches what was written a moment ago too."""
        if limit < 1:
            return []
        namespace = await self._namespace(space, model)
        question: dict[str, Any] = {"rank_by": ("vector", "ANN", floats(vector)), "limit": min(limit, MOST_RESULTS)}
        if conditions := _conditions(wanted):
            question["filters"] = ("And", conditions)
        async with self._service.asked(self._patience.search, self._in_our_words):
            try:
                answer = await namespace.query(**question, include_attributes=False)
            except Exception as error:
                if _is_unknown_namespace(error):
                    return []
                raise
        try:
            return ranked((int(row["id"]), 1.0 - float(row["$dist"])) for row in answer.rows)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._service.unlike_itself() from None

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    async def _change(self, change: Callable[[], Awaitable[Any]], *, may_be_absent: bool) -> None:
        async with self._service.asked(self._patience.write, self._in_our_words):
            try:
                answer = await change()
            except Exception as error:
                if may_be_absent and _is_unknown_namespace(error):
                    return
                raise
            # A change counts only where the service says so: a proxy may answer 200 to anything.
            if getattr(answer, "status", None) != "OK":
                raise self._service.unlike_itself()

    async def _namespace(self, space: str, model: str) -> Any:
        return (await self._client.get()).namespace(namespace_of(self._prefix, space, model))

    async def _open(self) -> Any:
        turbopuffer = await asyncio.to_thread(library, "turbopuffer", "Turbopuffer", "turbopuffer")
        async with self._service.asked(self._patience.write, self._in_our_words):
            return turbopuffer.AsyncTurbopuffer(
                api_key=self._service.key,
                base_url=self._service.place,
                max_retries=self._retries,
                timeout=self._patience.write + 1,
                telemetry=False,
            )

    def _in_our_words(self, error: Exception) -> Unavailable | None:
        turbopuffer = library("turbopuffer", "Turbopuffer", "turbopuffer")
        match error:
            case turbopuffer.APIStatusError():
                return self._service.refused(error.status_code, _body(error).get("error", ""))
            case turbopuffer.APIConnectionError():
                return self._service.unreachable()
            case turbopuffer.APIResponseValidationError() | ValueError():
                return self._service.unlike_itself()
            case turbopuffer.TurbopufferError():
                return self._service.failed(str(error))
        return None


def _row(record: VectorRecord) -> dict[str, Any]:
    return {
        "id": record.document,
        "vector": _packed(record.vector),
        "created_at": record.created_at,
        "role": record.role,
        "thread": record.thread,
        "user_id": record.user_id,
        "tags": list(record.tags),
    }


def _packed(vector: Sequence[float]) -> str:
    """The vector as the service reads it from text: float32, little-endian, in base64, a third of its size in digits."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _conditions(wanted: VectorFilter) -> list[tuple[str, str, Any]]:
    conditions: list[tuple[str, str, Any]] = []
    if wanted.roles:
        conditions.append(("role", "In", list(wanted.roles)))
    if wanted.thread is not None:
        conditions.append(("thread", "Eq", wanted.thread))
    if wanted.user_id is not None:
        conditions.append(("user_id", "Eq", wanted.user_id))
    if wanted.all_tags:
        conditions += [("tags", "Contains", tag) for tag in wanted.tags]
    elif wanted.tags:
        conditions.append(("tags", "ContainsAny", list(wanted.tags)))
    if wanted.start is not None:
        conditions.append(("created_at", "Gte", wanted.start))
    if wanted.end is not None:
        conditions.append(("created_at", "Lte", wanted.end))
    return conditions


def _is_unknown_namespace(error: Exception) -> bool:
    """Whether this is Turbopuffer's own 404, and not that of some other server at a wrong address."""
    return getattr(error, "status_code", None) == 404 and _body(error).get("status") == "error"


def _body(error: Exception) -> dict[str, str]:
    body = getattr(error, "body", None)
    return {str(name): str(value) for name, value in body.items()} if isinstance(body, dict) else {}
