"""Traces of calls to models, and times of runs, on the wire, with their shapes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from ricordo.api.wire.schemas import Json, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.run import Run, Step
from ricordo.domain.trace import Trace

Wire = dict[str, Any]


class TraceShape(Shape):
    """What a model was asked in a step, and what it answered."""

    id: str
    step_id: str
    run_id: str | None
    agent_id: str | None
    agent_tags: list[str] | None
    call_type: str | None
    source: str | None
    org_id: str | None
    user_id: str | None
    request_json: Json
    response_json: Json
    llm_config: Json | None
    compaction_settings: Json | None
    billing_context: Json | None
    latency_ms: int | None
    created_at: datetime
    updated_at: datetime | None
    created_by_id: str | None
    last_updated_by_id: str | None


class RunMetricsShape(Shape):
    """A run's times, in nanoseconds, and how much it did."""

    id: str
    organization_id: str | None
    agent_id: str | None
    run_start_ns: int | None
    run_ns: int | None
    num_steps: int
    tools_used: list[str]
    project_id: str | None
    template_id: str | None
    base_template_id: str | None


def trace_to_wire(trace: Trace, step: Step | None, run: Run) -> Wire:
    """A trace, with what its step knows; a call that wrote a summary has none."""
    asked = orjson.loads(trace.request)
    config = {"model": None, "handle": asked.get("model"), "model_endpoint": asked.get("endpoint")}
    if step:
        config = {"model": step.model, "handle": step.model_handle, "model_endpoint": step.model_endpoint}
    return {
        "id": "provider_trace-" + trace.step_id.partition("-")[2],
        "step_id": trace.step_id,
        "run_id": trace.run_id,
        "agent_id": run.agent_id,
        "agent_tags": None,
        "call_type": "agent_step" if step else "summarization",
        "source": "ricordo",
        "org_id": trace.organization_id,
        "user_id": run.user_id,
        "request_json": asked,
        "response_json": orjson.loads(trace.response or "{}"),
        "llm_config": config,
        "compaction_settings": None,
        "billing_context": None,
        "latency_ms": None if step is None or step.model_ns is None else step.model_ns // 1_000_000,
        "created_at": stamp(trace.created_at),
        "updated_at": None,
        "created_by_id": None,
        "last_updated_by_id": None,
    }


def run_metrics_to_wire(run: Run, tool_ids: Sequence[str]) -> Wire:
    """A run's times, and the tools it used by their ids."""
    return {
        "id": run.id,
        "organization_id": run.organization_id,
        "agent_id": run.agent_id,
        "run_start_ns": run.created_at * 1000,
        "run_ns": run.duration_ns,
        "num_steps": run.step_count,
        "tools_used": list(tool_ids),
        "project_id": None,
        "template_id": None,
        "base_template_id": None,
    }
