"""A connection pooler in transaction mode.

All its clients share one session of PostgreSQL, a transaction at a time.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack, unpack

_NO_ENCRYPTION = (80877103, 80877104)  # requests for TLS and GSSAPI, which come before the start
_END_OF_BATCH, _READY, _TERMINATE, _IDLE = b"QS", b"Z", b"X", b"I"


@contextmanager
def transaction_pooler(folder: str) -> Iterator[int]:
    """Run a pooler for the server whose socket is in this folder; yield the pooler's port."""
    pooler = _Pooler(f"{folder}/.s.PGSQL.5432")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=pooler.accept, args=(listener,), daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            pooler.close()


class _Pooler:
    def __init__(self, server: str) -> None:
        self._server = server
        self._session: socket.socket | None = None
        self._greeting = b""
        self._lock = threading.Lock()

    def close(self) -> None:
        if self._session:
            self._session.close()

    def accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            start = _read(client, *unpack("!I", _exactly(client, 4)))
            while unpack("!I", start[4:8])[0] in _NO_ENCRYPTION:
                client.sendall(b"N")
                start = _read(client, *unpack("!I", _exactly(client, 4)))
            with self._lock:
                session = self._session = self._session or self._begin(start)
            client.sendall(self._greeting)
            batch = b""
            is_held = False
            while (kind := client.recv(1)) not in (b"", _TERMINATE):
                batch += kind + _read(client, *unpack("!I", _exactly(client, 4)))
                if kind not in _END_OF_BATCH:
                    continue
                if not is_held:
                    self._lock.acquire()
                session.sendall(batch)
                answer, state = _until_ready(session)
                client.sendall(answer)
                batch, is_held = b"", state != _IDLE
                if not is_held:
                    self._lock.release()

    def _begin(self, start: bytes) -> socket.socket:
        session = socket.socket(socket.AF_UNIX)
        session.connect(self._server)
        session.sendall(start)
        self._greeting, _ = _until_ready(session)
        return session


def _until_ready(session: socket.socket) -> tuple[bytes, bytes]:
    """Read messages until the server is ready.

    Returns them, and whether a transaction is open then.
    """
    answer = b""
    while True:
        kind = _exactly(session, 1)
        message = _read(session, *unpack("!I", _exactly(session, 4)))
        answer += kind + message
        if kind == _READY:
            return answer, message[4:]


def _read(source: socket.socket, length: int) -> bytes:
    return pack("!I", length) + _exactly(source, length - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        if not (piece := source.recv(count - len(content))):
            raise ConnectionError("the other end has closed")
        content += piece
    return content
