"""Special cases of each service.

The cases are Turbopuffer's client, Pinecone's index, and Qdrant's collections and local mode.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Unavailable
from ricordo.features.vector_services.adapters import PineconeIndex, QdrantIndex, TurbopufferIndex
from ricordo.features.vector_services.service import ServiceTimeouts
from ricordo.search.vector_index import VectorFilter
from tests.features.vector_services.test_vector_indexes import record, unit
from tests.support.json_server import KEY
from tests.support.vector_servers import PineconeServer

pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
ANY = VectorFilter()
Pinecone = tuple[PineconeIndex, PineconeServer]


@pytest.fixture
async def pinecone(start: Callable[[str], Any]) -> AsyncIterator[Pinecone]:
    server = start("pinecone")
    index = PineconeIndex(KEY, server.url)
    yield index, server
    await index.close()


async def test_the_clients_telemetry_stays_off_despite_the_environment(
    start: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends no telemetry.

    By default it would report the times of earlier requests with later requests.
    """
    monkeypatch.setenv("TURBOPUFFER_TELEMETRY", "1")
    server = start("turbopuffer")
    index = TurbopufferIndex(KEY, server.url)
    for _ in range(3):
        await index.upsert("agent-1", "model", [record(1)])
        await index.search("agent-1", "model", unit(1), 1, ANY)
    await index.close()
    assert len(server.seen) == 6
    assert not [
        name
        for seen in server.seen
        for name in seen.headers
        if "telemetry" in name or name == "x-request-id"
    ]


async def test_a_long_retry_after_does_not_exceed_the_timeout(
    start: Callable[[str], Any],
) -> None:
    """The client would wait for up to half an hour, while somebody waits for this search."""
    server = start("turbopuffer")
    index = TurbopufferIndex(KEY, server.url, timeouts=ServiceTimeouts(search=0.2, write=0.2))
    server.fails(429, 1, retry_after="1000")
    with pytest.raises(Unavailable, match=r"did not answer within 0\.2 seconds"):
        await index.search("agent-1", "model", unit(1), 1, ANY)
    await index.close()


async def test_an_index_with_another_metric_or_dimension_is_refused(
    pinecone: Pinecone,
) -> None:
    index, server = pinecone
    server.metric = "euclidean"
    with pytest.raises(Unavailable, match=r'ranks by "euclidean"\. Make one that ranks by cosine'):
        await index.upsert("agent-1", "model", [record(1)])
    assert [seen.path for seen in server.seen] == ["/describe_index_stats"]
    server.metric = "dotproduct"
    await index.upsert("agent-1", "model", [record(1)])
    server.dimension = 1_536
    with pytest.raises(
        Unavailable, match="Vector dimension 8 does not match the dimension of the index 1536"
    ):
        await index.upsert("agent-1", "model", [record(2)])


async def test_foreign_vectors_in_a_namespace_are_an_error(pinecone: Pinecone) -> None:
    index, server = pinecone
    await index.upsert("agent-1", "model", [record(1)])
    (space,) = server.namespaces.values()
    space["not-a-number"] = space["1"] | {"id": "not-a-number"}
    with pytest.raises(Unavailable, match="does not answer like Pinecone"):
        await index.search("agent-1", "model", unit(1), 5, ANY)


async def found_documents(index: QdrantIndex) -> list[int]:
    return [document for document, _ in await index.search("agent-1", "model", unit(1), 9, ANY)]


async def test_a_local_index_keeps_its_vectors_after_a_restart(tmp_path: Path) -> None:
    first = QdrantIndex(str(tmp_path / "vectors"))
    await first.upsert("agent-1", "model", [record(1), record(2), record(3)])
    await first.remove("agent-1", "model", [3])
    await first.upsert("agent-2", "model", [record(1)])
    await first.drop("agent-2", "model")
    await first.close()
    second = QdrantIndex(str(tmp_path / "vectors"))
    assert sorted(await found_documents(second)) == [1, 2]
    assert await second.search("agent-2", "model", unit(1), 9, ANY) == []
    await second.close()


# The client leaves a file open that it could not lock. The test collects the failed client at its
# end, which closes the file.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
async def test_a_folder_in_use_is_reported_and_its_owner_continues(tmp_path: Path) -> None:
    owner, other = QdrantIndex(str(tmp_path)), QdrantIndex(str(tmp_path))
    await owner.upsert("agent-1", "model", [record(1)])
    with pytest.raises(Unavailable, match="already accessed by another instance"):
        await found_documents(other)
    assert await found_documents(owner) == [1]
    await owner.close()
    # The second instance tries again after the folder is free.
    assert await found_documents(other) == [1]
    await other.close()
    gc.collect()


async def test_a_vector_of_another_dimension_is_refused_without_changes() -> None:
    index = QdrantIndex(":memory:")
    await index.upsert("agent-1", "model", [record(1)])
    with pytest.raises(Unavailable):
        await index.upsert("agent-1", "model", [record(2, vector=[1.0, 0.0])])
    assert await found_documents(index) == [1]
    await index.close()


async def test_the_local_mode_does_not_block_the_event_loop() -> None:
    index = QdrantIndex(":memory:")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await index.upsert("agent-1", "model", [record(number) for number in range(1, 1_500)])
    ticking.cancel()
    assert ticks > 5
    await index.close()


async def test_a_dropped_collection_is_created_again_with_its_indexes(
    start: Callable[[str], Any],
) -> None:
    server = start("qdrant")
    index, other = QdrantIndex(server.url, KEY), QdrantIndex(server.url, KEY)
    await index.upsert("agent-1", "model", [record(1)])
    (indexed,) = server.indexes.values()
    assert indexed == {"role", "conversation", "user_id", "tags", "created_at"}
    await other.drop("agent-1", "model")
    assert await found_documents(index) == []
    await index.upsert("agent-1", "model", [record(2)])
    assert await found_documents(index) == [2]
    assert list(server.indexes.values()) == [indexed]
    # If the response names a waiting time, the client raises another class of error.
    server.fails(429, 1, retry_after="3")
    with pytest.raises(Unavailable, match=r"status 429\). Try again later"):
        await found_documents(index)
    await index.close()
    await other.close()


def test_errors_of_a_service_contain_no_key_or_password() -> None:
    service = QdrantIndex("https://ada:hidden@host:6333/x?y=hidden", "hidden")
    for error in (service.unreachable(), service.refused(400, "hidden"), service.failed("hidden")):
        assert "hidden" not in str(error)
    assert str(service.unreachable()).startswith("Qdrant (host:6333) cannot be reached.")


async def test_an_error_in_our_code_is_not_reported_as_a_service_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        async with QdrantIndex("http://host")._request(1):
            raise ZeroDivisionError
