"""Messages and their parts, stored as they were written.

Other layers render them for models and for the wire.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import orjson

from ricordo.domain.text import nests_deeply

Role = Literal["system", "user", "assistant", "tool", "approval", "summary"]
EventKind = Literal["login", "heartbeat", "alert", "rejection", "task", "transcript"]
Trigger = Literal["window", "provider", "request"]
# Agents that answer only through tools speak by this tool, with the text in this argument.
SPEECH_TOOL = "send_message"
SPEECH_ARGUMENT = "message"
# The types of pictures that all providers take.
PICTURE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text.

    `signature` is a provider's proof, which has to be sent back with the text.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class EventPart(TextPart):
    """A system event: text that the server wrote, which models read in a user message.

    Requests cannot contain this part.
    """

    event: EventKind = "alert"


_LONGEST_URL = 2_000  # characters of a picture's address that are shown


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture: base64 `data` with its media type, or the `url` where it is stored.

    `text` is its caption or the text in it. A program or a model read it, so it is untrusted. It is
    None before the picture is read, and "" if nothing was found. Searches and summaries read it;
    the agent's model gets the picture alone.
    """

    media_type: str
    data: str | None = None
    url: str | None = None
    detail: str | None = None
    text: str | None = None

    @property
    def short_url(self) -> str | None:
        """The address to show, without the content of a `data:` address, which may be megabytes."""
        if self.url is None:
            return None
        length = f"({len(self.url):,} characters)"
        if self.url.startswith("data:"):
            return f"{self.url.partition(',')[0][:_LONGEST_URL]},{length}"
        if len(self.url) > _LONGEST_URL:
            return f"{self.url[:_LONGEST_URL]}… {length}"
        return self.url

    @property
    def shown_text(self) -> str:
        """The text with a mark that it is from a picture; "" without a text."""
        return f"[picture: {self.text}]" if self.text else ""


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """The model's reasoning.

    `signature` proves to the provider that it wrote this. `redacted` holds reasoning that only the
    provider can read. `native` is False for reasoning that a model wrote into its answer or into
    the arguments of a call.
    """

    text: str
    signature: str | None = None
    redacted: str | None = None
    native: bool = True
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A tool call by the model, with `arguments` as the JSON text that the model wrote.

    With `is_gated`, the call waits for a person's approval, or for the client that runs the tool.
    """

    call_id: str
    name: str
    arguments: str
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class ToolReturnPart:
    """The result of a tool call.

    `content` is the text for the agent before packaging; with `is_json` it is JSON, not prose.
    `sources` are the ids of the passages and messages that it quotes; `said` are those by the
    conversation's user. `is_untrusted` marks untrusted content. `is_refused` marks a call that was
    not run, because of a rule or because it could not be read. `pictures` come from a client's
    tool. `request_id` is the message that contains the call.
    """

    call_id: str
    name: str
    status: Literal["success", "error"]
    content: str
    is_json: bool = False
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    is_untrusted: bool = False
    is_refused: bool = False
    said: tuple[str, ...] = ()
    pictures: tuple[ImagePart, ...] = ()
    request_id: str | None = None

    def decoded(self) -> Any:
        """Return the content: the value of its JSON, or the text.

        A content may have been changed after it was stored, so that it is no JSON any more. Then it
        counts as text, and so does deeply nested JSON. Raising an error here would end every later
        turn of the conversation.
        """
        if not self.is_json:
            return self.content
        try:
            value = orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return self.content
        return self.content if nests_deeply(self.content, value) else value


@dataclass(frozen=True, slots=True)
class ApprovalPart:
    """A person's decision about a waiting call, with the id of the message that asked for it."""

    call_id: str
    approves: bool
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionPart:
    """Statistics of a summary: the evicted messages and the window before and after.

    Sizes are in tokens, by our estimate.
    """

    trigger: Trigger
    evicted: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    context_window: int
    messages_before: int
    messages_after: int
    is_whole: bool = False  # everything before the turn was evicted, not just the oldest part


