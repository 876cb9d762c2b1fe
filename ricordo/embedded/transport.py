"""A transport for httpx that calls an ASGI app in the same process and streams its answers.

Each request runs as a task of the event loop. The app waits while the reader is slow, and gets a
message when the reader leaves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import anyio
import httpx
from anyio.from_thread import BlockingPortal
from starlette.types import ASGIApp, Message, Scope

T = TypeVar("T")
# The guard treats this host name as the local machine; no request is sent to it.
ADDRESS = "http://127.0.0.1"
_CLIENT = ("127.0.0.1", 0)
# The most messages of an answer that may wait to be read.
_MOST_WAITING = 16
# Seconds to wait for requests whose reader has left.
_LEAVING_SECONDS = 2


class Exchange:
    """One request to the app, and its answer in messages."""

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._sender, self._answer = anyio.create_memory_object_stream[Message](_MOST_WAITING)
        self._reader_left = asyncio.Event()
        self._error: Exception | None = None
        self.task = asyncio.create_task(self._run())

    async def next_message(self, request: httpx.Request) -> Message:
        """Return the next message of the answer.

        Raises:
            httpx.ReadTimeout: No message came within the request's time-out.
            httpx.RemoteProtocolError: The app failed before the end of the answer.
        """
        seconds = request.extensions.get("timeout", {}).get("read")
        try:
            with anyio.fail_after(seconds):
                return await self._answer.receive()
        except TimeoutError as error:
            raise httpx.ReadTimeout(
                f"The server sent nothing for {seconds} seconds.", request=request
            ) from error
        except anyio.EndOfStream:
            raise httpx.RemoteProtocolError(
                "The server ended its answer too early; its log says why.", request=request
            ) from self._error

    def leave(self) -> None:
        """Tell the app that its reader has left."""
        self._reader_left.set()
        self._answer.close()

    async def _run(self) -> None:
        with self._sender:
            try:
                await self._app(self._scope, self._receive, self._send)
            except Exception as error:  # the app has logged the error, and its reader learns of it
                self._error = error

    async def _receive(self) -> Message:
        if self._body is not None:
            body = self._body
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._reader_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._reader_left.is_set():
            return
        try:
            await self._sender.send(message)
        except anyio.BrokenResourceError:  # the reader left while this message waited
            return


class AnswerStream(httpx.AsyncByteStream):
    """The body of an answer, piece by piece."""

    def __init__(self, exchange: Exchange, request: httpx.Request) -> None:
        self._exchange = exchange
        self._request = request
        self._is_whole = False

    async def read_piece(self) -> bytes | None:
        """Return the next piece of the body; None at the end."""
        if self._is_whole:
            return None
        message = await self._exchange.next_message(self._request)
        self._is_whole = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self.read_piece()) is not None:
            yield piece

    async def aclose(self) -> None:
        self._exchange.leave()


class AppTransport(httpx.AsyncBaseTransport):
    """Sends requests of an asynchronous client to the app, in its event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: dict[asyncio.Task[None], Exchange] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer once it has begun."""
        exchange = Exchange(self._app, _scope_of(self._app, request), await request.aread())
        self._tasks[exchange.task] = exchange
        exchange.task.add_done_callback(self._tasks.pop)
        try:
            start = await exchange.next_message(request)
        except BaseException:
            exchange.leave()
            raise
        return httpx.Response(
            start["status"],
            headers=start.get("headers", []),
            stream=AnswerStream(exchange, request),
            request=request,
        )

    async def aclose(self) -> None:
        """End the requests whose answers are not complete."""
        for exchange in self._tasks.values():
            exchange.leave()
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=_LEAVING_SECONDS)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


class PortalTransport(httpx.BaseTransport):
    """Sends requests of a synchronous client to the app, in the thread of its event loop."""

    def __init__(self, portal: BlockingPortal, transport: AppTransport) -> None:
        self._portal = portal
        self._transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer once it has begun."""
        request.read()
        response = wait(self._portal, self._transport.handle_async_request, request)
        stream = PortalStream(self._portal, cast(AnswerStream, response.stream))
        return httpx.Response(
            response.status_code, headers=response.headers, stream=stream, request=request
        )


class PortalStream(httpx.SyncByteStream):
    """The body of an answer that another thread reads."""

    def __init__(self, portal: BlockingPortal, stream: AnswerStream) -> None:
        self._portal = portal
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        while (piece := wait(self._portal, self._stream.read_piece)) is not None:
            yield piece

    def close(self) -> None:
        self._portal.call(self._stream.aclose)


def wait(
    portal: BlockingPortal, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
) -> T:
    """Return the function's result; cancel it if this thread is interrupted."""
    future = portal.start_task_soon(function, *arguments)
    try:
        result: T = future.result()
    except BaseException:
        future.cancel()
        raise
    return result


def _scope_of(app: ASGIApp, request: httpx.Request) -> Scope:
    url = request.url
    raw_path, _, query = url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": _CLIENT,
        "server": (url.host, url.port or 80),
        "app": app,
    }
