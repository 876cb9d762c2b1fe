"""What small models get wrong, mended."""

import pytest

from ricordo.domain.message import Part, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import FinishReason, ModelReply, ToolSchema
from ricordo.llm.repair import is_empty, mended_arguments, repair
from tests.llm.talk import CLOCK, WEATHER

TOOLS = (WEATHER, CLOCK)
ROME = '{"city":"Rome"}'


def reply(*parts: Part | str, finish: FinishReason = "stop") -> ModelReply:
    return ModelReply(tuple(TextPart(part) if isinstance(part, str) else part for part in parts), finish=finish)


def calls(of: ModelReply) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in of.parts if isinstance(part, ToolCallPart)]


def test_a_call_written_as_text_becomes_a_call_and_what_is_no_certain_call_stays_a_text() -> None:
    mended = repair(reply('{"name": "get_weather", "arguments": {"city": "Rome"}}'), TOOLS)
    assert calls(mended) == [("get_weather", ROME)]
    assert mended.finish == "tool_calls"
    assert not any(isinstance(part, TextPart) for part in mended.parts)
    for text in ("The tag <tool_call> is used by some models.", '{"name": "get_weather", "arguments": ', "plain words"):
        assert repair(reply(text), TOOLS) == reply(text)


def test_nothing_becomes_a_call_where_no_tool_was_offered() -> None:
    text = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    assert repair(reply(text), ()) == reply(text)


def test_real_calls_are_not_joined_by_written_ones() -> None:
    real = reply('{"name": "get_time", "arguments": {}}', ToolCallPart("1", "get_weather", ROME), finish="tool_calls")
    assert repair(real, TOOLS) is real


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("<think>hm</think>Yes.", "hm", "Yes."),
        ("\n<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("<thinking>hm</thinking>Yes.", "hm", "Yes."),
        ("hm</think>Yes.", "hm", "Yes."),
        ("<think></think>Yes.", None, "Yes."),
        ("<think>hm", "hm", None),
    ],
)
def test_a_thought_in_tags_becomes_reasoning(text: str, thought: str | None, rest: str | None) -> None:
    expected: list[Part] = [ReasoningPart(thought, native=False)] if thought else []
    expected += [TextPart(rest)] if rest else []
    assert repair(reply(text, finish="length"), ()).parts == tuple(expected)


def test_a_tag_in_the_middle_of_a_text_is_text() -> None:
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
        ('{"properties": {"city": {"type": "string"}}}', '{"properties": {"city": {"type": "string"}}}'),
        ('{ "city": "Rome" }', '{ "city": "Rome" }'),
        ('{"city": ', '{"city": '),
        ("[1]", "[1]"),
        ('"Rome"', '"Rome"'),
    ],
)
def test_arguments_are_mended_where_their_meaning_is_certain(given: str, mended: str) -> None:
    assert mended_arguments(given, WEATHER) == mended


def test_a_tool_that_has_properties_of_its_own_keeps_them() -> None:
    tool = ToolSchema("add_node", "", {"type": "object", "properties": {"properties": {"type": "object"}}})
    assert mended_arguments('{"properties": {"city": "Rome"}}', tool) == '{"properties": {"city": "Rome"}}'


@pytest.mark.parametrize(
    ("finish", "mended"),
    [("stop", "tool_calls"), ("unknown", "tool_calls"), ("tool_calls", "tool_calls"), ("length", "length")],
)
def test_the_finish_follows_the_calls_but_a_length_stop_is_kept(finish: FinishReason, mended: FinishReason) -> None:
    assert repair(reply(ToolCallPart("1", "get_time", "{}"), finish=finish), TOOLS).finish == mended


def test_what_is_empty() -> None:
    assert is_empty(reply())
    assert is_empty(reply(" \n"))
    assert is_empty(reply(ReasoningPart("hm")))
    assert not is_empty(reply("a"))
    assert not is_empty(reply(ToolCallPart("1", "a", "{}")))
    assert not is_empty(reply(ReasoningPart("hm"), finish="length"))
