"""Pieces of streamed calls with wrong, missing or repeated ids, names and indexes.

Impossible token counts are tested too.
"""

import itertools
from typing import Any

import orjson
import pytest

from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.model import ModelReply
from ricordo.llm.openai_reply import ReplyBuilder, read_fault, to_reply
from tests.llm.talk import CLOCK, WEATHER, ask

REQUEST = ask("Hello", tools=[WEATHER, CLOCK])
TEA, ROME = '{"city": "Tea {\\"x\\"}"}', '{"city": "Rome"}'
Piece = dict[str, Any]


def built(pieces: list[Piece]) -> ModelReply:
    builder = ReplyBuilder()
    for piece in pieces:
        list(builder.feed({"choices": [{"delta": {"tool_calls": [piece]}}]}))
    return builder.reply(REQUEST)


def calls_of(reply: ModelReply) -> list[tuple[str, Any]]:
    return [
        (part.name, orjson.loads(part.arguments or "{}"))
        for part in reply.parts
        if isinstance(part, ToolCallPart)
    ]


def piece(
    index: Any = None, call_id: Any = None, name: str | None = None, arguments: str | None = None
) -> Piece:
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    row = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in row.items() if value is not None}


def of_call(number: int, text: str, cut: int, how: tuple[str, str, str]) -> list[Piece]:
    """Return one call as a first piece and pieces of arguments, numbered as `how` says."""
    head_index, rest_index, ids = how
    indexes = {
        "none": None,
        "own": number,
        "zero": 0,
        "next": number + 1,
        "text": str(number),
        "float": float(number),
        "minus": -1,
    }
    own_id = f"call_{number}"
    rows = [
        piece(indexes[head_index], None if ids == "none" else own_id, "get_weather", text[:cut])
    ]
    for at in range(cut, len(text), 7):
        later_id = {"always": own_id, "other": f"chunk_{number}_{at}"}.get(ids)
        rows.append(piece(indexes[rest_index], later_id, None, text[at : at + 7]))
    return rows


WAYS = [
    (head, rest, ids)
    for head, rest, ids in itertools.product(
        ("none", "own", "zero", "text", "float", "minus"),
        ("none", "own", "zero", "next", "text", "float", "minus"),
        ("first", "none", "always", "other"),
    )
    # Some servers number each piece, or each whole call, as the next call. For them the index means
    # nothing.
    if not (rest == "next" and head in ("own", "text", "float"))
]


@pytest.mark.parametrize("cut", [0, 1, len(ROME)])
def test_pieces_of_a_call_belong_to_the_open_one_however_they_are_numbered(cut: int) -> None:
    for how in WAYS:
        pieces = [
            *of_call(0, TEA, min(cut, len(TEA)), how),
            *of_call(1, ROME, cut, how),
            *of_call(2, TEA, cut, how),
        ]
        expected = [("get_weather", orjson.loads(text)) for text in (TEA, ROME, TEA)]
        reply = built(pieces)
        assert [part.name for part in reply.parts if isinstance(part, ToolCallPart)] == [
            "get_weather"
        ] * 3, how
        assert calls_of(reply) == expected, how


def test_a_call_under_an_earlier_index_gets_the_arguments_under_the_next_index() -> None:
    head = piece(0, "call_b", "get_weather", "")
    assert calls_of(
        built([piece(0, "call_a", "get_weather", TEA), head, piece(1, None, None, ROME)])
    ) == [
        ("get_weather", orjson.loads(TEA)),
        ("get_weather", orjson.loads(ROME)),
    ]


def test_arguments_that_follow_all_the_names_are_assigned_to_their_calls() -> None:
    heads = [piece(number, f"call_{number}", "get_weather", "") for number in range(3)]
    rests = [piece(number + 5, None, None, f'{{"city": "{number}"}}') for number in range(3)]
    assert [call[1]["city"] for call in calls_of(built([*heads, *rests]))] != []
    in_turn = [piece(number, None, None, f'{{"city": "{number}"}}') for number in range(3)]
    assert [call[1]["city"] for call in calls_of(built([*heads, *in_turn]))] == ["0", "1", "2"]
    together = [piece(0, None, None, f'{{"city": "{number}"}}') for number in range(3)]
    assert [call[1]["city"] for call in calls_of(built([*heads, *together]))] == ["0", "1", "2"]


def test_a_call_without_arguments_does_not_get_those_of_others() -> None:
    pieces = [
        piece(0, "a", "get_time", ""),
        piece(1, "b", "get_weather", ROME),
        piece(2, "c", "get_time"),
    ]
    assert calls_of(built(pieces)) == [
        ("get_time", {}),
        ("get_weather", orjson.loads(ROME)),
        ("get_time", {}),
    ]


ODD = (
    2**63,
    2**64,
    10**30,
    -1,
    -(2**70),
    1.5,
    1e300,
    float("inf"),
    float("nan"),
    "12",
    "many",
    None,
    [],
    {},
    True,
    "9" * 40,
)


@pytest.mark.parametrize(
    "field",
    [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "cached_tokens",
    ],
)
def test_an_invalid_token_count_does_not_lose_the_answer(field: str) -> None:
    for count in ODD:
        for usage in (
            {field: count},
            {"prompt_tokens": 3, "completion_tokens": 4, field: count},
            count,
        ):
            payload = {
                "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}],
                "usage": usage,
            }
            reply = to_reply(payload, REQUEST)
            assert reply.parts == (TextPart("Hi."),)
            for number in (
                reply.usage.prompt_tokens,
                reply.usage.completion_tokens,
                reply.usage.cached_tokens or 0,
            ):
                assert type(number) is int
                assert 0 <= number < 2**31
            assert reply.usage.total_tokens > 0


def test_token_counts_sent_as_text_are_read() -> None:
    payload = {
        "choices": [{"message": {"content": "Hi."}}],
        "usage": {"prompt_tokens": "12", "completion_tokens": 3.0},
    }
    reply = to_reply(payload, REQUEST)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (12, 3)


def test_an_error_in_a_response_counts_unless_the_answer_is_complete() -> None:
    whole = {
        "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}],
        "error": {"message": "late"},
    }
    assert read_fault(whole) is None
    for payload in (
        {"error": {"message": "no"}},
        {"error": "no", "choices": []},
        {"error": {"message": "no"}, "choices": None},
        {
            "error": {"message": "no"},
            "choices": [{"message": {"content": "Hal"}, "finish_reason": None}],
        },
        {"object": "error", "message": "no"},
        {"choices": [{"message": {"content": "Hal"}, "finish_reason": "error"}]},
        {"choices": [{"error": {"message": "no"}, "finish_reason": "stop"}]},
    ):
        assert read_fault(payload) is not None, payload
    assert read_fault({"choices": [{"delta": {"content": "Hi."}}], "error": None}) is None
