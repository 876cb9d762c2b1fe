"""HTTP/1.1 to model servers, straight on the event loop: a call through the library's own transport takes five times as much.

Below the library's client, which keeps what is subtle: redirects, encodings, proxies. Here are connections, their time-outs and
their reuse; what goes wrong is raised as the library's own errors.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import httptools
import httpx2

from ricordo.llm.dialling import dial

_Place = tuple[bytes, bytes, int]
_PORTS: Final = {b"http": 80, b"https": 443}
_HEAD_LIMIT: Final = 100_000  # bytes of headers; more is no answer
_AHEAD: Final = 1_000_000  # bytes that wait to be read before the server has to


class DirectTransport(httpx2.AsyncBaseTransport):
    """Connections to any number of servers, at most `most` at once; `kept` idle ones stay open for some seconds each."""

    def __init__(self, *, most: int, kept: int, kept_seconds: float) -> None:
        self._room = asyncio.Semaphore(most)
        self._kept, self._kept_seconds = kept, kept_seconds
        self._idle: dict[_Place, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; returns when the head of the answer is there. Raises httpx2.TransportError."""
        limits = request.extensions.get("timeout", {})
        data = await _written(request)
        await _within(self._room.acquire(), limits.get("pool"), httpx2.PoolTimeout("All connections are in use."))
        connection: _Connection | None = None
        try:
            connection = self._taken(request.url) or await self._opened(request.url, limits.get("connect"))
            await connection.send(data, limits.get("write"))
            head = await connection.head(limits.get("read"))
        except BaseException:
            if connection:
                connection.close()
            self._room.release()
            raise
        return httpx2.Response(
            head.status,
            headers=head.headers,
            stream=_Body(connection, limits.get("read"), self._give_back),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": head.reason},
        )

    async def aclose(self) -> None:
        """Close the idle connections; those in use close with their answers."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        self._kept = 0

    def _taken(self, url: httpx2.URL) -> "_Connection | None":
        waiting = self._idle.get(_place(url))
        while waiting:
            connection = waiting.pop()
            connection.wake()
            if connection.is_open:
                return connection
        return None

    async def _opened(self, url: httpx2.URL, timeout: float | None) -> "_Connection":
        scheme, host, port = place = _place(url)
        if scheme not in _PORTS:
            raise httpx2.UnsupportedProtocol(f"Request URL has an unsupported protocol '{url.scheme}://'.")
        options: dict[str, Any] = {}
        if scheme == b"https":
            if self._tls is None:
                self._tls = httpx2.create_ssl_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            options = {"ssl": self._tls, "server_hostname": host.decode("ascii")}
        loop = asyncio.get_running_loop()

        async def open_one() -> _Connection:
            dialled = await dial(host.decode("ascii"), port)
            try:
                _, connection = await loop.create_connection(lambda: _Connection(place, loop), sock=dialled, **options)
            except BaseException:
                dialled.close()
                raise
            return connection

        try:
            opened: _Connection = await _within(open_one(), timeout, httpx2.ConnectTimeout(""))
        except OSError as error:  # of TLS too
            raise httpx2.ConnectError(str(error)) from error
        return opened

    def _give_back(self, connection: "_Connection") -> None:
        """The connection's answer was read or is wanted no more."""
        self._room.release()
        if not connection.is_reusable or self._kept < 1:
            connection.close()
            return
        if sum(map(len, self._idle.values())) >= self._kept:
            min((waiting[0] for waiting in self._idle.values() if waiting), key=lambda one: one.idle_since).close()
        for place, waiting in list(self._idle.items()):
            self._idle[place] = [one for one in waiting if one.is_open]
        self._idle.setdefault(connection.place, []).append(connection)
        connection.rest(self._kept_seconds)


class _Head:
    """The head of an answer, as it comes in."""

    __slots__ = ("headers", "reason", "size", "status")

    def __init__(self) -> None:
        self.status, self.reason, self.size = 0, b"", 0
        self.headers: list[tuple[bytes, bytes]] = []


