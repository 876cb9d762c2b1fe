"""The default model of agents, chosen among scripted providers over real HTTP."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.model import LIBRARIAN
from ricordo.errors import NotFound
from ricordo.llm import provider_sdks
from ricordo.llm.directory import KEPT_SECONDS
from ricordo.llm.model_lists import ModelList, models_in
from ricordo.llm.openai_dialect import OPENAI_ADDRESS
from ricordo.llm.provider_table import Provider, local_server
from ricordo.llm.registry import models as registry
from ricordo.llm.registry.default_model import PREFERRED, choose
from ricordo.settings import Settings
from tests.llm.known_models import Now, models, rows, tags
from tests.support.model_server import Answer, ModelServer, Seen, completion

OPENAI = Provider("openai", OPENAI_ADDRESS, "openai", api_key="k")
ANTHROPIC = Provider("anthropic", "https://api.anthropic.com", "anthropic", "anthropic", "k")


def listing(provider: Provider, *names: str) -> tuple[Provider, ModelList]:
    return provider, models_in(str(rows(*names).body).replace("'", '"').encode(), provider)


def hide_packages(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make these libraries of providers seem not installed."""
    find = provider_sdks.find_spec
    monkeypatch.setattr(
        provider_sdks, "find_spec", lambda name: None if name in modules else find(name)
    )


def test_a_key_selects_the_best_listed_model_of_its_provider() -> None:
    listed = listing(
        OPENAI,
        "davinci-002",
        "gpt-4.1-mini",
        "gpt-4.1-2025-04-14",
        "gpt-5.4-2026-03-01",
        "gpt-5.4-pro",
    )
    default = choose([listed])
    assert (default.handle, default.reason) == (
        "openai/gpt-5.4-2026-03-01",
        "OPENAI_API_KEY is set",
    )
    assert default.lines == []
    assert choose(
        [listing(ANTHROPIC, "claude-opus-4-1-20250805", "claude-sonnet-4-5-20250929")]
    ).handle.endswith("sonnet-4-5-20250929")


def test_before_a_service_is_listed_its_first_choice_is_the_default_unless_another_is_listed() -> (
    None
):
    default = choose([(OPENAI, None)])
    assert (default.handle, default.reason) == (
        f"openai/{PREFERRED['openai'][0]}",
        "OPENAI_API_KEY is set, but its models have not been listed",
    )
    here = replace(local_server("ollama", 1, "/api/tags"))
    found = listing(here, "qwen3:8b")
    assert choose([(OPENAI, None), found], {"ollama"}).handle == default.handle, (
        "a configured provider comes before a detected one"
    )
    assert (
        choose([(OPENAI, None), listing(ANTHROPIC, "claude-haiku-5-5")]).handle
        == "anthropic/claude-haiku-5-5"
    )


def test_a_service_that_lists_no_known_model_is_not_the_default() -> None:
    default = choose([listing(OPENAI, "davinci-002", "sora-9")])
    assert default.handle == LIBRARIAN
    assert default.lines == [
        "OPENAI_API_KEY is set, but openai lists no model that is known to call tools. Check it, "
        "or name a model in RICORDO_MODEL."
    ]
    azure = Provider("azure", "https://x.example/openai/v1", "azure", api_key="k")
    assert choose([listing(azure, "gpt-4.1")]).handle == LIBRARIAN, (
        "Azure also lists models that are not deployed"
    )
    assert (
        choose([listing(replace(azure, api_version="2024-10-21"), "mine")]).handle == "azure/mine"
    )


async def test_an_aws_region_alone_does_not_select_a_provider(
    caplog: pytest.LogCaptureFixture,
) -> None:
    default = await models(
        Settings(_env_file=None, find_local_models=False), aws_region="eu-central-1"
    ).find_default()
    assert (default.handle, default.lines, caplog.text) == (LIBRARIAN, [], "")


def test_a_model_whose_library_is_missing_is_skipped_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_packages(monkeypatch, "openai", "anthropic")
    default = choose([listing(OPENAI, "gpt-6.1-sol", "gpt-4.1")])
    assert (default.handle, default.reason) == (
        "openai/gpt-4.1",
        "OPENAI_API_KEY is set; gpt-6.1-sol needs the extra `openai`",
    )
    default = choose([listing(ANTHROPIC, "claude-sonnet-5-5")])
    assert default.handle == LIBRARIAN
    assert default.lines == [
        "ANTHROPIC_API_KEY is set, but its library is missing. Install it with: pip install "
        '"ricordo[anthropic]"'
    ]


