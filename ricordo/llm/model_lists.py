"""Requests for a provider's list of models, with short time-outs and without retries."""

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
from ricordo.llm.loose_json import member_of, read_json
from ricordo.llm.openai_compatible import call_headers
from ricordo.llm.policy import error_from_status, error_from_transport
from ricordo.llm.provider_table import Provider

LISTING_SECONDS = 5.0
PROBE_SECONDS = 0.2
OLLAMA_AT_ONCE = 8
# Ollama's default with less than 24 GiB of video memory, according to its documentation. With more
# memory the default is larger, and `/api/ps` reports it.
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
# Parts of the names of models that neither chat nor embed.
_OTHER_KINDS = (
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
# Families of embedding models. The name decides if the list does not tell the model's purpose.
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
    """Return a provider's list of models.

    Args:
        client: The HTTP client.
        provider: The provider with its address and API key.
        checks_key: Whether to prove the key too, at a provider whose list needs none.

    Raises:
        ModelError: if the list cannot be read; Bedrock and Vertex have none.
    """
    base_url = provider.base_url
    key = provider.api_key or ""
    match provider.adapter:
        case "bedrock" | "vertex":
            raise ModelError(
                "llm_error",
                f"{provider.name} has no list of models here; you can use any model's id.",
            )
        case "anthropic":
            url = f"{base_url.removesuffix('/v1')}/v1/models?limit=1000"
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        case "google":
            url = f"{base_url}/v1beta/models?pageSize=1000"
            headers = {"x-goog-api-key": key}
        case _:
            url = f"{base_url}/models"
            headers = call_headers(provider.endpoint_type, key)
            if provider.endpoint_type == "azure" and not base_url.endswith("/v1"):
                # Only this version lists deployments, although another version may answer their
                # calls.
                root = base_url.removesuffix("/openai")
                url = f"{root}/openai/deployments?api-version=2023-03-15-preview"
    if checks_key and provider.endpoint_type == "openrouter":
        # OpenRouter shows its list without a key; only this request proves the key.
        await _get(client, f"{base_url}/key", provider, headers)
    listed = models_in(await _get(client, url, provider, headers), provider)
    return await _with_details(client, provider, listed)


async def probe(client: httpx2.AsyncClient, provider: Provider) -> ModelList | None:
    """Return the models of a server on this machine.

    Args:
        client: The HTTP client.
        provider: The server that may run here. It gets a fifth of a second to answer.

    Returns:
        The models; None if the server is absent or another one.
    """
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


def _rows_in(content: bytes, provider: Provider) -> list[dict[str, Any]]:
    """Return the list in a provider's answer. Raises ModelError for other answers."""
    rows = read_json(content)
    if isinstance(rows, dict):
        if isinstance(rows.get("data"), list):
            rows = rows.get("data")
        else:
            rows = rows.get("models")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ModelError(
            "llm_bad_request", f"{provider.name} at {provider.base_url} gave no list of models."
        )
    if provider.owner is not None and not all(
        row.get("owned_by") == provider.owner for row in rows
    ):
        raise ModelError("llm_bad_request", f"{provider.base_url} is not {provider.name}.")
    return rows


def models_in(content: bytes, provider: Provider) -> ModelList:
    """Return the models in a provider's answer.

    Args:
        content: The body of the answer.
        provider: The provider, whose `owner` each row must name if it is set.

    Raises:
        ModelError: for any other answer, or if a row lacks the owner.
    """
    chat = []
    embedding = []
    for row in _rows_in(content, provider):
        name = str(row.get("id") or row.get("model") or row.get("name") or "")
        name = name.removeprefix("models/")
        if not name or any(word in name.lower() for word in _OTHER_KINDS):
            continue
        model = name
        if row.get("object") == "deployment":
            model = str(row.get("model") or name)
        if _embeds(row, model):
            embedding.append(embedding_of(provider, name))
        else:
            chat.append(_info(row, name, provider))
    return ModelList(tuple(chat), tuple(embedding))


def known_window(model: str) -> int:
    """Return the context window of a model by the beginning of its name, in tokens.

    An unknown name gets `DEFAULT_CONTEXT_WINDOW`.

    Args:
        model: The name of the model. The part before its last "/" is ignored.
    """
    name = model.rpartition("/")[2].lower()
    prefixes = (prefix for prefix in _WINDOWS if name.startswith(prefix))
    prefix = max(prefixes, key=len, default="")
    return _WINDOWS.get(prefix, DEFAULT_CONTEXT_WINDOW)


def info_of(provider: Provider, name: str) -> ModelInfo:
    """Describe a chat model by its name, without a request.

    Args:
        provider: The provider of the model.
        name: The name of the model at the provider. The window comes from the list of known models.
    """
    return ModelInfo(
        f"{provider.name}/{name}",
        provider.name,
        name,
        provider.endpoint_type,
        known_window(name),
        endpoint=provider.base_url or None,
    )


def embedding_of(provider: Provider, name: str) -> EmbeddingInfo:
    """Describe an embedding model by its name, without a request.

    Args:
        provider: The provider of the model.
        name: The name of the model at the provider.
    """
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
    model = info_of(provider, name)
    if row.get("object") == "deployment" and isinstance(row.get("model"), str):
        # An Azure deployment may have any name, so its model's name is used.
        return replace(model, context_window=known_window(row["model"]))
    meta = row.get("meta")
    # Newer versions of llama.cpp report the window that the server was started with. Older versions
    # report the window that the model was trained with.
    window = member_of(meta, "n_ctx") or member_of(meta, "n_ctx_train")
    if not window:
        windows = (row.get(key) for key in _WINDOW_KEYS)
        window = next((size for size in windows if isinstance(size, int) and size > 0), None)
    model = replace(model, calls_tools=_calls_tools(row), parameters=_parameters(row))
    if isinstance(window, int):
        return replace(model, context_window=window)
    return model


def _calls_tools(row: Mapping[str, Any]) -> bool | None:
    """Return whether a model calls tools.

    Returns None if it is unknown.
    """
    abilities = row.get("capabilities") or row.get("supported_parameters")  # OpenRouter: the latter
    if isinstance(abilities, list):
        return "tools" in abilities or "tool_use" in abilities  # Ollama, LM Studio
    template = row.get("template")  # of an older Ollama
    if isinstance(template, str):
        return ".Tools" in template
    calls_functions = member_of(abilities, "function_calling")  # Mistral
    if isinstance(calls_functions, bool):
        return calls_functions
    return None


def _parameters(row: Mapping[str, Any]) -> float | None:
    """Return a model's parameters in billions.

    llama.cpp counts them, and Ollama names the size.
    """
    count = member_of(row.get("meta"), "n_params")
    if isinstance(count, int | float) and count > 0:
        return float(count) / 1e9
    size = member_of(row.get("details"), "parameter_size")
    if isinstance(size, str):
        return billions(size)
    return None


async def _with_details(
    client: httpx2.AsyncClient, provider: Provider, listed: ModelList
) -> ModelList:
    """Return the models of Ollama or LM Studio with their windows and tool support."""
    root = provider.base_url.rstrip("/").removesuffix("/v1")
    if provider.endpoint_type == "ollama" and listed.chat:
        return replace(
            listed, chat=await _shown_by_ollama(client, root, provider.window, listed.chat)
        )
    if provider.endpoint_type == "lmstudio" and listed.chat:
        rows = (await _ask(client, "GET", f"{root}/api/v0/models")).get("data")
        if not isinstance(rows, list):
            rows = []
        by_name = {str(row.get("id")): row for row in rows if isinstance(row, dict)}
        chat = (
            _info(by_name[model.name], model.name, provider) if model.name in by_name else model
            for model in listed.chat
        )
        return replace(listed, chat=tuple(chat))
    return listed


async def _shown_by_ollama(
    client: httpx2.AsyncClient, root: str, started_with: int | None, models: Sequence[ModelInfo]
) -> tuple[ModelInfo, ...]:
    """Return the models with their windows at Ollama.

    The window is, in this order: the loaded window, the window in the model's file, the server's
    setting, or Ollama's smallest default.
    """
    running = (await _ask(client, "GET", f"{root}/api/ps")).get("models")
    if isinstance(running, list):
        rows = [row for row in running if isinstance(row, dict)]
    else:
        rows = []
    loaded_windows = {
        str(row.get("model") or row.get("name")): row.get("context_length") for row in rows
    }
    semaphore = asyncio.Semaphore(OLLAMA_AT_ONCE)

    async def measure(model: ModelInfo) -> ModelInfo:
        async with semaphore:
            details = await _ask(client, "POST", f"{root}/api/show", {"model": model.name})
        window = loaded_windows.get(model.name)
        if not (isinstance(window, int) and window > 0):
            window = ollama_window(details, started_with)
        return replace(
            model,
            context_window=window,
            calls_tools=_calls_tools(details),
            parameters=_parameters(details) or model.parameters,
        )

    return tuple(await asyncio.gather(*map(measure, models)))


async def takes_tools(client: httpx2.AsyncClient, provider: Provider, model: str) -> bool | None:
    """Return whether a server takes tools, by a request of one token.

    vLLM and llama.cpp refuse tools unless they were started for them.

    Args:
        client: The HTTP client.
        provider: The server with its address and API key.
        model: The model's name at the server.

    Returns:
        None if it is unclear, for example after five seconds without an answer.
    """
    tool = {
        "name": "hello",
        "description": "Say hello.",
        "parameters": {"type": "object", "properties": {}},
    }
    body = {
        "model": model,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Hello."}],
        "tools": [{"type": "function", "function": tool}],
    }
    headers = call_headers(provider.endpoint_type, provider.api_key)
    url = f"{provider.base_url}/chat/completions"
    try:
        response = await client.post(url, json=body, headers=headers, timeout=LISTING_SECONDS)
    except (httpx2.HTTPError, ModelError):
        return None
    if response.status_code == 200:
        return True
    if b"tool" in response.content.lower():
        return False
    return None


def ollama_window(details: Mapping[str, Any], started_with: int | None) -> int:
    """Return the window that Ollama will load a model with, in tokens.

    Args:
        details: Ollama's answer to `/api/show` for the model.
        started_with: The window that the server was started with; None if it is not known.
    """
    parameters = details.get("parameters")
    facts = details.get("model_info")
    if isinstance(parameters, str):
        set_by_file = _NUM_CTX.search(parameters)
    else:
        set_by_file = None
    if set_by_file:
        window = int(set_by_file.group(1))
    else:
        window = started_with or OLLAMA_SMALLEST_WINDOW
    rows = facts.items() if isinstance(facts, dict) else ()
    trained_windows = [
        size
        for key, size in rows
        if key.endswith(".context_length") and isinstance(size, int) and size > 0
    ]
    if details.get("remote_host") and trained_windows:  # Ollama's cloud serves the whole window
        return min(trained_windows)
    return min([window, *trained_windows]) or OLLAMA_SMALLEST_WINDOW


async def _ask(
    client: httpx2.AsyncClient, method: str, url: str, body: Any = None
) -> Mapping[str, Any]:
    """Return the JSON of an answer.

    Returns an empty mapping if there is no JSON, as from an older or busy server.
    """
    try:
        response = await client.request(method, url, json=body, timeout=LISTING_SECONDS)
    except httpx2.HTTPError:
        return {}
    if response.status_code == 200:
        answer = read_json(response.content)
    else:
        answer = None
    if isinstance(answer, dict):
        return answer
    return {}
