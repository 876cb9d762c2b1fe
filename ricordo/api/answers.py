"""Limit the memory of large answers while they are sent.

Large answers are written as JSON in worker threads and sent in pieces. The size of one answer is
limited, and so is the sum of all. If there is no room for an answer from the database, its data is
dropped and read again later, so the waiting request holds no memory.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import HTTPException, Response
from starlette.types import Receive, Scope, Send

from ricordo.domain.quotas import MEGABYTE
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import TooLong
from ricordo.offload import SMALL, offload
from ricordo.storage.engine.store import Store, Transaction

# The key of a request's ticket in its ASGI scope.
TICKET = "ricordo.answer"
# Bytes that are written or sent at once; longer pieces would block other requests.
_PIECE = 256 * 1024
# Elements of a list that are written at once.
_AT_ONCE = 32
# Seconds that a request waits for room.
WAIT = 5.0
_JSON = "application/json"
_JSON_HEADERS = ((b"content-type", b"application/json"),)
_LATER = {"retry-after": "1"}
_TOO_MANY = "The server is sending too many large answers. Send the request again in a moment."


@dataclass(frozen=True, slots=True)
class AnswerWithHeaders:
    """The content of an answer that has additional headers."""

    content: Any
    headers: Mapping[str, str]


class AnswerBudget:
    """The limit for the bytes of all large answers that are being sent.

    One caller may use half of it.
    """

    def __init__(self, largest_mb: int = 32, most_mb: int = 64) -> None:
        self.largest_mb = largest_mb
        self._limit = most_mb * MEGABYTE
        self._lock = threading.Lock()
        self._total = 0
        self._of_callers: Counter[str] = Counter()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def taken(self) -> int:
        """Return the bytes of answers that are being sent."""
        return self._total

    def ticket(self, scope: Scope) -> "Ticket":
        """Return the ticket of this request's answer.

        The route of the request releases the ticket after the answer.

        Args:
            scope: The ASGI scope of the request. The first call stores the ticket in it.
        """
        if TICKET not in scope:
            caller = scope.get(REQUEST_SCOPE)
            scope[TICKET] = Ticket(self, caller.user_id if caller else "")
        ticket: Ticket = scope[TICKET]
        return ticket

    def release(self, ticket: "Ticket") -> None:
        """Free the bytes of an answer, and wake the requests that wait for room.

        Args:
            ticket: The ticket of an answer that was sent or given up.
        """
        self.change(ticket, 0, must=True)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def change(self, ticket: "Ticket", size: int, *, must: bool) -> bool:
        """Set the ticket's bytes to `size` if there is room, and return whether this was done.

        If no other answer is being sent, there is room for any size.

        Args:
            ticket: The ticket of one answer.
            size: The new number of bytes, which replaces the ticket's bytes so far.
            must: Set them even without room.
        """
        with self._lock:
            others = self._total - ticket.size
            callers_others = self._of_callers[ticket.caller] - ticket.size
            # If the caller has no other answer, this one may be as large as the limit for one
            # answer.
            fits_caller = not callers_others or callers_others + size <= self._limit // 2
            has_room = others + size <= self._limit and fits_caller
            if not (has_room or not others or must or size <= ticket.size):
                return False
            self._total = others + size
            self._of_callers[ticket.caller] = callers_others + size
            if not self._of_callers[ticket.caller]:
                del self._of_callers[ticket.caller]
            ticket.size = size
            return True

    async def wait(self, ticket: "Ticket", size: int) -> None:
        """Reserve this number of bytes as soon as there is room.

        Args:
            ticket: The ticket of one answer.
            size: The number of bytes.

        Raises:
            HTTPException: There was no room within `WAIT` seconds (503).
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT):
                while not ticket.take(size):
                    future: asyncio.Future[None] = loop.create_future()
                    self._waiting.add(future)
                    try:
                        await future
                    finally:
                        self._waiting.discard(future)
        except TimeoutError:
            raise HTTPException(503, _TOO_MANY, _LATER) from None

    def is_above_one(self, size: int) -> bool:
        """Return True if the size, in bytes, is above the limit of one answer.

        Args:
            size: The bytes of the answer as JSON; an estimate is enough.
        """
        return size > self.largest_mb * MEGABYTE

    def require_one(self, size: int) -> None:
        """Raise TooLong for an answer above the limit of one answer.

        Args:
            size: The bytes of the answer as JSON; an estimate is enough.

        Raises:
            TooLong: The message names the setting and the ways to ask for less.
        """
        if self.is_above_one(size):
            raise TooLong(
                f"This answer would have about {-(-size // MEGABYTE):,} MB, and "
                f"{self.largest_mb:,} MB are allowed (RICORDO_MAX_ANSWER_MB). Ask for fewer items "
                "with `limit`, or for each one by its address."
            )


