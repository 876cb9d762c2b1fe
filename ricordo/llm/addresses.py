"""Connections to other hosts; addresses that users chose must be public.

A name is resolved once, all its addresses are checked, and the connection goes to one of these
addresses. A later change of the name has no effect.
"""

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from ricordo.domain.ids import unique
from ricordo.errors import Invalid, Unavailable
from ricordo.llm.answer_bounds import BoundedClient
from ricordo.llm.policy import CONNECT_TIMEOUT

CALLBACKS = "RICORDO_ALLOW_PRIVATE_CALLBACKS"
PROVIDERS = "RICORDO_ALLOW_PRIVATE_PROVIDERS"
TIMEOUT = 10.0  # seconds for the whole exchange
_CONNECT = 3.0  # seconds to connect to one address of a name
_MOST = 3  # addresses of a name that are tried
_PORTS = {"http": 80, "https": 443}
# Addresses that clouds use inside their networks for services that give out credentials. The first
# is a public address.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254"))
)
# Further internal addresses that `ipaddress` may call public. These are old site-local addresses,
# and IPv6 addresses in which a network embeds an IPv4 address.
_INNER = tuple(
    map(ipaddress.ip_network, ("fec0::/10", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNREADABLE = "The address cannot be read. Give one as https://host/path."

# Limits of the connections to models.
MAX_CONNECTIONS = 100
LIMITS = httpx2.Limits(
    max_connections=MAX_CONNECTIONS, max_keepalive_connections=40, keepalive_expiry=60
)
# Addresses whose connections a transport keeps for the next request.
MOST_POOLS = 64
# A proxy from the environment is for outside hosts, never for a server on this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Awaitable[list[str]]]


def is_public(text: str) -> bool:
    """Return whether this is a public IP address: not private, loopback, link-local or metadata."""
    try:
        address = _innermost(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    is_inner = address in _METADATA or any(address in network for network in _INNER)
    return address.is_global and not address.is_multicast and not is_inner


def require_callable(url: str, *, allow_private: bool = False, setting: str = CALLBACKS) -> None:
    """Raise Invalid if this is no HTTP address, or if its host is a private IP address.

    Nothing is resolved.

    Args:
        url: The address as it was entered. One with a name or password is refused.
        allow_private: Whether private IP addresses are allowed.
        setting: The setting that permits private addresses. The error names it.
    """
    parts = _parsed(url)
    if parts.scheme not in _PORTS or not parts.host:
        raise Invalid("The address must begin with http:// or https:// and name a host.")
    if parts.userinfo:
        raise Invalid(
            "The address holds a name or password, which would be stored and shown. Leave it out."
        )
    if not allow_private:
        require_public_host(parts.host, setting=setting)


def require_public_host(host: str, *, setting: str) -> None:
    """Raise Invalid if the host literally is this machine or in a private network.

    Nothing is resolved.

    Args:
        host: A name or an IP address.
        setting: The setting that permits such hosts. The error names it.
    """
    is_number = False
    with suppress(OSError, UnicodeError):
        # This also recognizes short forms of an address, such as 127.1.
        is_number = bool(socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST))
    if (is_number or host == "localhost") and not is_public(host):
        raise Invalid(_refusal(host, setting))


def connect(
    host: str, port: int, timeout: float, *, allow_private: bool, setting: str
) -> socket.socket:
    """Connect to a checked address of a host.

    It blocks, so call it in a thread.

    Args:
        host: A name or an IP address.
        port: The TCP port.
        timeout: Seconds for each of at most three addresses.
        allow_private: Whether private IP addresses are allowed.
        setting: The setting that permits private addresses. The error names it.

    Raises:
        Invalid: if one of the host's addresses is not allowed.
        Unavailable: if no address can be reached.
    """
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        numbers = [str(row[4][0]) for row in rows]
        *others, last = _checked(host, numbers, setting, allow_private=allow_private)
        for number in others:
            with suppress(OSError):
                return socket.create_connection((number, port), timeout)
        return socket.create_connection((last, port), timeout)
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            f"{host}:{port} cannot be reached ({type(error).__name__}). Check it."
        ) from error


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allow_private: bool = False,
    timeout: float = TIMEOUT,
    lookup: Lookup | None = None,
) -> int:
    """Send the body and return the status of the answer.

    Redirects are not followed, and the body of the answer is not read.

    Args:
        url: The address.
        body: The bytes to send.
        headers: The headers to send.
        allow_private: Whether private IP addresses are allowed.
        timeout: Seconds for the whole exchange.
        lookup: Returns the IP addresses of a name; None asks the system.

    Raises:
        Invalid: if the address is not allowed.
        Unavailable: if there is no answer.
    """
    require_callable(url, allow_private=allow_private)
    transport = PinnedTransport(CALLBACKS, allow_private=allow_private, lookup=lookup)
    waits = httpx2.Timeout(None, connect=_CONNECT)
    try:
        async with (
            asyncio.timeout(timeout),
            httpx2.AsyncClient(
                transport=transport, trust_env=False, follow_redirects=False, timeout=waits
            ) as client,
            # The body of the answer is not read.
            client.stream("POST", _parsed(url), content=body, headers=dict(headers)) as answer,
        ):
            return answer.status_code
    except PrivateAddress as error:
        raise Invalid(str(error)) from error
    except TimeoutError as error:
        raise Unavailable(f"There was no answer within {timeout:g} seconds.") from error
    except (httpx2.HTTPError, OSError, UnicodeError) as error:
        raise Unavailable(f"The address could not be reached ({type(error).__name__}).") from error


class PrivateAddress(httpx2.UnsupportedProtocol):
    """A host on this machine or in its network. No connection to it is made."""


@dataclass(slots=True)
class _Pool:
    """The connections to one address of a host.

    `in_use` counts the requests whose responses are still open.
    """

    transport: httpx2.AsyncHTTPTransport
    in_use: int = 0
    is_dropped: bool = False

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; the pool is in use until its response is closed."""
        self.in_use += 1
        try:
            response = await self.transport.handle_async_request(request)
        except BaseException:
            await self.release()
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of this transport
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_PooledStream(response.stream, self),
            extensions=response.extensions,
        )

    async def release(self) -> None:
        """Note that a response was closed. A dropped pool is closed after the last one."""
        self.in_use -= 1
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        if self.is_dropped and not self.in_use:
            await self.transport.aclose()


class _PooledStream(httpx2.AsyncByteStream):
    """The body of a response, which frees its pool when it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, pool: _Pool) -> None:
        self._stream = stream
        self._pool: _Pool | None = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            pool = self._pool
            self._pool = None
            if pool is not None:
                await pool.release()


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Connects to the checked addresses of a host, with one connection pool for each address.

    It keeps the pools of the `MOST_POOLS` addresses that were used last. Each other pool is closed
    as soon as it has no open response. Tests may replace `lookup`.
    """

    def __init__(
        self,
        setting: str,
        *,
        allow_private: bool = False,
        lookup: Lookup | None = None,
        limits: httpx2.Limits | None = None,
    ) -> None:
        self._setting = setting
        self._allow_private = allow_private
        self._lookup = lookup or _lookup
        self._limits = limits or httpx2.Limits()
        # The pool that was used last is at the end.
        self._pools: OrderedDict[tuple[str, str], _Pool] = OrderedDict()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to one of the host's addresses, all of which must be allowed.

        Args:
            request: The request, whose host is resolved here.

        Raises:
            PrivateAddress: One of the host's addresses is not allowed.
            httpx2.UnsupportedProtocol: The address is neither http nor https.
            httpx2.ConnectError: The host cannot be resolved, or the last address that was tried
                refuses.
            httpx2.ConnectTimeout: The last address that was tried does not answer in time.
        """
        url = request.url
        if url.scheme not in _PORTS:
            raise httpx2.UnsupportedProtocol(
                f"The protocol {url.scheme} is not supported. Use http or https.", request=request
            )
        try:
            numbers = await self._lookup(url.host, url.port or _PORTS[url.scheme])
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        try:
            *others, last = _checked(
                url.host, numbers, self._setting, allow_private=self._allow_private
            )
        except Invalid as error:
            raise PrivateAddress(str(error), request=request) from error
        for number in others:
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._send(request, number)
        return await self._send(request, last)

    async def _send(self, request: httpx2.Request, number: str) -> httpx2.Response:
        url = request.url
        pinned = httpx2.Request(
            request.method,
            url.copy_with(host=number),
            headers=request.headers,  # with the original host
            stream=request.stream,
            # The certificate must be for the original name.
            extensions={**request.extensions, "sni_hostname": url.raw_host.decode("ascii")},
        )
        if (url.host, number) not in self._pools:
            # Loading the certificates is slow and must not block the event loop.
            transport = await asyncio.to_thread(
                httpx2.AsyncHTTPTransport, trust_env=False, limits=self._limits
            )
            self._pools.setdefault((url.host, number), _Pool(transport))
        pool = self._pools[url.host, number]
        self._pools.move_to_end((url.host, number))
        # No other task runs between the choice of the pool and `send`, which marks it as in use.
        try:
            return await pool.send(pinned)
        finally:
            await self._drop_oldest()

    async def _drop_oldest(self) -> None:
        while len(self._pools) > MOST_POOLS:
            _, pool = self._pools.popitem(last=False)
            pool.is_dropped = True
            await pool.close_if_unused()

    async def aclose(self) -> None:
        while self._pools:
            _, pool = self._pools.popitem()
            await pool.transport.aclose()


