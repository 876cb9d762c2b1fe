"""A small HTTP server on loopback that answers JSON, in a thread.

It replaces vector services in tests. A subclass defines the service's responses. This class counts
requests, checks the key, and can fail, be slow, or return wrong data.
"""

import contextlib
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson
import uvicorn

KEY = "key-that-nobody-may-see-7f3a"


class Refusal(Exception):
    """An answer that is not 200, with the service's own body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status, self.body = status, body


@dataclass(frozen=True)
class Seen:
    """A received request."""

    method: str
    path: str
    body: Any
    headers: dict[str, str] = field(repr=False)
    size: int


@dataclass(frozen=True)
class Fault:
    """An HTTP response: the service's own, or an injected fault."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Served:
    """An ASGI application that is served on loopback, in a thread; `url` is its address."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()


class JsonServer:
    """A JSON service on loopback.

    `url` is its address, `seen` the requests; `fails(…)` makes the next responses faults.
    """

    key_header = "authorization"
    key_value = f"Bearer {KEY}"

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._faults: deque[Fault] = deque()
        self._silent = threading.Event()
        self._lock = threading.Lock()
        self._served = Served(self)
        self.url = self._served.url

    def answer(self, method: str, parts: list[str], body: Any) -> Any:
        """Return the service's response to a request, by the parts of its path; raise Refusal."""
        raise NotImplementedError

    def said_no(self, status: int, words: str) -> Any:
        raise NotImplementedError

    def forget(self) -> None:
        self.seen.clear()
        self.forget_faults()

    def forget_faults(self) -> None:
        self._faults.clear()
        self._silent.clear()

    def fails(self, status: int, times: int = 1, words: str = "no", **headers: str) -> None:
        body = orjson.dumps(self.said_no(status, words))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._faults += [Fault(status, body, {"content-type": "application/json"} | named)] * times

    def lies(self, status: int, body: bytes, content_type: str, times: int = 1) -> None:
        self._faults += [Fault(status, body, {"content-type": content_type})] * times

    def falls_silent(self) -> None:
        self._silent.set()

    def close(self) -> None:
        self._served.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            content += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        with contextlib.suppress(orjson.JSONDecodeError):
            body = orjson.loads(content) if content else None
        self.seen.append(Seen(scope["method"], scope["path"], body, headers, len(content)))
        if self._silent.is_set():
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        fault = self._faults.popleft() if self._faults else self._truth(scope, headers, body)
        head = [(name.encode(), value.encode()) for name, value in fault.headers.items()]
        head.append((b"content-length", str(len(fault.body)).encode()))
        await send({"type": "http.response.start", "status": fault.status, "headers": head})
        await send({"type": "http.response.body", "body": fault.body})

    def _truth(self, scope: Any, headers: dict[str, str], body: Any) -> Fault:
        json = {"content-type": "application/json"}
        if headers.get(self.key_header) != self.key_value:
            # The worst that a service can do with a wrong key is to repeat it in its response.
            said = self.said_no(401, f"invalid key {headers.get(self.key_header)}")
            return Fault(401, orjson.dumps(said), json)
        parts = [unquote(part) for part in scope["path"].strip("/").split("/")]
        try:
            with self._lock:
                return Fault(200, orjson.dumps(self.answer(scope["method"], parts, body)), json)
        except Refusal as refusal:
            return Fault(refusal.status, orjson.dumps(refusal.body), json)
