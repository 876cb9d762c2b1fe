"""Texts made fit for a model."""

import pytest

from ricordo.llm.tokens import shortened, text_tokens, writable


@pytest.mark.parametrize(
    "text", ["word " * 5_000, "日本語" * 3_000, "é" * 9_000, "a" * 3_000 + "語" * 3_000, "x" * 2_000_000]
)
@pytest.mark.parametrize("tokens", [1, 7, 500])
def test_a_long_text_keeps_as_much_of_its_beginning_as_fits(text: str, tokens: int) -> None:
    short = shortened(text, tokens)
    assert text.startswith(short)
    assert short
    assert text_tokens(short) <= tokens
    # Not much less than what would fit, either.
    assert text_tokens(text[: len(short) + len(short) // 4 + 8]) >= tokens


def test_a_text_that_fits_stays_whole() -> None:
    assert shortened("Ciao, 世界!", 10) == "Ciao, 世界!"
    assert shortened("", 10) == ""


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert writable("a\ud800b") == "a?b"
    assert writable("è 日本 😀 plain") == "è 日本 😀 plain"
