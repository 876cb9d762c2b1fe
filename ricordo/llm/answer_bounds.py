"""Bounds on one answer of a model's server: bytes, seconds, characters, calls, and the ids of calls.

Whoever runs that server may be careless or hostile: what it sends costs this server a bounded amount of memory and time.
"""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

import httpx2

from ricordo.domain.message import Message, Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.errors import ModelError, ModelErrorKind
from ricordo.llm.exchange import EXCHANGE, Exchange
from ricordo.llm.written_calls import new_call_id

# Bytes after unzipping: of an answer that comes as a whole or of one event, of a stream of events, and of an error.
ANSWER_BYTES = 8 * 1024 * 1024
STREAM_BYTES = 64 * 1024 * 1024
ERROR_BYTES = 64 * 1024
# Commas in the same: JSON of many small values takes a hundred times longer to read than one of long texts.
ANSWER_COMMAS = 600_000
# Characters of text, thoughts and arguments: twice what the longest answers of today's models have.
ANSWER_CHARACTERS = 1024 * 1024
# How many times its longest silence an answer may take in all.
SILENCES = 6
# Calls in one answer; more are no plan.
MOST_CALLS = 128
# Characters that a call counts as besides its name and arguments, since one without any costs something too.
_CALL_CHARACTERS = 64
# What every provider takes as the id of a call, Mistral aside: OpenAI's limit is 40 characters.
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.:|-]{1,40}")


class BoundReached(ModelError):
    """An answer reached a bound. Asking again would only cost as much again."""

    def __init__(self, message: str, kind: ModelErrorKind = "llm_error") -> None:
        super().__init__(kind, message)


class BoundedClient(httpx2.AsyncClient):
    """A client whose answers have a limit of unzipped bytes and of time; an error's body is cut, others raise BoundReached."""

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **how: Any
    ) -> httpx2.Response:
        exchange = EXCHANGE.get()
        if exchange:
            exchange.begin(await request.aread())
        seconds = request.extensions.get("timeout", self.timeout.as_dict()).get("read")
        deadline = (
            None if seconds is None else asyncio.get_running_loop().time() + seconds * SILENCES
        )
        try:
            # Each byte of the head ends a silence.
            async with asyncio.timeout_at(deadline):
                response = await super().send(request, stream=True, **how)
        except TimeoutError as error:
            raise _too_slow(request) from error
        response.stream = _BoundedStream(response, deadline, exchange)
        response.headers.pop("content-encoding", None)
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    """The unzipped body of a response, which httpx2 unzips in pieces of at most 1 MiB."""

    def __init__(
        self, response: httpx2.Response, deadline: float | None, exchange: Exchange | None
    ) -> None:
        self._exchange = exchange
        self._request, self._deadline, self._is_error = (
            response.request,
            deadline,
            response.status_code >= 400,
        )
        self._has_events = response.headers.get("content-type", "").startswith("text/event-stream")
        self._raw = cast("httpx2.AsyncByteStream", response.stream)
        self._pieces: AsyncIterable[bytes] = self._raw
        if "content-encoding" in response.headers:
            zipped = httpx2.Response(
                200, headers=response.headers, stream=self._raw, request=response.request
            )
            self._pieces = zipped.aiter_bytes()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        whole = size = commas = 0
        loop = asyncio.get_running_loop()
        async for data in self._pieces:
            if self._deadline is not None and loop.time() > self._deadline:
                raise _too_slow(self._request)
            if self._has_events and b"\n" in data:
                size = commas = 0
            whole, size, commas = whole + len(data), size + len(data), commas + data.count(b",")
            if self._is_error and whole > ERROR_BYTES:
                yield data[: ERROR_BYTES - whole]
                return
            if whole > STREAM_BYTES or size > ANSWER_BYTES or commas > ANSWER_COMMAS:
                raise BoundReached(
                    f"{self._request.url.host} sent more than is taken of one answer: {ANSWER_BYTES // 1024**2} MiB, or "
                    f"{STREAM_BYTES // 1024**2} MiB in a stream. Limit its length, or use another model."
                )
            if self._exchange:
                self._exchange.receive(data)
            yield data

    async def aclose(self) -> None:
        await self._raw.aclose()


def _too_slow(request: httpx2.Request) -> BoundReached:
    return BoundReached(
        f"{request.url.host} did not end its answer in {SILENCES} times the longest silence. Ask for less at once, or raise "
        "RICORDO_MODEL_TIMEOUT.",
        "llm_timeout",
    )


def require_within(size: int) -> None:
    if size > ANSWER_CHARACTERS:
        raise BoundReached(
            f"The model's answer is longer than {ANSWER_CHARACTERS:,} characters, which is the most that is taken. Limit its "
            "length with max_output_tokens, or use another model."
        )


def has_too_many_calls(reply: ModelReply) -> bool:
    return sum(isinstance(part, ToolCallPart) for part in reply.parts) > MOST_CALLS


def size_of(piece: Part | Chunk) -> int:
    """How many characters a part or a chunk adds to an answer."""
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
    """The ids of an answer's calls: the model's own where it is short, plain and new in the transcript, else one of ours."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._used: set[str] = set()
        # By index: the id that the model gave, and the one that the call has.
        self._ids: dict[int, tuple[str, str]] = {}

    def in_chunk(self, chunk: Chunk) -> Chunk:
        if not isinstance(chunk, ToolCallChunk) or chunk.call_id is None:
            return chunk
        return replace(chunk, call_id=self._id(chunk.index, chunk.call_id))

    def in_reply(self, reply: ModelReply) -> ModelReply:
        calls = [part.call_id for part in reply.parts if isinstance(part, ToolCallPart)]
        ids = [self._id(index, call_id) for index, call_id in enumerate(calls)]
        if ids == calls:
            return reply
        left = iter(ids)
        parts = (
            replace(part, call_id=next(left)) if isinstance(part, ToolCallPart) else part
            for part in reply.parts
        )
        return replace(reply, parts=tuple(parts))

    def _id(self, index: int, call_id: str) -> str:
        given, id = self._ids.get(index, (None, ""))
        if given == call_id:
            return id
        self._used = self._used or {
            call.call_id for message in self._messages for call in message.tool_calls
        }
        id = (
            call_id if _PLAIN_ID.fullmatch(call_id) and call_id not in self._used else new_call_id()
        )
        self._used.add(id)
        self._ids[index] = call_id, id
        return id
