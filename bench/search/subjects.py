"""Texts about subjects, for searches by meaning, made from real words.

Half of the words of a text are near in meaning to its subject. The invented words of `texts.py`
consist of the same few syllables. So to an embedding model all of those texts mean the same. Here
the words are those that have a separate vector in the embedded model.
"""

import asyncio
import re

import numpy as np
from tokenizers import Tokenizer

from bench.search.texts import COMMON, Numbers, Writer
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import EmbeddedModel

_WHOLE_WORD = re.compile("\N{LOWER ONE EIGHTH BLOCK}[a-z]{4,}")
_SUBJECTS = 2_000
_WORDS_OF_SUBJECT = 60
_SHARE = 0.5


class Author(Writer):
    """Writes such texts and their questions. The same seed gives the same texts and questions."""

    def __init__(self, seed: int) -> None:
        words = _words()
        super().__init__(seed, words)
        vectors = np.array(asyncio.run(EmbeddedModel().embed(words)), dtype=np.float32)
        subjects = vectors[self._random.permutation(len(words))[:_SUBJECTS]]
        # The nearest word comes first: it is the subject itself.
        self._near = np.argsort(-(subjects @ vectors.T), axis=1)[:, :_WORDS_OF_SUBJECT] + len(
            COMMON
        )

    def _told(self, ranks: Numbers, lengths: Numbers) -> Numbers:
        subject = np.repeat(self._random.integers(0, len(self._near), len(lengths)), lengths)
        chosen = (self._random.random(len(ranks)) ** 2 * _WORDS_OF_SUBJECT).astype(int)
        is_near = (self._random.random(len(ranks)) < _SHARE) & (ranks >= len(COMMON))
        told: Numbers = np.where(is_near, self._near[subject, chosen], ranks)
        return told


def _words() -> list[str]:
    folder = embedded.package_folder()
    assert folder is not None, embedded.INSTALL
    known = Tokenizer.from_file(str(folder / embedded.TOKENIZER[0])).get_vocab()
    words = sorted(word[1:] for word in known if _WHOLE_WORD.fullmatch(word))
    kept = [word for word in words if word not in COMMON]
    return [kept[place] for place in np.random.default_rng(1).permutation(len(kept))]
