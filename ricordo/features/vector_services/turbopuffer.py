"""Turbopuffer as a vector index: a namespace for each partition and model, made by its first write.

`TURBOPUFFER_API_KEY` and `TURBOPUFFER_REGION` (or `TURBOPUFFER_BASE_URL`) configure it; archives choose it as `tpuf`.
"""

import asyncio
import struct
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from ricordo.errors import Unavailable
from ricordo.features.vector_services import service as shared
from ricordo.features.vector_services.service import Condition, ServiceIndex
from ricordo.search.vector_index import VectorRecord

_OPERATORS = {"in": "In", "any": "ContainsAny", "eq": "Eq", "gte": "Gte", "lte": "Lte"}
_SCHEMA = {"created_at": "int", "role": "string", "conversation": "string", "user_id": "string", "tags": "[]string"}


class TurbopufferIndex(ServiceIndex):
    """Vectors at Turbopuffer, through its official client; the client's telemetry stays off."""

    name = "tpuf"
    TITLE, KEY_VARIABLE = "Turbopuffer", "TURBOPUFFER_API_KEY"
    ADDRESS_VARIABLE = "TURBOPUFFER_REGION (or TURBOPUFFER_BASE_URL)"
    RETRIES = 3
    # The service takes far more, but a body beyond a megabyte holds up the event loop, of which the client's HTTP library warns.
    MOST_ITEMS, MOST_BYTES = 5_000, 1024 * 1024 - 16 * 1024

    @staticmethod
    def address(region: str) -> str:
        """Where the service is for a region, as aws-us-east-1."""
        return f"https://{region}.turbopuffer.com"

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
        self._require_done(await space.write(upsert_rows=items, distance_metric="cosine_distance", schema=_SCHEMA))

    async def _delete(self, client: Any, namespace: str, documents: list[int]) -> None:
        self._require_done(await client.namespace(namespace).write(deletes=documents))

    async def _drop(self, client: Any, namespace: str) -> None:
        self._require_done(await client.namespace(namespace).delete_all())

    async def _query(
        self, client: Any, namespace: str, vector: list[float], limit: int, wanted: list[Condition]
    ) -> Any:
        question: dict[str, Any] = {"rank_by": ("vector", "ANN", vector), "limit": limit}
        if found := [(name, _OPERATORS[operator], value) for name, operator, value in wanted]:
            question["filters"] = ("And", found)
        return await client.namespace(namespace).query(**question, include_attributes=False)

    def _pairs(self, answer: Any) -> Iterable[tuple[Any, Any]]:
        return ((row["id"], 1.0 - float(row["$dist"])) for row in answer.rows)

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
            case turbopuffer.APIResponseValidationError() | ValueError():
                return self.unexpected_answer()
            case turbopuffer.TurbopufferError():
                return self.failed(str(error))
        return None


def _body(error: Exception) -> dict[str, str]:
    body = getattr(error, "body", None)
    return {str(name): str(value) for name, value in body.items()} if isinstance(body, dict) else {}
