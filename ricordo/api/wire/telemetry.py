"""Traces of calls to models on the wire, with their shapes."""

from datetime import datetime
from typing import Any

import orjson

from ricordo.api.models.base import Json, ResponseModel, stamp
from ricordo.domain.run import Run, Step, Trace

Wire = dict[str, Any]


class TraceResponse(ResponseModel):
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
