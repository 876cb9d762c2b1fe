"""One policy for calls to models: what a fault means, what is tried again, and how long to wait; both adapters follow it."""

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import httpx2
import orjson

from ricordo.domain.clock import Backoff
from ricordo.domain.message import EventPart, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest, Restarted
from ricordo.errors import ModelError, ModelErrorKind
from ricordo.llm.answer_bounds import (
    BoundReached,
    CallIds,
    has_too_many_calls,
    require_within,
    size_of,
)
from ricordo.llm.answer_format import answer_fault, in_format
from ricordo.llm.loose_json import read_json
from ricordo.llm.refusals import TOO_LONG
from ricordo.llm.repair import Fault, StreamRepair, fault_in, is_empty, repair
from ricordo.offload import offload
from ricordo.settings import Settings

CONNECT_TIMEOUT, FIRST_WAIT, LONGEST_WAIT = 10.0, 0.5, 30.0
MESSAGE_LIMIT = 600
# Characters of a broken answer that its model gets to see again.
FAULT_LIMIT = 600

Attempt = AsyncGenerator[Chunk | ModelReply, None]
Result = TypeVar("Result")
_RETRIED: set[ModelErrorKind] = {"llm_timeout", "llm_rate_limit", "llm_error"}
_KINDS: dict[int, ModelErrorKind] = {
    401: "llm_authentication",
    402: "llm_insufficient_credits",
    403: "llm_authentication",
    408: "llm_timeout",
    409: "llm_error",
    # Larger than the provider takes at all: a shorter transcript is the cure, as with a full window.
    413: "context_window_exceeded",
    425: "llm_error",
    429: "llm_rate_limit",
    504: "llm_timeout",
}
_NO_CREDIT = re.compile(
    r"insufficient[_ ](quota|credit|balance|funds)|credit balance is too low|billing_error",
    re.IGNORECASE,
)
_KnownWords = tuple[tuple[ModelErrorKind, re.Pattern[str]], ...]
_WORDS: _KnownWords = (
    ("context_window_exceeded", TOO_LONG),
    ("llm_insufficient_credits", _NO_CREDIT),
)
# The first that is found counts.
_EVENT_WORDS: _KnownWords = (
    *_WORDS,
    ("llm_error", re.compile("overloaded", re.IGNORECASE)),
    (
        "llm_rate_limit",
        re.compile(r"rate[_ ]limit|too many requests|resource_exhausted", re.IGNORECASE),
    ),
    ("llm_bad_request", re.compile(r"invalid_request|bad_request|not_found", re.IGNORECASE)),
)
_TRANSPORT: dict[type[Exception], tuple[ModelErrorKind, str]] = {
    httpx2.ConnectTimeout: ("llm_timeout", "could not be reached in time"),
    httpx2.TimeoutException: ("llm_timeout", "gave no sign of life"),
    httpx2.ConnectError: ("llm_error", "cannot be reached"),
    Exception: ("llm_error", "broke the connection"),
}
_ADVICE: dict[ModelErrorKind, str] = {
    "llm_authentication": "Check its key.",
    "llm_insufficient_credits": "Top up the account, or use another model.",
    "llm_rate_limit": "Wait a little, or use another model.",
    "llm_timeout": "Try again, or raise RICORDO_MODEL_TIMEOUT.",
}


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How patient a call is. Times are in seconds; `sleep` and `jitter` (0 to 1) are replaceable for tests."""

    retries: int = 3
    timeout: float = 600
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random

    def wait(self, attempt: int, error: ModelError) -> float:
        """Seconds before the next attempt, counted from 0: what the provider asked for, else twice as long each time."""
        if error.retry_after is not None:
            return min(error.retry_after, LONGEST_WAIT)
        # Between a half and the whole: callers that failed together come back apart.
        return Backoff(FIRST_WAIT, 2, LONGEST_WAIT).seconds(attempt + 1, self.jitter)


def policy_from(settings: Settings) -> CallPolicy:
    return CallPolicy(retries=settings.model_retries, timeout=settings.model_timeout)


_SILENT = "Your last answer was empty. The results of your tools are above: tell the user what you did, or answer them."


class EmptyReply(ModelError):
    """The model said nothing: no text and no call."""

    def __init__(self, reply: ModelReply) -> None:
        super().__init__(
            "llm_empty_response",
            "The model gave an empty answer. Say it again, or use another model.",
        )
        self.reply = reply


class BrokenReply(ModelError):
    """The model's answer cannot be used even when mended. `chunks` is what its readers had still to see of it."""

    def __init__(self, fault: Fault, reply: ModelReply, chunks: tuple[Chunk, ...]) -> None:
        advice = (
            "Raise the agent's max_output_tokens, or ask for less at once."
            if reply.finish == "length"
            else ""
        )
        problem = fault.problem or fault.sentence
        super().__init__(
            "llm_error",
            f"The model gave an answer that cannot be used, twice. {problem} {advice}".strip(),
        )
        self.fault, self.reply, self.chunks = fault, reply, chunks

    @property
    def is_final(self) -> bool:
        """Return whether nothing of a second answer like this can be used either."""
        return (
            self.fault.is_useless or self.reply.finish == "length" or has_too_many_calls(self.reply)
        )


