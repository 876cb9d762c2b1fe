"""What goes into a model and what comes out, in our own words; providers' formats stay in `llm/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.message import Message, Part
from ricordo.domain.model_size import MOST_SMALL, is_small
from ricordo.domain.usage import Usage
from ricordo.errors import Invalid

# The model of a built-in feature, for a server where no other is configured or found.
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
# "full": the agent's own prompt and tools. "small": a short prompt and three tools. "notes": a short prompt, and notes that are
# taken by a call of their own.
ModelProfile = Literal["full", "small", "notes"]
ProfileChoice = Literal["auto", "full", "small", "notes"]
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]
EmbeddingPurpose = Literal["document", "query"]
"""What a vector is for: to be found, or to find. Several models want to be told."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How to ask. None means: the provider's own default. `extra` is passed on to the provider as it is.

    With `thinks_in_arguments` a model without thoughts of its own writes them down as an argument of every call.
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
    """Return the JSON schema of an answer in this `response_format`; None for plain text. Raises Invalid for any other format."""
    kind = (response_format or {"type": "text"}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object", "description": "What to say, as a JSON object."}
    given = (response_format or {}).get("json_schema")
    schema = given.get("schema", given) if isinstance(given, Mapping) else None
    if kind == "json_schema" and isinstance(schema, Mapping) and schema:
        return dict(schema)
    raise Invalid(
        'This response_format is not one we know. Use {"type": "text"}, {"type": "json_object"}, or '
        '{"type": "json_schema", "json_schema": {"name": …, "schema": …}}.'
    )


def settings_changes(wire: Mapping[str, Any]) -> dict[str, Any]:
    """What model settings as on the wire change, by the names of ModelSettings; null takes a setting back."""
    given = {name: value for name, value in wire.items() if name != "provider_type"}
    changes = {name: given.pop(name) for name in _PLAIN_SETTINGS if name in given}
    if "reasoning" in given:
        changes["reasoning_effort"] = (given.pop("reasoning") or {}).get("reasoning_effort")
    if "thinking" in given:
        thinking = given.pop("thinking") or {}
        is_off = thinking.get("type") == "disabled"
        changes["max_reasoning_tokens"] = None if is_off else thinking.get("budget_tokens")
        changes.setdefault("reasoning_effort", "none" if is_off else None)
    if given:
        changes["extra"] = {name: value for name, value in given.items() if value is not None}
    return changes


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that can be used here. `handle` is `provider/name`; `context_window` is in tokens.

    `calls_tools` is None where its provider does not say, as are its `parameters`, in billions.
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
        """Return whether this is a language model of at most 4 billion parameters, or with at most 8k tokens of context."""
        if self.handle == LIBRARIAN:
            return False
        by_size = self.parameters <= MOST_SMALL if self.parameters else is_small(self.name)
        return by_size or self.context_window <= SMALL_WINDOW


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """An embedding model that can be used here. `dimensions` is None until the model was first asked: it is never typed in."""

    handle: str
    provider: str
    name: str
    endpoint_type: str
    dimensions: int | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a model sees it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call: the transcript, the system message first. `forced_tool` overrides `tool_choice`.

    With `logprobs` the probabilities of the answer's tokens are wanted, and so many alternatives to each; None: they are not.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = "auto"
    forced_tool: str | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    stream: bool = False
    user_id: str | None = None
    logprobs: int | None = None

    @property
    def callable_tools(self) -> tuple[ToolSchema, ...]:
        """The tools that an answer may call."""
        return () if self.tool_choice == "none" and self.forced_tool is None else self.tools


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer: reasoning, text and tool calls in their order.

    `logprobs` are the tokens with their log probabilities, as OpenAI writes them; None where the provider gave none.
    """

    parts: tuple[Part, ...]
    usage: Usage = field(default_factory=Usage)
    finish: FinishReason = "stop"
    model: str = ""
    logprobs: dict[str, list[dict[str, Any]]] | None = None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of text, as it arrives."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningChunk:
    """A piece of reasoning, as it arrives. `signature` is the provider's proof of the thought that ends with it."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """A piece of a tool call: `index` tells parallel calls apart; id and name come with the first piece."""

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """The answer so far is void: the call broke off and is made again."""


Chunk = TextChunk | ReasoningChunk | ToolCallChunk | Restarted


@dataclass(frozen=True, slots=True)
class OrganizationProvider:
    """A provider of one organization. `secret` holds its keys, encrypted; times are microseconds, UTC.

    `name` is the first half of its models' handles; `provider_type` tells what it speaks.
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
