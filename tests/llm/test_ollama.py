"""The window that a model really has at an Ollama server."""

from typing import Any

import httpx2
import pytest

from ricordo.llm.model_lists import OLLAMA_SMALLEST_WINDOW, list_models, ollama_window, probe
from ricordo.llm.provider_table import LocalServer, Provider, local_provider, local_servers
from ricordo.settings import ProviderSettings
from tests.support.model_server import Answer, ModelServer, Seen

MADE_FOR = {"general.architecture": "qwen3", "qwen3.context_length": 40_960, "qwen3.block_count": 36}


@pytest.mark.parametrize(
    ("shown", "started_with", "window"),
    [
        ({"model_info": MADE_FOR}, None, OLLAMA_SMALLEST_WINDOW),
        ({"model_info": MADE_FOR}, 32_768, 32_768),
        ({"model_info": MADE_FOR}, 131_072, 40_960),
        (
            {"model_info": MADE_FOR, "parameters": 'stop "<|im_end|>"\nnum_ctx                        8192'},
            32_768,
            8_192,
        ),
        ({"model_info": {"bert.context_length": 512}}, None, 512),
        ({"model_info": MADE_FOR, "remote_host": "https://ollama.com", "remote_model": "qwen3"}, None, 40_960),
        ({}, None, OLLAMA_SMALLEST_WINDOW),
        ({"model_info": "?", "parameters": 5}, None, OLLAMA_SMALLEST_WINDOW),
    ],
)
def test_the_window_is_the_one_the_server_will_load_with(
    shown: dict[str, Any], started_with: int | None, window: int
) -> None:
    assert ollama_window(shown, started_with) == window


def ollama(seen: Seen) -> Answer:
    """Two models: one that is loaded, one that is not and is shown."""
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
        assert {info.name: info.context_window for info in listed.chat} == {"big": 65_536, "small": 10_000}


async def test_a_server_that_is_found_is_asked_too() -> None:
    async with ModelServer(ollama) as server, httpx2.AsyncClient() as client:
        here = LocalServer("ollama", server.port, "/api/tags")
        (here,) = local_servers([here], ProviderSettings(_env_file=None, ollama_context_length=20_000))
        listed = await probe(client, here, local_provider(here))
        assert listed is not None
        assert {info.name: info.context_window for info in listed.chat} == {"big": 65_536, "small": 20_000}


async def test_an_older_server_that_shows_nothing_gets_the_smallest_default() -> None:
    def silent(seen: Seen) -> Answer:
        return Answer({"data": [{"id": "m"}]}) if seen.path == "/v1/models" else Answer(b"<html>", 404)

    async with ModelServer(silent) as server, httpx2.AsyncClient() as client:
        listed = await list_models(client, Provider("ollama", server.url, "ollama"))
        assert [info.context_window for info in listed.chat] == [OLLAMA_SMALLEST_WINDOW]