class AnswersRefusals(Protocol):
    """What knows other forms of a request than the one that was refused."""

    def answer_refusal(
        self, error: ModelError, request: ModelRequest, *, is_last: bool
    ) -> ModelError | None:
        """Return None where the call is to be made again at once, in another form; else the error, judged."""


async def answer_by_policy(
    policy: CallPolicy,
    request: ModelRequest,
    attempt: Callable[[ModelRequest], Attempt],
    adaptation: AnswersRefusals | None = None,
) -> AsyncGenerator[Chunk | ModelReply, None]:
    """Make one call: repair what comes, try again what may succeed, and announce a restart to those who saw chunks.

    A refusal is first answered by another form of the request, where the `adaptation` knows one.

    A broken answer is told to the model once, with a longer transcript. One that is still broken is left to the tool's own
    error, and fails where it was cut off.
    """
    retries, asked, is_told = _Retries(policy, adaptation), request, False
    while True:
        seen = False
        try:
            async with aclosing(_repaired(request, attempt(asked))) as items:
                async for item in items:
                    yield item
                    seen = True
        except BrokenReply as error:
            if is_told:
                if error.is_final:
                    raise
                for item in (*error.chunks, error.reply):
                    yield item
                return
            asked, is_told = with_fault_told(request, error.reply, error.fault), True
            wait = 0.0
        except EmptyReply as error:
            wait = retries.next_wait(error, asked)
            if is_after_results(request):
                asked = with_sentence(request, _SILENT)
        except ModelError as error:
            wait = retries.next_wait(error, asked)
        else:
            return
        if seen:
            yield Restarted()
        if wait:
            await policy.sleep(wait)


@dataclass(slots=True)
class _Retries:
    """Counts the attempts of one call: retries by the policy, one for an empty answer, and other forms of the request."""

    policy: CallPolicy
    adaptation: AnswersRefusals | None
    number: int = 0
    empties: int = 0

    def next_wait(self, error: ModelError, asked: ModelRequest) -> float:
        """Return the seconds before the next attempt; raises the error, judged, where there is none."""
        is_last = self.number == self.policy.retries
        refusal = (
            self.adaptation.answer_refusal(error, asked, is_last=is_last)
            if self.adaptation
            else error
        )
        if refusal is None:
            return 0.0
        is_first_empty = isinstance(error, EmptyReply) and not self.empties
        self.empties += isinstance(error, EmptyReply)
        if is_last or not (_may_succeed(refusal) or is_first_empty):
            raise refusal from (error.__cause__ if refusal is error else error)
        wait = self.policy.wait(self.number, error)
        self.number += 1
        return wait


def with_fault_told(request: ModelRequest, reply: ModelReply, fault: Fault) -> ModelRequest:
    """Return the request with the broken answer behind it, and what is wrong with it: as results where it called tools.

    A useless answer is left out: a model copies what it reads.
    """
    if fault.is_useless:
        return with_sentence(request, fault.sentence)
    parts = tuple(
        _shortened(part) for part in reply.parts if not isinstance(part, ToolCallPart) or part.name
    )
    # Of more calls than may be made, one tells enough.
    parts = parts[:1] if has_too_many_calls(reply) else parts
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    told: tuple[Part, ...] = tuple(
        ToolReturnPart(call.call_id, call.name, "error", fault.sentence) for call in calls
    )
    last = request.messages[-1]
    answer = replace(last, id=f"{last.id}-answer", role="assistant", parts=parts)
    complaint = replace(
        last,
        id=f"{last.id}-fault",
        role="tool" if calls else "user",
        parts=told or (TextPart(fault.sentence),),
    )
    return replace(
        request, messages=(*request.messages, *((answer, complaint) if parts else (complaint,)))
    )


def with_sentence(request: ModelRequest, sentence: str) -> ModelRequest:
    """Return the request with a sentence to the model as its last message."""
    last = request.messages[-1]
    complaint = replace(last, id=f"{last.id}-fault", role="user", parts=(EventPart(sentence),))
    return replace(request, messages=(*request.messages, complaint))


