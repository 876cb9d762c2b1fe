"""Input and output of models in our types; providers' formats stay in `llm/`."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from ricordo.domain.hidden_text import unseen_runs, with_marks
from ricordo.domain.message import (
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model_size import MOST_SMALL, is_small
from ricordo.domain.text import is_plain
from ricordo.domain.usage import Usage
from ricordo.errors import Invalid

# The model of a built-in feature, for servers without another model.
LIBRARIAN = "ricordo/librarian"
DEFAULT_CONTEXT_WINDOW = 128_000
SMALL_WINDOW = 8_192  # tokens
_PLAIN_SETTINGS = (
    "temperature",
    "max_output_tokens",
    "parallel_tool_calls",
    "response_format",
    "thinks_in_arguments",
)

ToolChoice = Literal["auto", "required", "none"]
# "full": the agent's own prompt and tools. "small": a short prompt and three tools. "notes": a
# short prompt; notes are taken in a separate call.
ModelProfile = Literal["full", "small", "notes"]
ProfileChoice = Literal["auto", "full", "small", "notes"]
# When the memory in the prompt is rendered again: before each step, at the start of a turn, or as
# late as possible. "lazy" lets the model's server reuse its work on an unchanged prompt.
MemoryInPrompt = Literal["step", "turn", "lazy"]
MemoryInPromptChoice = Literal["auto", "step", "turn", "lazy"]
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]
EmbeddingPurpose = Literal["document", "query"]
"""The purpose of an embedded text: to be found, or to search. Some models distinguish the two."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of a model call; None means the provider's default.

    `extra` is passed to the provider unchanged. With `thinks_in_arguments`, a model that cannot
    reason writes its thoughts into an extra argument of every call.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    thinks_in_arguments: bool | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def answer_schema(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON schema for this `response_format`; None for plain text.

    Raises:
        Invalid: for any other format.
    """
    kind = (response_format or {"type": "text"}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object", "description": "What to say, as a JSON object."}
    wrapper = (response_format or {}).get("json_schema")
    if isinstance(wrapper, Mapping):
        schema = wrapper.get("schema", wrapper)
    else:
        schema = None
    if kind == "json_schema" and isinstance(schema, Mapping) and schema:
        return dict(schema)
    raise Invalid(
        'This response_format is not supported. Use {"type": "text"}, {"type": "json_object"}, or '
        '{"type": "json_schema", "json_schema": {"name": …, "schema": …}}.'
    )


def settings_changes(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to ModelSettings from settings in wire format.

    Keys are field names of ModelSettings; null resets a setting.
    """
    settings = {name: setting for name, setting in wire.items() if name != "provider_type"}
    changes = {name: settings.pop(name) for name in _PLAIN_SETTINGS if name in settings}
    if "reasoning" in settings:
        changes["reasoning_effort"] = (settings.pop("reasoning") or {}).get("reasoning_effort")
    if "thinking" in settings:
        thinking = settings.pop("thinking") or {}
        is_off = thinking.get("type") == "disabled"
        if is_off:
            changes["max_reasoning_tokens"] = None
        else:
            changes["max_reasoning_tokens"] = thinking.get("budget_tokens")
        changes.setdefault("reasoning_effort", "none" if is_off else None)
    if settings:
        changes["extra"] = {
            name: setting for name, setting in settings.items() if setting is not None
        }
    return changes


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A usable model.

    `handle` is `provider/name`; `context_window` is in tokens. `calls_tools` and `parameters` (in
    billions) are None if the provider does not report them.
    """

    handle: str
    provider: str
    name: str
    endpoint_type: str
    context_window: int = DEFAULT_CONTEXT_WINDOW
    endpoint: str | None = None
    max_output_tokens: int | None = None
    calls_tools: bool | None = None
    parameters: float | None = None

    @property
    def is_small(self) -> bool:
        """True for a language model with at most 4 billion parameters or 8k tokens of context."""
        if self.handle == LIBRARIAN:
            return False
        if self.parameters:
            by_size = self.parameters <= MOST_SMALL
        else:
            by_size = is_small(self.name)
        return by_size or self.context_window <= SMALL_WINDOW


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """A usable embedding model.

    `dimensions` is known for common models, and else measured at the first call; None until then.
    """

    handle: str
    provider: str
    name: str
    endpoint_type: str
    dimensions: int | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool for a model; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call: the transcript, the system message first.

    Hidden text is marked, so that a model reads nothing that people cannot see. Only texts with a
    provider's signature, and redacted reasoning, stay unmarked, since the provider checks them.

    `forced_tool` overrides `tool_choice`. `logprobs` asks for the probabilities of the answer's
    tokens, with this many alternatives for each; None asks for none.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = "auto"
    forced_tool: str | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    stream: bool = False
    user_id: str | None = None
    logprobs: int | None = None
    characters: int = field(default=0, init=False)
    """The characters of the messages' texts."""
    pictures: int = field(default=0, init=False)
    """The number of parts that are not text."""

    def __post_init__(self) -> None:
        texts = texts_of(self.messages)
        messages = marked_messages(self.messages, texts)
        if messages is not self.messages:
            texts = texts_of(messages)
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "tools", marked_tools(self.tools))
        object.__setattr__(self, "characters", sum(map(len, texts)))
        part_count = sum([len(message.parts) for message in messages])
        object.__setattr__(self, "pictures", max(0, part_count - len(texts)))

    @property
    def callable_tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the answer may call."""
        if self.tool_choice == "none" and self.forced_tool is None:
            return ()
        return self.tools


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer: reasoning, text and tool calls in order.

    `logprobs` are the tokens with their log probabilities in OpenAI's format; None if the provider
    sent none. `discarded` are the tokens of the call's earlier answers, which could not be used.
    """

    parts: tuple[Part, ...]
    usage: Usage = field(default_factory=Usage)
    finish: FinishReason = "stop"
    model: str = ""
    logprobs: dict[str, list[dict[str, Any]]] | None = None
    discarded: Usage = field(default_factory=Usage)

    @property
    def has_text(self) -> bool:
        """Return whether a person would see any text."""
        return any(isinstance(part, TextPart) and part.text.strip() for part in self.parts)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of streamed text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningChunk:
    """A piece of streamed reasoning.

    `signature` is the provider's proof of the thought that ends with this piece.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """A piece of a streamed tool call.

    `index` tells parallel calls apart. The id and the name come with the first piece.
    """

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """Discard the answer so far: the call failed midway and is repeated."""


Chunk = TextChunk | ReasoningChunk | ToolCallChunk | Restarted


@dataclass(frozen=True, slots=True)
class OrganizationProvider:
    """A provider of one organization.

    `name` is the part before the slash in its models' handles. `provider_type` selects the adapter.
    `secret` holds the encrypted keys. Times are in microseconds, UTC.
    """

    id: str
    organization_id: str
    name: str
    provider_type: str
    created_at: int
    updated_at: int
    base_url: str | None = None
    region: str | None = None
    api_version: str | None = None
    last_synced: int | None = None
    created_by: str | None = None
    updated_by: str | None = None
    secret: str | None = field(default=None, repr=False)


def texts_of(messages: Iterable[Message]) -> list[str]:
    """Return the texts that a model reads in these messages, one for each part that has any."""
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            match part:
                case TextPart():
                    texts.append(part.text)
                case ReasoningPart():
                    texts.append(part.text + (part.redacted or ""))
                case ToolCallPart():
                    texts.append(part.name + part.arguments)
                case ToolReturnPart():
                    texts.append(part.content)
    return texts


def marked_messages(messages: tuple[Message, ...], texts: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages with marks for hidden text; the same messages if they have none.

    `texts` are all of their texts. They are searched as one, since most windows have no hidden
    text.
    """
    joined = "\n".join(texts)
    if "\\u" not in joined and (is_plain(joined) or not unseen_runs(joined)):
        return messages
    marked = tuple(map(_marked_message, messages))
    has_marks = any(new is not old for new, old in zip(marked, messages, strict=True))
    return marked if has_marks else messages


