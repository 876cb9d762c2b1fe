"""Addresses from users: which are allowed, the IP address that is used, and redirects."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from ricordo.errors import Invalid, Unavailable
from ricordo.llm import addresses
from ricordo.llm.addresses import (
    Connections,
    PinnedTransport,
    PublicConnections,
    is_public,
    post,
    require_callable,
)
from tests.support.model_server import Answer, ModelServer


@pytest.fixture
async def receiver() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


def test_only_ip_addresses_of_the_public_internet_are_public() -> None:
    inner = (
        "127.0.0.1 127.9.9.9 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 "
        "100.100.100.200 168.63.129.16 224.0.0.1 239.1.1.1 255.255.255.255 192.0.2.1 198.18.0.1 "
        "fec0::1 64:ff9b:1::a00:1 ::a00:1 ::ffff:0:a00:1 ::1 :: fe80::1 fe80::1%eth0 fc00::1 "
        "fd00:ec2::254 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 "
        "64:ff9b::a9fe:a9fe 2002:7f00:1:: 2001:0:4136:e378:8000:63bf:80ff:fffe example.com 127.1"
    )
    assert [number for number in (*inner.split(), "") if is_public(number)] == []
    outer = ("8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
    assert [number for number in outer if not is_public(number)] == []


def test_an_invalid_or_private_url_is_refused_before_any_connection() -> None:
    for url, words in (
        ("ftp://example.com/", "must begin with http"),
        ("/only/a/path", "must begin with http"),
        ("https://", "must begin with http"),
        ("https://ada:secret@example.com/", "name or password"),
        ("http://127.0.0.1:8283/", "not a public address"),
        ("http://10.0.0.1/v1", "not a public address"),
        ("http://127.1/", "not a public address"),
        ("http://[::1]/", "not a public address"),
        ("http://[fd00::1]/", "not a public address"),
        ("http://localhost/", "not a public address"),
        ("http://example.com:999999/", "cannot be read"),
        ("http://exa mple.com/", "cannot be read"),
    ):
        with pytest.raises(Invalid, match=words):
            require_callable(url)
    require_callable("https://example.com/done?id=3")
    require_callable("https://1.1.1.1/v1")
    require_callable("http://127.0.0.1:8283/", allow_private=True)


@pytest.mark.parametrize("found", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["8.8.8.8", "::1"], []])
async def test_a_name_that_resolves_to_a_private_address_is_refused(
    found: list[str], receiver: ModelServer
) -> None:
    async def lookup(_host: str, _port: int) -> list[str]:
        return found

    with pytest.raises(Invalid, match="RICORDO_ALLOW_PRIVATE_CALLBACKS"):
        await post(f"http://name.example:{receiver.port}/", b"{}", {}, lookup=lookup)
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost.localdomain"]
)
async def test_other_spellings_of_loopback_are_refused(host: str, receiver: ModelServer) -> None:
    with pytest.raises((Invalid, Unavailable)):
        await post(f"http://{host}:{receiver.port}/", b"{}", {})
    assert receiver.connections == 0


async def test_the_connection_uses_the_ip_address_that_was_checked(
    receiver: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def lookup(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]  # A second lookup could give another address, so there is none.

    monkeypatch.setattr(addresses, "is_public", lambda number: number == "127.0.0.1")
    posted = await post(
        f"http://rebinding.example:{receiver.port}/done?x=1",
        b'{"a":1}',
        {"X-One": "1"},
        lookup=lookup,
    )

    assert posted == 200
    assert 200 <= posted < 300
    assert asked == ["rebinding.example"]
    (seen,) = receiver.requests
    assert seen.headers["host"] == f"rebinding.example:{receiver.port}"
    assert seen.headers["x-one"] == "1"
    assert seen.path == "/done?x=1"
    assert seen.body == {"a": 1}


async def test_the_next_ip_address_of_a_name_is_tried_after_a_failed_connection(
    receiver: ModelServer,
) -> None:
    async def lookup(_host: str, _port: int) -> list[str]:
        return ["::1", "127.0.0.1"]

    posted = await post(
        f"http://two.example:{receiver.port}/", b"{}", {}, allow_private=True, lookup=lookup
    )
    assert 200 <= posted < 300


async def test_a_redirect_is_not_followed(receiver: ModelServer) -> None:
    receiver.push(Answer(status=307, headers={"location": f"{receiver.root}/elsewhere"}))

    posted = await post(f"{receiver.root}/", b"{}", {}, allow_private=True)

    assert posted == 307
    assert len(receiver.requests) == 1


async def test_a_response_that_takes_too_long_is_a_failure(receiver: ModelServer) -> None:
    receiver.push(Answer(delay=30))
    with pytest.raises(Unavailable, match=r"within 0\.1 seconds"):
        await post(f"{receiver.root}/", b"{}", {}, allow_private=True, timeout=0.1)


async def test_the_body_of_a_response_is_not_read(receiver: ModelServer) -> None:
    receiver.push(Answer(pieces=(b"x" * 1000,) * 1000))
    assert (
        await asyncio.wait_for(post(f"{receiver.root}/", b"{}", {}, allow_private=True), 2) == 200
    )


async def test_a_proxy_from_the_environment_is_not_used(
    receiver: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await post(f"{receiver.root}/", b"{}", {}, allow_private=True)) == 200


async def test_an_unreachable_address_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="could not be reached"):
        await post("http://127.0.0.1:1/", b"{}", {}, allow_private=True)


async def test_the_certificate_must_be_for_the_requested_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[httpx2.Request] = []

    async def answer(_self: object, request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(204)

    async def lookup(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34"]

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", answer)
    assert (await post("https://bücher.example/x", b"{}", {}, lookup=lookup)) == 204
    (request,) = seen
    assert str(request.url) == "https://93.184.216.34/x"
    assert request.extensions["sni_hostname"] == request.headers["host"] == "xn--bcher-kva.example"


def test_connecting_and_reading_have_separate_timeouts() -> None:
    for connections in (Connections(600), PublicConnections(600)):
        assert connections.client().timeout.as_dict() == {
            "connect": 10,
            "read": 600,
            "write": 600,
            "pool": 600,
        }
    assert Connections(3).timeout.connect == 3


async def test_a_model_on_this_machine_is_called_without_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


async def test_a_users_address_that_resolves_to_a_private_one_is_refused_before_sending() -> None:
    behind = {
        "one.example": ["127.0.0.1"],
        "two.example": ["1.1.1.1", "10.0.0.1"],
        "none.example": [],
    }

    async def lookup(host: str, _port: int) -> list[str]:
        if host == "nobody.example":
            raise OSError("unknown")
        return behind[host]

    async with ModelServer() as server:
        for host in behind:
            connections = PublicConnections(1, lookup)
            with pytest.raises(httpx2.UnsupportedProtocol, match="not a public address"):
                await connections.client().get(f"http://{host}:{server.port}/")
            with pytest.raises(httpx2.ConnectError):
                await connections.client().get("http://nobody.example/")
            assert server.connections == 0
            await connections.close()


async def test_only_the_pools_of_the_last_addresses_stay_open(
    receiver: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open response keeps its connection, also when its pool was dropped."""

    async def lookup(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(addresses, "MOST_POOLS", 2)
    transport = PinnedTransport("X", allow_private=True, lookup=lookup)
    async with httpx2.AsyncClient(transport=transport) as client:

        def url(number: int) -> str:
            return f"http://host-{number}.test:{receiver.port}/v1/models"

        async with client.stream("GET", url(0)) as first:
            for number in range(1, 9):
                assert (await client.get(url(number))).status_code == 200
            await until(lambda: len(receiver._open) == 3)
            assert b"scripted-1" in await first.aread()
        await until(lambda: len(receiver._open) == 2)
        assert receiver.connections == 9
        for number in (8, 7, 8):  # these are still connected
            await client.get(url(number))
        assert receiver.connections == 9
        await client.get(url(1))
        assert receiver.connections == 10
        await until(lambda: len(receiver._open) == 2)
    await until(lambda: not receiver._open)


async def test_a_failed_request_leaves_no_pool_in_use(
    receiver: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lookup(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(addresses, "MOST_POOLS", 1)
    transport = PinnedTransport("X", allow_private=True, lookup=lookup)
    async with httpx2.AsyncClient(transport=transport) as client:
        receiver.push(Answer(wire=b"HTTP/1.1 ok\r\n\r\n"))
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(f"http://one.test:{receiver.port}/")
        for name in ("two", "three"):
            await client.get(f"http://{name}.test:{receiver.port}/")
        await until(lambda: len(receiver._open) == 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the server's sockets notify nobody
            await asyncio.sleep(0.01)
