"""Answers of a chat completions server in which any field has any JSON type, or is repeated."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.errors import ModelError
from ricordo.llm.openai_dialect import Dialect
from ricordo.llm.openai_reply import ReplyBuilder, SseReader, generation_in, read_fault, to_reply
from ricordo.llm.policy import error_from_event
from tests.llm.talk import WEATHER, ask

REQUEST = ask("Hello", tools=[WEATHER], logprobs=2)
TOKEN = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105]}
MESSAGE: dict[str, Any] = {
    "content": [
        {"type": "thinking", "thinking": [{"text": "Hm."}]},
        {"type": "text", "text": "Hi."},
        "Bye.",
    ],
    "refusal": "No.",
    "reasoning_content": "Hm.",
    "reasoning": {"text": "Hm."},
    "reasoning_details": [
        {"type": "reasoning.text", "text": "Hm.", "index": 0, "id": "r"},
        {"type": "reasoning.encrypted", "summary": "Hm.", "index": 1, "id": "e"},
    ],
    "tool_calls": [{"index": 0, "id": "1", "function": {"name": "weather", "arguments": "{}"}}],
    "function_call": {"name": "weather", "arguments": "{}"},
}
ANSWER: dict[str, Any] = {
    "object": "chat.completion",
    "type": "answer",
    "model": "m",
    "choices": [
        {
            "delta": MESSAGE,
            "message": MESSAGE,
            "finish_reason": "stop",
            "error": None,
            "logprobs": {
                "content": [TOKEN | {"top_logprobs": [TOKEN]}],
                "refusal": [],
                "tokens": None,
                "token_logprobs": [-0.1],
                "top_logprobs": [{"Hi": -0.1}],
            },
        }
    ],
    "error": {
        "message": "no",
        "code": 400,
        "type": "bad",
        "param": "p",
        "failed_generation": "Hi.",
        "metadata": {"raw": "no"},
    },
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
# Values of every JSON type, with some that Python treats unlike the others of their type.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 429, 2**64 - 1, 0.5, 1e300, "", "error", "\ud7ff", "9" * 50),
    *([], [None], [[]], [{}], {}, {"error": []}, {"text": {}}),
)
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=4,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside this value."""
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, member in value.items():
            yield from paths(member, (*path, key))


PATHS = list(paths(ANSWER))


def with_values(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    """Return the answer with other values at these paths, as far as the paths still exist."""
    answer = copy.deepcopy(ANSWER)
    for path, value in changes:
        place: Any = answer
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue
    return answer


def read(answer: dict[str, Any]) -> None:
    """Read an answer by each way that an answer takes; only a `ModelError` may be raised."""
    whole = copy.deepcopy(answer)
    choices = whole["choices"]
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choices[0].pop("delta", None)
    for body in (answer, whole):
        fault = read_fault(body)
        generation_in(body, REQUEST)
        if fault is not None:
            str(error_from_event("provider", fault))
        for replays in ("nothing", "details"):
            try:
                to_reply(body, REQUEST, Dialect(provider="p", replays=replays))
                builder = ReplyBuilder(Dialect(provider="p", replays=replays))
                for _ in range(2):
                    list(builder.feed(body))
                builder.reply(REQUEST)
            except ModelError:
                continue


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_each_field_may_have_any_type(path: tuple[Any, ...]) -> None:
    for value in ODD:
        read(with_values([(path, value)]))


@given(st.lists(st.tuples(st.sampled_from(PATHS), ANY_JSON), min_size=1, max_size=4))
def test_several_fields_may_have_any_type(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    read(with_values(changes))


@pytest.mark.parametrize("reason", ["error", "ERROR", "Aborted"])
def test_a_reason_of_a_broken_answer_is_read_in_any_case(reason: str) -> None:
    fault = read_fault({"choices": [{"finish_reason": reason}]})
    assert fault == {"error": {"message": f"It stopped with {reason}."}}


BETWEEN = [
    b'data: {"choices":[]}\n\n',
    b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
    b": ping\n\n",
    b'data: {"choices":[{"delta":{"content":""}}],"usage":{"prompt_tokens":3}}\n\n',
]


@pytest.mark.parametrize("between", [*BETWEEN, b"".join(BETWEEN)])
def test_events_between_the_halves_of_an_emoji_do_not_lose_it(between: bytes) -> None:
    event = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n'
    stream = event % b"a\\ud83d" + between + event % b"\\ude00b"
    builder = ReplyBuilder()
    for read_event in SseReader().feed(stream):
        list(builder.feed(read_event))
    assert builder.reply(REQUEST).parts == (TextPart("a😀b"),)


def test_a_lost_half_of_an_emoji_does_not_join_a_later_text() -> None:
    event = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n'
    stream = b"".join(event % text for text in (b"a\\ud83d", b"b", b"\\ude00c"))
    builder = ReplyBuilder()
    for read_event in SseReader().feed(stream):
        list(builder.feed(read_event))
    assert builder.reply(REQUEST).parts == (TextPart("ab\ufffdc"),)


@pytest.mark.parametrize("content", ["", "Hi."])
@pytest.mark.parametrize("replays", ["nothing", "details"])
def test_a_last_event_that_repeats_the_reasoning_does_not_double_it(
    content: str, replays: Any
) -> None:
    pieces = ["I ", "think."]
    deltas: list[dict[str, Any]] = [
        {"reasoning_details": [{"type": "reasoning.text", "text": piece, "index": 0}]}
        for piece in pieces
    ]
    message = {
        "reasoning": "I think.",
        "reasoning_details": [{"type": "reasoning.text", "text": "I think.", "index": 0}],
        "content": content,
    }
    builder = ReplyBuilder(Dialect(provider="p", replays=replays))
    for delta in deltas:
        list(builder.feed({"choices": [{"delta": delta}]}))
    list(builder.feed({"choices": [{"delta": {}, "message": message, "finish_reason": "length"}]}))
    thought, *texts = builder.reply(REQUEST).parts
    assert isinstance(thought, ReasoningPart)
    assert thought.text == "I think."
    assert (thought.signature or "").count("think") == (1 if replays == "details" else 0)
    assert texts == ([TextPart(content)] if content else [])