class Connections:
    """One shared client. `timeout` is the longest silence, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None

    @property
    def timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))

    def client(self) -> httpx2.AsyncClient:
        """Return the client, made by the first call."""
        if self._client is None or self._client.is_closed:
            self._client = self._open()
        return self._client

    def _open(self) -> httpx2.AsyncClient:
        return BoundedClient(timeout=self.timeout, limits=LIMITS, mounts=dict.fromkeys(_LOOPBACK))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class PublicConnections(Connections):
    """Connections to public addresses only, for users' addresses; tests may replace `lookup`."""

    def __init__(self, timeout: float, lookup: Lookup | None = None) -> None:
        super().__init__(timeout)
        self._lookup = lookup

    def _open(self) -> httpx2.AsyncClient:
        # Use no proxy, since it would resolve the name again. Follow no redirects, since the
        # request and its key are only for the host that the user named.
        transport = PinnedTransport(PROVIDERS, lookup=self._lookup, limits=LIMITS)
        return BoundedClient(
            timeout=self.timeout, transport=transport, trust_env=False, follow_redirects=False
        )


async def _lookup(host: str, port: int) -> list[str]:
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in rows]


def _checked(host: str, numbers: list[str], setting: str, *, allow_private: bool) -> list[str]:
    """Return the IP addresses to try, in order.

    Refuse a host with any private address, since its owner could choose which address is used.
    """
    if not numbers or not (allow_private or all(map(is_public, numbers))):
        raise Invalid(_refusal(host, setting))
    return unique(numbers)[:_MOST]


def _innermost(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 address, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def _parsed(url: str) -> httpx2.URL:
    try:
        parts = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise Invalid(_UNREADABLE) from error
    is_port_valid = parts.port is None or 0 < parts.port < 65536
    if not is_port_valid or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise Invalid(_UNREADABLE)
    return parts


def _refusal(host: str, setting: str) -> str:
    return (
        f"{host} is not a public address, or leads to this machine or its network, which requests "
        f"may not reach. Use a public address, or ask the operator to set {setting}."
    )
