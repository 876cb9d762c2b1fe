"""Sentences that an agent names for forgetting, with a redacted secret."""

from itertools import product

import pytest

from ricordo.domain.redaction import PLACEHOLDER
from ricordo.features.memory_care.forgetting.needle import MARK, Needle, blank

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
