"""The known providers, one row each.

The settings configure some of them; organizations add others with their own keys.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import SecretStr

from ricordo.domain.model import ModelInfo, ModelSettings, OrganizationProvider
from ricordo.errors import Invalid, ModelError, Unsupported
from ricordo.llm.addresses import require_callable
from ricordo.llm.openai_dialect import OPENAI_ADDRESS, is_openai, thinks_at_openai
from ricordo.settings import ProviderSettings

AdapterName = Literal["openai", "anthropic", "google", "bedrock", "vertex"]
"""The adapter of a provider; `openai` is for every server with OpenAI's chat completions."""

Api = Literal["auto", "chat", "responses"]
"""One of OpenAI's two formats; `auto` takes responses for reasoning models at OpenAI itself."""

AZURE_API_VERSION = "2024-10-21"  # the last version that Azure calls stable
_HIDDEN = "(hidden)"
# Shorter keys occur in ordinary words. Hiding them would garble a message and protect nothing.
_SHORTEST_KEY = 6
# The kinds of providers with Claude models, and the pattern of Claude models that can reason.
CLAUDES = ("anthropic", "bedrock")
_THINKING_CLAUDE = re.compile(r"claude-(3-7|(opus|sonnet|haiku)-[4-9])")
_USUAL_THINKING = 1_024  # tokens
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+){1,3}-\d{1,2}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The credentials for a provider: an API key, or for AWS an access key and its secret."""

    api_key: str | None = field(default=None, repr=False)
    access_key: str | None = field(default=None, repr=False)

    def without(self, error: ModelError) -> ModelError:
        """Return the error without the keys that its message quotes, and without the whole text.

        Args:
            error: The error of a call with these keys. It is returned if it quotes none of them.
        """
        message = str(error)
        for key in (self.api_key, self.access_key):
            if key and len(key) >= _SHORTEST_KEY:
                message = message.replace(key, _HIDDEN)
        if message == str(error):
            return error
        hidden = ModelError(error.kind, message, retry_after=error.retry_after, status=error.status)
        hidden.limit = error.limit
        hidden.is_judged = error.is_judged
        hidden.is_lasting = error.is_lasting
        hidden.discarded = error.discarded
        return hidden


@dataclass(frozen=True, slots=True)
class Provider:
    """A usable provider: its address, its key, and the name of its kind on the wire.

    `base_url` has no slash at its end (see `ProviderRow.address`).
    `api_version` is Azure's. `window` is the context window in tokens that an Ollama server was
    started with, if known. `location` belongs to Vertex AI, where `api_key` is a project. Bedrock's
    key has three lines: a region, an access key and its secret. A server on this machine is looked
    for at `list_path`. If `owner` is set, its list must name that owner.
    """

    name: str
    base_url: str
    endpoint_type: str
    adapter: AdapterName = "openai"
    api_key: str | None = field(default=None, repr=False)
    api: Api = "auto"
    api_version: str | None = None
    window: int | None = None
    location: str | None = None
    list_path: str = ""
    owner: str | None = None

    def uses_responses(self, model: str) -> bool:
        """Return whether calls of this model use OpenAI's responses, not its chat completions.

        Args:
            model: The name of the model at the provider.
        """
        if self.api == "auto":
            return is_openai(self.base_url) and thinks_at_openai(model)
        return self.api == "responses"


def with_usual_thinking(settings: ModelSettings, info: ModelInfo) -> ModelSettings:
    """Return a new agent's settings, with reasoning switched on for a Claude that can reason.

    The retired Letta V1 server did the same. Explicit settings stay.

    Args:
        settings: The settings that the creator of the agent chose.
        info: The agent's model.
    """
    is_chosen = settings.max_reasoning_tokens is not None or settings.reasoning_effort is not None
    if is_chosen or info.endpoint_type not in CLAUDES or not _THINKING_CLAUDE.search(info.name):
        return settings
    return replace(settings, max_reasoning_tokens=_USUAL_THINKING)


def local_server(
    name: str, port: int, list_path: str = "/v1/models", owner: str | None = None
) -> Provider:
    """Return a model server that may run on this machine.

    Args:
        name: The name of the provider, which is also its kind on the wire.
        port: The port that this kind of server usually listens on.
        list_path: The path of its list of models.
        owner: The owner that each model in the list must name, so that another program on this port
            is not taken for it; None skips this check.
    """
    return Provider(name, f"http://127.0.0.1:{port}/v1", name, list_path=list_path, owner=owner)


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A known provider.

    `key` and `url` name the settings that configure it. `type_when_added` is the type that an
    organization names to add the provider. "" means the provider's name. With None, organizations
    cannot add the provider. `local` is the server that is searched for on this machine. `is_server`
    marks another self-hosted server, for which no search is made.
    """

    name: str
    base_url: str = ""
    key: str | None = None
    url: str | None = None
    adapter: AdapterName = "openai"
    local: Provider | None = None
    is_server: bool = False
    type_when_added: str | None = ""

    @property
    def is_self_hosted(self) -> bool:
        return self.is_server or self.local is not None

    def address(self, url: str | None) -> str:
        """Return its address, with the path that this kind of server expects.

        Args:
            url: The address in the settings or of an organization; None or "" for the provider's
                public one.
        """
        if not url:
            return self.base_url
        url = url.rstrip("/")
        if self.is_self_hosted and not url.endswith("/v1"):
            return f"{url}/v1"
        return url


