"""A running server for each module of API tests, the official client on it, a plain HTTP client, and an agent to talk to."""

from collections.abc import Iterator

import httpx2
import pytest
from letta_client.types import AgentState

from tests.support.serving import MODEL, ServerInThread, StrictLetta, serving


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server that the tests of one module share; take `server`, whose model knows nothing of the test before."""
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def server(running_server: ServerInThread) -> ServerInThread:
    """A running server, whose model says "ok" until it is told what to say."""
    running_server.forget()
    return running_server


@pytest.fixture
def client(server: ServerInThread) -> Iterator[StrictLetta]:
    """The official client."""
    with server.client() as opened:
        yield opened


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    """A plain HTTP client."""
    with server.http() as opened:
        yield opened


@pytest.fixture
def agent(client: StrictLetta) -> AgentState:
    """An agent with a persona and a human block."""
    return client.agents.create(
        name="Nina",
        model=MODEL,
        memory_blocks=[
            {"label": "persona", "value": "I am Nina."},
            {"label": "human", "value": "Her name is Ada."},
        ],
    )
