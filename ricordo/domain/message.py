"""Messages and their parts. A message is kept as it was said; other layers render it for models and for the wire."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import orjson

Role = Literal["system", "user", "assistant", "tool", "approval", "summary"]
EventKind = Literal["login", "heartbeat", "alert", "rejection", "task", "transcript"]
Trigger = Literal["window", "provider", "request"]
# The tool by which an agent speaks that answers only through tools, and its argument.
SPEECH_TOOL, SPEECH_ARGUMENT = "send_message", "message"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text. `signature` is a provider's proof that has to be sent back with it."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class EventPart(TextPart):
    """A system event: text that the server wrote into a user message, as models read it. No request can bring one."""

    event: EventKind = "alert"


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture: base64 `data` with its media type, or the address `url` it lies at."""

    media_type: str
    data: str | None = None
    url: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the model thought. `signature` proves it to its provider; `redacted` holds thoughts only that provider can read."""

    text: str
    signature: str | None = None
    redacted: str | None = None
    native: bool = True
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A call the model asks for. `arguments` is the JSON text as the model wrote it.

    With `is_gated` it waits: for a person's approval, or for the client, whose tool it is.
    """

    call_id: str
    name: str
    arguments: str
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class ToolReturnPart:
    """What a call gave. `content` is the text the agent sees, before packaging; `is_json` tells that it is JSON, not words.

    `sources` are the ids of the passages and messages it quotes, and `said` those among them that the conversation's user
    wrote; `is_untrusted` tells that its content is untrusted, `is_refused` that the call was not run, by a rule or since it
    could not be read. `pictures` are those in the result of a client's tool, and `request_id` is the message that asked for it.
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


@dataclass(frozen=True, slots=True)
class ApprovalPart:
    """What a person decided about a call that waited, and the message that asked for it."""

    call_id: str
    approves: bool
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionPart:
    """What a summary took the place of: the messages that left the window, and its size in tokens by our own estimate."""

    trigger: Trigger
    evicted: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    context_window: int
    messages_before: int
    messages_after: int
    is_whole: bool = False  # all that was said left, and not the oldest part alone


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
    """One stored message. `seq` is 0 until it is stored; times are microseconds, UTC."""

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
    # Whether it holds untrusted content, or came from a step that had read such.
    is_untrusted: bool = False

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def spoken(self) -> str:
        said = [self.text] if self.text else []
        return "\n".join([*said, *(words for call in self.tool_calls if (words := _said_by(call)))])

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls the assistant asked for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def tool_returns(self) -> tuple[ToolReturnPart, ...]:
        """The results in a tool message, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolReturnPart))

    @property
    def is_waiting(self) -> bool:
        return self.role == "approval" and any(call.is_gated for call in self.tool_calls)

    @property
    def is_said(self) -> bool:
        """Whether a user said this."""
        return self.role == "user" and not self.is_event

    @property
    def is_event(self) -> bool:
        return self.role == "user" and any(isinstance(part, EventPart) for part in self.parts)

    def with_text(self, text: str) -> "Message":
        return replace(self, parts=(TextPart(text),))


def _said_by(call: ToolCallPart) -> str:
    if call.name != SPEECH_TOOL:
        return ""
    try:
        arguments = orjson.loads(call.arguments)
    except ValueError:
        return ""
    return str(arguments.get(SPEECH_ARGUMENT, "")) if isinstance(arguments, dict) else ""


def parts_to_json(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Parts as they are stored: each a dict with its `kind`, fields at their defaults left out."""
    rows = []
    for part in parts:
        row: dict[str, Any] = {"kind": _NAMES[type(part)]}
        for name, default in _DEFAULTS[type(part)].items():
            value = getattr(part, name)
            if value != default:
                row[name] = [asdict(picture) for picture in value] if name == "pictures" else value
        rows.append(row)
    return rows


def parts_from_json(rows: Iterable[dict[str, Any]]) -> tuple[Part, ...]:
    """The mirror of `parts_to_json`."""
    parts = []
    for row in rows:
        values = dict(row)
        kind = _KINDS[values.pop("kind")]
        for listed in ("stdout", "stderr", "evicted", "sources", "said"):
            if listed in values:
                values[listed] = tuple(values[listed])
        if "pictures" in values:
            values["pictures"] = tuple(ImagePart(**picture) for picture in values["pictures"])
        parts.append(kind(**values))
    return tuple(parts)
