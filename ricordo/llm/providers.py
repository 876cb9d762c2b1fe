"""Calls of all other providers (Anthropic, Google AI, Bedrock, OpenAI's responses), by pydantic-ai's direct interface.

Imported when a model is first asked, since the library takes a second. Its retries are off: ours apply.
"""

import re
from collections.abc import AsyncGenerator
from json import JSONDecodeError
from typing import Any, cast

import httpx2
from pydantic_ai import exceptions as known
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ImageUrl
from pydantic_ai.models import Model, ModelRequestParameters, download_item
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

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
from ricordo.errors import ModelError
from ricordo.llm import provider_messages
from ricordo.llm.adaptation import Adaptation
from ricordo.llm.answer_bounds import BoundReached
from ricordo.llm.chat import chunks_of
from ricordo.llm.learned_dialect import NOTHING_LEARNED, LearnedDialect
from ricordo.llm.openai_conform import is_refused
from ricordo.llm.openai_dialect import OPENAI_ADDRESS, dialect_of
from ricordo.llm.openai_format import strict_parameters
from ricordo.llm.pictures import PictureCache
from ricordo.llm.policy import (
    CONNECT_TIMEOUT,
    CallPolicy,
    error_from_event,
    error_from_status,
    error_from_transport,
    words_of,
)

