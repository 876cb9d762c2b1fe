"""Bounds on one answer of a model's server: bytes, seconds, characters, calls and call ids.

The server's owner may be careless or hostile, so the memory and time of each answer are limited.
"""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, cast

import httpx2

from ricordo.domain.message import Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.errors import ModelError, ModelErrorKind
from ricordo.llm.exchange import EXCHANGE, Exchange
from ricordo.llm.written_calls import new_call_id

# Limits in unzipped bytes: of a whole answer or one event, of a stream of events, and of an error.
ANSWER_BYTES = 8 * 1024 * 1024
STREAM_BYTES = 64 * 1024 * 1024
ERROR_BYTES = 64 * 1024
# The most commas in a whole answer or one event. JSON of many small values takes a hundred times
# longer to read than JSON of long texts.
ANSWER_COMMAS = 600_000
# Characters of text, reasoning and arguments: twice the longest answers of today's models.
ANSWER_CHARACTERS = 1024 * 1024
# The time limit of a whole answer, in multiples of the time limit of one pause.
SILENCES = 6
# The limit of calls in one answer; a model that makes more is out of control.
MOST_CALLS = 128
# Characters that are counted for each call besides its text, since even an empty call costs time.
_CALL_CHARACTERS = 64
# Call ids of a model that are kept. OpenAI's limit is 40 characters. `openai_format.py` and
# `provider_messages.py` replace ids for providers that accept fewer characters.
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.:|-]{1,40}")

_STATUSES: ContextVar[list[int] | None] = ContextVar("statuses", default=None)


class BoundReached(ModelError):
    """An answer reached a bound. Another try would cost as much again."""

    def __init__(self, message: str, kind: ModelErrorKind = "llm_error") -> None:
        super().__init__(kind, message)


class BoundedClient(httpx2.AsyncClient):
    """A client that limits the unzipped bytes and the time of each answer.

    The body of an error is cut at its limit. Any other answer beyond a limit raises BoundReached.
    """

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """Send the request, and bound its answer.

        Args:
            request: The request. Its body is noted in the current `Exchange`.
            stream: Return after the head of the answer; otherwise the body is read first.
            **options: The other options of httpx2's method.

        Raises:
            BoundReached: The answer is too long or too slow.
            NotSent: The current `Exchange` is a preview.
        """
        exchange = EXCHANGE.get()
        if exchange:
            exchange.begin(await request.aread())
        seconds = request.extensions.get("timeout", self.timeout.as_dict()).get("read")
        if seconds is None:
            deadline = None
        else:
            deadline = asyncio.get_running_loop().time() + seconds * SILENCES
        try:
            # The client limits only the pauses, and each byte of the response's head ends a pause.
            # So the whole head gets a time limit here.
            async with asyncio.timeout_at(deadline):
                response = await super().send(request, stream=True, **options)
        except TimeoutError as error:
            raise _too_slow(request) from error
        if (statuses := _STATUSES.get()) is not None:
            statuses.append(response.status_code)
        response.stream = _BoundedStream(response, deadline, exchange)
        response.headers.pop("content-encoding", None)
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response


@contextmanager
def noted_statuses(statuses: list[int]) -> Iterator[None]:
    """Append the status of each answer that this task gets from a `BoundedClient`.

    Args:
        statuses: The list to append to. The caller can read it after an error too.
    """
    token = _STATUSES.set(statuses)
    try:
        yield
    finally:
        _STATUSES.reset(token)


