"""Connections to public addresses alone."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from ricordo.errors import Invalid
from ricordo.llm import addresses
from ricordo.llm.addresses import PROVIDERS, require_public_host
from ricordo.llm.connections import PublicConnections
from tests.support.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.mark.parametrize("url", ["http://10.0.0.1/v1", "http://localhost/v1", "http://[fd00::1]/", "http://127.1/"])
def test_an_address_that_is_private_by_its_words_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="no public address"):
        require_public_host(httpx2.URL(url).host, setting=PROVIDERS)


@pytest.mark.parametrize("url", ["https://api.example.com/v1", "https://1.1.1.1/v1"])
def test_an_address_that_may_be_public_is_taken(url: str) -> None:
    require_public_host(httpx2.URL(url).host, setting=PROVIDERS)


@pytest.mark.parametrize("numbers", [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], []])
async def test_a_name_that_leads_inside_is_refused_before_anything_is_sent(
    server: ModelServer, numbers: list[str]
) -> None:
    async def lookup(_host: str, _port: int) -> list[str]:
        return numbers

    connections = PublicConnections(1, lookup)
    with pytest.raises(httpx2.UnsupportedProtocol, match="no public address"):
        await connections.client().get(f"http://evil.example:{server.port}/")
    assert server.connections == 0
    await connections.close()


async def test_a_name_is_resolved_once_and_the_checked_address_is_asked_in_its_name(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def lookup(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    monkeypatch.setattr(addresses, "is_public", lambda _number: True)
    connections = PublicConnections(2, lookup)
    response = await connections.client().post(f"http://good.example:{server.port}/v1/x", json={"messages": []})
    assert response.status_code == 200
    assert asked == ["good.example"]
    assert server.requests[0].headers["host"] == f"good.example:{server.port}"
    await connections.close()


async def test_a_name_that_nobody_knows_is_a_failed_connection() -> None:
    async def lookup(_host: str, _port: int) -> list[str]:
        raise OSError("unknown")

    connections = PublicConnections(1, lookup)
    with pytest.raises(httpx2.ConnectError):
        await connections.client().get("http://nobody.example/")
    await connections.close()
