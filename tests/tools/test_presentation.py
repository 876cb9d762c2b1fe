from contextlib import nullcontext
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import Message, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ToolSchema
from ricordo.errors import Invalid
from ricordo.tools import presentation
from ricordo.tools.presentation import (
    HEARTBEAT,
    QUOTE,
    REASONING,
    THINKING,
    ToolPresentation,
    parse_call,
    prefill,
    schema_for,
    with_thoughts,
    without_nulls,
)
from tests.seams import make

PLAIN, BEATS, THINKS = (
    ToolPresentation(),
    ToolPresentation(heartbeat=True),
    ToolPresentation(thinks_in_arguments=True),
)
BOTH = ToolPresentation(heartbeat=True, thinks_in_arguments=True)
AGENT = make.agent()


def tool(
    name: str = "search", required: tuple[str, ...] = ("query",), **properties: Any
) -> ToolSchema:
    properties = properties or {"query": {"type": "string"}, "limit": {"type": "integer"}}
    return ToolSchema(
        name,
        f"Use {name}.",
        {"type": "object", "properties": properties, "required": list(required)},
    )


SPEECH = tool(
    "send_message", ("message",), message={"type": "string", "description": "What to say."}
)


def call(arguments: str | dict[str, Any], name: str = "search") -> ToolCallPart:
    return ToolCallPart(
        "call-1",
        name,
        arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
    )


def assistant(*parts: Any) -> Message:
    return make.message(AGENT, role="assistant", parts=parts)


def loads(part: ToolCallPart) -> Any:
    return orjson.loads(part.arguments)


# --- how tools are offered ---


def test_thoughts_come_first_and_heartbeat_last_and_both_are_required() -> None:
    search = tool()
    parameters = schema_for(search, BOTH, is_terminal=False).parameters
    assert list(parameters["properties"]) == [THINKING, "query", "limit", HEARTBEAT]
    assert parameters["required"] == [THINKING, "query", HEARTBEAT]
    assert parameters["properties"][THINKING]["type"] == "string"
    assert parameters["properties"][HEARTBEAT]["type"] == "boolean"
    assert search == tool()


def test_a_terminal_tool_gets_thoughts_but_no_heartbeat() -> None:
    parameters = schema_for(SPEECH, BOTH, is_terminal=True).parameters
    assert list(parameters["properties"]) == parameters["required"] == [THINKING, "message"]
    bare = ToolSchema("finish", "Finish.", {})
    assert schema_for(bare, BEATS, is_terminal=False).parameters["required"] == [HEARTBEAT]


def test_a_tools_own_argument_of_that_name_is_kept() -> None:
    own = tool("ponder", (), thinking={"type": "integer"}, request_heartbeat={"type": "integer"})
    assert schema_for(own, BOTH, is_terminal=False).parameters == own.parameters
    taken = parse_call(call({THINKING: 3, HEARTBEAT: 1}, "ponder"), BOTH, own)
    assert (taken.thoughts, taken.wants_heartbeat) == ("", False)
    assert taken.arguments == taken.call.arguments == '{"thinking":3,"request_heartbeat":1}'


def test_the_message_argument_gets_the_schema_of_the_response_format() -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"$ref": "#/$defs/Mood"}, "then": {"$ref": "#"}},
        "required": ["mood"],
        "$defs": {"Mood": {"enum": ["good", "bad"]}},
    }
    how = ToolPresentation(
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    )
    parameters = schema_for(SPEECH, how, is_terminal=True).parameters
    assert parameters["$defs"] == {"Mood": {"enum": ["good", "bad"]}}
    assert parameters["required"] == ["message"]
    assert parameters["properties"]["message"] == {
        "description": "What to say.",
        "type": "object",
        "properties": {"mood": {"$ref": "#/$defs/Mood"}, "then": {"$ref": "#/properties/message"}},
        "required": ["mood"],
    }
    how = ToolPresentation(response_format={"type": "json_object"})
    anything = {"description": "What to say, as a JSON object.", "type": "object"}
    assert schema_for(SPEECH, how, is_terminal=True).parameters["properties"]["message"] == anything
    nameless = {"type": "json_schema", "json_schema": {"name": "a", "schema": None}}
    for unknown in ({"type": "xml"}, {"type": "json_schema"}, nameless):
        with pytest.raises(Invalid, match="response_format"):
            schema_for(SPEECH, ToolPresentation(response_format=unknown), is_terminal=True)


