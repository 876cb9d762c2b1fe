"""One Pinecone index in memory for its real client: it filters by metadata, then ranks all that is left by cosine similarity.

Shapes of requests and answers are those of the client's own code, pinecone 10.2: paths and bodies from
`pinecone/async_client/async_index.py`, a vector from `_internal/data_plane_helpers.py` (`_vector_to_dict`), what metadata may hold
from `_internal/vector_factory.py`, filters from `utils/filter_builder.py`, answers from `models/vectors/responses.py` and
`models/vectors/vector.py`, an error's body from `_internal/http_client.py` (`_extract_message_and_error_code`).
"""

from typing import Any

import numpy as np

from tests.support.json_server import KEY, JsonServer, Refusal

MOST_VECTORS, MOST_BYTES, MOST_RESULTS, MOST_METADATA = 1_000, 2 * 1024 * 1024, 10_000, 40 * 1024
DIMENSION = 8


class PineconeServer(JsonServer):
    """Namespaces of vectors in an index of eight dimensions; what the real service would refuse is refused."""

    key_header = "api-key"
    key_value = KEY

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, dict[str, Any]]] = {}
        self.metric = "cosine"
        self.dimension = DIMENSION
        super().__init__()

    def forget(self) -> None:
        """An empty index."""
        super().forget()
        self.namespaces.clear()
        self.metric, self.dimension = "cosine", DIMENSION

    def said_no(self, status: int, words: str) -> Any:
        """Its errors."""
        return {"code": {404: 5, 429: 8}.get(status, 3), "message": words, "details": []}

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        """The data plane of an index."""
        match method, parts:
            case "POST", ["describe_index_stats"]:
                return self._stats()
            case "POST", ["vectors", "upsert"]:
                return self._upsert(body)
            case "POST", ["vectors", "delete"]:
                vectors = self._known(body["namespace"])
                self._require(len(body["ids"]) <= MOST_VECTORS, "too many ids")
                for one in body["ids"]:
                    vectors.pop(one, None)
                return {}
            case "POST", ["query"]:
                return self._query(body)
            case "DELETE", ["namespaces", name]:
                self._known(name)
                del self.namespaces[name]
                return {}
        raise Refusal(404, {"detail": "no such route"})

    def _stats(self) -> Any:
        spaces = {name: {"vectorCount": len(vectors)} for name, vectors in self.namespaces.items()}
        count = sum(map(len, self.namespaces.values()))
        told = {"indexFullness": 0.0, "totalVectorCount": count, "metric": self.metric, "vectorType": "dense"}
        return {"namespaces": spaces, "dimension": self.dimension, **told}

    def _known(self, name: str) -> dict[str, dict[str, Any]]:
        if name not in self.namespaces:
            raise Refusal(404, self.said_no(404, "Namespace not found"))
        return self.namespaces[name]

    def _upsert(self, body: Any) -> Any:
        vectors = body["vectors"]
        self._require(len(vectors) <= MOST_VECTORS, "too many vectors")
        self._require(self.seen[-1].size <= MOST_BYTES, "request is too large")
        self._require(len({one["id"] for one in vectors}) == len(vectors), "duplicate ids")
        for one in vectors:
            self._require(type(one["id"]) is str, "ids are strings")
            said = f"Vector dimension {len(one['values'])} does not match the dimension of the index {self.dimension}"
            self._require(len(one["values"]) == self.dimension, said)
            for value in one["metadata"].values():
                of_strings = isinstance(value, list) and all(isinstance(each, str) for each in value)
                self._require(isinstance(value, str | int | float) or of_strings, "bad metadata")
        self.namespaces.setdefault(body["namespace"], {}).update({one["id"]: one for one in vectors})
        return {"upsertedCount": len(vectors)}

    def _query(self, body: Any) -> Any:
        vector, most = body["vector"], body["topK"]
        self._require(1 <= most <= MOST_RESULTS, "topK out of range")
        self._require(len(vector) == self.dimension, "dimension")
        kept = self.namespaces.get(body["namespace"], {}).values()
        scores = {
            one["id"]: _cosine(vector, one["values"])
            for one in kept
            if self._admits(one["metadata"], body.get("filter", {}))
        }
        best = sorted(scores, key=lambda one: -scores[one])[:most]
        matches = [{"id": one, "score": scores[one], "values": []} for one in best]
        return {"matches": matches, "namespace": body["namespace"], "usage": {"readUnits": 1}}

    def _admits(self, metadata: dict[str, Any], condition: dict[str, Any]) -> bool:
        if "$and" in condition:
            return all(self._admits(metadata, each) for each in condition["$and"])
        for name, test in condition.items():
            ((operator, wanted),) = test.items()
            value = metadata.get(name)
            values = value if isinstance(value, list) else [] if value is None else [value]
            match operator:
                case "$eq":
                    admits = wanted in values
                case "$in":
                    admits = any(one in wanted for one in values)
                case "$gte":
                    admits = any(one >= wanted for one in values)
                case "$lte":
                    admits = any(one <= wanted for one in values)
                case _:
                    raise Refusal(400, self.said_no(400, f"unknown operator {operator}"))
            if not admits:
                return False
        return True

    def _require(self, is_right: bool, words: str) -> None:
        if not is_right:
            raise Refusal(400, self.said_no(400, words))


def _cosine(one: list[float], other: list[float]) -> float:
    a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
