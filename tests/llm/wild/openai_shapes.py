"""Helpers for writing answers of OpenAI-compatible servers and their meaning.

The answers are in `*_servers.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    ModelReply,
    ReasoningChunk,
    Restarted,
    TextChunk,
    ToolCallChunk,
)
from tests.support.model_server import Answer, event

Meaning = tuple[str, ...]
ROME, PARIS = '{"city":"Rome"}', '{"city":"Paris"}'
WEATHER_IN_ROME: Meaning = ("call", "get_weather", ROME)
TIME: Meaning = ("call", "get_time", "{}")


@dataclass(frozen=True)
class Case:
    """The answers of a server in order, and the expected meaning of the reply."""

    server: str
    name: str
    answers: tuple[Answer, ...]
    means: tuple[Meaning, ...]
    finish: str = ""
    model: str = "some-model"

    @property
    def streams(self) -> bool:
        return self.answers[0].pieces is not None or "stream was asked for" in self.name

    @property
    def ends(self) -> str:
        """Return the expected reason of the end, or the one that follows from the reply."""
        return self.finish or (
            "tool_calls" if any(kind == "call" for kind, *_ in self.means) else "stop"
        )

    def __str__(self) -> str:
        return f"{self.server}: {self.name}"


def case(name: str, *said: Answer | Meaning, finish: str = "", model: str = "some-model") -> Case:
    answers = tuple(each for each in said if isinstance(each, Answer))
    means = tuple(each for each in said if isinstance(each, tuple))
    return Case("", name, answers, means, finish, model)


def of(server: str, *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(each, server=server) for each in cases)


def body(
    message: dict[str, Any] | None, finish: Any = "stop", *, usage: Any = "counted", **more: Any
) -> Answer:
    counted = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish,
        "logprobs": None,
        **more.pop("choice", {}),
    }
    found = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1730000000,
        "model": "m",
        "choices": [choice],
    }
    return Answer(
        found
        | ({"usage": counted if usage == "counted" else usage} if usage != "missing" else {})
        | more
    )


def delta(value: dict[str, Any] | None, finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": value, "finish_reason": finish, "logprobs": None}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "m",
            "choices": [choice],
            **more,
        }
    )


def last(usage: Any = "counted") -> bytes:
    counted = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
    return event(
        {"id": "chatcmpl-1", "choices": [], "usage": counted if usage == "counted" else usage}
    )


DONE = b"data: [DONE]\n\n"


def events(
    *pieces: bytes, breaks_off: bool = False, content_type: str = "text/event-stream"
) -> Answer:
    return Answer(pieces=pieces, headers={"content-type": content_type}, breaks_off=breaks_off)


def call(name: str, arguments: Any, call_id: Any = "call_1", **more: Any) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


def piece(
    index: Any, *, name: Any = None, arguments: Any = None, call_id: Any = None
) -> dict[str, Any]:
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    found = {"index": index, "id": call_id, "function": function or None}
    return {key: value for key, value in found.items() if value is not None} | (
        {"type": "function"} if name else {}
    )


def meaning_of(reply: ModelReply) -> tuple[Meaning, ...]:
    """Return a short form of a reply."""
    found: list[Meaning] = []
    for part in reply.parts:
        match part:
            case TextPart():
                found.append(("text", part.text))
            case ReasoningPart():
                found.append(("thought", part.text))
            case ToolCallPart():
                found.append(
                    ("call", part.name, orjson.dumps(orjson.loads(part.arguments)).decode())
                )
            case _:
                raise AssertionError(part)
    return tuple(found)


def joined(chunks: Iterable[Chunk]) -> tuple[str, str, list[list[str]]]:
    """Return the text, thoughts and calls that a reader of the chunks has in the end."""
    text, thought, calls = "", "", dict[int, list[str]]()
    for chunk in chunks:
        match chunk:
            case Restarted():
                text, thought, calls = "", "", {}
            case TextChunk():
                text += chunk.text
            case ReasoningChunk():
                thought += chunk.text
            case ToolCallChunk():
                known = calls.setdefault(chunk.index, ["", "", ""])
                known[0] += chunk.call_id or ""
                known[1] += chunk.name or ""
                known[2] += chunk.arguments
    return text.strip(), thought.strip(), [calls[index] for index in sorted(calls)]


def as_joined(reply: ModelReply) -> tuple[str, str, list[list[str]]]:
    """Return the text, thoughts and calls of a reply."""
    parts = reply.parts
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        [part.call_id, part.name, part.arguments]
        for part in parts
        if isinstance(part, ToolCallPart)
    ]
    return text.strip(), thought.strip(), calls


def cut(data: bytes, size: int) -> Sequence[bytes]:
    """Return the bytes in pieces of this size, cut at any position."""
    return [data[at : at + size] for at in range(0, len(data), size)]
