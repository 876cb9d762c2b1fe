"""Records of model calls: steps of failed calls, and traces.

A trace is stored only if the settings ask for it. Calls that write summaries belong to no step.
Their traces have separate ids and are listed with the run.

A trace contains the JSON of the provider's request and response, without headers and so without
keys. For a model without HTTP it contains our request and reply objects. Text that looks like a
credential is replaced, and of the content of pictures only the size is stored.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

import orjson

from ricordo.agents.turn_context import (
    StepDraft,
    TurnContext,
)
from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import ImagePart, Part, parts_to_json
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.redaction import redact_json
from ricordo.domain.run import Step, StepStatus, StopReason, Trace, status_after
from ricordo.errors import ModelError
from ricordo.llm.chat import ChatModel
from ricordo.llm.exchange import EXCHANGE, Exchange
from ricordo.runtime import Runtime
from ricordo.storage import runs

log = logging.getLogger(__name__)
Json = dict[str, Any]
Call = tuple[Json, Json]
"""The request to a model, and its answer."""
FailedCall = tuple[Step, Trace | None]
"""The step of an unanswered model call, with its trace if the settings store traces."""
EVERY = 3600.0  # seconds between two removals of old traces
# Limits for the length of texts and the items of lists, tried in this order until the whole fits.
_REDUCTIONS = (
    (50_000, 10**9),
    (10_000, 10**9),
    (2_000, 10**9),
    (400, 1_000),
    (80, 64),
    (80, 16),
    (80, 4),
    (80, 1),
)
# The most traces of a compaction's calls; only the newest are stored.
_SUMMARY_TRACES = 20


def trace_of(
    turn: TurnContext, step: StepDraft, reply: ModelReply, stop: StopReason | None
) -> Trace | None:
    """Return the trace of an answered call, if it is to be stored.

    With the setting `errors`, only an answer that made its run fail gets a trace.

    Args:
        turn: The turn.
        step: The step with its request and its exchange with the provider.
        reply: The model's reply, used where the provider's response is not known.
        stop: The reason that ends the run with this step, or None.
    """
    is_error = stop is not None and status_after(stop) == "failed"
    if step.request is None or not _is_kept(turn, is_error=is_error):
        return None
    return _trace(turn, step.id, _call(step.request, turn.model.info, step.exchange, reply))


def _call(
    request: ModelRequest,
    info: ModelInfo,
    exchange: Exchange | None,
    answer: ModelReply | Mapping[str, Any],
) -> Call:
    sent_json = None
    received_json = None
    try:
        sent_json = exchange.request() if exchange else None
        if exchange and sent_json and isinstance(answer, ModelReply):
            received_json = exchange.response()
    except (AttributeError, TypeError, RecursionError) as error:
        # A server may send content of any form.
        log.warning(
            "the payloads of a model call cannot be joined for its trace",
            extra={"error": type(error).__name__},
        )
    own_answer = _reply_to_json(answer) if isinstance(answer, ModelReply) else dict(answer)
    return sent_json or request_to_json(request, info), received_json or own_answer


class RecordingModel:
    """A chat model that records its calls in `calls`, in the order they ended."""

    def __init__(self, model: ChatModel, calls: deque[Call]) -> None:
        self._model = model
        self._calls = calls

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Ask the model, and record the request with its outcome.

        Args:
            request: The request, which the wrapped model gets unchanged.

        Yields:
            The chunks of the answer; the last one is the whole reply.
        """
        outcome: ModelReply | Json | None = None
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            async with aclosing(self._model.answer(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    if isinstance(chunk, ModelReply):
                        outcome = chunk
                    yield chunk
        except (Exception, asyncio.CancelledError) as error:
            kind = error.kind if isinstance(error, ModelError) else type(error).__name__
            outcome = {"error": {"type": kind, "message": str(error)}}
            raise
        finally:
            EXCHANGE.set(None)
            if outcome:
                self._calls.append(_call(request, self.info, exchange, outcome))


def recorded_calls(turn: TurnContext) -> deque[Call] | None:
    """Return a list for the calls that write a summary; None without traces.

    Args:
        turn: The turn that writes a summary; its settings decide on traces.

    Returns:
        An empty list that keeps only the newest 20 calls.
    """
    if _is_kept(turn, is_error=True):
        return deque(maxlen=_SUMMARY_TRACES)
    return None


def traces_of_summary(turn: TurnContext, calls: deque[Call] | None) -> list[Trace]:
    """Return the traces to store of the calls that wrote a summary, each with a new step id.

    Args:
        turn: The turn; its settings decide on traces.
        calls: The list of `recorded_calls` after the summary was written.
    """
    kept_calls = [call for call in calls or () if _is_kept(turn, is_error="error" in call[1])]
    traces = (_trace(turn, new_id("step"), call) for call in kept_calls)
    return [trace for trace in traces if trace]


def failed_call(
    turn: TurnContext, reason: StopReason, error: Mapping[str, Any] | None
) -> FailedCall | None:
    """Return the model call that ran when the turn ended, or None.

    Args:
        turn: The turn that ended.
        reason: The reason of its end; "cancelled" marks the step as cancelled, any other as failed.
        error: `type` and `message` of the run's failure; None after a cancel.
    """
    draft = turn.asking
    if draft is None or draft.request is None:
        return None
    status: StepStatus = "cancelled" if reason == "cancelled" else "failed"
    model_ns = time.monotonic_ns() - draft.request_ns
    fields = {"status": status, "error": dict(error) if error else None, "model_ns": model_ns}
    step = draft.record(turn, turn.runtime.store.clock.now(), reason, **fields)
    if not _is_kept(turn, is_error=status == "failed"):
        return step, None
    answer = {"error": dict(error)} if error else {"error": {"type": "cancelled"}}
    return step, _trace(
        turn, draft.id, _call(draft.request, turn.model.info, draft.exchange, answer)
    )


def _is_kept(turn: TurnContext, *, is_error: bool) -> bool:
    policy = turn.runtime.settings.traces
    return policy == "all" or (policy == "errors" and is_error)


def request_to_json(request: ModelRequest, info: ModelInfo) -> Json:
    """Return our request as JSON, independent of any provider's format.

    Args:
        request: The request.
        info: The model to which it was sent.
    """
    fields = asdict(replace(request, messages=()))
    fields |= {"model": info.handle, "endpoint": info.endpoint, "user": fields.pop("user_id")}
    fields["messages"] = [
        {"role": message.role, "parts": _parts(message.parts)}
        | ({"name": message.name} if message.name else {})
        for message in request.messages
    ]
    fields["settings"] = {
        name: value for name, value in fields["settings"].items() if value not in (None, {})
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reply_to_json(reply: ModelReply) -> Json:
    usage = {name: value for name, value in asdict(reply.usage).items() if value is not None}
    return {
        "model": reply.model,
        "finish": reply.finish,
        "parts": _parts(reply.parts),
        "usage": usage,
    }


def shortened(content: Json, limit: int) -> str:
    """Return the JSON as text of at most `limit` bytes.

    Its longest texts are cut first, then its longest lists. A note says that it was shortened.

    Args:
        content: The JSON object.
        limit: The most bytes of the text, at least 1,000.
    """
    whole = orjson.dumps(content)
    if len(whole) <= limit:
        return whole.decode()
    note = f"Shortened: this was {len(whole):,} bytes, of which at most {limit:,} are kept."
    for length, list_length in _REDUCTIONS:
        if (
            len(text := orjson.dumps({"note": note, **_reduced(content, length, list_length)}))
            <= limit
        ):
            return text.decode()
    return orjson.dumps({"note": note}).decode()


async def prune(runtime: Runtime, _job: Job, report: Report) -> None:
    """Delete traces that are too old or too many, in portions.

    Args:
        runtime: The server's parts; its settings limit the days and the number of traces.
        _job: Not used.
        report: Gets the number of deleted traces as both numbers, since the total is not known.
    """
    settings = runtime.settings
    total = 0
    before = runtime.store.clock.now() - settings.trace_days * DAY
    while count := await runtime.store.write(
        lambda tx: runs.prune_traces(tx, before=before, kept=settings.trace_count)
    ):
        total += count
        report(total, total)


HANDLER = JobHandler("traces", prune, every_seconds=EVERY)


def _trace(turn: TurnContext, step_id: str, call: Call) -> Trace | None:
    request_json, response_json = call
    byte_limit = turn.runtime.settings.trace_kb * 1000
    try:
        request = shortened(redact_json(request_json), byte_limit)
        response = shortened(redact_json(response_json), byte_limit)
    except (TypeError, ValueError, RecursionError) as error:
        # A tool's schema or a setting may not be JSON, and a trace must not make a turn fail.
        log.warning(
            "a trace cannot be written", extra={"run": turn.run.id, "error": type(error).__name__}
        )
        return None
    run = turn.run
    return Trace(
        step_id=step_id,
        run_id=run.id,
        organization_id=run.organization_id,
        request=request,
        response=response,
        created_at=turn.runtime.store.clock.now(),
    )


def _parts(parts: tuple[Part, ...]) -> list[Json]:
    return [
        _picture(part) if isinstance(part, ImagePart) else parts_to_json([part])[0]
        for part in parts
    ]


def _picture(part: ImagePart) -> Json:
    picture = parts_to_json([part])[0]
    if part.data:
        picture["data"] = f"{len(part.data) * 3 // 4:,} bytes"
    if part.url:
        picture["url"] = part.short_url
    return picture


def _reduced(content: Any, length: int, list_length: int) -> Any:
    """Return the content with longer texts and lists cut in their middle."""
    match content:
        case str() if len(content) > length:
            half = length // 2
            return (
                f"{content[:half]}… ({len(content) - 2 * half:,} characters left out) "
                f"…{content[-half:]}"
            )
        case dict():
            return {name: _reduced(part, length, list_length) for name, part in content.items()}
        case list():
            if len(content) > list_length:
                first = list_length // 2
                content = [
                    *content[:first],
                    f"{len(content) - list_length:,} items left out",
                    *content[first - list_length :],
                ]
            return [_reduced(part, length, list_length) for part in content]
        case _:
            return content
