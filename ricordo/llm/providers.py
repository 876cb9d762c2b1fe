"""Calls of all other providers by pydantic-ai's direct interface.

These are Anthropic, Google AI, Vertex AI, Bedrock and OpenAI's responses. The module is imported at
a model's first call, since the library takes a second. The library's retries are off, since ours
apply.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from json import JSONDecodeError
from typing import Any, cast

import httpx2
from pydantic_ai import exceptions as sdk_errors
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ImageUrl, ModelResponse
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
from ricordo.llm.answer_bounds import BoundReached, noted_statuses
from ricordo.llm.chat import chunks_of
from ricordo.llm.learned_dialect import NOTHING_LEARNED, LearnedDialect
from ricordo.llm.openai_conform import is_refused
from ricordo.llm.openai_dialect import OPENAI_ADDRESS, dialect_of
from ricordo.llm.openai_format import strict_parameters
from ricordo.llm.pictures import PictureCache, type_of_picture
from ricordo.llm.policy import (
    CONNECT_TIMEOUT,
    CallPolicy,
    error_from_event,
    error_from_status,
    error_from_transport,
    lasting_error,
)

MAX_OUTPUT_TOKENS = 16_384
SMALLEST_THINKING_BUDGET = 1_024
# The library's names of Google AI and Vertex AI.
_GOOGLES = ("google", "google-cloud")
# These providers take pictures only inside the request.
_INLINES = {"google", "bedrock"}
# Extra settings that are not sent to the provider as they are. `strict` and `verbosity` are
# translated.
_OWN_SETTINGS = {"strict", "provider_type", "verbosity"}
# The field names of the providers, each with the library's setting for it. Errors of a provider
# name its fields.
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
    ("cache_control", "anthropic_cache_messages"),
)
# The library sets a default limit if no limit is given.
_NEVER_LEFT_OUT = {"max_tokens"}


class ProviderCalls:
    """The calls of one model. Each call is one attempt."""

    def __init__(self, info: ModelInfo, policy: CallPolicy, model: Model[Any]) -> None:
        self._info = info
        self._policy = policy
        self._model = model
        self._pictures = PictureCache(fetch_picture)

    def body(self, request: ModelRequest, learned: LearnedDialect) -> dict[str, Any]:
        """Return the fields other than the transcript, by the providers' names for them.

        Args:
            request: The request of the call.
            learned: The form that is tried now.
        """
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
        if learned == NOTHING_LEARNED:
            return settings
        return _without_refused(settings, learned)

    async def attempt(
        self, adaptation: Adaptation, request: ModelRequest
    ) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Make one attempt in the adaptation's current form.

        Yield chunks if `request.stream` is set, and then the whole reply.

        Args:
            adaptation: The form that is tried now. It learns that it was accepted.
            request: The request of the call.

        Raises:
            ModelError: The attempt failed.
        """
        model = self._model
        provider = self._info.provider
        transcript = request.messages
        if model.system in _INLINES:
            transcript = await self._pictures.inline(transcript)
        streams = _streams(request, adaptation.learned)
        settings = self._settings(request, adaptation.learned)
        if adaptation.budget is not None and "max_tokens" in settings:
            settings["max_tokens"] = min(settings["max_tokens"], adaptation.budget)
        statuses: list[int] = []
        try:
            call: dict[str, Any] = {
                "messages": provider_messages.to_messages(transcript, provider, model.system),
                "model_settings": cast("ModelSettings", settings),
                "model_request_parameters": _parameters(request, model),
                "instrument": False,
            }
            if not streams:
                with noted_statuses(statuses):
                    response = await model_request(model, **call)
            else:
                reader = _ChunkReader()
                async with AsyncExitStack() as stack:
                    with noted_statuses(statuses):
                        stream = await stack.enter_async_context(
                            model_request_stream(model, **call)
                        )
                    async for event in stream:
                        # If only the server wants a stream, its chunks are dropped.
                        if (chunk := reader.read(event)) and request.stream:
                            yield chunk
                    response = stream.get()
            if streams:
                _require_end(provider, response)
            reply = provider_messages.to_reply(response, self._info, request)
        except ModelError:
            raise
        except Exception as error:
            # Bedrock's library sends the requests itself.
            is_answered = None
            if model.system != "bedrock":
                is_answered = bool(statuses) and statuses[-1] < 400
            raise our_error(provider, error, is_answered=is_answered) from error
        adaptation.confirm(request)
        if request.stream and not streams:
            for chunk in chunks_of(reply):
                yield chunk
        yield reply


