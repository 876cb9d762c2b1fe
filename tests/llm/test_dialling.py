"""Connecting to a name of several addresses."""

import asyncio
import socket
import time
from typing import Any

import pytest

from ricordo.llm import dialling
from ricordo.llm.dialling import dial


@pytest.fixture
async def port() -> Any:
    """Where somebody listens on 127.0.0.1."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name stand for these addresses."""
    found = [
        (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one,)) for one in addresses
    ]

    async def getaddrinfo(_host: str, port: int, **_options: Any) -> list[Any]:
        return [(family, kind, number, name, (*address, port)) for family, kind, number, name, address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_an_address_that_refuses_gives_way_to_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    resolves_to(monkeypatch, "::1", "127.0.0.1")
    monkeypatch.setattr(dialling, "HEAD_START", 5)

    with await asyncio.wait_for(dial("name", port), 2) as connected:
        assert connected.getpeername()[:2] == ("127.0.0.1", port)


async def test_an_address_that_is_silent_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    resolves_to(monkeypatch, "127.0.0.9", "127.0.0.1")
    monkeypatch.setattr(dialling, "HEAD_START", 0.01)
    loop, connect = asyncio.get_running_loop(), asyncio.get_running_loop().sock_connect
    given_up = asyncio.Event()

    async def sock_connect(opened: socket.socket, address: Any) -> None:
        if address[0] != "127.0.0.9":
            return await connect(opened, address)
        try:
            await asyncio.sleep(60)
        finally:
            given_up.set()

    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    began = time.monotonic()
    with await dial("name", port) as connected:
        assert connected.getpeername()[0] == "127.0.0.1"
    assert time.monotonic() - began < 5
    await asyncio.wait_for(given_up.wait(), 2)


async def test_where_no_address_answers_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        resolves_to(monkeypatch, "127.0.0.1", "127.0.0.1")
        with pytest.raises(ConnectionRefusedError):
            await dial("name", taken.getsockname()[1])


async def test_the_second_try_is_of_the_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    resolves_to(monkeypatch, "::1", "::2", "::3", "127.0.0.1")

    async def sock_connect(_opened: socket.socket, address: Any) -> None:
        tried.append(address[0])
        raise OSError("not reached")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", sock_connect)
    with pytest.raises(OSError, match="not reached"):
        await dial("name", 1)
    assert tried == ["::1", "127.0.0.1", "::2", "::3"]
