"""The shared pool of connections."""

import asyncio

import httpx2
import pytest

from ricordo.llm.addresses import Connections, PublicConnections
from tests.support.model_server import ModelServer


async def test_the_client_is_made_when_needed_and_again_after_closing() -> None:
    connections = Connections(timeout=3)
    await connections.close()
    client = connections.client()
    assert connections.client() is client
    await connections.close()
    assert client.is_closed
    assert connections.client() is not client
    await connections.close()


def test_silence_and_connecting_have_their_own_limits() -> None:
    assert Connections(timeout=600).timeout.as_dict() == {"connect": 10, "read": 600, "write": 600, "pool": 600}
    assert Connections(timeout=3).timeout.connect == 3


async def test_a_proxy_of_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer() as proxy, ModelServer() as server:
        monkeypatch.setenv("ALL_PROXY", proxy.root)
        monkeypatch.setenv("HTTP_PROXY", proxy.root)
        monkeypatch.delenv("NO_PROXY", raising=False)
        connections = Connections(timeout=3)
        await connections.client().get(f"{server.url}/models")
        await connections.client().get(f"http://localhost:{server.port}/v1/models")
        assert len(server.requests) == 2
        await connections.client().get("http://example.invalid/v1/models")
        assert [seen.path for seen in proxy.requests] == ["http://example.invalid/v1/models"]
        await connections.close()


async def test_one_connection_serves_calls_in_turn() -> None:
    async with ModelServer() as server:
        connections = Connections(timeout=3)
        for _ in range(3):
            await connections.client().get(f"{server.url}/models")
            await asyncio.sleep(0)
        assert server.connections == 1
        await connections.close()


async def test_for_addresses_of_users_a_name_that_leads_inside_is_refused_before_anything_is_sent() -> None:
    behind = {"one.example": ["127.0.0.1"], "two.example": ["1.1.1.1", "10.0.0.1"], "none.example": []}

    async def lookup(host: str, _port: int) -> list[str]:
        if host == "nobody.example":
            raise OSError("unknown")
        return behind[host]

    async with ModelServer() as server:
        for host in behind:
            connections = PublicConnections(1, lookup)
            with pytest.raises(httpx2.UnsupportedProtocol, match="no public address"):
                await connections.client().get(f"http://{host}:{server.port}/")
            with pytest.raises(httpx2.ConnectError):
                await connections.client().get("http://nobody.example/")
            assert server.connections == 0
            await connections.close()
