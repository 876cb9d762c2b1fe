"""What is kept of calls to models: a step for each that failed, and where the settings ask for it, what was sent and answered.
Calls that write summaries belong to no step: their traces have ids of their own, and stand among those of the run.

A trace holds the JSON that the provider got and gave, without headers, so it has no keys; of a model that is not behind HTTP it
holds our own request and reply. What looks like a credential is replaced, and of pictures only their size is kept.
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

from ricordo.agents.request import StepDraft, TurnContext
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
"""What a model was asked, and what it answered."""
FailedCall = tuple[Step, Trace | None]
"""The step of a call to a model that gave no answer, and its trace where one is kept."""
EVERY = 3600.0  # seconds between two looks for traces that have to go
# How long a text, and how many items a list may have, tried one after the other until all of it fits.
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
# Of the calls that one compaction made, as many traces are kept at most, the last ones.
_MOST_OF_SUMMARY = 20


def trace_of(
    turn: TurnContext, step: StepDraft, reply: ModelReply, stop: StopReason | None
) -> Trace | None:
    """The trace of an answered call, where one is to be kept; with `errors` only of an answer that ended its run as failed."""
    is_error = stop is not None and status_after(stop) == "failed"
    if step.asked is None or not _is_kept(turn, is_error=is_error):
        return None
    return _trace(turn, step.id, _call(step.asked, turn.model.info, step.exchange, reply))


def begin_exchange(turn: TurnContext, step: StepDraft) -> Exchange | None:
    """Where to keep what goes to the provider and comes back; None where the settings want no trace."""
    step.exchange = Exchange() if _is_kept(turn, is_error=True) else None
    return step.exchange


def _call(
    request: ModelRequest,
    info: ModelInfo,
    exchange: Exchange | None,
    answered: ModelReply | Mapping[str, Any],
) -> Call:
    asked = given = None
    try:
        asked = exchange.request() if exchange else None
        if exchange and asked and isinstance(answered, ModelReply):
            given = exchange.response()
        else:
            given = None
    except (
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:  # what a server sends may have any form
        log.warning(
            "the payloads of a model's call cannot be put together",
            extra={"error": type(error).__name__},
        )
    own = _reply_to_json(answered) if isinstance(answered, ModelReply) else dict(answered)
    return asked or request_to_json(request, info), given or own


class RecordingModel:
    """A chat model whose calls are noted in `calls`, in the order they ended."""

    def __init__(self, model: ChatModel, calls: deque[Call]) -> None:
        self._model = model
        self._calls = calls

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Ask the model."""
        answered: ModelReply | Json | None = None
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            async with aclosing(self._model.answer(request)) as items:  # type: ignore[type-var]
                async for item in items:
                    if isinstance(item, ModelReply):
                        answered = item
                    yield item
        except (Exception, asyncio.CancelledError) as error:
            kind = error.kind if isinstance(error, ModelError) else type(error).__name__
            answered = {"error": {"type": kind, "message": str(error)}}
            raise
        finally:
            EXCHANGE.set(None)
            if answered:
                self._calls.append(_call(request, self.info, exchange, answered))


def recorded_calls(turn: TurnContext) -> deque[Call] | None:
    """Where to note the calls that write a summary; None where the settings want no trace."""
    if _is_kept(turn, is_error=True):
        return deque(maxlen=_MOST_OF_SUMMARY)
    return None


def traces_of_summary(turn: TurnContext, calls: deque[Call] | None) -> list[Trace]:
    wanted = [call for call in calls or () if _is_kept(turn, is_error="error" in call[1])]
    made = (_trace(turn, new_id("step"), call) for call in wanted)
    return [trace for trace in made if trace]


def failed_call(
    turn: TurnContext, reason: StopReason, error: Mapping[str, Any] | None
) -> FailedCall | None:
    """The call that a turn was waiting for when it ended for this reason; None where it waited for none."""
    draft = turn.asking
    if draft is None or draft.asked is None:
        return None
    status: StepStatus = "cancelled" if reason == "cancelled" else "failed"
    model_ns = time.monotonic_ns() - draft.asked_ns
    known = {"status": status, "error": dict(error) if error else None, "model_ns": model_ns}
    step = draft.record(turn, turn.runtime.store.clock.now(), reason, **known)
    if not _is_kept(turn, is_error=status == "failed"):
        return step, None
    answered = {"error": dict(error)} if error else {"error": {"type": "cancelled"}}
    return step, _trace(
        turn, draft.id, _call(draft.asked, turn.model.info, draft.exchange, answered)
    )


