"""Embedding models behind a network.

They are models of any server with OpenAI's format, and models of Google AI by pydantic-ai.
"""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding_meter import count
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_compatible import call_headers, call_url
from ricordo.llm.policy import (
    CallPolicy,
    call_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
    words_of,
)
from ricordo.llm.provider_sdks import need
from ricordo.llm.provider_table import Provider
from ricordo.llm.tokens import shortened, text_tokens, writable

if TYPE_CHECKING:
    from pydantic_ai.embeddings.base import EmbeddingModel

# A batch is small, so that reading its answer (about 64 × 1,536 numbers) does not block other work.
BATCH_TEXTS = 64
BATCH_TOKENS = 64_000
# The limit of the most common models. A refused text is halved, and the model's limit is lowered.
MOST_TOKENS = 8_000
FEWEST_TOKENS = 64
# A search waits for its question's vector, and a quick search by words alone is better than a late
# one.
QUERY_SECONDS = 5.0
QUERY_RETRIES = 1
# After a failed query, the next queries fail at once for a while. So not every search waits for a
# provider that is down.
REST_SECONDS = 15.0

Ask = Callable[[list[str], EmbeddingPurpose], Awaitable[Sequence[Any]]]
"""One request, which returns a vector for each text, in order, in any form that `unit` reads.

Raises ModelError, or Unavailable if the provider's library is not installed.
"""