def _require_end(provider: str, response: ModelResponse) -> None:
    if not provider_messages.is_finished(response):
        raise ModelError("llm_error", f"{provider} stopped in the middle of its answer. Try again.")


def _streams(request: ModelRequest, learned: LearnedDialect) -> bool:
    if learned.stream is None:
        return request.stream
    return learned.stream == "always"


def _without_refused(settings: dict[str, Any], learned: LearnedDialect) -> dict[str, Any]:
    """Return the settings without the refused ones."""

    def is_left_out(name: str, setting: Any) -> bool:
        return learned.bare or is_refused(learned.refused, name, setting)

    names = {
        name
        for wire_name, name in _FIELDS
        if name in settings and is_left_out(wire_name, settings[name])
    }
    names -= _NEVER_LEFT_OUT
    accepted = {name: setting for name, setting in settings.items() if name not in names}
    if "openai_logprobs" not in accepted:
        accepted.pop("openai_top_logprobs", None)
    if extra := accepted.get("extra_body"):
        accepted["extra_body"] = {
            name: setting for name, setting in extra.items() if not is_left_out(name, setting)
        }
    if learned.most_output is not None and "max_tokens" in accepted:
        accepted["max_tokens"] = min(accepted["max_tokens"], learned.most_output)
    return accepted


async def fetch_picture(url: str) -> tuple[bytes, str]:
    """Return the bytes at an address, and the media type that they show.

    The library refuses private addresses, and more than 50 MiB.

    Args:
        url: The address of a picture in a message.

    Returns:
        The bytes. Their type is empty if they are no known picture, such as those of a web page.

    Raises:
        ValueError: The address is private, or has too many bytes. Errors of the transport are
            raised too.
    """
    # Without a type, the library refuses addresses that do not show one.
    download = await download_item(ImageUrl(url, media_type="image/*"), data_format="bytes")
    content = download["data"]
    return content, type_of_picture(content) or ""


def _bound_reached(error: BaseException) -> BoundReached | None:
    """Return our error if it caused the library's error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BoundReached):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def our_error(provider: str, error: Exception, *, is_answered: bool | None = None) -> Exception:
    """Return the library's error as a ModelError.

    An error that does not concern the provider is returned as it is.

    Args:
        provider: The name of the provider, for the message.
        error: Any error of a call by the library.
        is_answered: The provider accepted the request, so the error concerns its answer. None: it
            is not known.
    """
    translated: Exception
    if bound_reached := _bound_reached(error):
        return bound_reached
    match error:
        case sdk_errors.ModelHTTPError():
            body = error.body if error.body is not None else error.message
            translated = error_from_status(
                provider, _status(error.status_code), body, error.headers
            )
        case sdk_errors.ModelTimeoutError() | sdk_errors.ModelRequestTimeout() | TimeoutError():
            translated = error_from_transport(provider, httpx2.ReadTimeout(str(error)))
        case sdk_errors.ModelConnectionError():
            is_connecting = error.phase == "connect"
            type_ = httpx2.ConnectError if is_connecting else httpx2.ReadError
            translated = error_from_transport(provider, type_(str(error)))
        case httpx2.TransportError():
            translated = error_from_transport(provider, error)
        case sdk_errors.ModelAPIError() if isinstance(error.__cause__, JSONDecodeError):
            advice = "Check its address; for a server that speaks OpenAI's chat completions alone, set OPENAI_API=chat."
            translated = lasting_error(f"{provider} did not answer in its format. {advice}")
        case sdk_errors.ModelAPIError():
            translated = error_from_event(
                provider, error.body if error.body is not None else error.message
            )
        case sdk_errors.ContentFilterError() | sdk_errors.UserError():
            translated = ModelError(
                "llm_bad_request", f"{provider} cannot take this request: {error}"
            )
        case sdk_errors.UnexpectedModelBehavior() | JSONDecodeError():
            translated = ModelError("llm_error", _unreadable(provider, error))
        case _:
            translated = _error_of_form(provider, error, is_answered=is_answered)
    return translated


def _error_of_form(provider: str, error: Exception, *, is_answered: bool | None) -> Exception:
    """Return the error of our code or the library's at a request or an answer of unusual form."""
    match error:
        case AttributeError() | LookupError() | AssertionError() if is_answered is not False:
            return ModelError("llm_error", _unreadable(provider, error))
        # The answer has an unexpected format. The answer to another attempt would have it too.
        case ValueError() | TypeError() | NotImplementedError() if is_answered:
            return lasting_error(_unreadable(provider, error))
        # The request cannot be translated: an unknown kind of content, or a picture that is gone.
        case (
            AttributeError()
            | LookupError()
            | AssertionError()
            | ValueError()
            | TypeError()
            | NotImplementedError()
            | httpx2.HTTPError()
            | httpx2.InvalidURL()
        ):
            text = str(error)
            return ModelError(
                "llm_bad_request", f"{provider} cannot take this request: {text}", words=text
            )
        case _:
            return error


