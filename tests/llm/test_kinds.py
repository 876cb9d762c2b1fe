"""Which types of providers can be brought, and what each needs."""

from typing import Any

import pytest

from ricordo.domain.model import OrganizationProvider
from ricordo.errors import Invalid, Unsupported
from ricordo.llm.keys import Keys
from ricordo.llm.provider_table import brought_provider, require_usable

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
def test_what_has_all_it_needs_is_usable(given: OrganizationProvider, keys: Keys) -> None:
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
            for url in ("ftp://x", "https://", "https://u:p@x/", "https://x/?a=1", "https://x/#a", "http://x:0", "x y")
        ),
    ],
)
def test_what_lacks_something_is_told_so(given: OrganizationProvider, keys: Keys, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        require_usable(given, keys)


@pytest.mark.parametrize("provider_type", ["google_vertex", "chatgpt_oauth", "letta", "nobody"])
def test_a_type_that_cannot_be_brought_says_what_to_do(provider_type: str) -> None:
    with pytest.raises(Unsupported, match=rf"type {provider_type} cannot be added here\. \w+"):
        require_usable(provider(provider_type), Keys("k"))


def test_a_provider_is_called_where_its_type_says_or_where_it_was_told() -> None:
    assert brought_provider(provider("groq"), Keys("k")).base_url == "https://api.groq.com/openai/v1"
    assert brought_provider(provider("groq", base_url="https://own/v1"), Keys("k")).base_url == "https://own/v1"
    assert (
        brought_provider(provider("ollama", base_url="http://host:11434/"), Keys()).base_url == "http://host:11434/v1"
    )
    assert "k-e-y" not in repr(brought_provider(provider("groq"), Keys("k-e-y")))
