"""Traces of model calls, if the settings store them."""

from typing import Annotated

import orjson
from fastapi import Query

from ricordo.api.call import RequestContext
from ricordo.api.models.base import From, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.run import Run, Step, Trace
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.storage import agents, runs
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["telemetry"], scope="messages")


class TraceResponse(ResponseModel):
    """The request and the reply of a model call in a step."""

    id: str
    step_id: str
    run_id: str | None
    agent_id: str | None
    agent_tags: list[str]
    call_type: str | None
    source: str | None = "ricordo"
    org_id: Annotated[str | None, From("organization_id")]
    user_id: str | None
    request_json: Json
    response_json: Json
    llm_config: Json | None
    compaction_settings: Json | None = None
    billing_context: Json | None = None
    latency_ms: int | None
    created_at: Timestamp
    updated_at: Timestamp | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None

    @classmethod
    def from_trace(cls, trace: Trace, step: Step | None, run: Run, tags: list[str]) -> Json:
        """Return a trace with its step and the agent's tags.

        A call that wrote a summary has no step.
        """
        request = orjson.loads(trace.request)
        latency_ms = None
        if step and step.model_ns is not None:
            latency_ms = step.model_ns // 1_000_000
        config = {
            "model": None,
            "handle": request.get("model"),
            "model_endpoint": request.get("endpoint"),
        }
        if step:
            config = {
                "model": step.model,
                "handle": step.model_handle,
                "model_endpoint": step.model_endpoint,
            }
        return cls.of(
            trace,
            id="provider_trace-" + trace.step_id.partition("-")[2],
            agent_id=run.agent_id,
            agent_tags=tags,
            call_type="agent_step" if step else "summarization",
            user_id=run.user_id,
            request_json=request,
            response_json=orjson.loads(trace.response or "{}"),
            llm_config=config,
            latency_ms=latency_ms,
        )


@router.get(
    "/telemetry/{step_id}", response_model=TraceResponse, name="telemetry", summary="Telemetry"
)
@router.get("/steps/{step_id}/trace", response_model=TraceResponse)
def trace_of_step(tx: Transaction, context: RequestContext, step_id: str) -> Json:
    """Return the request and reply of the step's model call."""
    trace = runs.trace_of_step(tx, context.scope, step_id)
    if trace is None:
        runs.get_step(tx, context.scope, step_id)
        raise NotFound(
            f"No trace of {step_id} is stored. RICORDO_TRACES selects the steps that are traced, "
            "and RICORDO_TRACE_DAYS sets how long traces stay."
        )
    step = runs.find_step(tx, context.scope, step_id)
    run = runs.get(tx, context.scope, trace.run_id)
    return TraceResponse.from_trace(trace, step, run, agents.tags_of(tx, run.agent_id))


@router.get("/runs/{run_id}/trace", response_model=list[TraceResponse])
def traces_of_run(
    tx: Transaction,
    context: RequestContext,
    run_id: str,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most traces to return.")] = 1000,
) -> list[Json]:
    """Return the traces of the run's steps and summaries, oldest first."""
    run = runs.get(tx, context.scope, run_id)
    traces = runs.traces_of_run(tx, context.scope, run_id, limit)
    steps = {step.id: step for step in runs.steps_by_ids(tx, [trace.step_id for trace in traces])}
    tags = agents.tags_of(tx, run.agent_id)
    return [
        TraceResponse.from_trace(trace, steps.get(trace.step_id), run, tags) for trace in traces
    ]