# --- how calls are read back ---


def test_thoughts_and_heartbeat_are_removed_from_the_arguments() -> None:
    taken = parse_call(call({THINKING: "Tea?", "query": "tea", HEARTBEAT: True}), BOTH)
    assert (taken.thoughts, taken.wants_heartbeat) == ("Tea?", True)
    assert loads(taken.call) == {"query": "tea", HEARTBEAT: True}
    assert orjson.loads(taken.arguments) == {"query": "tea"}
    assert parse_call(call({THINKING: ["a", 1]}), THINKS).thoughts == '["a",1]'
    assert parse_call(call({THINKING: None}), THINKS).thoughts == ""


def test_many_forms_of_true_are_accepted_as_a_heartbeat_request() -> None:
    for value in (True, 1, 1.0, "true", "True ", "YES", "1", "on"):
        assert parse_call(call({HEARTBEAT: value}), BEATS).wants_heartbeat, value
    for value in (False, 0, 2, None, "false", "no", "", [], {}):
        assert not parse_call(call({HEARTBEAT: value}), BEATS).wants_heartbeat, value


@given(
    st.text()
    | st.sampled_from(
        ['{"thinking": "x"', "[1]", "null", '"text"', '{"a":' + "[" * 300 + "]" * 300 + "}"]
    )
)
def test_arguments_that_are_no_object_are_unchanged(text: str) -> None:
    for how in (PLAIN, BEATS, THINKS, BOTH):
        taken = parse_call(call(text), how)
        with_thoughts([assistant(ReasoningPart("x", native=False), taken.call)])
        if not text.lstrip().startswith("{") or text.count("[") > 200:
            assert (taken.call, taken.arguments) == (call(text), text)
            assert (taken.thoughts, taken.wants_heartbeat) == ("", False)


def test_without_the_style_only_unknown_arguments_are_removed() -> None:
    written = '{ "query": "tea",  "thinking": "x", "request_heartbeat": true }'
    assert parse_call(call(written), PLAIN).arguments == written
    imitated = parse_call(call(written), PLAIN, tool())
    assert (imitated.thoughts, imitated.wants_heartbeat, imitated.arguments) == (
        "x",
        False,
        '{"query":"tea"}',
    )
    assert parse_call(call('{ "query": 1.10 }'), BOTH).call.arguments == '{ "query": 1.10 }'


def test_a_structured_message_reaches_the_tool_as_text_and_is_stored_structured() -> None:
    how = ToolPresentation(response_format={"type": "json_object"})
    said = call({"message": {"mood": "good"}}, "send_message")
    taken = parse_call(said, how)
    assert orjson.loads(taken.arguments) == {"message": '{"mood":"good"}'}
    assert taken.call == said
    assert (
        parse_call(call({"message": "plain"}, "send_message"), how).arguments
        == '{"message":"plain"}'
    )


def test_thoughts_are_put_back_into_their_call() -> None:
    one, other = call({"query": "a"}), ToolCallPart("call-2", "search", '{"query":"b"}')
    before = assistant(
        ReasoningPart("native", signature="s"),
        TextPart("Well."),
        ReasoningPart("First.", native=False),
        ReasoningPart("Second.", native=False),
        one,
        other,
    )
    (after,) = with_thoughts([before])
    assert after.parts[:2] == before.parts[:2]
    assert [loads(part) for part in after.tool_calls] == [
        {THINKING: "First.\nSecond.", "query": "a"},
        {"query": "b"},
    ]
    assert list(loads(after.tool_calls[0])) == [THINKING, "query"]


# --- values that rules fill in ---


