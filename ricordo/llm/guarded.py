"""Connections for addresses that users gave: only public ones are spoken to, and only at the very address that was checked."""

import asyncio
import socket

import httpx2

from ricordo.errors import Invalid
from ricordo.llm.addresses import Lookup, is_public
from ricordo.llm.connections import KEPT_ALIVE, KEPT_SECONDS, MAX_CONNECTIONS, Connections

_PORTS = {"http": 80, "https": 443}


def require_public(url: str) -> None:
    """Raise Invalid where the address, by its very words, is none of the world outside."""
    host = httpx2.URL(url).host
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        is_number = False
    else:
        is_number = True
    if host == "localhost" or (is_number and not is_public(host)):
        raise Invalid(_refusal(host))


class PublicConnections(Connections):
    """The same, for public addresses alone. `lookup` is replaceable for tests."""

    def __init__(self, timeout: float, lookup: Lookup | None = None) -> None:
        super().__init__(timeout)
        self._lookup = lookup or _resolve

    def client(self) -> httpx2.AsyncClient:
        """The client; the first call makes it."""
        if self._client is None or self._client.is_closed:
            # No proxy, which would resolve the name anew; no redirect, which would lead to an address nobody checked.
            self._client = httpx2.AsyncClient(
                timeout=self.timeout, transport=_Guard(self._lookup), trust_env=False, follow_redirects=False
            )
        return self._client


class _Guard(httpx2.AsyncBaseTransport):
    """Resolves and checks a name, then connects to a number. Each name has a pool of its own, as its certificate is."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._pools: dict[tuple[str, str], httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to one of the addresses of its host, all of which are public."""
        url = request.url
        if url.scheme not in _PORTS:
            raise httpx2.UnsupportedProtocol(f"{url.scheme} is not spoken here.", request=request)
        try:
            numbers = await self._lookup(url.host, url.port or _PORTS[url.scheme])
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        # One private address among public ones is refused as a whole: which of them is taken would be the giver's choice.
        if not numbers or not all(map(is_public, numbers)):
            raise httpx2.UnsupportedProtocol(_refusal(url.host), request=request)
        pinned = httpx2.Request(
            request.method,
            url.copy_with(host=numbers[0]),
            headers=request.headers,  # with the host as it was asked for
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": url.raw_host.decode("ascii")},
        )
        return await (await self._pool(url.host, numbers[0])).handle_async_request(pinned)

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()

    async def _pool(self, host: str, number: str) -> httpx2.AsyncHTTPTransport:
        pool = self._pools.get((host, number))
        if pool is None:
            limits = httpx2.Limits(
                max_connections=MAX_CONNECTIONS, max_keepalive_connections=KEPT_ALIVE, keepalive_expiry=KEPT_SECONDS
            )
            # Certificates take a while to load, which nobody else should wait for.
            made = await asyncio.to_thread(lambda: httpx2.AsyncHTTPTransport(trust_env=False, limits=limits))
            pool = self._pools.setdefault((host, number), made)
        return pool


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


def _refusal(host: str) -> str:
    return (
        f"{host} is no public address, or leads to one of this machine or its network, where providers of users are not "
        "looked for. Give a public address, or let the operator configure this server."
    )
