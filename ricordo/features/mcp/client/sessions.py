"""Sessions with MCP servers: opened on use, closed when idle, limited in number.

A server may be careless or hostile. Each session is a separate task, so a fault of a server ends
only its session. Each request has a deadline. The bytes from a server are counted before they are
read. Addresses are checked at every request, as for organizations' providers. Redirects are not
followed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from ricordo.errors import RicordoError, Unavailable
from ricordo.features.mcp.client.listed_tools import ToolList, plain
from ricordo.llm.addresses import PROVIDERS, PinnedTransport, PrivateAddress

if TYPE_CHECKING:
    from mcp import Client, MCPError

T = TypeVar("T")
CONNECT_SECONDS = 15.0
START_SECONDS = 60.0  # seconds for a program, which may install packages first
IDLE_SECONDS = 60.0
# Seconds before a session is replaced, so that its server's tools are read again.
LIFE_SECONDS = 600.0
# Seconds to wait before another attempt at an unreachable server.
DOWN_SECONDS = 5.0
MOST_SESSIONS = 50
_CLOSE_SECONDS = 2.0
# Limits of one answer, or of a stream of events from one request to the next. Commas are limited
# too, since many small values cost more than one long text.
ANSWER_BYTES = 4 * 1024 * 1024
_ANSWER_COMMAS = 200_000
STREAM_LINES = 20_000
_LONGEST_REASON = 500  # characters of a server's own error message
_NEEDS_KEY = (401, 403)
# A restarted server answers 404 to the id of an old session (section "Session Management" of
# https://modelcontextprotocol.io/specification/2025-06-18/basic/transports). Some answer 410, or
# 400 with a message about the session.
_LOST_STATUSES = (404, 410)
_LOST_IN_WORDS = 400

Open = Callable[["Traffic"], AbstractAsyncContextManager[Any]]
"""A function that opens the two streams of messages with a server."""


class TimedOut(Unavailable):
    """A server took too long."""


class CallTimedOut(TimedOut):
    """A connected server took too long for one answer."""


class SessionLost(Unavailable):
    """A server lost the session, so it did not act on the request."""


class TooMuch(httpx2.StreamError):
    """A server sent more than a limit allows, or compressed bytes, which could hide their size."""


class Traffic:
    """The counted traffic from a server, with its last statuses.

    `status` is the status of the last response; None if it was a success. `post_status` is the
    status of the last response to a POST request, which carries a message. The GET request for the
    stream of the server's messages does not change it, since a server may refuse that stream at any
    time. `fault` says why the reading of an answer was stopped; "" if none was.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.post_status: int | None = None
        self.fault = ""
        self.questions = 0
        self.tools = ToolList()

    def too_much(self, fault: str) -> TooMuch:
        """Return the error, and store its text, since the library may replace the error.

        Args:
            fault: The fault as a sentence for people.
        """
        self.fault = fault
        return TooMuch(fault)

    async def count(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass on the pieces of one answer.

        Args:
            pieces: The bytes of the answer as they arrive. Each new request starts the limits
                again.

        Raises:
            TooMuch: The answer exceeds a limit.
        """
        size = commas = lines = 0
        questions = self.questions
        async for piece in pieces:
            if questions != self.questions:  # each request to the server starts the limits again
                questions = self.questions
                size = commas = lines = 0
            size += len(piece)
            commas += piece.count(b",")
            lines += piece.count(b"\n")
            if size > ANSWER_BYTES or commas > _ANSWER_COMMAS or lines > STREAM_LINES:
                raise self.too_much(
                    f"It sent more than {ANSWER_BYTES // 1024**2} MiB, {STREAM_LINES:,} lines or "
                    f"{_ANSWER_COMMAS:,} commas at once."
                )
            yield piece


class _CountedStream(httpx2.AsyncByteStream):
    def __init__(self, traffic: Traffic, stream: Any) -> None:
        self._traffic = traffic
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._traffic.count(aiter(self._stream)):
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CountedTransport(httpx2.AsyncBaseTransport):
    """Checks each address, like `PinnedTransport`, and counts the responses."""

    def __init__(self, traffic: Traffic, *, allow_private: bool) -> None:
        self._traffic = traffic
        self._transport = PinnedTransport(PROVIDERS, allow_private=allow_private)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, and return its response with a counted stream.

        Args:
            request: The request; compressed answers are refused in its headers.

        Raises:
            TooMuch: The answer is compressed anyway.
            PrivateAddress: The address is in a private network.
        """
        request.headers["accept-encoding"] = "identity"
        response = await self._transport.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise self._traffic.too_much(
                "It sent a compressed answer, which the request did not allow."
            )
        if response.status_code >= 300:
            self._traffic.status = response.status_code
        else:
            self._traffic.status = None
        if request.method == "POST":
            self._traffic.post_status = response.status_code
        response.stream = _CountedStream(self._traffic, response.stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


def client_to(
    traffic: Traffic,
    headers: dict[str, str],
    seconds: float,
    *,
    allow_private: bool,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Return an HTTP client that sends these headers, counts responses and checks addresses.

    Args:
        traffic: Counts the responses.
        headers: Headers of each request.
        seconds: The most seconds that a call may take. The client waits `CONNECT_SECONDS` longer.
        allow_private: Allow addresses of private networks.
        auth: Adds OAuth tokens to requests, or None.
    """
    transport = _CountedTransport(traffic, allow_private=allow_private)
    waits = httpx2.Timeout(CONNECT_SECONDS, read=seconds + CONNECT_SECONDS)
    return httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=waits, trust_env=False, auth=auth
    )


def over_http(
    url: str,
    headers: dict[str, str],
    *,
    is_sse: bool,
    seconds: float,
    allow_private: bool,
    tokens: httpx2.Auth | None = None,
) -> Open:
    """Return a function that opens the streams to a server at an address.

    Args:
        url: The server's address.
        headers: Headers of each request, with their secret values.
        is_sse: Use the older transport, server-sent events, instead of streamable HTTP.
        seconds: The most seconds that a call may take.
        allow_private: Allow addresses of private networks.
        tokens: Adds OAuth tokens to requests, or None.
    """
    request_headers = headers

    @asynccontextmanager
    async def streams(traffic: Traffic) -> AsyncIterator[Any]:
        from mcp.client.sse import sse_client
        from mcp.client.streamable_http import streamable_http_client

        def client(
            headers: Any = None,  # noqa: ARG001 - the parameters that the library passes
            timeout: Any = None,  # noqa: ARG001
            auth: Any = None,  # noqa: ARG001
        ) -> httpx2.AsyncClient:
            return client_to(
                traffic, request_headers, seconds, allow_private=allow_private, auth=tokens
            )

        if is_sse:
            async with sse_client(url, httpx_client_factory=client) as pair:
                yield pair
        else:
            async with (
                client() as http,
                streamable_http_client(
                    url, http_client=http, max_sse_event_size=ANSWER_BYTES
                ) as pair,
            ):
                yield pair

    return streams


class McpSession:
    """A session with a server, as a separate task.

    It ends when it is idle, old, closed or broken.
    """

    def __init__(self, open_streams: Open, *, probes: bool, is_program: bool = False) -> None:
        self.traffic = Traffic()
        self.comparing = asyncio.Lock()
        self.is_compared = False
        self.users = 0
        self.used_at = self.opened_at = time.monotonic()
        self._open = open_streams
        self._mode = "auto" if probes else "legacy"
        self._is_program = is_program
        self._client: Client | None = None
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._error: BaseException | None = None
        self._task = asyncio.create_task(self._live())

    @property
    def is_usable(self) -> bool:
        return not (self._is_old or self._task.done() or self._closing.is_set())

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self.opened_at >= LIFE_SECONDS

    async def ask(self, work: "Callable[[Client], Awaitable[T]]", seconds: float) -> T:
        """Return the result of `work`.

        Args:
            work: A function that asks the server by the library's client.
            seconds: The most seconds for it, without the time for the connection.

        Raises:
            Unavailable: with a reason, if the server fails. This also ends the session.
        """
        self.users += 1
        try:
            return await self._answered(work, seconds)
        except RicordoError:
            self.end()
            raise
        finally:
            self.users -= 1
            self.used_at = time.monotonic()
            if self._is_old and not self.users:
                self.end()

    async def _answered(self, work: "Callable[[Client], Awaitable[T]]", seconds: float) -> T:
        if self._is_program:
            patience = START_SECONDS
        else:
            patience = CONNECT_SECONDS
        slow = TimedOut(f"It could not be connected to within {patience:g} seconds.")
        await self._until(asyncio.create_task(self._opened.wait()), patience, slow)

        async def call() -> T:
            if self._client is None:
                raise Unavailable("It ended the session.")
            return await work(self._client)

        self.traffic.questions += 1
        slow = CallTimedOut(f"It did not answer within {seconds:g} seconds.")
        return await self._until(asyncio.create_task(call()), seconds, slow)

    async def _until(self, task: asyncio.Task[T], seconds: float, slow: TimedOut) -> T:
        """Return the task's result.

        Raises Unavailable if the deadline passes or the session ends before the answer.
        """
        try:
            await asyncio.wait(
                {task, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
            if self._task.done():
                raise Unavailable(self._why(self._error))  # noqa: TRY301
            raise slow  # noqa: TRY301
        except RicordoError:
            raise
        except Exception as error:
            failure = SessionLost if self._is_lost(error) else Unavailable
            raise failure(self._why(error)) from error
        finally:
            task.cancel()

    def _is_lost(self, error: BaseException) -> bool:
        """Return True if the server refused a request because it lost the session."""
        from mcp import MCPError
        from mcp.types import METHOD_NOT_FOUND

        if (
            self._client is None
            or not isinstance(error, MCPError)
            or error.code == METHOD_NOT_FOUND
        ):
            return False
        status = self.traffic.post_status
        is_about_session = status == _LOST_IN_WORDS and "session" in error.message.lower()
        return is_about_session or status in _LOST_STATUSES

    def end(self) -> None:
        """Start the end of the session, and return at once."""
        self._closing.set()
        if self._client is None:
            self._task.cancel()

    async def close(self) -> None:
        """End the session, and wait a short time for that."""
        self.end()
        for _ in range(2):  # a server may also hang at the end of a session
            _, pending = await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
            for task in pending:
                task.cancel()

    async def _live(self) -> None:
        # The library logs each fault of a server, so a hostile server could fill the log.
        logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
        import anyio
        from mcp import Client

        try:
            async with Client(self._filtered(), mode=self._mode, cache=None) as self._client:
                self._opened.set()
                while not self._closing.is_set():
                    with anyio.move_on_after(IDLE_SECONDS):
                        await self._closing.wait()
                    if not self.users and time.monotonic() - self.used_at >= IDLE_SECONDS:
                        self._closing.set()
        except asyncio.CancelledError as error:
            self._error = self._error or error
            raise
        except BaseException as error:
            self._error = error

    @asynccontextmanager
    async def _filtered(self) -> AsyncIterator[Any]:
        async with self._open(self.traffic) as (read, write):
            yield _FilteredStream(read, self.traffic.tools), write

    def _why(self, error: BaseException | None) -> str:
        """Return the reason for an error.

        The library's own message is left out, since it may contain addresses and headers with
        secrets.
        """
        from mcp import MCPError
        from mcp.client.auth import OAuthFlowError

        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self.traffic.fault:
            return self.traffic.fault
        hint = ""
        if self.traffic.status is not None:
            hint = f" Its status was {self.traffic.status}{self._advice(self.traffic.status)}."
        match error:
            case OAuthFlowError():
                return (
                    "The consent to use it has expired or was withdrawn: connect to it by OAuth "
                    "again."
                )
            case PrivateAddress():
                return str(error)
            case MCPError():
                return f"It answered with an error{words_of(error, _LONGEST_REASON)}.{hint}"
            case ValueError():
                return f"Its answer is not an MCP message.{hint}"
            case RicordoError():
                return str(error)
            case None:
                return f"It ended the session.{hint}"
        return f"It cannot be reached ({type(error).__name__}).{hint}"

    @staticmethod
    def _advice(status: int) -> str:
        if status in _NEEDS_KEY:
            return ": check its token, or connect to it by OAuth"
        if status < 400:
            return ": it redirects to another address, and redirects are not followed"
        return ""


def words_of(error: "MCPError", length: int) -> str:
    """Return a server's error message, or its code, in a form that can follow a sentence.

    Args:
        error: The error that the library raised.
        length: The most characters of the message.
    """
    message = plain(error.message).strip()[:length].rstrip(".")
    if message:
        return f": {message}"
    return f" without a message (code {error.code})"


class _FilteredStream:
    """A server's messages, with lists of tools reduced by `ToolList`."""

    def __init__(self, stream: Any, tools: ToolList) -> None:
        self._stream = stream
        self._tools = tools

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._passed(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "_FilteredStream":
        return self

    async def __anext__(self) -> Any:
        return self._passed(await anext(self._stream))

    async def __aenter__(self) -> "_FilteredStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error_details: Any) -> Any:
        return await self._stream.__aexit__(*error_details)

    def _passed(self, message: Any) -> Any:
        result_object = getattr(getattr(message, "message", None), "result", None)
        if isinstance(result_object, dict) and isinstance(result_object.get("tools"), list):
            result_object["tools"] = self._tools.filtered(result_object["tools"])
        return message


class McpSessions:
    """The sessions of this process, one for each server and user.

    So no user acts in the session of another.
    """

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, int, str], McpSession] = {}
        self._down: dict[str, tuple[float, Unavailable]] = {}

    def of(
        self, server_id: str, version: int, user: str, make: Callable[[], McpSession]
    ) -> McpSession:
        """Return the session, opened if there is none.

        Args:
            server_id: The server.
            version: The server's `updated_at`, so that a changed server gets a new session.
            user: The id of the user who calls, or NOBODY.
            make: Begins a new session.

        Raises:
            Unavailable: if the server was down a moment ago, or too many calls are running.
        """
        if (down := self._down.get(server_id)) and time.monotonic() < down[0]:
            raise down[1]
        key = (server_id, version, user)
        for other_key, other in list(self._sessions.items()):
            if not other.is_usable and not other.users:
                self._sessions.pop(other_key).end()
        session = self._sessions.get(key)
        if session is None or not session.is_usable:
            self._end_oldest()
            session = make()
            self._sessions[key] = session
        return session

    def failed(self, server_id: str, error: Unavailable) -> None:
        """Treat the server as down for a few seconds.

        Args:
            server_id: The server.
            error: The error that calls get during these seconds.
        """
        down = self._down.get(server_id)
        if down is None or down[1] is not error:
            self._down[server_id] = (time.monotonic() + DOWN_SECONDS, error)

    def retry(self, server_id: str) -> None:
        """Let the next call ask the server again, even if it was just down.

        Args:
            server_id: The server.
        """
        self._down.pop(server_id, None)

    async def forget(self, server_id: str) -> None:
        """Close all sessions with a server, and let the next call ask it again.

        Args:
            server_id: The server, changed or deleted.
        """
        self.retry(server_id)
        keys = [key for key in self._sessions if key[0] == server_id]
        await asyncio.gather(*(self._sessions.pop(key).close() for key in keys))

    async def close(self) -> None:
        sessions = list(self._sessions.values())
        self._sessions = {}
        await asyncio.gather(*(session.close() for session in sessions))

    def _end_oldest(self) -> None:
        if len(self._sessions) < MOST_SESSIONS:
            return
        idle = [
            (session.used_at, key) for key, session in self._sessions.items() if not session.users
        ]
        if not idle:
            raise Unavailable(
                f"{MOST_SESSIONS} calls of MCP servers are running. Try again in a moment."
            )
        with suppress(KeyError):
            self._sessions.pop(min(idle)[1]).end()
