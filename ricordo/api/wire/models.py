"""Models on the wire."""

from typing import Any

from ricordo.domain.model import ModelInfo, ModelSettings

Wire = dict[str, Any]


def model_config_to_wire(info: ModelInfo, context_window: int, settings: ModelSettings) -> Wire:
    """An agent's `llm_config`: what follows from its model's handle and its settings."""
    return {
        "model": info.name,
        "display_name": info.name,
        "model_endpoint_type": info.endpoint_type,
        "model_endpoint": info.endpoint,
        "provider_name": info.provider,
        "provider_category": "base",
        "model_wrapper": None,
        "context_window": context_window,
        "put_inner_thoughts_in_kwargs": False,
        "handle": info.handle,
        "temperature": 1.0 if settings.temperature is None else settings.temperature,
        "max_tokens": settings.max_output_tokens,
        "enable_reasoner": settings.max_reasoning_tokens is not None or settings.reasoning_effort is not None,
        "reasoning_effort": settings.reasoning_effort,
        "max_reasoning_tokens": settings.max_reasoning_tokens or 0,
        "parallel_tool_calls": settings.parallel_tool_calls,
        "response_format": settings.response_format,
    }


def model_to_wire(info: ModelInfo) -> Wire:
    """A model that can be used here."""
    return {
        **model_config_to_wire(info, info.context_window, ModelSettings()),
        "name": info.name,
        "provider_type": info.endpoint_type,
        "max_context_window": info.context_window,
        "model_type": "llm",
    }
