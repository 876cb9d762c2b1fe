"""Spans of requests and turns.

A request's span is made while the request is answered. A turn's spans are made after its end, with
the times of its stored steps. All spans contain ids, names of models and tools, counts and times,
but no message, memory, query, address or user.
"""

from collections import defaultdict
from functools import cache
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo import __version__
from ricordo.domain.message import ToolReturnPart
from ricordo.domain.run import Run, Step
from ricordo.domain.scope import Scope as CallerScope
from ricordo.runtime import Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_MICRO = 1000  # nanoseconds
_FAILED = Status(StatusCode.ERROR)
_METHODS = frozenset("GET POST PUT PATCH DELETE HEAD OPTIONS".split())
_propagator = TraceContextTextMapPropagator()


@cache
def provider() -> TracerProvider:
    """Return the process's separate tracer provider, which is not the global one.

    OpenTelemetry's variables configure it.
    """
    resource = Resource({"service.name": "ricordo", "service.version": __version__})
    tracer_provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracer_provider


def _tracer() -> Tracer:
    return provider().get_tracer("ricordo", __version__)


class RequestSpans:
    """ASGI middleware with a span for each request.

    Its parent is the span that the request's `traceparent` names.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] in _METHODS:
            method = scope["method"]
        else:
            method = "_OTHER"
        parent = _propagator.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
        attributes = {"http.request.method": method, "url.scheme": scope["scheme"]}
        span = _tracer().start_span(method, parent, SpanKind.SERVER, attributes)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(_FAILED)
            await send(message)

        try:
            # Tasks of the request inherit the span, so that a turn can find its parent.
            with use_span(span, record_exception=False, set_status_on_exception=False):
                await self._app(scope, receive, send_and_note)
        finally:
            # The span names the route instead of the path, which may name a user.
            if route := getattr(scope.get("route"), "path", ""):
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.end()


async def trace_turn(runtime: Runtime, run: Run) -> None:
    """Make the spans of an ended turn.

    Their parent is the request that began the turn, if any.
    """

    def read(tx: Transaction) -> tuple[list[Step], dict[str, list[ToolReturnPart]]]:
        steps = runs.page_of_steps(
            tx, CallerScope(run.organization_id), Page(limit=1000, order="asc"), run_id=run.id
        )
        returns: dict[str, list[ToolReturnPart]] = defaultdict(list)
        for message in messages.of_run(tx, run.id):
            returns[message.step_id or ""].extend(message.tool_returns)
        return steps, returns

    steps, returns = await runtime.store.read(read)
    ids = {
        "gen_ai.agent.id": run.agent_id,
        "gen_ai.conversation.id": run.conversation_id,
        "ricordo.run.id": run.id,
    }
    turn = _start(run, "invoke_agent", "", start=run.created_at * _MICRO, attributes=ids)
    for step in steps:
        start = step.started_at * _MICRO
        answered_at = start + (step.model_ns or 0)
        of_step = ids | {"ricordo.step.id": step.id}
        of_model = {"gen_ai.provider.name": step.provider, "gen_ai.request.model": step.model}
        call_span = _start(
            step, "chat", step.model, start=start, attributes=of_step | of_model, turn=turn
        )
        call_span.end(answered_at)
        # A step stores one common time for all its tool calls. The name in a refused call may be
        # any text.
        for part in returns[step.id]:
            if part.is_refused:
                continue
            of_tool = {"gen_ai.tool.name": part.name, "gen_ai.tool.call.id": part.call_id}
            tool_span = _start(
                part,
                "execute_tool",
                part.name,
                start=answered_at,
                attributes=of_step | of_tool,
                turn=turn,
            )
            tool_span.end(answered_at + (step.tools_ns or 0))
    turn.end((run.ended_at or runtime.store.clock.now()) * _MICRO)


def _start(
    record: Run | Step | ToolReturnPart,
    operation: str,
    name: str,
    *,
    start: int,
    attributes: dict[str, str],
    turn: Span | None = None,
) -> Span:
    """Start the span of a stored record, under the turn or the present span.

    For an error, the span has only the kind, since the message may quote private texts.
    """
    all_attributes: dict[str, Any] = {"gen_ai.operation.name": operation, **attributes}
    if not isinstance(record, ToolReturnPart):
        all_attributes["gen_ai.usage.input_tokens"] = record.usage.prompt_tokens
        all_attributes["gen_ai.usage.output_tokens"] = record.usage.completion_tokens
    span = _tracer().start_span(
        f"{operation} {name}".strip(),
        set_span_in_context(turn) if turn else None,
        SpanKind.CLIENT if isinstance(record, Step) else SpanKind.INTERNAL,
        all_attributes,
        start_time=start,
    )
    if record.status in ("failed", "error"):
        error = {"type": "tool_error"} if isinstance(record, ToolReturnPart) else record.error
        span.set_attribute("error.type", str((error or {}).get("type", record.status)))
        span.set_status(_FAILED)
    return span
