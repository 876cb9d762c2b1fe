"""Embeddings through the thin adapter, over real HTTP."""

from typing import Any

import pytest

from ricordo.domain.model import EmbeddingInfo
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.embedding.providers import openai_embedder, opening
from ricordo.llm.embedding.remote import RemoteEmbedder, unit
from tests.llm.talk import Waits
from tests.support.model_server import Answer, ModelServer, Seen, embeddings, vector_of


@pytest.fixture
def embedder(server: ModelServer, waits: Waits, connections: Connections) -> RemoteEmbedder:
    return made(server, waits, connections)


def made(server: ModelServer, waits: Waits, connections: Connections, name: str = "scripted-1") -> RemoteEmbedder:
    info = EmbeddingInfo(f"openai/{name}", "openai", name, "openai", endpoint=server.url)
    return openai_embedder(info, connections, waits.policy(), api_key="key-1")


async def test_the_server_sees_exactly_this_request(embedder: RemoteEmbedder, server: ModelServer) -> None:
    await embedder.embed(["Hello", "Ciao è"])
    (seen,) = server.requests
    assert (seen.method, seen.path) == ("POST", "/v1/embeddings")
    assert seen.headers["authorization"] == "Bearer key-1"
    assert seen.headers["content-type"] == "application/json"
    assert seen.raw == '{"model":"scripted-1","input":["Hello","Ciao è"],"encoding_format":"float"}'.encode()


async def test_vectors_come_in_the_order_of_the_texts(embedder: RemoteEmbedder, server: ModelServer) -> None:
    server.push(embeddings([1, 0], [0, 1], [0.6, 0.8], order=[2, 0, 1]))
    assert await embedder.embed(["a", "b", "c"]) == [[1, 0], [0, 1], [0.6, 0.8]]


async def test_the_purpose_reaches_the_models_that_want_to_be_told(
    server: ModelServer, waits: Waits, connections: Connections
) -> None:
    embedder = made(server, waits, connections, "nomic-embed-text")
    await embedder.embed(["tea"])
    await embedder.embed(["tea"], purpose="query")
    assert [seen.body["input"] for seen in server.requests] == [["search_document: tea"], ["search_query: tea"]]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (embeddings([1, 0]), "llm_error", "openai gave 1 vectors for 2 texts"),
        (embeddings([1, 0], [1, 0], [1, 0]), "llm_error", "gave 3 vectors for 2 texts"),
        (Answer(b'{"data":[{"index":0,"embedding":[1,NaN]}]}'), "llm_bad_request", "did not answer with embeddings"),
        (embeddings([1, 0], [1, None]), "llm_error", "no vector"),
        (embeddings([1, 0], [1, 0, 0]), "llm_bad_request", "a vector of 3 numbers, and 2 before"),
        (Answer({"data": [{"index": 0, "embedding": [1]}, {"index": 5, "embedding": [1]}]}), "llm_error", "wrongly"),
        (Answer({"data": [{"index": 1, "embedding": [1]}, {"index": 1, "embedding": [1]}]}), "llm_error", "wrongly"),
        (Answer({"choices": []}), "llm_bad_request", "did not answer with embeddings. Check its address"),
        (Answer({"data": "x"}), "llm_bad_request", "did not answer with embeddings"),
        (Answer([1]), "llm_bad_request", "did not answer with embeddings"),
        (Answer(b"<html>", headers={"content-type": "text/html"}), "llm_bad_request", "It said: <html>"),
        (Answer({"error": {"message": "no such model"}}, 404), "llm_bad_request", "openai answered 404: no such model"),
        (Answer({"error": {"message": "bad key"}}, 401), "llm_authentication", "Check its key"),
        (Answer({"error": {"message": "rate limit exceeded"}}), "llm_rate_limit", "broke off its answer"),
    ],
)
async def test_a_bad_answer_is_a_clear_error(
    embedder: RemoteEmbedder, server: ModelServer, answer: Answer, kind: str, words: str
) -> None:
    server.push(*[answer] * 4)
    with pytest.raises(ModelError, match=words) as caught:
        await embedder.embed(["a", "b"])
    assert caught.value.kind == kind
    assert "key-1" not in str(caught.value)


