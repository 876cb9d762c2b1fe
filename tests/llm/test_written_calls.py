"""Calls written as text, in all notations, and texts that only look like calls."""

import random

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.llm.repair import repair
from ricordo.llm.written_calls import called_name, normal_name, offered_name, read_text
from tests.campaigns.sizes import short_and_long
from tests.llm.talk import CLOCK, WEATHER
from tests.seams.growth import repeated, require_linear
from tests.support.notations import MARKS

# Beginnings without an end: each once caused a search of the whole text, and 100 kB of them took
# minutes.
HOSTILE = (
    *MARKS,
    "```json\n",
    "```\n{",
    "``` ",
    "`",
    '<invoke name="get_time">',
    '<invoke name="get_time"><parameter name="a"',
    "<function=get_time><parameter=a>",
    "<tool_call>get_time<arg_key>a</arg_key><arg_value>",
    "[TOOL_CALLS]get_time[ARGS]{",
    "<|channel|>commentary to=get_time<|message|>",
    "<｜tool▁call▁begin｜>get_time\n{",
    "<|tool_call_begin|>get_time<|tool_call_argument_begin|>{",
    "{\n",
    "[get_time(",
    "<think>",
    "<",
    "[",
    " \n",
)

OFFERED = {WEATHER.name: WEATHER, CLOCK.name: CLOCK}


@pytest.mark.parametrize(
    ("text", "rest", "count"),
    [
        ('[get_weather(city="Rome"), get_time()]', "", 2),
        (
            '{"name": "get_time", "parameters": {}}; {"name": "get_weather", "parameters": '
            '{"city": "Rome"}}',
            "",
            2,
        ),
        ('{"name": "get_time", "parameters": {}}\n{"name": "get_time", "parameters": {}}', "", 2),
        ('[TOOL_CALLS]get_time[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', "", 2),
        ("<tool_call>\n<function=get_time>\n</function>\n</tool_call>", "", 1),
        (
            'I look.\n<function_calls><invoke name="get_time"></invoke></function_calls>',
            "I look.",
            1,
        ),
        ("```tool_code\nget_time()\n```", "", 1),
        ('{"name": "functions.get_weather", "arguments": {"city": "Rome"}}', "", 1),
        ('{"tool": "get_weather", "args": {"city": "Rome"}}', "", 1),
        ('{"type": "function", "function": {"name": "get_weather", "arguments": "{}"}}', "", 1),
        (
            '{"tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": '
            '"Rome"}}}]}',
            "",
            1,
        ),
        ('<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}', "", 1),
        ('<function=get_weather>{"city": "Rome"}</function>', "", 1),
        ("Well:\n```python\nget_weather(city='Rome')\n```", "Well:", 1),
    ],
)
def test_written_calls_are_read_in_every_notation(text: str, rest: str, count: int) -> None:
    reading = read_text(text, OFFERED)
    assert (len(reading.calls), reading.text) == (count, rest)
    assert len({call.call_id for call in reading.calls}) == count


@pytest.mark.parametrize(
    "text",
    [
        "[get_weather(city=open('x'))]",
        '{"name": "delete_everything", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "arguments": [1]}',
        'Call it so:\n```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```\nThen '
        "read the answer.",
        '[{"name": "get_weather", "arguments": {}}, {"name": "delete_everything", "arguments": '
        "{}}]",
        "<function=delete_everything></function>",
        "<tool_call>get_weather: Rome</tool_call>",
        "[TOOL_CALLS]get_time[ARGS]{broken}",
        "```python\nprint(1)\n```",
        "[" * 5_000,
        "[get_time(" + "(" * 5_000 + ")]",
        "",
    ],
)
def test_an_uncertain_call_stays_text(text: str) -> None:
    assert read_text(text, OFFERED).calls == []