_OTHERS = AnswerBudget()


def budget_of(app: Any) -> AnswerBudget:
    """Return the budget of this app, or a shared one for apps without a budget.

    Args:
        app: An app of ours, or any other app of Starlette.
    """
    budget: AnswerBudget = getattr(app, "answers", _OTHERS)
    return budget


class Ticket:
    """The share of one answer in the budget."""

    def __init__(self, budget: AnswerBudget, caller: str) -> None:
        self._budget = budget
        self.caller = caller
        self.size = 0

    def take(self, size: int, *, must: bool = False) -> bool:
        """Set the taken bytes to `size`; return False, without a change, if there is no room.

        Args:
            size: The new number of bytes, which replaces the bytes so far.
            must: Take them even without room.
        """
        return self._budget.change(self, size, must=must)

    def release(self) -> None:
        """Free the taken bytes."""
        if self.size:
            self._budget.release(self)


class LargeAnswer(Response):
    """A response whose body is sent in pieces. Each piece is freed after it was sent."""

    def __init__(
        self,
        pieces: Iterable[bytes],
        status: int = 200,
        headers: Sequence[tuple[bytes, bytes]] = _JSON_HEADERS,
    ) -> None:
        self._pieces = deque(pieces)
        self.size = sum(map(len, self._pieces))
        super().__init__(None, status)
        others = [pair for pair in headers if pair[0].lower() != b"content-length"]
        self.raw_headers = [*others, (b"content-length", b"%d" % self.size)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - Starlette's interface
        """Send the answer."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        while self._pieces:
            await send(
                {"type": "http.response.body", "body": self._pieces.popleft(), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})


def answer(content: Any, status: int = 200) -> Response:
    """Return a small answer as JSON.

    Args:
        content: Anything that orjson writes. It is written here, in the caller's thread.
        status: The HTTP status.
    """
    return Response(orjson.dumps(content), status_code=status, media_type=_JSON)


async def read_answer(
    budget: AnswerBudget,
    scope: Scope,
    store: Store,
    work: Callable[[Transaction], Any],
    make: Callable[[Any], Any] | None,
) -> Response:
    """Read content from the database, and return the answer with it.

    The answer is made in the reading thread.

    Args:
        budget: The budget of the app.
        scope: The ASGI scope of the request, which holds the ticket of its answer.
        store: The database.
        work: Reads the content, or a whole response. It runs again if there was no room for the
            answer.
        make: Turns the content into JSON; None if it is JSON already.

    Raises:
        TooLong: The answer is above the limit of one answer.
        HTTPException: There was no room within `WAIT` seconds (503).
    """
    ticket = budget.ticket(scope)

    def read(tx: Transaction) -> Response | int:
        outcome = work(tx)
        if isinstance(outcome, Response):
            size = _size_of(outcome)
            if size > SMALL and outcome.media_type == _JSON:
                budget.require_one(size)
            if size > SMALL and not ticket.take(size):
                return size
            return _in_pieces(outcome)
        headers: Mapping[str, str] = {}
        if isinstance(outcome, AnswerWithHeaders):
            headers = outcome.headers
            outcome = outcome.content
        content = make(outcome) if make else outcome
        pieces = _written(content, budget, ticket)
        if isinstance(pieces, int):
            return pieces
        if ticket.size:
            response: Response = LargeAnswer(pieces)
        else:
            response = Response(b"".join(pieces), media_type=_JSON)
        response.headers.update(headers)
        return response

    response = await store.read(read)
    while isinstance(response, int):
        await budget.wait(ticket, response)
        response = await store.read(read)
    return response


async def counted_answer(
    budget: AnswerBudget, scope: Scope, response: Response, *, reads: bool
) -> Response:
    """Return the answer, wrapped so that its bytes count toward the limit until they are sent.

    Args:
        budget: The budget of the app.
        scope: The ASGI scope of the request, which holds the ticket of its answer.
        response: The response. Its body is finished, or is made while it is sent and then not
            counted.
        reads: The request only reads, so it may be refused. The answer of a write never is.

    Raises:
        HTTPException: There was no room for a read within `WAIT` seconds (503).
    """
    if (size := _size_of(response)) > SMALL:
        ticket = budget.ticket(scope)
        if reads:
            await budget.wait(ticket, size)
        else:
            ticket.take(size, must=True)
    return _in_pieces(response)


def _size_of(response: Response) -> int:
    """Return the bytes of a finished body.

    The result is 0 for a body that is made while it is sent.
    """
    return len(getattr(response, "body", b""))


def _in_pieces(response: Response) -> Response:
    if _size_of(response) <= SMALL:
        return response
    return LargeAnswer(_cut(bytes(response.body)), response.status_code, response.raw_headers)


async def made_answer(budget: AnswerBudget, scope: Scope, content: Any, *, reads: bool) -> Response:
    """Return the answer with this content.

    Args:
        budget: The budget of the app.
        scope: The ASGI scope of the request, which holds the ticket of its answer.
        content: The JSON of the answer, not yet encoded.
        reads: The request only reads, so it may be refused. The answer of a write never is.

    Raises:
        TooLong: The answer of a read is above the limit of one answer.
        HTTPException: There was no room for a read within `WAIT` seconds (503).
    """
    size = weight(content)
    if size <= SMALL:
        return answer(content)
    ticket = budget.ticket(scope)
    if reads:
        budget.require_one(size)
        await budget.wait(ticket, size)
    else:
        ticket.take(size, must=True)
    return await offload(partial(_large_answer, content, ticket), size)


def _large_answer(content: Any, ticket: Ticket) -> LargeAnswer:
    large_answer = LargeAnswer(_joined(json_pieces(content)))
    ticket.take(large_answer.size, must=True)
    return large_answer


def weight(content: Any) -> int:
    """Return the approximate bytes of the content as JSON.

    Args:
        content: Any JSON, not yet encoded. Escaped characters count as one byte, so the real size
            may be larger.
    """
    size = 0
    # A loop takes a third of the time of a recursion.
    rest = [content]
    while rest:
        element = rest.pop()
        kind = type(element)
        if kind is str:
            size += 2 + (len(element) if element.isascii() else 3 * len(element))
        elif kind is dict:
            size += 2 + 4 * len(element) + sum(map(len, element))
            rest.extend(element.values())
        elif kind is list or kind is tuple:
            size += 2 + len(element)
            rest.extend(element)
        else:
            size += 8
    return size


def _written(content: Any, budget: AnswerBudget, ticket: Ticket) -> list[bytes] | int:
    """Write a read's answer as JSON, and take its bytes if it is large.

    Args:
        content: The values of the answer.
        budget: The limits.
        ticket: The answer's ticket; it may have bytes already, for which the answer waited.

    Returns:
        The pieces of the answer, or its size in bytes if there is no room for it. The caller then
        waits for room of this size.

    Raises:
        TooLong: The answer is above the limit of one answer.
    """
    pieces = []
    size = 0
    has_room = True
    for piece in _joined(json_pieces(content)):
        size += len(piece)
        if size > SMALL:
            if budget.is_above_one(size):
                budget.require_one(max(size, weight(content)))
            has_room = has_room and ticket.take(max(size, ticket.size))
        if has_room:
            pieces.append(piece)
        else:
            pieces.clear()
    if not has_room:
        return size
    if size > SMALL:
        ticket.take(size, must=True)
    return pieces


def json_pieces(content: Any) -> Iterator[bytes]:
    """Yield the content as JSON in pieces.

    Each piece is written at once; other threads can run between them.

    Args:
        content: Any JSON, not yet encoded.
    """
    if isinstance(content, str) or not _is_long(content):
        yield from _cut(orjson.dumps(content))
    elif isinstance(content, dict):
        separator = b"{"
        for name, field in content.items():
            yield separator + orjson.dumps(name) + b":"
            yield from json_pieces(field)
            separator = b","
        yield b"}"
    else:
        yield from _pieces_of_list(content)


def _pieces_of_list(elements: Sequence[Any]) -> Iterator[bytes]:
    """Yield a list as JSON: long elements in pieces, and others some at a time."""
    separator = b"["
    for start in range(0, len(elements), _AT_ONCE):
        some = elements[start : start + _AT_ONCE]
        if any(map(_is_long, some)):
            for element in some:
                yield separator
                yield from json_pieces(element)
                separator = b","
        else:
            yield separator
            yield from _cut(orjson.dumps(some)[1:-1])
            separator = b","
    yield b"]"


def _is_long(content: Any) -> bool:
    """True if the content may be too long to be written at once.

    That is a long text or list, or a dict with one. Of a short list only the first and the last
    element are looked at, since all elements of a list are of one kind. Looking at every value of
    an answer would take longer than writing it.
    """
    kind = type(content)
    if kind is str:
        return len(content) > _PIECE
    if kind is dict:
        return any(map(_is_long, content.values()))
    if kind is not list and kind is not tuple:
        return False
    if len(content) > _AT_ONCE:
        return True
    return bool(content) and (_is_long(content[0]) or _is_long(content[-1]))


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join short pieces, since sending a piece costs a call."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        if batch and size + len(piece) > _PIECE:
            yield b"".join(batch)
            batch = []
            size = 0
        batch.append(piece)
        size += len(piece)
    if batch:
        yield b"".join(batch)


def _cut(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]