class _Connection(asyncio.Protocol):
    """One connection, which carries one call at a time; the parser calls its `on_…` methods."""

    def __init__(self, place: _Place, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        self.idle_since = 0.0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._pieces: deque[bytes] = deque()
        self._ahead = 0
        self._error: Exception | None = None
        self._is_lost = self._is_whole = self._is_headed = self._is_stopped = self._is_used = self._is_held = False
        self._begin()

    def _begin(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._head = _Head()
        self._is_headed = self._is_whole = self._stays = False

    # What the transport uses.

    @property
    def is_open(self) -> bool:
        """Whether the server has not hung up."""
        return not self._is_lost and self._error is None and self._transport is not None

    @property
    def is_reusable(self) -> bool:
        """Whether the answer was read to its end and another call may follow."""
        return self.is_open and self._is_whole and not self._pieces and self._stays

    async def send(self, data: bytes, timeout: float | None) -> None:
        """Write a whole request, and wait until the system has taken most of it."""
        self._begin()
        assert self._transport is not None  # noqa: S101 - it was connected
        self._is_used = True
        self._transport.write(data)
        while self._is_stopped and not self._is_lost and not self._is_headed:
            await self._wait(timeout, httpx2.WriteTimeout)

    async def head(self, timeout: float | None) -> _Head:
        """The head of the answer."""
        while not self._is_headed:
            self._require_open("Server disconnected without sending a response.")
            await self._wait(timeout, httpx2.ReadTimeout)
        return self._head

    async def piece(self, timeout: float | None) -> bytes:
        """The next bytes of the body; empty at its end."""
        while not self._pieces:
            if self._is_whole:
                return b""
            self._require_open("The connection was closed before the answer had ended.")
            await self._wait(timeout, httpx2.ReadTimeout)
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._ahead = 0
        if self._is_held and self._transport and not self._is_lost:
            self._is_held = False
            self._transport.resume_reading()
        return data

    def rest(self, seconds: float) -> None:
        """Be closed unless another call comes within these seconds."""
        self._is_used = False
        self.idle_since = self._loop.time()
        self._resting = self._loop.call_later(seconds, self.close)

    def wake(self) -> None:
        """Another call takes it."""
        if self._resting:
            self._resting.cancel()
            self._resting = None

    def close(self) -> None:
        """Hang up, now."""
        self.wake()
        self._is_lost = True
        if self._transport:
            self._transport.abort()

    def _require_open(self, otherwise: str) -> None:
        if self._error:
            raise self._error
        if self._is_lost:
            raise httpx2.RemoteProtocolError(otherwise)

    async def _wait(self, timeout: float | None, late: type[httpx2.TimeoutException]) -> None:
        waiting = self._waiting = self._loop.create_future()
        timer = self._loop.call_later(timeout, _fail, waiting, late) if timeout is not None else None
        try:
            await waiting
        finally:
            self._waiting = None
            if timer:
                timer.cancel()

    def _tell(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)  # of uvloop's kind in a server

    def data_received(self, data: bytes) -> None:
        """Something came in."""
        if not self._is_used or self._is_whole:
            self.close()  # nobody asked: whatever it is, it is no answer to the next call
        else:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                self._error = self._error or httpx2.RemoteProtocolError(str(error))
            except httptools.HttpParserUpgrade:
                self._error = httpx2.RemoteProtocolError("The server changed the protocol.")
            self._require_a_head(len(data))
        self._tell()

    def eof_received(self) -> bool:
        """The server has nothing more to say; a body whose length it did not tell ends here."""
        self._hung_up(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._hung_up(error)

    def pause_writing(self) -> None:
        """The server takes no more for now."""
        self._is_stopped = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_stopped = False
        self._tell()

    def _require_a_head(self, received: int) -> None:
        if not self._is_headed:
            self._head.size += received
            if self._head.size > _HEAD_LIMIT:
                self._error = self._error or httpx2.RemoteProtocolError("The head of the answer is too long.")
                self.close()

    def _hung_up(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            names = {name.lower() for name, _ in self._head.headers}
            has_end = b"content-length" in names or b"transfer-encoding" in names
            if self._is_headed and not has_end and error is None:
                self._is_whole = True
            elif error is not None and not self._is_whole:
                self._error = self._error or httpx2.ReadError(str(error))
        self._tell()

    # What the parser finds.

    def on_message_begin(self) -> None:
        """An answer begins; a second one is to no call."""
        if self._is_whole:
            self.close()

    def on_status(self, reason: bytes) -> None:
        """A piece of the words behind the status."""
        self._head.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if not self._is_whole:
            self._head.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole, unless it only says that another will follow."""
        if self._is_whole:
            return
        self._head.status = self._parser.get_status_code()
        self._is_headed = self._head.status >= 200

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        if self._is_whole:
            return
        self._pieces.append(data)
        self._ahead += len(data)
        if self._ahead > _AHEAD and self._transport and not (self._is_held or self._is_lost):
            self._is_held = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._is_headed and not self._is_whole:
            self._is_whole = True
            self._stays = bool(self._parser.should_keep_alive())  # which the parser knows now, and not later
        elif not self._is_headed:
            self._head = _Head()


class _Body(httpx2.AsyncByteStream):
    """The body of one answer; closing it early hangs up."""

    def __init__(self, connection: _Connection, timeout: float | None, done: Callable[[_Connection], None]) -> None:
        self._connection: _Connection | None = connection
        self._timeout = timeout
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while self._connection and (data := await self._connection.piece(self._timeout)):
                yield data
        finally:
            self._end()

    async def aclose(self) -> None:
        """Read no more."""
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            self._done(connection)


async def _written(request: httpx2.Request) -> bytes:
    """The request as it goes over the wire. Raises httpx2.LocalProtocolError."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise httpx2.LocalProtocolError(f"Illegal value of the header {name.decode('latin-1')}.")
        lines.append(b"%b: %b" % (name, value))
    assert isinstance(request.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client has seen to it
    body = b"".join([piece async for piece in request.stream])
    if "transfer-encoding" in request.headers:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return b"\r\n".join([*lines, b"", body])


async def _within(work: Any, timeout: float | None, late: Exception) -> Any:
    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError as error:
        raise late from error


def _fail(waiting: "asyncio.Future[None]", late: type[httpx2.TimeoutException]) -> None:
    if not waiting.done():
        waiting.set_exception(late(""))


def _place(url: httpx2.URL) -> _Place:
    return url.raw_scheme, url.raw_host, url.port or _PORTS.get(url.raw_scheme, 0)
