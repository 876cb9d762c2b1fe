"""The adapter for all other providers (Anthropic, Google AI, Bedrock), over pydantic-ai's direct interface.

Libraries and SDKs are imported when a model is first asked, here and in `provider_messages.py` alone. Their retries are
off: ours apply.
"""

import asyncio
import importlib
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, cast

import httpx2

from ricordo.domain.message import ReasoningPart
from ricordo.domain.model import (
    Chunk,
    ModelInfo,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
)
from ricordo.errors import ModelError, Unavailable
from ricordo.llm import provider_messages
from ricordo.llm.connections import MAX_CONNECTIONS, Connections
from ricordo.llm.pictures import Album
from ricordo.llm.policy import (
    CONNECT_TIMEOUT,
    CallPolicy,
    answer_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
    words_of,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

MAX_OUTPUT_TOKENS = 16_384
SMALLEST_THINKING_BUDGET = 1_024
VERTEX_LOCATION = "us-central1"
_WRONG_KEY = re.compile(r"API_KEY_INVALID|api key (not valid|expired)", re.IGNORECASE)
# These take no picture by its address.
_INLINES = {"google", "bedrock"}


class ProviderModel:
    """A chat model that pydantic-ai knows how to ask. `build` makes it, at the first question."""

    def __init__(self, info: ModelInfo, policy: CallPolicy, build: "Callable[[], Model[Any]]") -> None:
        self._info = info
        self._policy = policy
        self._build = build
        self._model: Model[Any] | None = None
        self._building = asyncio.Lock()
        self._album = Album(_fetch)

    @property
    def info(self) -> ModelInfo:
        """Which model this is."""
        return self._info

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Yield chunks where `request.stream` asks for them, and last of all the whole reply."""
        model = await self._ready()
        ask = partial(self._attempt, model)
        async for item in answer_by_policy(self._policy, request, partial(ask, request), again=ask):
            yield item

    async def _attempt(self, model: "Model[Any]", request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        transcript = request.messages
        if model.system in _INLINES:
            transcript = await self._album.inline(transcript)
        try:
            messages = provider_messages.to_messages(transcript, self._info.provider)
            settings = _settings(request, self._info, model, self._policy)
            parameters = _parameters(request)
        except Exception as error:
            raise our_error(self._info.provider, error) from error
        answering = self._streamed if request.stream else self._whole
        async with aclosing(answering(model, messages, settings, parameters)) as items:
            async for item in items:
                yield item

    async def _ready(self) -> "Model[Any]":
        async with self._building:
            if self._model is None:
                # The import takes a second or two: other turns go on meanwhile.
                self._model = await asyncio.to_thread(self._build)
        return self._model

    async def _whole(
        self, model: "Model[Any]", messages: list[Any], settings: "ModelSettings", parameters: "ModelRequestParameters"
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        from pydantic_ai.direct import model_request

        try:
            response = await model_request(
                model, messages, model_settings=settings, model_request_parameters=parameters, instrument=False
            )
        except Exception as error:
            raise our_error(self._info.provider, error) from error
        yield provider_messages.to_reply(response, self._info)

    async def _streamed(
        self, model: "Model[Any]", messages: list[Any], settings: "ModelSettings", parameters: "ModelRequestParameters"
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        from pydantic_ai.direct import model_request_stream

        try:
            async with model_request_stream(
                model, messages, model_settings=settings, model_request_parameters=parameters, instrument=False
            ) as stream:
                slots: dict[int, int] = {}
                async for event in stream:
                    if chunk := _chunk(event, slots):
                        yield chunk
                response = stream.get()
        except Exception as error:
            raise our_error(self._info.provider, error) from error
        if not provider_messages.is_finished(response):
            raise ModelError("llm_error", f"{self._info.provider} ended its answer in the middle.")
        yield provider_messages.to_reply(response, self._info)


async def _fetch(url: str) -> tuple[bytes, str]:
    """What lies at an address, with its media type. The library refuses private addresses."""
    from pydantic_ai.messages import ImageUrl
    from pydantic_ai.models import download_item

    found = await download_item(ImageUrl(url, media_type="image/png"), data_format="bytes", type_format="mime")
    return found["data"], found["data_type"]


def our_error(provider: str, error: Exception) -> Exception:
    """The library's error in our words; one that is not about the provider stays what it is."""
    from pydantic_ai import exceptions as known

    found: Exception
    match error:
        case known.ModelContextWindowExceededError():
            found = ModelError("context_window_exceeded", f"{provider} finds the input too long: {_words(error)}")
        case known.ModelQuotaExceededError():
            found = ModelError("llm_insufficient_credits", f"{provider} wants payment: {_words(error)}")
        case known.ModelHTTPError():
            body = error.body if error.body is not None else error.message
            found = error_from_status(provider, _status(error.status_code, body), body, error.headers)
        case known.ModelTimeoutError() | known.ModelRequestTimeout() | TimeoutError():
            found = error_from_transport(provider, httpx2.ReadTimeout(str(error)))
        case known.ModelConnectionError() if error.phase == "connect":
            found = error_from_transport(provider, httpx2.ConnectError(str(error)))
        case known.ModelConnectionError():
            found = error_from_transport(provider, httpx2.ReadError(str(error)))
        case known.ModelAPIError():
            found = error_from_event(provider, error.body if error.body is not None else error.message)
        case known.ContentFilterError() | known.UserError():
            found = ModelError("llm_bad_request", f"{provider} cannot take this request: {error}")
        # Of our own code and the library's, these are what an answer of another shape ends in.
        case known.UnexpectedModelBehavior() | JSONDecodeError() | AttributeError() | LookupError() | AssertionError():
            found = ModelError("llm_error", f"{provider} gave an answer that cannot be read: {error}")
        case httpx2.TransportError():
            found = error_from_transport(provider, error)
        # What cannot be put into the provider's words: a kind of content it does not know, a picture that is gone.
        case ValueError() | TypeError() | NotImplementedError() | httpx2.HTTPError() | httpx2.InvalidURL():
            found = ModelError("llm_bad_request", f"{provider} cannot take this request: {error}")
        case _:
            found = error
    return found


def _status(status: int, body: Any) -> int:
    """The status, where a provider has a way of its own the usual one for what it means."""
    if status == 400 and _WRONG_KEY.search(words_of(body)[1]):
        return 401  # Google says of a wrong key that the request is wrong.
    return 502 if status == 424 else status  # The model behind Bedrock failed.


def _words(error: Any) -> str:
    return words_of(error.body)[0] if error.body is not None else str(error)


def _chunk(event: Any, slots: dict[int, int]) -> Chunk | None:
    """An event of the stream as a chunk. `slots` numbers the calls among all parts."""
    delta = getattr(event, "delta", None)
    if delta is None and event.event_kind != "part_start":
        return None
    kind = event.part.part_kind if delta is None else delta.part_delta_kind
    piece = event.part if delta is None else delta
    text = (piece.content if delta is None else piece.content_delta) if kind in {"text", "thinking"} else None
    if kind == "text":
        return TextChunk(text) if text else None
    if kind == "thinking":
        return ReasoningChunk(text) if text else None
    if kind == "tool-call":
        slot = slots.setdefault(event.index, len(slots))
        return ToolCallChunk(slot, provider_messages.arguments_of(piece.args), piece.tool_call_id, piece.tool_name)
    if kind == "tool_call":
        slot = slots.setdefault(event.index, len(slots))
        return ToolCallChunk(slot, provider_messages.arguments_of(piece.args_delta))
    return None


def _parameters(request: ModelRequest) -> "ModelRequestParameters":
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
        for tool in request.tools
    ]
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def _settings(request: ModelRequest, info: ModelInfo, model: "Model[Any]", policy: CallPolicy) -> "ModelSettings":
    ours = request.settings
    limit = ours.max_output_tokens or info.max_output_tokens or MAX_OUTPUT_TOKENS
    settings: dict[str, Any] = {"max_tokens": limit, "timeout": policy.timeout, "max_retries": 0}
    if ours.temperature is not None and not model.profile.get("anthropic_disallows_sampling_settings"):
        settings["temperature"] = ours.temperature
    is_forced = request.tool_choice == "required" or request.forced_tool is not None
    if request.tools:
        # Some models refuse to be made to call a tool: they are asked, and the turn's rules see to the rest.
        may_force = model.profile.get("supports_forced_tool_choice", True)
        choice = [request.forced_tool] if request.forced_tool else request.tool_choice
        settings["tool_choice"] = "auto" if is_forced and not may_force else choice
        if ours.parallel_tool_calls is not None:
            settings["parallel_tool_calls"] = ours.parallel_tool_calls
    # A provider that is made to call a tool refuses to think first.
    if not is_forced and _may_think(request, info, model):
        _add_thinking(settings, request, model)
    if model.system == "anthropic" and model.profile.get("anthropic_binds_thinking_blocks"):
        _unbind_thoughts(settings, request)
    if info.endpoint_type == "anthropic":
        settings["timeout"] = httpx2.Timeout(policy.timeout, connect=min(CONNECT_TIMEOUT, policy.timeout))
        settings["anthropic_cache_instructions"] = True
        settings["anthropic_cache_tool_definitions"] = True
        if request.user_id is not None:
            settings["anthropic_metadata"] = {"user_id": request.user_id}
    if extra := {name: value for name, value in ours.extra.items() if name != "strict"}:
        settings["bedrock_additional_model_requests_fields" if model.system == "bedrock" else "extra_body"] = extra
    # What a model cannot be told is left out: the library would warn of it at every call.
    known = {name: value for name, value in settings.items() if name not in model.unsupported_settings}
    return cast("ModelSettings", known)


