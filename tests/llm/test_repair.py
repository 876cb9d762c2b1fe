"""Repair of outputs that small models get wrong."""

import json
from dataclasses import replace

import orjson
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    FinishReason,
    ModelReply,
    ReasoningChunk,
    Restarted,
    TextChunk,
    ToolCallChunk,
    ToolSchema,
)
from ricordo.domain.text import nests_deeply
from ricordo.llm.openai_format import readable_arguments
from ricordo.llm.repair import StreamRepair, is_empty, mended_arguments, repair
from tests.campaigns.sizes import short_and_long
from tests.llm.talk import CLOCK, WEATHER
from tests.llm.test_written_calls import HOSTILE
from tests.llm.wild import openai_shapes
from tests.seams.growth import repeated, require_linear

TOOLS = (WEATHER, CLOCK)
ROME = '{"city":"Rome"}'


def reply(*parts: Part | str, finish: FinishReason = "stop") -> ModelReply:
    return ModelReply(
        tuple(TextPart(part) if isinstance(part, str) else part for part in parts), finish=finish
    )


def calls(of: ModelReply) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in of.parts if isinstance(part, ToolCallPart)]


def test_only_a_certain_call_written_as_text_becomes_a_call() -> None:
    mended = repair(reply('{"name": "get_weather", "arguments": {"city": "Rome"}}'), TOOLS)
    assert calls(mended) == [("get_weather", ROME)]
    assert mended.finish == "tool_calls"
    assert not any(isinstance(part, TextPart) for part in mended.parts)
    for text in (
        "The tag <tool_call> is used by some models.",
        '{"name": "get_weather", "arguments": ',
        "plain words",
    ):
        assert repair(reply(text), TOOLS) == reply(text)


def test_without_offered_tools_no_text_becomes_a_call() -> None:
    text = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    assert repair(reply(text), ()) == reply(text)


def test_written_calls_are_not_added_to_real_ones() -> None:
    real = reply(
        '{"name": "get_time", "arguments": {}}',
        ToolCallPart("1", "get_weather", ROME),
        finish="tool_calls",
    )
    assert repair(real, TOOLS).parts == real.parts[1:]


def test_a_thought_in_tags_becomes_reasoning() -> None:
    for text in (
        "<think>hm</think>Yes.",
        "\n<think>\nhm\n</think>\n\nYes.",
        "<thinking>hm</thinking>Yes.",
        "hm</think>Yes.",
    ):
        assert repair(reply(text), ()).parts == (
            ReasoningPart("hm", native=False),
            TextPart("Yes."),
        ), text
    assert repair(reply("<think></think>Yes."), ()).parts == (TextPart("Yes."),)
    assert repair(reply("<think>hm", finish="length"), ()).parts == (
        ReasoningPart("hm", native=False),
    )


def test_a_tag_in_the_middle_of_a_text_stays_text() -> None:
    text = "HTML has no <think> tag."
    assert repair(reply(text), ()) == reply(text)


@pytest.mark.parametrize(
    ("given", "mended"),
    [
        ("", "{}"),
        ("  ", "{}"),
        ("null", "{}"),
        ('""', "{}"),
        ('"{\\"city\\":\\"Rome\\"}"', ROME),
        ('{"type": "object", "properties": {"city": "Rome"}}', ROME),
        ('{"properties": {"city": "Rome"}}', ROME),
        ('{"properties": {"city": {"value": "Rome", "type": "string"}}}', ROME),
        (
            '{"properties": {"city": {"type": "string"}}}',
            '{"properties": {"city": {"type": "string"}}}',
        ),
        ('{ "city": "Rome" }', '{ "city": "Rome" }'),
        ('{"city": ', '{"city": '),
        ("[1]", "[1]"),
        ('"Rome"', '"Rome"'),
    ],
)
def test_arguments_are_repaired_if_their_meaning_is_certain(given: str, mended: str) -> None:
    assert mended_arguments(given, WEATHER) == mended


@generated(st.integers(1, 900), st.booleans(), st.booleans())
def test_arguments_of_any_depth_are_repaired_or_unchanged(
    levels: int, is_text: bool, is_schema: bool
) -> None:
    arguments = '{"city":' + "[" * levels + "]" * levels + "}"
    if is_schema:
        arguments = f'{{"type":"object","properties":{arguments}}}'
    given = json.dumps(arguments) if is_text else arguments
    assert mended_arguments(given, WEATHER)
    parsed = orjson.loads(arguments)
    is_quoted = "unreadable_arguments" in orjson.loads(readable_arguments(arguments))
    assert is_quoted == nests_deeply(arguments, parsed) == (levels + 1 + is_schema * 1 > 50)


