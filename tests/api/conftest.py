"""A running server for each module of API tests, with clients and an agent."""

from collections.abc import Iterator
from typing import NamedTuple

import httpx2
import pytest
from letta_client.types import AgentState

from tests.seams.server import MODEL, ServerInThread, StrictLetta, serving


class Api(NamedTuple):
    """A running server with the official client and a plain one."""

    server: ServerInThread
    client: StrictLetta
    http: httpx2.Client


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """Run a server for the tests of one module.

    Tests use the fixture `server`, which resets the model before each test.
    """
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def server(running_server: ServerInThread) -> ServerInThread:
    """A running server. Its model says "ok" until a test sets its answers."""
    running_server.forget()
    return running_server


# Creating a client loads certificates, which takes longer than a test. So each module has one.
@pytest.fixture(scope="module")
def running_client(running_server: ServerInThread) -> Iterator[StrictLetta]:
    """A client that the tests of one module share; they use the fixture `client`."""
    with running_server.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def running_http(running_server: ServerInThread) -> Iterator[httpx2.Client]:
    """A plain client that the tests of one module share; they use the fixture `http`."""
    with running_server.http() as opened:
        yield opened


@pytest.fixture
def client(server: ServerInThread, running_client: StrictLetta) -> StrictLetta:
    """The official client."""
    return running_client


@pytest.fixture
def http(server: ServerInThread, running_http: httpx2.Client) -> httpx2.Client:
    return running_http


@pytest.fixture
def api(server: ServerInThread, client: StrictLetta, http: httpx2.Client) -> Api:
    return Api(server, client, http)


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
