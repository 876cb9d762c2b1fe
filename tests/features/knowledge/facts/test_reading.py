"""A model's answer becomes drafts of facts; other lines are counted, and nothing fails."""

from typing import Any

import orjson

from ricordo.features.knowledge.facts.reading import Chunk
from tests.features.knowledge.facts.conftest import message

SAID = message("I live in Graz with my sister Emma.")


def answer(**fields: Any) -> str:
    fact = {
        "sentence": "I live in Graz.",
        "subject": "user",
        "kind": "who",
        "slot": "home",
        "value": "Graz",
        "quotes": [{"message": 1, "quote": "I live in Graz"}],
        "start": None,
        "end": None,
        "confidence": 0.5,
        "old_fact": None,
        "relation": None,
    }
    return orjson.dumps({"facts": [fact | fields]}).decode()


def test_invalid_dates_and_numbers_of_a_model_count_as_faulty() -> None:
    chunk = Chunk([SAID], [], "user-ada")
    days = ("2026-1-1-1", "2026-13", "9999-12", "0", "2026-02-30", "--", "May", "-1", "²")
    wrong = [answer(start=day) for day in days]
    wrong += [answer(end=day, start="2026") for day in days]
    wrong += [answer(old_fact=1), answer(quotes=[{"message": 2, "quote": "Graz"}]), "", "no", "{"]
    for text in wrong:
        assert chunk.drafts_in(text) == ([], 1), text


def test_texts_of_a_model_are_normalized_to_one_line() -> None:
    chunk = Chunk([SAID], [], "user-ada")
    for sentence in ("I live\0 in Graz.", "I live\u200b in\nGraz.", "\ufeffI live in \t Graz."):
        ((draft,), faulty) = chunk.drafts_in(answer(sentence=sentence, subject="Em\0ma\n"))
        assert (draft.sentence, draft.subject, faulty) == ("I live in Graz.", "emma", 0)