def test_values_between_tags_get_the_types_of_the_tools_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"days": {"type": "integer"}, "city": {"type": "string"}},
    }
    tool = type(WEATHER)("forecast", "", schema)
    text = "<tool_call>forecast{}{}</tool_call>".format(
        "<arg_key>days</arg_key><arg_value>3</arg_value>",
        "<arg_key>city</arg_key><arg_value>7</arg_value>",
    )
    (call,) = read_text(text, {"forecast": tool}).calls
    assert call.arguments == '{"days":3,"city":"7"}'


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("functions.get_time", "get_time"),
        ("functions.get_time:3", "get_time"),
        ("get_time<|channel|>commentary", "get_time"),
        (" get_time", "get_time"),
        ("other:3", "other:3"),
    ],
)
def test_additions_around_a_name_are_removed_if_the_tool_is_then_known(
    name: str, meant: str
) -> None:
    assert offered_name(name, OFFERED) == meant


_NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(_[a-z0-9]{1,6}){0,3}", fullmatch=True)


@generated(
    st.lists(_NAMES, min_size=1, max_size=6, unique=True),
    st.data(),
    st.sampled_from(["", "functions.", "Functions.", "default_api."]),
    st.sampled_from(["", "<|channel|>commentary", ":3", " "]),
)
def test_a_called_name_in_other_capitals_or_signs_means_its_tool(
    offered: list[str], data: st.DataObject, prefix: str, suffix: str
) -> None:
    """It means a tool only if it can mean no other one."""
    tool = data.draw(st.sampled_from(offered))
    sign = data.draw(st.sampled_from(["_", "-", "", ".", " "]))
    is_upper = data.draw(st.lists(st.booleans(), min_size=len(tool), max_size=len(tool)))
    letters = zip(tool, is_upper, strict=True)
    varied = "".join(letter.upper() if upper else letter for letter, upper in letters)
    written = f"{prefix}{varied.replace('_', sign)}{suffix}"
    called = called_name(written, offered)
    alike = [name for name in offered if normal_name(name) == normal_name(tool)]
    if len(alike) == 1:
        assert called == tool
    elif called != written:
        assert called in alike
    # An exact name always means itself, and an unknown one stays as it is.
    assert called_name(tool, offered) == tool
    unknown = data.draw(_NAMES)
    if normal_name(unknown) not in map(normal_name, offered):
        assert called_name(unknown, offered) == unknown


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "GET-Time", "arguments": {}}</tool_call>',
        '{"name": "functions.GetTime", "arguments": {}}',
        "<function=Get_Time></function>",
    ],
)
def test_a_written_call_may_name_its_tool_in_other_capitals(text: str) -> None:
    reading = read_text(text, OFFERED)
    assert [(call.name, reading.text) for call in reading.calls] == [("get_time", "")]


@pytest.mark.parametrize(
    "text", ['get_weather({"city": "Rome"})', "[get_weather({'city': 'Rome'})]"]
)
def test_an_object_as_the_only_argument_holds_the_arguments(text: str) -> None:
    (call,) = read_text(text, OFFERED).calls
    assert call.arguments == '{"city":"Rome"}'


def test_a_word_in_other_capitals_is_no_call_in_prose() -> None:
    reply = ModelReply((TextPart("Get_Time() is what I would call; GET_TIME too."),))
    assert repair(reply, list(OFFERED.values())) is reply


# The usual suite reads few of these texts here; tests/llm/test_linear_time.py reads more of their
# kind.
@pytest.mark.parametrize("share", short_and_long(9, 1))
def test_a_long_broken_text_is_read_in_linear_time(share: int) -> None:
    for opening in HOSTILE[::share]:

        def work(size: int, opening: str = opening) -> None:
            text = "x" + repeated(opening, size)
            for hostile in (text, text[1:], "{" + text, f"<tool_call>{text}", text + "```"):
                repair(ModelReply((TextPart(hostile),)), tuple(OFFERED.values()))

        require_linear(work, 1_000, opening)


def test_no_text_makes_the_reader_fail() -> None:
    chance = random.Random(7)  # noqa: S311 - chance that is the same every time
    words = [*MARKS, *'{ } ( ) [ ] = ``` x "name": "get_time" </tool_call>'.split(), "\n", "\ud800"]
    for _ in range(1_000):
        read_text("".join(chance.choices(words, k=chance.randint(1, 12))), OFFERED)
