"""Response model of traces of calls to models."""

from typing import Annotated

import orjson

from ricordo.api.models.base import From, Json, ResponseModel, Timestamp
from ricordo.domain.run import Run, Step, Trace


class TraceResponse(ResponseModel):
    """What a model was asked in a step, and what it answered."""

    id: str
    step_id: str
    run_id: str | None
    agent_id: str | None
    agent_tags: list[str] | None = None
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
    def from_trace(cls, trace: Trace, step: Step | None, run: Run) -> Json:
        """Return a trace, with what its step knows; a call that wrote a summary has none."""
        asked = orjson.loads(trace.request)
        config = {"model": None, "handle": asked.get("model"), "model_endpoint": asked.get("endpoint")}
        if step:
            config = {"model": step.model, "handle": step.model_handle, "model_endpoint": step.model_endpoint}
        return cls.of(
            trace,
            id="provider_trace-" + trace.step_id.partition("-")[2],
            agent_id=run.agent_id,
            call_type="agent_step" if step else "summarization",
            user_id=run.user_id,
            request_json=asked,
            response_json=orjson.loads(trace.response or "{}"),
            llm_config=config,
            latency_ms=None if step is None or step.model_ns is None else step.model_ns // 1_000_000,
        )
