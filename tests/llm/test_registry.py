"""The registry of all models, by handle."""

import asyncio
import logging
from dataclasses import replace

import pytest

from ricordo.domain.message import TextPart
from ricordo.domain.model import LIBRARIAN, ModelInfo, ModelSettings
from ricordo.errors import ModelError, NotFound
from ricordo.llm.chat import whole_reply
from ricordo.llm.directory import FAILURE_KEPT_SECONDS, KEPT_SECONDS
from ricordo.llm.embedding.embedded import HANDLE
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_sdks import ProviderModel
from ricordo.llm.provider_table import Provider, local_server, with_usual_thinking
from ricordo.llm.registry.models import Embedders
from ricordo.llm.scripted import ScriptedModel
from ricordo.settings import Settings
from tests.llm.known_models import Now, models, rows, tags
from tests.llm.talk import ask
from tests.support.model_server import Answer, ModelServer


async def test_a_model_is_built_once_and_without_a_request(server: ModelServer) -> None:
    known = models(
        openai_base_url=server.url, anthropic_api_key="k", anthropic_base_url=server.root
    )
    assert known.get("openai/a") is known.get("openai/a")
    assert isinstance(known.get("openai/a"), OpenAICompatibleModel)
    assert isinstance(known.get("anthropic/claude-x"), ProviderModel)
    assert known.get("anthropic/claude-x").info.context_window == 200_000
    assert server.connections == 0


def test_the_number_of_built_models_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ricordo.llm.directory.MOST_BUILT", 3)
    known = models(openai_base_url="http://127.0.0.1:9/v1")
    built = [known.get(f"openai/{name}") for name in "abcde"]
    assert list(known._built) == ["openai/c", "openai/d", "openai/e"]
    assert known.get("openai/e") is built[-1]


@pytest.mark.parametrize("handle", ["anthropic/claude-x", "nobody/model", "openai", "openai/", ""])
async def test_an_unknown_handle_is_refused_with_a_list_of_the_known_ones(
    server: ModelServer, handle: str
) -> None:
    known = models(openai_base_url=server.url)
    known.add(ScriptedModel([], name="s"))
    await known.list()
    expected = f"Handle {handle} not found, must be one of ['scripted/s', 'openai/scripted-1']"
    expected += ". Set ANTHROPIC_API_KEY." if handle.startswith("anthropic") else ""
    with pytest.raises(NotFound) as caught:
        known.get(handle)
    assert str(caught.value) == expected
    with pytest.raises(NotFound):
        await known.require(handle)


