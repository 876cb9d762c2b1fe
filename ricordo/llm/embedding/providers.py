"""Embedding models of providers: of every server that speaks OpenAI's format, and of Google AI by pydantic-ai."""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding.remote import RemoteEmbedder, count
from ricordo.llm.openai_compatible import call_headers
from ricordo.llm.policy import CallPolicy, error_from_event, error_from_status, error_from_transport, words_of
from ricordo.llm.provider_sdks import need
from ricordo.llm.written_calls import read_json

if TYPE_CHECKING:
    from pydantic_ai.embeddings.base import EmbeddingModel

# How servers say that a text is too long, beside the words they have for a chat that is.
_TOO_LONG = re.compile(
    r"too large to process"  # llama.cpp
    r"|must have (less|fewer) than \d+ tokens"  # text-embeddings-inference
    r"|too many tokens"  # Mistral
    r"|maximum (input|sequence) length|input is too long|tokens? limit|max_tokens_per_request"  # Together, OpenAI
    r"|longer than the maximum",  # vLLM
    re.IGNORECASE,
)

# The words that some families of models want before a text, so that a question's vector lies near its answers'. They are part of
# how the models were trained; left out, such a model finds visibly less.
_SEARCH = "Represent this sentence for searching relevant passages: "
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

# By the model's name without what stands before its last slash; the first match counts. Each has (document, query).
_FAMILIES: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"^nomic-embed-text", ("search_document: ", "search_query: ")),
    (r"^(multilingual-e5-large-instruct|e5-mistral)", ("", f"{_INSTRUCT} ")),
    (r"^qwen3-embedding", ("", _INSTRUCT)),
    (r"^(multilingual-)?e5-", ("passage: ", "query: ")),
    (r"^embeddinggemma", ("title: none | text: ", "task: search result | query: ")),
    (r"^snowflake-arctic-embed-?[a-z]*-?v?2", ("", "query: ")),
    (r"^(mxbai-embed|snowflake-arctic-embed|bge-(small|base|large)-en)", ("", _SEARCH)),
)


def openai_embedder(
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> RemoteEmbedder:
    """An embedding model behind `<endpoint>/embeddings`."""
    url = httpx2.URL(f"{(info.endpoint or '').rstrip('/')}/embeddings")
    headers = call_headers(info.endpoint_type, api_key)

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
    found = read_json(content)
    payload: dict[str, Any] = found if isinstance(found, dict) else {}
    if payload.get("error"):
        raise error_from_event(info.provider, payload)
    rows = payload.get("data")
    if isinstance(usage := payload.get("usage"), dict):
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


def google_embedder(
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> RemoteEmbedder:
    """An embedding model of Google AI. Asking it raises Unavailable without the extra."""
    building = asyncio.Lock()
    built: list[EmbeddingModel] = []

    def build() -> "EmbeddingModel":
        need("google.genai", "google")
        from pydantic_ai.embeddings.google import GoogleEmbeddingModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=api_key, base_url=info.endpoint, http_client=connections.client())
        return GoogleEmbeddingModel(info.name, provider=provider)

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        async with building:
            if not built:
                # The import takes a second or two: other turns go on meanwhile.
                built.append(await asyncio.to_thread(build))
        try:
            result = await built[0].embed(texts, input_type=purpose)
        except Exception as error:
            from ricordo.llm.providers import our_error

            raise our_error(info.provider, error) from error
        count(info.handle, result.usage.input_tokens)
        return result.embeddings

    return RemoteEmbedder(info, policy, ask)


def opening(name: str, purpose: EmbeddingPurpose) -> str:
    bare = name.rpartition("/")[2].lower()
    document, query = next((words for family, words in _FAMILIES if re.match(family, bare)), ("", ""))
    return query if purpose == "query" else document
