"""The exchange with a provider as it is on the wire.

A trace keeps it. A preview shows the request without sending it.
"""

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ricordo.llm.loose_json import read_json

Json = dict[str, Any]
_MOST_BYTES = 4 * 1024 * 1024  # the most bytes of one answer that are recorded
_LONG = 200
_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]*")
# Fields whose pieces in a stream are joined to one text; other fields keep their last piece.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "arguments")


class NotSent(BaseException):
    """The request was built for inspection only and not sent.

    It is not an Exception, so that no adapter retries it like an error.
    """


@dataclass(slots=True)
class Exchange:
    """The last request of a call and its answer.

    With `is_preview` nothing is sent, and the call ends with NotSent.
    """

    is_preview: bool = False
    _request_body: bytes = b""
    _answer_body: bytearray = field(default_factory=bytearray)

    def begin(self, body: bytes) -> None:
        """Record the body of a request, and drop the answer to the request before.

        The body contains no API key, since keys are in headers.

        Args:
            body: The body as it is sent.

        Raises:
            NotSent: The call is a preview, so the request is not sent.
        """
        self._request_body = body
        self._answer_body = bytearray()
        if self.is_preview:
            raise NotSent

    def receive(self, piece: bytes) -> None:
        """Record a piece of the answer, up to 4 MiB of the whole.

        Args:
            piece: The next unzipped bytes.
        """
        self._answer_body += piece[: _MOST_BYTES - len(self._answer_body)]

    def request(self) -> Json | None:
        """Return the request's JSON with sizes in place of pictures.

        Returns None if there was no request.
        """
        body = read_json(self._request_body)
        if not isinstance(body, dict):
            return None
        return {name: _without_pictures(field) for name, field in body.items()}

    def response(self) -> Json | None:
        """Return the answer's JSON; None if there was no answer in JSON.

        A stream of chat completions becomes one completion; another stream becomes its events.
        """
        body = bytes(self._answer_body)
        if isinstance(whole := read_json(body), dict):
            return whole
        events = [event for event in _events(body) if isinstance(event, dict)]
        if not events:
            return None
        if all(isinstance(event.get("choices"), list) for event in events):
            return _completion(events)
        return {"events": events}


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""The exchange that records this task's calls to a model, of which it keeps the last."""


def _events(body: bytes) -> Iterator[Any]:
    return (read_json(line[5:].strip()) for line in body.splitlines() if line.startswith(b"data:"))


def _completion(events: Iterable[Json]) -> Json:
    """Join the chunks of a stream to one chat completion."""
    completion: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        completion |= {
            name: field for name, field in event.items() if field is not None and name != "choices"
        }
        for choice in event["choices"]:
            if isinstance(choice, dict):
                joined = choices.setdefault(choice.get("index") or 0, {"message": {}})
                joined |= {
                    name: field
                    for name, field in choice.items()
                    if name not in ("delta", "message")
                }
                _add(joined["message"], choice.get("delta") or choice.get("message") or {})
    return {**completion, "object": "chat.completion", "choices": list(choices.values())}


def _add_call(calls: list[Json], piece: Json) -> None:
    """Join the piece to the call with its index, or begin a call with it."""
    same_index = (row for row in calls if row.get("index") == piece.get("index"))
    joined = next(same_index, None)
    if joined is None:
        joined = {"function": {}}
        calls.append(joined)
    joined |= {part: content for part, content in piece.items() if part != "function"}
    _add(joined["function"], piece.get("function"))


def _add(message: Json, piece: Any) -> None:
    for name, piece_content in piece.items() if isinstance(piece, dict) else ():
        if name in _TEXTS and isinstance(piece_content, str):
            before = message.get(name)  # some servers send lists of parts too
            if isinstance(before, list):
                message[name] = [*before, piece_content]
            else:
                message[name] = (before or "") + piece_content
        elif name == "tool_calls" and isinstance(piece_content, list):
            calls = message.setdefault("tool_calls", [])
            for call in piece_content:
                if isinstance(call, dict):
                    _add_call(calls, call)
        elif piece_content is not None:
            message[name] = piece_content


def _without_pictures(json: Any) -> Any:
    """Return the JSON with each picture's size in its place, in any provider's notation."""
    match json:
        case dict():
            return {name: _without_pictures(inner) for name, inner in json.items()}
        case list():
            return [_without_pictures(inner) for inner in json]
        case str() if json.startswith("data:") and "," in json[:_LONG]:
            return f"{json.partition(',')[0]},({len(json):,} characters)"
        case str() if len(json) > 10 * _LONG and _BASE64.fullmatch(json):
            return f"{len(json) * 3 // 4:,} bytes"
        case _:
            return json
