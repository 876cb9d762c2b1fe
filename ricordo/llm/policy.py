"""The policy for calls to models: errors, retries and waits.

All adapters follow it.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import httpx2
import orjson

from ricordo.domain.clock import Backoff
from ricordo.domain.message import EventPart, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest, Restarted
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError, ModelErrorKind
from ricordo.llm.answer_bounds import (
    BoundReached,
    CallIds,
    has_too_many_calls,
    require_within,
    size_of,
)
from ricordo.llm.answer_format import answer_fault, in_format
from ricordo.llm.loose_json import member_of, read_json
from ricordo.llm.refusals import TOO_LONG
from ricordo.llm.repair import Fault, StreamRepair, fault_in, is_empty, repair
from ricordo.offload import offload
from ricordo.settings import Settings

# Seconds.
CONNECT_TIMEOUT = 10.0
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# Characters of a provider's message that are shown.
MESSAGE_LIMIT = 600
# Characters of a broken answer that are shown to its model again.
FAULT_LIMIT = 600

Attempt = AsyncGenerator[Chunk | ModelReply, None]
DISCARDED: ContextVar[list[Usage] | None] = ContextVar("discarded", default=None)
"""Gets the tokens of this task's answers that cannot be used, for a call that is cancelled."""
Result = TypeVar("Result")
_RETRIED: set[ModelErrorKind] = {"llm_timeout", "llm_rate_limit", "llm_error"}
_KINDS: dict[int, ModelErrorKind] = {
    401: "llm_authentication",
    402: "llm_insufficient_credits",
    403: "llm_authentication",
    408: "llm_timeout",
    409: "llm_error",
    # The request has too many bytes. A shorter transcript helps, as it does for a full window.
    413: "context_window_exceeded",
    425: "llm_error",
    429: "llm_rate_limit",
    504: "llm_timeout",
}
# Statuses from a wrong address, or for a model that the server does not have. The request would be
# refused whatever its messages are.
_ELSEWHERE = frozenset({*range(100, 400), 404, 405, 410})
_NO_CREDIT = re.compile(
    r"insufficient[_ ](quota|credit|balance|funds)|credit balance is too low|billing_error"
    r"|billing[_ ]hard[_ ]limit",
    re.IGNORECASE,
)
_WRONG_KEY = re.compile(
    r"API_KEY_INVALID|(invalid|incorrect|missing|expired|no) api[ _-]?key"
    r"|api[ _-]?key (is |was )?(not valid|invalid|incorrect|expired|missing|required)"
    r"|authentication_error|permission_error",
    re.IGNORECASE,
)
_NOT_OFFERED = re.compile(
    r"no such model|unknown model|not a valid model|model[ _]not[ _](found|exist|loaded|available)"
    r"|model\b.{0,80}(not found|not exist|no longer|decommissioned|identifier is invalid)"
    r"|invalid model\b(?! (input|output|prompt|response))|no models? (is |are )?(currently )?loaded"
    r"|(failed|unable) to load (the )?model|not_found_error|location is not supported",
    re.IGNORECASE,
)
# The moderation of some routers refuses a message with 403.
_FLAGGED = re.compile(r"moderation|flagged|content[ _]polic|safety", re.IGNORECASE)
# No wait helps if one request has more tokens than a minute allows.
_OVER_RATE = re.compile(r"request too large", re.IGNORECASE)
_KnownWords = tuple[tuple[ModelErrorKind, re.Pattern[str]], ...]
_WORDS: _KnownWords = (
    ("context_window_exceeded", TOO_LONG),
    ("llm_insufficient_credits", _NO_CREDIT),
)
# The refusals for which the request is not to blame.
_SETUP_WORDS: _KnownWords = (("llm_authentication", _WRONG_KEY), ("llm_error", _NOT_OFFERED))
# The first match counts.
_EVENT_WORDS: _KnownWords = (
    *_WORDS,
    ("llm_error", re.compile("overloaded", re.IGNORECASE)),
    ("llm_timeout", re.compile("timeout_error", re.IGNORECASE)),
    (
        "llm_rate_limit",
        re.compile(r"rate[_ ]limit|too many requests|resource_exhausted", re.IGNORECASE),
    ),
    *_SETUP_WORDS,
    (
        "llm_bad_request",
        re.compile(
            r"invalid_(request|prompt|image|base64)|bad_request|image_(too|content|parse|file)_",
            re.IGNORECASE,
        ),
    ),
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
    """The patience of a call.

    Times are in seconds; `sleep` and `jitter` (0 to 1) are replaceable for tests.
    """

    retries: int = 3
    timeout: float = 600
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random

    def wait(self, attempt: int, error: ModelError) -> float:
        """Return the seconds before the next attempt.

        It is the wait that the provider asked for, or a random time that doubles on average with
        each attempt. It is at most `LONGEST_WAIT`.

        Args:
            attempt: The number of the failed attempt, counted from 0.
            error: The error of that attempt.
        """
        if error.retry_after is not None:
            return min(error.retry_after, LONGEST_WAIT)
        # Wait a random time, from half of the wait to all of it. So callers that failed together do
        # not all try again together.
        return Backoff(FIRST_WAIT, 2, LONGEST_WAIT).seconds(attempt + 1, self.jitter)


def policy_from(settings: Settings) -> CallPolicy:
    return CallPolicy(retries=settings.model_retries, timeout=settings.model_timeout)


_SILENT = (
    "Your last answer was empty. The results of your tools are above: tell the user what you did, "
    "or answer them."
)


class EmptyReply(ModelError):
    """The model's answer has no text and no call."""

    def __init__(self, reply: ModelReply) -> None:
        super().__init__(
            "llm_empty_response",
            "The model gave an empty answer. Say it again, or use another model.",
        )
        self.reply = reply


class BrokenReply(ModelError):
    """The model's answer cannot be used even after repair.

    `chunks` are the chunks of the answer that readers have not seen.
    """

    def __init__(self, fault: Fault, reply: ModelReply, chunks: tuple[Chunk, ...]) -> None:
        advice = ""
        if reply.finish == "length":
            advice = "Raise the agent's max_output_tokens, or ask for less at once."
        problem = fault.problem or fault.sentence
        super().__init__(
            "llm_error",
            f"The model gave an answer that cannot be used, twice. {problem} {advice}".strip(),
        )
        self.fault = fault
        self.reply = reply
        self.chunks = chunks

    @property
    def is_final(self) -> bool:
        """Return whether a second such answer ends the call, because no part of it can be used."""
        was_cut_off = self.reply.finish == "length"
        return self.fault.is_useless or was_cut_off or has_too_many_calls(self.reply)


class AnswersRefusals(Protocol):
    """An adapter that can send a refused request again in a different form."""

    def answer_refusal(
        self, error: ModelError, request: ModelRequest, *, is_last: bool
    ) -> ModelError | None:
        """Return None if the call should be repeated at once in a different form.

        Args:
            error: The refusal or failure.
            request: The request that was sent.
            is_last: Whether no retry is left for a temporary error.

        Returns:
            The classified error, or None.
        """


async def answer_by_policy(
    policy: CallPolicy,
    request: ModelRequest,
    attempt: Callable[[ModelRequest], Attempt],
    adaptation: AnswersRefusals | None = None,
) -> AsyncGenerator[Chunk | ModelReply, None]:
    """Make one call: repair its answer, retry, and announce restarts after chunks were streamed.

    After a refusal, another form of the request is tried first, if `adaptation` has one. After a
    broken answer, the model answers once more. It sees the fault at the end of the transcript, and
    the broken answer too, unless that is useless. A second broken answer is passed on as it is. If
    no part of it can be used, the call fails.

    Args:
        policy: The retries and waits.
        request: The request.
        attempt: Sends a request once, and yields its chunks and then the reply.
        adaptation: Finds other forms of a refused request; None tries none.

    Yields:
        Chunks, `Restarted` before an answer that begins again, and at last the repaired reply.

    Raises:
        ModelError: the classified error of the last attempt.
    """
    retries = _Retries(policy, adaptation)
    next_request = request
    has_shown_fault = False
    while True:
        has_yielded = False
        try:
            answer = _repaired(request, attempt(next_request), retries.discarded)
            async with aclosing(answer) as events:
                async for event in events:
                    yield event
                    has_yielded = True
        except BrokenReply as error:
            if has_shown_fault and not error.is_final:
                for event in (*error.chunks, error.reply):
                    yield event
                return
            retries.discard(error)
            if has_shown_fault:
                raise
            next_request = with_complaint(request, error.reply, error.fault)
            has_shown_fault = True
            wait = 0.0
        except ModelError as error:
            wait = retries.next_wait(error, next_request)
            if isinstance(error, EmptyReply) and is_after_results(request):
                next_request = with_sentence(request, _SILENT)
        else:
            return
        if has_yielded:
            yield Restarted()
        if wait:
            await policy.sleep(wait)


@dataclass(slots=True)
class _Retries:
    """The attempts of one call.

    The policy limits the retries after temporary errors. One of them may follow an empty answer.
    Other forms of the request are tried at once, and do not count as retries.
    """

    policy: CallPolicy
    adaptation: AnswersRefusals | None
    number: int = 0
    empties: int = 0
    discarded: Usage = field(default_factory=Usage)

    def discard(self, error: "EmptyReply | BrokenReply") -> None:
        """Add the tokens of an answer that cannot be used, since they are paid for.

        Args:
            error: The answer's error. If it ends the call, it tells its caller the tokens.
        """
        error.reply = replace(error.reply, discarded=self.discarded)
        self.discarded += error.reply.usage
        if (discarded := DISCARDED.get()) is not None:
            discarded.append(error.reply.usage)
        error.discarded = self.discarded

    def next_wait(self, error: ModelError, request: ModelRequest) -> float:
        """Return the seconds before the next attempt.

        Raises the classified error if no attempt is left, or if none can help.
        """
        if isinstance(error, EmptyReply):
            self.discard(error)
        is_last = self.number == self.policy.retries
        refusal: ModelError | None = error
        if self.adaptation:
            refusal = self.adaptation.answer_refusal(error, request, is_last=is_last)
        if refusal is None:
            return 0.0
        is_first_empty = isinstance(error, EmptyReply) and not self.empties
        self.empties += isinstance(error, EmptyReply)
        if is_last or not (_may_succeed(refusal) or is_first_empty):
            cause = error.__cause__ if refusal is error else error
            refusal.discarded = self.discarded
            raise refusal from cause
        wait = self.policy.wait(self.number, error)
        self.number += 1
        return wait


def with_complaint(request: ModelRequest, reply: ModelReply, fault: Fault) -> ModelRequest:
    """Return the request with the broken answer and a complaint about it.

    The complaint is in the results of tools if the answer called tools.

    Args:
        request: The request that got the broken answer; it is not changed.
        reply: The broken answer. A useless one is not shown to the model, since a model copies its
            input.
        fault: The fault, with a sentence for the model.
    """
    if fault.is_useless:
        return with_sentence(request, fault.sentence)
    parts = tuple(
        _shortened(part) for part in reply.parts if not isinstance(part, ToolCallPart) or part.name
    )
    if has_too_many_calls(reply):
        # One call is enough to show the fault.
        first_call = next(
            (index for index, part in enumerate(parts) if isinstance(part, ToolCallPart)), 0
        )
        parts = parts[: first_call + 1]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    returns: tuple[Part, ...] = tuple(
        ToolReturnPart(call.call_id, call.name, "error", fault.sentence) for call in calls
    )
    last = request.messages[-1]
    answer = replace(last, id=f"{last.id}-answer", role="assistant", parts=parts)
    complaint = replace(
        last,
        id=f"{last.id}-fault",
        role="tool" if calls else "user",
        parts=returns or (TextPart(fault.sentence),),
    )
    new_messages = (answer, complaint) if parts else (complaint,)
    return replace(request, messages=(*request.messages, *new_messages))


def with_sentence(request: ModelRequest, sentence: str) -> ModelRequest:
    """Return the request with a sentence for the model as its last message.

    Args:
        request: The request, which is not changed. It must have a message.
        sentence: The sentence, which is shown as an event.
    """
    last = request.messages[-1]
    complaint = replace(last, id=f"{last.id}-fault", role="user", parts=(EventPart(sentence),))
    return replace(request, messages=(*request.messages, complaint))


def _shortened(part: Part) -> Part:
    # A truncated call may be as long as the model's output limit. Its beginning is enough to show
    # the fault.
    if isinstance(part, ToolCallPart):
        return replace(part, arguments=part.arguments[:FAULT_LIMIT])
    if isinstance(part, TextPart):
        return replace(part, text=part.text[:FAULT_LIMIT])
    return part


async def call_by_policy(policy: CallPolicy, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Make one call that returns a whole answer; retry after temporary errors.

    Args:
        policy: The retries and waits.
        attempt: Makes the call once. It raises ModelError.

    Raises:
        ModelError: the error of the last attempt.
    """
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
    return error.kind in _RETRIED and not (error.is_lasting or isinstance(error, BoundReached))


async def _repaired(
    request: ModelRequest, events: AsyncGenerator[Chunk | ModelReply, None], discarded: Usage
) -> AsyncGenerator[Chunk | ModelReply, None]:
    stream = StreamRepair(request.tools)
    ids = CallIds(request.messages)
    streamed_size = 0
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, ModelReply):
                streamed_size += size_of(event)
                require_within(streamed_size)
                for chunk in stream.feed(ids.in_chunk(event)):
                    yield chunk
                continue
            size = sum(map(size_of, event.parts))
            require_within(size)
            work = partial(repair, ids.in_reply(event), request.callable_tools)
            reply = replace(await offload(work, size), discarded=discarded)
            has_form = bool(request.settings.response_format or request.forced_tool)
            if has_form:
                reply = in_format(reply, request)
            if is_empty(reply):
                raise EmptyReply(reply)
            if request.stream:
                rest = tuple(stream.close(reply))
            else:
                rest = ()
            if has_form:
                fault = answer_fault(reply, request)
            else:
                fault = fault_in(reply, request)
            if fault is not None:
                raise BrokenReply(fault, reply, rest)
            for chunk in rest:
                yield chunk
            yield reply


def is_after_results(request: ModelRequest) -> bool:
    """Return whether the request ends with tool results."""
    return bool(request.messages) and bool(request.messages[-1].tool_returns)


def error_from_status(
    provider: str, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> ModelError:
    """Return the error of an answer with this HTTP status.

    Args:
        provider: The provider's name, with which the message begins.
        status: The HTTP status, which is not 200.
        body: The answer as bytes, text or decoded JSON.
        headers: The headers of the answer, which may name a wait; None if they are not known.
    """
    shown_text, whole_text = words_of(body)
    kind = _kind_of_status(status, shown_text, whole_text)
    error = _error(provider, kind, f"answered {status}", shown_text, seconds_to_wait(headers or {}))
    error.status = status
    error.is_lasting = kind == "llm_error" and status < 500 and status not in _KINDS
    error.words = whole_text
    return error


def _kind_of_status(status: int, shown_text: str, whole_text: str) -> ModelErrorKind:
    kind = _KINDS.get(status)
    if kind == "llm_rate_limit":
        words: _KnownWords = (
            ("llm_insufficient_credits", _NO_CREDIT),
            ("context_window_exceeded", _OVER_RATE),
        )
        return _kind_by_words(whole_text, words) or kind
    if status == 403 and _FLAGGED.search(shown_text):
        return "llm_bad_request"
    if kind and status < 500:
        return kind
    if known_kind := _kind_by_words(whole_text):
        return known_kind
    if kind or status >= 500 or status in _ELSEWHERE:
        return kind or "llm_error"
    # Only the provider's sentence counts, since the whole text may repeat the request.
    return _kind_by_words(shown_text, _SETUP_WORDS) or "llm_bad_request"


def error_from_event(provider: str, body: Any) -> ModelError:
    """Return the error of an error object inside an answer with a successful HTTP status.

    Args:
        provider: The provider's name, with which the message begins.
        body: The answer as bytes, text or decoded JSON.
    """
    shown_text, whole_text = words_of(body)
    code = member_of(_error_in(body), "code")
    if isinstance(code, int) and 400 <= code < 600:
        return error_from_status(provider, code, body)
    kind = _kind_by_words(whole_text, _EVENT_WORDS) or "llm_error"
    error = _error(provider, kind, "broke off its answer", shown_text)
    error.words = whole_text
    error.is_lasting = kind == "llm_error" and bool(_NOT_OFFERED.search(whole_text))
    return error


def error_from_transport(provider: str, error: Exception) -> ModelError:
    """Return the error of a failure below HTTP: silence, or a failed connection.

    Args:
        provider: The provider's name, with which the message begins.
        error: The error of the HTTP client.
    """
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return lasting_error(f"The address of {provider} is not usable: {error}")
    kind, event = next(row for type_, row in _TRANSPORT.items() if isinstance(error, type_))
    return _error(provider, kind, event, str(error))


def lasting_error(message: str) -> ModelError:
    """Return the error of a provider that would answer any request in the same wrong way.

    Args:
        message: The sentence for people.
    """
    error = ModelError("llm_error", message)
    error.is_lasting = True
    return error


def _error_in(body: Any) -> Any:
    """Return the error object inside an answer, or the answer itself."""
    return body.get("error", body) if isinstance(body, dict) else body


def words_of(body: Any) -> tuple[str, str]:
    """Return an error's message for people, and the body's whole text for searches."""
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    if isinstance(body, str):
        if (json := read_json(body)) is None:
            return body.strip()[:MESSAGE_LIMIT], body
        body = json
    if isinstance(body, list) and body:  # Google wraps its error in a list.
        body = body[0]
    if isinstance(body, str):
        whole_text = body
    else:
        whole_text = orjson.dumps(body, default=str).decode()
    message = _error_in(body)
    if isinstance(message, dict):
        message = (
            message.get("message") or message.get("detail") or message.get("type") or whole_text
        )
    return str(message)[:MESSAGE_LIMIT], whole_text


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that an answer's headers name; None if they name none.

    The headers are `retry-after-ms`, or `Retry-After` in seconds or as a date.
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        header = headers.get("retry-after", "")
        if header.strip().replace(".", "", 1).isdigit():
            return float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _kind_by_words(text: str, table: _KnownWords = _WORDS) -> ModelErrorKind | None:
    return next((kind for kind, pattern in table if pattern.search(text)), None)


def _error(
    provider: str, kind: ModelErrorKind, event: str, text: str, wait: float | None = None
) -> ModelError:
    if text:
        message = f"{provider} {event}: {text}"
    else:
        message = f"{provider} {event}."
    if advice := _ADVICE.get(kind):
        message = f"{message.rstrip('. ')}. {advice}"
    return ModelError(kind, message, retry_after=wait)
