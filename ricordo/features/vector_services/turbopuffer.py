"""Turbopuffer as a vector index: a namespace for each partition and model, made by its first write.

`TURBOPUFFER_API_KEY` and `TURBOPUFFER_REGION` (or `TURBOPUFFER_BASE_URL`) configure it; archives choose it as `tpuf`.
"""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import ServiceIndex, ServiceTimeouts, VectorService
from ricordo.search.vector_index import VectorFilter, VectorRecord

_ADDRESS_VARIABLES = "TURBOPUFFER_REGION (or TURBOPUFFER_BASE_URL)"
# The service takes far more, but a body beyond a megabyte holds up the event loop, of which the client's HTTP shared.library warns.
_MOST_ROWS, _MOST_BYTES = 5_000, 1024 * 1024 - 16 * 1024
_OPERATORS = {"in": "In", "any": "ContainsAny", "eq": "Eq", "gte": "Gte", "lte": "Lte"}
_SCHEMA = {"created_at": "int", "role": "string", "conversation": "string", "user_id": "string", "tags": "[]string"}


class TurbopufferIndex(ServiceIndex):
    """Vectors at Turbopuffer, through its official client; the client's telemetry stays off."""

    name = "tpuf"

    def __init__(
        self,
        api_key: str,
        base_url: str,
        *,
        prefix: str = shared.DEFAULT_PREFIX,
        timeouts: ServiceTimeouts | None = None,
        retries: int = 3,
    ) -> None:
        service = VectorService("Turbopuffer", base_url, "TURBOPUFFER_API_KEY", _ADDRESS_VARIABLES, api_key)
        super().__init__(service, prefix, timeouts)
        self._retries = retries

    @staticmethod
    def address(region: str) -> str:
        """Where the service is for a region, as aws-us-east-1."""
        return f"https://{region}.turbopuffer.com"

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these, in as many requests as their size needs."""
        for rows in shared.by_size(map(_row, shared.latest(records)), _MOST_ROWS, _MOST_BYTES):
            namespace = await self._namespace(partition, model)
            writing = partial(namespace.write, distance_metric="cosine_distance", schema=_SCHEMA)
            await self._change(partial(writing, upsert_rows=rows), may_be_absent=False)

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        for ids in shared.slices(documents, _MOST_ROWS):
            namespace = await self._namespace(partition, model)
            await self._change(partial(namespace.write, deletes=ids), may_be_absent=True)

    async def drop(self, partition: str, model: str) -> None:
        namespace = await self._namespace(partition, model)
        await self._change(namespace.delete_all, may_be_absent=True)

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents, 10,000 at most; Turbopuffer searches what was written a moment ago too."""
        if limit < 1:
            return []
        namespace = await self._namespace(partition, model)
        question: dict[str, Any] = {
            "rank_by": ("vector", "ANN", shared.floats(vector)),
            "limit": min(limit, shared.MOST_RESULTS),
        }
        if found := [(name, _OPERATORS[operator], value) for name, operator, value in shared.conditions(wanted)]:
            question["filters"] = ("And", found)
        async with self._request(self._timeouts.search):
            try:
                answer = await namespace.query(**question, include_attributes=False)
            except Exception as error:
                if _is_unknown_namespace(error):
                    return []
                raise
        try:
            return shared.ranked((int(row["id"]), 1.0 - float(row["$dist"])) for row in answer.rows)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._service.unexpected_answer() from None

    async def _change(self, change: Callable[[], Awaitable[Any]], *, may_be_absent: bool) -> None:
        async with self._request(self._timeouts.write):
            try:
                answer = await change()
            except Exception as error:
                if may_be_absent and _is_unknown_namespace(error):
                    return
                raise
            # A change counts only where the service says so: a proxy may answer 200 to anything.
            if getattr(answer, "status", None) != "OK":
                raise self._service.unexpected_answer()

    async def _namespace(self, partition: str, model: str) -> Any:
        return (await self._opened()).namespace(self._namespace_of(partition, model))

    async def _open(self) -> Any:
        turbopuffer = await asyncio.to_thread(shared.library, "turbopuffer", "Turbopuffer")
        async with self._request(self._timeouts.write):
            return turbopuffer.AsyncTurbopuffer(
                api_key=self._service.key,
                base_url=self._service.address,
                max_retries=self._retries,
                timeout=self._timeouts.write + 1,
                telemetry=False,
            )

    def _translated(self, error: Exception) -> Unavailable | None:
        turbopuffer = shared.library("turbopuffer", "Turbopuffer")
        match error:
            case turbopuffer.APIStatusError():
                return self._service.refused(error.status_code, _body(error).get("error", ""))
            case turbopuffer.APIConnectionError():
                return self._service.unreachable()
            case turbopuffer.APIResponseValidationError() | ValueError():
                return self._service.unexpected_answer()
            case turbopuffer.TurbopufferError():
                return self._service.failed(str(error))
        return None


def _row(record: VectorRecord) -> dict[str, Any]:
    return {"id": record.document, "vector": _packed(record.vector), **record.fields()}


def _packed(vector: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _is_unknown_namespace(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 404 and _body(error).get("status") == "error"


def _body(error: Exception) -> dict[str, str]:
    body = getattr(error, "body", None)
    return {str(name): str(value) for name, value in body.items()} if isinstance(body, dict) else {}
