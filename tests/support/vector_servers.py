"""Turbopuffer, Pinecone and Qdrant in memory for their real clients.

Each server filters first, then ranks the remaining documents by similarity.

Routes, requests and answers are taken from the clients' code: turbopuffer 3.1
(`resources/namespaces.py`, `types/`), pinecone 10.2 (`async_client/async_index.py`, `_internal/`,
`models/vectors/`) and qdrant-client 1.20 (`http/api/`, `http/models`). The servers refuse requests
that the real service would refuse.
"""

from operator import ge, le
from typing import Any

import numpy as np

from tests.support.json_server import KEY, JsonServer, Refusal

MOST_RESULTS = 10_000
_OF_TYPE = {"int": int, "string": str}
_COMPARED = {"gte": ge, "lte": le}


class _NamespaceServer(JsonServer):
    """Rows by namespace and id, each with its vector of a fixed length."""

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[Any, dict[str, Any]]] = {}
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.namespaces.clear()

    def known(self, name: str) -> dict[Any, dict[str, Any]]:
        if name not in self.namespaces:
            raise Refusal(404, self.said_no(404, "Namespace not found"))
        return self.namespaces[name]

    def require(self, is_right: bool, words: str) -> None:
        if not is_right:
            raise Refusal(400, self.said_no(400, words))

    def admits(self, value: Any, operator: str, wanted: Any) -> bool:
        """Check a condition on a field's value; in a list, one match is enough."""
        values = value if isinstance(value, list) else [] if value is None else [value]
        if operator in _COMPARED:
            return any(_COMPARED[operator](one, wanted) for one in values)
        self.require(operator in ("eq", "in", "containsany"), f"unknown operator {operator}")
        return any(one == wanted if operator == "eq" else one in wanted for one in values)


class TurbopufferServer(_NamespaceServer):
    """Namespaces with a schema. Vectors come as base64 of little-endian float32, or as numbers."""

    def __init__(self) -> None:
        self.schema: dict[str, str] = {}
        super().__init__()

    def said_no(self, status: int, words: str) -> Any:  # noqa: ARG002 - the body does not repeat the status
        return {"status": "error", "error": words}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        match method, parts:
            case "POST", ["v2", "namespaces", name]:
                return self._write(name, body)
            case "POST", ["v2", "namespaces", name, "query"]:
                return self._query(self.known(name), body)
            case "DELETE", ["v2", "namespaces", name]:
                self.known(name)
                del self.namespaces[name]
                return {"status": "OK"}
        raise Refusal(404, {"detail": "no such route"})

    def _write(self, name: str, body: Any) -> Any:
        self.require(
            set(body) <= {"upsert_rows", "deletes", "schema", "distance_metric"}, "unknown field"
        )
        rows, deletes = body.get("upsert_rows", []), body.get("deletes", [])
        if rows and name not in self.namespaces:
            self.require(
                body.get("distance_metric") == "cosine_distance", "distance_metric is needed"
            )
            self.namespaces[name], self.schema = {}, body.get("schema", {})
        kept = self.known(name)
        self.require(len({row["id"] for row in rows}) == len(rows), "duplicate document ids")
        rows = [row | {"vector": _vector(row["vector"])} for row in rows]
        for row in rows:
            self._check_row(row, next(iter([*kept.values(), *rows])))
        kept.update({row["id"]: row for row in rows})
        gone = [kept.pop(one) for one in deletes if one in kept]
        billing = {"billable_logical_bytes_written": 1}
        return {
            "status": "OK",
            "message": "done",
            "rows_affected": len(rows) + len(gone),
            "billing": billing,
        }

    def _check_row(self, row: dict[str, Any], other: dict[str, Any]) -> None:
        self.require(type(row["id"]) is int and row["id"] >= 0, "bad id")
        self.require(len(row["vector"]) == len(other["vector"]), "vectors must have one dimension")
        for name in row.keys() - {"id", "vector"}:
            kind, value = self.schema.get(name, ""), row[name]
            is_list = kind.startswith("[]") and isinstance(value, list)
            right = all(
                type(one) is _OF_TYPE.get(kind.removeprefix("[]"))
                for one in (value if is_list else [value])
            )
            self.require(right, f"attribute {name} is not of its type")

    def _query(self, rows: dict[int, dict[str, Any]], body: Any) -> Any:
        self.require(
            set(body) <= {"rank_by", "limit", "filters", "include_attributes"}, "unknown field"
        )
        attribute, how, vector = body["rank_by"]
        self.require((attribute, how) == ("vector", "ANN"), "unknown rank_by")
        self.require(1 <= body["limit"] <= MOST_RESULTS, "limit out of range")
        _, conditions = body.get("filters", ("And", []))
        admitted = [
            row
            for row in rows.values()
            if all(
                self.admits(row[name], operator.lower(), wanted)
                for name, operator, wanted in conditions
            )
        ]
        distances = {row["id"]: 1.0 - _cosine(_vector(vector), row["vector"]) for row in admitted}
        best = sorted(distances, key=lambda one: distances[one])[: body["limit"]]
        return {"rows": [{"id": one, "$dist": distances[one]} for one in best]}


