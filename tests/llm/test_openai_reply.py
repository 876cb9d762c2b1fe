"""Streams as servers really send them."""

from typing import Any

import pytest

from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import ModelReply, ToolCallChunk
from ricordo.errors import ModelError
from ricordo.llm.openai_reply import ReplyBuilder, SseReader
from tests.llm.talk import ask


def read(data: bytes, size: int) -> tuple[list[Any], SseReader]:
    lines = SseReader()
    events = [e for start in range(0, len(data), size) for e in lines.feed(data[start : start + size])]
    return events + list(lines.feed(b"\n")), lines


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_read_from_pieces_of_any_size(size: int, newline: bytes) -> None:
    data = (
        b": comment\n\n"
        b'event: message\ndata: {"a": "\xc3\xa9"}\n\n'
        b'data:{"b": 2}\n\n'
        b"data: not json\n\ndata: 5\n\n"
        b"data: [DONE]\n\n"
        b'data: {"after": 1}\n\n'
    ).replace(b"\n", newline)
    events, lines = read(data, size)
    assert events == [{"a": "é"}, {"b": 2}]
    assert lines.is_done


def test_a_last_line_without_its_newline_counts() -> None:
    events, lines = read(b'data: {"a": 1}\ndata: {"b": 2}', 5)
    assert events == [{"a": 1}, {"b": 2}]
    assert not lines.is_done


def build(*pieces: dict[str, Any]) -> tuple[list[Any], ModelReply]:
    builder = ReplyBuilder()
    chunks = [chunk for piece in pieces for chunk in builder.feed({"choices": [{"delta": {"tool_calls": [piece]}}]})]
    return chunks, builder.reply(ask("x"))


def call(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"function": {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}, **more}


def named(reply: ModelReply) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in reply.parts if isinstance(part, ToolCallPart)]


def test_calls_are_told_apart_by_id_where_there_is_no_index() -> None:
    _, reply = build(
        call("a", '{"x":', id="1"), call(None, "1}", id="1"), call("b", "{", id="2"), call(None, "}", id="2")
    )
    assert named(reply) == [("a", '{"x":1}'), ("b", "{}")]


def test_calls_are_told_apart_by_name_where_there_is_neither_index_nor_id() -> None:
    chunks, reply = build(call("a", '{"x":'), call(None, "1}"), call("b", "{}"))
    assert named(reply) == [("a", '{"x":1}'), ("b", "{}")]
    ids = [part.call_id for part in reply.parts if isinstance(part, ToolCallPart)]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)
    assert chunks[0] == ToolCallChunk(0, '{"x":', ids[0], "a")
    assert chunks[1] == ToolCallChunk(0, "1}")


def test_indexes_may_begin_anywhere() -> None:
    _, reply = build(call("a", "{", index=3, id="1"), call("b", "{}", index=7, id="2"), call(None, "}", index=3))
    assert named(reply) == [("a", "{}"), ("b", "{}")]


@pytest.mark.parametrize("index", ["0", [0], {}])
def test_a_piece_whose_index_is_no_number_cannot_be_read(index: Any) -> None:
    with pytest.raises(ModelError, match="gave an answer that cannot be read"):
        build(call("a", "{}", index=index))
