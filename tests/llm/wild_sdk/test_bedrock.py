"""Bedrock's converse and converse-stream, asked with AWS's real client at a server on loopback.

Shapes follow botocore's model of the service
(`botocore/data/bedrock-runtime/2023-09-30/service-2.json`). Frames follow AWS's documented encoding
of event streams, which `botocore/eventstream.py` reads. Answers follow pydantic-ai's public tests
(`tests/models/test_bedrock.py`).
"""

import importlib
import json
import re
import struct
from binascii import crc32
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from ricordo.domain.message import Message, TextPart, ToolReturnPart
from ricordo.domain.model import ModelInfo, ModelSettings, Restarted
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.llm.talk import CLOCK, HISTORIES, WEATHER, Waits, ask, collect, said, weather_return
from tests.llm.wild.openai_shapes import TIME, WEATHER_IN_ROME, as_joined, joined, meaning_of
from tests.support.model_server import Answer, ModelServer

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"
TEXT = {"text": "I look."}
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "Rome, then.", "signature": "sig-1"}}}
CALL = {"toolUse": {"toolUseId": "tooluse_a", "name": "get_weather", "input": {"city": "Rome"}}}
CALL_B = {"toolUse": {"toolUseId": "tooluse_b", "name": "get_time", "input": {}}}
USAGE = {"inputTokens": 20, "outputTokens": 5, "totalTokens": 25}


# The import is slow, so it does not run for people who only collect these tests.
@pytest.fixture(scope="module", autouse=True)
def _extra() -> None:
    pytest.importorskip("boto3", reason="the extra `bedrock` is not installed")


