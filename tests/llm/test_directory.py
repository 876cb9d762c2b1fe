"""Providers and what they list."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ricordo.llm.addresses import Connections
from ricordo.llm.directory import ModelDirectory
from ricordo.llm.model_lists import ModelList
from ricordo.llm.provider_table import LocalServer, Provider
from tests.support.model_server import Answer, ModelServer

LIST = Answer({"data": [{"id": "chat"}, {"id": "text-embedding-x"}]})


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(lambda _: replace(LIST, delay=0.02)) as running:
        yield running


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    made = Connections(timeout=5)
    yield made
    await made.close()


async def test_many_who_ask_at_once_cause_one_question(server: ModelServer, connections: Connections) -> None:
    provider = Provider("p", server.url, "openai")
    directory = ModelDirectory([provider], connections)
    heard: list[ModelList] = []
    directory.on_listed.append(heard.append)
    answers = await asyncio.gather(*(directory.ask(provider) for _ in range(10)), directory.ask_all())
    assert len(server.requests) == 1
    listed = directory.listed(provider)
    assert ([info.name for info in listed.chat], [info.name for info in listed.embedding]) == (
        ["chat"],
        ["text-embedding-x"],
    )
    assert heard == [listed]
    assert answers == [*[listed] * 10, [listed]]


async def test_a_handle_is_split_at_its_first_slash(connections: Connections) -> None:
    provider = Provider("p", "http://127.0.0.1:1/v1", "openai")
    directory = ModelDirectory([provider], connections, local_servers=(LocalServer("ollama", 1),))
    assert directory.split("p/org/model") == (provider, "org/model")
    assert [directory.split(handle) for handle in ("p", "p/", "/x", "", "q/x", "ollama/x")] == [None] * 6
    reached = directory.split("ollama/x", may_be_down=True)
    assert reached is not None
    assert (reached[0].base_url, reached[1]) == ("http://127.0.0.1:1/v1", "x")
    assert [directory.split(handle, may_be_down=True) for handle in ("ollama/", "q/x")] == [None] * 2


async def test_before_anybody_is_asked_nothing_is_listed(connections: Connections) -> None:
    provider = Provider("p", "http://127.0.0.1:1/v1", "openai")
    directory = ModelDirectory([provider], connections)
    assert directory.listed(provider) == ModelList()
    assert (directory.all_listed(), directory.found) == ([], ())
