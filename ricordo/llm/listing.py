"""Asks a provider which models it has, and reads the answer. One question, one short time-out, no retry."""

import re
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import EmbeddingInfo, ModelInfo
from ricordo.errors import ModelError
from ricordo.llm.ollama import with_real_windows
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
_NEITHER = ("whisper", "tts-", "dall-e", "moderation", "rerank", "realtime", "transcribe", "gpt-image", "colbert")
# Where a list does not say what a model is for, its name does: the families of embedding models in use.
_EMBEDS = re.compile(
    r"embed|sentence-transformers/|(?<![a-z])(bge|gte|e5|mxbai|paraphrase|instructor|gtr-t5|sentence-t5)(?=[-_.:]|$)"
    r"|minilm|mpnet|stella[-_]"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """The models of one provider."""

    chat: tuple[ModelInfo, ...] = ()
    embedding: tuple[EmbeddingInfo, ...] = ()


async def list_models(client: httpx2.AsyncClient, provider: Provider, timeout: float = LISTING_SECONDS) -> Listed:
    """The models of one provider. Raises ModelError where the list cannot be had; Bedrock has none to give."""
    base_url = provider.base_url.rstrip("/")
    match provider.adapter:
        case "bedrock" | "vertex":
            raise ModelError("llm_error", f"{provider.name} gives no list of models here; any model's id can be used.")
        case "anthropic":
            url = f"{base_url.removesuffix('/v1')}/v1/models?limit=1000"
            headers = {"x-api-key": provider.api_key or "", "anthropic-version": "2023-06-01"}
        case "google":
            url, headers = f"{base_url}/v1beta/models?pageSize=1000", {"x-goog-api-key": provider.api_key or ""}
        case _ if provider.endpoint_type == "azure":
            url, headers = _azure_list(base_url), {"api-key": provider.api_key or ""}
        case _:
            url = f"{base_url}/models"
            headers = {"authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}
    try:
        response = await client.get(url, headers=headers, timeout=timeout)
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise error_from_transport(provider.name, error) from error
    if response.status_code != 200:
        raise error_from_status(provider.name, response.status_code, response.content, response.headers)
    listed = models_in(response.content, provider)
    if provider.endpoint_type == "ollama":
        return replace(listed, chat=await with_real_windows(client, provider, listed.chat))
    return listed


def _azure_list(base_url: str) -> str:
    if base_url.endswith("/v1"):
        return f"{base_url}/models"
    # The only version whose data plane lists deployments, whatever the version is that answers their calls.
    return f"{base_url.removesuffix('/openai')}/openai/deployments?api-version=2023-03-15-preview"


async def probe(client: httpx2.AsyncClient, server: LocalServer, provider: Provider) -> Listed | None:
    """The models of a server on this machine; None where it is not there, or is something else."""
    try:
        response = await client.get(f"http://127.0.0.1:{server.port}{server.list_path}", timeout=PROBE_SECONDS)
        listed = models_in(response.content, provider, owner=server.owner)
    except (httpx2.HTTPError, ModelError):
        return None
    if response.status_code != 200:
        return None
    if provider.endpoint_type == "ollama":
        return replace(listed, chat=await with_real_windows(client, provider, listed.chat))
    return listed


def models_in(content: bytes, provider: Provider, owner: str | None = None) -> Listed:
    """The models in a provider's answer. With `owner`, all rows must name it. Raises ModelError on anything else."""
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
    chat, embedding = [], []
    for row in rows:
        name = _name(row)
        if not name or any(word in name.lower() for word in _NEITHER):
            continue
        if _embeds(row, str(row.get("model") or name) if row.get("object") == "deployment" else name):
            embedding.append(embedding_of(provider, name))
        else:
            chat.append(_info(row, name, provider))
    return Listed(tuple(chat), tuple(embedding))


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


def embedding_of(provider: Provider, name: str) -> EmbeddingInfo:
    """What is known of an embedding model by its name alone."""
    handle = f"{provider.name}/{name}"
    return EmbeddingInfo(handle, provider.name, name, provider.endpoint_type, endpoint=provider.base_url or None)


def _name(row: dict[str, Any]) -> str:
    name = row.get("id") or row.get("model") or row.get("name") or ""
    return str(name).removeprefix("models/")


def _embeds(row: dict[str, Any], name: str) -> bool:
    kind = row.get("type")  # Together: "embedding", "chat"; LM Studio: "embeddings", "llm", "vlm"
    if kind in ("embedding", "embeddings", "chat", "llm", "vlm", "language"):
        return str(kind).startswith("embedding")
    methods = row.get("supportedGenerationMethods")  # Google
    if isinstance(methods, list) and methods:
        return "embedContent" in methods
    return _EMBEDS.search(name.lower()) is not None


def _info(row: dict[str, Any], name: str, provider: Provider) -> ModelInfo:
    info = info_of(provider, name)
    if row.get("object") == "deployment" and isinstance(row.get("model"), str):  # Azure: the name is anybody's choice.
        return replace(info, context_window=known_window(row["model"]))
    meta = row.get("meta")
    # llama.cpp says what it was started with, or else what the model was trained for.
    window = meta.get("n_ctx") or meta.get("n_ctx_train") if isinstance(meta, dict) else None
    window = window or next((row[key] for key in _WINDOW_KEYS if isinstance(row.get(key), int) and row[key] > 0), None)
    return replace(info, context_window=window) if isinstance(window, int) else info
