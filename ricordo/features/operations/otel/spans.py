"""The spans: a request as it is answered; a turn when it has ended, with the times that its stored steps have.

They hold ids, names of models and tools, counts and times: no message, memory, query, address or user.
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
from ricordo.domain.scope import Scope as Asking
from ricordo.runtime import Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_MICRO = 1000  # nanoseconds
_FAILED, _METHODS = (
    Status(StatusCode.ERROR),
    frozenset("GET POST PUT PATCH DELETE HEAD OPTIONS".split()),
)
_propagator = TraceContextTextMapPropagator()


@cache
def provider() -> TracerProvider:
    """What makes spans and sends them, as OpenTelemetry's variables say; one for the process, and not the global one."""
    resource = Resource({"service.name": "ricordo", "service.version": __version__})
    made = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


def _tracer() -> Tracer:
    return provider().get_tracer("ricordo", __version__)


class RequestSpans:
    """ASGI middleware: a span for each request, under the one that its `traceparent` names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        parent = _propagator.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
        attributes = {"http.request.method": method, "url.scheme": scope["scheme"]}
        span = _tracer().start_span(method, parent, SpanKind.SERVER, attributes)

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(_FAILED)
            await send(message)

        try:
            # What the request begins inherits it: so a turn finds its parent.
            with use_span(span, record_exception=False, set_status_on_exception=False):
                await self._app(scope, receive, note)
        finally:
            # The route, since an address may name a user.
            if route := getattr(scope.get("route"), "path", ""):
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.end()


async def trace_turn(runtime: Runtime, run: Run) -> None:
    """Make the spans of a turn that has ended, under the request that began it if there is one."""

    def read(tx: Transaction) -> tuple[list[Step], dict[str, list[ToolReturnPart]]]:
        steps = runs.page_of_steps(
            tx, Asking(run.organization_id), Page(limit=1000, order="asc"), run_id=run.id
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
    turn = _start("invoke_agent", "", run.created_at * _MICRO, ids, run)
    for step in steps:
        begin, told = step.started_at * _MICRO, ids | {"ricordo.step.id": step.id}
        answered = begin + (step.model_ns or 0)
        named = {"gen_ai.provider.name": step.provider, "gen_ai.request.model": step.model}
        _start("chat", step.model, begin, told | named, step, turn).end(answered)
        # Of the calls of one step it is known how long they took together. One that was refused may name anything.
        for part in (one for one in returns[step.id] if not one.is_refused):
            named = {"gen_ai.tool.name": part.name, "gen_ai.tool.call.id": part.call_id}
            _start("execute_tool", part.name, answered, told | named, part, turn).end(
                answered + (step.tools_ns or 0)
            )
    turn.end((run.ended_at or runtime.store.clock.now()) * _MICRO)


def _start(
    operation: str,
    name: str,
    at: int,
    told: dict[str, str],
    of: Run | Step | ToolReturnPart,
    turn: Span | None = None,
) -> Span:
    """Start a span below the turn, or below what began that. Of an error it has the kind, as words may quote what was said."""
    attributes: dict[str, Any] = {"gen_ai.operation.name": operation, **told}
    if not isinstance(of, ToolReturnPart):
        attributes["gen_ai.usage.input_tokens"] = of.usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = of.usage.completion_tokens
    kind = SpanKind.CLIENT if isinstance(of, Step) else SpanKind.INTERNAL
    above = set_span_in_context(turn) if turn else None
    span = _tracer().start_span(
        f"{operation} {name}".strip(), above, kind, attributes, start_time=at
    )
    if of.status in ("failed", "error"):
        error = {"type": "tool_error"} if isinstance(of, ToolReturnPart) else of.error
        span.set_attribute("error.type", str((error or {}).get("type", of.status)))
        span.set_status(_FAILED)
    return span
