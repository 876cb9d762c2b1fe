"""Which providers there are, which of them the settings configure, and what is known of their models by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import SecretStr

from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW
from ricordo.llm.openai_dialect import is_openai, thinks_at_openai
from ricordo.settings import ProviderSettings

AdapterName = Literal["openai", "anthropic", "google", "bedrock", "vertex"]
"""Which code speaks to a provider; `openai` stands for every server with OpenAI's chat completions."""


Api = Literal["auto", "chat", "responses"]
"""Which of OpenAI's two formats is spoken; `auto` takes responses for OpenAI's own models that think."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider that may be called: its address, its key, and the name of its kind on the wire.

    `api_version` is Azure's; `window` is what an Ollama server was started with, in tokens, where that is known;
    `location` is Vertex AI's, whose `api_key` is a project.
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

    def uses_responses(self, model: str) -> bool:
        """Whether one of its models is asked by the responses API."""
        if self.api == "auto":
            return is_openai(self.base_url) and thinks_at_openai(model)
        return self.api == "responses"


AZURE_API_VERSION = "2024-10-21"  # the last one that Azure calls stable


@dataclass(frozen=True, slots=True)
class _Row:
    """A provider we know: it is configured by its key, or where `url_alone` is set by its address."""

    name: str
    base_url: str = ""
    key: str | None = None
    url: str | None = None
    url_alone: bool = False
    endpoint_type: str | None = None
    adapter: AdapterName = "openai"
    path: str = ""


_ROWS = (
    _Row("openai", "https://api.openai.com/v1", "openai_api_key", "openai_base_url", url_alone=True),
    _Row("anthropic", "https://api.anthropic.com", "anthropic_api_key", "anthropic_base_url", adapter="anthropic"),
    _Row(
        "google_ai",
        "https://generativelanguage.googleapis.com",
        "gemini_api_key",
        endpoint_type="google_ai",
        adapter="google",
    ),
    _Row("azure", key="azure_api_key", url="azure_base_url"),
    _Row("bedrock", key="aws_region", adapter="bedrock"),
    _Row("google_vertex", key="google_cloud_project", adapter="vertex"),
    _Row("groq", "https://api.groq.com/openai/v1", "groq_api_key"),
    _Row("deepseek", "https://api.deepseek.com/v1", "deepseek_api_key"),
    _Row("xai", "https://api.x.ai/v1", "xai_api_key"),
    _Row("mistral", "https://api.mistral.ai/v1", "mistral_api_key"),
    _Row("together", "https://api.together.xyz/v1", "together_api_key"),
    _Row("openrouter", "https://openrouter.ai/api/v1", "openrouter_api_key"),
    _Row("ollama", url="ollama_base_url", url_alone=True, path="/v1"),
    _Row("lmstudio", url="lmstudio_base_url", url_alone=True, path="/v1"),
    _Row("vllm", url="vllm_api_base", url_alone=True, path="/v1"),
    _Row("llamacpp", url="llamacpp_base_url", url_alone=True, path="/v1"),
)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server that may run on this machine. `owner` is how it names itself in its list, where it does; `window`
    is what it was started with, where that is known.
    """

    name: str
    port: int
    list_path: str = "/v1/models"
    owner: str | None = None
    window: int | None = None


# Ports 8000 and 8080 are anybody's (a Ricordo may listen there itself), so those servers must say who they are.
LOCAL_SERVERS = (
    LocalServer("ollama", 11434, "/api/tags"),
    LocalServer("lmstudio", 1234),
    LocalServer("vllm", 8000, owner="vllm"),
    LocalServer("llamacpp", 8080, owner="llamacpp"),
)

# Context windows by the beginning of a model's name; the longest match counts. In tokens, as their makers state them.
_WINDOWS = {
    "gpt-3.5": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude-": 200_000,
    "gemini-": 1_048_576,
    "deepseek-": 128_000,
    "grok-3": 131_072,
    "grok-4": 256_000,
    "mistral-": 128_000,
    "mistral-small": 32_000,
    "codestral": 256_000,
    "llama3": 8_192,
    "llama-3": 8_192,
    "llama3.1": 131_072,
    "llama3.2": 131_072,
    "llama3.3": 131_072,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "qwen2.5": 32_768,
    "qwen3": 40_960,
    "gemma2": 8_192,
    "gemma3": 131_072,
    "phi3": 131_072,
    "phi4": 16_384,
}


def configured(settings: ProviderSettings) -> list[Provider]:
    """The providers whose key or address is set; no other is ever called."""
    return [provider for row in _ROWS if (provider := _configured(row, settings))]


def _configured(row: _Row, settings: ProviderSettings) -> Provider | None:
    key, url = _value(settings, row.key), _value(settings, row.url)
    if not (key or (row.url_alone and url)) or not (url or row.base_url or row.adapter in ("bedrock", "vertex")):
        return None
    base_url = with_path(url, row.path) if url else row.base_url
    found = Provider(row.name, base_url, row.endpoint_type or row.name, row.adapter, key)
    match row.name:
        case "openai":
            return replace(found, api=settings.openai_api or "auto")
        case "azure":
            return replace(found, api_version=settings.azure_api_version or _azure_version(base_url), api="chat")
        case "ollama":
            return replace(found, window=settings.ollama_context_length)
        case "google_vertex":
            return replace(found, location=settings.google_cloud_location)
        case _:
            return found


def _azure_version(base_url: str) -> str | None:
    # Azure's newer address has its version in its path.
    return None if base_url.endswith("/v1") else AZURE_API_VERSION


def _value(settings: ProviderSettings, name: str | None) -> str | None:
    value = getattr(settings, name, None) if name else None
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def with_path(url: str, path: str) -> str:
    """The address with the path its kind of server expects, whether or not it was written out."""
    url = url.rstrip("/")
    return url if not path or url.endswith(path) else url + path


def local_provider(server: LocalServer) -> Provider:
    """The provider that a server found on this machine becomes."""
    return Provider(server.name, f"http://127.0.0.1:{server.port}/v1", server.name, window=server.window)


def local_servers(servers: Sequence[LocalServer], settings: ProviderSettings) -> tuple[LocalServer, ...]:
    """The servers, with what the settings say of how they were started."""
    window = settings.ollama_context_length
    return tuple(replace(server, window=window) if server.name == "ollama" else server for server in servers)


def known_window(model: str) -> int:
    """The context window of a model by its name, in tokens."""
    name = model.rpartition("/")[2].lower()
    best = max((prefix for prefix in _WINDOWS if name.startswith(prefix)), key=len, default="")
    return _WINDOWS.get(best, DEFAULT_CONTEXT_WINDOW)
