"""Models on the wire."""

from typing import Any

from ricordo.domain.model import EmbeddingInfo, ModelInfo, ModelSettings

Wire = dict[str, Any]
# Clients take no other kind; a provider outside this list speaks OpenAI's format.
_EMBEDDING_KINDS = frozenset(
    """openai anthropic bedrock google_ai google_vertex azure groq ollama webui webui-legacy lmstudio lmstudio-legacy llamacpp
    koboldcpp vllm hugging-face mistral together pinecone""".split()
)
_CHUNK_CHARACTERS = 300
_BATCH = 32


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
        "put_inner_thoughts_in_kwargs": bool(settings.thinks_in_arguments),
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


def embedding_config_to_wire(info: EmbeddingInfo) -> Wire:
    """How an agent's or archive's texts are embedded. `embedding_dim` is 0 until the model was first asked.

    Chunk and batch size are what clients expect to find; nothing here goes by them.
    """
    kind = info.endpoint_type if info.endpoint_type in _EMBEDDING_KINDS else "openai"
    return {
        "embedding_endpoint_type": kind,
        "embedding_endpoint": info.endpoint,
        "embedding_model": info.name,
        "embedding_dim": info.dimensions or 0,
        "embedding_chunk_size": _CHUNK_CHARACTERS,
        "handle": info.handle,
        "batch_size": _BATCH,
        "azure_endpoint": None,
        "azure_version": None,
        "azure_deployment": None,
    }


def embedding_model_to_wire(info: EmbeddingInfo) -> Wire:
    """An embedding model that can be used here."""
    return {
        **embedding_config_to_wire(info),
        "name": info.name,
        "display_name": info.name,
        "provider_name": info.provider,
        "provider_type": info.endpoint_type,
        "model_type": "embedding",
    }
