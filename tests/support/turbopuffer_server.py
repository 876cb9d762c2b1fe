"""A Turbopuffer in memory for its real client: it filters, then ranks all that is left by cosine distance.

Shapes of requests and answers are those of the client's own code, turbopuffer 3.1: paths from `resources/namespaces.py`, a write
from `types/namespace_write_params.py`, `types/row_param.py` and `types/attribute_type.py`, its answer from
`types/namespace_write_response.py`, a query from `types/namespace_query_params.py`, filters from `types/custom.py`, its answer from
`types/namespace_query_response.py` and `types/row.py`, an error's body from `types/operation_error.py`. Vectors come as base64 of
little-endian float32, as `lib/vector.py` does and undoes, or as numbers.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.json_server import JsonServer, Refusal

MOST_RESULTS = 10_000
_OF_TYPE = {"int": int, "string": str}


@dataclass
class _Namespace:
    schema: dict[str, str]
    dimension: int
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


class TurbopufferServer(JsonServer):
    """Namespaces of rows; what the real service would refuse is refused."""

    def __init__(self) -> None:
        self.namespaces: dict[str, _Namespace] = {}
        super().__init__()

    def forget(self) -> None:
        """An empty service."""
        super().forget()
        self.namespaces.clear()

    def said_no(self, status: int, words: str) -> Any:  # noqa: ARG002 - the body does not repeat the status
        """Its errors."""
        return {"status": "error", "error": words}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        """Writes, queries and deletions of namespaces."""
        match method, parts:
            case "POST", ["v2", "namespaces", name]:
                return self._write(name, body)
            case "POST", ["v2", "namespaces", name, "query"]:
                return self._query(self._known(name), body)
            case "DELETE", ["v2", "namespaces", name]:
                self._known(name)
                del self.namespaces[name]
                return {"status": "OK"}
        raise Refusal(404, {"detail": "no such route"})

    def _known(self, name: str) -> _Namespace:
        if name not in self.namespaces:
            raise Refusal(404, self.said_no(404, f"namespace '{name}' was not found"))
        return self.namespaces[name]

    def _write(self, name: str, body: Any) -> Any:
        self._require(set(body) <= {"upsert_rows", "deletes", "schema", "distance_metric"}, "unknown field")
        rows, deletes = body.get("upsert_rows", []), body.get("deletes", [])
        if rows and name not in self.namespaces:
            self._require(body.get("distance_metric") == "cosine_distance", "distance_metric is needed")
            self.namespaces[name] = _Namespace(body.get("schema", {}), len(_vector(rows[0]["vector"])))
        space = self._known(name)
        ids = [row["id"] for row in rows]
        self._require(len(set(ids)) == len(ids), "duplicate document ids")
        rows = [row | {"vector": _vector(row["vector"])} for row in rows]
        for row in rows:
            self._check_row(space, row)
        space.rows.update({row["id"]: row for row in rows})
        gone = [space.rows.pop(one) for one in deletes if one in space.rows]
        return {
            "status": "OK",
            "message": "done",
            "rows_affected": len(rows) + len(gone),
            "billing": {"billable_logical_bytes_written": 1},
        }

    def _check_row(self, space: _Namespace, row: dict[str, Any]) -> None:
        self._require(type(row["id"]) is int and row["id"] >= 0, "bad id")
        self._require(len(row["vector"]) == space.dimension, f"vector must have {space.dimension} dimensions")
        for name, value in row.items():
            if name in ("id", "vector"):
                continue
            kind = space.schema.get(name, "")
            if kind.startswith("[]"):
                right = isinstance(value, list) and all(type(one) is _OF_TYPE[kind[2:]] for one in value)
            else:
                right = kind in _OF_TYPE and type(value) is _OF_TYPE[kind]
            self._require(right, f"attribute {name} is not of its type")

    def _query(self, space: _Namespace, body: Any) -> Any:
        self._require(set(body) <= {"rank_by", "limit", "filters", "include_attributes"}, "unknown field")
        attribute, how, vector = body["rank_by"]
        self._require((attribute, how) == ("vector", "ANN"), "unknown rank_by")
        self._require(1 <= body["limit"] <= MOST_RESULTS, "limit out of range")
        vector = _vector(vector)
        self._require(len(vector) == space.dimension, f"vector must have {space.dimension} dimensions")
        admitted = [row for row in space.rows.values() if self._admits(space, row, body.get("filters"))]
        distances = {row["id"]: 1.0 - _cosine(vector, row["vector"]) for row in admitted}
        best = sorted(distances, key=lambda one: distances[one])[: body["limit"]]
        return {
            "rows": [{"id": one, "$dist": distances[one]} for one in best],
            "billing": {"billable_logical_bytes_queried": 1, "billable_logical_bytes_returned": 1},
            "performance": {
                "approx_namespace_size": len(space.rows),
                "cache_hit_ratio": 1.0,
                "cache_temperature": "hot",
                "exhaustive_search_count": len(space.rows),
                "query_execution_ms": 1,
                "server_total_ms": 1,
            },
        }

    def _admits(self, space: _Namespace, row: dict[str, Any], condition: Any) -> bool:
        if condition is None:
            return True
        if condition[0] == "And":
            return all(self._admits(space, row, each) for each in condition[1])
        attribute, operator, wanted = condition
        self._require(attribute in space.schema, f"no attribute {attribute}")
        value = row[attribute]
        match operator:
            case "Eq":
                return bool(value == wanted)
            case "In":
                return value in wanted
            case "Contains":
                return wanted in value
            case "ContainsAny":
                return any(one in value for one in wanted)
            case "Gte":
                return bool(value >= wanted)
            case "Lte":
                return bool(value <= wanted)
        raise Refusal(400, self.said_no(400, f"unknown operator {operator}"))

    def _require(self, is_right: bool, words: str) -> None:
        if not is_right:
            raise Refusal(400, self.said_no(400, words))


def _vector(sent: list[float] | str) -> list[float]:
    from turbopuffer.lib.vector import b64decode_vector  # not above: that takes half a second of those who only collect

    return b64decode_vector(sent) if isinstance(sent, str) else sent


def _cosine(one: list[float], other: list[float]) -> float:
    a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
