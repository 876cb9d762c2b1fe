"""Request and response models of chat models, embedding models and their settings."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from ricordo.api.models.base import (
    MAX_COUNT,
    From,
    RequestModel,
    RequestPart,
    ResponseModel,
    TolerantPart,
    without_none,
)
from ricordo.domain.model import ModelInfo, ModelSettings, settings_changes
from ricordo.domain.text import Json
from ricordo.llm.provider_table import CLAUDES

# The retired Letta V1 server has this setting only in `llm_config`.
_THINKS = "put_inner_thoughts_in_kwargs"
# In this order: settings that have the same name in `llm_config`, settings that are passed on to
# the provider, and the temperature that `llm_config` shows if none is set.
_SAME = ("reasoning_effort", "parallel_tool_calls", "response_format")
_PASSED_ON = ("strict", "verbosity", "frequency_penalty")
_SHOWN_TEMPERATURE = 1.0
# The settings that the retired Letta V1 server shows for an OpenAI model if none are set.
_SHOWN_OF_OPENAI: Json = {
    "temperature": _SHOWN_TEMPERATURE,
    "max_output_tokens": 16_384,
    "parallel_tool_calls": True,
    "reasoning": {"reasoning_effort": "minimal"},
    "strict": False,
}
# Clients accept no other kind; a provider outside this list speaks OpenAI's format.
_EMBEDDING_KINDS = frozenset(
    """openai anthropic bedrock google_ai google_vertex azure groq ollama webui webui-legacy lmstudio lmstudio-legacy llamacpp
    koboldcpp vllm hugging-face mistral together pinecone""".split()
)


class ReasoningRequest(TolerantPart):
    """The reasoning effort of a model."""

    shown_as: ClassVar = "reasoning"

    reasoning_effort: str | None = None


class ThinkingRequest(TolerantPart):
    """The reasoning budget of a model."""

    shown_as: ClassVar = "thinking"
    ignored: ClassVar = {
        "clear_thinking": "Past thoughts are sent in the form that each provider requires."
    }

    type: str | None = None
    budget_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)


class ModelSettingsRequest(RequestPart):
    """The settings of a model.

    Unknown settings are passed on to the provider.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    provider_type: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningRequest | None = None
    thinking: ThinkingRequest | None = None
    response_format: dict[str, Any] | None = None
    strict: bool | None = None
    effort: str | None = Field(
        None, min_length=1, max_length=40, description="Another name of `reasoning`."
    )

    def changes(self, current: ModelSettings | None = None) -> dict[str, Any]:
        """Return the sent settings with the names of ModelSettings.

        Null resets a setting.

        Clients send back the values that an agent shows for unset settings. These values change
        nothing, except the model's own `max_output_tokens`, which becomes the agent's.

        Args:
            current: The agent's settings before the change; None if there is no agent yet, or only
                a conversation changes.
        """
        settings = _without_shown(self.model_dump(exclude_unset=True), current or ModelSettings())
        has_no_temperature = current is not None and current.temperature is None
        if has_no_temperature and settings.get("temperature") == _SHOWN_TEMPERATURE:
            del settings["temperature"]
        effort = settings.pop("effort", None)
        is_disabled = (settings.get("thinking") or {}).get("type") == "disabled"
        if effort and not settings.get("reasoning") and not is_disabled:
            settings["reasoning"] = {"reasoning_effort": effort}
        if _THINKS in settings:
            settings["thinks_in_arguments"] = settings.pop(_THINKS)
        return settings_changes(settings)


def _without_shown(settings: Json, current: ModelSettings) -> Json:
    """Return the settings without shown defaults, if a client sent all of them back."""
    if not _SHOWN_OF_OPENAI.keys() <= settings.keys():
        return settings
    is_set = {
        "reasoning": current.reasoning_effort is not None,
        "strict": "strict" in current.extra,
        **{
            name: getattr(current, name) is not None
            for name in ("temperature", "max_output_tokens", "parallel_tool_calls")
        },
    }
    return {
        name: setting
        for name, setting in settings.items()
        if is_set.get(name, True) or setting != _SHOWN_OF_OPENAI[name]
    }


