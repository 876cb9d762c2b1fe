"""All embedding models by their handles."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ricordo.errors import NotFound
from ricordo.llm.embedding.embedded import HANDLE
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_table import LocalServer, Provider
from ricordo.llm.registry.models import Embedders, Models
from ricordo.settings import ProviderSettings, Settings
from tests.support.model_server import Answer, ModelServer

NONE: dict[str, Any] = dict.fromkeys(ProviderSettings.model_fields)
OPENED: list[Models] = []
SMALL = "text-embedding-3-small"


@pytest.fixture(autouse=True)
async def _close_models() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()


def rows(*names: str) -> Answer:
    return Answer({"data": [{"id": name, "object": "model"} for name in names]})


def models(extra: tuple[Provider, ...] = (), embedding: str | None = None, **fields: Any) -> Models:
    configured = {name: fields.pop(name) for name in tuple(fields) if name in NONE}
    settings = Settings(_env_file=None, embedding=embedding, find_local_models=fields.pop("find_local_models", True))
    fields.setdefault("local_servers", ())
    providers = ProviderSettings(_env_file=None, **NONE | configured)
    made = Models(settings, providers, extra, policy=CallPolicy(0, 5), **fields)
    OPENED.append(made)
    return made


def without_the_package(settings: Settings) -> Embedders:
    known = models()
    return Embedders(settings, known._directory, known._connections, CallPolicy(0, 5), has_embedded=lambda: False)


async def test_a_handle_of_a_configured_provider_embeds(server: ModelServer) -> None:
    known = models(openai_base_url=server.url)
    (vector,) = await known.embedders.get(f"openai/{SMALL}").embed(["tea"])
    assert len(vector) == 4
    assert server.requests[0].body["model"] == SMALL


@pytest.mark.parametrize("handle", [f"nobody/{SMALL}", "anthropic/claude-x", "bedrock/titan-embed", "openai/", "", "x"])
async def test_an_unknown_handle_is_not_found_and_the_known_ones_are_named(server: ModelServer, handle: str) -> None:
    known = models(openai_base_url=server.url, anthropic_api_key="k", anthropic_base_url=server.root)
    server.push(rows(SMALL, "gpt-4.1"))
    await known.embedders.require(f"openai/{SMALL}")
    expected = f"Handle {handle} not found, must be one of ['{HANDLE}', 'openai/{SMALL}']. Leave the embedding out"
    with pytest.raises(NotFound) as caught:
        known.embedders.get(handle)
    assert str(caught.value).startswith(expected)
    for ask in (known.embedders.require, known.embedders.choose):
        with pytest.raises(NotFound):
            await ask(handle)


async def test_one_list_tells_of_both_kinds_and_is_asked_for_once(server: ModelServer) -> None:
    known = models(openai_base_url=server.url)
    server.push(rows("gpt-4.1", SMALL, "text-embedding-3-large"))
    handles = [info.handle for info in await known.embedders.list()]
    assert handles == [HANDLE, f"openai/{SMALL}", "openai/text-embedding-3-large"]
    assert [info.handle for info in await known.list()] == ["openai/gpt-4.1"]
    assert len(server.requests) == 1


async def test_a_model_that_its_provider_does_not_list_is_required_in_vain(server: ModelServer) -> None:
    known = models(openai_base_url=server.url)
    server.push(rows("gpt-4.1", SMALL))
    assert (await known.embedders.require(f"openai/{SMALL}")).name == SMALL
    with pytest.raises(NotFound, match="Handle openai/text-embedding-9 not found"):
        await known.embedders.require("openai/text-embedding-9")


async def test_a_model_whose_name_does_not_tell_may_be_chosen_where_it_is_listed(server: ModelServer) -> None:
    known = models(openai_base_url=server.url, ollama_base_url=server.root)
    server.push(rows("house-model"), rows("all-minilm:latest", "oracle:latest"))
    assert (await known.embedders.require("openai/house-model")).handle == "openai/house-model"
    assert (await known.embedders.require("ollama/all-minilm")).handle == "ollama/all-minilm"
    assert (await known.embedders.require("ollama/oracle")).handle == "ollama/oracle"


async def test_any_model_is_accepted_where_the_list_cannot_be_read_or_lacks_them_all(server: ModelServer) -> None:
    openrouter = Provider("openrouter", server.url, "openrouter", api_key="k")
    known = models((openrouter,), openai_base_url=server.url)
    server.push(rows("some/chat"), Answer({}, 404))
    assert (await known.embedders.require("openrouter/openai/emb")).name == "openai/emb"
    assert (await known.embedders.require("openai/emb")).name == "emb"


async def test_dimensions_are_told_once_they_are_known_and_never_before(server: ModelServer) -> None:
    known = models(openai_base_url=server.url)
    server.push(rows(SMALL))
    handle = f"openai/{SMALL}"
    assert [info.dimensions for info in await known.embedders.list()] == [256, None]
    assert (await known.embedders.require(handle)).dimensions is None
    await known.embedders.get(handle).embed(["tea"])
    assert [info.dimensions for info in await known.embedders.list()] == [256, 4]
    assert (await known.embedders.require(handle)).dimensions == 4
    assert known.embedders.info(handle).dimensions == 4


@pytest.mark.parametrize("asked", [None, "letta/letta-free"])
async def test_who_names_none_follows_the_default(asked: str | None) -> None:
    assert await models().embedders.choose(asked) is None


def test_the_default_is_the_setting_else_the_built_in_model_where_it_is_installed() -> None:
    assert models().embedders.default_handle() == HANDLE
    assert models(embedding="openai/x").embedders.default_handle() == "openai/x"
    assert models(embedding="none").embedders.default_handle() is None
    assert without_the_package(Settings(_env_file=None)).default_handle() is None


async def test_without_the_package_the_built_in_model_is_not_offered() -> None:
    known = without_the_package(Settings(_env_file=None, embedding=HANDLE))
    assert await known.list() == []
    assert known.default_handle() == HANDLE
    with pytest.raises(
        NotFound, match=r'its package is missing\. Install it with: pip install "ricordo\[embeddings\]"'
    ):
        known.get(HANDLE)


async def test_a_handle_that_can_be_used_no_more_can_still_be_shown() -> None:
    info = models().embedders.info(f"openai/{SMALL}")
    assert (info.handle, info.provider, info.name, info.dimensions) == (f"openai/{SMALL}", "openai", SMALL, None)


async def test_a_server_on_this_machine_that_only_embeds_is_found(server: ModelServer) -> None:
    server.push(rows("nomic-embed-text:latest"))
    known = models(local_servers=(LocalServer("ollama", server.port, "/api/tags"),))
    assert await known.find_local() == ()
    assert [info.handle for info in await known.embedders.list()] == [HANDLE, "ollama/nomic-embed-text:latest"]
    assert (await known.embedders.require("ollama/nomic-embed-text")).endpoint == server.url
    assert len((await known.embedders.get("ollama/nomic-embed-text").embed(["tea"]))[0]) == 4
