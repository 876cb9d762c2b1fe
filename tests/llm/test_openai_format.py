"""Requests and replies in the format of chat completions."""

from typing import Any

import pytest

from ricordo.domain.message import ImagePart, ToolCallPart
from ricordo.domain.model import ModelReply, ModelSettings, ToolCallChunk
from ricordo.errors import ModelError
from ricordo.llm.openai_dialect import Dialect, dialect_of
from ricordo.llm.openai_format import readable_arguments, to_body, to_messages
from ricordo.llm.openai_reply import ReplyBuilder, SseReader, to_reply
from tests.llm.talk import CLOCK, WEATHER, ask, said, weather_call, weather_return


def test_roles_keep_their_order_and_summaries_have_the_user_role() -> None:
    roles = "system", "summary", "user", "user", "assistant", "system", "user"
    rows = to_messages([said(role, role) for role in roles])
    assert [row["content"] for row in rows] == list(roles)
    assert [row["role"] for row in rows] == [role.replace("summary", "user") for role in roles]


def test_each_result_of_a_tool_message_is_a_message_of_its_own() -> None:
    rows = to_messages([said("tool", weather_return("call_1", "a"), weather_return("call_2", "b"))])
    assert rows == [
        {"role": "tool", "tool_call_id": "call_1", "content": "a"},
        {"role": "tool", "tool_call_id": "call_2", "content": "b"},
    ]


def test_pictures_are_sent_as_data_or_by_url() -> None:
    pictures = (
        ImagePart("image/png", data="QUJD"),
        ImagePart("image/jpeg", url="https://x/y.jpg", detail="low"),
    )
    rows = to_messages([said("user", "See:", *pictures)])
    assert rows[0]["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.jpg", "detail": "low"}},
    ]


def test_an_approval_message_becomes_its_calls_and_results() -> None:
    rows = to_messages(
        [said("approval", weather_call()), said("approval", weather_return()), said("approval")]
    )
    assert [row["role"] for row in rows] == ["assistant", "tool"]


def test_invalid_call_arguments_are_sent_as_valid_json() -> None:
    rows = to_messages([said("assistant", weather_call(arguments='{"city": '))])
    assert (
        rows[0]["tool_calls"][0]["function"]["arguments"]
        == '{"unreadable_arguments":"{\\"city\\": "}'
    )
    assert readable_arguments('{"city": "Rome"}') == '{"city": "Rome"}'


def test_a_forced_tool_is_named_and_lm_studio_gets_only_that_tool() -> None:
    request = ask("x", tools=[WEATHER, CLOCK], forced_tool="get_time")
    assert to_body(request, "m", Dialect())["tool_choice"] == {
        "type": "function",
        "function": {"name": "get_time"},
    }
    body = to_body(request, "m", dialect_of("lmstudio", "http://127.0.0.1:1234/v1"))
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_time"]


def test_parallel_tool_calls_are_sent_only_if_set() -> None:
    assert "parallel_tool_calls" not in to_body(ask("x", tools=[WEATHER]), "m", Dialect())


def test_the_output_limit_has_openais_new_name_only_at_openai() -> None:
    for url, name in (
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("http://127.0.0.1:9000/v1", "max_tokens"),
    ):
        body = to_body(
            ask("x", settings=ModelSettings(max_output_tokens=5)), "m", dialect_of("openai", url)
        )
        assert {key: value for key, value in body.items() if key.startswith("max")} == {name: 5}


@pytest.mark.parametrize(
    "payload", [{}, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": None}]}]
)
def test_an_answer_without_a_message_is_an_empty_reply(payload: dict[str, object]) -> None:
    assert to_reply(payload, ask("x")).parts == ()


MALFORMED: list[dict[str, Any]] = [
    {"choices": [None]},
    {"choices": {"message": {}}},
    {"choices": "hello"},
    {"choices": [{"message": "hello"}]},
    {"choices": [{"message": {"content": {"text": "x"}}}]},
    {"choices": [{"message": {"content": [["x"], 5]}}]},
    {"choices": [{"message": {"content": "x", "reasoning": 5}}]},
    {"choices": [{"message": {"tool_calls": 5}}]},
    {"choices": [{"message": {"tool_calls": [{"id": [7], "function": {"name": "a"}}]}}]},
    {"choices": [{"message": {"tool_calls": [{"id": "1", "function": "a"}]}}]},
    {"choices": [{"message": {"tool_calls": [{"id": "1", "function": {"name": 5}}]}}]},
    {"choices": [{"message": {"content": "x"}, "finish_reason": 5}]},
    {"choices": [{"message": {"content": "x"}}], "model": {"id": "m"}},
]


@pytest.mark.parametrize("payload", MALFORMED, ids=repr)
def test_a_malformed_answer_is_a_model_error(payload: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="sent an answer that cannot be read") as caught:
        to_reply(payload, ask("x"))
    assert caught.value.kind == "llm_error"


def test_an_empty_call_and_float_token_counts_are_read() -> None:
    usage = {"prompt_tokens": 3.0, "completion_tokens": 2, "prompt_tokens_details": None}
    reply = to_reply(
        {"choices": [{"message": {"content": None, "tool_calls": [None]}}], "usage": usage},
        ask("x"),
    )
    assert (reply.parts, reply.usage.prompt_tokens) == ((), 3)


def test_an_invalid_tool_name_is_sent_back_in_a_valid_form() -> None:
    call = ToolCallPart("call-1", "no such tool!", "{}")
    (row,) = to_messages([said("assistant", call)])
    assert row["tool_calls"][0]["function"]["name"] == "no_such_tool_"


def read(data: bytes, size: int) -> tuple[list[Any], SseReader]:
    lines = SseReader()
    events = [
        e for start in range(0, len(data), size) for e in lines.feed(data[start : start + size])
    ]
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


def test_a_last_line_without_a_newline_counts() -> None:
    events, lines = read(b'data: {"a": 1}\ndata: {"b": 2}', 5)
    assert events == [{"a": 1}, {"b": 2}]
    assert not lines.is_done


def build(*pieces: dict[str, Any]) -> tuple[list[Any], ModelReply]:
    builder = ReplyBuilder()
    chunks = [
        chunk
        for piece in pieces
        for chunk in builder.feed({"choices": [{"delta": {"tool_calls": [piece]}}]})
    ]
    return chunks, builder.reply(ask("x"))


def call(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "function": {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None},
        **more,
    }


def named(reply: ModelReply) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in reply.parts if isinstance(part, ToolCallPart)]


def test_calls_without_index_and_id_are_distinguished_by_name() -> None:
    chunks, reply = build(call("a", '{"x":'), call(None, "1}"), call("b", "{}"))
    assert named(reply) == [("a", '{"x":1}'), ("b", "{}")]
    ids = [part.call_id for part in reply.parts if isinstance(part, ToolCallPart)]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)
    assert chunks[0] == ToolCallChunk(0, '{"x":', ids[0], "a")
    assert chunks[1] == ToolCallChunk(0, "1}")


def test_indexes_may_begin_anywhere() -> None:
    _, reply = build(
        call("a", "{", index=3, id="1"), call("b", "{}", index=7, id="2"), call(None, "}", index=3)
    )
    assert named(reply) == [("a", "{}"), ("b", "{}")]
