"""Sentences that an agent names for forgetting, with a redacted secret."""

from functools import partial
from itertools import product

import orjson
import pytest

from ricordo.domain.redaction import PLACEHOLDER
from ricordo.features.memory_care.forgetting.needle import (
    MARK,
    Needle,
    blank,
    change_strings,
    strings_in,
)

SECRETS = ("SuperSecret123!", "hunter2", "sk-live-4711-AbCd", "p@ss (word)")
SENTENCES = (
    "My password for the company system is {}",
    "{} is the code of my locker",
    "The key {} opens my diary",
)


@pytest.mark.parametrize(("secret", "sentence"), list(product(SECRETS, SENTENCES)))
def test_a_sentence_with_a_redacted_secret_matches_the_original_text(
    secret: str, sentence: str
) -> None:
    needle = Needle(f"{sentence.format(PLACEHOLDER.format('password'))}.")
    text = f"I like tea.\n{sentence.format(secret)}.\nMy sister lives in Graz."
    assert blank(text, needle) == f"I like tea.\n{MARK}\nMy sister lives in Graz."
    other = "I like tea.\nMy password was changed.\nThe key fits."
    assert blank(other, needle) == other


def test_a_redacted_secret_alone_matches_nothing() -> None:
    needle = Needle(PLACEHOLDER.format("password"))
    assert needle.parts == ()
    assert not needle.is_in("Anything at all.")


def test_random_tags_of_forget_rules_match_no_other_text() -> None:
    """The tags of a rule are random letters: to the embedding model some look like a sentence."""
    needle = Needle("I earn four thousand euros a month.", by_meaning=True)
    rules = [
        f"What was forgotten on 2026-01-01 ({number:08x}: {number % 4096:03x} b14 e33)"
        for number in range(0, 10**9, 10**6)
    ]
    assert needle.units("\n".join(rules)) == []


@pytest.mark.parametrize("levels", [10, 90, 300, 900, 1_020])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_fact_is_found_and_blanked_in_json_of_any_depth(
    levels: int, opening: str, closing: str
) -> None:
    needle = Needle("I have diabetes")
    text = f'{opening * levels}"I have diabetes."{closing * levels}'
    for stored in (text, [text], {"metadata": {"note": text}}):
        assert any(map(needle.is_in, strings_in(stored)))
        changed = change_strings(stored, partial(blank, needle=needle))
        texts = list(strings_in(changed))
        assert not any(map(needle.is_in, texts))
        assert MARK in "".join(texts)


def test_json_in_json_of_many_levels_is_read() -> None:
    needle = Needle("I have diabetes")
    text = "I have diabetes."
    for _ in range(6):
        text = orjson.dumps(
            {"a": orjson.Fragment(b"[" * 90 + orjson.dumps(text) + b"]" * 90)}
        ).decode()
    assert any(map(needle.is_in, strings_in(text)))
    assert MARK in change_strings(text, partial(blank, needle=needle))