class ModelConfigRequest(TolerantPart):
    """An older client's description of a model or an embedding model."""

    shown_as: ClassVar = "llm_config"
    ignored: ClassVar = {
        **dict.fromkeys(
            """model_endpoint model_wrapper provider_category display_name tier compatibility_type
            tool_call_parser name provider_type model_type is_default max_context_window
            embedding_endpoint azure_endpoint azure_version azure_deployment
            api_model_endpoint_type api_model_endpoint api_model_wrapper api_model_type""".split(),
            "It follows from the handle.",
        ),
        "enable_reasoner": "It follows from `reasoning_effort` and `max_reasoning_tokens`.",
        **dict.fromkeys(
            ("embedding_dim", "embedding_chunk_size", "batch_size"), "The server determines it."
        ),
        **dict.fromkeys(("return_logprobs", "top_logprobs"), "Ask for them with a message."),
        "return_token_ids": "Answers have no ids of tokens.",
    }

    handle: str | None = None
    model: str | None = None
    embedding_model: str | None = None
    model_endpoint_type: str | None = None
    embedding_endpoint_type: str | None = None
    provider_name: str | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    context_window: int | None = Field(None, ge=1000, le=MAX_COUNT)
    temperature: float | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    max_reasoning_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    reasoning_effort: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    strict: bool | None = None
    verbosity: str | None = None
    frequency_penalty: float | None = None
    effort: str | None = Field(
        None,
        min_length=1,
        max_length=40,
        description="Another name of `reasoning_effort`, which takes precedence.",
    )

    def changes(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sent settings with the names of ModelSettings.

        The temperature that `llm_config` shows when none is set changes nothing.

        Args:
            extra: The agent's current settings for the provider, to which sent ones are added.
        """
        settings = self.model_dump(include={"temperature", *_SAME, *_PASSED_ON}, exclude_none=True)
        if settings.get("temperature") == _SHOWN_TEMPERATURE:
            del settings["temperature"]
        passed_on = {name: settings.pop(name) for name in _PASSED_ON if name in settings}
        if passed_on:
            settings["extra"] = {**extra, **passed_on}
        if self.effort:
            settings.setdefault("reasoning_effort", self.effort)
        older = {
            "max_output_tokens": self.max_tokens,
            "max_reasoning_tokens": self.max_reasoning_tokens or None,
            "thinks_in_arguments": self.put_inner_thoughts_in_kwargs,
        }
        return settings | without_none(**older)

    @property
    def full_handle(self) -> str | None:
        """Return the sent handle, or make `provider/model` from the other fields.

        Returns None if neither a handle nor a model was sent.
        """
        name = self.model or self.embedding_model
        provider = (
            self.provider_name
            or self.model_endpoint_type
            or self.embedding_endpoint_type
            or "openai"
        )
        return self.handle or (f"{provider}/{name}" if name else None)


class EmbeddingFields(RequestModel):
    """An embedding model, by handle or in the form of older clients."""

    embedding: str | None = None
    embedding_config: ModelConfigRequest | None = None

    @property
    def embedding_handle(self) -> str | None:
        """Return the handle; older clients send it in a whole `embedding_config`.

        Returns None if no embedding model was sent.
        """
        if self.embedding or self.embedding_config is None:
            return self.embedding or None
        return self.embedding_config.full_handle


def whole_settings_response(settings: ModelSettings, info: ModelInfo) -> Json:
    """Return all settings; unset ones have the known defaults.

    Args:
        settings: The agent's settings of the model.
        info: The model, whose endpoint decides which defaults are shown.
    """
    defaults: Json = {"temperature": _SHOWN_TEMPERATURE}
    if info.endpoint_type == "openai":
        defaults = _SHOWN_OF_OPENAI
    defaults = defaults | without_none(max_output_tokens=info.max_output_tokens)
    return defaults | settings_response(settings, info.endpoint_type)


def settings_response(settings: ModelSettings, endpoint_type: str) -> Json:
    """Return the settings that are set, tagged by provider as clients expect.

    Args:
        settings: The settings of a model.
        endpoint_type: The type of the model's endpoint, such as "openai".
    """
    effort = settings.reasoning_effort
    budget = settings.max_reasoning_tokens
    plain = ("temperature", "max_output_tokens", "parallel_tool_calls", "response_format")
    wire: Json = {
        "provider_type": endpoint_type,
        **{name: getattr(settings, name) for name in plain},
        **settings.extra,
    }
    if effort == "none" and endpoint_type in CLAUDES:
        wire["thinking"] = {"type": "disabled"}
    elif effort is not None:
        wire["reasoning"] = {"reasoning_effort": effort}
    if budget is not None:
        wire["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return without_none(**wire)


class ModelConfigResponse(ResponseModel):
    """The configuration of an agent's model, its `llm_config`.

    It is derived from the model's handle and the agent's settings.
    """

    model: Annotated[str, From("name")]
    display_name: Annotated[str | None, From("name")]
    model_endpoint_type: Annotated[str, From("endpoint_type")]
    model_endpoint: Annotated[str | None, From("endpoint")]
    provider_name: Annotated[str | None, From("provider")]
    provider_category: Literal["base", "byok"] = "base"
    model_wrapper: str | None = None
    context_window: int
    put_inner_thoughts_in_kwargs: bool
    handle: str
    temperature: float
    max_tokens: int | None
    enable_reasoner: bool
    reasoning_effort: str | None
    max_reasoning_tokens: int
    parallel_tool_calls: bool | None
    response_format: Json | None

    @classmethod
    def from_model(cls, info: ModelInfo, settings: ModelSettings, context_window: int) -> Json:
        """Return the configuration of a model with these settings.

        Args:
            info: The description of the model.
            settings: The agent's settings of the model; unset ones are shown as their defaults.
            context_window: The tokens of the agent's window, which may be less than the model's.
        """
        temperature = settings.temperature
        if temperature is None:
            temperature = _SHOWN_TEMPERATURE
        has_budget = settings.max_reasoning_tokens is not None
        return cls.of(
            info,
            **{name: getattr(settings, name) for name in _SAME},
            context_window=context_window,
            put_inner_thoughts_in_kwargs=bool(settings.thinks_in_arguments),
            temperature=temperature,
            max_tokens=settings.max_output_tokens,
            enable_reasoner=has_budget or settings.reasoning_effort is not None,
            max_reasoning_tokens=settings.max_reasoning_tokens or 0,
        )


class ModelResponse(ModelConfigResponse):
    """A usable model."""

    name: str
    provider_type: Annotated[str, From("endpoint_type")]
    max_context_window: Annotated[int, From("context_window")]
    model_type: Literal["llm"] = "llm"
    is_default: bool = False

    @classmethod
    def of(cls, info: Any, /, **fields: Any) -> Json:
        """Return a model with default settings.

        Args:
            info: The model (a `ModelInfo`).
            **fields: The fields, if `from_model` has computed them already; empty for default
                settings.
        """
        if fields:
            return super().of(info, **fields)
        return cls.from_model(info, ModelSettings(), info.context_window)


def _embedding_kind(endpoint_type: str) -> str:
    if endpoint_type in _EMBEDDING_KINDS:
        return endpoint_type
    return "openai"


class EmbeddingConfigResponse(ResponseModel):
    """The configuration of an embedding model.

    `embedding_dim` is 0 until the model's first call. The chunk size and the batch size, which
    clients expect, have no effect.
    """

    embedding_endpoint_type: Annotated[str, From("endpoint_type", _embedding_kind)]
    embedding_endpoint: Annotated[str | None, From("endpoint")]
    embedding_model: Annotated[str, From("name")]
    embedding_dim: Annotated[int, From("dimensions", lambda count: count or 0)]
    embedding_chunk_size: int = 300
    handle: str
    batch_size: int = 32
    azure_endpoint: None = None
    azure_version: None = None
    azure_deployment: None = None


class EmbeddingModelResponse(EmbeddingConfigResponse):
    """A usable embedding model."""

    name: str
    display_name: Annotated[str, From("name")]
    provider_name: Annotated[str, From("provider")]
    provider_type: Annotated[str, From("endpoint_type")]
    model_type: Literal["embedding"] = "embedding"