def _may_think(request: ModelRequest, info: ModelInfo, model: "Model[Any]") -> bool:
    """Whether the transcript allows it: Claude refuses to think on after calls that it made without a thought of its own."""
    if model.system not in {"anthropic", "bedrock"} or model.profile.get("anthropic_supports_adaptive_thinking"):
        return True
    last = next(
        (message for message in reversed(request.messages) if message.role == "assistant" or message.tool_calls), None
    )
    if last is None or not last.tool_calls:
        return True
    thoughts = [part for part in last.parts if isinstance(part, ReasoningPart) and part.provider == info.provider]
    return any(thought.signature or thought.redacted for thought in thoughts)


def _unbind_thoughts(settings: dict[str, Any], request: ModelRequest) -> None:
    # Newer Claudes bind each thought to all that stood before it, and refuse it once that has changed. Memory stands before
    # it here, and changes: such a thought is to be left out, not to fail the call.
    if request.settings.reasoning_effort != "none":
        drop = {"prefix_mismatch_behavior": "drop_block"}
        settings["anthropic_thinking"] = (
            {"type": "adaptive"} | settings.get("anthropic_thinking", {}) | {"block_binding": drop}
        )


def _add_thinking(settings: dict[str, Any], request: ModelRequest, model: "Model[Any]") -> None:
    budget, effort = request.settings.max_reasoning_tokens, request.settings.reasoning_effort
    if budget and model.system == "anthropic" and not model.profile.get("anthropic_disallows_budget_thinking"):
        budget = max(budget, SMALLEST_THINKING_BUDGET)
        settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": budget}
        # Thought and answer share one limit, and thinking allows no temperature.
        settings["max_tokens"] = max(settings["max_tokens"], budget + SMALLEST_THINKING_BUDGET)
        settings.pop("temperature", None)
    elif budget and model.system == "google":
        settings["google_thinking_config"] = {"thinking_budget": budget, "include_thoughts": True}
    elif effort == "none":
        settings["thinking"] = False
    elif effort or budget:
        settings["thinking"] = effort or "medium"
        if model.system == "anthropic":
            settings.pop("temperature", None)


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


def need(module: str, extra: str) -> Any:
    """The module of an optional package; raises Unavailable with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            f'Models of this provider need its library. Install it with: pip install "ricordo[{extra}]"'
        ) from error