Part = (
    TextPart
    | EventPart
    | ImagePart
    | ReasoningPart
    | ToolCallPart
    | ToolReturnPart
    | ApprovalPart
    | CompactionPart
)
_KINDS: dict[str, type[Part]] = {
    "text": TextPart,
    "event": EventPart,
    "image": ImagePart,
    "reasoning": ReasoningPart,
    "tool_call": ToolCallPart,
    "tool_return": ToolReturnPart,
    "approval": ApprovalPart,
    "compaction": CompactionPart,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_DEFAULTS = {kind: {field.name: field.default for field in fields(kind)} for kind in _NAMES}


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    `seq` is 0 until it is stored. Times are in microseconds, UTC. `tool_calls` are the assistant's
    calls and `tool_returns` the results in a tool message, in order; both are among the `parts`.
    """

    id: str
    agent_id: str
    conversation_id: str
    role: Role
    parts: tuple[Part, ...]
    created_at: int
    seq: int = 0
    organization_id: str = ""
    user_id: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    model: str | None = None
    # True if it contains untrusted content, or comes from a step that had read some.
    is_untrusted: bool = False
    # The label of the egress policies of its sources (`domain/egress.py`).
    egress: str | None = None
    tool_calls: tuple[ToolCallPart, ...] = field(default=(), init=False, repr=False, compare=False)
    tool_returns: tuple[ToolReturnPart, ...] = field(
        default=(), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        calls = [part for part in self.parts if isinstance(part, ToolCallPart)]
        results = [part for part in self.parts if isinstance(part, ToolReturnPart)]
        if calls:
            object.__setattr__(self, "tool_calls", tuple(calls))
        if results:
            object.__setattr__(self, "tool_returns", tuple(results))

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def spoken(self) -> str:
        calls = (call for call in self.tool_calls if call.name == SPEECH_TOOL)
        texts = [self.text, *map(_spoken_text, calls)]
        return "\n".join(filter(None, texts))

    @property
    def pictures(self) -> tuple[ImagePart, ...]:
        """The message's pictures, and those in results."""
        pictures = [part for part in self.parts if isinstance(part, ImagePart)]
        return (*pictures, *(picture for part in self.tool_returns for picture in part.pictures))

    @property
    def picture_text(self) -> str:
        """The texts of its pictures, which its author did not write."""
        return "\n".join(filter(None, (picture.shown_text for picture in self.pictures)))

    @property
    def waiting_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that wait for an approval, or for the client that runs their tools."""
        return tuple(call for call in self.tool_calls if call.is_gated)

    @property
    def is_waiting(self) -> bool:
        return self.role == "approval" and any(call.is_gated for call in self.tool_calls)

    @property
    def is_said(self) -> bool:
        """True if a user wrote this message."""
        return self.role == "user" and not any(isinstance(part, EventPart) for part in self.parts)

    @property
    def is_event(self) -> bool:
        return self.role == "user" and any(isinstance(part, EventPart) for part in self.parts)

    def with_text(self, text: str) -> "Message":
        return replace(self, parts=(TextPart(text),))


def _spoken_text(call: ToolCallPart) -> str:
    try:
        arguments = orjson.loads(call.arguments)
    except ValueError:
        return ""
    if isinstance(arguments, dict) and not nests_deeply(call.arguments, arguments):
        return str(arguments.get(SPEECH_ARGUMENT, ""))
    return ""


def parts_to_json(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Return parts as stored dicts with their `kind`, without fields at their defaults."""
    rows = []
    for part in parts:
        row: dict[str, Any] = {"kind": _NAMES[type(part)]}
        for name, default in _DEFAULTS[type(part)].items():
            content = getattr(part, name)
            if content != default:
                if name == "pictures":
                    row[name] = [asdict(picture) for picture in content]
                else:
                    row[name] = content
        rows.append(row)
    return rows


def parts_from_json(rows: Iterable[dict[str, Any]]) -> tuple[Part, ...]:
    """Return the parts that `parts_to_json` stored."""
    parts = []
    for row in rows:
        fields_of_part = dict(row)
        kind = _KINDS[fields_of_part.pop("kind")]
        for name in ("stdout", "stderr", "evicted", "sources", "said"):
            if name in fields_of_part:
                fields_of_part[name] = tuple(fields_of_part[name])
        if "pictures" in fields_of_part:
            pictures = fields_of_part["pictures"]
            fields_of_part["pictures"] = tuple(ImagePart(**picture) for picture in pictures)
        parts.append(kind(**fields_of_part))
    return tuple(parts)