class PineconeServer(_NamespaceServer):
    """One index of eight dimensions with its namespaces."""

    key_header = "api-key"
    key_value = KEY
    most_vectors, most_bytes = 1_000, 2 * 1024 * 1024

    def __init__(self) -> None:
        self.metric, self.dimension = "cosine", 8
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.metric, self.dimension = "cosine", 8

    def said_no(self, status: int, words: str) -> Any:
        return {"code": {404: 5, 429: 8}.get(status, 3), "message": words, "details": []}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        match method, parts:
            case "POST", ["describe_index_stats"]:
                told = {
                    "indexFullness": 0.0,
                    "totalVectorCount": 1,
                    "metric": self.metric,
                    "vectorType": "dense",
                }
                return {"namespaces": {}, "dimension": self.dimension, **told}
            case "POST", ["vectors", "upsert"]:
                return self._upsert(body)
            case "POST", ["vectors", "delete"]:
                vectors = self.known(body["namespace"])
                self.require(len(body["ids"]) <= self.most_vectors, "too many ids")
                for one in body["ids"]:
                    vectors.pop(one, None)
                return {}
            case "POST", ["query"]:
                return self._query(body)
            case "DELETE", ["namespaces", name]:
                self.known(name)
                del self.namespaces[name]
                return {}
        raise Refusal(404, {"detail": "no such route"})

    def _upsert(self, body: Any) -> Any:
        vectors = body["vectors"]
        self.require(len(vectors) <= self.most_vectors, "too many vectors")
        self.require(self.seen[-1].size <= self.most_bytes, "request is too large")
        self.require(len({one["id"] for one in vectors}) == len(vectors), "duplicate ids")
        for one in vectors:
            self.require(type(one["id"]) is str, "ids are strings")
            said = (
                f"Vector dimension {len(one['values'])} does not match the dimension of the index "
                f"{self.dimension}"
            )
            self.require(len(one["values"]) == self.dimension, said)
            for value in one["metadata"].values():
                of_strings = isinstance(value, list) and all(
                    isinstance(each, str) for each in value
                )
                self.require(isinstance(value, str | int | float) or of_strings, "bad metadata")
        self.namespaces.setdefault(body["namespace"], {}).update(
            {one["id"]: one for one in vectors}
        )
        return {"upsertedCount": len(vectors)}

    def _query(self, body: Any) -> Any:
        self.require(1 <= body["topK"] <= MOST_RESULTS, "topK out of range")
        self.require(len(body["vector"]) == self.dimension, "dimension")
        conditions = [
            (name, operator.removeprefix("$"), wanted)
            for condition in body.get("filter", {}).get("$and", [])
            for name, test in condition.items()
            for operator, wanted in test.items()
        ]
        scores = {
            one["id"]: _cosine(body["vector"], one["values"])
            for one in self.namespaces.get(body["namespace"], {}).values()
            if all(
                self.admits(one["metadata"].get(name), operator, wanted)
                for name, operator, wanted in conditions
            )
        }
        best = sorted(scores, key=lambda one: -scores[one])[: body["topK"]]
        matches = [{"id": one, "score": scores[one], "values": []} for one in best]
        return {"matches": matches, "namespace": body["namespace"], "usage": {"readUnits": 1}}


