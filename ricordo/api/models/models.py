"""Request and response models of chat models, embedding models and how they are called."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from ricordo.api.models.base import (
    MAX_COUNT,
    From,
    Json,
    RequestModel,
    RequestPart,
    ResponseModel,
    TolerantPart,
    given,
)
from ricordo.domain.model import ModelInfo, ModelSettings, settings_changes
from ricordo.llm.provider_table import CLAUDES

# Ours to say: the retired Letta V1 server keeps it in `llm_config` alone.
_THINKS = "put_inner_thoughts_in_kwargs"
# In `llm_config`: settings that have the same name there, those that a provider gets as they are, and what stands for none.
_SAME = ("reasoning_effort", "parallel_tool_calls", "response_format")
_PASSED_ON = ("strict", "verbosity", "frequency_penalty")
_SHOWN_TEMPERATURE = 1.0
# What the retired Letta V1 server shows of an OpenAI model where nothing is set.
_SHOWN_OF_OPENAI: Json = {
    "temperature": _SHOWN_TEMPERATURE,
    "max_output_tokens": 16_384,
    "parallel_tool_calls": True,
    "reasoning": {"reasoning_effort": "minimal"},
    "strict": False,
}
# Clients take no other kind; a provider outside this list speaks OpenAI's format.
_EMBEDDING_KINDS = frozenset(
    """openai anthropic bedrock google_ai google_vertex azure groq ollama webui webui-legacy lmstudio lmstudio-legacy llamacpp
    koboldcpp vllm hugging-face mistral together pinecone""".split()
)


class ReasoningRequest(TolerantPart):
    """How hard a model thinks."""

    shown_as: ClassVar = "reasoning"

    reasoning_effort: str | None = None


class ThinkingRequest(TolerantPart):
    """How long a model may think."""

    shown_as: ClassVar = "thinking"
    ignored: ClassVar = {"clear_thinking": "Past thoughts are sent as each provider wants them."}

    type: str | None = None
    budget_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)


class ModelSettingsRequest(RequestPart):
    """How to ask a model; a setting that is not named here is passed on to its provider."""

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
        """Return what was sent, by the names of ModelSettings; null takes a setting back.

        What an agent shows where nothing is set changes nothing: clients send back what they read.
        """
        given = _without_shown(self.model_dump(exclude_unset=True), current or ModelSettings())
        if (
            current
            and current.temperature is None
            and given.get("temperature") == _SHOWN_TEMPERATURE
        ):
            del given["temperature"]
        effort = given.pop("effort", None)
        if (
            effort
            and not given.get("reasoning")
            and (given.get("thinking") or {}).get("type") != "disabled"
        ):
            given["reasoning"] = {"reasoning_effort": effort}
        if _THINKS in given:
            given["thinks_in_arguments"] = given.pop(_THINKS)
        return settings_changes(given)


def _without_shown(sent: Json, current: ModelSettings) -> Json:
    """Return the settings without those that only stand for what is not set, where all that is shown came back."""
    if not _SHOWN_OF_OPENAI.keys() <= sent.keys():
        return sent
    is_set = {
        "reasoning": current.reasoning_effort is not None,
        "strict": "strict" in current.extra,
        **{
            name: getattr(current, name) is not None
            for name in ("temperature", "max_output_tokens", "parallel_tool_calls")
        },
    }
    return {
        name: each
        for name, each in sent.items()
        if is_set.get(name, True) or each != _SHOWN_OF_OPENAI[name]
    }


class ModelConfigRequest(TolerantPart):
    """What an older client says of a model or an embedding model: its handle, and how it is called."""

    shown_as: ClassVar = "llm_config"
    ignored: ClassVar = {
        **dict.fromkeys(
            """model_endpoint model_wrapper provider_category display_name tier compatibility_type
            tool_call_parser name provider_type model_type is_default max_context_window embedding_endpoint azure_endpoint
            azure_version azure_deployment
            api_model_endpoint_type api_model_endpoint api_model_wrapper api_model_type""".split(),
            "It follows from the handle.",
        ),
        "enable_reasoner": "It follows from `reasoning_effort` and `max_reasoning_tokens`.",
        **dict.fromkeys(
            ("embedding_dim", "embedding_chunk_size", "batch_size"), "The server finds it out."
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
        description="Another name of `reasoning_effort`, which goes first.",
    )

    def changes(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was sent, by the names of ModelSettings. What `llm_config` shows where nothing is set changes nothing."""
        sent = self.model_dump(include={"temperature", *_SAME, *_PASSED_ON}, exclude_none=True)
        if sent.get("temperature") == _SHOWN_TEMPERATURE:
            del sent["temperature"]
        passed_on = {name: sent.pop(name) for name in _PASSED_ON if name in sent}
        if passed_on:
            sent["extra"] = {**extra, **passed_on}
        if self.effort:
            sent.setdefault("reasoning_effort", self.effort)
        older = {
            "max_output_tokens": self.max_tokens,
            "max_reasoning_tokens": self.max_reasoning_tokens or None,
            "thinks_in_arguments": self.put_inner_thoughts_in_kwargs,
        }
        return sent | given(**older)

    @property
    def full_handle(self) -> str | None:
        """`provider/model`, made from its parts where the handle itself is not given."""
        name = self.model or self.embedding_model
        provider = (
            self.provider_name
            or self.model_endpoint_type
            or self.embedding_endpoint_type
            or "openai"
        )
        return self.handle or (f"{provider}/{name}" if name else None)