STRING, NULLABLE, MOOD = {"type": "string"}, {"type": ["string", "null"]}, {"$ref": "#/$defs/Mood"}
ENUM, EITHER = {"enum": ["a", 1]}, {"oneOf": [{"const": "a"}, {"const": "b"}]}
FITS: list[tuple[dict[str, Any], Any, bool]] = [
    *((STRING, "a", True), (STRING, 1, False), (NULLABLE, None, True), (NULLABLE, 1, False)),
    *(
        ({"type": "integer"}, value, fits)
        for value, fits in ((1, True), (1.0, True), (1.5, False), (True, False))
    ),
    *(
        ({"type": "number"}, 1, True),
        ({"type": "number"}, False, False),
        ({"type": "null"}, None, True),
    ),
    *(
        ({"type": "boolean"}, True, True),
        ({"type": "boolean"}, 1, False),
        ({"type": "object"}, {}, True),
    ),
    *(
        ({"type": "array"}, [], True),
        ({"type": "array"}, "ab", False),
        ({"type": "whatever"}, 1, True),
    ),
    *((ENUM, 1, True), (ENUM, True, False), ({"const": 0}, 0, True), ({"const": 0}, False, False)),
    *(
        ({"anyOf": [STRING, {"type": "null"}]}, None, True),
        ({"anyOf": [STRING, {"type": "null"}]}, 1, False),
    ),
    *((EITHER, "b", True), (EITHER, "c", False)),
    *(
        ({"type": "string", "enum": ["a"]}, "b", False),
        (MOOD, "good", True),
        (MOOD, "bad", False),
        ({}, 1, True),
    ),
    *(
        ({"$ref": "#/$defs/Loop"}, "any", True),
        ({"$ref": "https://example.org/schema"}, "any", True),
    ),
    ({"enum": None, "type": [["string"]]}, 1, True),
]


def test_a_fixed_value_must_fit_the_schema() -> None:
    for schema, value, fits in FITS:
        search = tool(query=schema)
        search.parameters["$defs"] = {"Mood": {"enum": ["good"]}, "Loop": {"$ref": "#/$defs/Loop"}}
        with nullcontext() if fits else pytest.raises(Invalid, match="does not fit its schema"):
            assert loads(prefill(call({}), {"query": value}, search)) == {"query": value}, schema
    with pytest.raises(
        Invalid, match=r"fills the argument depth, which search does not have. It has: query, limit"
    ):
        prefill(call({}), {"depth": 1}, tool())


def test_a_quote_is_offered_to_the_model_but_not_passed_to_the_tool() -> None:
    how = ToolPresentation(heartbeat=True, thinks_in_arguments=True, quoting=frozenset({"search"}))
    offered = schema_for(tool(), how, is_terminal=False)
    assert list(offered.parameters["properties"]) == [THINKING, "query", "limit", QUOTE, HEARTBEAT]
    assert QUOTE not in offered.parameters["required"]
    taken = parse_call(call({"thinking": "Hm.", "query": "tea", "quote": "find tea"}), how, tool())
    assert taken.quote == "find tea"
    assert orjson.loads(taken.arguments) == {"query": "tea"}
    assert loads(taken.call) == {"query": "tea", "quote": "find tea"}


def test_a_reasoning_is_offered_to_the_model_but_not_passed_to_the_tool() -> None:
    how = ToolPresentation(reasoning=frozenset({"search"}), quoting=frozenset({"search"}))
    offered = schema_for(tool(), how, is_terminal=False)
    assert list(offered.parameters["properties"]) == ["query", "limit", QUOTE, REASONING]
    assert REASONING not in offered.parameters["required"]
    taken = parse_call(call({"query": "tea", "reasoning": "She asked."}), how, tool())
    assert (taken.reasoning, taken.quote, orjson.loads(taken.arguments)) == (
        "She asked.",
        "",
        {"query": "tea"},
    )
    assert loads(taken.call) == {"query": "tea", "reasoning": "She asked."}
    own = tool(query={"type": "string"}, reasoning={"type": "string"})
    assert schema_for(own, how, is_terminal=False).parameters["properties"][REASONING] == {
        "type": "string"
    }
    taken = parse_call(call({"query": "tea", "reasoning": "She asked."}), how, own)
    assert (taken.reasoning, loads(taken.call)) == ("", orjson.loads(taken.arguments))


def test_a_tools_own_or_unrequested_quote_stays_an_argument() -> None:
    quoting = ToolPresentation(quoting=frozenset({"search"}))
    own = tool(query={"type": "string"}, quote={"type": "integer"})
    assert schema_for(own, quoting, is_terminal=False).parameters == {**own.parameters}
    arguments = {"query": "tea", "quote": "find tea"}
    for taken in (
        parse_call(call(arguments), quoting, own),
        parse_call(call(arguments), PLAIN, tool()),
    ):
        assert (taken.quote, orjson.loads(taken.arguments)) == ("", arguments)


