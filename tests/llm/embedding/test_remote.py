"""Batches, order and long texts, with providers of different limits and faults."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding.remote import (
    BATCH_TEXTS,
    BATCH_TOKENS,
    MOST_TOKENS,
    REST_SECONDS,
    RemoteEmbedder,
    openai_embedder,
    text_prefix,
    unit,
)
from ricordo.llm.embedding_meter import count, metered
from ricordo.llm.provider_table import Provider
from ricordo.llm.tokens import text_tokens
from tests.llm.talk import Waits
from tests.support.model_server import Answer, ModelServer, Seen, embeddings, vector_of

INFO = EmbeddingInfo("p/m", "p", "m", "openai")


def vector_for(text: str) -> list[float]:
    return [float(ord(sign)) for sign in text[:6].ljust(6)]


class Tempered:
    """A provider with random failures.

    It limits the texts and tokens of a request, and the tokens of a text.
    """

    def __init__(
        self,
        texts: int = 10_000,
        tokens: int = 10**9,
        text: int = 10**9,
        fails: Sequence[bool] = (),
    ) -> None:
        self.requests: list[tuple[list[str], EmbeddingPurpose]] = []
        self.taken: list[list[str]] = []
        self._limits = texts, tokens, text
        self._fails = list(fails)

    async def __call__(self, texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        self.requests.append((texts, purpose))
        if self._fails and self._fails.pop():
            raise ModelError("llm_error", "hiccup")
        counts = [text_tokens(text) for text in texts]
        if (
            len(texts) > self._limits[0]
            or sum(counts) > self._limits[1]
            or max(counts) > self._limits[2]
        ):
            raise ModelError("context_window_exceeded", "too long")
        self.taken.append(texts)
        return [vector_for(text) for text in texts]


TEXT = st.one_of(
    st.text(max_size=40),
    st.text("ab é語😀", min_size=1, max_size=30).flatmap(
        lambda text: st.integers(1, 200).map(lambda times: text * times)
    ),
    st.sampled_from(["", " ", "\n\t", "\ud800"]),
)


@given(
    texts=st.lists(TEXT, max_size=40),
    most_texts=st.integers(1, 100),
    most_tokens=st.integers(200, 5_000),
    text=st.integers(70, 3_000),
    fails=st.lists(st.booleans(), max_size=4),
)
async def test_every_text_gets_its_own_vector_whatever_the_providers_limits(
    texts: list[str], most_texts: int, most_tokens: int, text: int, fails: list[bool]
) -> None:
    provider = Tempered(most_texts, most_tokens, text, fails)
    found = await RemoteEmbedder(INFO, Waits().policy(5), provider).embed(texts)
    expected = [
        unit(vector_for(one.replace("\ud800", "?")), "p") if one.strip() else [0.0] * 6
        for one in texts
    ]
    assert found == expected
    assert all(one.strip() for sent, _ in provider.requests for one in sent)


async def test_requests_are_bounded_by_texts_and_by_tokens() -> None:
    provider = Tempered()
    await RemoteEmbedder(INFO, Waits().policy(), provider).embed(
        ["a" * 4 * size for size in range(1, 300)]
    )
    assert max(len(texts) for texts in provider.taken) == BATCH_TEXTS
    await RemoteEmbedder(INFO, Waits().policy(), provider).embed(["語" * 1_000_000] * 20)
    sums = [sum(map(text_tokens, texts)) for texts in provider.taken]
    assert max(sums) == BATCH_TOKENS == 8 * MOST_TOKENS


async def test_a_failure_in_a_later_batch_is_an_error_without_partial_vectors() -> None:
    provider = Tempered(fails=[True] * 4 + [False])
    with pytest.raises(ModelError, match="hiccup"):
        await RemoteEmbedder(INFO, Waits().policy(3), provider).embed(["tea"] * (BATCH_TEXTS + 1))
    assert len(provider.requests) == 5


async def test_a_query_times_out_and_the_next_ones_fail_at_once_for_a_while() -> None:
    asked, seconds = list[str](), [100.0]

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        asked.append(purpose)
        if purpose == "query" and len(asked) == 1:
            await asyncio.sleep(60)
        return [vector_for(text) for text in texts]

    embedder = RemoteEmbedder(
        INFO, Waits().policy(), ask, query_seconds=0.02, now=lambda: seconds[0]
    )
    with pytest.raises(ModelError, match=r"p/m gave no vector within 0\.02 s") as caught:
        await embedder.embed(["tea"], purpose="query")
    assert caught.value.kind == "llm_timeout"
    seconds[0] += REST_SECONDS - 1
    with pytest.raises(ModelError, match="p/m failed a moment ago: p/m gave no vector"):
        await embedder.embed(["tea"], purpose="query")
    assert asked == ["query"]
    # The cancelled caller's batch still continues.
    assert await embedder.embed(["tea"]) == [unit(vector_for("tea"), "p")]
    seconds[0] += 2
    assert await embedder.embed(["tea"], purpose="query") == [unit(vector_for("tea"), "p")]


async def test_a_query_is_retried_only_once() -> None:
    provider, waits = Tempered(fails=[True] * 9), Waits()
    with pytest.raises(ModelError, match="hiccup"):
        await RemoteEmbedder(INFO, waits.policy(3), provider).embed(["tea"], purpose="query")
    assert (len(provider.requests), len(waits)) == (2, 1)
    provider = Tempered(fails=[True])
    assert await RemoteEmbedder(INFO, waits.policy(3), provider).embed(["tea"], purpose="query")


async def test_tokens_embedded_in_several_tasks_are_counted_by_model() -> None:
    async def embed(handle: str, tokens: int) -> None:
        await asyncio.sleep(0)
        count(handle, tokens, [])

    with metered() as tokens:
        await asyncio.gather(embed("a/1", 5), embed("a/1", 7), embed("b/1", 1))
    count("a/1", 100, [])
    assert tokens == {"a/1": 12, "b/1": 1}


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0}, {"prompt_tokens": "7"}, 7])
async def test_tokens_that_a_provider_does_not_report_are_estimated(
    embedder: RemoteEmbedder, server: ModelServer, usage: Any
) -> None:
    rows = [{"embedding": [1.0, 0.0]}, {"embedding": [0.0, 1.0]}]
    server.push(Answer({"data": rows, "usage": usage}))
    with metered() as tokens:
        await embedder.embed(["some tea", "and coffee"])
    assert tokens == {"openai/scripted-1": text_tokens("some tea") + text_tokens("and coffee")}


def test_a_vector_is_scaled_to_length_one() -> None:
    assert unit([3.0, 4.0], "p") == [0.6, 0.8]
    assert unit([3, 4], "p") == [0.6, 0.8]
    assert math.hypot(*unit([1e300, 1e300, -1e-300], "p")) == pytest.approx(1)


NO_VECTORS: dict[str, tuple[Any, ...]] = {
    "NaN": ([1.0, math.nan], [math.inf, 1.0]),
    "without numbers": ([], ""),
    "not a list of numbers": (["a"], [1.0, None], [[1.0, 2.0]], None, {"a": 1}, "YWJj"),
}


def test_an_invalid_vector_is_a_clear_error() -> None:
    for words, vectors in NO_VECTORS.items():
        for vector in vectors:
            with pytest.raises(ModelError, match=f"ollama (gave|sent) .*{words}") as caught:
                unit(vector, "ollama")
            assert caught.value.kind == "llm_error"


@pytest.fixture
def embedder(server: ModelServer, waits: Waits, connections: Connections) -> RemoteEmbedder:
    return new_embedder(server, waits, connections)


def new_embedder(
    server: ModelServer, waits: Waits, connections: Connections, name: str = "scripted-1"
) -> RemoteEmbedder:
    info = EmbeddingInfo(f"openai/{name}", "openai", name, "openai", endpoint=server.url)
    return openai_embedder(
        info, connections, waits.policy(), Provider("openai", "", "openai", api_key="key-1")
    )


async def test_the_server_receives_exactly_this_request(
    embedder: RemoteEmbedder, server: ModelServer
) -> None:
    await embedder.embed(["Hello", "Ciao è"])
    (seen,) = server.requests
    assert (seen.method, seen.path) == ("POST", "/v1/embeddings")
    assert seen.headers["authorization"] == "Bearer key-1"
    assert seen.headers["content-type"] == "application/json"
    assert (
        seen.raw
        == '{"model":"scripted-1","input":["Hello","Ciao è"],"encoding_format":"float"}'.encode()
    )


async def test_an_azure_deployment_is_called_at_its_own_address(
    server: ModelServer, waits: Waits, connections: Connections
) -> None:
    info = EmbeddingInfo("azure/mine", "azure", "mine", "azure", endpoint=server.root)
    azure = Provider("azure", server.root, "azure", api_key="k", api_version="2024-10-21")
    server.push(embeddings([1, 0]))
    await openai_embedder(info, connections, waits.policy(), azure).embed(["tea"])
    (seen,) = server.requests
    assert seen.path == "/openai/deployments/mine/embeddings?api-version=2024-10-21"
    assert seen.headers["api-key"] == "k"


async def test_vectors_are_returned_in_the_order_of_the_texts(
    embedder: RemoteEmbedder, server: ModelServer
) -> None:
    server.push(embeddings([1, 0], [0, 1], [0.6, 0.8], order=[2, 0, 1]))
    assert await embedder.embed(["a", "b", "c"]) == [[1, 0], [0, 1], [0.6, 0.8]]


async def test_the_purpose_is_added_as_a_prefix_for_models_that_need_it(
    server: ModelServer, waits: Waits, connections: Connections
) -> None:
    embedder = new_embedder(server, waits, connections, "nomic-embed-text")
    await embedder.embed(["tea"])
    await embedder.embed(["tea"], purpose="query")
    assert [seen.body["input"] for seen in server.requests] == [
        ["search_document: tea"],
        ["search_query: tea"],
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (embeddings([1, 0]), "llm_error", "openai gave 1 vectors for 2 texts"),
        (
            Answer(b'{"data":[{"index":0,"embedding":[1,NaN]}]}'),
            "llm_bad_request",
            "did not answer with embeddings",
        ),
        (embeddings([1, 0], [1, None]), "llm_error", "not a list of numbers"),
        (
            embeddings([1, 0], [1, 0, 0]),
            "llm_bad_request",
            "a vector of 3 numbers, but earlier ones had 2",
        ),
        (
            Answer({"data": [{"index": 1, "embedding": [1]}, {"index": 1, "embedding": [1]}]}),
            "llm_error",
            "wrong index numbers",
        ),
        (
            Answer({"choices": []}),
            "llm_bad_request",
            "did not answer with embeddings. Check its address",
        ),
        (Answer([1]), "llm_bad_request", "did not answer with embeddings"),
        (
            Answer(b"<html>", headers={"content-type": "text/html"}),
            "llm_bad_request",
            "Its answer: <html>",
        ),
        (
            Answer({"error": {"message": "no such model"}}, 404),
            "llm_error",
            "openai answered 404: no such model",
        ),
        (Answer({"error": {"message": "bad key"}}, 401), "llm_authentication", "Check its key"),
        (
            Answer({"error": {"message": "rate limit exceeded"}}),
            "llm_rate_limit",
            "broke off its answer",
        ),
    ],
)
async def test_an_invalid_response_is_a_clear_error(
    embedder: RemoteEmbedder, server: ModelServer, answer: Answer, kind: str, words: str
) -> None:
    server.push(*[answer] * 4)
    with pytest.raises(ModelError, match=words) as caught:
        await embedder.embed(["a", "b"])
    assert caught.value.kind == kind
    assert "key-1" not in str(caught.value)


async def test_an_unreachable_server_is_an_error(waits: Waits, connections: Connections) -> None:
    async with ModelServer() as gone:
        embedder = new_embedder(gone, waits, connections)
    with pytest.raises(ModelError, match="openai cannot be reached"):
        await embedder.embed(["a"])


def refusing_over(characters: int, answer: Answer) -> Any:
    """A server that refuses a request with a text longer than this."""

    def respond(seen: Seen) -> Answer:
        texts = seen.body["input"]
        return answer if max(map(len, texts)) > characters else embeddings(*map(vector_of, texts))

    return respond


TOO_LONG = [
    (
        400,
        "This model's maximum context length is 8192 tokens, however you requested 9000",
    ),  # OpenAI
    (
        500,
        "input (700 tokens) is too large to process. increase the physical batch size (current "
        "batch size: 512)",
    ),
    (413, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
    (422, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
    (400, "Too many tokens in batch. Max is 16384 got 20000"),  # Mistral
    (400, "the input length exceeds the context length"),  # Ollama
    (400, "Requested 400000 tokens, max 300000 tokens per request (max_tokens_per_request)"),
]


@pytest.mark.parametrize(("status", "words"), TOO_LONG)
async def test_a_too_long_text_is_halved_until_it_fits(
    waits: Waits, connections: Connections, status: int, words: str
) -> None:
    refusal = Answer({"error": {"message": words}}, status)
    async with ModelServer(refusing_over(2_000, refusal)) as server:
        embedder = new_embedder(server, waits, connections)
        long = "Tea is nice. " * 500
        assert await embedder.embed([long]) == [unit(vector_of(long[:1624]), "p")]
        assert [len(seen.body["input"][0]) for seen in server.requests] == [6_500, 3_248, 1_624]
        assert waits == []


async def test_a_model_that_changes_its_dimensions_is_reported(
    embedder: RemoteEmbedder, server: ModelServer
) -> None:
    await embedder.embed(["a"])
    server.push(embeddings([1, 0]))
    with pytest.raises(ModelError, match="the server now has another model under this name"):
        await embedder.embed(["a"])
    assert embedder.info.dimensions == 4


FAMILIES = {
    "nomic-embed-text:latest": ("search_document: ", "search_query: "),
    "intfloat/multilingual-e5-small": ("passage: ", "query: "),
    "intfloat/multilingual-e5-large-instruct": ("", "Instruct: "),
    "Qwen/Qwen3-Embedding-0.6B": ("", "Instruct: "),
    "BAAI/bge-large-en-v1.5": ("", "Represent this sentence"),
    "snowflake-arctic-embed:110m": ("", "Represent this sentence"),
    "Snowflake/snowflake-arctic-embed-l-v2.0": ("", "query: "),
    "embeddinggemma:300m": ("title: none | text: ", "task: search result | query: "),
    "bge-m3": ("", ""),
    "text-embedding-3-small": ("", ""),
}


def test_each_model_family_gets_the_prefixes_it_was_trained_with() -> None:
    for name, (document, query) in FAMILIES.items():
        found = text_prefix(name, "query")
        assert text_prefix(name, "document") == document, name
        assert (found[: len(query)], bool(found)) == (query, bool(query)), name
