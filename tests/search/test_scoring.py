"""Scores by words, compared with a simple scorer."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.search.reader import DOCUMENT
from ricordo.search.scoring import (
    PART_SHIFT,
    PAUSE,
    DocumentColumns,
    Posting,
    documents_of,
    lexical,
)
from ricordo.search.words import is_question

MINUTE = 60_000_000


@dataclass
class Turn:
    """A document as a plain record.

    `words` maps a term to its number of occurrences.
    """

    conversation: int
    created_at: int
    length: int
    words: dict[str, int]
    speaker: str = ""
    is_alive: bool = True


def documents(turns: list[Turn]) -> DocumentColumns:
    rows = [
        (n, t.created_at, t.conversation, 0, t.length, 0, 0, t.is_alive, 0)
        for n, t in enumerate(turns)
    ]
    records = np.array(rows, dtype=DOCUMENT)
    return documents_of(records, records["alive"] == 1)


def posting(turns: list[Turn], term: str, weight: float = 1.0) -> Posting:
    found = [
        (n, turn.words.get(term, 0), turn.speaker == term)
        for n, turn in enumerate(turns)
        if turn.is_alive and (turn.words.get(term) or turn.speaker == term)
    ]
    return Posting(
        np.array([n for n, _, _ in found], dtype=np.uint32),
        np.array([times for _, times, _ in found], dtype=np.uint8),
        np.array([named for _, _, named in found], dtype=np.bool_),
        weight,
    )


def steps_between(before: Turn, turn: Turn) -> int:
    """Return the slots between the middles of two turns, with 35 words to a slot."""
    return max(1, round((before.length + turn.length) / 70))


def plain_scores(turns: list[Turn], weighted_terms: dict[str, float]) -> list[float]:
    """Compute the same scores with loops over neighbours and hits."""
    sessions: list[list[int]] = []
    alive = [n for n, turn in enumerate(turns) if turn.is_alive]
    for n in sorted(alive, key=lambda n: (turns[n].conversation, turns[n].created_at, n)):
        before = turns[sessions[-1][-1]] if sessions else None
        is_new = (
            turns[n].conversation == 0
            or before is None
            or before.conversation != turns[n].conversation
            or turns[n].created_at - before.created_at > PAUSE
            or steps_between(before, turns[n]) > 4
        )
        sessions.append([n]) if is_new else sessions[-1].append(n)
    places: dict[int, tuple[list[int], int]] = {}
    for session in sessions:
        place = 0
        for before_n, n in zip([None, *session], session, strict=False):
            place += steps_between(turns[before_n], turns[n]) if before_n is not None else 0
            places[n] = (session, place)

    def beside(n: int) -> list[tuple[float, int]]:
        session, place = places[n]
        return [
            ({1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1}[abs(places[other][1] - place)], other)
            for other in session
            if 0 < abs(places[other][1] - place) <= 4
        ]

    around = {
        n: 1 + turns[n].length + sum(share * turns[other].length for share, other in beside(n))
        for n in alive
    }
    mean = sum(around.values()) / len(around) if around else 1
    total = [0.0] * len(turns)
    for term, weight in weighted_terms.items():
        holders = [n for n in alive if turns[n].words.get(term) or turns[n].speaker == term]
        rarity = math.log(1 + (max(len(alive) - len(holders) + 0.5, 0.5)) / (len(holders) + 0.5))
        for n in alive:
            hits = float(min(turns[n].words.get(term, 0), 8))
            for share, other in beside(n):
                hits += share * min(turns[other].words.get(term, 0), 8)
            hits += turns[n].speaker == term
            weakening = 1.2 * (1 - 0.75 + 0.75 * around[n] / mean)
            total[n] += weight * rarity * 2.2 * hits / (hits + weakening)
    return total


turns_of_talks = st.lists(
    st.builds(
        Turn,
        conversation=st.integers(0, 4),
        created_at=st.integers(0, 40).map(lambda steps: steps * 25 * MINUTE),
        length=st.integers(0, 60) | st.integers(100, 400),
        words=st.dictionaries(st.sampled_from("abc"), st.integers(1, 127), max_size=3),
        speaker=st.sampled_from(["", "a", "d"]),
        is_alive=st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=40,
)


@given(turns=turns_of_talks, few=st.booleans())
def test_scores_equal_those_of_the_plain_scorer(
    turns: list[Turn], few: bool, monkeypatch_module: pytest.MonkeyPatch
) -> None:
    # Terms are added in two ways, over all slots or over the touched slots. Both are compared.
    monkeypatch_module.setattr("ricordo.search.scoring.FEW_HITS", 2.0 if few else 0.0)
    weighted = {"a": 1.0, "b": 0.5, "d": 1.0, "nowhere": 1.0}
    found = lexical(
        documents(turns), [posting(turns, term, weight) for term, weight in weighted.items()]
    )
    expected = [
        score if turn.is_alive else 0.0
        for score, turn in zip(plain_scores(turns, weighted), turns, strict=True)
    ]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def monkeypatch_module() -> object:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(st.lists(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=5), min_size=1))
def test_a_texts_score_averages_its_best_part_and_the_mean_of_all_parts(
    texts: list[list[float]],
) -> None:
    rows = [
        (n + 1, n * PAUSE, 7, 0, 150, 0, 0, True, part << PART_SHIFT)
        for n, scores in enumerate(texts)
        for part in (range(1, len(scores) + 1) if len(scores) > 1 else [0])
    ]
    records = np.array(rows, dtype=DOCUMENT)
    parts = np.array([score for scores in texts for score in scores], dtype=np.float32)
    found = documents_of(records, records["alive"] == 1).text_scores(parts)
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    expected = np.zeros(len(parts))
    expected[starts] = [(max(scores) + sum(scores) / len(scores)) / 2 for scores in texts]
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_text_that_ends_with_a_question_is_a_question() -> None:
    for text in ("Is it?", "Is it? ", 'He said: "Is it?"', "本当ですか？", "حقا؟", "Really?!"):
        assert is_question(text), text
    for text in ("", "?!. Yes.", "Is it? I think so.", "!"):
        assert not is_question(text), text
