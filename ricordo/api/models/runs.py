"""Request and response models of runs, steps and their usage."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ricordo.api.models.base import EmptyList, From, Json, RequestModel, ResponseModel, Timestamp
from ricordo.domain.run import Run, RunStatus, Step, StepStatus, StopReason
from ricordo.domain.usage import Usage


class RunResponse(ResponseModel):
    """A run: one turn."""

    id: str
    agent_id: str
    conversation_id: str | None
    status: RunStatus
    stop_reason: StopReason | None
    background: bool
    metadata: Json
    request_config: Json | None
    created_at: Timestamp
    completed_at: Annotated[Timestamp | None, From("ended_at")]
    callback_url: str | None
    callback_sent_at: Timestamp | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: Annotated[int | None, From("duration_ns")]
    base_template_id: str | None = None

    @classmethod
    def from_run(cls, run: Run) -> Json:
        return cls.of(
            run,
            metadata={"run_type": "send_message", **run.metadata, **({"error": run.error} if run.error else {})},
            request_config=run.request_config or None,
            **{f"callback_{name}": run.callback.get(name) for name in ("url", "sent_at", "status_code", "error")},
        )


class TokenDetails(ResponseModel):
    """Parts of a usage's tokens, as older clients know them; null where none was reported."""

    prompt_tokens_details: Json | None
    completion_tokens_details: Json | None

    @classmethod
    def from_usage(cls, usage: Usage) -> Json:
        return cls.of(
            usage,
            prompt_tokens_details=_known(
                cached_tokens=usage.cached_tokens, cache_creation_tokens=usage.cache_write_tokens
            ),
            completion_tokens_details=_known(reasoning_tokens=usage.reasoning_tokens),
        )


class RunUsageResponse(TokenDetails):
    """Tokens of a run."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int


class UsageResponse(ResponseModel):
    """Tokens of a turn. `context_tokens` are in the window after it, where that was counted."""

    message_type: Literal["usage_statistics"] = "usage_statistics"
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    step_count: int
    run_ids: list[str]
    cached_input_tokens: Annotated[int | None, From("cached_tokens")]
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    context_tokens: int | None

    @classmethod
    def from_usage(
        cls, usage: Usage, step_count: int, run_ids: Sequence[str], context_tokens: int | None = None
    ) -> Json:
        return cls.of(usage, step_count=step_count, run_ids=run_ids, context_tokens=context_tokens)


class StopReasonResponse(ResponseModel):
    """Why a turn ended."""

    message_type: Literal["stop_reason"] = "stop_reason"
    stop_reason: StopReason

    @classmethod
    def from_reason(cls, reason: str | None) -> Json:
        return cls.of(None, stop_reason=reason or "error")


class StepResponse(TokenDetails):
    """A step: one call of the model, and the tools it asked for. Its messages have a route of their own."""

    id: str
    run_id: str | None
    agent_id: str | None
    organization_id: str | None
    origin: str | None = None
    provider_id: str | None = None
    provider_name: Annotated[str | None, From("provider")]
    provider_category: str | None = "base"
    model: str | None
    model_handle: str | None
    model_endpoint: str | None
    context_window_limit: Annotated[int | None, From("context_window")]
    completion_tokens: Annotated[int, From("usage.completion_tokens")]
    prompt_tokens: Annotated[int, From("usage.prompt_tokens")]
    total_tokens: Annotated[int, From("usage.total_tokens")]
    cached_input_tokens: Annotated[int | None, From("usage.cached_tokens")]
    cache_write_tokens: Annotated[int | None, From("usage.cache_write_tokens")]
    reasoning_tokens: Annotated[int | None, From("usage.reasoning_tokens")]
    stop_reason: StopReason | None
    status: StepStatus
    error_type: str | None
    error_data: Annotated[Json | None, From("error")]
    feedback: Literal["positive", "negative"] | None
    tags: list[str]
    tid: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    messages: EmptyList
    project_id: str | None = None

    @classmethod
    def from_step(cls, step: Step) -> Json:
        details = TokenDetails.from_usage(step.usage)
        return cls.of(step, error_type=step.error.get("type") if step.error else None, **details)


class FeedbackRequest(RequestModel):
    """What somebody thinks of a step. A field that is left out stays as it is; null and an empty list take it back."""

    feedback: Literal["positive", "negative"] | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(None, max_length=100)


class StepMetricsResponse(ResponseModel):
    """A step's times, in nanoseconds."""

    id: str
    organization_id: str | None
    provider_id: str | None = None
    run_id: str | None
    agent_id: str | None
    step_start_ns: int | None
    llm_request_start_ns: int | None
    llm_request_ns: Annotated[int | None, From("model_ns")]
    tool_execution_ns: Annotated[int | None, From("tools_ns")]
    step_ns: int | None
    base_template_id: str | None = None
    template_id: str | None = None
    project_id: str | None = None

    @classmethod
    def from_step(cls, step: Step) -> Json:
        began = step.started_at * 1000
        return cls.of(step, step_start_ns=began, llm_request_start_ns=began)


class RunMetricsResponse(ResponseModel):
    """A run's times, in nanoseconds, and how much it did."""

    id: str
    organization_id: str | None
    agent_id: str | None
    run_start_ns: int | None
    run_ns: Annotated[int | None, From("duration_ns")]
    num_steps: Annotated[int, From("step_count")]
    tools_used: list[str]
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None

    @classmethod
    def from_run(cls, run: Run, tool_ids: Sequence[str]) -> Json:
        return cls.of(run, run_start_ns=run.created_at * 1000, tools_used=tool_ids)


def _known(**counts: int | None) -> Json | None:
    return {name: count for name, count in counts.items() if count is not None} or None