class RemoteEmbedder:
    """An embedding model of a provider; `ask` makes one request to it."""

    costs_tokens = True

    def __init__(
        self,
        info: EmbeddingInfo,
        policy: CallPolicy,
        ask: Ask,
        *,
        query_seconds: float = QUERY_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info = info
        self._policy = policy
        self._ask = ask
        self._query_seconds = query_seconds
        self._now = now
        self._rests_until = 0.0
        self._failure: ModelError | None = None
        self._most_tokens = MOST_TOKENS

    @property
    def info(self) -> EmbeddingInfo:
        """Describe the model; its dimensions are known after the first answer."""
        return self._info

    @property
    def handle(self) -> str:
        return self._info.handle

    async def embed(
        self, texts: Sequence[str], *, purpose: EmbeddingPurpose = "document"
    ) -> list[list[float]]:
        """Return one vector of length 1 for each text.

        Queries get five seconds by default; after a failed one they fail at once for a while.

        Args:
            texts: The texts. Those without words get vectors of zeros, and long ones are cut.
            purpose: "query" for a question of a search, "document" for a stored text.

        Raises:
            ModelError: if the provider fails, or a query takes too long.
            Unavailable: if the provider's library is not installed.
        """
        if purpose == "document":
            return await self._embed_all(texts, purpose, self._policy)
        if self._failure and self._now() < self._rests_until:
            raise ModelError(
                self._failure.kind, f"{self.handle} failed a moment ago: {self._failure}"
            )
        try:
            async with asyncio.timeout(self._query_seconds):
                retries = min(self._policy.retries, QUERY_RETRIES)
                policy = replace(self._policy, retries=retries)
                return await self._embed_all(texts, purpose, policy)
        except TimeoutError:
            self._failure = ModelError(
                "llm_timeout", f"{self.handle} gave no vector within {self._query_seconds:g} s."
            )
        except ModelError as error:
            if error.kind == "context_window_exceeded":
                raise
            self._failure = error
        self._rests_until = self._now() + REST_SECONDS
        raise self._failure

    async def _embed_all(
        self, texts: Sequence[str], purpose: EmbeddingPurpose, policy: CallPolicy
    ) -> list[list[float]]:
        nonempty = [text for text in texts if text.strip()]
        if texts and not nonempty and self._info.dimensions is None:
            # Texts without words get vectors of zeros. One request with a word shows the number
            # of dimensions.
            await self._embed_batch(["words"], purpose, policy)
        vectors_of_nonempty: list[list[float]] = []
        for batch in self._batches(nonempty):
            vectors_of_nonempty += await self._embed_batch(batch, purpose, policy)
        dimensions = self._info.dimensions or 0
        remaining = iter(vectors_of_nonempty)
        vectors: list[list[float]] = []
        for text in texts:
            if text.strip():
                vectors.append(next(remaining))
            else:
                vectors.append([0.0] * dimensions)
        return vectors

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        tokens = 0
        for text in texts:
            # Read the limit again for each text, since the model may have refused a long one
            # meanwhile.
            cut = shortened(writable(text), self._most_tokens)
            more = text_tokens(cut)
            if batch and (len(batch) == BATCH_TEXTS or tokens + more > BATCH_TOKENS):
                yield batch
                batch = []
                tokens = 0
            batch.append(cut)
            tokens += more
        if batch:
            yield batch

    async def _embed_batch(
        self, texts: list[str], purpose: EmbeddingPurpose, policy: CallPolicy
    ) -> list[list[float]]:
        try:
            return await call_by_policy(policy, lambda: self._attempt(texts, purpose))
        except ModelError as error:
            tokens = text_tokens(texts[0])
            is_shortest = len(texts) == 1 and tokens <= FEWEST_TOKENS
            if error.kind != "context_window_exceeded" or is_shortest:
                raise
        if len(texts) > 1:
            # Either one text or all texts together are too long, so try each half.
            half = len(texts) // 2
            first = await self._embed_batch(texts[:half], purpose, policy)
            return first + await self._embed_batch(texts[half:], purpose, policy)
        self._most_tokens = min(self._most_tokens, tokens // 2)
        return await self._embed_batch([shortened(texts[0], tokens // 2)], purpose, policy)

    async def _attempt(self, texts: list[str], purpose: EmbeddingPurpose) -> list[list[float]]:
        provider = self._info.provider
        answers = await self._ask(texts, purpose)
        if len(answers) != len(texts):
            raise ModelError(
                "llm_error", f"{provider} gave {len(answers)} vectors for {len(texts)} texts."
            )
        vectors = [unit(vector, provider) for vector in answers]
        dimensions = self._info.dimensions or len(vectors[0])
        if other := next((vector for vector in vectors if len(vector) != dimensions), None):
            raise ModelError(
                "llm_bad_request",
                f"{self.handle} gave a vector of {len(other)} numbers, but earlier ones had "
                f"{dimensions}: the server now has another model under this name. Give that model "
                "another name, or restart Ricordo, which then builds all vectors again.",
            )
        self._info = replace(self._info, dimensions=dimensions)
        return vectors


def unit(vector: Any, provider: str) -> list[float]:
    """Return the vector at length 1.

    Zeros stay zeros.

    Args:
        vector: A provider's vector, in any form.
        provider: The provider's name for errors.

    Raises:
        ModelError: if this is not a vector.
    """
    try:
        length = math.hypot(*vector)
    except (TypeError, ValueError):
        raise ModelError(
            "llm_error", f"{provider} sent a vector that is not a list of numbers."
        ) from None
    if not vector or not math.isfinite(length):
        fault = "vector without numbers"
        if vector:
            fault = "vector with a number in it that is none (NaN or infinite)"
        raise ModelError("llm_error", f"{provider} gave a {fault}. Use another embedding model.")
    if length == 0 or abs(length - 1) < 1e-6:
        return list(vector)
    return [number / length for number in vector]


# Some families of models need a prefix before each text. It brings a question's vector near the
# vectors of its answers. These models were trained with the prefix and find clearly less without
# it.
_SEARCH = "Represent this sentence for searching relevant passages: "
_INSTRUCT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)

# Prefixes for documents and queries, by the model's name after its last slash; the first match
# counts.
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
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, provider: Provider
) -> RemoteEmbedder:
    url = httpx2.URL(call_url(info, "embeddings", provider.api_version))
    headers = call_headers(info.endpoint_type, provider.api_key)

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        prefix = text_prefix(info.name, purpose)
        body = {
            "model": info.name,
            "input": [prefix + text for text in texts],
            "encoding_format": "float",
        }
        request = httpx2.Request("POST", url, headers=headers, content=orjson.dumps(body))
        try:
            response = await connections.client().send(request)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise error_from_transport(info.provider, error) from error
        if response.status_code != 200:
            raise error_from_status(
                info.provider, response.status_code, response.content, response.headers
            )
        return vectors_in(response.content, info, texts)

    return RemoteEmbedder(info, policy, ask)


def vectors_in(content: bytes, info: EmbeddingInfo, texts: Sequence[str]) -> list[Any]:
    """Return the unchecked vectors of an answer, in the order of the texts.

    The tokens of the answer are counted.

    Args:
        content: The body of the answer.
        info: The model that answered.
        texts: The texts of the request.

    Raises:
        ModelError: if the answer has no embeddings, or wrong index numbers.
    """
    json = read_json(content)
    if isinstance(json, dict):
        answer: dict[str, Any] = json
    else:
        answer = {}
    if answer.get("error"):
        raise error_from_event(info.provider, answer)
    rows = answer.get("data")
    usage = answer.get("usage")
    reported = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if reported or isinstance(rows, list):
        count(info.handle, reported, texts)
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and "embedding" in row for row in rows
    ):
        text, _ = words_of(content)
        raise ModelError(
            "llm_bad_request",
            f"{info.endpoint} did not answer with embeddings. Check its address and the model. Its "
            f"answer: {text[:200]}",
        )
    indexes = [row.get("index") for row in rows]
    if sorted(index for index in indexes if isinstance(index, int)) == list(range(len(rows))):
        rows.sort(key=lambda row: row["index"])
    elif any(indexes):
        raise ModelError(
            "llm_error",
            f"{info.provider} sent vectors with wrong index numbers. Use another embedding model.",
        )
    return [row["embedding"] for row in rows]


def google_embedder(
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, provider: Provider
) -> RemoteEmbedder:
    """Return an embedding model of Google AI.

    Its calls raise Unavailable if the extra is not installed.

    Args:
        info: The model. Its dimensions may be unknown.
        connections: The HTTP client for the calls.
        policy: The time limit and retries of a call.
        provider: The provider with its API key.
    """
    building = asyncio.Lock()
    built: list[EmbeddingModel] = []

    def build() -> "EmbeddingModel":
        need("google.genai", "google")
        from pydantic_ai.embeddings.google import GoogleEmbeddingModel
        from pydantic_ai.providers.google import GoogleProvider

        shared: dict[str, Any] = {"base_url": info.endpoint, "http_client": connections.client()}
        return GoogleEmbeddingModel(
            info.name, provider=GoogleProvider(api_key=provider.api_key, **shared)
        )

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        async with building:
            if not built:
                # The import takes one or two seconds and must not block other turns.
                built.append(await asyncio.to_thread(build))
        try:
            embedding = await built[0].embed(texts, input_type=purpose)
        except Exception as error:
            # Imports pydantic-ai, which takes a second; the call above has loaded it.
            from ricordo.llm.providers import our_error

            raise our_error(info.provider, error) from error
        count(info.handle, embedding.usage.input_tokens, texts)
        return embedding.embeddings

    return RemoteEmbedder(info, policy, ask)


def text_prefix(name: str, purpose: EmbeddingPurpose) -> str:
    """Return the prefix that a model needs before each text; "" for most models.

    Args:
        name: The model's name at its provider.
        purpose: "query" for a question of a search, "document" for a stored text.
    """
    bare = name.rpartition("/")[2].lower()
    prefixes = (pair for family, pair in _FAMILIES if re.match(family, bare))
    document, query = next(prefixes, ("", ""))
    if purpose == "query":
        return query
    return document
