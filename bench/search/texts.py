"""Texts with the form of talk, made from a seed.

Few words make up most of a text, sentences differ in length, and new words keep appearing.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

COMMON = (
    "the of and to in i you that it is was for on are with as be at have this from or had by but "
    "what all were we when your can said there so not my me do about"
).split()
WORDS = 40_000
SPEAKERS = ("Ada", "Noor")
Numbers = npt.NDArray[np.int64]
_MIDDLE_LENGTH, _SPREAD, _LONGEST = 18, 0.6, 120
# The median words of an assistant's long answer, its most words, and the words of a sentence.
_ANSWER_LENGTH, _LONGEST_ANSWER, _SENTENCE = 640, 2_000, 20
_ASKED = 4


class Writer:
    """Writes texts and questions. The same seed gives the same texts and questions."""

    def __init__(self, seed: int, words: Sequence[str] | None = None) -> None:
        self._random = np.random.default_rng(seed)
        self._words = np.array([*COMMON, *(_invented(WORDS) if words is None else words)])
        # A word's frequency is proportional to 1 / rank, as in every language.
        weights = 1 / np.arange(1, len(self._words) + 1)
        self._up_to = np.cumsum(weights / weights.sum())

    def texts(self, count: int, *, with_answers: bool = False) -> list[str]:
        """Return this number of texts, of 2 to 120 words.

        With answers, every second text has about 640 words.
        """
        middle = np.full(count, float(_MIDDLE_LENGTH))
        longest = np.full(count, _LONGEST)
        if with_answers:
            middle[1::2] = _ANSWER_LENGTH
            longest[1::2] = _LONGEST_ANSWER
        normal = self._random.normal(0, _SPREAD, count)
        lengths = (middle * np.exp(normal)).astype(int).clip(2, longest)
        ranks = np.searchsorted(self._up_to, self._random.random(lengths.sum())).clip(
            0, len(self._words) - 1
        )
        ranks = self._told(ranks, lengths)
        parts = np.split(self._words[ranks], np.cumsum(lengths)[:-1])
        return [_sentences(part.tolist()) for part in parts]

    def _told(self, ranks: Numbers, _lengths: Numbers) -> Numbers:
        """Return the ranks of the words in texts of these lengths.

        Here they stay unchanged; a subclass gives the texts a meaning.
        """
        return ranks

    def questions(self, texts: Sequence[str], count: int) -> list[str]:
        """Return questions for some of these texts.

        A question has a few words of its text, and the words that every question has.
        """
        asked = []
        for place in self._random.integers(0, len(texts), count):
            said = [
                word for word in texts[place].lower().replace(".", "").split() if word not in COMMON
            ]
            chosen = self._random.permutation(sorted(set(said)))[:_ASKED].tolist()
            speaker = SPEAKERS[int(self._random.integers(0, 2))]
            asked.append(f"What did {speaker} say about the {' and '.join(chosen) or 'rest'}?")
        return asked


def _sentences(words: Sequence[str]) -> str:
    """Join the words to one sentence, or to several if there are many."""
    size = _SENTENCE if len(words) > _LONGEST else _LONGEST
    starts = range(0, len(words), size)
    return " ".join(" ".join(words[i : i + size]).capitalize() + "." for i in starts)


def _invented(count: int) -> list[str]:
    syllables = [
        first + second
        for first, second in product("bdfglmnprstvz", ("a", "e", "i", "o", "u", "an", "or"))
    ]
    made = ["".join(parts) for parts in product(syllables, repeat=3)]
    order = np.random.default_rng(1).permutation(len(made))[:count]
    return [made[place] for place in order]