def marked_tools(tools: tuple[ToolSchema, ...]) -> tuple[ToolSchema, ...]:
    """Return the tools with marks for hidden text; the same tools if they have none."""
    with suppress(TypeError):  # for a number of more than 64 bits, which orjson cannot write
        is_ascii = orjson.dumps([tool.parameters for tool in tools]).isascii()
        if is_ascii and is_plain("".join([tool.description for tool in tools])):
            return tools
    marked = tuple(map(_marked_tool, tools))
    has_marks = any(new is not old for new, old in zip(marked, tools, strict=True))
    return marked if has_marks else tools


def _marked_message(message: Message) -> Message:
    parts = tuple(map(_marked_part, message.parts))
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return replace(message, parts=parts)


def _marked_part(part: Part) -> Part:
    match part:
        # A provider's signature proves the exact text, so the text is not changed.
        case TextPart(text=text, signature=None):
            marked = with_marks(text)
            return part if marked is text else replace(part, text=marked)
        case ReasoningPart(text=text, signature=None, redacted=None):
            marked = with_marks(text)
            return part if marked is text else replace(part, text=marked)
        case ToolCallPart(arguments=arguments):
            marked = _marked_json(arguments)
            return part if marked is arguments else replace(part, arguments=marked)
        case ToolReturnPart(content=content):
            marked = with_marks(content)
            return part if marked is content else replace(part, content=marked)
        case _:
            return part


def _marked_json(text: str) -> str:
    """Return a model's JSON with marks, including those for characters written as escapes."""
    text = with_marks(text)
    if "\\u" not in text:
        return text
    try:
        content = orjson.loads(text)
        marked = _marked_value(content)
        return text if marked == content else orjson.dumps(marked).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        # Adapters quote JSON that is not valid or nested too deeply, so its escapes are visible.
        return text


def _marked_tool(tool: ToolSchema) -> ToolSchema:
    description = with_marks(tool.description)
    parameters = _marked_value(tool.parameters)
    if description is tool.description and parameters == tool.parameters:
        return tool
    return replace(tool, description=description, parameters=parameters)


def _marked_value(content: Any) -> Any:
    if isinstance(content, str):
        return with_marks(content)
    if isinstance(content, Mapping):
        return {name: _marked_value(member) for name, member in content.items()}
    if isinstance(content, list):
        return [_marked_value(member) for member in content]
    return content