def _shortened(part: Part) -> Part:
    # A call that was cut off may be as long as the model's limit: its beginning tells enough.
    if isinstance(part, ToolCallPart):
        return replace(part, arguments=part.arguments[:FAULT_LIMIT])
    return replace(part, text=part.text[:FAULT_LIMIT]) if isinstance(part, TextPart) else part


async def call_by_policy(policy: CallPolicy, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Make one call that answers as a whole, and try again what may succeed."""
    for number in range(policy.retries):
        try:
            return await attempt()
        except ModelError as error:
            if not _may_succeed(error):
                raise
            wait = policy.wait(number, error)
        await policy.sleep(wait)
    return await attempt()


def _may_succeed(error: ModelError) -> bool:
    return error.kind in _RETRIED and not isinstance(error, BoundReached)


async def _repaired(
    request: ModelRequest, items: AsyncGenerator[Chunk | ModelReply, None]
) -> AsyncGenerator[Chunk | ModelReply, None]:
    stream, ids, streamed = StreamRepair(request.tools), CallIds(request.messages), 0
    async with aclosing(items):
        async for item in items:
            streamed += 0 if isinstance(item, ModelReply) else size_of(item)
            size = sum(map(size_of, item.parts)) if isinstance(item, ModelReply) else streamed
            require_within(size)
            if not isinstance(item, ModelReply):
                for chunk in stream.feed(ids.in_chunk(item)):
                    yield chunk
                continue
            reply = await offload(partial(repair, ids.in_reply(item), request.callable_tools), size)
            has_form = bool(request.settings.response_format or request.forced_tool)
            reply = in_format(reply, request) if has_form else reply
            if is_empty(reply):
                raise EmptyReply(reply)
            rest = tuple(stream.close(reply)) if request.stream else ()
            fault = answer_fault(reply, request) if has_form else fault_in(reply, request)
            if fault is not None:
                raise BrokenReply(fault, reply, rest)
            for chunk in rest:
                yield chunk
            yield reply


def is_after_results(request: ModelRequest) -> bool:
    """Return whether the model was asked what to do with results of tools."""
    return bool(request.messages) and bool(request.messages[-1].tool_returns)


def error_from_status(
    provider: str, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> ModelError:
    """What an answer with this HTTP status means. `body` is bytes, text or decoded JSON."""
    words, whole = words_of(body)
    kind = _KINDS.get(status) or ("llm_error" if status >= 500 else "llm_bad_request")
    if kind == "llm_rate_limit" and _NO_CREDIT.search(whole):
        kind = "llm_insufficient_credits"
    elif kind == "llm_bad_request" or status >= 500:
        kind = _kind_by_words(whole) or kind
    error = _error(provider, kind, f"answered {status}", words, seconds_to_wait(headers or {}))
    error.status, error.words = status, whole
    return error


def error_from_event(provider: str, body: Any) -> ModelError:
    """What an error object inside an answer means, where the HTTP status said that all was well."""
    words, whole = words_of(body)
    inner = body.get("error", body) if isinstance(body, dict) else body
    code = inner.get("code") if isinstance(inner, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return error_from_status(provider, code, body)
    kind = _kind_by_words(whole, _EVENT_WORDS) or "llm_error"
    error = _error(provider, kind, "broke off its answer", words)
    error.words = whole
    return error


def error_from_transport(provider: str, error: Exception) -> ModelError:
    """What a failure below HTTP means: no sign of life, or a connection that could not be made or broke."""
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return ModelError("llm_bad_request", f"The address of {provider} is not usable: {error}")
    kind, happened = next(meant for known, meant in _TRANSPORT.items() if isinstance(error, known))
    return _error(provider, kind, happened, str(error))


def words_of(body: Any) -> tuple[str, str]:
    """The message in an error's body, for people, and all of its text, to look for known words in."""
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    if isinstance(body, str):
        if (found := read_json(body)) is None:
            return body.strip()[:MESSAGE_LIMIT], body
        body = found
    if isinstance(body, list) and body:  # Google wraps its error in a list.
        body = body[0]
    whole = body if isinstance(body, str) else orjson.dumps(body, default=str).decode()
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or inner.get("type") or whole
    return str(inner)[:MESSAGE_LIMIT], whole


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """The wait that the headers ask for: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _kind_by_words(text: str, known: _KnownWords = _WORDS) -> ModelErrorKind | None:
    return next((kind for kind, words in known if words.search(text)), None)


def _error(
    provider: str, kind: ModelErrorKind, happened: str, words: str, wait: float | None = None
) -> ModelError:
    message = f"{provider} {happened}: {words}" if words else f"{provider} {happened}."
    if advice := _ADVICE.get(kind):
        message = f"{message.rstrip('. ')}. {advice}"
    return ModelError(kind, message, retry_after=wait)
