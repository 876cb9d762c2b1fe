"""Answers over the SDKs in which any field has any JSON type.

Only a `ModelError` that names the answer may be raised, and each text of a reply is a string that
can be stored.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelInfo, TextChunk
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.campaigns.sizes import short_and_long
from tests.llm.talk import WEATHER, Waits, ask, claude_at, collect
from tests.llm.test_answer_types import ODD, paths
from tests.llm.test_openai_responses import THOUGHT, WORDS, called, response, streamed
from tests.llm.wild_sdk.test_google import gemini, gemini_at
from tests.support.model_server import Answer, ModelServer, claude, claude_stream, event

BLOCKS: tuple[dict[str, Any], ...] = (
    {"type": "thinking", "thinking": "Hm.", "signature": "sig-1"},
    {"type": "redacted_thinking", "data": "secret-1"},
    {"type": "text", "text": "Hi.", "citations": None},
    {"type": "tool_use", "id": "toolu_a", "name": "get_weather", "input": {"city": "Rome"}},
)
GEMINI = gemini(
    {"text": "Hm.", "thought": True},
    {"text": "Hi."},
    {
        "functionCall": {"name": "get_weather", "args": {"city": "Rome"}, "id": "c1"},
        "thoughtSignature": "c2ln",
    },
)
ITEMS = (THOUGHT, WORDS, called())
HALF = "z\ud83d"
VALUES: tuple[Any, ...] = (*ODD, HALF, 10**30, "x", ["x"])
WHOLE: dict[str, Any] = {
    "anthropic": claude(*BLOCKS, stop="tool_use").body,
    "google": GEMINI,
    "openai": response(*ITEMS),
}


def events_of(answer: Answer) -> list[Any]:
    """Return the JSON of each event of a stream."""
    return [json.loads(piece.split(b"data: ")[1]) for piece in answer.pieces or ()]


EVENTS: dict[str, list[Any]] = {
    "anthropic": events_of(claude_stream(*BLOCKS, stop="tool_use")),
    "google": [gemini({"text": "Hi."}, finish=None), GEMINI],
    "openai": events_of(streamed(*ITEMS)),
}


def stream_of(events: Sequence[Any]) -> Answer:
    """Return a stream; each event has its type as its name if it has one."""
    pieces = []
    for each in events:
        type_ = each.get("type") if isinstance(each, dict) else None
        named = isinstance(type_, str) and type_.isascii() and type_.isprintable()
        pieces.append(event(each, type_ if named else None))
    return Answer(pieces=tuple(pieces), headers={"content-type": "text/event-stream"})


def changed(value: Any, path: tuple[Any, ...], field: Any) -> Any:
    """Return a copy with another field at this path."""
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = field
    return value


def model_of(
    provider: str, server: ModelServer, connections: Connections, waits: Waits
) -> ChatModel:
    if provider == "anthropic":
        return claude_at(server, connections, waits)
    if provider == "google":
        pytest.importorskip("google.genai", reason="the extra `google` is not installed")
        return gemini_at(server, connections, waits)
    info = ModelInfo("openai/gpt-5-mini", "openai", "gpt-5-mini", "openai", 400_000, server.url)
    row = Provider("openai", "", "openai", "openai", "key-1", api="responses")
    return build_model(row, info, connections, waits.policy(retries=0))


def texts_of(parts: Sequence[Any]) -> Iterator[Any]:
    """Yield the fields of a reply that are stored as texts."""
    for part in parts:
        match part:
            case TextPart():
                yield from (part.text, part.signature or "")
            case ReasoningPart():
                yield from (part.text, part.signature or "", part.redacted or "")
            case ToolCallPart():
                yield from (part.call_id, part.name, part.arguments)


async def check(model: ChatModel, server: ModelServer, answer: Answer) -> None:
    """Read an answer; its reply, or its error, must be proper."""
    server.clear()
    server.push(*[answer] * 4)
    is_stream = answer.pieces is not None
    try:
        _, reply = await collect(model, ask("x", tools=[WEATHER], stream=is_stream))
    except ModelError as error:
        assert "cannot take this request" not in str(error)  # noqa: PT017 - one of two outcomes
    else:
        for text in (reply.model, *texts_of(reply.parts)):
            assert isinstance(text, str)
            text.encode()


def some(values: Any, *, every: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each path of this value with some of `VALUES`, other ones for the next path."""
    for number, path in enumerate(paths(values)):
        for value in VALUES[number % every :: every]:
            yield path, value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("provider", WHOLE)
@pytest.mark.parametrize("every", short_and_long(18, 1))
async def test_each_field_of_a_whole_answer_may_have_any_type(
    provider: str, every: int, server: ModelServer, connections: Connections, waits: Waits
) -> None:
    model = model_of(provider, server, connections, waits)
    for path, value in some(WHOLE[provider], every=every):
        await check(model, server, Answer(changed(WHOLE[provider], path, value)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("provider", EVENTS)
@pytest.mark.parametrize("every", short_and_long(50, 1))
async def test_each_field_of_an_event_may_have_any_type(
    provider: str, every: int, server: ModelServer, connections: Connections, waits: Waits
) -> None:
    model = model_of(provider, server, connections, waits)
    for path, value in some(EVENTS[provider], every=every):
        await check(model, server, stream_of(changed(EVENTS[provider], path, value)))


async def test_a_split_character_of_a_stream_arrives_whole(
    server: ModelServer, connections: Connections, waits: Waits
) -> None:
    events = events_of(claude_stream({"type": "text", "text": "a\ud83d\ude00b\ud83d"}))
    server.push(stream_of(events))
    model = claude_at(server, connections, waits)
    chunks, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (TextPart("a😀b\ufffd"),)
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == "a😀b\ufffd"
