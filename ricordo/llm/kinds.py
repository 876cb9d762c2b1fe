"""The types of providers that an organisation can bring, and how a stored one becomes one that can be called."""

import re
from dataclasses import dataclass

import httpx2

from ricordo.domain.model import ModelInfo
from ricordo.domain.provider import OrganizationProvider
from ricordo.errors import Invalid, Unsupported
from ricordo.llm.chat import ChatModel
from ricordo.llm.connections import Connections
from ricordo.llm.keys import Keys
from ricordo.llm.listing import LISTING_SECONDS, list_models
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.openai_responses import OpenAIResponsesModel
from ricordo.llm.policy import CallPolicy, error_from_status, error_from_transport
from ricordo.llm.provider_table import AdapterName, Api, Provider, with_path
from ricordo.llm.providers import anthropic_model, bedrock_model, google_model, vertex_model


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a type means: its own address, else the caller gives one, and whether it is any use without a key."""

    base_url: str = ""
    adapter: AdapterName = "openai"
    path: str = ""
    needs_key: bool = True


_KINDS = {
    "openai": _Kind("https://api.openai.com/v1"),
    "anthropic": _Kind("https://api.anthropic.com", "anthropic"),
    "google_ai": _Kind("https://generativelanguage.googleapis.com", "google"),
    "bedrock": _Kind(adapter="bedrock"),
    "groq": _Kind("https://api.groq.com/openai/v1"),
    "deepseek": _Kind("https://api.deepseek.com/v1"),
    "xai": _Kind("https://api.x.ai/v1"),
    "mistral": _Kind("https://api.mistral.ai/v1"),
    "together": _Kind("https://api.together.xyz/v1"),
    "openrouter": _Kind("https://openrouter.ai/api/v1"),
    "cerebras": _Kind("https://api.cerebras.ai/v1"),
    "fireworks": _Kind("https://api.fireworks.ai/inference/v1"),
    "hugging-face": _Kind("https://router.huggingface.co/v1"),
    "moonshot": _Kind("https://api.moonshot.ai/v1"),
    "zai": _Kind("https://api.z.ai/api/paas/v4"),
    # These speak OpenAI's chat completions at an address that the caller gives.
    "azure": _Kind(),
    "baseten": _Kind(),
    "minimax": _Kind(),
    "moonshot_coding": _Kind(),
    "zai_coding": _Kind(),
    "ollama": _Kind(path="/v1", needs_key=False),
    "lmstudio_openai": _Kind(path="/v1", needs_key=False),
    "vllm": _Kind(path="/v1", needs_key=False),
    "sglang": _Kind(path="/v1", needs_key=False),
}
_ELSEWHERE = {
    "google_vertex": "Set GOOGLE_CLOUD_PROJECT on the server, or use google_ai with a key.",
    "chatgpt_oauth": "Use openai with a key.",
    "letta": "Its service is retired.",
}
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+){1,3}-\d{1,2}")


def require_usable(provider: OrganizationProvider, keys: Keys) -> None:
    """Raise Invalid or Unsupported with what is missing where no call could be made."""
    kind = _kind(provider.provider_type)
    if kind.needs_key and not keys.api_key:
        raise Invalid(f"A provider of type {provider.provider_type} needs api_key.")
    for key in (keys.api_key, keys.access_key):
        if key and not all("!" <= sign <= "~" for sign in key):
            raise Invalid("A key must be letters, digits and signs of ASCII, without a space or the end of a line.")
    if kind.adapter == "bedrock":
        if not (keys.access_key and provider.region and _REGION.fullmatch(provider.region)):
            raise Invalid(
                "A provider of type bedrock needs access_key (the id of the access key), api_key (its secret) and region, "
                "as eu-central-1."
            )
        if provider.base_url:
            raise Invalid("A provider of type bedrock takes no base_url: its region says where it is.")
    elif not (provider.base_url or kind.base_url):
        raise Invalid(f"A provider of type {provider.provider_type} needs base_url.")
    elif provider.base_url and not _is_address(provider.base_url):
        raise Invalid("base_url must be an address as https://host/path, without a user, a question mark or a hash.")


def provider_of(provider: OrganizationProvider, keys: Keys) -> Provider:
    """The provider as it is called. Raises Unsupported for a type that cannot be called here."""
    kind = _kind(provider.provider_type)
    base_url = with_path(provider.base_url, kind.path) if provider.base_url else kind.base_url
    # With AWS both halves of the key and the region travel as one.
    key = (
        "\n".join((provider.region or "", keys.access_key or "", keys.api_key or ""))
        if kind.adapter == "bedrock"
        else keys.api_key
    )
    api: Api = "auto" if provider.provider_type == "openai" else "chat"
    return Provider(provider.name, base_url, provider.provider_type, kind.adapter, key, api, provider.api_version)


def build(provider: Provider, info: ModelInfo, connections: Connections, policy: CallPolicy) -> ChatModel:
    """A model of this provider."""
    match provider.adapter:
        case "anthropic":
            return anthropic_model(info, connections, policy, api_key=provider.api_key)
        case "google":
            return google_model(info, connections, policy, api_key=provider.api_key)
        case "bedrock":
            # A region alone: with the credentials that AWS's own tools use.
            region, access_key, secret_key = (*(provider.api_key or "").split("\n"), "", "")[:3]
            keys = {"access_key": access_key or None, "secret_key": secret_key or None}
            return bedrock_model(info, policy, region=region, **keys)
        case "vertex":
            return vertex_model(info, connections, policy, project=provider.api_key or "", location=provider.location)
        case _:
            make = OpenAIResponsesModel if provider.uses_responses(info.name) else OpenAICompatibleModel
            return make(info, connections, policy, api_key=provider.api_key, api_version=provider.api_version)


async def models_of(client: httpx2.AsyncClient, provider: Provider) -> tuple[ModelInfo, ...]:
    """The chat models of a provider, which also proves its key. Raises ModelError, Unsupported where it gives no list."""
    if provider.adapter == "bedrock":
        raise Unsupported(
            "Bedrock gives no list of models here: its keys prove themselves when a model is first asked."
        )
    if provider.endpoint_type == "openrouter":
        await _require_key(client, provider)
    return (await list_models(client, provider)).chat


async def _require_key(client: httpx2.AsyncClient, provider: Provider) -> None:
    # OpenRouter shows its list to anybody, so the list proves no key.
    headers = {"authorization": f"Bearer {provider.api_key}"}
    try:
        response = await client.get(f"{provider.base_url}/key", headers=headers, timeout=LISTING_SECONDS)
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
        raise error_from_transport(provider.name, error) from error
    if response.status_code in (401, 403):
        raise error_from_status(provider.name, response.status_code, response.content, response.headers)


def _kind(provider_type: str) -> _Kind:
    kind = _KINDS.get(provider_type)
    if kind is None:
        advice = _ELSEWHERE.get(provider_type, f"Choose one of: {', '.join(_KINDS)}.")
        raise Unsupported(f"Providers of type {provider_type} cannot be added here. {advice}")
    return kind


def _is_address(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
        has_port = parsed.port is None or 0 < parsed.port < 65536
    except (httpx2.InvalidURL, ValueError):
        return False
    plain = not (parsed.userinfo or parsed.query or parsed.fragment) and url.isprintable() and " " not in url
    return parsed.scheme in ("http", "https") and bool(parsed.host) and has_port and plain