# Schemas of an optional argument, and whether null is a valid value.
OF_NULL: list[tuple[dict[str, Any], bool]] = [
    ({"type": "string"}, False),
    ({"type": "integer", "default": -1}, False),
    ({"type": "number", "default": None}, False),
    ({"type": "boolean"}, False),
    ({"type": "array", "items": {"type": "string"}}, False),
    ({"type": "object", "properties": {}}, False),
    ({"enum": ["any", "all"]}, False),
    ({"const": "x"}, False),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
    ({"type": ["string", "integer"]}, False),
    ({"$ref": "#/$defs/Mode"}, False),
    ({"type": ["string", "null"]}, True),
    ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, True),
    ({"oneOf": [{"type": "null"}, {"type": "object"}]}, True),
    ({"enum": ["any", None]}, True),
    ({"type": "string", "nullable": True}, True),
    ({"type": "null"}, True),
    ({}, True),
]


@pytest.mark.parametrize(("schema", "has_null"), OF_NULL)
def test_null_is_kept_only_if_the_schema_allows_it(schema: dict[str, Any], has_null: bool) -> None:
    arguments = {"query": "tea", "more": None, "unknown": None}
    parameters = {
        **{
            "type": "object",
            "properties": {"query": {"type": "string"}, "more": schema},
            "required": ["query"],
        },
        "$defs": {"Mode": {"enum": ["any", "all"]}},
    }
    one = ToolSchema("search", "Search.", parameters)
    kept = orjson.loads(without_nulls(call(arguments), one).arguments)
    assert kept == ({**arguments} if has_null else {"query": "tea", "unknown": None})
    # A missing required value is an error, and nested objects follow the same rules.
    required = ToolSchema("search", "Search.", {**parameters, "required": ["query", "more"]})
    assert orjson.loads(without_nulls(call(arguments), required).arguments) == arguments
    nested = tool(required=(), items={"type": "array", "items": parameters}, inner=parameters)
    nested = ToolSchema("search", "Search.", {**nested.parameters, "$defs": parameters["$defs"]})
    given = {"items": [arguments, arguments], "inner": arguments}
    assert orjson.loads(without_nulls(call(given), nested).arguments) == {
        "items": [kept, kept],
        "inner": kept,
    }


def test_a_null_is_left_out_of_a_schema_that_refers_to_itself() -> None:
    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": {"$ref": "#"}},
        "required": ["name"],
    }
    given = {"name": "a", "child": {"name": "b", "child": None}}
    one = ToolSchema("search", "Search.", parameters)
    kept = orjson.loads(without_nulls(call(given), one).arguments)
    assert kept == {"name": "a", "child": {"name": "b"}}
    assert orjson.loads(without_nulls(call({"name": "a", "child": None}), one).arguments) == {
        "name": "a"
    }


def test_each_part_of_a_schema_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references multiply with each level: there are 3 ** 9 ways through this schema."""
    levels: dict[str, Any] = {
        f"A{level}": {"anyOf": [{"$ref": f"#/$defs/A{level + 1}"} for _ in range(3)]}
        for level in range(9)
    }
    compared = []
    has_type = presentation._has_type

    def count(content: Any, kind: str) -> bool:
        compared.append(kind)
        return has_type(content, kind)

    monkeypatch.setattr(presentation, "_has_type", count)
    for last, is_kept in (("string", False), ("null", True)):
        compared.clear()
        properties = {"x": {"$ref": "#/$defs/A0"}}
        parameters = {"properties": properties, "$defs": {**levels, "A9": {"type": last}}}
        one = ToolSchema("search", "Search.", {"type": "object", **parameters})
        assert ("null" in without_nulls(call({"x": None}), one).arguments) == is_kept
        assert compared == [last]


def test_arguments_without_null_are_unchanged() -> None:
    for arguments in ('{"query":  "null"}', "{broken null", "null", "[null]", ""):
        assert without_nulls(call(arguments), tool()).arguments == arguments