def test_a_tool_with_its_own_properties_argument_keeps_it() -> None:
    tool = ToolSchema(
        "add_node", "", {"type": "object", "properties": {"properties": {"type": "object"}}}
    )
    assert (
        mended_arguments('{"properties": {"city": "Rome"}}', tool)
        == '{"properties": {"city": "Rome"}}'
    )


@pytest.mark.parametrize(
    ("finish", "mended"),
    [
        ("stop", "tool_calls"),
        ("unknown", "tool_calls"),
        ("tool_calls", "tool_calls"),
        ("length", "length"),
    ],
)
def test_the_finish_follows_the_calls_except_for_a_length_stop(
    finish: FinishReason, mended: FinishReason
) -> None:
    assert repair(reply(ToolCallPart("1", "get_time", "{}"), finish=finish), TOOLS).finish == mended


def test_a_reply_without_text_and_calls_is_empty_unless_cut_off() -> None:
    assert is_empty(reply())
    assert is_empty(reply(" \n"))
    assert is_empty(reply(ReasoningPart("hm")))
    assert not is_empty(reply("a"))
    assert not is_empty(reply(ToolCallPart("1", "a", "{}")))
    assert not is_empty(reply(ReasoningPart("hm"), finish="length"))


def streamed(pieces: list[str], tools: tuple[ToolSchema, ...] = TOOLS) -> list[Chunk]:
    stream = StreamRepair(tools)
    chunks = [chunk for piece in pieces for chunk in stream.feed(TextChunk(piece))]
    return chunks + list(stream.close(repair(reply("".join(pieces)), tools)))


def joined(chunks: list[Chunk], kind: type[TextChunk] | type[ReasoningChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, kind))


def test_plain_text_is_streamed_at_once() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk("He"))) == [TextChunk("He")]
    assert list(stream.feed(TextChunk("llo"))) == [TextChunk("llo")]


def test_json_is_streamed_at_once_if_no_tool_is_offered() -> None:
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
def test_a_stream_shows_in_the_end_what_the_reply_says(text: str, size: int) -> None:
    chunks = streamed([text[at : at + size] for at in range(0, len(text), size)])
    seen_text, seen_thought, seen_calls = openai_shapes.joined(chunks)
    said_text, said_thought, said_calls = openai_shapes.as_joined(repair(reply(text), TOOLS))
    assert (seen_text, seen_thought) == (said_text, said_thought)
    assert [call[1:] for call in seen_calls] == [call[1:] for call in said_calls]


def test_a_json_example_in_a_text_is_shown_once_the_text_continues() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk('So:\n```json\n{"a": 1}'))) == [TextChunk("So:\n")]
    assert list(stream.feed(TextChunk("\n```\nSee?"))) == [
        TextChunk('```json\n{"a": 1}\n```'),
        TextChunk("\nSee?"),
    ]


def test_a_streamed_answer_restarts_if_too_much_was_shown() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk("hm")))
    whole = reply(ReasoningPart("hm", native=False), "Yes.")
    assert list(stream.close(whole)) == [Restarted(), ReasoningChunk("hm"), TextChunk("Yes.")]


def test_text_before_a_real_call_is_not_held_back_until_the_end() -> None:
    stream = StreamRepair(TOOLS)
    assert list(stream.feed(TextChunk('{"a"'))) == []
    call = ToolCallChunk(0, "{}", "1", "get_time")
    assert list(stream.feed(call)) == [TextChunk('{"a"'), call]
    assert list(stream.close(reply('{"a"', ToolCallPart("1", "get_time", "{}")))) == []


# In the suite tests/llm/test_linear_time.py streams texts of the same kinds.
@pytest.mark.parametrize("share", short_and_long(9, 1))
def test_a_long_broken_text_is_streamed_in_linear_time(share: int) -> None:
    for opening in HOSTILE[::share]:

        def work(size: int, opening: str = opening) -> None:
            text = repeated(opening, size)
            streamed([text[at : at + 20] for at in range(0, len(text), 20)])
            streamed([text])

        require_linear(work, 2_000, opening)


@pytest.mark.parametrize("name", ["GET-Weather", "functions.Get_Weather", "getWeather"])
def test_a_call_may_name_its_tool_in_other_capitals_or_signs(name: str) -> None:
    reply = ModelReply((ToolCallPart("call-1", name, '{"city": "Rome"}'),), finish="tool_calls")
    (call,) = repair(reply, [WEATHER, CLOCK]).parts
    assert isinstance(call, ToolCallPart)
    assert call.name == "get_weather"
    # Of two tools that differ only so, none is meant.
    twin = replace(WEATHER, name="getWeather")
    (same,) = repair(reply, [WEATHER, twin]).parts
    assert isinstance(same, ToolCallPart)
    assert same.name == name