class _BoundedStream(httpx2.AsyncByteStream):
    """The unzipped body of a response.

    Httpx2 unzips it in pieces of at most 1 MiB.
    """

    def __init__(
        self, response: httpx2.Response, deadline: float | None, exchange: Exchange | None
    ) -> None:
        self._exchange = exchange
        self._request = response.request
        self._deadline = deadline
        self._is_error = response.status_code >= 400
        self._has_events = response.headers.get("content-type", "").startswith("text/event-stream")
        self._raw = cast("httpx2.AsyncByteStream", response.stream)
        self._pieces: AsyncIterable[bytes] = self._raw
        if "content-encoding" in response.headers:
            zipped = httpx2.Response(
                200, headers=response.headers, stream=self._raw, request=response.request
            )
            self._pieces = zipped.aiter_bytes()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total_size = event_size = commas = 0
        loop = asyncio.get_running_loop()
        async for piece in self._pieces:
            if self._deadline is not None and loop.time() > self._deadline:
                raise _too_slow(self._request)
            if self._has_events and b"\n" in piece:
                event_size = commas = 0
            total_size += len(piece)
            event_size += len(piece)
            commas += piece.count(b",")
            if self._is_error and total_size > ERROR_BYTES:
                yield piece[: ERROR_BYTES - total_size]
                return
            is_too_large = total_size > STREAM_BYTES or event_size > ANSWER_BYTES
            if is_too_large or commas > ANSWER_COMMAS:
                raise BoundReached(
                    f"{self._request.url.host} sent a longer answer than is allowed: "
                    f"{ANSWER_BYTES // 1024**2} MiB, or {STREAM_BYTES // 1024**2} MiB in a stream. "
                    "Limit its length, or use another model."
                )
            if self._exchange:
                self._exchange.receive(piece)
            yield piece

    async def aclose(self) -> None:
        await self._raw.aclose()


def _too_slow(request: httpx2.Request) -> BoundReached:
    return BoundReached(
        f"{request.url.host} did not end its answer within {SILENCES} times RICORDO_MODEL_TIMEOUT. "
        "Ask for a shorter answer, or raise that setting.",
        "llm_timeout",
    )


def require_within(size: int) -> None:
    """Refuse an answer that is longer than the limit.

    Args:
        size: The characters of the answer so far, as `size_of` counts them.

    Raises:
        BoundReached: There are more than `ANSWER_CHARACTERS`.
    """
    if size > ANSWER_CHARACTERS:
        raise BoundReached(
            f"The model's answer is longer than {ANSWER_CHARACTERS:,} characters, which is the "
            "limit. Limit its length with max_output_tokens, or use another model."
        )


def has_too_many_calls(reply: ModelReply) -> bool:
    """Return whether a reply has more calls than `MOST_CALLS`.

    Args:
        reply: The whole reply.
    """
    return sum(isinstance(part, ToolCallPart) for part in reply.parts) > MOST_CALLS


def size_of(piece: Part | Chunk) -> int:
    """Return the characters that a part or chunk adds to an answer.

    Args:
        piece: A part of a whole reply, or a chunk of a streamed one. A call also counts some
            characters for itself, once.
    """
    match piece:
        case ToolCallPart() | ToolCallChunk():
            is_new = isinstance(piece, ToolCallPart) or piece.call_id is not None
            return len(piece.arguments) + len(piece.name or "") + is_new * _CALL_CHARACTERS
        case ReasoningPart():
            return len(piece.text) + len(piece.signature or "") + len(piece.redacted or "")
        case TextPart() | TextChunk() | ReasoningChunk():
            return len(piece.text)
        case _:
            return 0


class CallIds:
    """The ids of an answer's calls.

    A call keeps the model's id if it is short, plain and new in the transcript; otherwise it gets
    one of ours.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._used: set[str] = set()
        # By index: the model's id and the call's id.
        self._ids: dict[int, tuple[str, str]] = {}

    def in_chunk(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the id that its call gets.

        Args:
            chunk: The next chunk of the answer.
        """
        if not isinstance(chunk, ToolCallChunk) or chunk.call_id is None:
            return chunk
        return replace(chunk, call_id=self._id(chunk.index, chunk.call_id))

    def in_reply(self, reply: ModelReply) -> ModelReply:
        """Return the reply with the same ids that its chunks had.

        Args:
            reply: The whole reply.
        """
        calls = [part.call_id for part in reply.parts if isinstance(part, ToolCallPart)]
        ids = [self._id(index, call_id) for index, call_id in enumerate(calls)]
        if ids == calls:
            return reply
        remaining_ids = iter(ids)
        parts = (
            replace(part, call_id=next(remaining_ids)) if isinstance(part, ToolCallPart) else part
            for part in reply.parts
        )
        return replace(reply, parts=tuple(parts))

    def _id(self, index: int, call_id: str) -> str:
        earlier_call_id, own_id = self._ids.get(index, (None, ""))
        if earlier_call_id == call_id:
            return own_id
        self._used = self._used or {
            call.call_id for message in self._messages for call in message.tool_calls
        }
        is_usable = _PLAIN_ID.fullmatch(call_id) and call_id not in self._used
        own_id = call_id if is_usable else new_call_id()
        self._used.add(own_id)
        self._ids[index] = call_id, own_id
        return own_id
