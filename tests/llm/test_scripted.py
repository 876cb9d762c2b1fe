"""The scripted model of the tests."""

import math

import pytest

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.chat import chunks_of, whole_reply
from ricordo.llm.scripted import ScriptedEmbedder, ScriptedModel, call
from tests.llm.talk import ask, collect


async def test_replies_come_in_the_order_of_the_script() -> None:
    model = ScriptedModel(
        [
            "one",
            call("get_time"),
            (TextPart("two"), call("get_time"), call("get_weather", city="Rome")),
        ]
    )
    first, second, third = [await whole_reply(model, ask(text)) for text in "abc"]
    assert first.parts == (TextPart("one"),)
    assert first.finish == "stop"
    assert second.finish == "tool_calls"
    assert [part.arguments for part in third.parts if isinstance(part, ToolCallPart)] == [
        "{}",
        '{"city":"Rome"}',
    ]
    assert [request.messages[-1].text for request in model.requests] == ["a", "b", "c"]


async def test_chunks_are_streamed_word_by_word_on_request() -> None:
    reply = ModelReply(
        (ReasoningPart("a b"), TextPart("Hi there  you"), call("get_time")),
        Usage(1, 2),
        "tool_calls",
        "m",
    )
    chunks, whole = await collect(ScriptedModel([reply]), ask("x", stream=True))
    assert whole == reply
    assert [c.text for c in chunks if isinstance(c, ReasoningChunk)] == ["a ", "b"]
    assert [c.text for c in chunks if isinstance(c, TextChunk)] == ["Hi ", "there  ", "you"]
    assert [c.name for c in chunks if isinstance(c, ToolCallChunk)] == ["get_time"]
    assert (await collect(ScriptedModel([reply]), ask("x")))[0] == []


async def test_an_exhausted_script_is_an_error() -> None:
    model = ScriptedModel(["one"], name="short")
    await whole_reply(model, ask("x"))
    with pytest.raises(ModelError, match=r"The script of scripted/short has no reply for call 2"):
        await whole_reply(model, ask("x"))


REPLY = ModelReply(
    (
        ReasoningPart("a b"),
        TextPart(" c\nd "),
        ToolCallPart("1", "x", "{}"),
        ToolCallPart("2", "y", "{}"),
        TextPart(""),
    )
)


def test_each_part_is_one_chunk_and_calls_are_numbered() -> None:
    assert list(chunks_of(REPLY)) == [
        ReasoningChunk("a b"),
        TextChunk(" c\nd "),
        ToolCallChunk(0, "{}", "1", "x"),
        ToolCallChunk(1, "{}", "2", "y"),
    ]


def test_chunks_by_word_keep_all_spaces() -> None:
    chunks = list(chunks_of(REPLY, by_word=True))
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == " c\nd "
    assert len(chunks) == 7


async def test_texts_with_common_words_are_similar() -> None:
    tea, more_tea, train = await ScriptedEmbedder().embed(
        ["jasmine tea", "Jasmine tea, please", "a train to Rome"]
    )
    near, far = (sum(a * b for a, b in zip(tea, other, strict=True)) for other in (more_tea, train))
    assert near > 0.6 > far
    assert [math.hypot(*vector) for vector in (tea, more_tea, train)] == pytest.approx([1, 1, 1])