def _is_kept(turn: TurnContext, *, is_error: bool) -> bool:
    which = turn.runtime.settings.traces
    return which == "all" or (which == "errors" and is_error)


def request_to_json(request: ModelRequest, info: ModelInfo) -> Json:
    """Our request, in words that no provider's format is needed to read."""
    asked = asdict(replace(request, messages=()))
    asked |= {"model": info.handle, "endpoint": info.endpoint, "user": asked.pop("user_id")}
    asked["messages"] = [
        {"role": message.role, "parts": _parts(message.parts)}
        | ({"name": message.name} if message.name else {})
        for message in request.messages
    ]
    asked["settings"] = {
        name: value for name, value in asked["settings"].items() if value not in (None, {})
    }
    return {name: value for name, value in asked.items() if value is not None}


def _reply_to_json(reply: ModelReply) -> Json:
    usage = {name: value for name, value in asdict(reply.usage).items() if value is not None}
    return {
        "model": reply.model,
        "finish": reply.finish,
        "parts": _parts(reply.parts),
        "usage": usage,
    }


def shortened(value: Json, most: int) -> str:
    """The JSON as text of at most so many bytes (1,000 at least): its longest texts are cut, then its longest lists."""
    whole = orjson.dumps(value)
    if len(whole) <= most:
        return whole.decode()
    note = f"Shortened: this was {len(whole):,} bytes, of which at most {most:,} are kept."
    for length, items in _REDUCTIONS:
        if len(text := orjson.dumps({"note": note, **_reduced(value, length, items)})) <= most:
            return text.decode()
    return orjson.dumps({"note": note}).decode()


async def prune(runtime: Runtime, _job: Job, report: Report) -> None:
    """Delete traces that are too old or too many, some at a time."""
    settings = runtime.settings
    done = 0
    before = runtime.store.clock.now() - settings.trace_days * DAY
    while count := await runtime.store.write(
        lambda tx: runs.prune_traces(tx, before=before, kept=settings.trace_count)
    ):
        done += count
        report(done, done)


HANDLER = JobHandler("traces", prune, every_seconds=EVERY)


def _trace(turn: TurnContext, step_id: str, call: Call) -> Trace | None:
    asked, answered = call
    most = turn.runtime.settings.trace_kb * 1000
    try:
        request = shortened(redact_json(asked), most)
        response = shortened(redact_json(answered), most)
    except (TypeError, ValueError, RecursionError) as error:
        # Whatever a tool's schema or a setting holds that JSON cannot: to keep a trace is no reason to fail a turn.
        log.warning(
            "a trace cannot be written", extra={"run": turn.run.id, "error": type(error).__name__}
        )
        return None
    run = turn.run
    return Trace(
        step_id, run.id, run.organization_id, request, response, turn.runtime.store.clock.now()
    )


def _parts(parts: tuple[Part, ...]) -> list[Json]:
    return [
        _picture(part) if isinstance(part, ImagePart) else parts_to_json([part])[0]
        for part in parts
    ]


def _picture(part: ImagePart) -> Json:
    shown = parts_to_json([part])[0]
    if part.data:
        shown["data"] = f"{len(part.data) * 3 // 4:,} bytes"
    if part.url and part.url.startswith("data:"):
        shown["url"] = f"{part.url.partition(',')[0]},({len(part.url):,} characters)"
    return shown


def _reduced(value: Any, length: int, items: int) -> Any:
    """The value with its longer texts and lists cut in their middle."""
    match value:
        case str() if len(value) > length:
            half = length // 2
            return (
                f"{value[:half]}… ({len(value) - 2 * half:,} characters left out) …{value[-half:]}"
            )
        case dict():
            return {name: _reduced(item, length, items) for name, item in value.items()}
        case list():
            if len(value) > items:
                first = items // 2
                value = [
                    *value[:first],
                    f"{len(value) - items:,} items left out",
                    *value[first - items :],
                ]
            return [_reduced(item, length, items) for item in value]
        case _:
            return value
