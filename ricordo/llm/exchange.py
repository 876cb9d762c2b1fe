"""What goes to a provider and comes back, as it is on the wire: kept for a trace, or looked at instead of being sent."""

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ricordo.llm.loose_json import read_json

Json = dict[str, Any]
_MOST = 4 * 1024 * 1024  # bytes of an answer that are kept
_LONG = 200
_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]*")
# The pieces of a stream that are put together to one text; of all else the last piece counts.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "arguments")


class NotSent(BaseException):
    """The request was made and not sent, since it was only to be looked at. No adapter takes it for an error to try again."""


@dataclass(slots=True)
class Exchange:
    """The last request of a call and its answer. With `is_preview` nothing is sent: the call ends with NotSent."""

    is_preview: bool = False
    _sent: bytes = b""
    _received: bytearray = field(default_factory=bytearray)

    def begin(self, body: bytes) -> None:
        """Keep the body of a request, which has no key: keys are in headers. Raises NotSent for a preview."""
        self._sent, self._received = body, bytearray()
        if self.is_preview:
            raise NotSent

    def receive(self, data: bytes) -> None:
        self._received += data[: _MOST - len(self._received)]

    def request(self) -> Json | None:
        """Return the request's JSON, of pictures only their size; None where nothing was sent, or no JSON."""
        body = read_json(self._sent)
        return (
            {name: _without_pictures(item) for name, item in body.items()}
            if isinstance(body, dict)
            else None
        )

    def response(self) -> Json | None:
        """Return the answer's JSON, put together where it was a stream of completions, else its events; None for no JSON."""
        body = bytes(self._received)
        if isinstance(whole := read_json(body), dict):
            return whole
        events = [event for event in _events(body) if isinstance(event, dict)]
        if not events:
            return None
        if all(isinstance(event.get("choices"), list) for event in events):
            return _completion(events)
        return {"events": events}


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""Where the calls to a model that this task makes are kept."""


def _events(body: bytes) -> Iterator[Any]:
    return (read_json(line[5:].strip()) for line in body.splitlines() if line.startswith(b"data:"))


def _completion(events: Iterable[Json]) -> Json:
    """The chat completion that a stream of chunks makes."""
    whole: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        whole |= {
            name: value for name, value in event.items() if value is not None and name != "choices"
        }
        for choice in event["choices"]:
            if isinstance(choice, dict):
                known = choices.setdefault(choice.get("index") or 0, {"message": {}})
                known |= {
                    name: value
                    for name, value in choice.items()
                    if name not in ("delta", "message")
                }
                _add(known["message"], choice.get("delta") or choice.get("message") or {})
    return {**whole, "object": "chat.completion", "choices": list(choices.values())}


def _add(message: Json, piece: Any) -> None:
    for name, value in piece.items() if isinstance(piece, dict) else ():
        if name in _TEXTS and isinstance(value, str):
            before = message.get(name)  # some servers send lists of parts too
            message[name] = [*before, value] if isinstance(before, list) else (before or "") + value
        elif name == "tool_calls" and isinstance(value, list):
            calls = message.setdefault("tool_calls", [])
            for call in (call for call in value if isinstance(call, dict)):
                known = next((one for one in calls if one.get("index") == call.get("index")), None)
                if known is None:
                    calls.append(known := {"function": {}})
                known |= {part: item for part, item in call.items() if part != "function"}
                _add(known["function"], call.get("function"))
        elif value is not None:
            message[name] = value


def _without_pictures(value: Any) -> Any:
    """The value with the size of each picture in its place, whichever way its provider writes it."""
    match value:
        case dict():
            return {name: _without_pictures(item) for name, item in value.items()}
        case list():
            return [_without_pictures(item) for item in value]
        case str() if value.startswith("data:") and "," in value[:_LONG]:
            return f"{value.partition(',')[0]},({len(value):,} characters)"
        case str() if len(value) > 10 * _LONG and _BASE64.fullmatch(value):
            return f"{len(value) * 3 // 4:,} bytes"
        case _:
            return value
