"""Real MCP servers on loopback ports, and others that break the protocol."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

LIMIT = 60.0  # seconds after which a test that waits for a server fails


class HttpThread:
    """An ASGI app under uvicorn, in a thread; `port` stays reserved for a restart."""

    def __init__(self, app: Any, port: int = 0) -> None:
        # The protocol is named, so that asyncio turns off Nagle's algorithm, which delays each
        # response by 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen(100)
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        until = threading.Event()
        for _ in range(int(LIMIT / 0.01)):
            if self._server.started:
                return
            until.wait(0.01)
        raise AssertionError("the MCP server did not start in time")

    def _serve(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    def stop(self) -> None:
        """End the server at once, even if requests are running."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(LIMIT)
        self._socket.close()
        assert not self._thread.is_alive(), "the MCP server did not stop in time"


@contextmanager
def mcp_server(
    server: MCPServer, kind: Literal["sse", "streamable_http"] = "streamable_http"
) -> Iterator[str]:
    """Serve an MCP server over HTTP; yield its address."""
    app, path = (
        (server.sse_app(), "/sse") if kind == "sse" else (server.streamable_http_app(), "/mcp")
    )
    running = HttpThread(app)
    try:
        yield f"http://127.0.0.1:{running.port}{path}"
    finally:
        running.stop()


def notes() -> MCPServer:
    """Return a server with a few tools, as a developer would write it."""
    server = MCPServer("notes")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def fail(why: str) -> str:
        """Fail."""
        raise ToolError(why)

    @server.tool()
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Hello, {name}."

    return server


Tools = list[Any]
Answer = Callable[[dict[str, Any]], Any]


@dataclass
class RawServer:
    """An MCP server over streamable HTTP that a test controls.

    A test sets the results of `tools/list` and `tools/call`. `raw` answers the requests of a method
    with bytes, which are sent unchanged.
    """

    tools: Tools = field(default_factory=list)
    call: Answer = lambda _arguments: {"content": [{"type": "text", "text": "ok"}]}
    raw: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import orjson

        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if scope["method"] != "POST":
            await _plain(send, 405, b"")
            return
        asked = orjson.loads(body)
        method = asked.get("method", "")
        self.asked.append(method)
        if method in self.raw:
            await self.raw[method](_Exchange(asked, send))
        elif "id" not in asked:
            await _plain(send, 202, b"")
        else:
            await _Exchange(asked, send).result(self._result(method, asked))

    def _result(self, method: str, asked: dict[str, Any]) -> Any:
        if method == "initialize":
            info = {"name": "raw", "version": "1"}
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        if method == "tools/list":
            return {"tools": self.tools}
        if method == "tools/call":
            return self.call(asked["params"].get("arguments") or {})
        return None


@dataclass
class _Exchange:
    """One request, with the ways to answer it."""

    asked: dict[str, Any]
    send: Any

    async def result(self, result: Any) -> None:
        import orjson

        error = {"code": -32601, "message": "Method not found"}
        answer = {"error": error} if result is None else {"result": result}
        await self.bytes(orjson.dumps({"jsonrpc": "2.0", "id": self.asked["id"], **answer}))

    async def bytes(self, body: bytes, status: int = 200, **headers: str) -> None:
        await _plain(self.send, status, body, **headers)

    async def start(self, kind: str = "text/event-stream") -> None:
        head = [(b"content-type", kind.encode())]
        await self.send({"type": "http.response.start", "status": 200, "headers": head})

    async def piece(self, body: bytes) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": True})


async def _plain(send: Any, status: int, body: bytes, **headers: str) -> None:
    named = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def tool(name: str, description: str = "Does it.", **properties: Any) -> dict[str, Any]:
    """Return a tool as servers list it."""
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    }


@contextmanager
def raw_server(server: RawServer) -> Iterator[str]:
    """Serve a raw MCP server; yield its address."""
    running = HttpThread(server)
    try:
        yield f"http://127.0.0.1:{running.port}/mcp"
    finally:
        running.stop()