ROWS = (
    ProviderRow("openai", OPENAI_ADDRESS, "openai_api_key", "openai_base_url"),
    ProviderRow(
        "anthropic",
        "https://api.anthropic.com",
        "anthropic_api_key",
        "anthropic_base_url",
        "anthropic",
    ),
    ProviderRow(
        "google_ai", "https://generativelanguage.googleapis.com", "gemini_api_key", adapter="google"
    ),
    ProviderRow("azure", "", "azure_api_key", "azure_base_url"),
    ProviderRow("bedrock", "", "aws_region", adapter="bedrock"),
    ProviderRow(
        "google_vertex", "", "google_cloud_project", adapter="vertex", type_when_added=None
    ),
    ProviderRow("groq", "https://api.groq.com/openai/v1", "groq_api_key"),
    ProviderRow("deepseek", "https://api.deepseek.com/v1", "deepseek_api_key"),
    ProviderRow("xai", "https://api.x.ai/v1", "xai_api_key"),
    ProviderRow("mistral", "https://api.mistral.ai/v1", "mistral_api_key"),
    ProviderRow("together", "https://api.together.xyz/v1", "together_api_key"),
    ProviderRow("openrouter", "https://openrouter.ai/api/v1", "openrouter_api_key"),
    # Ports 8000 and 8080 may belong to any program, even to Ricordo. A server at such a port is
    # used only if its model list names it as the owner of the models.
    ProviderRow("ollama", url="ollama_base_url", local=local_server("ollama", 11434, "/api/tags")),
    ProviderRow(
        "lmstudio",
        url="lmstudio_base_url",
        local=local_server("lmstudio", 1234),
        type_when_added="lmstudio_openai",
    ),
    ProviderRow("vllm", url="vllm_api_base", local=local_server("vllm", 8000, owner="vllm")),
    ProviderRow(
        "llamacpp",
        url="llamacpp_base_url",
        local=local_server("llamacpp", 8080, owner="llamacpp"),
        type_when_added=None,
    ),
    # Only organizations add these providers. Organizations also give the address, if the table has
    # none.
    ProviderRow("sglang", is_server=True),
    ProviderRow("cerebras", "https://api.cerebras.ai/v1"),
    ProviderRow("fireworks", "https://api.fireworks.ai/inference/v1"),
    ProviderRow("hugging-face", "https://router.huggingface.co/v1"),
    ProviderRow("moonshot", "https://api.moonshot.ai/v1"),
    ProviderRow("zai", "https://api.z.ai/api/paas/v4"),
    ProviderRow("baseten"),
    ProviderRow("minimax"),
    ProviderRow("moonshot_coding"),
    ProviderRow("zai_coding"),
)
_BY_NAME = {row.name: row for row in ROWS}
LOCAL_SERVERS = tuple(row.local for row in ROWS if row.local)
_ROWS_BY_TYPE = {
    row.type_when_added or row.name: row for row in ROWS if row.type_when_added is not None
}
_NEVER_ADDED = {
    "google_vertex": "Set GOOGLE_CLOUD_PROJECT on the server, or use google_ai with a key.",
    "chatgpt_oauth": "Use openai with a key.",
    "letta": "Its service is retired.",
}


def configured(settings: ProviderSettings) -> list[Provider]:
    """Return the providers that the settings configure, in the order of the table.

    Args:
        settings: The keys and addresses of providers.
    """
    return [provider for row in ROWS if (provider := _configured(row, settings))]


def _configured(row: ProviderRow, settings: ProviderSettings) -> Provider | None:
    key = _setting(settings, row.key)
    url = _setting(settings, row.url)
    # The name `openai` is also used for any server that speaks its format, with or without a key.
    is_set = key or (url and (row.is_self_hosted or row.name == "openai"))
    if not is_set or not (url or row.base_url or row.adapter in ("bedrock", "vertex")):
        return None
    provider = Provider(
        row.name,
        row.address(url),
        row.name,
        row.adapter,
        key,
        window=settings.ollama_context_length,
        location=settings.google_cloud_location,
    )
    if row.name == "openai":
        return replace(provider, api=settings.openai_api or "auto")
    if row.name == "azure":
        # Azure's newer address contains the version in its path.
        if provider.base_url.endswith("/v1"):
            version = None
        else:
            version = AZURE_API_VERSION
        return replace(provider, api_version=settings.azure_api_version or version, api="chat")
    return provider