MAX_OUTPUT_TOKENS = 16_384
SMALLEST_THINKING_BUDGET = 1_024
_WRONG_KEY = re.compile(r"API_KEY_INVALID|api key (not valid|expired)", re.IGNORECASE)
# These take no picture by its address.
_INLINES = {"google", "bedrock"}
# Settings that are ours to put where a format wants them.
_OURS = {"strict", "provider_type", "verbosity"}
# What providers call the fields that come from the library's settings, for errors that name them.
_FIELDS = (
    ("temperature", "temperature"),
    ("max_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("maxOutputTokens", "max_tokens"),
    ("maxTokens", "max_tokens"),
    ("tool_choice", "tool_choice"),
    ("toolChoice", "tool_choice"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("disable_parallel_tool_use", "parallel_tool_calls"),
    ("thinking", "anthropic_thinking"),
    ("thinking", "thinking"),
    ("thinkingConfig", "google_thinking_config"),
    ("thinking_config", "google_thinking_config"),
    ("reasoning", "openai_reasoning_effort"),
    ("reasoning", "openai_reasoning_summary"),
    ("summary", "openai_reasoning_summary"),
    ("user", "openai_user"),
    ("metadata", "anthropic_metadata"),
    ("store", "openai_store"),
    ("logprobs", "openai_logprobs"),
    ("top_logprobs", "openai_top_logprobs"),
    ("cache_control", "anthropic_cache_instructions"),
    ("cache_control", "anthropic_cache_tool_definitions"),
)
# The library sets the limit of an answer itself where none is given.
_KEPT = {"max_tokens"}


class ProviderCalls:
    """Makes the calls of one model. Each is one attempt."""

    def __init__(self, info: ModelInfo, policy: CallPolicy, model: Model[Any]) -> None:
        self._info = info
        self._policy = policy
        self._model = model
        self._pictures = PictureCache(_fetch)

    def body(self, request: ModelRequest, learned: LearnedDialect) -> dict[str, Any]:
        """Return what is asked for besides the transcript, by the names that providers have for it."""
        settings = self._settings(request, learned)
        fields = {wire: settings[name] for wire, name in _FIELDS if name in settings}
        return {
            **settings.get("extra_body", {}),
            **fields,
            "messages": [],
            "stream": _streams(request, learned),
        }

    def _settings(self, request: ModelRequest, learned: LearnedDialect) -> dict[str, Any]:
        settings = _settings(request, self._info, self._model, self._policy)
        return _without_refused(settings, learned) if learned != NOTHING_LEARNED else settings

    async def attempt(
        self, adaptation: Adaptation, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Ask once, in the form that the adaptation has now."""
        model, provider, transcript = self._model, self._info.provider, request.messages
        if model.system in _INLINES:
            transcript = await self._pictures.inline(transcript)
        streams = _streams(request, adaptation.learned)
        settings = self._settings(request, adaptation.learned)
        if adaptation.budget is not None and "max_tokens" in settings:
            settings["max_tokens"] = min(settings["max_tokens"], adaptation.budget)
        try:
            call: dict[str, Any] = {
                "messages": provider_messages.to_messages(transcript, provider, model.system),
                "model_settings": cast("ModelSettings", settings),
                "model_request_parameters": _parameters(request, model),
                "instrument": False,
            }
            if not streams:
                response = await model_request(model, **call)
            else:
                reader = _ChunkReader()
                async with model_request_stream(model, **call) as stream:
                    async for event in stream:
                        # Where only the server wants a stream, its pieces are nobody's.
                        if (chunk := reader.read(event)) and request.stream:
                            yield chunk
                    response = stream.get()
        except Exception as error:
            raise our_error(provider, error) from error
        if streams and not provider_messages.is_finished(response):
            raise ModelError("llm_error", f"{provider} ended its answer in the middle.")
        reply = provider_messages.to_reply(response, self._info, request)
        adaptation.confirm(request)
        if request.stream and not streams:
            for chunk in chunks_of(reply):
                yield chunk
        yield reply


def _streams(request: ModelRequest, learned: LearnedDialect) -> bool:
    return request.stream if learned.stream is None else learned.stream == "always"


def _without_refused(settings: dict[str, Any], learned: LearnedDialect) -> dict[str, Any]:
    """Return the settings without what the provider was learned to refuse."""
    refused = learned.refused
    names = {
        name
        for wire, name in _FIELDS
        if name in settings
        and (learned.bare or is_refused(refused, wire, settings[name]))
        and name not in _KEPT
    }
    kept = {name: value for name, value in settings.items() if name not in names}
    if "openai_logprobs" not in kept:
        kept.pop("openai_top_logprobs", None)
    if extra := kept.get("extra_body"):
        kept["extra_body"] = {
            name: value
            for name, value in extra.items()
            if not (learned.bare or is_refused(refused, name, value))
        }
    if learned.most_output is not None and "max_tokens" in kept:
        kept["max_tokens"] = min(kept["max_tokens"], learned.most_output)
    return kept


async def _fetch(url: str) -> tuple[bytes, str]:
    """What lies at an address, with its media type. The library refuses private addresses."""
    found = await download_item(
        ImageUrl(url, media_type="image/png"), data_format="bytes", type_format="mime"
    )
    return found["data"], found["data_type"]


def our_error(provider: str, error: Exception) -> Exception:
    """The library's error in our words; one that is not about the provider stays what it is."""
    found: Exception
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BoundReached):
            return cause
        cause = cause.__cause__ or cause.__context__
    match error:
        case known.ModelHTTPError():
            body = error.body if error.body is not None else error.message
            found = error_from_status(
                provider, _status(error.status_code, body), body, error.headers
            )
        case known.ModelTimeoutError() | known.ModelRequestTimeout() | TimeoutError():
            found = error_from_transport(provider, httpx2.ReadTimeout(str(error)))
        case known.ModelConnectionError():
            broken = httpx2.ConnectError if error.phase == "connect" else httpx2.ReadError
            found = error_from_transport(provider, broken(str(error)))
        case known.ModelAPIError() if isinstance(error.__cause__, JSONDecodeError):
            advice = "Check its address; for a server that speaks OpenAI's chat completions alone, set OPENAI_API=chat."
            found = ModelError(
                "llm_bad_request", f"{provider} did not answer in its format. {advice}"
            )
        case known.ModelAPIError():
            found = error_from_event(
                provider, error.body if error.body is not None else error.message
            )
        case known.ContentFilterError() | known.UserError():
            found = ModelError("llm_bad_request", f"{provider} cannot take this request: {error}")
        # Of our own code and the library's, these are what an answer of another shape ends in.
        case (
            known.UnexpectedModelBehavior()
            | JSONDecodeError()
            | AttributeError()
            | LookupError()
            | AssertionError()
        ):
            found = ModelError(
                "llm_error", f"{provider} gave an answer that cannot be read: {error}"
            )
        case httpx2.TransportError():
            found = error_from_transport(provider, error)
        # What cannot be put into the provider's words: a kind of content it does not know, a picture that is gone.
        case (
            ValueError()
            | TypeError()
            | NotImplementedError()
            | httpx2.HTTPError()
            | httpx2.InvalidURL()
        ):
            words = str(error)
            found = ModelError(
                "llm_bad_request", f"{provider} cannot take this request: {words}", words=words
            )
        case _:
            found = error
    return found


def _status(status: int, body: Any) -> int:
    if status == 400 and _WRONG_KEY.search(words_of(body)[1]):
        return 401  # Google says of a wrong key that the request is wrong.
    return 502 if status == 424 else status  # The model behind Bedrock failed.


class _ChunkReader:
    """Turns the events of one stream into chunks."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}  # the number of each call by the number of its part
        self._thought: str | None = None
        self._signed: set[int] = set()  # the numbers of thoughts whose signature stands for itself

    def read(self, event: Any) -> Chunk | None:
        """Return the event as a chunk; None for one that brings nothing to read."""
        if (delta := getattr(event, "delta", None)) is None:
            return (
                self._begin(event.index, event.part) if event.event_kind == "part_start" else None
            )
        match delta.part_delta_kind:
            case "text" if delta.content_delta:
                return TextChunk(delta.content_delta)
            case "thinking" if delta.signature_delta and event.index in self._signed:
                return ReasoningChunk(delta.content_delta or "", delta.signature_delta)
            case "thinking" if delta.content_delta:
                return ReasoningChunk(delta.content_delta)
            case "tool_call":
                return ToolCallChunk(
                    self._number(event.index), provider_messages.arguments_of(delta.args_delta)
                )
            case _:
                return None

    def _begin(self, index: int, part: Any) -> Chunk | None:
        match part.part_kind:
            case "text" if part.content:
                return TextChunk(part.content)
            case "thinking":
                is_next = provider_messages.is_summary(part) and part.id == self._thought
                self._thought = part.id
                if part.id is None:
                    self._signed.add(index)
                text = provider_messages.THOUGHT_BREAK + part.content if is_next else part.content
                return ReasoningChunk(text) if text else None
            case "tool-call":
                arguments = provider_messages.arguments_of(part.args)
                return ToolCallChunk(
                    self._number(index), arguments, part.tool_call_id, part.tool_name
                )
            case _:
                return None

    def _number(self, index: int) -> int:
        return self._calls.setdefault(index, len(self._calls))


def _parameters(request: ModelRequest, model: Model[Any]) -> ModelRequestParameters:
    is_strict = (
        model.system == provider_messages.OPENAI and request.settings.extra.get("strict") is True
    )
    tools = []
    for tool in request.tools:
        strict = strict_parameters(tool.parameters) if is_strict else None
        schema, is_closed = strict or tool.parameters, strict is not None
        tools.append(
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=schema,
                strict=is_closed,
            )
        )
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def _settings(
    request: ModelRequest, info: ModelInfo, model: Model[Any], policy: CallPolicy
) -> dict[str, Any]:
    ours = request.settings
    limit = ours.max_output_tokens or info.max_output_tokens or MAX_OUTPUT_TOKENS
    settings: dict[str, Any] = {"max_tokens": limit, "timeout": policy.timeout, "max_retries": 0}
    if ours.temperature is not None and not model.profile.get(
        "anthropic_disallows_sampling_settings"
    ):
        settings["temperature"] = ours.temperature
    is_forced = request.tool_choice == "required" or request.forced_tool is not None
    if request.tools:
        # Some models refuse to be made to call a tool: they are asked, and the turn's rules see to the rest.
        may_force = model.profile.get("supports_forced_tool_choice", True)
        choice = [request.forced_tool] if request.forced_tool else request.tool_choice
        settings["tool_choice"] = "auto" if is_forced and not may_force else choice
        if ours.parallel_tool_calls is not None:
            settings["parallel_tool_calls"] = ours.parallel_tool_calls
    if model.system == provider_messages.OPENAI:
        _add_openai(settings, request, info)
    # A provider that is made to call a tool refuses to think first.
    elif not is_forced and _may_think(request, info, model):
        _add_thinking(settings, request, model)
    if model.system == "anthropic" and model.profile.get("anthropic_binds_thinking_blocks"):
        _unbind_thoughts(settings, request)
    if info.endpoint_type == "anthropic":
        settings["timeout"] = httpx2.Timeout(
            policy.timeout, connect=min(CONNECT_TIMEOUT, policy.timeout)
        )
        settings["anthropic_cache_instructions"] = True
        settings["anthropic_cache_tool_definitions"] = True
        if request.user_id is not None:
            settings["anthropic_metadata"] = {"user_id": request.user_id}
    if extra := {name: value for name, value in ours.extra.items() if name not in _OURS}:
        field = (
            "bedrock_additional_model_requests_fields"
            if model.system == "bedrock"
            else "extra_body"
        )
        settings[field] = settings.get(field, {}) | extra
    # What a model cannot be told is left out: the library would warn of it at every call.
    return {
        name: value for name, value in settings.items() if name not in model.unsupported_settings
    }


def _add_openai(settings: dict[str, Any], request: ModelRequest, info: ModelInfo) -> None:
    """Nothing is stored at OpenAI: thoughts come back encrypted, are kept as they came, and go back in their place."""
    ours, dialect = request.settings, dialect_of(info.endpoint_type, OPENAI_ADDRESS, info.name)
    settings["openai_store"] = False
    if not dialect.takes_temperature:
        settings.pop("temperature", None)
    if ours.max_output_tokens is None:
        del settings["max_tokens"]
    if dialect.effort != "none" and ours.reasoning_effort is not None:
        settings["openai_reasoning_effort"] = ours.reasoning_effort
        # A summary is all that is shown of these thoughts, and only to those who ask for it.
        if ours.reasoning_effort != "none":
            settings["openai_reasoning_summary"] = "auto"
    if request.user_id is not None:
        settings["openai_user"] = request.user_id
    # Those that think have none, and the library would warn of it.
    if request.logprobs is not None and dialect.takes_temperature:
        settings |= {"openai_logprobs": True, "openai_top_logprobs": request.logprobs}
    text: dict[str, Any] = {}
    if (wanted := ours.response_format) is not None:
        schema = wanted.get("json_schema")
        inner = schema if wanted.get("type") == "json_schema" and isinstance(schema, dict) else {}
        text["format"] = {"type": wanted.get("type", "text"), **inner}
    if dialect.takes_verbosity and (verbosity := ours.extra.get("verbosity")):
        text["verbosity"] = verbosity
    if text:
        settings["extra_body"] = {"text": text}


def _may_think(request: ModelRequest, info: ModelInfo, model: Model[Any]) -> bool:
    """Whether the transcript allows it: Claude refuses to think on after calls that it made without a thought of its own."""
    if model.system not in {"anthropic", "bedrock"} or model.profile.get(
        "anthropic_supports_adaptive_thinking"
    ):
        return True
    last = next(
        (
            message
            for message in reversed(request.messages)
            if message.role == "assistant" or message.tool_calls
        ),
        None,
    )
    if last is None or not last.tool_calls:
        return True
    thoughts = [
        part
        for part in last.parts
        if isinstance(part, ReasoningPart) and part.provider == info.provider
    ]
    return any(thought.signature or thought.redacted for thought in thoughts)


def _unbind_thoughts(settings: dict[str, Any], request: ModelRequest) -> None:
    # Newer Claudes bind each thought to all that stood before it, and refuse it once that has changed. Memory stands before
    # it here, and changes: such a thought is to be left out, not to fail the call.
    if request.settings.reasoning_effort != "none":
        drop = {"prefix_mismatch_behavior": "drop_block"}
        settings["anthropic_thinking"] = (
            {"type": "adaptive"} | settings.get("anthropic_thinking", {}) | {"block_binding": drop}
        )


def _add_thinking(settings: dict[str, Any], request: ModelRequest, model: Model[Any]) -> None:
    budget, effort = request.settings.max_reasoning_tokens, request.settings.reasoning_effort
    if (
        budget
        and model.system == "anthropic"
        and not model.profile.get("anthropic_disallows_budget_thinking")
    ):
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