@pytest.fixture(scope="module", autouse=True)
def one_loader() -> Iterator[None]:
    """Let all clients share the data about AWS's services, since each would read megabytes."""
    session = importlib.import_module("botocore.session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "create_loader", cache(session.create_loader))
        yield


def converse(*blocks: dict[str, Any], stop: str = "end_turn", **usage: int) -> Answer:
    """A whole answer."""
    return Answer(
        {
            "output": {"message": {"role": "assistant", "content": list(blocks)}},
            "stopReason": stop,
            "usage": USAGE | usage,
            "metrics": {"latencyMs": 1},
        }
    )


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One message of an event stream: lengths, checksums, headers that are texts."""
    head = b"".join(
        bytes([len(name)])
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    body = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return body + struct.pack(">I", crc32(body))


def event_frame(kind: str, value: dict[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(value).encode())


def exception_frame(kind: str, message: str) -> bytes:
    headers = {
        ":exception-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return frame(headers, json.dumps({"message": message}).encode())


def converse_stream(
    *blocks: dict[str, Any], stop: str | None = "end_turn", tail: tuple[bytes, ...] = ()
) -> Answer:
    """A streamed answer: each block in two deltas. Without `stop` it ends after the blocks."""
    pieces = [event_frame("messageStart", {"role": "assistant"})]
    for index, block in enumerate(blocks):
        start, deltas = _deltas(block)
        if start:
            pieces.append(
                event_frame("contentBlockStart", {"start": start, "contentBlockIndex": index})
            )
        pieces += [
            event_frame("contentBlockDelta", {"delta": each, "contentBlockIndex": index})
            for each in deltas
        ]
        pieces.append(event_frame("contentBlockStop", {"contentBlockIndex": index}))
    if stop:
        pieces.append(event_frame("messageStop", {"stopReason": stop}))
        pieces.append(event_frame("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}))
    return Answer(
        pieces=(*pieces, *tail), headers={"content-type": "application/vnd.amazon.eventstream"}
    )


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    if "toolUse" in block:
        call = block["toolUse"]
        text = json.dumps(call["input"])
        start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
        return start, [{"toolUse": {"input": piece}} for piece in (text[:5], text[5:])]
    if "reasoningContent" in block:
        thought = block["reasoningContent"]["reasoningText"]
        pieces = [
            {"reasoningContent": {"text": piece}}
            for piece in (thought["text"][:4], thought["text"][4:])
        ]
        return None, [*pieces, {"reasoningContent": {"signature": thought["signature"]}}]
    return None, [{"text": piece} for piece in (block["text"][:3], block["text"][3:])]


def model_at(server: ModelServer, waits: Waits, name: str = CLAUDE) -> ChatModel:
    info = ModelInfo(f"bedrock/{name}", "bedrock", name, "bedrock", 200_000, server.root)
    provider = Provider("bedrock", "", "bedrock", "bedrock", "eu-west-1\nAKIA-1\nsecret-1")
    return build_model(provider, info, Connections(5), waits.policy())


@pytest.fixture
def model(server: ModelServer, waits: Waits) -> ChatModel:
    return model_at(server, waits)


def problems(body: dict[str, Any]) -> list[str]:
    """Return the faults for which Bedrock would refuse a request."""
    found: list[str] = []
    roles = [message["role"] for message in body["messages"]]
    if (
        roles != [("user", "assistant")[place % 2] for place in range(len(roles))]
        or len(roles) % 2 == 0
    ):
        found.append(f"roles must alternate between user and assistant: {roles}")
    waiting: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if sorted(results) != sorted(waiting):
            found.append(f"calls {waiting} have results {results}")
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        if any(not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in waiting):
            found.append("an id with other signs")
        inner = [
            each for block in blocks for each in block.get("toolResult", {}).get("content", [block])
        ]
        if any("text" in each and not each["text"].strip() for each in inner):
            found.append("The text field in the ContentBlock object is blank.")
    return found


async def test_the_server_receives_this_request(model: ChatModel, server: ModelServer) -> None:
    server.push(converse({"text": "Ciao"}, cacheReadInputTokens=100, cacheWriteInputTokens=7))
    settings = ModelSettings(temperature=0.5, max_output_tokens=99)
    reply = await whole_reply(model, ask("Hello", tools=[WEATHER], settings=settings))
    assert (reply.parts, reply.finish) == ((TextPart("Ciao"),), "stop")
    assert reply.usage == Usage(127, 5, 100, 7)
    seen = server.requests[0]
    assert seen.path.endswith("/converse")
    assert "AKIA-1" in seen.headers["authorization"]
    assert "secret-1" not in seen.head.decode()
    assert seen.body["system"][0] == {"text": "Be kind."}
    assert seen.body["messages"] == [{"role": "user", "content": [{"text": "Hello"}]}]
    assert seen.body["inferenceConfig"] == {"maxTokens": 99, "temperature": 0.5}
    declared = seen.body["toolConfig"]["tools"][0]["toolSpec"]
    assert declared["inputSchema"]["json"]["properties"] == WEATHER.parameters["properties"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answers_blocks_are_sent_back_unchanged(
    model: ChatModel, server: ModelServer, stream: bool
) -> None:
    blocks: list[dict[str, Any]] = [THOUGHT, TEXT, CALL, CALL_B]
    server.push(
        (converse_stream if stream else converse)(*blocks, stop="tool_use"),
        converse({"text": "ok"}),
    )
    chunks, reply = await collect(model, ask("x", tools=[WEATHER, CLOCK], stream=stream))
    assert joined(chunks) == (as_joined(reply) if stream else ("", "", []))
    assert meaning_of(reply) == (
        ("thought", "Rome, then."),
        ("text", "I look."),
        WEATHER_IN_ROME,
        TIME,
    )
    returns = said(
        "tool", weather_return("tooluse_a"), ToolReturnPart("tooluse_b", "get_time", "error", "no")
    )
    await whole_reply(
        model, ask("x", said("assistant", *reply.parts), returns, tools=[WEATHER, CLOCK])
    )
    body = server.requests[1].body
    assert body["messages"][1]["content"] == blocks
    assert [block["toolResult"]["status"] for block in body["messages"][2]["content"]] == [
        "success",
        "error",
    ]
    assert problems(body) == []


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("name", [CLAUDE, NOVA])
async def test_every_history_becomes_a_valid_request(
    server: ModelServer, waits: Waits, history: tuple[Message | str, ...], name: str
) -> None:
    server.push(converse({"text": "ok"}))
    await whole_reply(model_at(server, waits, name), ask(*history, tools=[WEATHER]))
    assert problems(server.requests[0].body) == []


@pytest.mark.parametrize(
    ("name", "kind", "tries"),
    [
        ("throttlingException", "llm_rate_limit", 4),
        ("modelStreamErrorException", "llm_error", 4),
        ("validationException", "llm_bad_request", 1),
    ],
)
async def test_an_exception_in_the_stream_is_handled_like_one_before_it(
    model: ChatModel, server: ModelServer, name: str, kind: str, tries: int
) -> None:
    server.push(*[converse_stream(TEXT, stop=None, tail=(exception_frame(name, "It broke."),))] * 4)
    with pytest.raises(ModelError, match="It broke") as caught:
        await collect(model, ask("x", stream=True))
    assert (caught.value.kind, len(server.requests)) == (kind, tries)


@pytest.mark.parametrize("cut", ["between frames", "in a frame", "a wrong checksum"])
async def test_a_broken_stream_is_restarted(
    model: ChatModel, server: ModelServer, waits: Waits, cut: str
) -> None:
    broken = converse_stream(TEXT, stop=None)
    *pieces, last = broken.pieces or ()
    if cut == "in a frame":
        pieces.append(last[:-7])
    elif cut == "a wrong checksum":
        pieces.append(last[:-1] + bytes([last[-1] ^ 1]))
    server.push(Answer(pieces=tuple(pieces), headers=broken.headers), converse_stream(TEXT))
    chunks, reply = await collect(model, ask("x", stream=True))
    assert reply.parts == (TextPart("I look."),)
    assert chunks.count(Restarted()) == len(waits) == 1