class EmbeddingFields(RequestModel):
    """An embedding model, by its handle or as an older client names it."""

    embedding: str | None = None
    embedding_config: ModelConfigRequest | None = None

    @property
    def embedding_handle(self) -> str | None:
        """The embedding model's handle, also where an older client gives a whole `embedding_config`."""
        return self.embedding or (
            self.embedding_config.full_handle if self.embedding_config else None
        )


def whole_settings_response(settings: ModelSettings, info: ModelInfo) -> Json:
    """Return the settings with what holds where they are not set, as far as that is known."""
    usual: Json = (
        {"temperature": _SHOWN_TEMPERATURE} if info.endpoint_type != "openai" else _SHOWN_OF_OPENAI
    )
    usual = usual | given(max_output_tokens=info.max_output_tokens)
    return usual | settings_response(settings, info.endpoint_type)


def settings_response(settings: ModelSettings, endpoint_type: str) -> Json:
    """Return the settings that are set, tagged by provider as clients expect them."""
    effort, budget = settings.reasoning_effort, settings.max_reasoning_tokens
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
    return {key: value for key, value in wire.items() if value is not None}


class ModelConfigResponse(ResponseModel):
    """How an agent's model is called: an agent's `llm_config`, which follows from its model's handle and its settings."""

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
        """Return how the model is called with these settings and a window of so many tokens."""
        same = {
            name: getattr(settings, name)
            for name in ("reasoning_effort", "parallel_tool_calls", "response_format")
        }
        return cls.of(
            info,
            **same,
            context_window=context_window,
            put_inner_thoughts_in_kwargs=bool(settings.thinks_in_arguments),
            temperature=_SHOWN_TEMPERATURE
            if settings.temperature is None
            else settings.temperature,
            max_tokens=settings.max_output_tokens,
            enable_reasoner=settings.max_reasoning_tokens is not None
            or settings.reasoning_effort is not None,
            max_reasoning_tokens=settings.max_reasoning_tokens or 0,
        )


class ModelResponse(ModelConfigResponse):
    """A model that can be used here."""

    name: str
    provider_type: Annotated[str, From("endpoint_type")]
    max_context_window: Annotated[int, From("context_window")]
    model_type: Literal["llm"] = "llm"
    is_default: bool = False

    @classmethod
    def of(cls, info: Any, /, **fields: Any) -> Json:
        """Return a model with the settings that agents have where they name none."""
        return (
            super().of(info, **fields)
            if fields
            else cls.from_model(info, ModelSettings(), info.context_window)
        )


def _embedding_kind(endpoint_type: str) -> str:
    return endpoint_type if endpoint_type in _EMBEDDING_KINDS else "openai"


class EmbeddingConfigResponse(ResponseModel):
    """How texts are embedded. `embedding_dim` is 0 until the model was first asked.

    Chunk and batch size are what clients expect to find; they have no effect.
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
    """An embedding model that can be used here."""

    name: str
    display_name: Annotated[str, From("name")]
    provider_name: Annotated[str, From("provider")]
    provider_type: Annotated[str, From("endpoint_type")]
    model_type: Literal["embedding"] = "embedding"
