"""Asks a provider which models it has, and reads the answer. One question, one short time-out, no retry."""

import asyncio
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW, EmbeddingInfo, ModelInfo
from ricordo.domain.model_size import billions
from ricordo.errors import ModelError
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_compatible import call_headers
from ricordo.llm.policy import error_from_status, error_from_transport
from ricordo.llm.provider_table import Provider

LISTING_SECONDS = 5.0
PROBE_SECONDS = 0.2
OLLAMA_AT_ONCE = 8
# With less than 24 GiB of video memory, as Ollama's documents say; the others get more, and `/api/ps` tells of it.
OLLAMA_SMALLEST_WINDOW = 4_096
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
_WINDOW_KEYS = (
    "max_model_len",  # vLLM
    "loaded_context_length",  # LM Studio
    "context_length",  # OpenRouter, Together, xAI
    "context_window",  # Groq
    "max_context_length",  # Mistral, LM Studio
    "max_input_tokens",  # Anthropic
    "inputTokenLimit",  # Google
)
_NEITHER = (
    "whisper",
    "tts-",
    "dall-e",
    "moderation",
    "rerank",
    "realtime",
    "transcribe",
    "gpt-image",
    "colbert",
)
# Where a list does not say what a model is for, its name does: the families of embedding models in use.
_EMBEDS = re.compile(
    r"embed|sentence-transformers/|(?<![a-z])(bge|gte|e5|mxbai|paraphrase|instructor|gtr-t5|sentence-t5)(?=[-_.:]|$)"
    r"|minilm|mpnet|stella[-_]"
)
KNOWN_MODELS = tomllib.loads(Path(__file__).with_name("known_models.toml").read_text("utf-8"))
_WINDOWS = {
    beginning: int(tokens)
    for tokens, beginnings in KNOWN_MODELS["windows"].items()
    for beginning in beginnings.split()
}


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models of one provider."""

    chat: tuple[ModelInfo, ...] = ()
    embedding: tuple[EmbeddingInfo, ...] = ()


async def list_models(
    client: httpx2.AsyncClient, provider: Provider, *, checks_key: bool = False
) -> ModelList:
    """Ask for the models of a provider. Raises ModelError where the list cannot be had; Bedrock and Vertex have none."""
    base_url, key = provider.base_url.rstrip("/"), provider.api_key or ""
    match provider.adapter:
        case "bedrock" | "vertex":
            raise ModelError(
                "llm_error",
                f"{provider.name} gives no list of models here; any model's id can be used.",
            )
        case "anthropic":
            url = f"{base_url.removesuffix('/v1')}/v1/models?limit=1000"
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        case "google":
            url, headers = f"{base_url}/v1beta/models?pageSize=1000", {"x-goog-api-key": key}
        case _:
            url, headers = f"{base_url}/models", call_headers(provider.endpoint_type, key)
            if provider.endpoint_type == "azure" and not base_url.endswith("/v1"):
                # The only version whose data plane lists deployments, whatever the version is that answers their calls.
                url = f"{base_url.removesuffix('/openai')}/openai/deployments?api-version=2023-03-15-preview"
    if checks_key and provider.endpoint_type == "openrouter":
        # OpenRouter shows its list to anybody; this alone proves the key.
        await _get(client, f"{base_url}/key", provider, headers)
    listed = models_in(await _get(client, url, provider, headers), provider)
    return await _with_details(client, provider, listed)


async def probe(client: httpx2.AsyncClient, provider: Provider) -> ModelList | None:
    """Return the models of a server on this machine; None where it is not there, or is something else."""
    url = provider.base_url.removesuffix("/v1") + provider.list_path
    try:
        listed = models_in(await _get(client, url, provider, timeout=PROBE_SECONDS), provider)
    except ModelError:
        return None
    return await _with_details(client, provider, listed)


async def _get(
    client: httpx2.AsyncClient,
    url: str,
    provider: Provider,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = LISTING_SECONDS,
) -> bytes:
    try:
        response = await client.get(url, headers=headers, timeout=timeout)
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise error_from_transport(provider.name, error) from error
    if response.status_code != 200:
        raise error_from_status(
            provider.name, response.status_code, response.content, response.headers
        )
    return response.content


def models_in(content: bytes, provider: Provider) -> ModelList:
    """Return the models in a provider's answer. All rows must name its owner. Raises ModelError on anything else."""
    payload = read_json(content)
    rows = payload if isinstance(payload, list) else None
    if isinstance(payload, dict):
        rows = (
            payload.get("data") if isinstance(payload.get("data"), list) else payload.get("models")
        )
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ModelError(
            "llm_bad_request", f"{provider.name} at {provider.base_url} gave no list of models."
        )
    if provider.owner is not None and not all(
        row.get("owned_by") == provider.owner for row in rows
    ):
        raise ModelError("llm_bad_request", f"{provider.base_url} is not {provider.name}.")
    chat, embedding = [], []
    for row in rows:
        name = str(row.get("id") or row.get("model") or row.get("name") or "").removeprefix(
            "models/"
        )
        if not name or any(word in name.lower() for word in _NEITHER):
            continue
        if _embeds(
            row, str(row.get("model") or name) if row.get("object") == "deployment" else name
        ):
            embedding.append(embedding_of(provider, name))
        else:
            chat.append(_info(row, name, provider))
    return ModelList(tuple(chat), tuple(embedding))


