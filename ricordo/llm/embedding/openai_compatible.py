"""Embeddings of every server that speaks OpenAI's format: `POST {base}/embeddings`, through our own thin adapter."""

import re
from collections.abc import Sequence
from typing import Any

import httpx2
import orjson

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import ModelError
from ricordo.llm.connections import Connections
from ricordo.llm.embedding.instructions import opening
from ricordo.llm.embedding.metering import count
from ricordo.llm.embedding.remote import RemoteEmbedder
from ricordo.llm.policy import CallPolicy, error_from_event, error_from_status, error_from_transport, words_of

# How servers say that a text is too long, beside the words they have for a chat that is.
_TOO_LONG = re.compile(
    r"too large to process"  # llama.cpp
    r"|must have (less|fewer) than \d+ tokens"  # text-embeddings-inference
    r"|too many tokens"  # Mistral
    r"|maximum (input|sequence) length|input is too long|tokens? limit|max_tokens_per_request"  # Together, OpenAI
    r"|longer than the maximum",  # vLLM
    re.IGNORECASE,
)


def openai_embedder(
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> RemoteEmbedder:
    """An embedding model behind `<endpoint>/embeddings`."""
    url = httpx2.URL(f"{(info.endpoint or '').rstrip('/')}/embeddings")
    headers = {"content-type": "application/json", "user-agent": "ricordo"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        before = opening(info.name, purpose)
        body = {"model": info.name, "input": [before + text for text in texts], "encoding_format": "float"}
        request = httpx2.Request("POST", url, headers=headers, content=orjson.dumps(body))
        try:
            response = await connections.client().send(request)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(info.provider, error) from error
        if response.status_code != 200:
            raise _refusal(info.provider, response)
        return vectors_in(response.content, info)

    return RemoteEmbedder(info, policy, ask)


def vectors_in(content: bytes, info: EmbeddingInfo) -> list[Any]:
    """The vectors of an answer in the order of the texts, not yet checked. Raises ModelError on anything else."""
    try:
        payload = orjson.loads(content)
    except orjson.JSONDecodeError:
        payload = None
    if isinstance(payload, dict) and payload.get("error"):
        raise error_from_event(info.provider, payload)
    rows = payload.get("data") if isinstance(payload, dict) else None
    if isinstance(payload, dict) and isinstance(usage := payload.get("usage"), dict):
        count(info.handle, usage.get("prompt_tokens"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "embedding" in row for row in rows):
        words, _ = words_of(content)
        problem = f"{info.endpoint} did not answer with embeddings. Check its address and the model. It said: "
        raise ModelError("llm_bad_request", problem + words[:200])
    places = [row.get("index") for row in rows]
    if sorted(place for place in places if isinstance(place, int)) == list(range(len(rows))):
        rows.sort(key=lambda row: row["index"])
    elif any(places):
        raise ModelError("llm_error", f"{info.provider} numbered its vectors wrongly.")
    return [row["embedding"] for row in rows]


def _refusal(provider: str, response: httpx2.Response) -> ModelError:
    _, whole = words_of(response.content)
    error = error_from_status(provider, response.status_code, response.content, response.headers)
    if error.kind in ("llm_bad_request", "llm_error") and _TOO_LONG.search(whole):
        return ModelError("context_window_exceeded", str(error))
    return error