class QdrantServer(JsonServer):
    """Collections in memory.

    `indexes` names the indexed fields of each collection. A filter by another field is refused, as
    strict servers do.
    """

    key_header = "api-key"
    key_value = KEY

    def __init__(self) -> None:
        # The import takes a second, so it does not run for people who only collect these tests.
        from qdrant_client import QdrantClient, models

        self._client = QdrantClient(":memory:")
        self._models = models
        self.indexes: dict[str, set[str]] = {}
        super().__init__()

    def forget(self) -> None:
        super().forget()
        for collection in self._client.get_collections().collections:
            self._client.delete_collection(collection.name)
        self.indexes.clear()

    def said_no(self, status: int, words: str) -> Any:  # noqa: ARG002 - the body does not repeat the status
        return {"status": {"error": words}, "time": 0.1}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        if len(parts) < 2 or parts[0] != "collections":
            raise Refusal(404, {"detail": "no such route"})
        name = parts[1]
        match method, parts[2:]:
            case "GET", ["exists"]:
                return _result({"exists": self._client.collection_exists(name)})
            case "DELETE", []:
                self.indexes.pop(name, None)
                return _result(self._client.delete_collection(name))
            case "PUT", []:
                return _result(self._create(name, self._models.CreateCollection(**body)))
        if not self._client.collection_exists(name):
            raise Refusal(404, self.said_no(404, f"Not found: Collection `{name}` doesn't exist!"))
        match method, parts[2:]:
            case "PUT", ["index"]:
                self.indexes.setdefault(name, set()).add(body["field_name"])
                return _result({"operation_id": 1, "status": "completed"})
            case "PUT", ["points"]:
                self._client.upsert(name, self._models.PointsList(**body).points)
                return _result({"operation_id": 2, "status": "completed"})
            case "POST", ["points", "delete"]:
                self._client.delete(name, self._models.PointIdsList(**body))
                return _result({"operation_id": 3, "status": "completed"})
            case "POST", ["points", "query"]:
                return _result(self._query(name, self._models.QueryRequest(**body)))
        raise Refusal(404, {"detail": "no such route"})

    def _create(self, name: str, config: Any) -> bool:
        if self._client.collection_exists(name):
            raise Refusal(
                409, self.said_no(409, f"Wrong input: Collection `{name}` already exists!")
            )
        return self._client.create_collection(name, vectors_config=config.vectors)

    def _query(self, name: str, request: Any) -> Any:
        for condition in (request.filter.must if request.filter else None) or []:
            if condition.key not in self.indexes.get(name, set()):
                raise Refusal(
                    400,
                    self.said_no(
                        400, f"Bad request: Index required but not found for {condition.key}"
                    ),
                )
        found = self._client.query_points(
            name,
            query=request.query,
            query_filter=request.filter,
            limit=request.limit,
            with_payload=False,
        )
        return {
            "points": [
                {"id": point.id, "version": 1, "score": point.score} for point in found.points
            ]
        }


def _result(value: Any) -> Any:
    return {"result": value, "status": "ok", "time": 0.001}


def _vector(sent: list[float] | str) -> list[float]:
    # The import takes half a second, so it does not run for people who only collect tests.
    from turbopuffer.lib.vector import (
        b64decode_vector,
    )

    return b64decode_vector(sent) if isinstance(sent, str) else sent


def _cosine(one: list[float], other: list[float]) -> float:
    a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