@pytest.mark.parametrize(
    ("row", "calls"),
    [
        ({"supported_parameters": ["tools", "temperature"]}, True),  # OpenRouter
        ({"supported_parameters": ["temperature"]}, False),
        ({"capabilities": {"completion_chat": True, "function_calling": False}}, False),  # Mistral
        ({"capabilities": ["tool_use"]}, True),  # LM Studio
        ({"capabilities": "?"}, None),
        ({}, None),
    ],
)
def test_a_model_list_may_say_which_models_call_tools(
    row: dict[str, Any], calls: bool | None
) -> None:
    body = Answer({"data": [{"id": "m", **row}]}).body
    (info,) = models_in(
        str(body).replace("'", '"').replace("True", "true").replace("False", "false").encode(),
        OPENAI,
    ).chat
    assert info.calls_tools is calls


async def test_a_base_url_selects_the_first_model_that_its_server_lists(
    server: ModelServer,
) -> None:
    server.push(rows("text-embedding-x", "house-model", "other"))
    known = models(openai_base_url=server.url)
    assert known.default_handle() == LIBRARIAN
    default = await known.find_default()
    assert (default.handle, default.reason) == ("openai/house-model", "OPENAI_BASE_URL is set")
    assert [seen.path for seen in server.requests] == ["/v1/models"], "no model was called"


def ollama(**shown: Any) -> Callable[[Seen], Answer]:
    """An Ollama server with these models and their properties."""

    def answer(seen: Seen) -> Answer:
        match seen.path:
            case "/api/tags":
                return tags(*shown)
            case "/v1/models":
                return rows(*shown)
            case "/api/show":
                return Answer(shown[seen.body["model"]])
            case _:
                return Answer({"models": []})

    return answer


CAPABLE = {"capabilities": ["completion", "tools"]}
PLAIN = {"capabilities": ["completion"]}


@pytest.mark.parametrize("capable", [CAPABLE, {"template": "{{ if .Tools }}…{{ end }}"}])
async def test_a_model_that_calls_tools_is_selected_from_a_local_ollama(
    server: ModelServer, capable: Any
) -> None:
    server.otherwise = ollama(gemma3=PLAIN, old={"template": "{{ .Prompt }}"}, qwen3=capable)
    known = models(local_servers=(local_server("ollama", server.port, "/api/tags"),))
    default = await known.find_default()
    assert (default.handle, default.reason) == ("ollama/qwen3", "found on this machine")
    assert known.better_than(LIBRARIAN) == "ollama/qwen3"
    assert known.better_than("ollama/gemma3") is None
    configured = models(ollama_base_url=server.root)
    assert (await configured.find_default()).reason == "OLLAMA_BASE_URL is set"
    assert configured.default_handle() == "ollama/qwen3"


@pytest.mark.parametrize("shown", [{}, {"gemma3": PLAIN}, {"nomic-embed-text": PLAIN}])
async def test_without_a_tool_model_the_librarian_stays_and_a_line_says_what_to_pull(
    server: ModelServer, shown: Any
) -> None:
    server.otherwise = ollama(**shown)
    known = models(local_servers=(local_server("ollama", server.port, "/api/tags"),))
    default = await known.find_default()
    assert default.handle == LIBRARIAN
    (line,) = default.lines
    assert line.endswith("has no model that calls tools. Pull one: ollama pull qwen3:8b")
    assert known.better_than(LIBRARIAN) is None


async def test_a_model_pulled_later_is_found_at_the_next_look(server: ModelServer) -> None:
    now = Now()
    server.otherwise = ollama()
    known = models(local_servers=(local_server("ollama", server.port, "/api/tags"),), now=now)
    await known.find_default()
    server.otherwise = ollama(qwen3=CAPABLE)
    assert (await known.find_default()).handle == LIBRARIAN, (
        "servers are not asked again at every request"
    )
    now.seconds += registry.LOOK_AGAIN_SECONDS
    assert (await known.find_default()).handle == "ollama/qwen3"


async def test_a_failed_list_changes_nothing_and_a_better_list_changes_the_default(
    server: ModelServer,
) -> None:
    now = Now()
    server.otherwise = ollama(gemma3=PLAIN)
    known = models(ollama_base_url=server.root, now=now)
    assert (await known.find_default()).handle == LIBRARIAN
    server.otherwise = ollama(gemma3=PLAIN, qwen3=CAPABLE)
    now.seconds += KEPT_SECONDS
    assert (await known.find_default()).handle == "ollama/qwen3"
    server.otherwise = lambda _: Answer({}, 500)
    now.seconds += KEPT_SECONDS
    assert "qwen3" not in str(await known.list())
    assert (await known.find_default()).handle == "ollama/qwen3"