def known_window(model: str) -> int:
    name = model.rpartition("/")[2].lower()
    best = max(
        (beginning for beginning in _WINDOWS if name.startswith(beginning)), key=len, default=""
    )
    return _WINDOWS.get(best, DEFAULT_CONTEXT_WINDOW)


def info_of(provider: Provider, name: str) -> ModelInfo:
    handle, endpoint = f"{provider.name}/{name}", provider.base_url or None
    return ModelInfo(
        handle, provider.name, name, provider.endpoint_type, known_window(name), endpoint
    )


def embedding_of(provider: Provider, name: str) -> EmbeddingInfo:
    handle = f"{provider.name}/{name}"
    return EmbeddingInfo(
        handle, provider.name, name, provider.endpoint_type, endpoint=provider.base_url or None
    )


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
    if row.get("object") == "deployment" and isinstance(
        row.get("model"), str
    ):  # Azure: the name is anybody's choice.
        return replace(info, context_window=known_window(row["model"]))
    meta = row.get("meta")
    # llama.cpp says what it was started with, or else what the model was trained for.
    window = meta.get("n_ctx") or meta.get("n_ctx_train") if isinstance(meta, dict) else None
    window = window or next(
        (row[key] for key in _WINDOW_KEYS if isinstance(row.get(key), int) and row[key] > 0), None
    )
    info = replace(info, calls_tools=_calls_tools(row), parameters=_parameters(row))
    return replace(info, context_window=window) if isinstance(window, int) else info


def _calls_tools(row: Mapping[str, Any]) -> bool | None:
    """Return whether a model calls tools, where its list or its server says so."""
    said = row.get("capabilities") or row.get("supported_parameters")  # OpenRouter has the latter
    if isinstance(said, list):
        return "tools" in said or "tool_use" in said  # Ollama, LM Studio
    can = said.get("function_calling") if isinstance(said, dict) else None  # Mistral
    template = row.get("template")  # of an older Ollama
    return (
        ".Tools" in template
        if isinstance(template, str)
        else can
        if isinstance(can, bool)
        else None
    )


def _parameters(row: Mapping[str, Any]) -> float | None:
    """Return how many billion parameters a model has, where llama.cpp counts them or Ollama names its size."""
    meta, details = row.get("meta"), row.get("details")
    count = meta.get("n_params") if isinstance(meta, dict) else None
    if isinstance(count, int | float) and count > 0:
        return float(count) / 1e9
    size = details.get("parameter_size") if isinstance(details, dict) else None
    return billions(size) if isinstance(size, str) else None


