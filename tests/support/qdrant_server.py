"""A Qdrant server for its real client: HTTP in front of the client's own local mode, which does the filtering and ranking.

Routes are those of the client's own code, qdrant-client 1.20: `qdrant_client/http/api/collections_api.py`, `points_api.py`,
`search_api.py` and `indexes_api.py`; bodies are read with `qdrant_client/http/models`.
"""

from typing import Any

from tests.support.json_server import KEY, JsonServer, Refusal


class QdrantServer(JsonServer):
    """Collections in memory. `indexes` names the indexed fields of each; a filter by another is refused, as strict servers do."""

    key_header = "api-key"
    key_value = KEY

    def __init__(self) -> None:
        # Not above: that takes a second, also of those who collect these tests and run none of them.
        from qdrant_client import QdrantClient, models

        self._client = QdrantClient(":memory:")
        self._models = models
        self.indexes: dict[str, set[str]] = {}
        super().__init__()

    def forget(self) -> None:
        """An empty service."""
        super().forget()
        for collection in self._client.get_collections().collections:
            self._client.delete_collection(collection.name)
        self.indexes.clear()

    def said_no(self, status: int, words: str) -> Any:  # noqa: ARG002 - the body does not repeat the status
        """Its errors."""
        return {"status": {"error": words}, "time": 0.1}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        """Collections, their indexes and their points."""
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
            raise Refusal(409, self.said_no(409, f"Wrong input: Collection `{name}` already exists!"))
        return self._client.create_collection(name, vectors_config=config.vectors)

    def _query(self, name: str, request: Any) -> Any:
        for condition in (request.filter.must if request.filter else None) or []:
            if condition.key not in self.indexes.get(name, set()):
                raise Refusal(400, self.said_no(400, f"Bad request: Index required but not found for {condition.key}"))
        found = self._client.query_points(
            name, query=request.query, query_filter=request.filter, limit=request.limit, with_payload=False
        )
        return {"points": [{"id": point.id, "version": 1, "score": point.score} for point in found.points]}


def _result(value: Any) -> Any:
    return {"result": value, "status": "ok", "time": 0.001}
