"""The model lists of providers."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW
from ricordo.errors import ModelError
from ricordo.llm.model_lists import (
    OLLAMA_SMALLEST_WINDOW,
    ModelList,
    embedding_of,
    list_models,
    models_in,
    ollama_window,
    probe,
)
from ricordo.llm.provider_table import Provider, local_server
from tests.support.model_server import Answer, ModelServer, Seen

VLLM = Provider("vllm", "http://127.0.0.1:8000/v1", "vllm")


def windows(payload: Any, provider: Provider = VLLM) -> dict[str, int]:
    return {
        info.name: info.context_window
        for info in models_in(json.dumps(payload).encode(), provider).chat
    }


@pytest.mark.parametrize(
    "row",
    [
        {"id": "m", "max_model_len": 5_000},  # vLLM
        {"id": "m", "context_length": 5_000},  # OpenRouter
        {"id": "m", "context_window": 5_000},  # Groq
        {"id": "m", "max_context_length": 5_000},  # Mistral
        {"id": "m", "max_input_tokens": 5_000},  # Anthropic
        {"id": "m", "meta": {"n_ctx": 5_000, "n_ctx_train": 90_000}},  # llama.cpp
        {"id": "m", "meta": {"n_ctx_train": 5_000}},
    ],
)
def test_the_context_window_is_read_where_it_is_reported(row: dict[str, Any]) -> None:
    assert windows({"data": [row]}) == {"m": 5_000}


def test_an_unreported_window_is_known_by_name_or_assumed() -> None:
    payload = {
        "data": [
            {"id": "gpt-4.1-mini"},
            {"id": "gpt-4"},
            {"id": "a/claude-x"},
            {"id": "odd", "context_length": 0},
        ]
    }
    assert windows(payload) == {
        "gpt-4.1-mini": 1_047_576,
        "gpt-4": 8_192,
        "a/claude-x": 200_000,
        "odd": DEFAULT_CONTEXT_WINDOW,
    }


def test_the_lists_of_ollama_google_and_together_are_read() -> None:
    assert windows({"models": [{"name": "llama3.2:latest", "model": "llama3.2:latest"}]}) == {
        "llama3.2:latest": 131_072
    }
    assert windows({"models": [{"name": "models/gemini-x", "inputTokenLimit": 77}]}) == {
        "gemini-x": 77
    }
    assert windows([{"id": "a/b", "context_length": 9}]) == {"a/b": 9}


EMBED = """text-embedding-3-small nomic-embed-text:latest mxbai-embed-large bge-m3 BAAI/bge-large-en-v1.5 all-minilm:33m
    intfloat/multilingual-e5-small e5-mistral-7b-instruct thenlper/gte-base snowflake-arctic-embed2 mistral-embed
    sentence-transformers/all-mpnet-base-v2 embeddinggemma qwen3-embedding:0.6b text-embedding-nomic-embed-text-v1.5@q8
    gemini-embedding-001 togethercomputer/m2-bert-80M-8k-retrieval""".split()
CHAT = """gpt-4.1 qwen3:8b llama3.2 mistral-small gemma3 deepseek-r1 phi4 minimax-m2 model-e51 budgie-7b
    integrate""".split()


def test_chat_and_embedding_models_are_distinguished_by_their_names() -> None:
    neither = ["bge-reranker-v2-m3", "whisper-1", "jina-colbert-v2", "tts-1", ""]
    rows = [{"id": name} for name in (*EMBED[:-1], *CHAT, *neither)]
    listed = models_in(json.dumps({"data": rows}).encode(), VLLM)
    assert listed.embedding == tuple(embedding_of(VLLM, name) for name in EMBED[:-1])
    assert [info.name for info in listed.chat] == CHAT


@pytest.mark.parametrize(
    ("row", "embeds"),
    [
        ({"id": EMBED[-1], "type": "embedding"}, True),  # Together
        ({"id": "e5-chat", "type": "chat"}, False),
        ({"id": "x", "type": "embeddings"}, True),  # LM Studio
        ({"id": "minilm-llm", "type": "llm"}, False),
        ({"name": "models/x", "supportedGenerationMethods": ["embedContent"]}, True),  # Google
        ({"name": "models/embed-x", "supportedGenerationMethods": ["generateContent"]}, False),
    ],
)
def test_the_type_in_a_list_overrides_a_models_name(row: dict[str, Any], embeds: bool) -> None:
    listed = models_in(json.dumps({"data": [row]}).encode(), VLLM)
    assert (len(listed.embedding), len(listed.chat)) == (embeds, not embeds)


@pytest.mark.parametrize("payload", ["text", {}, {"data": {}}, {"data": ["a"]}, 5, None])
def test_an_invalid_model_list_is_an_error(payload: Any) -> None:
    with pytest.raises(ModelError, match="gave no list of models"):
        models_in(json.dumps(payload).encode(), VLLM)


@pytest.mark.parametrize(
    ("adapter", "path", "header"),
    [
        ("openai", "/v1/models", ("authorization", "Bearer k")),
        ("anthropic", "/v1/models?limit=1000", ("x-api-key", "k")),
        ("google", "/v1/v1beta/models?pageSize=1000", ("x-goog-api-key", "k")),
    ],
)
async def test_each_adapter_requests_its_models_at_its_path_with_its_header(
    adapter: Any, path: str, header: tuple[str, str]
) -> None:
    async with ModelServer() as server, httpx2.AsyncClient() as client:
        listed = await list_models(client, Provider("p", server.url, "p", adapter, "k"))
        assert [info.handle for info in listed.chat] == ["p/scripted-1"]
        assert server.requests[0].path == path
        assert server.requests[0].headers[header[0]] == header[1]


async def test_azure_deployments_are_listed_with_the_details_of_their_models() -> None:
    rows = [
        {"id": "prod", "model": "gpt-4o", "object": "deployment", "status": "succeeded"},
        {
            "id": "vectors",
            "model": "text-embedding-3-small",
            "object": "deployment",
            "status": "succeeded",
        },
    ]
    async with (
        ModelServer(lambda _: Answer({"data": rows, "object": "list"})) as server,
        httpx2.AsyncClient() as client,
    ):
        azure = Provider("azure", server.root, "azure", api_key="k", api_version="2024-10-21")
        listed = await list_models(client, azure)
        newer = await list_models(
            client, Provider("azure", f"{server.root}/openai/v1", "azure", api_key="k")
        )
        assert [seen.path for seen in server.requests] == [
            "/openai/deployments?api-version=2023-03-15-preview",
            "/openai/v1/models",
        ]
        assert server.requests[0].headers["api-key"] == "k"
    assert [(info.handle, info.context_window) for info in listed.chat] == [("azure/prod", 128_000)]
    assert [info.handle for info in listed.embedding] == ["azure/vectors"]
    assert newer == ModelList(
        tuple(replace(info, endpoint=f"{server.root}/openai/v1") for info in listed.chat),
        tuple(replace(info, endpoint=f"{server.root}/openai/v1") for info in listed.embedding),
    )


MADE_FOR = {
    "general.architecture": "qwen3",
    "qwen3.context_length": 40_960,
    "qwen3.block_count": 36,
}


@pytest.mark.parametrize(
    ("shown", "started_with", "window"),
    [
        ({"model_info": MADE_FOR}, None, OLLAMA_SMALLEST_WINDOW),
        ({"model_info": MADE_FOR}, 32_768, 32_768),
        ({"model_info": MADE_FOR}, 131_072, 40_960),
        (
            {
                "model_info": MADE_FOR,
                "parameters": 'stop "<|im_end|>"\nnum_ctx                        8192',
            },
            32_768,
            8_192,
        ),
        ({"model_info": {"bert.context_length": 512}}, None, 512),
        (
            {"model_info": MADE_FOR, "remote_host": "https://ollama.com", "remote_model": "qwen3"},
            None,
            40_960,
        ),
        ({}, None, OLLAMA_SMALLEST_WINDOW),
        ({"model_info": "?", "parameters": 5}, None, OLLAMA_SMALLEST_WINDOW),
    ],
)
def test_ollamas_window_is_the_one_it_will_load_the_model_with(
    shown: dict[str, Any], started_with: int | None, window: int
) -> None:
    assert ollama_window(shown, started_with) == window


def ollama(seen: Seen) -> Answer:
    """An Ollama server with a loaded model, and one that is only described."""
    rows = [{"id": "big", "model": "big"}, {"id": "small", "model": "small"}]
    match seen.path:
        case "/v1/models":
            return Answer({"data": rows})
        case "/api/tags":
            return Answer({"models": rows})
        case "/api/ps":
            return Answer({"models": [{"name": "big", "model": "big", "context_length": 65_536}]})
        case "/api/show" if seen.body == {"model": "small"}:
            return Answer({"model_info": MADE_FOR})
        case _:
            return Answer({"error": "not found"}, 404)


async def test_a_loaded_model_has_the_window_it_was_loaded_with() -> None:
    async with ModelServer(ollama) as server, httpx2.AsyncClient() as client:
        listed = await list_models(client, Provider("ollama", server.url, "ollama", window=10_000))
        assert {info.name: info.context_window for info in listed.chat} == {
            "big": 65_536,
            "small": 10_000,
        }


async def test_a_discovered_server_is_asked_for_its_windows_too() -> None:
    async with ModelServer(ollama) as server, httpx2.AsyncClient() as client:
        here = local_server("ollama", server.port, "/api/tags")
        here = replace(here, window=20_000)
        listed = await probe(client, here)
        assert listed is not None
        assert {info.name: info.context_window for info in listed.chat} == {
            "big": 65_536,
            "small": 20_000,
        }


async def test_an_older_ollama_without_details_gets_the_smallest_default_window() -> None:
    def silent(seen: Seen) -> Answer:
        return (
            Answer({"data": [{"id": "m"}]}) if seen.path == "/v1/models" else Answer(b"<html>", 404)
        )

    async with ModelServer(silent) as server, httpx2.AsyncClient() as client:
        listed = await list_models(client, Provider("ollama", server.url, "ollama"))
        assert [info.context_window for info in listed.chat] == [OLLAMA_SMALLEST_WINDOW]
