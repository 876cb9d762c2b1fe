"""What is Pinecone's alone: an index that its owner made, and may have made wrongly."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.pinecone import PineconeIndex
from ricordo.search.vector_index import VectorFilter
from tests.features.vector_services.test_vector_indexes import record, unit
from tests.support.json_server import KEY
from tests.support.pinecone_server import PineconeServer


@pytest.fixture
def server(start: Callable[[str], Any]) -> PineconeServer:
    """An empty index of eight dimensions."""
    started: PineconeServer = start("pinecone")
    return started


@pytest.fixture
async def index(server: PineconeServer) -> AsyncIterator[PineconeIndex]:
    """The adapter over it."""
    made = PineconeIndex(KEY, server.url)
    yield made
    await made.close()


async def test_an_index_that_ranks_by_distance_is_refused_before_anything_is_written(
    index: PineconeIndex, server: PineconeServer
) -> None:
    server.metric = "euclidean"
    with pytest.raises(Unavailable, match=r'ranks by "euclidean"\. Make one that ranks by cosine'):
        await index.upsert("agent-1", "model", [record(1)])
    assert [seen.path for seen in server.seen] == ["/describe_index_stats"]
    server.metric = "dotproduct"
    await index.upsert("agent-1", "model", [record(1)])


async def test_an_index_of_another_dimension_is_said_with_both(index: PineconeIndex, server: PineconeServer) -> None:
    server.dimension = 1_536
    with pytest.raises(Unavailable, match="Vector dimension 8 does not match the dimension of the index 1536"):
        await index.upsert("agent-1", "model", [record(1)])


async def test_who_it_is_is_asked_once(index: PineconeIndex, server: PineconeServer) -> None:
    for _ in range(3):
        await index.search("agent-1", "model", unit(1), 1, VectorFilter())
    assert [seen.path for seen in server.seen] == ["/describe_index_stats", *["/query"] * 3]


async def test_vectors_that_someone_else_put_there_are_no_documents(
    index: PineconeIndex, server: PineconeServer
) -> None:
    await index.upsert("agent-1", "model", [record(1)])
    (space,) = server.namespaces.values()
    space["not-a-number"] = space["1"] | {"id": "not-a-number"}
    with pytest.raises(Unavailable, match="gave an answer that is not Pinecone's"):
        await index.search("agent-1", "model", unit(1), 5, VectorFilter())
