"""Models of all providers.

Chat completions use our own adapter. The others use pydantic-ai over vendors' SDKs, which are
imported at the first call.
"""

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
    """A chat model that pydantic-ai calls.

    `build` makes pydantic-ai's model at the first request.
    """

    def __init__(
        self,
        info: ModelInfo,
        policy: CallPolicy,
        build: "Callable[[], Model[Any]]",
        learned: LearnedModel | None = None,
    ) -> None:
        self.info = info
        self.learned = learned or lessons_of(info)
        """The dialect learned from the server's refusals."""
        self._policy = policy
        self._build = build
        self._calls: ProviderCalls | None = None
        self._building = asyncio.Lock()
        # A server that an operator configured may run an open model behind a provider's format.
        self._reads_special_tokens = info.endpoint_type in (
            "openai",
            "anthropic",
        ) and not is_providers_own(info.endpoint or "")

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks if `request.stream` is set, and finally the whole reply."""
        async with self._building:
            if self._calls is None:
                # The import takes one or two seconds and must not block other turns.
                self._calls = await asyncio.to_thread(self._open)
        breaks_tokens = self._reads_special_tokens
        if breaks_tokens:
            request = with_broken_tokens(request)
        adaptation = Adaptation(self.learned, self._calls.body, may_guess=False)
        attempt = partial(self._calls.attempt, adaptation)
        async for event in answer_by_policy(self._policy, request, attempt, adaptation):
            if breaks_tokens and isinstance(event, ModelReply):
                yield with_whole_tokens(event)
            else:
                yield event

    def _open(self) -> "ProviderCalls":
        model = self._build()
        # Imports pydantic-ai, which takes a second: at the first call of a model, not at start.
        from ricordo.llm.providers import ProviderCalls

        return ProviderCalls(self.info, self._policy, model)


def build_model(
    provider: Provider,
    info: ModelInfo,
    connections: Connections,
    policy: CallPolicy,
    learned: LearnedModel | None = None,
) -> ChatModel:
    """Return a model of this provider.

    If it needs an SDK that is not installed, its first call raises Unavailable and names the extra.

    Args:
        provider: The provider with its adapter and API key.
        info: The model.
        connections: The HTTP client for the calls.
        policy: The time limit and retries of a call.
        learned: The lessons about the model; None begins with none.
    """
    if provider.adapter == "openai" and not provider.uses_responses(info.name):
        return OpenAICompatibleModel(
            info,
            connections,
            policy,
            api_key=provider.api_key,
            api_version=provider.api_version,
            learned=learned,
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
    # The SDK would read these from the environment, but a request with an organization's key must
    # not use them.
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
    # Vertex takes the default credentials of Google's own tools.
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
    # The key holds a region, an access key and a secret key. With only a region, boto3 uses the
    # credentials of AWS's tools.
    region, access_key, secret_key = (*(provider.api_key or "").split("\n"), "", "")[:3]
    # A separate session, since boto3's default session is not safe for threads.
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
    """Return the extra that this model still needs.

    Args:
        provider: The model's provider.
        model: The model's name at the provider.

    Returns:
        The name of the extra; None if the model can be called.
    """
    if provider.adapter == "openai" and not provider.uses_responses(model):
        return None
    module, extra = _LIBRARIES[provider.adapter]
    try:
        return None if find_spec(module) else extra
    except ModuleNotFoundError:  # its parent package is missing
        return extra


def install_command(extra: str | None) -> str:
    return f'pip install "ricordo[{extra}]"'


def need(module: str, extra: str, or_else: str = "") -> Any:
    """Return the module of an optional package.

    Args:
        module: The module's full name.
        extra: The extra of Ricordo that installs it. The error names it.
        or_else: A second advice, which the error adds to the install command.

    Raises:
        Unavailable: if the module is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"{install_command(extra)}{or_else}"
        raise Unavailable(
            f"Models of this provider need its library. Install it with: {install}"
        ) from error
