"""The vector services in tests.

Each adapter has its real client, and its server can be made to fail.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ricordo.domain.clock import SystemClock
from ricordo.features.vector_services.adapters import PineconeIndex, QdrantIndex, TurbopufferIndex
from ricordo.features.vector_services.service import ServiceTimeouts
from ricordo.search.pgvector import PgVectorIndex
from ricordo.search.vector_index import VectorIndex
from ricordo.storage.engine.postgres import PostgresStore
from tests.support import postgres
from tests.support.json_server import KEY, JsonServer
from tests.support.vector_servers import PineconeServer, QdrantServer, TurbopufferServer

TIMEOUTS = ServiceTimeouts(search=10, write=10)


@dataclass(frozen=True)
class Kind:
    """One adapter and its server; None for the adapter that needs no server."""

    name: str
    server: type[JsonServer] | None
    make: Callable[[str, str, ServiceTimeouts], VectorIndex]


class _Hasty(TurbopufferIndex):
    RETRIES = 1


KINDS = {
    "turbopuffer": Kind(
        "turbopuffer",
        TurbopufferServer,
        lambda url, key, timeouts: _Hasty(key, url, timeouts=timeouts),
    ),
    "pinecone": Kind(
        "pinecone",
        PineconeServer,
        lambda url, key, timeouts: PineconeIndex(key, url, timeouts=timeouts),
    ),
    "qdrant": Kind(
        "qdrant", QdrantServer, lambda url, key, timeouts: QdrantIndex(url, key, timeouts=timeouts)
    ),
    "qdrant, local": Kind(
        "qdrant, local", None, lambda _u, _k, timeouts: QdrantIndex(":memory:", timeouts=timeouts)
    ),
}


class OnTestsDatabase(PgVectorIndex):
    """The index in the database of this server, with a store that ends with it.

    The database is empty again then.
    """

    def __init__(self) -> None:
        self._opened = PostgresStore(postgres.server().shared_engine(), SystemClock(), 2)
        super().__init__(self._opened)

    async def close(self) -> None:
        """Close the index and the store."""
        await super().close()
        await self._opened.close()
        postgres.server().empty()


# All implementations of the contract of vector indexes; the others above are services, each with
# its failures.
CONTRACT = {
    **KINDS,
    "pgvector": Kind("pgvector", None, lambda _url, _key, _timeouts: OnTestsDatabase()),
}


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, JsonServer]]:
    running: dict[str, JsonServer] = {}
    yield running
    for server in running.values():
        server.close()


@pytest.fixture
def start(servers: dict[str, JsonServer]) -> Callable[[str], Any]:
    """Start an empty server of a kind."""

    def started(name: str) -> JsonServer | None:
        make = CONTRACT[name].server
        if make and name not in servers:
            servers[name] = make()
        if make:
            servers[name].forget()
        return servers.get(name)

    return started


@pytest.fixture(params=CONTRACT)
def kind(request: pytest.FixtureRequest) -> Kind:
    return CONTRACT[request.param]


@pytest.fixture
async def index(kind: Kind, start: Callable[[str], Any]) -> AsyncIterator[VectorIndex]:
    """An adapter over an empty service."""
    server = start(kind.name)
    made = kind.make(server.url if server else "", KEY, TIMEOUTS)
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinecone's client waits up to some seconds before it retries, which is not tested here."""
    soon = asyncio.sleep

    async def at_once(_seconds: float) -> None:
        await soon(0)

    monkeypatch.setattr("pinecone._internal.http_client._async_retry_sleep", at_once)
