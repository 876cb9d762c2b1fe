"""Builds the models that pydantic-ai asks, over the providers' SDKs: each is an extra, and imported when a model is first asked."""

import importlib
from typing import TYPE_CHECKING, Any

from ricordo.domain.model import ModelInfo
from ricordo.errors import Unavailable
from ricordo.llm.connections import MAX_CONNECTIONS, Connections
from ricordo.llm.policy import CONNECT_TIMEOUT, CallPolicy
from ricordo.llm.providers import ProviderModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model

VERTEX_LOCATION = "us-central1"


def openai_responses_model(
    info: ModelInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> ProviderModel:
    """Return a model of OpenAI's, or of a server that speaks its responses. Raises Unavailable without the extra."""

    def build() -> "Model[Any]":
        need("openai", "openai", " or set OPENAI_API=chat for chat completions")
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = AsyncOpenAI(
            api_key=api_key or "none",
            base_url=info.endpoint,
            http_client=connections.client(),
            timeout=connections.timeout,
            max_retries=0,
        )
        # The variables of the server's environment are not for keys that others bring.
        client.organization = client.project = None
        return OpenAIResponsesModel(info.name, provider=OpenAIProvider(openai_client=client))

    return ProviderModel(info, policy, build)


def anthropic_model(
    info: ModelInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> ProviderModel:
    """A model of Anthropic's, or of a server that speaks its messages. Raises Unavailable without the extra."""

    def build() -> "Model[Any]":
        need("anthropic", "anthropic")
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(
            api_key=api_key or "none",
            base_url=(info.endpoint or "").removesuffix("/").removesuffix("/v1"),
            http_client=connections.client(),
            timeout=connections.timeout,
            max_retries=0,
        )
        return AnthropicModel(info.name, provider=AnthropicProvider(anthropic_client=client))

    return ProviderModel(info, policy, build)


def google_model(
    info: ModelInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> ProviderModel:
    """A model of Google AI. Raises Unavailable without the extra."""

    def build() -> "Model[Any]":
        need("google.genai", "google")
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=api_key, base_url=info.endpoint, http_client=connections.client())
        return GoogleModel(info.name, provider=provider)

    return ProviderModel(info, policy, build)


def vertex_model(
    info: ModelInfo, connections: Connections, policy: CallPolicy, *, project: str, location: str | None
) -> ProviderModel:
    """A model of Google's Vertex AI, with the credentials that Google's own tools use. Raises Unavailable without the extra."""

    def build() -> "Model[Any]":
        need("google.genai", "google")
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google_cloud import GoogleCloudProvider

        provider = GoogleCloudProvider(
            project=project,
            location=location or VERTEX_LOCATION,
            base_url=info.endpoint,
            http_client=connections.client(),
        )
        return GoogleModel(info.name, provider=provider)

    return ProviderModel(info, policy, build)


def bedrock_model(
    info: ModelInfo, policy: CallPolicy, *, region: str, access_key: str | None = None, secret_key: str | None = None
) -> ProviderModel:
    """A model of AWS Bedrock, with these keys, else with the credentials that AWS's own tools use.

    Raises Unavailable without the extra.
    """

    def build() -> "Model[Any]":
        boto3 = need("boto3", "bedrock")
        from pydantic_ai.models.bedrock import BedrockConverseModel
        from pydantic_ai.providers.bedrock import BedrockProvider

        config = need("botocore.config", "bedrock").Config(
            read_timeout=policy.timeout,
            connect_timeout=min(CONNECT_TIMEOUT, policy.timeout),
            retries={"total_max_attempts": 1},
            max_pool_connections=MAX_CONNECTIONS,
        )
        # A session of its own: boto3's shared one may not be used by several threads at once.
        session = boto3.Session(
            aws_access_key_id=access_key or None, aws_secret_access_key=secret_key or None, region_name=region
        )
        client = session.client("bedrock-runtime", config=config, endpoint_url=info.endpoint)
        return BedrockConverseModel(info.name, provider=BedrockProvider(bedrock_client=client))

    return ProviderModel(info, policy, build)


def need(module: str, extra: str, or_else: str = "") -> Any:
    """The module of an optional package; raises Unavailable with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            f'Models of this provider need its library. Install it with: pip install "ricordo[{extra}]"{or_else}'
        ) from error
