"""A model's answer becomes drafts of facts; other lines are counted, and nothing fails."""

from itertools import combinations
from typing import Any

import orjson
import pytest

from ricordo.domain.clock import to_datetime
from ricordo.features.knowledge.facts.reading import Chunk
from ricordo.features.knowledge.facts.times import stated_time
from tests.features.knowledge.facts.conftest import message, moment

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


@pytest.mark.parametrize(
    ("sentence", "first", "end"),
    [
        ("I was ill from 3 May to 5 June.", "2026-05-03", "2026-06-06"),
        ("I was away from 20 December until 6 January.", "2025-12-20", "2026-01-07"),
        ("Between 3 May 2023 and 5 May 2023 I was ill.", "2023-05-03", "2023-05-06"),
        ("I went from Rome to Graz in May.", "2026-05-01", "2026-06-01"),
        ("I was ill in May, and again in July.", "2026-05-01", "2026-06-01"),
        ("I was there from Monday to Friday.", "2026-11-16", "2026-11-17"),
    ],
)
def test_a_span_without_years_ends_at_its_second_date(sentence: str, first: str, end: str) -> None:
    time = stated_time(sentence, moment("2026-11-18"))
    assert time
    assert f"{to_datetime(time.start):%Y-%m-%d}" == first
    assert f"{to_datetime(time.end):%Y-%m-%d}" == end


SPANS = (
    "from {} to {}",
    "von {} bis {}",
    "de {} à {}",
    "entre {} y {}",
    "tra {} e {}",
    "from about {} to {}",
)
# Ends with their first day and the day after their last.
ENDS = [
    ("3 May 2019", "2019-05-03", "2019-05-04"),
    ("2020", "2020-01-01", "2021-01-01"),
    ("7.5.2021", "2021-05-07", "2021-05-08"),
    ("May 2022", "2022-05-01", "2022-06-01"),
    ("2023-05-09", "2023-05-09", "2023-05-10"),
    ("9 June 2024", "2024-06-09", "2024-06-10"),
    ("2025", "2025-01-01", "2026-01-01"),
]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize(("first", "last"), list(combinations(ENDS, 2)))
def test_a_span_with_years_begins_and_ends_on_the_named_days(
    span: str, first: tuple[str, str, str], last: tuple[str, str, str]
) -> None:
    sentence = f"I lived in Rome {span.format(first[0], last[0])}."
    time = stated_time(sentence, moment("2026-11-18"))
    assert time
    assert f"{to_datetime(time.start):%Y-%m-%d}" == first[1]
    assert f"{to_datetime(time.end):%Y-%m-%d}" == last[2]