async def test_lm_studio_reports_tool_support_and_context_windows(
    server: ModelServer,
) -> None:
    details = [
        {"id": "plain", "type": "llm", "max_context_length": 8_000},
        {
            "id": "tooled",
            "type": "llm",
            "capabilities": ["tool_use"],
            "loaded_context_length": 9_000,
        },
    ]
    server.otherwise = lambda seen: (
        Answer({"data": details}) if "v0" in seen.path else rows("plain", "tooled", "new")
    )
    known = models(local_servers=(local_server("lmstudio", server.port),))
    assert (await known.find_default()).handle == "lmstudio/tooled"
    assert known.get("lmstudio/tooled").info.context_window == 9_000


REFUSAL = {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}}


@pytest.mark.parametrize(
    ("answer", "handle"),
    [
        (completion("o"), "vllm/m"),
        (Answer(REFUSAL, 400), LIBRARIAN),
        (Answer({"error": "loading"}, 503), "vllm/m"),
        (Answer(None, 200, delay=60), "vllm/m"),
    ],
)
async def test_a_server_that_does_not_report_tool_support_is_asked_once(
    server: ModelServer, answer: Answer, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LOOK_SECONDS", 1 if answer.delay else 60)
    listed = Answer({"data": [{"id": "m", "owned_by": "vllm"}]})
    server.otherwise = lambda seen: answer if seen.method == "POST" else listed
    known = models(local_servers=(local_server("vllm", server.port, owner="vllm"),))
    default = await known.find_default()
    assert default.handle == handle
    (asked,) = [seen.body for seen in server.requests if seen.method == "POST"]
    assert (asked["max_tokens"], len(asked["tools"])) == (1, 1)
    if handle == LIBRARIAN:
        assert default.lines[0].endswith(
            "Start it with --enable-auto-tool-choice and --tool-call-parser."
        )


async def test_a_provider_that_hangs_is_waited_for_once_and_briefly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "LOOK_SECONDS", 0.1)
    async with ModelServer(lambda _: replace(rows("m"), delay=600)) as silent, asyncio.timeout(120):
        known = models(openai_base_url=silent.url)
        for _ in range(3):
            assert (await known.find_default()).lines == [
                "OPENAI_BASE_URL is set, but openai has not listed its models. Check it, or name "
                "a model in RICORDO_MODEL."
            ]
        assert len(silent.requests) == 1
    assert "Not every provider" in caplog.text


@pytest.mark.parametrize(
    ("handle", "fault"),
    [
        ("openai/gpt-4.1", None),
        ("anthropic/claude-sonnet-4-5", "Set ANTHROPIC_API_KEY."),
        ("azure/mine", "Set AZURE_API_KEY and AZURE_BASE_URL."),
        ("ollama/qwen3", "Set OLLAMA_BASE_URL, or start it on this machine."),
        ("openai/gpt-4.11", "Did you mean openai/gpt-4.1 or openai/gpt-4.1-mini?"),
        ("opneai/gpt-4.1", "Did you mean openai/gpt-4.1 or openai/gpt-4.1-mini?"),
        ("zzz", "None of the configured providers has it."),
    ],
)
async def test_the_model_in_the_settings_is_checked(
    server: ModelServer, handle: str, fault: str | None
) -> None:
    server.otherwise = lambda _: rows("gpt-4.1", "gpt-4.1-mini", "x")
    known = models(Settings(_env_file=None, model=handle), openai_base_url=server.url)
    await known.list()
    default = await known.find_default()
    assert (default.handle, default.reason, default.fault) == (handle, "by RICORDO_MODEL", fault)
    assert default.lines == ([f"RICORDO_MODEL={handle} cannot be used. {fault}"] if fault else [])
    assert known.better_than(LIBRARIAN) == (None if fault else handle)
    if fault and handle != "zzz":
        with pytest.raises(NotFound) as refused:
            await known.require(handle)
        assert str(refused.value).endswith(f". {fault}"), (
            "the same reason is given if an agent is to use it"
        )


async def test_the_model_in_the_settings_needs_its_library(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_packages(monkeypatch, "anthropic")
    server.push(rows("claude-x-20260101"))
    settings = Settings(_env_file=None, model="anthropic/claude-x")
    known = models(settings, anthropic_api_key="k", anthropic_base_url=server.root)
    assert (await known.find_default()).fault == (
        'Its library is missing. Install it with: pip install "ricordo[anthropic]"'
    )


async def test_a_model_name_without_its_version_date_is_known(server: ModelServer) -> None:
    known = models(anthropic_api_key="k", anthropic_base_url=server.root)
    server.push(Answer({"data": [{"id": "claude-sonnet-4-5-20250929", "max_input_tokens": 7}]}))
    info = await known.require("anthropic/claude-sonnet-4-5")
    assert (info.name, info.context_window) == ("claude-sonnet-4-5", 7)
    with pytest.raises(NotFound):
        await known.require("anthropic/claude-sonnet-4")
