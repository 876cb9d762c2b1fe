"""A turn as parts that begin and end: texts, reasoning, calls and results.

Adapters of other protocols, such as AG-UI and A2A, read a turn in this form.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ricordo.api.models.messages import MessageFormat
from ricordo.api.turn_encoder import TurnEncoder
from ricordo.domain.clock import Clock
from ricordo.domain.event import ApprovalAsked, Event, Failed, RunEnded, StepSaved, waiting_in
from ricordo.domain.message import ToolCallPart
from ricordo.domain.text import Json

PartKind = Literal["text", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of a text, of reasoning, or of the call of the tool `name`."""

    kind: PartKind
    id: str
    message_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """More of a text, of reasoning, or of a call's arguments."""

    kind: PartKind
    id: str
    text: str
    is_first: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a text, of reasoning, or of a call."""

    kind: PartKind
    id: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call, as text."""

    call_id: str
    message_id: str
    text: str
    is_error: bool


PartEvent = Begun | Piece | Ended | Result


ALL_TYPES = frozenset(
    (
        "assistant_message",
        "reasoning_message",
        "tool_call_message",
        "tool_return_message",
        "approval_request_message",
    )
)


class TurnParts:
    """Reads one turn as the beginnings, pieces and ends of its parts.

    A text has the id of its message, and a call has its call id. All parts end with their step. A
    text also ends when the text of another message begins, reasoning when another part begins, and
    a call when a result comes. `types` are the message types to read. `waiting_calls` are the calls
    whose decisions or results the turn waits for.
    """

    def __init__(self, clock: Clock, types: Collection[str] = ALL_TYPES) -> None:
        view = MessageFormat(types=frozenset(types), shows_summaries=False)
        self._encoder = TurnEncoder(view, clock, has_tokens=True)
        self.waiting_calls: tuple[ToolCallPart, ...] = ()
        self._open: dict[str, PartKind] = {}
        self._reasonings = 0
        self._known_calls: set[str] = set()
        self._with_pieces: set[str] = set()

    def read(self, event: Event) -> Iterator[PartEvent]:
        """Yield the beginnings, pieces, ends and results that the event adds."""
        if message := waiting_in(event):
            self.waiting_calls = message.waiting_calls
        if not isinstance(event, RunEnded | Failed):
            for wire in self._encoder.encode(event):
                yield from self._parts_of(wire)
        if isinstance(event, StepSaved | ApprovalAsked | RunEnded | Failed):
            for kind in ("reasoning", "text", "call"):
                yield from self._end(kind)

    def _parts_of(self, wire: Json) -> Iterator[PartEvent]:
        match wire["message_type"]:
            case "assistant_message":
                yield from self._text(wire["id"], wire["content"])
            case "reasoning_message":
                yield from self._reasoning(wire["id"], wire["reasoning"])
            case "tool_call_message" | "approval_request_message":
                calls = wire["tool_calls"]
                for call in calls if isinstance(calls, list) else [calls]:
                    yield from self._call(wire["id"], call)
            case "tool_return_message":
                for result in wire["tool_returns"]:
                    yield from self._end("call")
                    is_error = result["status"] == "error"
                    text = _text_of(result["tool_return"])
                    yield Result(result["tool_call_id"], wire["id"], text, is_error)

    def _text(self, message_id: str, text: str) -> Iterator[PartEvent]:
        if not text:
            return
        yield from self._end("reasoning")
        if message_id not in self._open:
            yield from self._end("text")
            self._open[message_id] = "text"
            yield Begun("text", message_id, message_id)
        yield self._piece("text", message_id, text)

    def _reasoning(self, message_id: str, text: str) -> Iterator[PartEvent]:
        if not text:
            return
        id = next((id for id, kind in self._open.items() if kind == "reasoning"), None)
        if id is None:
            self._reasonings += 1
            id = f"{message_id}-reasoning-{self._reasonings}"
            self._open[id] = "reasoning"
            yield Begun("reasoning", id, message_id)
        yield self._piece("reasoning", id, text)

    def _call(self, message_id: str, call: Json) -> Iterator[PartEvent]:
        call_id = call["tool_call_id"]
        yield from self._end("reasoning")
        if call_id not in self._known_calls:
            self._known_calls.add(call_id)
            self._open[call_id] = "call"
            yield Begun("call", call_id, message_id, call.get("name") or "")
        if call.get("arguments") and call_id in self._open:
            yield self._piece("call", call_id, call["arguments"])

    def _piece(self, kind: PartKind, id: str, text: str) -> Piece:
        is_first = id not in self._with_pieces
        self._with_pieces.add(id)
        return Piece(kind, id, text, is_first)

    def _end(self, kind: PartKind) -> Iterator[Ended]:
        for id in [id for id, open_kind in self._open.items() if open_kind == kind]:
            del self._open[id]
            yield Ended(kind, id)


def _text_of(content: Any) -> str:
    """Return a result as text. The content is a text, or a list of texts and pictures."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("text"))
    return str(content)