def _unreadable(provider: str, error: Exception) -> str:
    return f"{provider} gave an answer that cannot be read: {error}"


def _status(status: int) -> int:
    return 502 if status == 424 else status  # 424: the model behind Bedrock failed


class _ChunkReader:
    """Turns the events of one stream into chunks."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}  # the call's number by its part's number
        self._thought: str | None = None
        self._signed: set[int] = (
            set()
        )  # parts of reasoning without an id, whose signature is passed on
        # By the part's number: the first half of a character, at the end of the text so far.
        self._halves: dict[int, str] = {}

    def read(self, event: Any) -> Chunk | None:
        """Return the event as a chunk; None for an event that adds nothing.

        Raises:
            TypeError: A text is not a string.
        """
        if (delta := getattr(event, "delta", None)) is None:
            if event.event_kind != "part_start":
                return None
            return self._begin(event.index, event.part)
        match delta.part_delta_kind:
            case "text" if text := self._whole(event.index, delta.content_delta):
                return TextChunk(text)
            case "thinking":
                text = self._whole(event.index, delta.content_delta)
                signature = provider_messages.unchanged_text(delta.signature_delta)
                if signature and event.index in self._signed:
                    return ReasoningChunk(text, signature)
                return ReasoningChunk(text) if text else None
            case "tool_call":
                arguments = self._arguments(event.index, delta.args_delta)
                return ToolCallChunk(self._number(event.index), arguments)
            case _:
                return None

    def _begin(self, index: int, part: Any) -> Chunk | None:
        match part.part_kind:
            case "text" if text := self._whole(index, part.content):
                return TextChunk(text)
            case "thinking":
                is_next = provider_messages.is_summary(part) and part.id == self._thought
                self._thought = part.id
                if part.id is None:
                    self._signed.add(index)
                text = self._whole(index, part.content)
                if is_next:
                    text = provider_messages.THOUGHT_BREAK + text
                return ReasoningChunk(text) if text else None
            case "tool-call":
                arguments = self._arguments(index, part.args)
                call_id = provider_messages.unchanged_text(part.tool_call_id) or ""
                name = provider_messages.whole_text(part.tool_name)
                return ToolCallChunk(self._number(index), arguments, call_id, name)
            case _:
                return None

    def _whole(self, index: int, field: Any) -> str:
        """Return a piece of a part's text.

        The first half of a character at its end is kept for the part's next piece.
        """
        if isinstance(field, str):
            field = self._halves.pop(index, "") + field
            if "\ud800" <= field[-1:] <= "\udbff":
                self._halves[index] = field[-1]
                field = field[:-1]
        return provider_messages.whole_text(field)

    def _arguments(self, index: int, arguments: Any) -> str:
        if isinstance(arguments, str):
            return self._whole(index, arguments)
        return provider_messages.arguments_of(arguments)

    def _number(self, index: int) -> int:
        return self._calls.setdefault(index, len(self._calls))


def _parameters(request: ModelRequest, model: Model[Any]) -> ModelRequestParameters:
    is_strict = (
        model.system == provider_messages.OPENAI and request.settings.extra.get("strict") is True
    )
    tools = []
    for tool in request.tools:
        if is_strict:
            strict = strict_parameters(tool.parameters)
        else:
            strict = None
        tools.append(
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=strict or tool.parameters,
                strict=strict is not None,
            )
        )
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def _add_tool_choice(
    settings: dict[str, Any], request: ModelRequest, model: Model[Any], *, is_forced: bool
) -> None:
    # Some models cannot be forced to call a tool. They choose, and the turn's rules do the rest.
    may_force = model.profile.get("supports_forced_tool_choice", True)
    if is_forced and not may_force:
        settings["tool_choice"] = "auto"
    elif request.forced_tool:
        settings["tool_choice"] = [request.forced_tool]
    else:
        settings["tool_choice"] = request.tool_choice
    if request.settings.parallel_tool_calls is not None:
        settings["parallel_tool_calls"] = request.settings.parallel_tool_calls


def _add_anthropic(settings: dict[str, Any], request: ModelRequest, policy: CallPolicy) -> None:
    settings["timeout"] = httpx2.Timeout(
        policy.timeout, connect=min(CONNECT_TIMEOUT, policy.timeout)
    )
    settings["anthropic_cache_instructions"] = True
    settings["anthropic_cache_tool_definitions"] = True
    # The next request begins with this conversation, so its end is marked too.
    settings["anthropic_cache_messages"] = True
    if request.user_id is not None:
        settings["anthropic_metadata"] = {"user_id": request.user_id}


def _add_extra(settings: dict[str, Any], extra: Mapping[str, Any], model: Model[Any]) -> None:
    """Add the fields that go to the provider unchanged, without settings of ours."""
    passed_settings = {
        name: setting for name, setting in extra.items() if name not in _OWN_SETTINGS
    }
    if passed_settings:
        field = "extra_body"
        if model.system == "bedrock":
            field = "bedrock_additional_model_requests_fields"
        settings[field] = settings.get(field, {}) | passed_settings


def _settings(
    request: ModelRequest, info: ModelInfo, model: Model[Any], policy: CallPolicy
) -> dict[str, Any]:
    agent_settings = request.settings
    limit = agent_settings.max_output_tokens or info.max_output_tokens or MAX_OUTPUT_TOKENS
    settings: dict[str, Any] = {"max_tokens": limit, "timeout": policy.timeout, "max_retries": 0}
    takes_temperature = not model.profile.get("anthropic_disallows_sampling_settings")
    if agent_settings.temperature is not None and takes_temperature:
        settings["temperature"] = agent_settings.temperature
    is_forced = request.tool_choice == "required" or request.forced_tool is not None
    if request.tools:
        _add_tool_choice(settings, request, model, is_forced=is_forced)
    if model.system == provider_messages.OPENAI:
        _add_openai(settings, request, info)
    # Providers refuse reasoning together with a forced tool call.
    elif not is_forced and _may_think(request, info, model):
        _add_thinking(settings, request, model)
    if model.system == "anthropic" and model.profile.get("anthropic_binds_thinking_blocks"):
        _unbind_thoughts(settings, request)
    if info.endpoint_type == "anthropic":
        _add_anthropic(settings, request, policy)
    if agent_settings.extra:
        _add_extra(settings, agent_settings.extra, model)
    # Leave out unsupported settings, since the library would warn of them at every call.
    unsupported = model.unsupported_settings
    return {name: setting for name, setting in settings.items() if name not in unsupported}


def _add_openai(settings: dict[str, Any], request: ModelRequest, info: ModelInfo) -> None:
    """Add the settings for OpenAI's responses.

    Nothing is stored at OpenAI. Reasoning comes back encrypted and is stored as it came. It is sent
    back at its position in the transcript.
    """
    agent_settings = request.settings
    dialect = dialect_of(info.endpoint_type, OPENAI_ADDRESS, info.name)
    settings["openai_store"] = False
    if not dialect.takes_temperature:
        settings.pop("temperature", None)
    if agent_settings.max_output_tokens is None:
        del settings["max_tokens"]
    if dialect.effort != "none" and agent_settings.reasoning_effort is not None:
        settings["openai_reasoning_effort"] = agent_settings.reasoning_effort
        # OpenAI shows only a summary of the reasoning, and only on request.
        if agent_settings.reasoning_effort != "none":
            settings["openai_reasoning_summary"] = "auto"
    if request.user_id is not None:
        settings["openai_user"] = request.user_id
    # Reasoning models have no log probabilities, and the library would warn of it.
    if request.logprobs is not None and dialect.takes_temperature:
        settings |= {"openai_logprobs": True, "openai_top_logprobs": request.logprobs}
    text: dict[str, Any] = {}
    if (response_format := agent_settings.response_format) is not None:
        type_ = response_format.get("type", "text")
        schema = response_format.get("json_schema")
        text["format"] = {"type": type_}
        if type_ == "json_schema" and isinstance(schema, dict):
            text["format"] |= schema
    if dialect.takes_verbosity and (verbosity := agent_settings.extra.get("verbosity")):
        text["verbosity"] = verbosity
    if text:
        settings["extra_body"] = {"text": text}


def _may_think(request: ModelRequest, info: ModelInfo, model: Model[Any]) -> bool:
    """Return whether the transcript allows reasoning.

    Claude refuses to continue with reasoning after its calls if these lack signed reasoning.
    """
    if model.system not in {"anthropic", "bedrock"} or model.profile.get(
        "anthropic_supports_adaptive_thinking"
    ):
        return True
    answers = (
        message
        for message in reversed(request.messages)
        if message.role == "assistant" or message.tool_calls
    )
    last = next(answers, None)
    if last is None or not last.tool_calls:
        return True
    thoughts = [
        part
        for part in last.parts
        if isinstance(part, ReasoningPart) and part.provider == info.provider
    ]
    return any(thought.signature or thought.redacted for thought in thoughts)


def _unbind_thoughts(settings: dict[str, Any], request: ModelRequest) -> None:
    # Newer Claude models bind reasoning to the whole prompt before it, and refuse it after a
    # change. Our prompts begin with memory, which changes, so the API is asked to drop such
    # reasoning instead of failing.
    if request.settings.reasoning_effort != "none":
        drop = {"prefix_mismatch_behavior": "drop_block"}
        settings["anthropic_thinking"] = (
            {"type": "adaptive"} | settings.get("anthropic_thinking", {}) | {"block_binding": drop}
        )


def _add_thinking(settings: dict[str, Any], request: ModelRequest, model: Model[Any]) -> None:
    budget = request.settings.max_reasoning_tokens
    effort = request.settings.reasoning_effort
    takes_budget = not model.profile.get("anthropic_disallows_budget_thinking")
    if budget and model.system == "anthropic" and takes_budget:
        budget = max(budget, SMALLEST_THINKING_BUDGET)
        settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": budget}
        # Reasoning and answer share one limit, and reasoning allows no setting of temperature.
        settings["max_tokens"] = max(settings["max_tokens"], budget + SMALLEST_THINKING_BUDGET)
        settings.pop("temperature", None)
    elif budget and model.system in _GOOGLES:
        settings["google_thinking_config"] = {"thinking_budget": budget, "include_thoughts": True}
    elif effort == "none":
        settings["thinking"] = False
    elif effort or budget:
        settings["thinking"] = effort or "medium"
        if model.system == "anthropic":
            settings.pop("temperature", None)
