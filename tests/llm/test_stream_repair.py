"""The mending of what is streamed: what readers see in the end is what the reply says."""

import time

import pytest

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ReasoningChunk, Restarted, TextChunk, ToolCallChunk, ToolSchema
from ricordo.llm.repair import StreamRepair, repair
from tests.llm.talk import CLOCK, WEATHER
from tests.llm.test_written_calls import HOSTILE
from tests.llm.wild import openai_shapes

TOOLS = (WEATHER, CLOCK)


def reply(*parts: Part | str) -> ModelReply:
    return ModelReply(tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def streamed(pieces: list[str], tools: tuple[ToolSchema, ...] = TOOLS) -> list[Chunk]:
    stream = StreamRepair(tools)
    chunks = [chunk for piece in pieces for chunk in stream.feed(TextChunk(piece))]
    return chunks + list(stream.close(repair(reply("".join(pieces)), tools)))


def joined(chunks: list[Chunk], kind: type[TextChunk] | type[ReasoningChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, kind))


def test_plain_text_passes_through_at_once() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk("He"))) == [TextChunk("He")]
    assert list(stream.feed(TextChunk("llo"))) == [TextChunk("llo")]


def test_json_is_not_held_back_where_no_tool_was_offered() -> None:
    stream = StreamRepair(())
    assert list(stream.feed(TextChunk('{"city"'))) == [TextChunk('{"city"')]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "plain words, and a list: [1, 2] < 3",
        'Look:\n```json\n{"a": 1}\n```\nThat was an example.',
        "Look:\n```python\nprint(1)\n```",
        'I look.\n```json\n{"name": "get_time", "arguments": {}}\n```',
        'I look. <tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        "I look. <tool_call>{broken",
        "hm</think>Yes.",
        "<think>\n hm \n</think>\n\n[get_time()]",
        "a ``` b `` c ` d",
        "The tag <tool_call> is used by some models.",
    ],
)
def test_what_is_shown_in_the_end_is_what_the_reply_says(text: str, size: int) -> None:
    chunks = streamed([text[at : at + size] for at in range(0, len(text), size)])
    seen_text, seen_thought, seen_calls = openai_shapes.joined(chunks)
    said_text, said_thought, said_calls = openai_shapes.as_joined(repair(reply(text), TOOLS))
    assert (seen_text, seen_thought) == (said_text, said_thought)
    assert [call[1:] for call in seen_calls] == [call[1:] for call in said_calls]


def test_an_example_in_the_middle_is_shown_as_soon_as_the_text_goes_on() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk('So:\n```json\n{"a": 1}'))) == [TextChunk("So:\n")]
    assert list(stream.feed(TextChunk("\n```\nSee?"))) == [TextChunk('```json\n{"a": 1}\n```\nSee?')]


def test_an_answer_begins_anew_where_too_much_was_shown() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk("hm")))
    whole = reply(ReasoningPart("hm", native=False), "Yes.")
    assert list(stream.close(whole)) == [Restarted(), ReasoningChunk("hm"), TextChunk("Yes.")]


def test_words_before_a_real_call_are_not_held_back_until_the_end() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk('{"a"'))) == []
    call = ToolCallChunk(0, "{}", "1", "get_time")
    assert list(stream.feed(call)) == [TextChunk('{"a"'), call]
    assert list(stream.close(reply('{"a"', ToolCallPart("1", "get_time", "{}")))) == []


def test_a_long_broken_text_is_streamed_in_time_that_grows_with_its_length() -> None:
    for opening in HOSTILE:
        text = (opening * 100_000)[:100_000]
        begun = time.thread_time()
        streamed([text[at : at + 20] for at in range(0, len(text), 20)])
        streamed([text])
        assert time.thread_time() - begun < 3, opening  # about 0.1 s; quadratic time would take minutes
