"""Embedding models asked through pydantic-ai, over real HTTP."""

import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ricordo.domain.model import EmbeddingInfo
from ricordo.errors import ModelError, Unavailable
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding.remote import RemoteEmbedder, google_embedder
from ricordo.llm.provider_table import Provider
from tests.llm.talk import Waits
from tests.support.model_server import Answer, ModelServer


def has_sdk() -> bool:
    try:
        return importlib.util.find_spec("google.genai") is not None
    except ModuleNotFoundError:
        return False


needs_sdk = pytest.mark.skipif(not has_sdk(), reason="google-genai is not installed")


@pytest.fixture
async def embedder(server: ModelServer, waits: Waits) -> AsyncIterator[RemoteEmbedder]:
    connections = Connections(timeout=6)
    info = EmbeddingInfo(
        "google_ai/gemini-embedding-001",
        "google_ai",
        "gemini-embedding-001",
        "google_ai",
        endpoint=server.root,
    )
    provider = Provider("google_ai", "", "google_ai", "google", api_key="key-1")
    yield google_embedder(info, connections, waits.policy(), provider)
    await connections.close()


def values(*vectors: Any) -> Answer:
    return Answer({"embeddings": [{"values": vector} for vector in vectors]})


async def test_without_the_sdk_the_embedder_says_what_to_install(
    embedder: RemoteEmbedder, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(Unavailable, match=r'pip install "ricordo\[google\]"'):
        await embedder.embed(["tea"])
    assert server.connections == 0


@needs_sdk
async def test_google_receives_the_texts_and_their_purpose(
    embedder: RemoteEmbedder, server: ModelServer
) -> None:
    server.push(values([3, 4], [1, 0]), values([0, 2]))
    assert await embedder.embed(["tea", "", "coffee"]) == [[0.6, 0.8], [0, 0], [1, 0]]
    assert await embedder.embed(["which tea?"], purpose="query") == [[0, 1]]
    assert all(
        seen.path.endswith("/models/gemini-embedding-001:batchEmbedContents")
        for seen in server.requests
    )
    assert server.requests[0].headers["x-goog-api-key"] == "key-1"
    told = [json.dumps(seen.body) for seen in server.requests]
    assert ("RETRIEVAL_DOCUMENT" in told[0], "RETRIEVAL_QUERY" in told[1]) == (True, True)
    assert embedder.info.dimensions == 2


@needs_sdk
async def test_googles_errors_become_model_errors(
    embedder: RemoteEmbedder, server: ModelServer, waits: Waits
) -> None:
    busy = {"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}
    server.push(Answer(busy, 429), values([1, 0]))
    assert await embedder.embed(["tea"]) == [[1, 0]]
    assert len(waits) == 1
    server.push(
        Answer({"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}}, 403)
    )
    with pytest.raises(ModelError, match="google_ai answered 403") as caught:
        await embedder.embed(["tea"])
    assert caught.value.kind == "llm_authentication"
    server.push(*[values()] * 4)
    with pytest.raises(ModelError, match="gave 0 vectors for 1 texts"):
        await embedder.embed(["tea"])
