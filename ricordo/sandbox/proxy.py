"""The way out of the sandbox: an HTTP proxy to public addresses and to this server.

It listens on a socket in the network of the sandbox, and refuses other private addresses.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from ipaddress import ip_address
from urllib.parse import urlsplit

from ricordo.errors import RicordoError
from ricordo.llm.addresses import connect

_HEAD = 16_384  # bytes of a request's line and headers
_PORTS = (80, 443)
_CONNECT = 10.0  # seconds
_CHUNK = 1 << 16  # bytes
_MOST = 32  # connections of one call at the same time
# Seconds after which a program counts as waiting for an answer. A large answer has shorter pauses.
_PATIENCE = 0.05
Waiting = Callable[[], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def serve(
    listener: socket.socket,
    *,
    is_open: bool,
    server: str = "",
    key: str = "",
    waiting: Waiting = nullcontext,
) -> AsyncIterator[None]:
    """Serve the proxy on this listening socket until the block ends.

    Args:
        listener: A listening socket in the network of the sandbox.
        is_open: Allow public addresses, at the ports of HTTP and HTTPS.
        server: An address of this server (http://host:port) that is also allowed; "" allows none.
        key: The API key that each request to `server` carries, whatever the program sent; "" adds
            none.
        waiting: A function whose context manager is open while the program waits for an answer of
            `server`. The answer may need another program, which would wait for this one's slot.
    """
    proxy = _Proxy(is_open, server, key, waiting)
    answering = await asyncio.start_server(proxy.answer, sock=listener, limit=_HEAD)
    try:
        yield
    finally:
        answering.close()
        for task in list(proxy.running):
            task.cancel()
        await asyncio.gather(*proxy.running, return_exceptions=True)


class _Proxy:
    def __init__(self, is_open: bool, server: str, key: str, waiting: Waiting) -> None:
        self._is_open = is_open
        self._waiting = waiting
        self._key = key
        parts = urlsplit(server)
        self._server = (parts.hostname or "", parts.port or 80) if server else None
        self.running: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: a tunnel for CONNECT, otherwise one forwarded request."""
        task = asyncio.current_task()
        assert task
        self.running.add(task)
        try:
            if len(self.running) > _MOST:
                await _refuse(writer, 503, f"A program has at most {_MOST} connections at once.")
                return
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the program closed the connection, or did not speak HTTP
        finally:
            self.running.discard(task)
            writer.close()

    def _is_server(self, host: str, port: int) -> bool:
        """Return True if this is the allowed server of this machine.

        Any name of the loopback interface counts as the same host.
        """
        if self._server is None or port != self._server[1]:
            return False
        return host == self._server[0] or (_is_loopback(host) and _is_loopback(self._server[0]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        is_tunnel = method == "CONNECT"
        parts = urlsplit("" if is_tunnel else target)
        host = parts.hostname or ""
        port = parts.port or 80
        if is_tunnel:
            host, _, number = target.rpartition(":")
            host = host.strip("[]")  # some clients write an IPv6 address without brackets
            port = int(number)
        if not is_tunnel and parts.scheme != "http":
            return await _refuse(
                writer, 400, "This is a proxy: ask for http://host/path, or CONNECT host:443."
            )
        is_server = self._is_server(host, port)
        # A tunnel or a bare line break could carry a request that does not get the key's header.
        is_unclear = is_tunnel or re.search(rb"[\r\n]", head.replace(b"\r\n", b""))
        if is_server and self._key and is_unclear:
            return await _refuse(
                writer, 403, "Ask this server for http://host/path, in plain HTTP."
            )
        if is_server and self._server:
            far = await asyncio.open_connection(*self._server)
        elif not self._is_open or port not in _PORTS:
            allowed = "this server's own address"
            if self._is_open:
                allowed = "public addresses at the ports 80 and 443"
            return await _refuse(
                writer, 403, f"From the sandbox {host}:{port} cannot be reached: only {allowed}."
            )
        else:
            try:
                connection = await asyncio.to_thread(
                    connect, host, port, _CONNECT, allow_private=False, setting="no setting"
                )
            except RicordoError as error:
                return await _refuse(writer, 403, str(error))
            connection.setblocking(False)
            far = await asyncio.open_connection(sock=connection)
        far_reader, far_writer = far
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                # One request per connection, so that each target is checked.
                path = parts._replace(scheme="", netloc="").geturl() or "/"
                replaced: tuple[bytes, ...] = (b"proxy-", b"connection:")
                request = f"{method} {path} {version}\r\nConnection: close\r\n".encode("latin-1")
                if is_server and self._key:
                    replaced = (*replaced, b"authorization:", b"cookie:")
                    request += b"Authorization: Bearer %s\r\n" % self._key.encode()
                far_writer.write(request + _without_headers(headers, replaced))
            # A silent tunnel does not tell whether the program waits for an answer.
            waits_for_server = is_server and not is_tunnel
            waiting = self._waiting if waits_for_server else nullcontext
            await asyncio.gather(
                _copy(reader, far_writer), _copy(far_reader, writer, closes=True, waiting=waiting)
            )
        finally:
            far_writer.close()


def _without_headers(headers: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    lines = headers.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(prefixes))


def _is_loopback(host: str) -> bool:
    """Return True if a host is a name or address of the loopback."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    closes: bool = False,
    waiting: Waiting = nullcontext,
) -> None:
    """Copy until the end; with `closes`, also end the other direction.

    `waiting` is open while no byte has come for some time.
    """
    with contextlib.suppress(ConnectionError):
        while chunk := await _next_chunk(reader, waiting):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        if closes:
            writer.close()
        elif writer.can_write_eof():
            writer.write_eof()


async def _next_chunk(reader: asyncio.StreamReader, waiting: Waiting) -> bytes:
    reading = asyncio.ensure_future(reader.read(_CHUNK))
    try:
        await asyncio.wait({reading}, timeout=_PATIENCE)
        if not reading.done():
            async with waiting():
                await asyncio.wait({reading})
        return await reading
    finally:
        reading.cancel()


async def _refuse(writer: asyncio.StreamWriter, status: int, reason: str) -> None:
    body = f"{reason}\n".encode()
    head = f"HTTP/1.1 {status} Refused\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
