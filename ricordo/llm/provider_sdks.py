"""Models of all providers: chat completions by our own adapter, the others by pydantic-ai over SDKs that are imported late."""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.errors import Unavailable
from ricordo.llm.adaptation import Adaptation, LearnedModel, lessons_of
from ricordo.llm.addresses import MAX_CONNECTIONS, Connections
from ricordo.llm.chat import ChatModel
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.openai_dialect import is_providers_own
from ricordo.llm.policy import CONNECT_TIMEOUT, CallPolicy, answer_by_policy
from ricordo.llm.provider_table import Provider
from ricordo.llm.special_tokens import with_broken_tokens, with_whole_tokens

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from ricordo.llm.providers import ProviderCalls

VERTEX_LOCATION = "us-central1"
# By adapter: the module that an SDK brings, and the extra that installs it.
_LIBRARIES = {
    "openai": ("openai", "openai"),
    "anthropic": ("anthropic", "anthropic"),
    "google": ("google.genai", "google"),
    "vertex": ("google.genai", "google"),
    "bedrock": ("boto3", "bedrock"),
}


class ProviderModel:
    """A chat model that pydantic-ai knows how to ask. `build` makes it, at the first question."""

    def __init__(
        self,
        info: ModelInfo,
        policy: CallPolicy,
        build: "Callable[[], Model[Any]]",
        learned: LearnedModel | None = None,
    ) -> None:
        self.info = info
        """Which model this is."""
        self.learned = learned or lessons_of(info)
        """What it was learned to need."""
        self._policy = policy
        self._build = build
        self._calls: ProviderCalls | None = None
        self._building = asyncio.Lock()
        # A server that an operator names may run an open model behind a provider's format.
        is_named = info.endpoint_type in ("openai", "anthropic") and not is_providers_own(
            info.endpoint or ""
        )
        self._reads_special_tokens = is_named

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks where `request.stream` asks for them, and last of all the whole reply."""
        async with self._building:
            if self._calls is None:
                # The import takes a second or two: other turns go on meanwhile.
                self._calls = await asyncio.to_thread(self._open)
        breaks = self._reads_special_tokens
        request = with_broken_tokens(request) if breaks else request
        adaptation = Adaptation(self.learned, self._calls.body, may_guess=False)
        attempt = partial(self._calls.attempt, adaptation)
        async for item in answer_by_policy(self._policy, request, attempt, adaptation):
            yield with_whole_tokens(item) if breaks and isinstance(item, ModelReply) else item

    def _open(self) -> "ProviderCalls":
        model = self._build()
        from ricordo.llm.providers import ProviderCalls

        return ProviderCalls(self.info, self._policy, model)


def build_model(
    provider: Provider,
    info: ModelInfo,
    connections: Connections,
    policy: CallPolicy,
    learned: LearnedModel | None = None,
) -> ChatModel:
    """Return a model of this provider. Where it needs an SDK, asking it raises Unavailable without its extra."""
    if provider.adapter == "openai" and not provider.uses_responses(info.name):
        key, version = provider.api_key, provider.api_version
        return OpenAICompatibleModel(
            info, connections, policy, api_key=key, api_version=version, learned=learned
        )
    build = partial(_BUILDERS[provider.adapter], provider, info, connections, policy)
    return ProviderModel(info, policy, build, learned)


def _openai(
    provider: Provider, info: ModelInfo, connections: Connections, _policy: CallPolicy
) -> "Model[Any]":
    need("openai", "openai", " or set OPENAI_API=chat for chat completions")
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=info.endpoint, **_client_settings(provider, connections))
    # The variables of the server's environment are not for keys that others bring.
    client.organization = client.project = None
    return OpenAIResponsesModel(info.name, provider=OpenAIProvider(openai_client=client))


def _anthropic(
    provider: Provider, info: ModelInfo, connections: Connections, _policy: CallPolicy
) -> "Model[Any]":
    need("anthropic", "anthropic")
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    base_url = (info.endpoint or "").removesuffix("/").removesuffix("/v1")
    client = AsyncAnthropic(base_url=base_url, **_client_settings(provider, connections))
    return AnthropicModel(info.name, provider=AnthropicProvider(anthropic_client=client))


def _client_settings(provider: Provider, connections: Connections) -> dict[str, Any]:
    return {
        "api_key": provider.api_key or "none",
        "http_client": connections.client(),
        "timeout": connections.timeout,
        "max_retries": 0,
    }


def _google(
    provider: Provider, info: ModelInfo, connections: Connections, _policy: CallPolicy
) -> "Model[Any]":
    need("google.genai", "google")
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider
    from pydantic_ai.providers.google_cloud import GoogleCloudProvider

    shared: dict[str, Any] = {"base_url": info.endpoint, "http_client": connections.client()}
    if provider.adapter == "google":
        return GoogleModel(info.name, provider=GoogleProvider(api_key=provider.api_key, **shared))
    # With the credentials that Google's own tools use.
    location = provider.location or VERTEX_LOCATION
    return GoogleModel(
        info.name,
        provider=GoogleCloudProvider(project=provider.api_key or "", location=location, **shared),
    )


def _bedrock(
    provider: Provider, info: ModelInfo, _connections: Connections, policy: CallPolicy
) -> "Model[Any]":
    boto3 = need("boto3", "bedrock")
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    config = need("botocore.config", "bedrock").Config(
        read_timeout=policy.timeout,
        connect_timeout=min(CONNECT_TIMEOUT, policy.timeout),
        retries={"total_max_attempts": 1},
        max_pool_connections=MAX_CONNECTIONS,
    )
    # A region alone: with the credentials that AWS's own tools use.
    region, access_key, secret_key = (*(provider.api_key or "").split("\n"), "", "")[:3]
    # A session of its own: boto3's shared one may not be used by several threads at once.
    session = boto3.Session(
        aws_access_key_id=access_key or None,
        aws_secret_access_key=secret_key or None,
        region_name=region,
    )
    client = session.client("bedrock-runtime", config=config, endpoint_url=info.endpoint)
    return BedrockConverseModel(info.name, provider=BedrockProvider(bedrock_client=client))


_BUILDERS: Mapping[str, Callable[[Provider, ModelInfo, Connections, CallPolicy], "Model[Any]"]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
    "vertex": _google,
    "bedrock": _bedrock,
}


def missing_extra(provider: Provider, model: str) -> str | None:
    """Return the extra that has to be installed before this model can be asked; None where it can."""
    if provider.adapter == "openai" and not provider.uses_responses(model):
        return None
    module, extra = _LIBRARIES[provider.adapter]
    try:
        return None if find_spec(module) else extra
    except ModuleNotFoundError:  # a package around it is missing
        return extra


def install_command(extra: str | None) -> str:
    return f'pip install "ricordo[{extra}]"'


def need(module: str, extra: str, or_else: str = "") -> Any:
    """The module of an optional package; raises Unavailable with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"{install_command(extra)}{or_else}"
        raise Unavailable(
            f"Models of this provider need its library. Install it with: {install}"
        ) from error
