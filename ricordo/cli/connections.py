"""Limits for a connection: bytes of headers, time, and the number of connections.

uvicorn and its parser lack these limits. A body, a push or a stream may last any time as long as it
makes progress.
"""

import time
from collections.abc import Iterable
from enum import Enum
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ricordo.settings import LOOPBACK, Settings

MOST_HEADERS = 100
MOST_PIPELINED = 16  # the most requests that may be sent before the first one is answered
SLOWEST = 500  # the fewest bytes a second, for a body and for an answer that the client reads
_Refusal = tuple[int, str]


class _Phase(Enum):
    HEAD = "head"
    BODY = "body"
    WHOLE = "whole"


class BoundedConnection(HttpToolsProtocol):
    """A connection with limits on a request's size and time.

    `sweep` ends requests that exceed their time.
    """

    def __init__(self, settings: Settings, **protocol_options: Any) -> None:
        super().__init__(**protocol_options)
        self._settings = settings
        self._seconds = settings.client_timeout
        self._max_head_bytes = settings.max_header_kb * 1024
        self._refusal: _Refusal | None = None
        self._has_begun = False
        self._enter(_Phase.HEAD)
        # Bytes and headers of the request's head that is being read.
        self._head = 0
        self._headers = 0
        self._unsent = 0
        self._unsent_since = 0.0

    @property
    def is_idle(self) -> bool:
        """True if no request with complete headers is lost when this connection is closed."""
        return self._phase is not _Phase.BODY and (
            self.cycle is None or self.cycle.response_complete
        )

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        everybody = [other for other in self.connections if isinstance(other, BoundedConnection)]
        self._limit(everybody, self._settings.max_connections, "RICORDO_MAX_CONNECTIONS")
        # A proxy on this machine keeps the connections of all its clients.
        if peer not in LOOPBACK:
            same = [other for other in everybody if other.client and other.client[0] == peer]
            limit = self._settings.max_client_connections
            self._limit(same, limit, "RICORDO_MAX_CLIENT_CONNECTIONS")

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.WHOLE and self.cycle.response_complete:
            self._enter(_Phase.HEAD)
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self._max_head_bytes and not self.transport.is_closing():
            self._refuse(*self._too_long())

    def on_message_begin(self) -> None:
        self._enter(_Phase.HEAD)
        self._has_begun = True
        self._head = self._headers = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, and pass it on.

        Args:
            name: Its name, as sent.
            value: Its value, as sent.

        Raises:
            ValueError: There are too many headers, or too many bytes of them. It stops the parser.
        """
        self._headers += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self._fail(
                (
                    400,
                    f"More than {MOST_PIPELINED} requests wait on this connection. Wait for their "
                    "answers.",
                )
            )
        super().on_headers_complete()
        self._enter(_Phase.BODY)

    def on_body(self, body: bytes) -> None:
        """Count a piece of a request's body, and pass it on.

        Args:
            body: The bytes, at most one read of the socket.
        """
        self._unparsed = 0
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter(_Phase.WHOLE)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, msg)))

    def sweep(self, now: float) -> None:
        """End the connection if its client is too slow.

        Args:
            now: The time of the monotonic clock, in seconds.
        """
        is_busy = self.cycle is not None and not self.cycle.response_complete
        is_head = self._phase is _Phase.HEAD
        if self.flow.read_paused or (is_busy and (is_head or self.cycle.waiting_for_100_continue)):
            self._since = now  # in this state the client waits, not the server
        allowed = self._seconds + (self._received / SLOWEST if is_busy else 0)
        if self._phase is not _Phase.WHOLE and now - self._since > allowed:
            if is_head and not self._has_begun and not self._unparsed:
                self.transport.close()  # no request has begun
            self._refuse(
                408,
                f"The {self._phase.value} of the request did not arrive in time. Send it again.",
            )
        self._end_slow_reader(now)

    def _end_slow_reader(self, now: float) -> None:
        """End the connection if its client reads the answer too slowly.

        Nothing more is written while the buffer is full. So the buffer's size shows how much was
        read.
        """
        is_full = self.flow.write_paused or self.transport.is_closing()
        unsent = self.transport.get_write_buffer_size() if is_full else 0
        slowest_progress = SLOWEST * (now - self._unsent_since)
        if not unsent or not self._unsent or self._unsent - unsent > slowest_progress:
            self._unsent = unsent
            self._unsent_since = now
        elif now - self._unsent_since > self._seconds:
            self.transport.abort()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._since = time.monotonic()
        self._received = 0
        # Bytes since the parser last made progress.
        self._unparsed = 0

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self._max_head_bytes:
            self._fail(self._too_long())
        if self._headers > MOST_HEADERS:
            self._fail((431, f"The request has more than {MOST_HEADERS} headers. Send fewer."))

    def _too_long(self) -> _Refusal:
        kilobytes = self._settings.max_header_kb
        return (
            431,
            f"The headers of the request are longer than {kilobytes} kB. Send less, or raise "
            "RICORDO_MAX_HEADER_KB.",
        )

    def _fail(self, refusal: _Refusal) -> None:
        """Stop the parser with an error. The connection then answers with the refusal."""
        self._refusal = refusal
        raise ValueError(refusal[1])

    def _limit(self, connections: Iterable["BoundedConnection"], limit: int, setting: str) -> None:
        """If there are too many connections, close the one that has been idle longest.

        If none is idle, refuse the new connection.
        """
        others = [
            other for other in connections if other is not self and not other.transport.is_closing()
        ]
        if len(others) < limit or self.transport.is_closing():
            return
        if idle := [other for other in others if other.is_idle]:
            min(idle, key=lambda other: other._since).transport.abort()
        else:
            self._refuse(
                503,
                f"There are {limit} connections already. Close some, or raise {setting}.",
            )

    def _refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = orjson.dumps({"detail": detail})
            head = (
                b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                % len(body)
            )
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