def _setting(settings: ProviderSettings, name: str | None) -> str | None:
    setting = getattr(settings, name, None) if name else None
    if isinstance(setting, SecretStr):
        return setting.get_secret_value()
    return setting


def address_of(name: str) -> str:
    """Return the address of a public service.

    Args:
        name: The name of a provider.

    Returns:
        The address; "" for other servers and unknown providers.
    """
    if name in _BY_NAME:
        return _BY_NAME[name].base_url
    return ""


def variables_of(provider: Provider) -> str:
    """Return the variable that configures this provider, as the subject of a sentence.

    A plugin's provider has no variable, so its name is returned after "The provider".

    Args:
        provider: A provider of the settings or of a plugin.
    """
    row = _BY_NAME.get(provider.name)
    name = row and (row.key if provider.api_key else row.url)
    if name:
        return name.upper()
    return f"The provider {provider.name}"


def what_to_set(name: str) -> str:
    """Return a sentence with the settings that configure this provider.

    It is empty for an unknown provider, and for one that only organizations can add.

    Args:
        name: The name of a provider.
    """
    row = _BY_NAME.get(name)
    if row is None:
        return ""
    url = None if row.base_url else row.url  # a public service's address is known
    missing = [setting.upper() for setting in (row.key, url) if setting]
    if not missing:
        return ""
    if row.local:
        local_advice = ", or start it on this machine"
    else:
        local_advice = ""
    return f"Set {' and '.join(missing)}{local_advice}."


def added_provider(provider: OrganizationProvider, keys: Keys) -> Provider:
    """Return an organization's provider in the form for calls.

    Args:
        provider: The stored provider.
        keys: Its decrypted keys; empty ones if no call is made.

    Raises:
        Unsupported: Providers of this type cannot be called here.
    """
    row = _row_of_type(provider.provider_type)
    key = keys.api_key
    if row.adapter == "bedrock":
        key = "\n".join((provider.region or "", keys.access_key or "", keys.api_key or ""))
    return Provider(
        provider.name,
        row.address(provider.base_url),
        provider.provider_type,
        row.adapter,
        key,
        api="auto" if row.name == "openai" else "chat",
        api_version=provider.api_version,
    )


def _require_bedrock(provider: OrganizationProvider, keys: Keys) -> None:
    if not (keys.access_key and provider.region and _REGION.fullmatch(provider.region)):
        raise Invalid(
            "A provider of type bedrock needs access_key (the id of the access key), api_key (its "
            "secret) and region, such as eu-central-1."
        )
    if provider.base_url:
        raise Invalid(
            "A provider of type bedrock takes no base_url: its region sets the address. Leave "
            "base_url out."
        )


def require_usable(provider: OrganizationProvider, keys: Keys) -> None:
    """Refuse a provider with which no call could be made, and name the missing setting.

    Args:
        provider: The provider before it is stored.
        keys: Its keys.

    Raises:
        Invalid: A key, the address or the region is missing or malformed, or a provider of type
            bedrock has an address.
        Unsupported: Providers of this type cannot be called here.
    """
    row = _row_of_type(provider.provider_type)
    if not row.is_self_hosted and not keys.api_key:
        raise Invalid(f"A provider of type {provider.provider_type} needs api_key.")
    for key in (keys.api_key, keys.access_key):
        if key and not all("!" <= sign <= "~" for sign in key):
            raise Invalid("A key must be printable ASCII without spaces and line breaks.")
    if row.adapter == "bedrock":
        _require_bedrock(provider, keys)
    elif not (provider.base_url or row.base_url):
        raise Invalid(f"A provider of type {provider.provider_type} needs base_url.")
    elif provider.base_url and not _is_address(provider.base_url):
        raise Invalid(
            "base_url must be an address such as https://host/path, without a user, a question "
            "mark or a hash."
        )


def _row_of_type(provider_type: str) -> ProviderRow:
    row = _ROWS_BY_TYPE.get(provider_type)
    if row is None:
        advice = _NEVER_ADDED.get(provider_type, f"Choose one of: {', '.join(_ROWS_BY_TYPE)}.")
        raise Unsupported(f"Providers of type {provider_type} cannot be added here. {advice}")
    return row


def _is_address(url: str) -> bool:
    try:
        require_callable(url, allow_private=True)
    except Invalid:
        return False
    return "?" not in url and "#" not in url
