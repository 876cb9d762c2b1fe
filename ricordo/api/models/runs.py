"""Request and response models of runs, steps and their usage."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ricordo.api.models.base import EmptyList, From, RequestModel, ResponseModel, Timestamp, or_none
from ricordo.domain.run import RunStatus, StepStatus, StopReason
from ricordo.domain.text import Json

Feedback = Literal["positive", "negative"]


class RunResponse(ResponseModel):
    """A run: one turn, or one talk with a group of agents."""

    id: str
    agent_id: str
    conversation_id: str | None
    status: RunStatus
    stop_reason: StopReason | None
    background: bool
    metadata: Json
    request_config: Annotated[Json | None, From(convert=or_none)]
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
    def of(cls, run: Any, /, **_fields: Any) -> Json:
        """Return the run."""
        return super().of(
            run,
            metadata={
                "run_type": "send_message",
                **run.metadata,
                **({"error": run.error} if run.error else {}),
            },
            **{
                f"callback_{name}": run.callback.get(name)
                for name in ("url", "sent_at", "status_code", "error")
            },
        )


class TokenFields(ResponseModel):
    """Token counts, with details for older clients.

    The details are null if the provider reported none.
    """

    completion_tokens: Annotated[int, From("usage.completion_tokens")]
    prompt_tokens: Annotated[int, From("usage.prompt_tokens")]
    total_tokens: Annotated[int, From("usage.total_tokens")]
    prompt_tokens_details: Json | None
    completion_tokens_details: Json | None

    @classmethod
    def of(cls, source: Any, /, **fields: Any) -> Json:
        """Return the tokens of a run or a step."""
        usage = source.usage
        return super().of(
            source,
            prompt_tokens_details=_details(
                cached_tokens=usage.cached_tokens, cache_creation_tokens=usage.cache_write_tokens
            ),
            completion_tokens_details=_details(reasoning_tokens=usage.reasoning_tokens),
            **fields,
        )


class RunUsageResponse(TokenFields):
    """Tokens of a run.

    For a talk with a group these are the tokens of all turns.
    """

    @classmethod
    def of(cls, run: Any, /, **fields: Any) -> Json:
        """Return the tokens of the run."""
        return super().of(replace(run, usage=run.total_usage), **fields)


class UsageResponse(ResponseModel):
    """Tokens of a turn.

    `context_tokens` are the tokens in the window after the turn, if they were counted.

    `run_ids` are the runs of sleeptime agents that the turn started, perhaps none. If the agent has
    no sleeptime agents, it is the run of the turn.
    """

    message_type: Literal["usage_statistics"] = "usage_statistics"
    completion_tokens: Annotated[int, From("total_usage.completion_tokens")]
    prompt_tokens: Annotated[int, From("total_usage.prompt_tokens")]
    total_tokens: Annotated[int, From("total_usage.total_tokens")]
    step_count: int
    run_ids: Annotated[list[str], From("shown_run_ids")]
    cached_input_tokens: Annotated[int | None, From("total_usage.cached_tokens")]
    cache_write_tokens: Annotated[int | None, From("total_usage.cache_write_tokens")]
    reasoning_tokens: Annotated[int | None, From("total_usage.reasoning_tokens")]
    context_tokens: int | None


class StopReasonResponse(ResponseModel):
    """The reason why a turn ended."""

    message_type: Literal["stop_reason"] = "stop_reason"
    stop_reason: Annotated[StopReason, From(convert=lambda reason: reason or "error")]


class StepResponse(TokenFields):
    """A step: one call of the model with its tool calls.

    Another route returns its messages.
    """

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
    cached_input_tokens: Annotated[int | None, From("usage.cached_tokens")]
    cache_write_tokens: Annotated[int | None, From("usage.cache_write_tokens")]
    reasoning_tokens: Annotated[int | None, From("usage.reasoning_tokens")]
    stop_reason: StopReason | None
    status: StepStatus
    error_type: Annotated[str | None, From("error", lambda error: error and error.get("type"))]
    error_data: Annotated[Json | None, From("error")]
    feedback: Feedback | None
    tags: list[str]
    tid: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    messages: EmptyList
    project_id: str | None = None


class FeedbackRequest(RequestModel):
    """A person's opinion of a step.

    An omitted field keeps its value. Null and an empty list reset it.
    """

    feedback: Feedback | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(
        None, max_length=100
    )


def _nanoseconds(micros: int) -> int:
    return micros * 1000


class StepMetricsResponse(ResponseModel):
    """The times of a step, in nanoseconds."""

    id: str
    organization_id: str | None
    provider_id: str | None = None
    run_id: str | None
    agent_id: str | None
    step_start_ns: Annotated[int | None, From("started_at", _nanoseconds)]
    llm_request_start_ns: Annotated[int | None, From("started_at", _nanoseconds)]
    llm_request_ns: Annotated[int | None, From("model_ns")]
    tool_execution_ns: Annotated[int | None, From("tools_ns")]
    step_ns: int | None
    base_template_id: str | None = None
    template_id: str | None = None
    project_id: str | None = None


class RunMetricsResponse(ResponseModel):
    """A run's times, in nanoseconds, and the amount of its work."""

    id: str
    organization_id: str | None
    agent_id: str | None
    run_start_ns: Annotated[int | None, From("created_at", _nanoseconds)]
    run_ns: Annotated[int | None, From("duration_ns")]
    num_steps: Annotated[int, From("step_count")]
    tools_used: list[str]
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None


def _details(**counts: int | None) -> Json | None:
    return {name: count for name, count in counts.items() if count is not None} or None
