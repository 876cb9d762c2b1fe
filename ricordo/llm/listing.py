"""Asks a provider which models it has, and reads the answer. One question, one short time-out, no retry."""

from dataclasses import replace
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import ModelInfo
from ricordo.errors import ModelError
from ricordo.llm.policy import error_from_status, error_from_transport
from ricordo.llm.provider_table import LocalServer, Provider, known_window

LISTING_SECONDS = 5.0
PROBE_SECONDS = 0.2
_WINDOW_KEYS = (
    "max_model_len",  # vLLM
    "loaded_context_length",  # LM Studio
    "context_length",  # OpenRouter, Together, xAI
    "context_window",  # Groq
    "max_context_length",  # Mistral, LM Studio
    "max_input_tokens",  # Anthropic
    "inputTokenLimit",  # Google
)
_NO_CHAT = ("embed", "whisper", "tts-", "dall-e", "moderation", "rerank", "bge-", "realtime", "transcribe", "gpt-image")


async def list_models(
    client: httpx2.AsyncClient, provider: Provider, timeout: float = LISTING_SECONDS
) -> list[ModelInfo]:
    """The chat models of one provider. Raises ModelError where the list cannot be had; Bedrock has none to give."""
    base_url = provider.base_url.rstrip("/")
    match provider.door:
        case "bedrock":
            raise ModelError("llm_error", "Bedrock gives no list of models here; any model's id can be used.")
        case "anthropic":
            url = f"{base_url.removesuffix('/v1')}/v1/models?limit=1000"
            headers = {"x-api-key": provider.api_key or "", "anthropic-version": "2023-06-01"}
        case "google":
            url, headers = f"{base_url}/v1beta/models?pageSize=1000", {"x-goog-api-key": provider.api_key or ""}
        case _:
            url = f"{base_url}/models"
            headers = {"authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}
    try:
        response = await client.get(url, headers=headers, timeout=timeout)
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise error_from_transport(provider.name, error) from error
    if response.status_code != 200:
        raise error_from_status(provider.name, response.status_code, response.content, response.headers)
    return infos_in(response.content, provider)


async def probe(client: httpx2.AsyncClient, server: LocalServer, provider: Provider) -> list[ModelInfo] | None:
    """The chat models of a server on this machine; None where it is not there, or is something else."""
    try:
        response = await client.get(f"http://127.0.0.1:{server.port}{server.list_path}", timeout=PROBE_SECONDS)
        infos = infos_in(response.content, provider, owner=server.owner)
    except (httpx2.HTTPError, ModelError):
        return None
    return infos if response.status_code == 200 else None


def infos_in(content: bytes, provider: Provider, owner: str | None = None) -> list[ModelInfo]:
    """The chat models in a provider's answer. With `owner`, all rows must name it. Raises ModelError on anything else."""
    try:
        payload = orjson.loads(content)
    except orjson.JSONDecodeError:
        payload = None
    rows = payload if isinstance(payload, list) else None
    if isinstance(payload, dict):
        rows = payload.get("data") if isinstance(payload.get("data"), list) else payload.get("models")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ModelError("llm_bad_request", f"{provider.name} at {provider.base_url} gave no list of models.")
    if owner is not None and not all(row.get("owned_by") == owner for row in rows):
        raise ModelError("llm_bad_request", f"{provider.base_url} is not {provider.name}.")
    infos = [_info(row, provider) for row in rows]
    return [info for info in infos if info.name and not any(word in info.name.lower() for word in _NO_CHAT)]


def info_of(provider: Provider, name: str) -> ModelInfo:
    """What is known of a model by its name alone."""
    return ModelInfo(
        handle=f"{provider.name}/{name}",
        provider=provider.name,
        name=name,
        endpoint_type=provider.endpoint_type,
        context_window=known_window(name),
        endpoint=provider.base_url or None,
    )


def _info(row: dict[str, Any], provider: Provider) -> ModelInfo:
    name = row.get("id") or row.get("model") or row.get("name") or ""
    info = info_of(provider, str(name).removeprefix("models/"))
    meta = row.get("meta")
    # llama.cpp says what it was started with, or else what the model was trained for.
    window = meta.get("n_ctx") or meta.get("n_ctx_train") if isinstance(meta, dict) else None
    window = window or next((row[key] for key in _WINDOW_KEYS if isinstance(row.get(key), int) and row[key] > 0), None)
    return replace(info, context_window=window) if isinstance(window, int) else info