async def test_a_server_that_is_gone_or_silent_is_an_error_in_time(waits: Waits) -> None:
    async with ModelServer(lambda _: Answer({}, delay=60)) as silent, ModelServer() as gone:
        await gone.stop()
        await gone.start()
        port, connections = gone.port, Connections(timeout=0.05)
        await gone.stop()
        info = EmbeddingInfo("p/m", "p", "m", "openai", endpoint=f"http://127.0.0.1:{port}/v1")
        with pytest.raises(ModelError, match="p cannot be reached"):
            await openai_embedder(info, connections, waits.policy(0), api_key=None).embed(["a"])
        info = EmbeddingInfo("p/m", "p", "m", "openai", endpoint=silent.url)
        with pytest.raises(ModelError, match="p gave no sign of life") as caught:
            await openai_embedder(info, connections, waits.policy(0), api_key=None).embed(["a"])
        assert caught.value.kind == "llm_timeout"
        await connections.close()
        await gone.start()


def refusing_over(characters: int, answer: Answer) -> Any:
    """A server that refuses a request in which a text is longer than that."""

    def respond(seen: Seen) -> Answer:
        texts = seen.body["input"]
        return answer if max(map(len, texts)) > characters else embeddings(*map(vector_of, texts))

    return respond


TOO_LONG = [
    (400, "This model's maximum context length is 8192 tokens, however you requested 9000"),  # OpenAI
    (500, "input (700 tokens) is too large to process. increase the physical batch size (current batch size: 512)"),
    (413, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
    (422, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
    (400, "Too many tokens in batch. Max is 16384 got 20000"),  # Mistral
    (400, "the input length exceeds the context length"),  # Ollama
    (400, "Requested 400000 tokens, max 300000 tokens per request (max_tokens_per_request)"),
]


@pytest.mark.parametrize(("status", "words"), TOO_LONG)
async def test_a_text_that_is_too_long_is_halved_until_it_fits(
    waits: Waits, connections: Connections, status: int, words: str
) -> None:
    refusal = Answer({"error": {"message": words}}, status)
    async with ModelServer(refusing_over(2_000, refusal)) as server:
        embedder = made(server, waits, connections)
        long = "Tea is nice. " * 500
        assert await embedder.embed([long]) == [unit(vector_of(long[:1624]), "p")]
        assert [len(seen.body["input"][0]) for seen in server.requests] == [6_500, 3_248, 1_624]
        assert waits == []


async def test_a_model_that_changes_its_dimensions_is_found_out(embedder: RemoteEmbedder, server: ModelServer) -> None:
    await embedder.embed(["a"])
    server.push(embeddings([1, 0]))
    with pytest.raises(ModelError, match="another model answers to that name now"):
        await embedder.embed(["a"])
    assert embedder.info.dimensions == 4


@pytest.mark.parametrize(
    ("name", "document", "query"),
    [
        ("nomic-embed-text:latest", "search_document: ", "search_query: "),
        ("intfloat/multilingual-e5-small", "passage: ", "query: "),
        ("e5-large-v2", "passage: ", "query: "),
        ("intfloat/multilingual-e5-large-instruct", "", "Instruct: "),
        ("e5-mistral-7b-instruct", "", "Instruct: "),
        ("Qwen/Qwen3-Embedding-0.6B", "", "Instruct: "),
        ("mxbai-embed-large", "", "Represent this sentence"),
        ("BAAI/bge-large-en-v1.5", "", "Represent this sentence"),
        ("snowflake-arctic-embed:110m", "", "Represent this sentence"),
        ("snowflake-arctic-embed2", "", "query: "),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "", "query: "),
        ("embeddinggemma:300m", "title: none | text: ", "task: search result | query: "),
        ("bge-m3", "", ""),
        ("text-embedding-3-small", "", ""),
        ("all-minilm", "", ""),
        ("mistral-embed", "", ""),
    ],
)
def test_each_family_gets_the_words_it_was_trained_with(name: str, document: str, query: str) -> None:
    assert opening(name, "document") == document
    found = opening(name, "query")
    assert found.startswith(query)
    assert bool(found) == bool(query)
