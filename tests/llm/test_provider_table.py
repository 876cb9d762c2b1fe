"""The providers that settings configure."""

from typing import Any

import pytest

from ricordo.domain.model import OrganizationProvider
from ricordo.errors import Invalid, Unsupported
from ricordo.llm.provider_table import (
    AZURE_API_VERSION,
    Keys,
    Provider,
    added_provider,
    configured,
    require_usable,
)
from ricordo.settings import ProviderSettings

NONE: dict[str, Any] = dict.fromkeys(ProviderSettings.model_fields)


def names(**settings: str) -> dict[str, Provider]:
    found = configured(ProviderSettings(_env_file=None, **NONE | settings))
    return {provider.name: provider for provider in found}


def test_a_key_configures_only_its_provider() -> None:
    for name in "openai anthropic gemini openrouter groq deepseek xai mistral together".split():
        (found,) = names(**{f"{name}_api_key": "secret"}).values()
        assert found.name == found.endpoint_type == name.replace("gemini", "google_ai")
        assert found.adapter == {"anthropic": name, "gemini": "google"}.get(name, "openai")
        assert found.api_key == "secret"
        assert found.base_url.startswith("https://")


def test_a_custom_base_url_keeps_openais_name_and_needs_no_key() -> None:
    provider = names(openai_base_url="http://127.0.0.1:9000/v1/")["openai"]
    assert (provider.base_url, provider.api_key) == ("http://127.0.0.1:9000/v1", None)


@pytest.mark.parametrize(
    "setting", ["ollama_base_url", "lmstudio_base_url", "vllm_api_base", "llamacpp_base_url"]
)
def test_a_base_url_configures_a_server_with_or_without_a_path(setting: str) -> None:
    for path in ("", "/", "/v1", "/v1/"):
        (found,) = names(**{setting: f"http://host:1{path}"}).values()
        assert (found.name, found.base_url) == (setting.partition("_")[0], "http://host:1/v1")


def test_a_key_is_never_printed() -> None:
    assert "secret" not in repr(names(openai_api_key="secret"))


def test_openais_reasoning_models_use_the_responses_api_unless_set_otherwise() -> None:
    own = Provider("openai", "https://api.openai.com/v1", "openai")
    assert [
        own.uses_responses(name) for name in ("o4-mini", "gpt-5.1", "gpt-4.1", "gpt-5-chat-latest")
    ] == [
        True,
        True,
        False,
        False,
    ]
    assert Provider("openai", "https://eu.api.openai.com/v1", "openai").uses_responses("gpt-5")
    assert not Provider("openai", "http://127.0.0.1:1/v1", "openai").uses_responses("gpt-5")
    assert not Provider("openai", "https://api.openai.com.example.org/v1", "openai").uses_responses(
        "gpt-5"
    )
    assert not Provider("openai", own.base_url, "openai", api="chat").uses_responses("gpt-5")
    assert Provider("openai", "http://127.0.0.1:1/v1", "openai", api="responses").uses_responses(
        "any"
    )


def test_azure_needs_a_base_url_and_has_a_default_version() -> None:
    keyed: dict[str, Any] = dict.fromkeys(ProviderSettings.model_fields) | {"azure_api_key": "k"}
    assert configured(ProviderSettings(_env_file=None, **keyed)) == []
    address = {"azure_base_url": "https://x.openai.azure.com"}
    (azure,) = configured(ProviderSettings(_env_file=None, **keyed | address))
    assert (azure.name, azure.endpoint_type, azure.api_version) == (
        "azure",
        "azure",
        AZURE_API_VERSION,
    )
    (azure,) = configured(
        ProviderSettings(
            _env_file=None, **keyed | address | {"azure_api_version": "2025-01-01-preview"}
        )
    )
    assert azure.api_version == "2025-01-01-preview"
    address = {"azure_base_url": "https://x.openai.azure.com/openai/v1"}
    (azure,) = configured(ProviderSettings(_env_file=None, **keyed | address))
    assert azure.api_version is None


AWS = Keys("secret", "AKIA")


def provider(provider_type: str, **fields: Any) -> OrganizationProvider:
    return OrganizationProvider("provider-1", "org-1", "mine", provider_type, 0, 0, **fields)


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (provider("openai"), Keys("k")),
        (provider("anthropic"), Keys("k")),
        (provider("google_ai"), Keys("k")),
        (provider("azure", base_url="https://a.openai.azure.com"), Keys("k")),
        (provider("ollama", base_url="http://host:11434"), Keys()),
        (provider("bedrock", region="us-gov-west-1"), AWS),
    ],
)
def test_a_provider_with_all_required_fields_is_usable(
    given: OrganizationProvider, keys: Keys
) -> None:
    require_usable(given, keys)


@pytest.mark.parametrize(
    ("given", "keys", "words"),
    [
        (provider("openai"), Keys(), "needs api_key"),
        (provider("openai"), Keys("two words"), "ASCII"),
        (provider("openai"), Keys("line\r\nx-evil: 1"), "ASCII"),
        (provider("azure"), Keys("k"), "needs base_url"),
        (provider("ollama"), Keys(), "needs base_url"),
        (provider("bedrock"), AWS, "region"),
        (provider("bedrock", region="eu-west-1"), Keys("secret"), "access_key"),
        (provider("bedrock", region="evil.example/#-1"), AWS, "region"),
        (provider("bedrock", region="eu-west-1", base_url="https://x"), AWS, "no base_url"),
        *(
            (provider("openai", base_url=url), Keys("k"), "base_url must be an address")
            for url in (
                "ftp://x",
                "https://",
                "https://u:p@x/",
                "https://x/?a=1",
                "https://x/#a",
                "http://x:0",
                "x y",
            )
        ),
    ],
)
def test_a_provider_that_lacks_a_field_is_refused_by_name(
    given: OrganizationProvider, keys: Keys, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        require_usable(given, keys)


@pytest.mark.parametrize("provider_type", ["google_vertex", "chatgpt_oauth", "letta", "nobody"])
def test_a_provider_type_that_cannot_be_added_is_refused_with_what_to_do(
    provider_type: str,
) -> None:
    with pytest.raises(Unsupported, match=rf"type {provider_type} cannot be added here\. \w+"):
        require_usable(provider(provider_type), Keys("k"))


def test_a_providers_default_address_can_be_overridden() -> None:
    assert added_provider(provider("groq"), Keys("k")).base_url == "https://api.groq.com/openai/v1"
    assert (
        added_provider(provider("groq", base_url="https://own/v1"), Keys("k")).base_url
        == "https://own/v1"
    )
    assert (
        added_provider(provider("ollama", base_url="http://host:11434/"), Keys()).base_url
        == "http://host:11434/v1"
    )
    assert "k-e-y" not in repr(added_provider(provider("groq"), Keys("k-e-y")))