async def _with_details(
    client: httpx2.AsyncClient, provider: Provider, listed: ModelList
) -> ModelList:
    """Return the models of Ollama or LM Studio with the windows they have there, and whether they call tools."""
    root = provider.base_url.rstrip("/").removesuffix("/v1")
    if provider.endpoint_type == "ollama" and listed.chat:
        return replace(
            listed, chat=await _shown_by_ollama(client, root, provider.window, listed.chat)
        )
    if provider.endpoint_type == "lmstudio" and listed.chat:
        rows = (await _ask(client, "GET", f"{root}/api/v0/models")).get("data")
        told = (
            {str(row.get("id")): row for row in rows if isinstance(row, dict)}
            if isinstance(rows, list)
            else {}
        )
        chat = (
            _info(told[info.name], info.name, provider) if info.name in told else info
            for info in listed.chat
        )
        return replace(listed, chat=tuple(chat))
    return listed


async def _shown_by_ollama(
    client: httpx2.AsyncClient, root: str, started_with: int | None, infos: Sequence[ModelInfo]
) -> tuple[ModelInfo, ...]:
    """Models with their windows at Ollama: as loaded, by its own file, as the server was started, else its smallest default."""
    running = (await _ask(client, "GET", f"{root}/api/ps")).get("models")
    rows = [row for row in running if isinstance(row, dict)] if isinstance(running, list) else []
    loaded = {str(row.get("model") or row.get("name")): row.get("context_length") for row in rows}
    places = asyncio.Semaphore(OLLAMA_AT_ONCE)

    async def measured(info: ModelInfo) -> ModelInfo:
        async with places:
            shown = await _ask(client, "POST", f"{root}/api/show", {"model": info.name})
        window = loaded.get(info.name)
        if not (isinstance(window, int) and window > 0):
            window = ollama_window(shown, started_with)
        return replace(
            info,
            context_window=window,
            calls_tools=_calls_tools(shown),
            parameters=_parameters(shown) or info.parameters,
        )

    return tuple(await asyncio.gather(*map(measured, infos)))


async def takes_tools(client: httpx2.AsyncClient, provider: Provider, model: str) -> bool | None:
    """Ask for one token with a tool at hand: vLLM and llama.cpp refuse tools unless they were started for them."""
    tool = {
        "name": "hello",
        "description": "Say hello.",
        "parameters": {"type": "object", "properties": {}},
    }
    said = [{"role": "user", "content": "Hello."}]
    body = {
        "model": model,
        "max_tokens": 1,
        "messages": said,
        "tools": [{"type": "function", "function": tool}],
    }
    headers, url = (
        call_headers(provider.endpoint_type, provider.api_key),
        f"{provider.base_url}/chat/completions",
    )
    try:
        response = await client.post(url, json=body, headers=headers, timeout=LISTING_SECONDS)
    except (httpx2.HTTPError, ModelError):
        return None
    if response.status_code == 200:
        return True
    return False if b"tool" in response.content.lower() else None


def ollama_window(shown: Mapping[str, Any], started_with: int | None) -> int:
    """Return the window that Ollama will load a model with, by what it shows of it."""
    parameters, facts = shown.get("parameters"), shown.get("model_info")
    set_by_file = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    window = int(set_by_file.group(1)) if set_by_file else started_with or OLLAMA_SMALLEST_WINDOW
    rows = facts.items() if isinstance(facts, dict) else ()
    most = [
        value
        for key, value in rows
        if key.endswith(".context_length") and isinstance(value, int) and value > 0
    ]
    if shown.get("remote_host") and most:  # A model in Ollama's cloud comes with all it has.
        return min(most)
    return min([window, *most]) or OLLAMA_SMALLEST_WINDOW


async def _ask(
    client: httpx2.AsyncClient, method: str, url: str, body: Any = None
) -> Mapping[str, Any]:
    """Return the answer, or nothing where there is none: an older server, or one that is busy."""
    try:
        response = await client.request(method, url, json=body, timeout=LISTING_SECONDS)
    except httpx2.HTTPError:
        return {}
    payload = read_json(response.content) if response.status_code == 200 else None
    return payload if isinstance(payload, dict) else {}
