"""Answers in flight: large ones are written as JSON beside the event loop, bounded each and together, and sent in pieces.

A read whose answer finds no room is dropped, and repeated once there is some: what waits holds no memory.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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

# Where a request has what its answer takes of the budget.
_TICKET = "ricordo.answer"
# Bytes that are written, or sent, at once; longer ones would hold up others.
_PIECE = 256 * 1024
# A request waits so long for room, in seconds.
WAIT = 5.0
_JSON = "application/json"
_JSON_HEADERS = ((b"content-type", b"application/json"),)
_LATER = {"retry-after": "1"}
_TOO_MANY = "Too many large answers are on their way. Send the request again in a moment."


@dataclass(frozen=True, slots=True)
class Headed:
    """The content of an answer that has headers of its own."""

    content: Any
    headers: Mapping[str, str]


class AnswerBudget:
    """The bytes of all large answers in flight, and of each caller's, who may have half of them."""

    def __init__(self, largest_mb: int = 32, most_mb: int = 64) -> None:
        self.largest_mb = largest_mb
        self._most = most_mb * MEGABYTE
        self._lock = threading.Lock()
        self._total = 0
        self._of_callers: Counter[str] = Counter()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def taken(self) -> int:
        """How many bytes are in flight."""
        return self._total

    def ticket(self, scope: Scope) -> "Ticket":
        """Return what this request's answer takes, which ends with the request (`release_answer`)."""
        if _TICKET not in scope:
            caller = scope.get(REQUEST_SCOPE)
            scope[_TICKET] = Ticket(self, caller.user_id if caller else "")
        ticket: Ticket = scope[_TICKET]
        return ticket

    def release(self, ticket: "Ticket") -> None:
        """Give back what an answer took, and let those look again that wait for room."""
        self.change(ticket, 0, must=True)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def change(self, ticket: "Ticket", size: int, *, must: bool) -> bool:
        """Let the ticket take so many bytes instead of what it took, if there is room, or it `must`."""
        with self._lock:
            others = self._total - ticket.size
            own = self._of_callers[ticket.caller] - ticket.size
            # One alone may be as large as an answer may be.
            has_room = others + size <= self._most and (not own or own + size <= self._most // 2)
            if not (has_room or not others or must or size <= ticket.size):
                return False
            self._total = others + size
            self._of_callers[ticket.caller] = own + size
            if not self._of_callers[ticket.caller]:
                del self._of_callers[ticket.caller]
            ticket.size = size
            return True

    async def wait(self, ticket: "Ticket", size: int) -> None:
        """Take so many bytes once there is room. Raises HTTPException (503) where others take too long."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT):
                while not ticket.take(size):
                    waiting: asyncio.Future[None] = loop.create_future()
                    self._waiting.add(waiting)
                    try:
                        await waiting
                    finally:
                        self._waiting.discard(waiting)
        except TimeoutError:
            raise HTTPException(503, _TOO_MANY, _LATER) from None

    def require_one(self, size: int) -> None:
        """Raise TooLong for an answer that is larger than one may be."""
        if size > self.largest_mb * MEGABYTE:
            raise TooLong(
                f"This answer would have about {-(-size // MEGABYTE):,} MB, and {self.largest_mb:,} MB are the most "
                "(RICORDO_MAX_ANSWER_MB). Ask for fewer things at once, with `limit`, or for each by its own address."
            )


_OTHERS = AnswerBudget()


def budget_of(app: Any) -> AnswerBudget:
    """Return the budget of this app, or of all that have none, as those that routes are mounted in."""
    budget: AnswerBudget = getattr(app, "answers", _OTHERS)
    return budget


class Ticket:
    """What one answer takes of the budget."""

    def __init__(self, budget: AnswerBudget, caller: str) -> None:
        self._budget = budget
        self.caller, self.size = caller, 0

    def take(self, size: int, *, must: bool = False) -> bool:
        """Take so many bytes instead of what was taken; False, and nothing changes, where there is no room."""
        return self._budget.change(self, size, must=must)

    def release(self) -> None:
        """Give back what was taken."""
        if self.size:
            self._budget.release(self)


def release_answer(scope: Scope) -> None:
    """Give back what the request's answer took: it is sent, or its client is gone."""
    if _TICKET in scope:
        scope[_TICKET].release()


class LargeAnswer(Response):
    """A body in pieces, which are sent as fast as the client takes them, and let go."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        status: int = 200,
        headers: Sequence[tuple[bytes, bytes]] = _JSON_HEADERS,
    ) -> None:
        self._pieces = deque(_joined(pieces))
        self.size = sum(map(len, self._pieces))
        super().__init__(None, status)
        kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        self.raw_headers = [*kept, (b"content-length", b"%d" % self.size)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as of every response
        """Send it."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        while self._pieces:
            await send(
                {"type": "http.response.body", "body": self._pieces.popleft(), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})


def answer(content: Any, status: int = 200) -> Response:
    """Return a small answer as JSON."""
    return Response(orjson.dumps(content), status_code=status, media_type=_JSON)


async def read_answer(
    budget: AnswerBudget,
    scope: Scope,
    store: Store,
    work: Callable[[Transaction], Any],
    make: Callable[[Any], Any] | None,
) -> Response:
    """Return the answer of a read, made in the thread that reads. Raises TooLong, HTTPException (503)."""
    ticket = budget.ticket(scope)

    def read(tx: Transaction) -> Response | int:
        made = work(tx)
        if isinstance(made, Response):
            size = _size_of(made)
            if size > SMALL and made.media_type == _JSON:
                budget.require_one(size)
            return size if size > SMALL and not ticket.take(size) else _in_pieces(made)
        headers = made.headers if isinstance(made, Headed) else {}
        made = made.content if isinstance(made, Headed) else made
        content = make(made) if make else made
        size = weight(content)
        if size > SMALL:
            budget.require_one(size)
        if size > SMALL and not ticket.take(size):
            return size
        response = _written(content, ticket) if size > SMALL else answer(content)
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
    """Return this answer, which counts while it is sent. Raises HTTPException (503) for a read."""
    if (size := _size_of(response)) > SMALL:
        ticket = budget.ticket(scope)
        if reads:
            await budget.wait(ticket, size)
        else:
            ticket.take(size, must=True)
    return _in_pieces(response)


def _size_of(response: Response) -> int:
    """Return the bytes of a body that is there already; 0 for one that is made while it is sent."""
    return len(getattr(response, "body", b""))


def _in_pieces(response: Response) -> Response:
    if _size_of(response) <= SMALL:
        return response
    return LargeAnswer(_cut(bytes(response.body)), response.status_code, response.raw_headers)


async def made_answer(budget: AnswerBudget, scope: Scope, content: Any, *, reads: bool) -> Response:
    """Return the answer with this content; that of a write is never refused. Raises TooLong, HTTPException (503)."""
    size = weight(content)
    if size <= SMALL:
        return answer(content)
    ticket = budget.ticket(scope)
    if reads:
        budget.require_one(size)
        await budget.wait(ticket, size)
    else:
        ticket.take(size, must=True)
    return await offload(partial(_written, content, ticket), size)


def weight(content: Any) -> int:
    """Return about how many bytes the content takes as JSON."""
    kind = type(content)
    if kind is str:
        return 2 + (len(content) if content.isascii() else 3 * len(content))
    if kind is dict:
        return 2 + sum(len(name) + 4 + weight(value) for name, value in content.items())
    if kind is list or kind is tuple:
        return 2 + sum(1 + weight(item) for item in content)
    return 8


def _written(content: Any, ticket: Ticket) -> LargeAnswer:
    made = LargeAnswer(json_pieces(content))
    ticket.take(made.size, must=True)
    return made


def json_pieces(content: Any) -> Iterator[bytes]:
    """Yield the content as JSON, in pieces that are each written at once, so that other threads can go on between them."""
    if not isinstance(content, dict | list) or not content or weight(content) <= _PIECE:
        yield from _cut(orjson.dumps(content))
        return
    if isinstance(content, dict):
        sign = b"{"
        for name, value in content.items():
            yield sign + orjson.dumps(name) + b":"
            yield from json_pieces(value)
            sign = b","
        yield b"}"
        return
    sign, some, size = b"[", list[Any](), 0
    for item in content:
        own = weight(item)
        if some and size + own > _PIECE:
            yield sign + orjson.dumps(some)[1:-1]
            sign, some, size = b",", [], 0
        if own > _PIECE:
            yield sign
            yield from json_pieces(item)
            sign = b","
        else:
            some.append(item)
            size += own
    if some:
        yield sign + orjson.dumps(some)[1:-1]
    yield b"]"


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield short pieces together: each takes a call to be sent."""
    held, size = list[bytes](), 0
    for piece in pieces:
        if held and size + len(piece) > _PIECE:
            yield b"".join(held)
            held, size = [], 0
        held.append(piece)
        size += len(piece)
    if held:
        yield b"".join(held)


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]
