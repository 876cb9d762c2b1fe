"""The estimate of token counts."""

from dataclasses import replace

import pytest

from ricordo.domain.message import ImagePart, ReasoningPart
from ricordo.llm.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    message_tokens,
    part_tokens,
    request_tokens,
    shortened,
    text_tokens,
    tool_tokens,
    transcript_tokens,
    writable,
)
from tests.llm.talk import WEATHER, ask, said, weather_call, weather_return


def test_a_text_is_counted_by_its_scripts() -> None:
    counts = {
        "": 0,
        "a": 1,
        "abcd" * 10: 10,
        "日本語": 3,
        "한국어": 3,
        "Привет": 3,
        "héllo wörld": 4,
        "ok 日本": 3,
    }
    assert {text: text_tokens(text) for text in counts} == counts


def test_a_message_counts_all_its_parts() -> None:
    message = said("assistant", "abcd", weather_call())
    assert message_tokens(message) == MESSAGE_TOKENS + 1 + part_tokens(weather_call())
    assert part_tokens(weather_return(content="x" * 400)) >= 100
    assert part_tokens(ImagePart("image/png", data="A" * 9_000_000)) == IMAGE_TOKENS


def test_only_reasoning_that_is_sent_back_is_counted() -> None:
    assert part_tokens(ReasoningPart("x" * 400)) == 0
    assert part_tokens(ReasoningPart("x" * 400, signature="s")) == 100


def test_a_request_counts_messages_and_tools() -> None:
    request = ask("Hello", tools=[WEATHER])
    assert request_tokens(request) == transcript_tokens(request.messages) + tool_tokens([WEATHER])
    assert request_tokens(request) > request_tokens(replace(request, tools=()))


@pytest.mark.parametrize(
    "text",
    ["word " * 5_000, "日本語" * 3_000, "é" * 9_000, "a" * 3_000 + "語" * 3_000, "x" * 2_000_000],
)
@pytest.mark.parametrize("tokens", [1, 7, 500])
def test_a_text_is_cut_to_the_longest_beginning_that_fits(text: str, tokens: int) -> None:
    short = shortened(text, tokens)
    assert text.startswith(short)
    assert short
    assert text_tokens(short) <= tokens
    # The estimate is not much smaller than the real size either.
    assert text_tokens(text[: len(short) + len(short) // 4 + 8]) >= tokens


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert writable("a\ud800b") == "a?b"
    assert writable("è 日本 😀 plain") == "è 日本 😀 plain"