async def test_any_model_is_accepted_if_the_list_cannot_be_read(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    known = models(openai_base_url=server.url, openai_api_key="secret-key")
    server.push(Answer({"error": {"message": "no list here"}}, 404))
    with caplog.at_level(logging.WARNING):
        assert (await known.require("openai/gpt-4o")).context_window == 128_000
    assert "The models of openai cannot be listed" in caplog.text
    assert "secret-key" not in caplog.text


async def test_lists_are_cached_for_five_minutes_and_failures_for_less(server: ModelServer) -> None:
    now = Now()
    known = models(openai_base_url=server.url, now=now)
    server.push(Answer({}, 500))
    assert await known.list() == []
    assert await known.list() == []
    assert len(server.requests) == 1
    now.seconds += FAILURE_KEPT_SECONDS + 1
    assert [info.handle for info in await known.list()] == ["openai/scripted-1"]
    now.seconds += KEPT_SECONDS - 1
    await known.list()
    assert len(server.requests) == 2
    now.seconds += 2
    await known.list()
    assert len(server.requests) == 3


async def test_the_details_of_a_listed_model_stay_known_when_a_later_list_fails(
    server: ModelServer,
) -> None:
    now = Now()
    known = models(openai_base_url=server.url, now=now)
    server.push(Answer({"data": [{"id": "tiny", "meta": {"n_ctx": 6_000, "n_params": 1.5e9}}]}))
    assert (await known.require("openai/tiny")).is_small
    now.seconds += KEPT_SECONDS + 1
    server.push(Answer({}, 500))
    assert await known.list() == []
    assert (await known.require("openai/tiny")).context_window == 6_000
    assert known.get("openai/tiny").info.is_small


async def test_a_provider_is_unlisted_until_its_list_was_read_or_just_failed(
    server: ModelServer,
) -> None:
    now = Now()
    known = models(openai_base_url=server.url, now=now)
    known.add(ScriptedModel([], name="s"))
    assert known.is_unlisted("openai/tiny")
    assert not known.is_unlisted("scripted/s")
    assert not known.is_unlisted("nobody/model")
    server.push(Answer({}, 500))
    await known.require("openai/tiny")
    assert not known.is_unlisted("openai/tiny")
    now.seconds += FAILURE_KEPT_SECONDS + 1
    assert known.is_unlisted("openai/tiny")
    await known.list()
    now.seconds += KEPT_SECONDS + 1
    assert not known.is_unlisted("openai/tiny")


async def test_an_unreachable_provider_does_not_hide_the_others(server: ModelServer) -> None:
    async with ModelServer() as dead:
        pass
    known = models(openai_base_url=dead.url, vllm_api_base=server.root)
    assert [info.handle for info in await known.list()] == ["vllm/scripted-1"]


async def test_the_details_in_a_list_apply_from_then_on(server: ModelServer) -> None:
    rows = [{"id": "m", "max_model_len": 4_096, "owned_by": "vllm"}]
    server.push(Answer({"object": "list", "data": rows}))
    known = models(vllm_api_base=server.root)
    assert known.get("vllm/m").info.context_window == 128_000
    assert (await known.require("vllm/m")).context_window == 4_096
    assert known.get("vllm/m").info.context_window == 4_096


async def test_short_names_of_ollama_and_variants_of_openrouter_are_known(
    server: ModelServer,
) -> None:
    rows = [
        {"id": "llama3.2:latest", "context_length": 5},
        {"id": "openai/gpt-x", "context_length": 6},
    ]
    shown = Answer({"model_info": {"llama.context_length": 5}})
    server.push(
        Answer({"data": rows}), Answer({"models": []}), shown, shown, Answer({"data": rows})
    )
    openrouter = Provider("openrouter", server.url, "openrouter", api_key="k")
    known = models(extra=(openrouter,), ollama_base_url=server.root)
    info = await known.require("ollama/llama3.2")
    assert (info.name, info.context_window) == ("llama3.2", 5)
    info = await known.require("openrouter/openai/gpt-x:online")
    assert (info.name, info.context_window) == ("openai/gpt-x:online", 6)


async def test_a_plugins_provider_is_used_like_any_other(server: ModelServer) -> None:
    known = models(extra=(Provider("mine", server.url, "openai", api_key="k"),))
    assert (await whole_reply(known.get("mine/m"), ask("x"))).parts == (TextPart("ok"),)
    assert server.requests[0].headers["authorization"] == "Bearer k"


async def test_no_server_is_called_if_nothing_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("No connection may be opened.")

    monkeypatch.setattr("ricordo.llm.addresses.httpx2.AsyncClient", refuse)
    known = models(Settings(_env_file=None, find_local_models=False))
    assert await known.list() == []
    assert await known.find_local() == ()
    assert known.default_handle() == LIBRARIAN
    with pytest.raises(NotFound):
        await known.require("openai/gpt-4o")


async def test_a_server_on_this_machine_is_found_and_becomes_the_default(
    server: ModelServer,
) -> None:
    server.push(tags("nomic-embed-text:latest", "qwen3:8b", "gemma3:1b"))
    known = models(local_servers=(local_server("ollama", server.port, "/api/tags"),))
    assert known.default_handle() == LIBRARIAN
    found = await known.find_local()
    assert [info.handle for info in found] == ["ollama/qwen3:8b", "ollama/gemma3:1b"]
    assert server.requests[0].path == "/api/tags"
    assert known.default_handle() == "ollama/qwen3:8b"
    assert (await whole_reply(known.get(known.default_handle()), ask("x"))).parts == (
        TextPart("ok"),
    )
    assert server.requests[-1].path == "/v1/chat/completions"
    assert await known.list() == list(found)


async def test_without_the_librarian_an_error_says_that_no_model_is_configured() -> None:
    known = models()
    assert (known.default_handle(), known.has_default()) == (LIBRARIAN, False)
    with pytest.raises(NotFound, match="no model is configured"):
        await known.require(LIBRARIAN)


async def test_another_program_on_a_known_port_is_not_taken_for_a_model_server(
    server: ModelServer,
) -> None:
    ours = {"object": "list", "data": [{"id": "agent-1", "owned_by": "ricordo"}]}
    server.push(
        Answer(ours), Answer(b"<html>", headers={"content-type": "text/html"}), Answer({}, 404)
    )
    for name in ("vllm", "lmstudio", "llamacpp"):
        known = models(
            local_servers=(
                local_server(name, server.port, owner="vllm" if name == "vllm" else None),
            )
        )
        assert await known.find_local() == ()
        assert known.default_handle() == LIBRARIAN
        await known.close()
    assert len(server.requests) == 3


async def test_a_slow_or_missing_local_server_is_skipped() -> None:
    async with ModelServer(lambda _: replace(tags("m"), delay=600)) as slow, ModelServer() as gone:
        port = gone.port
        await gone.stop()
        await gone.start()
        known = models(
            local_servers=(local_server("ollama", slow.port), local_server("lmstudio", port))
        )
        async with asyncio.timeout(60):
            assert await known.find_local() == ()
        await known.close()


async def test_a_configured_provider_is_not_searched_locally(server: ModelServer) -> None:
    known = models(
        ollama_base_url=server.root,
        local_servers=(local_server("ollama", server.port, "/api/tags"),),
    )
    assert await known.find_local() == ()
    assert server.requests == []


async def test_a_server_that_was_down_at_the_start_is_used_once_it_is_up() -> None:
    async with ModelServer() as server:
        port = server.port
        await server.stop()
        known = models(local_servers=(local_server("ollama", port, "/api/tags"),))
        assert await known.find_local() == ()
        model = known.get("ollama/m")
        with pytest.raises(ModelError, match="ollama cannot be reached"):
            await whole_reply(model, ask("x"))
        with pytest.raises(NotFound, match="Handle ollama/m not found, must be one of"):
            await known.require("ollama/m")
        assert await known.list() == []
        await server.start(port)
        assert (await whole_reply(model, ask("x"))).parts == (TextPart("ok"),)
        await known.close()


async def test_local_servers_are_not_called_if_the_settings_forbid_it(
    server: ModelServer,
) -> None:
    settings = Settings(_env_file=None, find_local_models=False)
    known = models(settings, local_servers=(local_server("ollama", server.port, "/api/tags"),))
    for handle in ("ollama/m", "ollama/"):
        with pytest.raises(NotFound):
            known.get(handle)
        with pytest.raises(NotFound):
            await known.require(handle)
    assert server.connections == 0


async def test_concurrent_lists_cause_one_request(server: ModelServer) -> None:
    known = models(openai_base_url=server.url)
    server.push(replace(tags("chat", "text-embedding-x"), delay=0.02))
    listed = await asyncio.gather(*(known.list() for _ in range(10)), known.embedders.list())
    assert len(server.requests) == 1
    assert [info.name for info in listed[0]] == ["chat"]
    assert listed[-1][-1].name == "text-embedding-x"


SMALL = "text-embedding-3-small"


def embedders_without_package(settings: Settings) -> Embedders:
    known = models()
    return Embedders(
        settings, known._directory, known._connections, CallPolicy(0, 5), has_embedded=lambda: False
    )


@pytest.mark.parametrize(
    "handle", [f"nobody/{SMALL}", "anthropic/claude-x", "bedrock/titan-embed", "openai/", "", "x"]
)
async def test_an_unknown_embedding_handle_is_refused_with_a_list_of_the_known_ones(
    server: ModelServer, handle: str
) -> None:
    known = models(
        openai_base_url=server.url, anthropic_api_key="k", anthropic_base_url=server.root
    )
    server.push(rows(SMALL, "gpt-4.1"))
    await known.embedders.require(f"openai/{SMALL}")
    expected = (
        f"Handle {handle} not found, must be one of ['{HANDLE}', 'openai/{SMALL}']. Leave the "
        "embedding out"
    )
    with pytest.raises(NotFound) as caught:
        known.embedders.get(handle)
    assert str(caught.value).startswith(expected)
    for look_up in (known.embedders.require, known.embedders.choose):
        with pytest.raises(NotFound):
            await look_up(handle)


async def test_an_embedding_model_that_its_provider_does_not_list_is_not_found(
    server: ModelServer,
) -> None:
    known = models(openai_base_url=server.url)
    server.push(rows("gpt-4.1", SMALL))
    assert (await known.embedders.require(f"openai/{SMALL}")).name == SMALL
    with pytest.raises(NotFound, match="Handle openai/text-embedding-9 not found"):
        await known.embedders.require("openai/text-embedding-9")


async def test_a_listed_model_with_any_name_may_be_chosen_for_embedding(
    server: ModelServer,
) -> None:
    known = models(openai_base_url=server.url, ollama_base_url=server.root)
    server.push(rows("house-model"), rows("all-minilm:latest", "oracle:latest"))
    assert (await known.embedders.require("openai/house-model")).handle == "openai/house-model"
    assert (await known.embedders.require("ollama/all-minilm")).handle == "ollama/all-minilm"
    assert (await known.embedders.require("ollama/oracle")).handle == "ollama/oracle"


async def test_any_embedding_model_is_accepted_if_the_list_fails_or_has_none(
    server: ModelServer,
) -> None:
    openrouter = Provider("openrouter", server.url, "openrouter", api_key="k")
    known = models(extra=(openrouter,), openai_base_url=server.url)
    server.push(rows("some/chat"), Answer({}, 404))
    assert (await known.embedders.require("openrouter/openai/emb")).name == "openai/emb"
    assert (await known.embedders.require("openai/emb")).name == "emb"


async def test_dimensions_are_known_by_name_until_the_model_returns_a_vector(
    server: ModelServer,
) -> None:
    known = models(openai_base_url=server.url)
    server.push(rows(SMALL))
    handle = f"openai/{SMALL}"
    assert [info.dimensions for info in await known.embedders.list()] == [256, 1536]
    assert (await known.embedders.require(handle)).dimensions == 1536
    await known.embedders.get(handle).embed(["tea"])
    assert [info.dimensions for info in await known.embedders.list()] == [256, 4]
    assert (await known.embedders.require(handle)).dimensions == 4
    assert known.embedders.info(handle).dimensions == 4


@pytest.mark.parametrize("asked", [None, "letta/letta-free"])
async def test_without_a_chosen_embedding_the_default_is_followed(asked: str | None) -> None:
    assert await models().embedders.choose(asked) is None


def test_the_default_embedding_is_the_setting_or_the_installed_built_in_model() -> None:
    assert models().embedders.default_handle() == HANDLE
    assert (
        models(Settings(_env_file=None, embedding="openai/x")).embedders.default_handle()
        == "openai/x"
    )
    assert models(Settings(_env_file=None, embedding="none")).embedders.default_handle() is None
    assert embedders_without_package(Settings(_env_file=None)).default_handle() is None


async def test_without_the_package_the_built_in_embedding_model_is_not_offered() -> None:
    known = embedders_without_package(Settings(_env_file=None, embedding=HANDLE))
    assert await known.list() == []
    assert known.default_handle() == HANDLE
    with pytest.raises(
        NotFound,
        match=r'its package is missing\. Install it with: pip install "ricordo\[embeddings\]"',
    ):
        known.get(HANDLE)


async def test_a_local_server_with_only_embedding_models_is_found(server: ModelServer) -> None:
    server.push(rows("nomic-embed-text:latest"))
    known = models(local_servers=(local_server("ollama", server.port, "/api/tags"),))
    assert await known.find_local() == ()
    assert [info.handle for info in await known.embedders.list()] == [
        HANDLE,
        "ollama/nomic-embed-text:latest",
    ]
    assert (await known.embedders.require("ollama/nomic-embed-text")).endpoint == server.url
    assert len((await known.embedders.get("ollama/nomic-embed-text").embed(["tea"]))[0]) == 4


@pytest.mark.parametrize(
    ("name", "kind", "thinks"),
    [
        *(
            (name, "anthropic", True)
            for name in ("claude-3-7-sonnet-20250219", "claude-haiku-4-5", "claude-opus-4-1")
        ),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "bedrock", True),
        *(
            (name, "anthropic", False)
            for name in ("claude-3-5-haiku-latest", "claude-2.1", "scripted-1")
        ),
        ("claude-sonnet-4-5", "openai", False),
    ],
)
def test_a_new_agent_thinks_if_its_claude_model_can(name: str, kind: str, thinks: bool) -> None:
    info = ModelInfo(f"x/{name}", "x", name, kind)
    assert with_usual_thinking(ModelSettings(), info).max_reasoning_tokens == (
        1024 if thinks else None
    )
    for told in (ModelSettings(reasoning_effort="none"), ModelSettings(max_reasoning_tokens=9)):
        assert with_usual_thinking(told, info) == told
