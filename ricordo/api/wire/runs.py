"""Runs, steps and usage on the wire."""

from collections.abc import Sequence
from typing import Any

from ricordo.api.wire.times import stamp
from ricordo.domain.run import Run, Step
from ricordo.domain.usage import Usage

Wire = dict[str, Any]


def run_to_wire(run: Run) -> Wire:
    """A run."""
    return {
        "id": run.id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "status": run.status,
        "stop_reason": run.stop_reason,
        "background": run.background,
        "metadata": {"run_type": "send_message", **run.metadata, **({"error": run.error} if run.error else {})},
        "request_config": run.request_config or None,
        "created_at": stamp(run.created_at),
        "completed_at": stamp(run.ended_at),
        "callback_url": run.callback.get("url"),
        "callback_sent_at": stamp(run.callback.get("sent_at")),
        "callback_status_code": run.callback.get("status_code"),
        "callback_error": run.callback.get("error"),
        "ttft_ns": run.ttft_ns,
        "total_duration_ns": run.duration_ns,
        "base_template_id": None,
    }


def step_to_wire(step: Step) -> Wire:
    """A step, without its messages, which have a route of their own."""
    usage = step.usage
    return {
        "id": step.id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "organization_id": step.organization_id,
        "origin": None,
        "provider_id": None,
        "provider_name": step.provider,
        "provider_category": "base",
        "model": step.model,
        "model_handle": step.model_handle,
        "model_endpoint": step.model_endpoint,
        "context_window_limit": step.context_window,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "completion_tokens_details": _details(reasoning_tokens=usage.reasoning_tokens),
        "prompt_tokens_details": _details(
            cached_tokens=usage.cached_tokens, cache_creation_tokens=usage.cache_write_tokens
        ),
        "stop_reason": step.stop_reason,
        "status": step.status,
        "error_type": step.error.get("type") if step.error else None,
        "error_data": step.error,
        "feedback": step.feedback,
        "tags": list(step.tags),
        "tid": None,
        "trace_id": None,
        "request_id": None,
        "messages": [],
        "project_id": None,
    }


def step_metrics_to_wire(step: Step) -> Wire:
    """A step's times, in nanoseconds."""
    began = step.started_at * 1000
    return {
        "id": step.id,
        "organization_id": step.organization_id,
        "provider_id": None,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "step_start_ns": began,
        "llm_request_start_ns": began,
        "llm_request_ns": step.model_ns,
        "tool_execution_ns": step.tools_ns,
        "step_ns": step.step_ns,
        "base_template_id": None,
        "template_id": None,
        "project_id": None,
    }


def usage_to_wire(usage: Usage, step_count: int, run_ids: Sequence[str], context_tokens: int | None = None) -> Wire:
    """The usage of a turn, as it ends an answer; `context_tokens` are in the window after it, where that was counted."""
    return {
        "message_type": "usage_statistics",
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "step_count": step_count,
        "run_ids": list(run_ids),
        "cached_input_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "context_tokens": context_tokens,
    }


def run_usage_to_wire(usage: Usage) -> Wire:
    """The usage of a run, as its own route tells it."""
    return {
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": _details(
            cached_tokens=usage.cached_tokens, cache_creation_tokens=usage.cache_write_tokens
        ),
        "completion_tokens_details": _details(reasoning_tokens=usage.reasoning_tokens),
    }


def stop_reason_to_wire(reason: str | None) -> Wire:
    """Why a turn ended, as it ends an answer."""
    return {"message_type": "stop_reason", "stop_reason": reason or "error"}


def _details(**counts: int | None) -> Wire | None:
    known = {name: count for name, count in counts.items() if count is not None}
    return known or None
