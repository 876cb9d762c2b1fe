"""Messages and the stored form of their parts."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import (
    EventPart,
    ImagePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from tests.seams import make

words = st.text(max_size=30)
maybe = st.none() | words
lines = st.lists(words, max_size=3).map(tuple)
parts = st.one_of(
    st.builds(TextPart, text=words, signature=maybe),
    st.builds(EventPart, text=words, event=st.sampled_from(["login", "heartbeat", "alert"])),
    st.builds(ImagePart, media_type=words, data=maybe, url=maybe, detail=maybe),
    st.builds(
        ReasoningPart,
        text=words,
        signature=maybe,
        redacted=maybe,
        native=st.booleans(),
        provider=maybe,
    ),
    st.builds(ToolCallPart, call_id=words, name=words, arguments=words),
    st.builds(
        ToolReturnPart,
        call_id=words,
        name=words,
        status=st.sampled_from(["success", "error"]),
        content=words,
        is_json=st.booleans(),
        stdout=lines,
        stderr=lines,
        pictures=st.lists(
            st.builds(ImagePart, media_type=words, data=maybe, url=maybe), max_size=2
        ).map(tuple),
    ),
)


@given(st.lists(parts, max_size=6).map(tuple))
def test_parts_read_back_from_json_unchanged(said: tuple[Part, ...]) -> None:
    rows = json.loads(json.dumps(parts_to_json(said)))
    assert parts_from_json(rows) == parts_from_json(rows) == said
    assert [type(part) for part in parts_from_json(rows)] == [type(part) for part in said]


def test_the_stored_form_names_the_kind_and_omits_defaults() -> None:
    said = (
        TextPart("Hi"),
        ReasoningPart("Hm", native=False),
        ToolReturnPart("c", "t", "error", "", stdout=("a", "b")),
    )
    assert parts_to_json(said) == [
        {"kind": "text", "text": "Hi"},
        {"kind": "reasoning", "text": "Hm", "native": False},
        {
            "kind": "tool_return",
            "call_id": "c",
            "name": "t",
            "status": "error",
            "content": "",
            "stdout": ("a", "b"),
        },
    ]


def test_text_sent_by_a_message_tool_counts_as_said() -> None:
    for arguments, said in (
        ('{"message":"Hello, Ada."}', "Hello, Ada."),
        ("no json", ""),
        ("[1]", ""),
        ("[" * 5000, ""),
    ):
        assert make.call(make.agent(), "send_message", arguments).spoken == said
    assert make.call(make.agent(), "look", '{"message":"Hello, Ada."}').spoken == ""
